//! Carries the requests of a leader election to the API server, and tells the queues who leads.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::config::QueueElection;
use crate::queue::{Answer, Ask, Election, Record, Standing, Write};
use crate::serve::{ElectionConfig, Queues};
use crate::upstream::{Client, UpstreamError};

/// Times that a release is tried: another answer than a conflict is the last.
const RELEASES_MAX: usize = 3;

/// Where a container's name is that is the pod's, too.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// One candidate.
pub(super) struct Elector {
    client: Client,
    queues: Queues,
    election: Election,
    namespace: String,
    name: String,
    timing: crate::queue::Timing,
    /// The Lease as it was last read or written, so that a write keeps what others have put there.
    object: Value,
    /// Why the last request failed.
    trouble: Option<String>,
}

/// This candidate's name: that of the pod, and the number of the process. The pod's name alone would not do: a container that is
/// started again has the name of the one that is dead, and pods in the network of their node have the name of the node.
fn identity(process: u64) -> String {
    let pod = std::env::var("POD_NAME").ok().or_else(|| std::fs::read_to_string(HOSTNAME).ok());
    let pod = pod.map(|pod| pod.trim().to_owned()).filter(|pod| !pod.is_empty());
    format!("{}_{process:016x}", pod.as_deref().unwrap_or("informerd"))
}

/// What of an election is fixed.
pub(super) async fn config(election: &QueueElection, client: &Client, process: u64) -> ElectionConfig {
    let namespace = match &election.lease.namespace {
        Some(namespace) => namespace.clone(),
        None => client.own_namespace().await,
    };
    let lease = format!("{namespace}/{}", election.lease.name);
    ElectionConfig { lease, identity: identity(process) }
}

impl Elector {
    pub(super) fn new(
        client: Client,
        queues: Queues,
        config: &ElectionConfig,
        election: &QueueElection,
    ) -> Self {
        let (namespace, name) = config.lease.split_once('/').unwrap_or(("", &config.lease));
        Self {
            client,
            queues,
            election: Election::new(config.identity.clone(), election.timing),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            timing: election.timing,
            object: Value::Null,
            trouble: None,
        }
    }

    /// Runs until `leaving`, then releases the Lease: another replica leads while this one still serves its streams.
    pub(super) async fn run(mut self, leaving: CancellationToken) {
        loop {
            self.attempt().await;
            let now = Instant::now();
            let next = now + self.election.pause(rand::random(), now);
            tokio::select! {
                () = self.wait(next) => {}
                () = leaving.cancelled() => break,
            }
        }
        // First of all: no key is given after this.
        self.queues.stand(Standing::Follows { leader: None }, None);
        self.release().await;
    }

    /// One try: a read, a write, or both.
    async fn attempt(&mut self) {
        let mut ask = self.election.begin(Instant::now());
        loop {
            let answer = self.carried(&ask).await;
            let next = self.election.answered(&ask, answer, Instant::now());
            self.tell();
            match next {
                Some(next) => ask = next,
                None => return,
            }
        }
    }

    /// Sends a request, and waits for its answer. The term may end meanwhile.
    async fn carried(&mut self, ask: &Ask) -> Answer {
        let (client, object) = (self.client.clone(), self.written(ask));
        let (namespace, name) = (self.namespace.clone(), self.name.clone());
        let request = async move {
            match object {
                Some(object) => client.write_lease(&object).await,
                None => client.lease(&namespace, &name).await,
            }
        };
        let mut request = std::pin::pin!(timeout(self.timing.request(), request));
        let answer = loop {
            let Standing::Leads { until, .. } = self.election.standing(Instant::now()) else {
                break request.await;
            };
            tokio::select! {
                answer = &mut request => break answer,
                () = sleep_until(until) => self.tell(),
            }
        };
        match answer {
            Ok(answer) => self.understood(answer),
            Err(_) => self.failed(format!("no answer within {:?}", self.timing.request())),
        }
    }

    /// Waits, and notices the end of the term.
    async fn wait(&mut self, next: Instant) {
        if let Standing::Leads { until, .. } = self.election.standing(Instant::now())
            && until < next
        {
            sleep_until(until).await;
            self.tell();
        }
        sleep_until(next).await;
    }

    fn tell(&self) {
        self.queues.stand(self.election.standing(Instant::now()), self.trouble.clone());
    }

    fn understood(&mut self, answer: Result<Value, UpstreamError>) -> Answer {
        match answer {
            Ok(object) => {
                self.trouble = None;
                let (record, version) = read(&object);
                self.object = object;
                Answer::Found(record, version)
            }
            Err(UpstreamError::Refused(refusal)) if refusal.code == 404 => Answer::Absent,
            Err(UpstreamError::Refused(refusal)) if refusal.code == 409 => Answer::Conflict,
            Err(error) => self.failed(error.sentence()),
        }
    }

