//! Leader election: which of several replicas gives out the keys of queues.

use std::net::SocketAddr;
use std::time::Duration;

use informerd::testing::config::{self, ElectionTiming, QueueElection, UpstreamSource};
use informerd::testing::sim::{ApiServer, Cluster};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::queues::send;
use crate::support::client::{self, Response};
use crate::support::gate::Gate;
use crate::support::server::{Informerd, TestServer, serve_config};
use crate::support::{in_time, mk_pod};

/// The Lease of the tests.
pub(crate) const LEASE: &str = "web/informerd-queues";

/// Short enough for a test to wait for, and long enough for a busy machine.
pub(crate) const TIMING: ElectionTiming = ElectionTiming {
    lease: Duration::from_secs(5),
    renew: Duration::from_secs(4),
    retry: Duration::from_millis(200),
};

/// A replica with a queue `q` of pods.
pub(crate) async fn replica(upstream: UpstreamSource) -> Informerd {
    Informerd::start(config(upstream)).await
}

fn config(upstream: UpstreamSource) -> config::Serve {
    let mut config = serve_config(upstream, &["pods"]);
    let spec = json!({"watch": [{"resource": "pods"}]});
    config.queues.insert("q".to_owned(), serde_json::from_value(spec).expect("a queue"));
    config.election = Some(QueueElection { lease: LEASE.parse().expect("a name"), timing: TIMING });
    config
}

/// What a replica shows of the election.
pub(crate) async fn shown(address: SocketAddr) -> Value {
    client::get(address, "/v1/queues", &[]).await.json()["election"].clone()
}

