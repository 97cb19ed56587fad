//! Live views: which members get which events, and which subscribers may join.

use super::*;
use crate::hub::{Form, Live, LivePlace, LiveSubscriber, Member, Round, Told};

const GATHERED: Duration = Duration::from_secs(1);

/// A subscriber that has caught up.
struct Follower(LiveSubscriber);

impl Member for Follower {
    type Kind = ();
    type Encoder = ();

    fn kind(&self) {}

    fn encoder(&self, _: &[Arc<Informer>]) {}

    fn advance((): &mut (), _: &[Resumable]) {}
}

fn selection(labels: &str) -> Selection {
    Selection::new(vec![], None, &LabelSelector::parse(labels).unwrap(), &FieldSelector::default())
}

/// A subscriber that has received everything.
fn caught_up(life: &Life, labels: &str, timeout: Option<Duration>) -> Subscriber {
    caught_up_with(life, selection(labels), timeout)
}

/// A subscriber that gathers changes for a second.
fn gathering(life: &Life, labels: &str, form: Form) -> Subscriber {
    let mut selection = selection(labels);
    selection.form = Form { coalesce: Some(GATHERED), ..form };
    caught_up_with(life, selection, None)
}

fn caught_up_with(life: &Life, selection: Selection, timeout: Option<Duration>) -> Subscriber {
    let (informers, from) = (life.hub.informers(), StartAt::Now);
    let subscription = Subscription { informers, selection, join: None, from, resync: None, timeout };
    let mut subscriber = life.hub.subscribe(subscription).unwrap();
    while ready(&mut subscriber).is_some() {}
    subscriber
}

fn join(live: &mut Live<Follower>, subscriber: Subscriber) -> Result<usize, Box<Subscriber>> {
    let place: LivePlace = subscriber.live_place().expect("it has caught up");
    let joined = live.join(place, Follower(subscriber.into_live()), Instant::now());
    joined.map_err(|(Follower(subscriber), place)| Box::new(subscriber.leave(&place)))
}

/// The events that a round sends, and the number of members that get them.
fn sent(live: &mut Live<Follower>, round: Round) -> Vec<(usize, Vec<(EventKind, String)>)> {
    assert!(round.leaving.is_empty());
    let told = round.told.into_iter().map(|(view, told)| {
        let events = match told {
            Told::Events(events) => events,
            Told::Shared(batch) => batch.events().collect(),
            Told::Heartbeat => Vec::new(),
        };
        let name = |event: &super::super::Event| {
            (event.kind, event.payload.key().map(|key| key.name().to_owned()).unwrap_or_default())
        };
        (live.members_of(view), events.iter().map(name).collect())
    });
    told.collect()
}

fn round(life: &Life, live: &mut Live<Follower>) -> Vec<(usize, Vec<(EventKind, String)>)> {
    let round = live.advance(life.hub.informers()[0].id(), Instant::now());
    sent(live, round)
}

fn started() -> (Upstream, Life, Live<Follower>) {
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    upstream.put("b", false);
    let life = Life::new(&upstream);
    let live = Live::new(*life.hub.config());
    (upstream, life, live)
}

