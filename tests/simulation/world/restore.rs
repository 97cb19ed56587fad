//! Restores of the cluster from a backup.

use informerd::testing::sim::Cluster;
use serde_json::Value;

use super::{World, api_server};
use crate::fault::Fault;
use crate::network::Api;

/// Rounds of writes by which a restored cluster may reach versions beyond those seen before.
const OVERTAKING_STEPS: usize = 40;

/// An earlier state of the cluster.
pub(super) struct Backup {
    pub(super) cluster: Cluster,
    pub(super) definition: Option<Value>,
    pub(super) version: u64,
}

/// The state of the replicas when the cluster was restored, by replica and resource.
#[derive(Clone, Copy)]
pub(crate) struct Restored {
    /// The versions of the caches.
    pub(crate) positions: [[u64; 2]; 2],
    /// The greatest of these at this restore and at the one before.
    pub(crate) greatest: [[u64; 2]; 2],
    /// The histories of the caches.
    pub(crate) histories: [[u64; 2]; 2],
    /// The number of started lists.
    pub(crate) lists: [[u64; 2]; 2],
}

impl World {
    /// The version that a restored cluster must not reach yet: the lowest one of a cache that has not received an
    /// older version since. If the cluster passed it, that cache could not notice the restore; only a comparison
    /// would find it.
    pub(super) fn version_max(&self) -> u64 {
        let Some(restored) = &self.restored else { return u64::MAX };
        let seen = (0..2).flat_map(|at| [0, 1].map(|resource| (at, resource)));
        let unaware = seen.filter(|(at, resource)| {
            let listed = self.links[*at].meter(*resource, |meter| meter.listed_since_restore);
            let replica = &self.replicas[*at];
            replica.history(*resource) == restored.histories[*at][*resource]
                && listed.is_none_or(|listed| listed >= restored.positions[*at][*resource])
        });
        unaware.map(|(at, resource)| restored.positions[at][resource]).min().unwrap_or(u64::MAX)
    }

    pub(super) async fn restore(&mut self) -> Result<(), String> {
        let Some(version) = self.backup.as_ref().map(|backup| backup.version) else { return Ok(()) };
        let positions = [0, 1].map(|at: usize| [0, 1].map(|index| self.replicas[at].position(index)));
        let reached = positions.into_iter().flatten().min().unwrap_or(0);
        // A cache that is not beyond the backup's version cannot notice the restore.
        let restores = self.truth.era();
        // Once more only after every cache has noticed the first restore.
        let is_possible = restores == 0 || restores == 1 && self.all_have_noticed();
        // Nor can an informer that has just listed.
        let is_reloading =
            self.replicas.iter().any(|replica| [0, 1].iter().any(|index| replica.is_reloading(*index)));
        if version + 12 > reached || !is_possible || is_reloading {
            return Ok(());
        }
        let Some(backup) = self.backup.take() else { return Ok(()) };
        self.trace.say(|| format!("restored to {}", backup.version));
        self.hits.count(if restores == 0 { Fault::Restored } else { Fault::RestoredAgain });
        let before = self.restored.map(|restored| restored.greatest).unwrap_or_default();
        let greater = |at: usize| [0, 1].map(|index: usize| positions[at][index].max(before[at][index]));
        self.restored = Some(Restored {
            positions,
            greatest: [0, 1].map(greater),
            histories: [0, 1].map(|at: usize| [0, 1].map(|index| self.replicas[at].history(index))),
            lists: [0, 1].map(|at| self.lists_of(at)),
        });
        for link in &self.links {
            [0, 1].into_iter().for_each(|index| link.meter(index, |meter| meter.listed_since_restore = None));
        }
        self.truth.put_back(backup.version);
        self.removed = backup.definition;
        self.cluster = backup.cluster;
        self.cluster.compact();
        let current = api_server(&self.cluster, &self.profile);
        *self.api.lock().unwrap() = Api { current, behind: None };
        self.links.iter().for_each(|link| link.order(Fault::CutReset));
        if restores == 0 && self.dice.chance(0.5) {
            return Box::pin(self.restore_again()).await;
        }
        if self.dice.chance(0.6) {
            return self.overtake().await;
        }
        Ok(())
    }

    pub(super) fn all_have_noticed(&self) -> bool {
        (0..2).all(|at| self.around().has_noticed(at, &[0, 1]))
    }

    /// Restores the cluster once more, after every cache has noticed the first restore.
    async fn restore_again(&mut self) -> Result<(), String> {
        for _ in 0..OVERTAKING_STEPS {
            let pause = self.dice.millis(500, 4_000);
            self.pass(pause).await?;
            self.write();
            if self.all_have_noticed() {
                break;
            }
        }
        let (definition, version) = (self.removed.clone(), self.cluster.revision());
        self.backup = Some(Backup { cluster: self.cluster.fork(), definition, version });
        for _ in 0..OVERTAKING_STEPS {
            (0..1 + self.dice.below(4)).for_each(|_| self.write());
            let pause = self.dice.millis(20, 1_500);
            self.pass(pause).await?;
            let reached =
                self.replicas.iter().flat_map(|replica| [0, 1].map(|index| replica.position(index)));
            if reached.min().unwrap_or(0) >= version + 12 {
                break;
            }
        }
        self.restore().await
    }

    /// Writes after a restore, until the versions of the new history are beyond those seen of the old one.
    async fn overtake(&mut self) -> Result<(), String> {
        let seen = self.restored.iter().flat_map(|restored| restored.positions.into_iter().flatten());
        let seen = seen.max().unwrap_or(0);
        for _ in 0..OVERTAKING_STEPS {
            let pause = self.dice.millis(20, 1_500);
            self.pass(pause).await?;
            for _ in 0..self.dice.below(8) {
                self.write();
            }
            if self.cluster.revision() > seen {
                self.hits.count(Fault::Overtaken);
                break;
            }
        }
        Ok(())
    }
}
