//! Starts and stops informers on demand, as far as the configuration allows.

use std::time::Duration;

use tokio::time::Instant;
use tracing::info;

use super::Informers;
use super::configured_watch::wanted;
use crate::hub::{Demand, Started, SubscribeError};

/// Age of a discovery above which it is repeated for an unknown name. So clients that ask for unknown kinds cost the API
/// server at most one discovery in this time, however many they are.
const FRESH: Duration = Duration::from_secs(10);

/// Clients that may wait for one discovery; more are answered with 503.
const DEMANDS_MAX: usize = 1024;

/// What to do with a demand.
enum Verdict {
    Answer(Result<(), SubscribeError>),
    /// Keep it until discovery has been asked.
    Later,
}

impl Informers {
    /// Handles a client's demand for an informer.
    pub(super) async fn demanded(&mut self, demand: Demand) {
        let old = self.asked_at.is_none_or(|asked| asked.elapsed() >= FRESH);
        match self.try_start(&demand.name, !old).await {
            Verdict::Answer(answer) => drop(demand.answer.send(answer)),
            Verdict::Later => {
                self.demands.retain(|demand| !demand.answer.is_closed());
                if self.demands.len() >= DEMANDS_MAX {
                    let why = "too many clients wait for discovery already".to_owned();
                    let name = demand.name;
                    drop(demand.answer.send(Err(SubscribeError::Pending { name, why })));
                    return;
                }
                self.demands.push(demand);
                self.ask_soon();
            }
        }
    }

    /// Answers the demands that waited for discovery.
    pub(super) async fn answer_demands(&mut self) {
        for demand in std::mem::take(&mut self.demands) {
            if demand.answer.is_closed() {
                continue;
            }
            let answer = match self.try_start(&demand.name, true).await {
                Verdict::Answer(answer) => answer,
                Verdict::Later => {
                    let why = self.trouble.clone().unwrap_or_default();
                    Err(SubscribeError::Pending { name: demand.name, why })
                }
            };
            drop(demand.answer.send(answer));
        }
        self.tell_pending();
    }

    async fn try_start(&mut self, name: &str, fresh: bool) -> Verdict {
        let Some(discovery) = self.discovery.clone() else { return Verdict::Later };
        if !self.on_demand.is_on() {
            // The hub's error lists the informers that exist.
            return Verdict::Answer(self.hub.resolve(name).map(drop));
        }
        let patterns = || self.on_demand.shown();
        let refuse = |why| Verdict::Answer(Err(SubscribeError::NoKind { why, patterns: patterns() }));
        let resource = match discovery.find(name) {
            Some(resource) => resource,
            None if !fresh => return Verdict::Later,
            None => match discovery.resolve(name) {
                Ok(resource) => resource,
                Err(error) => return refuse(error.to_string()),
            },
        };
        let canonical = resource.canonical();
        let follows = |group: &&super::ConfiguredWatch| {
            group.resource().is_some_and(|one| one.canonical() == canonical)
        };
        if let Some(group) = self.groups.iter().find(follows) {
            let version = group.resource().map(|one| one.version().to_owned()).unwrap_or_default();
            if group.resource().is_some_and(|one| one.answers_to(name)) {
                return Verdict::Answer(Ok(()));
            }
            return refuse(format!("{canonical} is followed in version {version}, not as {name:?}"));
        }
        if !self.on_demand.allows(&resource) {
            let refused = SubscribeError::NotOnDemand { resource: canonical, patterns: patterns() };
            return Verdict::Answer(Err(refused));
        }
        let spec = self.on_demand.spec(&canonical);
        let scopes = match wanted(&spec, &resource) {
            Ok(scopes) => scopes.len(),
            Err(why) => return refuse(why),
        };
        let max = self.maker.limits.on_demand_max;
        let running = self.groups.iter().filter(|group| group.started == Started::Demand);
        if running.map(|group| group.current.len()).sum::<usize>() + scopes > max {
            let refused = SubscribeError::Exhausted { resource: canonical, max };
            return Verdict::Answer(Err(refused));
        }
        let index = self.push(spec, Started::Demand, false);
        let applied = self.apply(index, resource).await;
        self.tell_pending();
        match applied {
            Ok(()) => Verdict::Answer(Ok(())),
            Err(why) => {
                let refused = SubscribeError::NoKind { why, patterns: self.on_demand.shown() };
                Verdict::Answer(Err(refused))
            }
        }
    }

    /// Stops informers on demand that were unused for the configured time.
    pub(super) fn retire(&mut self) {
        let (idle, now) = (self.on_demand.idle, Instant::now());
        let (hub, metrics) = (&self.hub, &self.metrics);
        self.groups.retain(|group| {
            let idle = group.started == Started::Demand
                && group.next.is_none()
                && hub.retire(&group.informers(), idle, now);
            if idle {
                info!(informer = group.spec.resource, "informer stops, as it is unused");
                metrics.stopped_idle(group.current.len());
            }
            !idle
        });
    }
}
