//! Content hashes of selections, from which ETags are made.
//!
//! The hash of a selection is the sum over its objects. It is computed once, in turns, and then updated by the changes since.
//! So a client that polls costs the changes and not the objects. Without requests nothing is hashed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::{HeaderMap, HeaderValue, header};

use super::list_body::Listing;
use super::turns::Turns;
use crate::cache::{Change, ChangeKind, Cursor};
use crate::hub::{Candidates, Generations, Informer, InformerId, Matcher, Selection};
use crate::k8s::{ContentHash, damages};

/// Number of selections whose hash is remembered, some 200 bytes each: many more than clients poll.
const REMEMBERED_MAX: usize = 4096;

/// Largest number of changes by which a remembered hash is updated. With more it is computed again.
const CHANGES_MAX: u64 = 4000;

/// Changes that one turn looks at: two states each, at most some ten microseconds a state.
const TURN_CHANGES: usize = 100;

/// The hashes of selections, the used ones remembered.
pub(super) struct Contents {
    remembered: Mutex<Remembered>,
    /// Where states are held while they are hashed.
    generations: Arc<Generations>,
    turns: Arc<Turns>,
}

#[derive(Default)]
struct Remembered {
    known: HashMap<(InformerId, Arc<Selection>), Known>,
    /// Counts uses, so that the one used longest ago can be dropped.
    uses: u64,
}

/// A selection's hash at one place in the cache's history.
#[derive(Clone, Copy)]
struct Known {
    cursor: Cursor,
    hash: ContentHash,
    used: u64,
}

impl Contents {
    pub(super) fn new(generations: Arc<Generations>, turns: Arc<Turns>) -> Self {
        Self { remembered: Mutex::default(), generations, turns }
    }

    /// The hash of the objects of a state that match a selection. `None` if the state could not be held long enough, or an object could
    /// not be unpacked. If objects had to be read, the candidates afterwards are only those that match.
    pub(super) async fn of(
        &self,
        informer: &Arc<Informer>,
        selection: &Arc<Selection>,
        state: &mut Candidates,
    ) -> Option<ContentHash> {
        let cursor = state.snapshot.cursor;
        let damages_before = damages();
        let known = self.known(informer.id(), selection);
        let moved = match known {
            Some(known) if known.cursor == cursor => return Some(known.hash),
            Some(known) => move_on(known, cursor, informer, selection, &self.turns).await,
            None => None,
        };
        let hash = match moved {
            Some(hash) => hash,
            None => {
                let (informers, states) = (std::slice::from_ref(informer), vec![state.clone()]);
                let (generations, turns) = (&self.generations, self.turns.clone());
                let listing = Listing::new(informers, selection, states, generations, turns);
                let (hash, keys) = listing.content().await?;
                if let Some(keys) = keys {
                    *state = Candidates::matching(state.snapshot.clone(), keys.into());
                }
                hash
            }
        };
        if damages() != damages_before {
            // It may be the hash of an object that could not be unpacked.
            return None;
        }
        self.remember(informer.id(), selection, cursor, hash);
        Some(hash)
    }

    fn known(&self, informer: InformerId, selection: &Arc<Selection>) -> Option<Known> {
        let mut remembered = self.lock();
        remembered.uses += 1;
        let uses = remembered.uses;
        let known = remembered.known.get_mut(&(informer, selection.clone()))?;
        known.used = uses;
        Some(*known)
    }

    fn remember(&self, informer: InformerId, selection: &Arc<Selection>, cursor: Cursor, hash: ContentHash) {
        // For a single object a look-up is as fast.
        if selection.name.is_some() {
            return;
        }
        let mut remembered = self.lock();
        let key = (informer, selection.clone());
        let is_newer = |other: &Known| {
            (other.cursor.history, other.cursor.revision) >= (cursor.history, cursor.revision)
        };
        if remembered.known.get(&key).is_some_and(is_newer) {
            return;
        }
        if remembered.known.len() >= REMEMBERED_MAX && !remembered.known.contains_key(&key) {
            let oldest = remembered.known.iter().min_by_key(|(_, known)| known.used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                remembered.known.remove(&oldest);
            }
        }
        let used = remembered.uses;
        remembered.known.insert(key, Known { cursor, hash, used });
    }

    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether `If-None-Match` contains a tag, by weak comparison (RFC 9110 section 13.1.2).
pub(super) fn none_match(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let weak = |text: &str| text.trim().trim_start_matches("W/").to_owned();
    let Ok(tag) = tag.to_str().map(weak) else { return false };
    let values = headers.get_all(header::IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim() == "*" || weak(one) == tag)
}

/// Updates a hash to a later cursor. `None` if the changes between are unknown or too many.
async fn move_on(
    known: Known,
    to: Cursor,
    informer: &Arc<Informer>,
    selection: &Arc<Selection>,
    turns: &Turns,
) -> Option<ContentHash> {
    let behind = to.revision.0.checked_sub(known.cursor.revision.0)?;
    if known.cursor.history != to.history || behind > CHANGES_MAX {
        return None;
    }
    let matcher = Matcher::once(selection.clone(), &informer.reader);
    let (mut cursor, mut hash) = (known.cursor, known.hash);
    loop {
        let permit = turns.take().await;
        let len_max = selection.looks_in(TURN_CHANGES);
        let batch = match matcher.index() {
            Some(index) => index.changes_after(cursor, len_max),
            None => informer.reader.changes_after(cursor, len_max),
        }?;
        let changes = batch.changes.iter().take_while(|change| change.revision <= to.revision);
        changes.for_each(|change| take(change, &matcher, &mut hash));
        drop(permit);
        if batch.caught_up || batch.cursor.revision >= to.revision {
            return Some(hash);
        }
        cursor = batch.cursor;
        tokio::task::yield_now().await;
    }
}

/// Adds a change to a hash.
fn take(change: &Change, matcher: &Matcher, hash: &mut ContentHash) {
    let form = &matcher.selection().form;
    if let Some(previous) = &change.previous
        && matcher.matches(previous)
    {
        hash.remove(form.content_hash(previous));
    }
    if change.kind != ChangeKind::Deleted && matcher.matches(&change.object) {
        hash.add(form.content_hash(&change.object));
    }
}
