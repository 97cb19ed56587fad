//! Live views: which members get which events, and which subscribers may join.

use super::*;
use crate::hub::{Live, LivePlace, Member, Round, Told};

/// A subscriber that has caught up.
struct Follower(Subscriber);

impl Member for Follower {
    type Kind = ();
    type Encoder = ();

    fn kind(&self) {}

    fn encoder(&self, _: &[Arc<Informer>]) {}

    fn advance((): &mut (), _: &[ResourceVersion]) {}
}

fn selection(labels: &str) -> Selection {
    Selection::new(vec![], None, &LabelSelector::parse(labels).unwrap(), &FieldSelector::default())
}

/// A subscriber that has taken everything.
fn caught_up(life: &Life, labels: &str, timeout: Option<Duration>) -> Subscriber {
    let (informers, from) = (life.hub.informers(), StartAt::Now);
    let subscription = Subscription { informers, selection: selection(labels), from, resync: None, timeout };
    let mut subscriber = life.hub.subscribe(subscription).unwrap();
    while ready(&mut subscriber).is_some() {}
    subscriber
}

fn join(live: &mut Live<Follower>, subscriber: Subscriber) -> Result<usize, Box<Subscriber>> {
    let place: LivePlace = subscriber.live_place().expect("it has caught up");
    let joined = live.join(place, Follower(subscriber), Instant::now());
    joined.map_err(|Follower(subscriber)| Box::new(subscriber))
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
    // Three selections that mean the same are one view.
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
async fn a_subscriber_joins_where_nothing_of_its_selection_lies_between() {
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
    // The change was none of theirs.
    let (place, subscriber) = late.unwrap();
    assert!(live.join(place, Follower(subscriber), Instant::now()).is_ok());
    upstream.put("a", true);
    life.watch(&upstream, 1);
    round(&life, &mut live);
    let (place, subscriber) = missed.unwrap();
    let Err(Follower(mut subscriber)) = live.join(place, Follower(subscriber), Instant::now()) else {
        panic!("it lacks a change of its selection");
    };
    // It takes that change by itself, and joins again.
    assert_eq!(ready(&mut subscriber).map(|events| events.len()), Some(1));
    join(&mut live, subscriber).ok().expect("it joins");
    // A member that leaves continues from where the view has brought it.
    let (Follower(mut left), place) = live.leave(key);
    left.advance_to(&place);
    assert!(ready(&mut left).is_none());
    upstream.put("a", true);
    life.watch(&upstream, 1);
    assert_eq!(ready(&mut left).map(|events| events.len()), Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_is_further_than_the_view_waits() {
    let (mut upstream, mut life, mut live) = started();
    join(&mut live, caught_up(&life, "app=true", None)).ok().expect("it joins");
    upstream.put("b", false);
    life.watch(&upstream, 1);
    let subscriber = caught_up(&life, "app=true", None);
    let Err(subscriber) = join(&mut live, subscriber) else { panic!("its position would go back") };
    round(&life, &mut live);
    assert!(join(&mut live, *subscriber).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_view_shows_that_it_lives_where_it_is_and_whose_time_is_over() {
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
    assert_eq!((live.next_due(), live.informers().count()), (None, 0), "nothing is left of empty views");
}

#[tokio::test(start_paused = true)]
async fn members_of_an_informer_that_is_replaced_leave() {
    let (upstream, mut life, mut live) = started();
    let key = join(&mut live, caught_up(&life, "app=true", None)).ok().expect("it joins");
    let informer = life.hub.informers()[0].id();
    life.replace(&upstream);
    assert_eq!(live.advance(informer, Instant::now()).leaving, [key]);
}
