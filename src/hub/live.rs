//! Live views: all subscribers that have caught up. No async, no clock.
//!
//! Subscribers with the same selection of the same informers have the same next events. They are members of one
//! [`View`]: a change is projected once for the view, rendered once for each kind of transport, and written to each
//! member. A change is looked at only for the views that can match it: views are found by namespace, key or value,
//! and those alone whose selection has no equality look at every change. So a change costs the views that it concerns and
//! one write for each of their members, however many views there are.
//!
//! All views of an informer are at one position, that of their [`Lane`]. Where changes are gathered (`coalesceMs`), the
//! view holds those that its members were not told yet, and tells them at its moment. Until then nobody joins, and one who
//! leaves continues from the position before them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tokio::time::Instant;

use super::event::{Event, EventKind, Payload};
use super::gathering::Gathering;
use super::lane::Lane;
use super::live_place::{Group, LivePlace, LivePosition, Member, Round, Told};
use super::live_view::View;
use super::project::{ChangeValues, loses_order, position_after, project_read_change};
use super::routes::Route;
use super::shared_batch::SharedBatch;
use super::{Config, Informer, InformerId, Matcher, Resumable, Selection};
use crate::cache::Mark;
use crate::k8s::ResourceVersion;

/// How long a bookmark that is due amid what a relist found is put off.
const AMID_RELIST_WAIT: Duration = Duration::from_secs(1);

/// Number of members of a view from which on writing to all of them takes longer than a burst of changes.
const CROWD: usize = 64;
/// Members of a view for which one write of several events saves less than the wait for these costs other views.
const FEW: usize = 8;

/// The views of the subscribers of one core.
pub struct Live<M: Member> {
    config: Config,
    lanes: Slab<Lane>,
    lanes_by_id: HashMap<InformerId, usize>,
    /// Boxed, as the slab doubles, and there may be ten thousand of them.
    views: Slab<Box<View<M>>>,
    views_by_selection: HashMap<(Vec<InformerId>, Arc<Selection>), usize>,
    members: Slab<Entry<M>>,
    /// When a view or member is due.
    timers: BTreeSet<(Instant, Timer)>,
    /// Views that stopped amid the last changes.
    stopped: Vec<usize>,
}

struct Entry<M> {
    member: M,
    view: usize,
    group: usize,
    /// Its place in the group's list.
    at: usize,
    leave_at: Option<Instant>,
    /// For each source; empty if its client holds nothing beyond its tokens.
    holds_beyond: Box<[Option<ResourceVersion>]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    View(usize),
    Member(usize),
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
            stopped: Vec::new(),
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
    /// The member, which has to continue by itself from its place.
    pub fn join(&mut self, place: LivePlace, mut member: M, now: Instant) -> Result<usize, (M, LivePlace)> {
        let ids: Vec<_> = place.sources.iter().map(|source| source.informer.id()).collect();
        let Some(view) = self.view_for(&place, &ids, now) else { return Err((member, place)) };
        self.refresh(view);
        if !self.is_met(view, &place) {
            self.drop_view_if_empty(view);
            return Err((member, place));
        }
        let joined = &mut self.views[view];
        joined.heartbeat_at = joined.heartbeat_at.min(place.heartbeat_at);
        joined.bookmark_at = joined.bookmark_at.min(place.bookmark_at);
        if let Some(gathering) = &mut joined.gathering {
            gathering.admit(place.gather_until);
        }
        self.arm(view);
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
        let holds_beyond = LivePosition::all_holds_beyond(&sources);
        entry.insert(Entry { member, view, group, at, leave_at, holds_beyond });
        if let Some(leave_at) = leave_at {
            self.timers.insert((leave_at, Timer::Member(key)));
        }
        self.views[view].members += 1;
        Ok(key)
    }

    /// Until when a view gathers changes, if there is one that does. A subscriber that was not taken in rests until then: if it
    /// takes its changes when the view tells them, the two may meet.
    pub fn gathers_until(&self, informers: &[InformerId], selection: &Arc<Selection>) -> Option<Instant> {
        let view = self.views_by_selection.get(&(informers.to_vec(), selection.clone()))?;
        self.views[*view].gathering.as_ref().map(Gathering::until)
    }