#[tokio::test(start_paused = true)]
async fn a_change_is_projected_once_for_each_selection_that_it_concerns() {
    let (mut upstream, mut life, mut live) = started();
    for labels in ["app=true", "app in (true)", "app==true,app=true", "app=false", "app!=true", ""] {
        join(&mut live, caught_up(&life, labels, None)).ok().expect("it joins");
    }
    upstream.put("a", true);
    life.watch(&upstream, 1);
    let told = |count, kind, name: &str| (count, vec![(kind, name.to_owned())]);
    // Three of the selections mean the same and share a view.
    let expected = [told(3, EventKind::Modified, "a"), told(1, EventKind::Modified, "a")];
    assert_eq!(round(&life, &mut live), expected);
    upstream.put("a", false);
    life.watch(&upstream, 1);
    let mut moved = round(&life, &mut live);
    moved.sort_by_key(|(count, events)| (*count, events[0].0.as_str()));
    let (added, modified) = (told(1, EventKind::Added, "a"), told(1, EventKind::Modified, "a"));
    assert_eq!(moved, [added.clone(), added, modified, told(3, EventKind::Deleted, "a")]);
    assert!(round(&life, &mut live).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_joins_a_view_unless_it_lacks_a_change() {
    let (mut upstream, mut life, mut live) = started();
    let [first, late, missed] = [0, 1, 2].map(|_| caught_up(&life, "app=true", None));
    let everything = caught_up(&life, "", None);
    join(&mut live, everything).ok().expect("it joins");
    let (late, missed) =
        (late.live_place().map(|place| (place, late)), missed.live_place().map(|place| (place, missed)));
    let key = join(&mut live, first).ok().expect("it joins");
    upstream.put("b", false);
    life.watch(&upstream, 1);
    round(&life, &mut live);
    // The change is outside their selection.
    let (place, subscriber) = late.unwrap();
    assert!(live.join(place, Follower(subscriber.into_live()), Instant::now()).is_ok());
    upstream.put("a", true);
    life.watch(&upstream, 1);
    round(&life, &mut live);
    let (place, subscriber) = missed.unwrap();
    let Err((Follower(subscriber), place)) =
        live.join(place, Follower(subscriber.into_live()), Instant::now())
    else {
        panic!("a subscriber that lacks a change joined");
    };
    let mut subscriber = subscriber.leave(&place);
    // The subscriber receives that change by itself, and then joins.
    assert_eq!(ready(&mut subscriber).map(|events| events.len()), Some(1));
    join(&mut live, subscriber).ok().expect("it joins");
    // A member that leaves goes on from the position of the view.
    let (Follower(left), place) = live.leave(key);
    let mut left = left.leave(&place);
    assert!(ready(&mut left).is_none());
    upstream.put("a", true);
    life.watch(&upstream, 1);
    assert_eq!(ready(&mut left).map(|events| events.len()), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_ahead_of_the_view_waits() {
    let (mut upstream, mut life, mut live) = started();
    join(&mut live, caught_up(&life, "app=true", None)).ok().expect("it joins");
    upstream.put("b", false);
    life.watch(&upstream, 1);
    let subscriber = caught_up(&life, "app=true", None);
    let Err(subscriber) = join(&mut live, subscriber) else {
        panic!("a subscriber ahead of the view joined")
    };
    round(&life, &mut live);
    assert!(join(&mut live, *subscriber).is_ok());
}

#[tokio::test(start_paused = true)]
async fn heartbeats_timeouts_and_bookmarks_of_a_view_are_due_on_time() {
    let (_, life, mut live) = started();
    join(&mut live, caught_up(&life, "app=true", None)).ok().expect("it joins");
    let ends =
        join(&mut live, caught_up(&life, "app=false", Some(Duration::from_secs(20)))).ok().expect("it joins");
    assert!(live.due(Instant::now()).told.is_empty());
    tokio::time::advance(Duration::from_secs(15)).await;
    let heartbeats = live.due(Instant::now());
    assert_eq!(sent(&mut live, heartbeats), [(1, vec![]), (1, vec![])]);
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(live.due(Instant::now()).leaving, [ends]);
    drop(live.leave(ends));
    tokio::time::advance(Duration::from_secs(40)).await;
    let due = live.due(Instant::now());
    assert_eq!(sent(&mut live, due), [(1, vec![(EventKind::Bookmark, String::new())])]);
    for key in live.keys() {
        drop(live.leave(key));
    }
    assert_eq!((live.next_due(), live.informers().count()), (None, 0), "an empty view remains");
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_follows_a_relist_whose_last_changes_do_not_concern_a_view() {
    let (mut upstream, mut life, mut live) = started();
    join(&mut live, caught_up(&life, "app=true", None)).ok().expect("it joins");
    upstream.put("a", true);
    upstream.put("b", false);
    life.relist(&upstream);
    assert_eq!(round(&life, &mut live), [(1, vec![(EventKind::Modified, "a".to_owned())])]);
    assert!(live.next_due().is_some_and(|at| at <= Instant::now() + Duration::from_secs(1)));
    tokio::time::advance(Duration::from_secs(1)).await;
    let due = live.due(Instant::now());
    assert_eq!(sent(&mut live, due), [(1, vec![(EventKind::Bookmark, String::new())])]);
}

#[tokio::test(start_paused = true)]
async fn members_of_a_replaced_informer_leave() {
    let (upstream, mut life, mut live) = started();
    let key = join(&mut live, caught_up(&life, "app=true", None)).ok().expect("it joins");
    let informer = life.hub.informers()[0].id();
    life.replace(&upstream);
    assert_eq!(live.advance(informer, Instant::now()).leaving, [key]);
}

/// A condition is measured when it is evaluated first, which may be in a live view.
#[tokio::test(start_paused = true)]
async fn a_view_whose_condition_turns_out_to_be_costly_stops_there_and_its_members_leave() {
    for coalesce in [None, Some(GATHERED)] {
        let (mut upstream, mut life, mut live) = started();
        let mut selection = Selection::default().with_condition(Some(looping(3)));
        selection.form.coalesce = coalesce;
        let key = join(&mut live, caught_up_with(&life, selection, None)).ok().expect("it joins");
        ["a", "b", "c"].iter().for_each(|name| upstream.put(name, true));
        life.watch(&upstream, 3);
        let first = live.advance(life.hub.informers()[0].id(), Instant::now());
        assert!(first.more);
        let mut told = sent(&mut live, first);
        if coalesce.is_none() {
            assert_eq!(told.remove(0), (1, vec![(EventKind::Modified, "a".to_owned())]));
        }
        assert_eq!(told, []);
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(due(&mut live), [], "a bookmark of a place where the members are not");
        let leaving = live.advance(life.hub.informers()[0].id(), Instant::now()).leaving;
        assert_eq!(leaving, [key]);
        let (Follower(left), place) = live.leave(key);
        let mut left = left.leave(&place);
        let mut all = Vec::new();
        while let Some(events) = ready(&mut left) {
            all.extend(events.into_iter().filter(|event| event.kind != EventKind::Bookmark));
        }
        let all: Vec<_> = all.iter().filter_map(|event| event.payload.key()).map(Key::name).collect();
        let expected: &[&str] = if coalesce.is_some() { &["a", "b", "c"] } else { &["b", "c"] };
        assert_eq!(all, expected, "each change once");
    }
}

/// The events that are due now.
fn due(live: &mut Live<Follower>) -> Vec<(usize, Vec<(EventKind, String)>)> {
    let round = live.due(Instant::now());
    sent(live, round)
}

/// Sends changes to the views as they arrive.
fn advance(life: &Life, live: &mut Live<Follower>) -> Vec<(usize, Vec<(EventKind, String)>)> {
    let mut told = Vec::new();
    loop {
        let round = live.advance(life.hub.informers()[0].id(), Instant::now());
        let more = round.more;
        told.extend(sent(live, round));
        if !more {
            return told;
        }
    }
}

/// Two members of a gathering view that has just sent a change.
async fn gathered() -> (Upstream, Life, Live<Follower>, [usize; 2]) {
    let (mut upstream, mut life, mut live) = started();
    // After this pause, their first states do not start an interval.
    let members = [0, 1].map(|_| gathering(&life, "app=true", Form::default()));
    tokio::time::advance(GATHERED).await;
    let keys = members.map(|member| join(&mut live, member).ok().expect("it joins"));
    upstream.put("a", true);
    life.watch(&upstream, 1);
    let first = vec![(2, vec![(EventKind::Modified, "a".to_owned())])];
    assert_eq!(advance(&life, &mut live), first, "the first change after a pause is not sent at once");
    (upstream, life, live, keys)
}

#[tokio::test(start_paused = true)]
async fn a_gathering_view_sends_the_last_state_of_each_object_when_due() {
    let (mut upstream, mut life, mut live, _) = gathered().await;
    let now = Instant::now();
    upstream.put("a", true);
    upstream.put("gone", true);
    upstream.put("new", true);
    upstream.delete("gone");
    upstream.put("a", true);
    upstream.put("b", true);
    upstream.put("b", false);
    // A few at a time, as the journal is short.
    for _ in 0..4 {
        life.watch(&upstream, 2);
        assert!(advance(&life, &mut live).is_empty());
    }
    assert_eq!(live.next_due(), Some(now + GATHERED));
    tokio::time::advance(GATHERED - Duration::from_millis(1)).await;
    assert!(due(&mut live).is_empty());
    tokio::time::advance(Duration::from_millis(1)).await;
    let told = |kind, name: &str| (kind, name.to_owned());
    // Objects that existed or matched only within the interval are not sent.
    assert_eq!(due(&mut live), [(2, vec![told(EventKind::Added, "new"), told(EventKind::Modified, "a")])]);
    // Changes that cancel each other do not start an interval.
    tokio::time::advance(GATHERED).await;
    upstream.put("brief", true);
    upstream.delete("brief");
    life.watch(&upstream, 2);
    assert!(advance(&life, &mut live).is_empty());
    upstream.delete("a");
    life.watch(&upstream, 1);
    assert_eq!(advance(&life, &mut live), [(2, vec![told(EventKind::Deleted, "a")])]);
}

#[tokio::test(start_paused = true)]
async fn a_gathering_view_admits_no_one_and_leavers_get_its_changes() {
    let (mut upstream, mut life, mut live, keys) = gathered().await;
    let until = Instant::now() + GATHERED;
    let member = gathering(&life, "app=true", Form::default());
    upstream.put("a", true);
    life.watch(&upstream, 1);
    assert!(advance(&life, &mut live).is_empty());
    // Its first state is older than the change, so it gathers, too.
    assert!(member.live_place().is_none());
    let late = gathering(&life, "app=true", Form::default());
    let place = late.live_place().expect("a subscriber that has everything may join");
    let ids: Vec<_> = place.sources.iter().map(|source| source.informer.id()).collect();
    let name = place.selection.clone();
    let Err((Follower(late), place)) = live.join(place, Follower(late.into_live()), Instant::now()) else {
        panic!("a subscriber ahead of the gathered changes joined");
    };
    let mut late = late.leave(&place);
    assert_eq!(live.gathers_until(&ids, &name), Some(until));
    late.rest_until(until);
    assert!(late.live_place().is_none(), "it asks to join before the interval is over");
    // A member that leaves keeps the position before the gathered changes, and goes on gathering.
    let (Follower(left), place) = live.leave(keys[0]);
    let mut left = left.leave(&place);
    assert!(ready(&mut left).is_none());
    assert_eq!(place.gather_until, until);
    tokio::time::advance(GATHERED).await;
    assert_eq!(ready(&mut left).map(|events| events.len()), Some(1));
    assert_eq!(due(&mut live), [(1, vec![(EventKind::Modified, "a".to_owned())])]);
    // Now all have the same state.
    join(&mut live, left).ok().expect("it joins");
    join(&mut live, *Box::new(late)).ok().expect("it joins");
    assert_eq!(live.members_of(0), 3);
}

#[tokio::test(start_paused = true)]
async fn a_member_at_its_timeout_leaves_before_the_gathered_changes_are_sent() {
    let (mut upstream, mut life, mut live) = started();
    let mut selection = selection("app=true");
    selection.form.coalesce = Some(GATHERED);
    // It gathers from its first state on.
    let key = join(&mut live, caught_up_with(&life, selection, Some(GATHERED))).ok().expect("it joins");
    upstream.put("a", true);
    life.watch(&upstream, 1);
    assert!(advance(&life, &mut live).is_empty());
    tokio::time::advance(GATHERED).await;
    let round = live.due(Instant::now());
    assert_eq!((round.leaving, round.told.len(), round.more), (vec![key], 0, true));
    let (_, place) = live.leave(key);
    let told = Resumable::from(upstream.version - 1);
    assert_eq!(place.sources[0].position, told, "not the position before the gathered change");
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_waits_for_the_gathered_changes() {
    let (mut upstream, mut life, mut live, _) = gathered().await;
    let bookmark_at = loop {
        let next = live.next_due().expect("members have heartbeats");
        tokio::time::advance(next - Instant::now()).await;
        // A change is sent half an interval before the bookmark, so that the next change is gathered.
        if due(&mut live).iter().any(|(_, events)| !events.is_empty()) {
            break Instant::now() + life.hub.config().bookmark_interval;
        }
    };
    tokio::time::advance(bookmark_at - GATHERED / 2 - Instant::now()).await;
    due(&mut live);
    for _ in 0..2 {
        upstream.put("a", true);
        life.watch(&upstream, 1);
        advance(&life, &mut live);
    }
    tokio::time::advance(GATHERED / 2).await;
    assert!(due(&mut live).is_empty(), "a bookmark before the gathered changes");
    tokio::time::advance(GATHERED / 2).await;
    let told = due(&mut live);
    let kinds: Vec<_> = told.iter().flat_map(|(_, events)| events).map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [EventKind::Modified, EventKind::Bookmark]);
}

#[tokio::test(start_paused = true)]
async fn members_leave_a_view_that_would_gather_too_much() {
    let (mut upstream, mut life, mut live, keys) = gathered().await;
    let mut leaving = Vec::new();
    for _ in 0..=1024 {
        upstream.put("a", true);
        life.watch(&upstream, 1);
        leaving = live.advance(life.hub.informers()[0].id(), Instant::now()).leaving;
        if !leaving.is_empty() {
            break;
        }
    }
    leaving.sort_unstable();
    assert_eq!(leaving, keys);
}

#[tokio::test(start_paused = true)]
async fn a_round_knows_that_another_live_view_got_newer_changes() {
    let (mut upstream, mut life, mut quick) = started();
    let mut slow = Live::new(*life.hub.config());
    for live in [&mut quick, &mut slow] {
        join(live, caught_up(&life, "", None)).ok().unwrap();
    }
    let id = life.hub.informers()[0].id();
    for name in ["c", "d"] {
        upstream.put(name, true);
        life.watch(&upstream, 1);
        let round = quick.advance(id, Instant::now());
        assert_eq!((round.told.len(), round.more, round.is_behind), (1, false, false));
    }
    // It receives the existing batches one by one.
    let round = slow.advance(id, Instant::now());
    assert_eq!((round.told.len(), round.more, round.is_behind), (1, true, true));
    upstream.put("e", true);
    life.watch(&upstream, 1);
    let round = slow.advance(id, Instant::now());
    assert_eq!(
        (round.told.len(), round.more, round.is_behind),
        (1, true, false),
        "marked as behind, but no other view has the batch"
    );
}

#[tokio::test(start_paused = true)]
async fn a_round_is_shared_from_a_number_of_members_on() {
    let (mut upstream, mut life, mut live) = started();
    for (members, is_shared) in [(1, false), (7, false), (1, true)] {
        for _ in 0..members {
            join(&mut live, caught_up(&life, "app=true", None)).ok().unwrap();
        }
        upstream.put("a", true);
        life.watch(&upstream, 1);
        let round = live.advance(life.hub.informers()[0].id(), Instant::now());
        assert_eq!((round.told.len(), live.is_shared(&round)), (1, is_shared));
    }
    upstream.put("b", false);
    life.watch(&upstream, 1);
    let round = live.advance(life.hub.informers()[0].id(), Instant::now());
    assert!(round.told.is_empty() && !live.is_shared(&round), "a change outside the selection was sent");
}

#[tokio::test(start_paused = true)]
async fn a_member_that_leaves_keeps_its_timers_and_what_a_reload_deleted() {
    let (upstream, mut life, mut live) = started();
    let (resync, timeout) = (Some(Duration::from_secs(10)), Some(Duration::from_secs(60)));
    let (informers, selection, from) = (life.hub.informers(), Selection::default(), StartAt::Start);
    let subscription = Subscription { informers, selection, join: None, from, resync, timeout };
    let mut subscriber = life.hub.subscribe(subscription).unwrap();
    let all = |subscriber: &mut Subscriber| {
        let deliveries = std::iter::from_fn(|| subscriber.next().now_or_never());
        deliveries.flat_map(|delivery| delivery.events()).map(|event| event.kind).collect::<Vec<_>>()
    };
    assert_eq!(all(&mut subscriber), [EventKind::Added, EventKind::Added, EventKind::Synced]);
    let began = Instant::now();
    // The new informer does not hold b.
    life.replace(&upstream);
    assert!(all(&mut subscriber).contains(&EventKind::Deleted));
    let place = subscriber.live_place().expect("it has caught up");
    let key = live.join(place, Follower(subscriber.into_live()), began).ok().expect("it joins");
    let (Follower(member), place) = live.leave(key);
    let mut left = member.leave(&place);
    let dues = [left.live_place().unwrap().leave_at, place.leave_at];
    assert_eq!(dues, [began.checked_add(Duration::from_secs(10)); 2]);
    // The next one holds b again, at a version from before its deletion.
    life.replace(&upstream);
    assert!(all(&mut left).contains(&EventKind::Reset));
    let reason = loop {
        if let Delivery::Closed(reason) = left.next().await {
            break reason;
        }
    };
    assert_eq!((reason, began.elapsed()), (CloseReason::Timeout, Duration::from_secs(60)));
}