    fn failed(&mut self, why: String) -> Answer {
        if self.trouble.as_deref() != Some(&why) {
            warn!(
                lease = self.lease(),
                error = why,
                "the Lease of the queues' leader cannot be read or written"
            );
        }
        self.trouble = Some(why);
        Answer::Failed
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The object of a write; `None` for a read.
    fn written(&self, ask: &Ask) -> Option<Value> {
        let Ask::Write(write) = ask else { return None };
        let now = serde_json::to_value(MicroTime(Timestamp::now())).unwrap_or_default();
        let before = if write.version.is_some() { self.object.clone() } else { Value::Null };
        Some(object(write, before, &self.namespace, &self.name, &now))
    }

    /// Tells the others that they need not wait.
    async fn release(&mut self) {
        for _ in 0..RELEASES_MAX {
            let Some(write) = self.election.release() else { return };
            match self.carried(&Ask::Write(write)).await {
                // A write of this process of which it never heard: what is there now?
                Answer::Conflict => {
                    let ask = Ask::Read;
                    let answer = self.carried(&ask).await;
                    self.election.look(answer, Instant::now());
                }
                Answer::Found(..) | Answer::Absent | Answer::Failed => return,
            }
        }
    }
}

/// What the election reads of a Lease, and its version.
fn read(lease: &Value) -> (Record, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let spec = &lease["spec"];
    let record = Record {
        holder: text(&spec["holderIdentity"]),
        lease: std::time::Duration::from_secs(spec["leaseDurationSeconds"].as_u64().unwrap_or_default()),
        acquired: text(&spec["acquireTime"]),
        renewed: text(&spec["renewTime"]),
        transitions: spec["leaseTransitions"]
            .as_u64()
            .and_then(|count| count.try_into().ok())
            .unwrap_or_default(),
    };
    (record, text(&lease["metadata"]["resourceVersion"]))
}

/// The Lease of a write: what was there before, with the new holder.
fn object(write: &Write, before: Value, namespace: &str, name: &str, now: &Value) -> Value {
    let mut lease = if before.is_object() { before } else { json!({"metadata": {}, "spec": {}}) };
    lease["apiVersion"] = "coordination.k8s.io/v1".into();
    lease["kind"] = "Lease".into();
    lease["metadata"]["namespace"] = namespace.into();
    lease["metadata"]["name"] = name.into();
    if let Some(version) = &write.version {
        lease["metadata"]["resourceVersion"] = version.as_str().into();
    }
    let spec = &mut lease["spec"];
    spec["holderIdentity"] = write.holder.as_str().into();
    spec["leaseDurationSeconds"] = write.lease.as_secs().into();
    spec["leaseTransitions"] = write.transitions.into();
    spec["renewTime"] = now.clone();
    if write.begins {
        spec["acquireTime"] = now.clone();
    }
    lease
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn write(version: Option<&str>) -> Write {
        Write {
            holder: "pod_1".to_owned(),
            lease: Duration::from_secs(15),
            transitions: 3,
            begins: version.is_none(),
            version: version.map(str::to_owned),
        }
    }

    #[test]
    fn a_written_lease_reads_back_and_keeps_the_members_of_others() {
        let now = json!("2026-01-02T03:04:05.000006Z");
        let mut lease = object(&write(None), Value::Null, "web", "lease", &now);
        assert_eq!(lease["spec"]["acquireTime"], now);
        assert!(lease["metadata"].get("resourceVersion").is_none());
        lease["metadata"]["resourceVersion"] = "7".into();
        lease["metadata"]["labels"] = json!({"a": "b"});
        let later = json!("2026-01-02T03:04:07.000006Z");
        let renewed = object(&write(Some("7")), lease.clone(), "web", "lease", &later);
        assert_eq!(
            renewed["metadata"],
            json!({"namespace": "web", "name": "lease", "resourceVersion": "7", "labels": {"a": "b"}})
        );
        let (record, version) = read(&renewed);
        assert_eq!((&*record.holder, record.transitions, &*version), ("pod_1", 3, "7"));
        assert_eq!(
            (record.acquired, record.renewed),
            (now.as_str().unwrap().to_owned(), later.as_str().unwrap().to_owned())
        );
        assert_eq!(record.lease, Duration::from_secs(15));
        // The holder was released by client-go, or written by hand.
        let (record, _) =
            read(&json!({"metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": null}}));
        assert_eq!(record, Record::default());
    }

    #[test]
    fn renew_times_are_in_the_format_of_the_api_server() {
        let text =
            serde_json::to_value(MicroTime(Timestamp::from_microsecond(1_795_242_636_000_000).unwrap()));
        assert_eq!(text.unwrap(), "2026-11-21T06:30:36.000000Z");
    }

    #[test]
    fn two_processes_of_one_pod_have_different_names() {
        assert_ne!(identity(1), identity(2));
        assert!(identity(1).ends_with("_0000000000000001"));
    }
}
