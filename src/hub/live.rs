//! Live views: all subscribers that have caught up. No async, no clock.
//!
//! Subscribers with the same selection of the same informers have the same next events. They are members of one
//! [`View`]: a change is projected once for the view, rendered once for each kind of transport, and written to each
//! member. A change is looked at only for the views that can match it: views are found by namespace, key or value,
//! and those alone whose selection has no equality look at every change. So a change costs the views that it concerns and
//! one write for each of their members, however many views there are.
//!
//! All views of an informer are at one position, that of their [`Lane`].

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tokio::time::Instant;

use super::event::{Event, EventKind, Payload};
use super::project::{loses_order, position_after, project_change};
use super::routes::{Route, Routes};
use super::shared_batch::SharedBatch;
use super::{Config, Informer, InformerId, Matcher, Selection};
use crate::cache::{Cursor, Mark, Reader};
use crate::k8s::ResourceVersion;

/// Largest number of changes between a subscriber and a lane that are checked when it joins. With more, the subscriber
/// catches up by itself first.
const JOIN_CHANGES_MAX: usize = 256;

/// How long a bookmark that is due amid what a relist found is put off.
const AMID_RELIST_WAIT: Duration = Duration::from_secs(1);

/// Number of members of a view from which on writing to all of them takes longer than a burst of changes.
const CROWD: usize = 64;

/// The position of a caught-up subscriber in one informer.
#[derive(Clone, Debug)]
pub struct LivePosition {
    /// The informer.
    pub informer: Arc<Informer>,
    /// The cursor in its cache.
    pub cursor: Cursor,
    /// The version up to which the client has everything.
    pub position: ResourceVersion,
    /// The token with which the client resumed, if the client may hold events from beyond it.
    pub holds_beyond: Option<ResourceVersion>,
}

/// A subscriber that is ready to join a view.
#[derive(Clone, Debug)]
pub struct LivePlace {
    /// The position in each informer, in the order of the subscription.
    pub sources: Vec<LivePosition>,
    /// Its selection.
    pub selection: Arc<Selection>,
    /// Whether it must get every change in order, or end.
    pub ordered: bool,
    /// When it has to leave the view, at the latest.
    pub leave_at: Option<Instant>,
    /// When its next heartbeat is due.
    pub heartbeat_at: Instant,
    /// When its next bookmark is due.
    pub bookmark_at: Instant,
}

/// A member of a view: the receiver of its events.
pub trait Member {
    /// Members with the same kind get the same bytes.
    type Kind: Copy + Eq;
    /// The encoder of a kind, with its state between batches.
    type Encoder;

    /// Its kind.
    fn kind(&self) -> Self::Kind;

    /// Makes an encoder for its kind.
    fn encoder(&self, informers: &[Arc<Informer>]) -> Self::Encoder;

    /// Sets the positions of an encoder, one for each informer, for the tokens.
    fn advance(encoder: &mut Self::Encoder, positions: &[ResourceVersion]);

    /// It joins the members that are sent the bytes of this encoder.
    fn joins(&mut self, encoder: &Self::Encoder) {
        let _ = encoder;
    }

    /// It leaves them.
    fn leaves(&mut self, encoder: &Self::Encoder) {
        let _ = encoder;
    }
}

/// The views of the subscribers of one core.
pub struct Live<M: Member> {
    config: Config,
    lanes: Slab<Lane>,
    lanes_by_id: HashMap<InformerId, usize>,
    views: Slab<View<M>>,
    views_by_selection: HashMap<(Vec<InformerId>, Arc<Selection>), usize>,
    members: Slab<Entry<M>>,
    /// When a view or member is due.
    timers: BTreeSet<(Instant, Timer)>,
}

/// An informer that views follow.
struct Lane {
    informer: Arc<Informer>,
    cursor: Cursor,
    position: ResourceVersion,
    relists: u64,
    routes: Routes,
    views: usize,
}

