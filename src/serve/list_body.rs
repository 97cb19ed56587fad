//! The body of a list, for `/v1` and `/api`: objects are read in turns, and written as the socket drains.

use std::io;
use std::sync::Arc;

use bytes::Buf as _;

use super::body::{FramesBody, too_slow};
use super::turns::Turns;
use crate::encode::Frames;
use crate::hub::{Candidates, Form, Generations, HeldState, Holding, Informer, Matcher, Selection};
use crate::k8s::{ContentHash, Damaged, Key, Object, damages};
use tokio::time::Instant;

/// Number of objects whose content is read in one turn: at most some five microseconds each.
const LOOKED_AT_MAX: usize = 400;
/// Number of objects that are passed in one turn without reading their content.
const PASSED_MAX: usize = 20_000;

/// Number of objects of a short list, at most.
const SHORT_MAX: usize = 128;

/// JSON that is hashed in one turn, in bytes: about a millisecond.
const HASHED_BYTES: usize = 1 << 20;

/// The matching objects of some informers at one moment.
pub(super) struct Listing {
    states: Vec<HeldState>,
    matchers: Vec<Matcher>,
    form: Form,
    turns: Arc<Turns>,
    /// Whether it has so few objects that clients may ask for them again and again.
    is_short: bool,
    /// How many objects could not be unpacked before it.
    damages: u64,
}

/// The place of a walk through a listing. The default is its start.
#[derive(Clone, Debug, Default)]
pub(super) struct ListPosition {
    /// The index of the informer.
    pub(super) source: usize,
    /// The last key that was passed.
    pub(super) after: Option<Key>,
    /// At the end of a page how many objects are left, if that is known.
    pub(super) left: Option<usize>,
}

/// The writer of a list.
pub(super) trait ListWriter: Send + 'static {
    /// Appends an object.
    fn object(&mut self, object: &Object, out: &mut Frames);
    /// Appends the end.
    fn end(&mut self, out: &mut Frames);
}

/// Why a walk stopped.
enum Stopped {
    /// The visitor has enough.
    Visitor,
    /// The turn is over.
    Turn,
    /// Nothing is left.
    End,
}

impl Listing {
    /// A listing of these states of informers. They are held from now on, for a bounded time.
    pub(super) fn new(
        informers: &[Arc<Informer>],
        selection: &Arc<Selection>,
        states: Vec<Candidates>,
        generations: &Generations,
        turns: Arc<Turns>,
    ) -> Self {
        let damages = damages();
        let is_short = states.iter().map(Candidates::count).sum::<usize>() <= SHORT_MAX;
        let now = Instant::now();
        let matchers = informers.iter().map(|informer| Matcher::once(selection.clone(), &informer.reader));
        let states = informers
            .iter()
            .zip(states)
            .map(|(informer, state)| generations.hold(informer.id(), state, Holding::Exact, now));
        Self {
            states: states.collect(),
            matchers: matchers.collect(),
            form: selection.form.clone(),
            turns,
            is_short,
            damages,
        }
    }

    /// The current states of informers, with the objects that may match.
    pub(super) fn current(informers: &[Arc<Informer>], selection: &Arc<Selection>) -> Vec<Candidates> {
        let candidates =
            |informer: &Arc<Informer>| Matcher::once(selection.clone(), &informer.reader).candidates();
        informers.iter().map(candidates).collect()
    }

    /// Where a page of `limit` objects ends; `None` if no object follows it. The number of objects that follow is known only
    /// without conditions on their content. It is counted for the first page: later ones subtract, as a client that reads many small
    /// pages would make informerd pass all objects for each of them.
    pub(super) async fn end_of_page(&self, from: &ListPosition, limit: usize) -> Option<ListPosition> {
        let (mut place, mut wanted) = (from.clone(), limit);
        let page = self.walk(&mut place, |_, _| {
            wanted -= 1;
            wanted > 0
        });
        page.await.ok()?;
        if wanted > 0 {
            return None;
        }
        let end = place.clone();
        if let Some(left) = from.left {
            let left = left.saturating_sub(limit);
            return (left > 0).then_some(ListPosition { left: Some(left), ..end });
        }
        let selects = self.matchers.iter().any(|matcher| matcher.selection().selects());
        let counts = !selects && self.states.len() == 1;
        let mut more = 0;
        let rest = self.walk(&mut place, |_, _| {
            more += 1;
            counts
        });
        rest.await.ok()?;
        (more > 0).then(|| ListPosition { left: counts.then_some(more), ..end })
    }