/// Waits until a replica leads, or no longer leads.
pub(crate) async fn until_leads(address: SocketAddr, leads: bool) {
    let so = async {
        while shown(address).await["leads"] != leads {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time(&format!("leads: {leads}"), so).await;
}

/// Waits until a replica shows another one, of this name, as the leader.
pub(crate) async fn until_follows(address: SocketAddr, another: &str) {
    let so = async {
        while shown(address).await["leader"] != another {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time(&format!("{another} leads"), so).await;
}

pub(crate) async fn identity(address: SocketAddr) -> String {
    shown(address).await["identity"].as_str().expect("a name").to_owned()
}

pub(crate) async fn post(address: SocketAddr, verb: &str, body: &Value) -> Response {
    send(address, "POST", &format!("/v1/queues/q/{verb}"), body).await
}

/// Leases the next key and returns the token of its lease.
pub(crate) async fn lease(address: SocketAddr) -> Value {
    let answer = post(address, "lease", &json!({"waitSeconds": 20})).await;
    assert_eq!(answer.status(), 200, "{}", answer.text());
    json!({"lease": answer.json()["items"][0]["lease"]})
}

/// Checks that a replica refuses requests to queues, and names the leader.
pub(crate) async fn refuses(address: SocketAddr, leader: &str) {
    let spec = json!({"watch": [{"resource": "pods"}]});
    for (method, target, body) in [
        ("POST", "q/lease", json!({"waitSeconds": 0})),
        ("POST", "q/done", json!({"lease": "0-1.0.1"})),
        ("POST", "q/requeue", json!({"all": true})),
        ("PUT", "new", spec),
        ("GET", "q", json!({})),
        ("DELETE", "q", json!({})),
    ] {
        let refused = send(address, method, &format!("/v1/queues/{target}"), &body).await;
        assert_eq!(refused.status(), 503, "{method} {target}: {}", refused.text());
        assert_eq!(refused.header("retry-after").as_deref(), Some("2"));
        let status = refused.json();
        assert_eq!((&status["kind"], &status["reason"]), (&json!("Status"), &json!("ServiceUnavailable")));
        let cause = &status["details"]["causes"][0];
        assert_eq!(*cause, json!({"reason": "NotLeader", "message": leader, "field": "leader"}), "{status}");
        assert!(status["message"].as_str().unwrap().contains(leader), "{status}");
    }
    let list = client::get(address, "/v1/queues", &[]).await.json();
    assert_eq!((&list["queues"], &list["election"]["lease"]), (&json!([]), &json!(LEASE)));
    assert_eq!((&list["election"]["leads"], &list["election"]["leader"]), (&json!(false), &json!(leader)));
}

async fn cluster_with_a_pod() -> (Cluster, ApiServer, UpstreamSource) {
    let cluster = Cluster::default();
    cluster.create("pods", mk_pod("web", "a", "web")).unwrap();
    let api = TestServer::api(cluster.clone()).await;
    let upstream = UpstreamSource::Server { url: api.url() };
    (cluster, api, upstream)
}

fn holder(cluster: &Cluster) -> Value {
    cluster.get("leases", "web", "informerd-queues").expect("the Lease")["spec"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_replica_leads_after_the_first_one_dies_or_drains() {
    let (cluster, _api, upstream) = cluster_with_a_pod().await;
    let mut first = replica(upstream.clone()).await;
    until_leads(first.address, true).await;
    let mut second = config(upstream);
    second.shutdown_delay = Duration::from_secs(4);
    let mut second = Informerd::start(second).await;
    let names = [identity(first.address).await, identity(second.address).await];
    until_follows(second.address, &names[0]).await;
    refuses(second.address, &names[0]).await;
    let detail = first.get("/v1/queues/q").await.json();
    assert_eq!((&detail["leader"], &detail["declaredBy"]), (&json!(names[0]), &json!("configuration")));
    let held = lease(first.address).await;
    let spec = holder(&cluster);
    assert_eq!((&spec["holderIdentity"], &spec["leaseTransitions"]), (&json!(names[0]), &json!(0)));
    assert_eq!(spec["leaseDurationSeconds"], 5);

    // The leader dies. Its keys are given out again, and its leases are void at the next leader.
    first.kill().await;
    until_leads(second.address, true).await;
    assert_eq!(holder(&cluster)["leaseTransitions"], 1);
    let answer = post(second.address, "done", &held).await;
    assert_eq!((answer.status(), &answer.json()["reason"]), (409, &json!("Conflict")));
    let held = lease(second.address).await;
    assert_eq!(post(second.address, "done", &held).await.status(), 204);
    first.revive().await;
    until_follows(first.address, &names[1]).await;
    refuses(first.address, &names[1]).await;

    // The leader leaves and releases the Lease, so that the other one need not wait for its expiry, nor for the shutdown delay.
    let started = Instant::now();
    let takes_over = async {
        until_leads(first.address, true).await;
        assert!(started.elapsed() < Duration::from_secs(4), "the Lease was not released at once");
    };
    tokio::join!(second.stop(), takes_over);
    let held = lease(first.address).await;
    assert_eq!(post(first.address, "done", &held).await.status(), 204);
    let metrics = client::get(first.admin, "/metrics", &[]).await;
    let metrics = metrics.text();
    for name in ["informerd_queue_leader", "informerd_queue_leader_transitions_total"] {
        assert!(metrics.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_loses_the_lease_gives_out_no_keys_until_it_leads_again() {
    let (cluster, _api, upstream) = cluster_with_a_pod().await;
    let informerd = replica(upstream).await;
    until_leads(informerd.address, true).await;
    let address = informerd.address;
    let client = json!({"watch": [{"resource": "pods", "namespaces": ["web"]}]});
    assert_eq!(send(address, "PUT", "/v1/queues/of-client", &client).await.status(), 201);
    let held = lease(address).await;
    let waiting = tokio::spawn(async move { post(address, "lease", &json!({"waitSeconds": 60})).await });
    let waits = async { while informerd.get("/v1/queues/q").await.json()["waitingWorkers"] != 1 {} };
    in_time("a worker waits", waits).await;
    let taken = json!({"spec": {"holderIdentity": "another", "leaseDurationSeconds": 1, "renewTime": "2026-01-01T00:00:00.000000Z"}});
    cluster.patch("leases", "web", "informerd-queues", &taken).unwrap();
    let refused = in_time("an answer for the worker", waiting).await.unwrap();
    assert_eq!(
        (refused.status(), refused.json()["details"]["causes"][0]["message"].clone()),
        (503, json!("another"))
    );
    // The other holder never renews.
    until_leads(address, true).await;
    assert_eq!(post(address, "done", &held).await.status(), 409);
    let again = lease(address).await;
    assert_eq!(post(address, "done", &again).await.status(), 204);
    assert_eq!(informerd.get("/v1/queues/of-client").await.status(), 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_cannot_renew_stops_before_another_one_leads() {
    let (_cluster, api, _) = cluster_with_a_pod().await;
    let gate = Gate::start(&[api.address()]).await;
    let cut_off = replica(UpstreamSource::Server { url: format!("http://{}", gate.address) }).await;
    until_leads(cut_off.address, true).await;
    let other = replica(UpstreamSource::Server { url: api.url() }).await;
    gate.set_backends(&[]);
    gate.cut().await;
    // At no moment do both replicas show that they lead.
    let both = async {
        loop {
            let leads = [cut_off.address, other.address]
                .map(|address| async move { shown(address).await["leads"] == true });
            let [first, second] = leads;
            // Asks the second replica first: if it leads, the first one must have stopped by now.
            let (second, first) = (second.await, first.await);
            assert!(!(first && second), "both lead");
            if second {
                return;
            }
        }
    };
    in_time("the other one leads", both).await;
    let trouble = shown(cut_off.address).await["message"].clone();
    assert!(trouble.as_str().is_some_and(|message| !message.is_empty()), "{trouble}");
    assert_eq!(post(cut_off.address, "lease", &json!({})).await.status(), 503);
    // Reconnected, it learns who leads.
    gate.set_backends(&[api.address()]);
    until_follows(cut_off.address, &identity(other.address).await).await;
}