/// A selection of some informers, with its members.
struct View<M: Member> {
    selection: Arc<Selection>,
    /// Lanes in the order of the subscription, each with its matcher and route.
    sources: Vec<(usize, Matcher, Route)>,
    groups: Vec<Group<M>>,
    members: usize,
    heartbeat_at: Instant,
    bookmark_at: Instant,
    armed: Instant,
    /// The last change that was projected for it.
    seen: (usize, u64),
    pending: Vec<Event>,
}

/// Members of a view that get the same bytes.
pub struct Group<M: Member> {
    kind: M::Kind,
    ordered: bool,
    /// Their encoder.
    pub encoder: M::Encoder,
    /// Their keys.
    pub members: Vec<usize>,
}

struct Entry<M> {
    member: M,
    view: usize,
    group: usize,
    /// Its place in the group's list.
    at: usize,
    leave_at: Option<Instant>,
    holds_beyond: Vec<Option<ResourceVersion>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    View(usize),
    Member(usize),
}

/// What to send to the members of a view.
#[derive(Debug)]
pub enum Told {
    /// Events of this view alone; at least one.
    Events(Vec<Event>),
    /// A batch that views of everything on other cores, and other transports, send, too.
    Shared(Arc<SharedBatch>),
    /// A heartbeat, as there was no event for a while.
    Heartbeat,
}

/// The result of a look at an informer or at the timers.
#[derive(Debug, Default)]
pub struct Round {
    /// What to send to which views.
    pub told: Vec<(usize, Told)>,
    /// Keys of members that the view cannot serve any longer. To be taken out before anything is sent.
    pub leaving: Vec<usize>,
    /// Whether more changes are waiting.
    pub more: bool,
}