    /// Makes a view's timer fire when something is due.
    fn arm(&mut self, key: usize) {
        let view = &mut self.views[key];
        let at = view.due_at();
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
        // As many as there are, and mostly one group: there may be thousands of views.
        let mut sources = Vec::with_capacity(lanes.len());
        for (index, lane) in lanes.into_iter().enumerate() {
            let lane_ref = &mut self.lanes[lane];
            let matcher = Matcher::new(place.selection.clone(), &lane_ref.informer.reader);
            let route = Route::new(&matcher, lane_ref.informer.spec.resource.namespaced());
            lane_ref.routes.add(&route, (key, index));
            lane_ref.views += 1;
            sources.push((lane, matcher, route));
        }
        let (heartbeat_at, bookmark_at) =
            (now + self.config.heartbeat_interval, now + self.config.bookmark_interval);
        let armed = heartbeat_at.min(bookmark_at);
        self.timers.insert((armed, Timer::View(key)));
        let interval = place.selection.form.coalesce;
        let gathering = interval.map(|interval| Gathering::new(interval, place.gather_until, sources.len()));
        self.views.insert(Box::new(View {
            selection: place.selection.clone(),
            sources,
            groups: Vec::with_capacity(1),
            members: 0,
            heartbeat_at,
            bookmark_at,
            armed,
            seen: (usize::MAX, 0),
            pending: Vec::new(),
            gathering,
            stopped: None,
        }));
        self.views_by_selection.insert(name, key);
        Some(key)
    }