    /// The hash of all matching objects, with their keys if there are conditions on content. `None` if a state could not be held
    /// long enough.
    pub(super) async fn content(&self) -> Option<(ContentHash, Option<Vec<Key>>)> {
        let selects = self.matchers.iter().any(|matcher| matcher.selection().selects());
        let (mut hash, mut keys) = (ContentHash::default(), selects.then(Vec::new));
        let mut place = ListPosition::default();
        loop {
            let mut hashed = 0;
            let walked = self.walk(&mut place, |object, _| {
                if !self.form.has_content_hash(object) {
                    hashed += object.json_len();
                }
                hash.add(self.form.content_hash(object));
                if let Some(keys) = &mut keys {
                    keys.push(object.key().clone());
                }
                hashed < HASHED_BYTES
            });
            match walked.await {
                Ok(Stopped::End) => return Some((hash, keys)),
                Ok(Stopped::Visitor | Stopped::Turn) => tokio::task::yield_now().await,
                Err(_) => return None,
            }
        }
    }

    /// Visits all selected objects, in turns. Tells whether the states could be held until then.
    pub(super) async fn visit(&self, mut visit: impl FnMut(&Object)) -> bool {
        let mut place = ListPosition::default();
        let visited = self.walk(&mut place, |object, _| {
            visit(object);
            true
        });
        visited.await.is_ok()
    }

    /// Visits selected objects until the visitor says that it has enough, in turns. Tells whether the states could be held until
    /// then.
    pub(super) async fn visit_until(&self, mut visit: impl FnMut(&Object) -> bool) -> bool {
        let mut place = ListPosition::default();
        self.walk(&mut place, |object, _| visit(object)).await.is_ok()
    }

    /// Visits selected objects until the visitor says that it has enough, in turns.
    async fn walk(
        &self,
        place: &mut ListPosition,
        mut visit: impl FnMut(&Object, &ListPosition) -> bool,
    ) -> io::Result<Stopped> {
        loop {
            let permit = self.turns.take().await;
            let stopped = self.turn(place, &mut visit);
            drop(permit);
            match stopped {
                Ok(Stopped::Turn) => tokio::task::yield_now().await,
                stopped => return stopped,
            }
        }
    }

    /// Walks for one turn. Fails if a state could not be held any longer, or if an object could not be unpacked: what was made
    /// of it must not be sent.
    fn turn(
        &self,
        place: &mut ListPosition,
        visit: &mut dyn FnMut(&Object, &ListPosition) -> bool,
    ) -> io::Result<Stopped> {
        let stopped = self.pass(place, visit)?;
        if damages() == self.damages { Ok(stopped) } else { Err(io::Error::other(Damaged)) }
    }

    fn pass(
        &self,
        place: &mut ListPosition,
        visit: &mut dyn FnMut(&Object, &ListPosition) -> bool,
    ) -> io::Result<Stopped> {
        let mut passed = 0;
        while let (Some(state), Some(matcher)) =
            (self.states.get(place.source), self.matchers.get(place.source))
        {
            let selection = matcher.selection();
            let plain = if selection.selects() { LOOKED_AT_MAX } else { PASSED_MAX };
            let state = state.get().ok_or_else(too_slow)?;
            let after = place.after.take();
            for object in matcher.reach(&state, after.as_ref()) {
                passed += 1;
                if matcher.matches_among(&state, object) && !visit(object, place) {
                    place.after = Some(object.key().clone());
                    return Ok(Stopped::Visitor);
                }
                // A condition shows only by its evaluation what it costs.
                if passed >= selection.looks_in(plain) {
                    place.after = Some(object.key().clone());
                    return Ok(Stopped::Turn);
                }
            }
            place.source += 1;
        }
        Ok(Stopped::End)
    }

    /// The body with at most `limit` objects from a place on, and the end.
    pub(super) fn into_body<W: ListWriter>(
        self,
        from: ListPosition,
        limit: usize,
        head: Frames,
        writer: W,
        bytes_max: usize,
    ) -> FramesBody {
        let state = Some((self, from, limit, head, writer, bytes_max));
        FramesBody::new(futures_util::stream::unfold(state, async |state| {
            let (listing, mut place, mut left, mut frames, mut writer, bytes_max) = state?;
            loop {
                let permit = listing.turns.take().await;
                let stopped = match left {
                    0 => Ok(Stopped::End),
                    _ => listing.turn(&mut place, &mut |object, _| {
                        let part = listing.form.part_of(object);
                        if listing.is_short && part.is_none() {
                            object.note_read();
                        }
                        writer.object(part.as_ref().unwrap_or(object), &mut frames);
                        left -= 1;
                        left > 0 && frames.remaining() < bytes_max
                    }),
                };
                drop(permit);
                match stopped {
                    Err(error) => return Some((Err(error), None)),
                    Ok(Stopped::End) => {}
                    Ok(Stopped::Visitor) if left == 0 => {}
                    Ok(Stopped::Visitor) => {
                        frames.cut();
                        let rest = (listing, place, left, Frames::new(), writer, bytes_max);
                        return Some((Ok(frames), Some(rest)));
                    }
                    Ok(Stopped::Turn) => {
                        tokio::task::yield_now().await;
                        continue;
                    }
                }
                writer.end(&mut frames);
                frames.cut();
                return Some((Ok(frames), None));
            }
        }))
    }
}