impl<M: Member> Live<M> {
    /// No views yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            lanes: Slab::new(),
            lanes_by_id: HashMap::new(),
            views: Slab::new(),
            views_by_selection: HashMap::new(),
            members: Slab::new(),
            timers: BTreeSet::new(),
        }
    }

    /// The informers of all lanes.
    pub fn informers(&self) -> impl Iterator<Item = &Arc<Informer>> {
        self.lanes.iter().map(|(_, lane)| &lane.informer)
    }

    /// Whether an informer has a lane.
    pub fn follows(&self, informer: InformerId) -> bool {
        self.lanes_by_id.contains_key(&informer)
    }

    /// Takes a subscriber in and returns its key, unless a change of its selection lies between it and the view.
    ///
    /// # Errors
    /// The member, which has to continue by itself.
    pub fn join(&mut self, place: LivePlace, mut member: M, now: Instant) -> Result<usize, M> {
        let ids: Vec<_> = place.sources.iter().map(|source| source.informer.id()).collect();
        let Some(view) = self.view_for(&place, &ids, now) else { return Err(member) };
        self.refresh(view);
        if !self.is_met(view, &place) {
            self.drop_view_if_empty(view);
            return Err(member);
        }
        self.rearm(view, place.heartbeat_at, place.bookmark_at);
        let LivePlace { sources, ordered, leave_at, .. } = place;
        let group = self.group_for(view, &member, ordered);
        // A new group has no positions yet, and a quiet one may have older positions than the subscriber.
        let lanes = self.views[view].sources.iter();
        let positions: Vec<_> = lanes.map(|(lane, ..)| self.lanes[*lane].position.clone()).collect();
        M::advance(&mut self.views[view].groups[group].encoder, &positions);
        member.joins(&self.views[view].groups[group].encoder);
        let entry = self.members.vacant_entry();
        let key = entry.key();
        let group_members = &mut self.views[view].groups[group].members;
        let at = group_members.len();
        group_members.push(key);
        let holds_beyond = sources.into_iter().map(|source| source.holds_beyond).collect();
        entry.insert(Entry { member, view, group, at, leave_at, holds_beyond });
        if let Some(leave_at) = leave_at {
            self.timers.insert((leave_at, Timer::Member(key)));
        }
        self.views[view].members += 1;
        Ok(key)
    }

    /// Makes heartbeat and bookmark of a view due at these moments at the latest.
    fn rearm(&mut self, key: usize, heartbeat_at: Instant, bookmark_at: Instant) {
        let view = &mut self.views[key];
        view.heartbeat_at = view.heartbeat_at.min(heartbeat_at);
        view.bookmark_at = view.bookmark_at.min(bookmark_at);
        let at = view.heartbeat_at.min(view.bookmark_at);
        if at < view.armed {
            self.timers.remove(&(view.armed, Timer::View(key)));
            view.armed = at;
            self.timers.insert((at, Timer::View(key)));
        }
    }

    /// The view of a selection, made if there is none. `None` if a lane is of another history.
    fn view_for(&mut self, place: &LivePlace, ids: &[InformerId], now: Instant) -> Option<usize> {
        let of_history = |source: &LivePosition| {
            let lane = self.lanes_by_id.get(&source.informer.id()).map(|lane| &self.lanes[*lane]);
            lane.is_none_or(|lane| lane.cursor.history == source.cursor.history)
        };
        if !place.sources.iter().all(of_history) {
            return None;
        }
        let name = (ids.to_vec(), place.selection.clone());
        if let Some(view) = self.views_by_selection.get(&name) {
            return Some(*view);
        }
        let lanes: Vec<_> = place.sources.iter().map(|source| self.lane_for(source)).collect();
        let key = self.views.vacant_key();
        let mut sources = Vec::new();
        for (index, lane) in lanes.into_iter().enumerate() {
            let lane_ref = &mut self.lanes[lane];
            let matcher = Matcher::new(place.selection.clone(), &lane_ref.informer.reader);
            let route = Route::new(&matcher, lane_ref.informer.resource.namespaced());
            lane_ref.routes.add(&route, (key, index));
            lane_ref.views += 1;
            sources.push((lane, matcher, route));
        }
        let (heartbeat_at, bookmark_at) =
            (now + self.config.heartbeat_interval, now + self.config.bookmark_interval);
        let armed = heartbeat_at.min(bookmark_at);
        self.timers.insert((armed, Timer::View(key)));
        self.views.insert(View {
            selection: place.selection.clone(),
            sources,
            groups: Vec::new(),
            members: 0,
            heartbeat_at,
            bookmark_at,
            armed,
            seen: (usize::MAX, 0),
            pending: Vec::new(),
        });
        self.views_by_selection.insert(name, key);
        Some(key)
    }

    fn lane_for(&mut self, source: &LivePosition) -> usize {
        let id = source.informer.id();
        if let Some(lane) = self.lanes_by_id.get(&id) {
            return *lane;
        }
        let lane = self.lanes.insert(Lane {
            informer: source.informer.clone(),
            cursor: source.cursor,
            position: source.position.clone(),
            relists: source.informer.reader.mark().relists,
            routes: Routes::default(),
            views: 0,
        });
        self.lanes_by_id.insert(id, lane);
        lane
    }

    fn group_for(&mut self, view: usize, member: &M, ordered: bool) -> usize {
        let view = &mut self.views[view];
        let kind = member.kind();
        let same = |group: &Group<M>| group.kind == kind && group.ordered == ordered;
        view.groups.iter().position(same).unwrap_or_else(|| {
            let informers: Vec<_> =
                view.sources.iter().map(|(lane, ..)| self.lanes[*lane].informer.clone()).collect();
            let encoder = member.encoder(&informers);
            view.groups.push(Group { kind, ordered, encoder, members: Vec::new() });
            view.groups.len() - 1
        })
    }

    /// Updates the positions of a view's lanes if only those have moved.
    fn refresh(&mut self, view: usize) {
        for (lane, ..) in &self.views[view].sources {
            self.lanes[*lane].refresh();
        }
    }

    /// Whether no change of a view's selection lies between a subscriber and the view.
    fn is_met(&self, view: usize, place: &LivePlace) -> bool {
        let view = &self.views[view];
        let met = |((lane, matcher, _), source): (&(usize, Matcher, Route), &LivePosition)| {
            let lane = &self.lanes[*lane];
            if source.holds_beyond.is_some() && lane.relists != lane.informer.reader.mark().relists {
                return false;
            }
            // The position of a stream never goes back.
            if source.cursor.revision > lane.cursor.revision || is_beyond(&source.position, &lane.position) {
                return false;
            }
            let (from, to) = (source.cursor, lane.cursor);
            from == to || nothing_between(matcher, &lane.informer.reader, from, to, place.ordered)
        };
        view.sources.iter().zip(&place.sources).all(met)
    }

    /// Takes a member out, and returns it with its place.
    pub fn leave(&mut self, key: usize) -> (M, LivePlace) {
        let mut entry = self.members.remove(key);
        let view_key = entry.view;
        let view = &mut self.views[view_key];
        let group = &mut view.groups[entry.group];
        entry.member.leaves(&group.encoder);
        let ordered = group.ordered;
        group.members.swap_remove(entry.at);
        if let Some(moved) = group.members.get(entry.at) {
            self.members[*moved].at = entry.at;
        }
        view.members -= 1;
        if let Some(leave_at) = entry.leave_at {
            self.timers.remove(&(leave_at, Timer::Member(key)));
        }
        let position = |((lane, ..), holds_beyond): (&(usize, Matcher, Route), Option<ResourceVersion>)| {
            let lane = &self.lanes[*lane];
            let (cursor, position) = (lane.cursor, lane.position.clone());
            LivePosition { informer: lane.informer.clone(), cursor, position, holds_beyond }
        };
        let sources = view.sources.iter().zip(entry.holds_beyond).map(position).collect();
        let selection = view.selection.clone();
        let (heartbeat_at, bookmark_at) = (view.heartbeat_at, view.bookmark_at);
        let leave_at = entry.leave_at;
        let place = LivePlace { sources, selection, ordered, leave_at, heartbeat_at, bookmark_at };
        self.drop_view_if_empty(view_key);
        (entry.member, place)
    }

    fn drop_view_if_empty(&mut self, key: usize) {
        if self.views[key].members > 0 {
            return;
        }
        let view = self.views.remove(key);
        self.timers.remove(&(view.armed, Timer::View(key)));
        let mut ids = Vec::new();
        for (index, (lane_key, _, route)) in view.sources.iter().enumerate() {
            let lane = &mut self.lanes[*lane_key];
            ids.push(lane.informer.id());
            lane.routes.remove(route, (key, index));
            lane.views -= 1;
            if lane.views == 0 {
                // One without views would keep an informer that nobody uses.
                let lane = self.lanes.remove(*lane_key);
                self.lanes_by_id.remove(&lane.informer.id());
            }
        }
        self.views_by_selection.remove(&(ids, view.selection));
    }

    /// The members, by key.
    pub fn keys(&self) -> Vec<usize> {
        self.members.iter().map(|(key, _)| key).collect()
    }

    /// A member; `None` for an unknown key.
    pub fn member_mut(&mut self, key: usize) -> Option<&mut M> {
        self.members.get_mut(key).map(|entry| &mut entry.member)
    }

    /// The groups of a view, none for a view that is gone, and access to the members.
    pub fn groups_mut(&mut self, view: usize) -> (&mut [Group<M>], Members<'_, M>) {
        let groups = self.views.get_mut(view).map_or(&mut [][..], |view| &mut view.groups);
        (groups, Members(&mut self.members))
    }

    /// How many members a view has; 0 for one that is gone.
    pub fn members_of(&self, view: usize) -> usize {
        self.views.get(view).map_or(0, |view| view.members)
    }

    /// The number of members that get every change, counting only views with so many that writing takes a while.
    pub fn crowd(&self) -> usize {
        let everything = self.lanes.iter().flat_map(|(_, lane)| lane.routes.everything());
        everything.map(|(view, _)| self.views[*view].members).filter(|members| *members >= CROWD).sum()
    }

    /// Projects the next changes of an informer, and returns the events of each view that they concern.
    pub fn advance(&mut self, informer: InformerId, now: Instant) -> Round {
        let Some(key) = self.lanes_by_id.get(&informer).copied() else { return Round::default() };
        let lane = &mut self.lanes[key];
        let mark = lane.informer.reader.mark();
        if lane.informer.is_over() || mark.history != lane.cursor.history {
            return Round { leaving: self.members_where(key, |_, _| true), ..Round::default() };
        }
        if mark.relists != lane.relists {
            // Objects that their clients hold beyond their tokens may have been deleted unseen. Their own readers decide.
            lane.relists = mark.relists;
            let leaving = self.members_where(key, |_, entry| entry.holds_beyond.iter().any(Option::is_some));
            if !leaving.is_empty() {
                return Round { leaving, more: true, ..Round::default() };
            }
        }
        let lane = &mut self.lanes[key];
        if mark.revision <= lane.cursor.revision {
            return Round::default();
        }
        let Some(batch) = lane.informer.batch_after(lane.cursor, &self.config) else {
            return Round { leaving: self.members_where(key, |_, _| true), ..Round::default() };
        };
        let leaving = self.out_of_order(key, &batch);
        if !leaving.is_empty() {
            return Round { leaving, more: true, ..Round::default() };
        }
        self.take(key, &batch, mark, now)
    }

    /// Ordered members for which a batch would break the order of changes. Their streams end by themselves.
    fn out_of_order(&self, lane: usize, batch: &SharedBatch) -> Vec<usize> {
        if !batch.changes().iter().any(|change| change.is_amid_relist()) {
            return Vec::new();
        }
        let breaks =
            |view: &View<M>| batch.changes().iter().any(|change| loses_order(&view.selection, change));
        self.members_where(lane, |view, entry| view.groups[entry.group].ordered && breaks(view))
    }

    fn members_where(&self, lane: usize, leaves: impl Fn(&View<M>, &Entry<M>) -> bool) -> Vec<usize> {
        let on_lane = |view: &View<M>| view.sources.iter().any(|(one, ..)| *one == lane);
        let leaves = |(_, entry): &(usize, &Entry<M>)| {
            let view = &self.views[entry.view];
            on_lane(view) && leaves(view, entry)
        };
        self.members.iter().filter(leaves).map(|(key, _)| key).collect()
    }

    /// Projects a batch for all views that it concerns, and moves the lane to its end.
    fn take(&mut self, lane_key: usize, batch: &Arc<SharedBatch>, mark: Mark, now: Instant) -> Round {
        let (lane, views) = (&mut self.lanes[lane_key], &mut self.views);
        let paths = lane.informer.reader.paths();
        let mut touched = Vec::new();
        for change in batch.changes() {
            lane.routes.concerned(change, &paths, |(key, source)| {
                let view = &mut views[key];
                if view.seen == (lane_key, change.revision.0) {
                    return;
                }
                view.seen = (lane_key, change.revision.0);
                if view.is_everything() {
                    return;
                }
                let matcher = &mut view.sources[source].1;
                matcher.refresh_to(&paths);
                let Some((kind, payload)) = project_change(matcher, change) else { return };
                if view.pending.is_empty() {
                    touched.push(key);
                }
                view.pending.push(Event {
                    source,
                    kind,
                    payload,
                    position: position_after(change),
                    is_amid: false,
                });
            });
        }
        let mut told: Vec<_> = touched
            .into_iter()
            .map(|view| (view, Told::Events(std::mem::take(&mut views[view].pending))))
            .collect();
        let everything = lane.routes.everything().iter().filter(|(view, _)| views[*view].is_everything());
        told.extend(everything.map(|(view, _)| (*view, Told::Shared(batch.clone()))));
        let (cursor, position) = batch.end();
        (lane.cursor, lane.position) = (cursor, position.clone());
        for (view, _) in &told {
            views[*view].heartbeat_at = now + self.config.heartbeat_interval;
        }
        Round { told, leaving: Vec::new(), more: mark.revision > cursor.revision }
    }

    /// When the next timer is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Handles the timers that are due.
    pub fn due(&mut self, now: Instant) -> Round {
        let mut round = Round::default();
        while let Some((at, timer)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Member(key) => round.leaving.push(key),
                Timer::View(key) => round.told.extend(self.due_of(key, now).map(|told| (key, told))),
            }
        }
        // The caller takes these members out; their timers are removed already.
        for key in &round.leaving {
            self.members[*key].leave_at = None;
        }
        round
    }

    fn due_of(&mut self, key: usize, now: Instant) -> Option<Told> {
        self.refresh(key);
        let is_due = now >= self.views[key].bookmark_at;
        let told = if is_due && self.is_amid_relist(key) {
            // No state that was. The rest of what the relist found follows at once.
            self.views[key].bookmark_at = now + AMID_RELIST_WAIT;
            None
        } else if is_due {
            Some(Told::Events(vec![self.bookmark(key)]))
        } else {
            (now >= self.views[key].heartbeat_at).then_some(Told::Heartbeat)
        };
        let view = &mut self.views[key];
        if now >= view.bookmark_at {
            view.bookmark_at = now + self.config.bookmark_interval;
        }
        if told.is_some() {
            view.heartbeat_at = now + self.config.heartbeat_interval;
        }
        view.armed = view.heartbeat_at.min(view.bookmark_at);
        self.timers.insert((view.armed, Timer::View(key)));
        told
    }

    /// Whether an informer of a view is amid what a relist found.
    fn is_amid_relist(&self, view: usize) -> bool {
        self.views[view].sources.iter().any(|(lane, ..)| self.lanes[*lane].position.is_zero())
    }

    /// The bookmark for the members of a view.
    fn bookmark(&self, view: usize) -> Event {
        let sources = self.views[view].sources.iter();
        let positions: Vec<_> = sources.map(|(lane, ..)| self.lanes[*lane].position.clone()).collect();
        let position = positions[0].clone();
        let payload = Payload::Mark { positions, reason: None };
        Event { source: 0, kind: EventKind::Bookmark, payload, position, is_amid: false }
    }
}

