//! Applies a new configuration while running.

use tracing::info;

use super::{Changes, Informers};
use crate::config::{self, WatchSpec};
use crate::hub::Started;

impl Informers {
    /// Applies a new configuration, or refuses all of it.
    ///
    /// # Errors
    /// Why it is refused, in a sentence: one resource twice, or a namespace for a cluster-scoped one. Unknown kinds are no
    /// error, as at the start.
    pub(super) async fn reconfigure(&mut self, config: config::Serve) -> Result<Changes, String> {
        self.check(&config.watches)?;
        let config::Serve { watches, on_demand, .. } = config;
        let mut changes = Changes::default();
        // A process that was ready stays ready while new informers are being filled.
        let was_ready = self.groups.iter().all(|group| !group.awaited || group.synced());
        let on_demand_was = std::mem::replace(&mut self.on_demand, on_demand);
        let mut kept = Vec::new();
        for spec in &watches {
            match self.find(spec) {
                Some(index) => {
                    let group = &mut self.groups[index];
                    kept.push(group.id);
                    if group.spec != *spec || group.started != Started::Configuration {
                        group.spec = spec.clone();
                        group.started = Started::Configuration;
                        changes.changed += 1;
                    }
                }
                None => {
                    let index = self.push(spec.clone(), Started::Configuration, !was_ready);
                    kept.push(self.groups[index].id);
                    changes.added += 1;
                }
            }
        }
        changes.removed = self.remove_all_but(&kept).await;
        if on_demand_was != self.on_demand {
            changes.changed += 1;
            self.describe_demanded();
        }
        self.tell_catalog();
        self.settle().await;
        if self.groups.iter().any(|group| group.current.is_empty()) {
            // The kind may have been created together with the configuration.
            self.ask_soon();
        }
        self.tell_pending();
        Ok(changes)
    }

    /// Gives the watches that clients started what the configuration now says of them.
    fn describe_demanded(&mut self) {
        for group in self.groups.iter_mut().filter(|group| group.started == Started::Demand) {
            group.spec = self.on_demand.spec(&group.spec.resource);
        }
    }

    /// The group of a watch: that of the same resource, or else of the same name.
    fn find(&self, spec: &WatchSpec) -> Option<usize> {
        let meant = self.discovery.as_ref().and_then(|discovery| discovery.find(&spec.resource));
        let of_resource = |group: &super::ConfiguredWatch| match (&meant, group.resource()) {
            (Some(meant), Some(resource)) => meant.canonical() == resource.canonical(),
            (_, _) => false,
        };
        let of_name =
            |group: &super::ConfiguredWatch| group.spec.resource.eq_ignore_ascii_case(&spec.resource);
        self.groups.iter().position(of_resource).or_else(|| {
            self.groups.iter().position(|group| of_name(group) && group.started == Started::Configuration)
        })
    }

    /// Stops informers that are no longer configured, and those that clients started and may no longer start.
    async fn remove_all_but(&mut self, kept: &[u64]) -> usize {
        let mut removed = 0;
        let mut groups = Vec::new();
        for mut group in std::mem::take(&mut self.groups) {
            let allowed = group.resource().is_some_and(|resource| self.on_demand.allows(resource));
            let configured = kept.contains(&group.id);
            if configured || (group.started == Started::Demand && allowed) {
                groups.push(group);
                continue;
            }
            removed += 1;
            info!(informer = group.spec.resource, "informer stops, as it is no longer configured");
            group.stop().await;
            self.hub.swap(&group.ids(), Vec::new());
            self.metrics.stopped_by_configuration(group.current.len());
        }
        self.groups = groups;
        removed
    }
}
