//! Drives the packer of a cache, beside the pump and on a thread of its own, so that no event waits for it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{error, warn};

use super::verify::Doubts;
use super::watching::Doubt;
use crate::cache::{Backlog, Packer, Packing, Writer};

/// Time between two looks for objects to pack, while the first list is under way: what a list brings in this time is held
/// unpacked.
const LOOK_LISTING: Duration = Duration::from_millis(20);

/// Time between two looks for objects to pack, later on: objects that change in this time are held unpacked, however many they are.
const LOOK: Duration = Duration::from_secs(1);

/// Time after a first list until the dictionary of its first objects is compared with one of all: long enough for the allocator to give back
/// what the list has freed.
const SETTLED: Duration = Duration::from_secs(15);

/// Time for which one cache is packed before another one has its turn.
const TURN: Duration = Duration::from_millis(10);

/// How caches are packed.
#[derive(Clone, Debug)]
pub struct Pack {
    /// The dictionaries.
    pub packing: Packing,
    /// Whose turn it is: one cache at a time, however many there are.
    pub turn: Arc<Semaphore>,
    /// What waits to be packed, of all caches.
    pub backlog: Arc<Backlog>,
}

impl Pack {
    /// Packing for the caches of a process.
    pub fn new(packing: Packing) -> Self {
        let backlog = Arc::new(Backlog::new(Backlog::BYTES_MAX));
        Self { packing, turn: Arc::new(Semaphore::new(1)), backlog }
    }
}

/// Waits until a first list may go on: lists bring objects faster than they are packed.
pub(super) async fn room(writer: &Writer) {
    while let Some(backlog) = writer.full_backlog() {
        let mut packed = std::pin::pin!(backlog.packed().notified());
        packed.as_mut().enable();
        // It may have been packed before this listened.
        if writer.full_backlog().is_some() {
            packed.await;
        }
    }
}

/// If packed objects are damaged, has everything listed again until there is a new history. A list that was under way does not begin one.
/// `damaged_in` is the history in which damage was found.
fn look_for_damage(packer: &mut Packer, damaged_in: &mut Option<u64>, doubts: &Doubts) {
    let (history, is_damaged) = (packer.reader().mark().history, packer.is_damaged());
    match damaged_in {
        Some(damaged_in) if *damaged_in == history => doubts.raise(Doubt::Rewritten),
        // The list that began this history read the damaged objects to compare them with its own.
        Some(_) => *damaged_in = None,
        None if is_damaged => {
            warn!("packed objects in memory are damaged: listing everything again, and readers start over");
            *damaged_in = Some(history);
            doubts.raise(Doubt::Rewritten);
        }
        None => {}
    }
}

/// Packs one cache; `None` packs nothing.
pub(super) async fn drive(packer: Option<(Packer, Arc<Semaphore>)>, doubts: &Doubts) -> Infallible {
    let Some((mut packer, turn)) = packer else { return std::future::pending().await };
    let reader = packer.reader();
    let (mut damaged_in, mut synced) = (None, None);
    loop {
        let mark = reader.mark();
        if mark.synced && synced.get_or_insert_with(Instant::now).elapsed() >= SETTLED {
            packer.settle();
        }
        tokio::time::sleep(if mark.synced { LOOK } else { LOOK_LISTING }).await;
        look_for_damage(&mut packer, &mut damaged_in, doubts);
        while packer.has_work() {
            let Ok(permit) = turn.clone().acquire_owned().await else { break };
            let packed = tokio::task::spawn_blocking(move || {
                let begun = Instant::now();
                while packer.step() && begun.elapsed() < TURN {}
                drop(permit);
                packer
            });
            match packed.await {
                Ok(back) => packer = back,
                Err(panic) => {
                    // What is packed can still be read. The rest stays as it is.
                    error!(%panic, "packing failed, which is a bug: objects are held unpacked from now on");
                    return std::future::pending().await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;
    use crate::cache::{Config, Delta, cache};
    use crate::k8s::{DecodeOptions, Decoder, Key, Object, Resource, ResourceParts, damages_of_thread};

    fn object(name: u8) -> Object {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let metadata = serde_json::json!({"name": format!("o{name}"), "uid": "u", "resourceVersion": "1"});
        let json =
            serde_json::json!({"metadata": metadata, "status": {"text": "ready and serving ".repeat(20)}});
        Decoder::new(Resource::new(ResourceParts::default()), options).object(&json.to_string()).unwrap()
    }

    /// A list of another history.
    fn list(writer: &mut Writer, objects: impl Iterator<Item = Object>) {
        writer.commit(vec![Delta::OtherHistory, Delta::PassBegin]);
        let items = objects.map(Delta::PassItem);
        writer.commit(items.chain([Delta::PassEnd(1.into())]).collect());
    }

    #[test]
    fn damage_is_reported_until_a_list_begins_a_new_history_and_not_again_for_that_list() {
        let config = Config { journal_len_max: 4, journal_bytes_max: 1 << 20, tombstones_len_max: 8 };
        let now =
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async { Instant::now() });
        let (mut writer, reader) = cache(config, now);
        let mut packer = writer.packer(Packing::EAGER, Arc::new(Backlog::new(Backlog::BYTES_MAX)));
        list(&mut writer, (0..40).map(object));
        while packer.step() {}
        let key = Key::new("", "o7");
        let held: Vec<_> = reader.snapshot().after(None).cloned().collect();
        let damaged = |object: &Object| if *object.key() == key { object.damaged() } else { object.clone() };
        list(&mut writer, held.iter().map(damaged));
        // That list read it.
        packer.is_damaged();
        let (mut damaged_in, doubts) = (None, Doubts::default());
        let mut look = |packer: &mut Packer| {
            look_for_damage(packer, &mut damaged_in, &doubts);
            let raised = doubts.raised().now_or_never();
            doubts.settle_all();
            raised
        };
        assert_eq!(look(&mut packer), None);
        assert!(reader.snapshot().get(&key).unwrap().try_json().is_err());
        assert_eq!(look(&mut packer), Some(Doubt::Rewritten));
        assert_eq!(look(&mut packer), Some(Doubt::Rewritten), "no list has begun a new history yet");
        // The list compares its objects with those of the cache, and so reads the damaged one.
        let before = damages_of_thread();
        list(&mut writer, (0..40).map(object));
        assert!(damages_of_thread() > before);
        assert_eq!(look(&mut packer), None);
        assert_eq!(look(&mut packer), None);
        assert_eq!(reader.snapshot().get(&key).unwrap().json(), object(7).json());
    }
}