    fn lane_for(&mut self, source: &LivePosition) -> usize {
        let id = source.informer.id();
        if let Some(lane) = self.lanes_by_id.get(&id) {
            return *lane;
        }
        let lane = self.lanes.insert(Lane::new(source));
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
        if view.tells_at().is_some() || view.stopped.is_some() {
            return false;
        }
        let met = |((lane, matcher, _), source): (&(usize, Matcher, Route), &LivePosition)| {
            self.lanes[*lane].meets(source, matcher, place.ordered)
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
        let mut holds_beyond = entry.holds_beyond.into_iter();
        let sources = view.sources.iter().enumerate().map(|(source, (lane, ..))| {
            let (lane, holds_beyond) = (&self.lanes[*lane], holds_beyond.next().flatten());
            let held = view.gathering.as_ref().and_then(|gathering| gathering.place(source));
            let place = held.or_else(|| view.stopped_at(source));
            let (cursor, position) = place.unwrap_or_else(|| (lane.cursor, lane.position.clone()));
            LivePosition { informer: lane.informer.clone(), cursor, position, holds_beyond }
        });
        let place = LivePlace {
            sources: sources.collect(),
            selection: view.selection.clone(),
            ordered,
            leave_at: entry.leave_at,
            heartbeat_at: view.heartbeat_at,
            bookmark_at: view.bookmark_at,
            gather_until: view.gathering.as_ref().map_or(view.heartbeat_at, Gathering::until),
        };
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

    /// Whether a round goes to a view with more than a few members.
    pub fn is_shared(&self, round: &Round) -> bool {
        round.told.iter().any(|(view, _)| self.members_of(*view) > FEW)
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
        let leaving = self.members_of_stopped();
        if !leaving.is_empty() {
            return Round { leaving, more: true, ..Round::default() };
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

    /// The members of views that stopped amid the last changes.
    fn members_of_stopped(&mut self) -> Vec<usize> {
        let views = std::mem::take(&mut self.stopped).into_iter().filter_map(|view| self.views.get(view));
        // A view of now may have the number of one that is gone.
        let groups = views.filter(|view| view.stopped.is_some()).flat_map(|view| view.groups.iter());
        groups.flat_map(|group| group.members.iter().copied()).collect()
    }

    /// Ordered members for which a batch would break the order of changes. Their streams end by themselves.
    fn out_of_order(&self, lane: usize, batch: &SharedBatch) -> Vec<usize> {
        // Looked for once, not for each member.
        let Some(amid) = batch.changes().iter().find(|change| change.is_amid_relist()) else {
            return Vec::new();
        };
        let breaks = |view: &View<M>| loses_order(&view.selection, amid);
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
        let (lane, views, stopped) = (&mut self.lanes[lane_key], &mut self.views, &mut self.stopped);
        let paths = lane.informer.reader.paths();
        let before = (lane.cursor, lane.position.clone());
        let (mut touched, mut gathers) = (Vec::new(), Vec::new());
        for change in batch.changes() {
            let values = ChangeValues::new(&paths);
            lane.routes.concerned(change, &values, |(key, source)| {
                let view = &mut views[key];
                if view.seen == (lane_key, change.revision.0) {
                    return;
                }
                view.seen = (lane_key, change.revision.0);
                if view.is_everything() || view.stopped.is_some() {
                    return;
                }
                let matcher = &mut view.sources[source].1;
                matcher.refresh_to(&paths);
                let projected = project_read_change(matcher, change, &values);
                if view.stops_after(source, change, before.0) {
                    stopped.push(key);
                }
                if let Some(gathering) = &mut view.gathering {
                    // The object has a held change already: hold this one, too, as the last state may differ from the first.
                    if projected.is_some() || gathering.has(source, change.object.key()) {
                        gathering.hold(source, change, &before);
                        gathers.push(key);
                    }
                    return;
                }
                let Some((kind, payload)) = projected else { return };
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
        self.owe_positions(&told, now);
        gathers.sort_unstable();
        gathers.dedup();
        let mut leaving = Vec::new();
        for view in gathers {
            if self.views[view].tells_at().is_some_and(|at| at <= now) {
                told.extend(self.tell_held(view, now).map(|held| (view, held)));
            }
            if self.views[view].gathering.as_ref().is_some_and(Gathering::is_full) {
                let groups = self.views[view].groups.iter();
                leaving.extend(groups.flat_map(|group| group.members.iter().copied()));
            }
            self.arm(view);
        }
        let more = mark.revision > cursor.revision || !self.stopped.is_empty();
        let is_behind = more && self.lanes[lane_key].informer.has_batch_after(cursor);
        Round { told, leaving, more, is_behind }
    }

    /// Lets a bookmark follow soon where the last of these events has no position: the changes behind it in the relist do not concern the
    /// view. Without a bookmark a member that is cut off would start over.
    fn owe_positions(&mut self, told: &[(usize, Told)], now: Instant) {
        for (view, told) in told {
            if let Told::Events(events) = told
                && events.last().is_some_and(|last| last.position == Resumable::No)
            {
                self.views[*view].bookmark_at = self.views[*view].bookmark_at.min(now + AMID_RELIST_WAIT);
                self.arm(*view);
            }
        }
    }

    /// What the members of a view get of the changes that it holds, if anything.
    fn tell_held(&mut self, key: usize, now: Instant) -> Option<Told> {
        let (view, lanes) = (&mut self.views[key], &self.lanes);
        if view.stopped.is_some() {
            return None;
        }
        let sources = &view.sources;
        let events = view.gathering.as_mut()?.tell(now, |source| {
            let (lane, matcher, _) = &sources[source];
            (matcher, &lanes[*lane].position)
        });
        if events.is_empty() {
            return None;
        }
        view.heartbeat_at = now + self.config.heartbeat_interval;
        Some(Told::Events(events))
    }

    /// When the next timer is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Handles the timers that are due.
    pub fn due(&mut self, now: Instant) -> Round {
        let mut round = Round::default();
        // Members that leave get nothing of what their view tells in the same round. So they leave in a round of their own.
        let are_due = self.timers.iter().take_while(|(at, _)| *at <= now);
        let leaving = are_due.filter(|(_, timer)| matches!(timer, Timer::Member(_))).copied();
        for (at, timer) in leaving.collect::<Vec<_>>() {
            self.timers.remove(&(at, timer));
            if let Timer::Member(key) = timer {
                // The caller takes it out; its timer is removed already.
                self.members[key].leave_at = None;
                round.leaving.push(key);
            }
        }
        if !round.leaving.is_empty() {
            round.more = true;
            return round;
        }
        while let Some((at, timer)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.remove(&(at, timer));
            if let Timer::View(key) = timer {
                round.told.extend(self.due_of(key, now).map(|told| (key, told)));
            }
        }
        round
    }

    fn due_of(&mut self, key: usize, now: Instant) -> Option<Told> {
        if self.views[key].stopped.is_some() {
            // Its members leave at once, and are not where the lane is.
            let at = now + AMID_RELIST_WAIT;
            self.views[key].armed = at;
            self.timers.insert((at, Timer::View(key)));
            return None;
        }
        self.refresh(key);
        let is_due = now >= self.views[key].bookmark_at;
        let tells_at = self.views[key].tells_at();
        let told = if tells_at.is_some_and(|at| at <= now) {
            self.tell_held(key, now)
        } else if let Some(at) = tells_at.filter(|_| is_due) {
            // Its members do not have the state of the lane yet.
            self.views[key].bookmark_at = at;
            None
        } else if is_due && self.is_amid_relist(key) {
            // No state that was. The rest of what the relist found follows at once.
            self.views[key].bookmark_at = now + AMID_RELIST_WAIT;
            None
        } else if is_due {
            Some(Told::Events(vec![self.bookmark(key)]))
        } else {
            (now >= self.views[key].heartbeat_at).then_some(Told::Heartbeat)
        };
        let view = &mut self.views[key];
        // After changes that were held, a bookmark that is due follows at once.
        if now >= view.bookmark_at && tells_at.is_none() {
            view.bookmark_at = now + self.config.bookmark_interval;
        }
        if told.is_some() {
            view.heartbeat_at = now + self.config.heartbeat_interval;
        }
        view.armed = view.due_at();
        self.timers.insert((view.armed, Timer::View(key)));
        told
    }

    /// Whether an informer of a view is amid what a relist found.
    fn is_amid_relist(&self, view: usize) -> bool {
        self.views[view].sources.iter().any(|(lane, ..)| self.lanes[*lane].position == Resumable::No)
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

/// Access to the members of all views while the groups of one are borrowed.
pub struct Members<'a, M>(&'a mut Slab<Entry<M>>);

impl<M> Members<'_, M> {
    /// A member.
    pub fn get_mut(&mut self, key: usize) -> &mut M {
        &mut self.0[key].member
    }
}