impl<M: Member> Group<M> {
    /// The kind of its members.
    pub fn kind(&self) -> M::Kind {
        self.kind
    }
}

impl<M: Member> View<M> {
    /// Whether it selects everything of one informer, so that its batches are shared.
    fn is_everything(&self) -> bool {
        self.sources.len() == 1 && self.selection.is_all()
    }
}

impl Lane {
    /// Updates its position if only that has moved.
    fn refresh(&mut self) {
        let (cursor, position) = self.informer.reader.head();
        if cursor == self.cursor {
            self.position = position;
        }
    }
}

/// Access to the members of all views while the groups of one are borrowed.
pub struct Members<'a, M>(&'a mut Slab<Entry<M>>);

impl<M> Members<'_, M> {
    /// A member.
    pub fn get_mut(&mut self, key: usize) -> &mut M {
        &mut self.0[key].member
    }
}

/// Whether a position is beyond another one, or cannot be compared with it.
fn is_beyond(position: &ResourceVersion, other: &ResourceVersion) -> bool {
    position.partial_cmp(other).is_none_or(Ordering::is_gt)
}

/// Whether no change between two cursors concerns a selection.
fn nothing_between(matcher: &Matcher, reader: &Reader, from: Cursor, to: Cursor, ordered: bool) -> bool {
    let by_index = matcher.index().filter(|_| !ordered);
    let batch = match by_index.and_then(|index| index.changes_after(from, JOIN_CHANGES_MAX)) {
        Some(batch) => Some(batch),
        None => reader.changes_after(from, JOIN_CHANGES_MAX),
    };
    let Some(batch) = batch.filter(|batch| batch.cursor.revision >= to.revision) else { return false };
    let mut between = batch.changes.iter().take_while(|change| change.revision <= to.revision);
    let breaks = |change: &crate::cache::Change| ordered && loses_order(matcher.selection(), change);
    !between.any(|change| breaks(change) || project_change(matcher, change).is_some())
}
