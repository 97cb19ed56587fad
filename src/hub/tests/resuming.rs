//! Where a client with a token resumes, and when it starts over.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;

use super::super::*;
use super::{LIMITS, Life, Upstream, object, ready};
use crate::cache::{self, Delta};
use crate::k8s::{FieldSelector, LabelSelector, Object, Resource, ResourceParts, ResourceVersion};

/// A stream that starts at this position.
fn subscribe(life: &Life, selection: Selection, from: StartAt) -> Subscriber {
    let informers = life.hub.informers();
    let subscription = Subscription { informers, selection, join: None, from, resync: None, timeout: None };
    life.hub.subscribe(subscription).expect("a subscriber")
}

/// The first events of such a stream: kinds, and names if there are any.
fn first_events(life: &Life, from: StartAt) -> Vec<(EventKind, String)> {
    let told = taken(&mut subscribe(life, Selection::default(), from));
    told.into_iter().map(|(kind, name, _)| (kind, name)).collect()
}

/// The token of an event.
fn event(version: u64) -> StartAt {
    StartAt::Token([("pods".to_owned(), ResourceVersion::from(version))].into_iter().collect())
}

/// The token of a bookmark.
fn bookmark(version: u64) -> StartAt {
    StartAt::Bookmark([("pods".to_owned(), ResourceVersion::from(version))].into_iter().collect())
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_token_gives_deletions_of_objects_created_after_it() {
    // Found by the simulation, seed 28.
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    let mut life = Life::new(&upstream);
    let token = upstream.version;
    upstream.put("z", true);
    upstream.delete("z");
    // More changes than the journal holds.
    (0..5).for_each(|_| upstream.put("a", true));
    life.watch(&upstream, usize::MAX);
    assert!(first_events(&life, bookmark(token)).contains(&(EventKind::Deleted, "z".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_token_within_a_relist_gap_starts_over() {
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    let mut life = Life::new(&upstream);
    let token = upstream.version;
    // Another replica may have sent an object that was created and deleted in the gap.
    let list = |version: u64| {
        let item = Delta::PassItem(object("a", 1, 1, true));
        vec![Delta::PassBegin, item, Delta::PassEnd(version.into())]
    };
    let mut subscriber = subscribe(&life, Selection::default(), bookmark(token));
    let first = |subscriber: &mut Subscriber| match subscriber.next().now_or_never() {
        Some(Delivery::Events(events)) => events[0].kind,
        other => panic!("{other:?}"),
    };
    assert_eq!(first(&mut subscriber), EventKind::Bookmark);
    life.writer.commit(list(9));
    assert_eq!(first_events(&life, bookmark(token))[0].0, EventKind::Reset);
    assert_eq!(first_events(&life, bookmark(9))[0].0, EventKind::Bookmark);
    assert_eq!(
        first(&mut subscriber),
        EventKind::Reset,
        "the client may hold an object that the relist skipped"
    );
    life.writer.commit(list(12));
    assert_eq!(first(&mut subscriber), EventKind::Added, "the rest of its snapshot");
}

/// A list of these objects at a version.
fn list(version: u64, items: impl IntoIterator<Item = Object>) -> Vec<Delta> {
    let items = items.into_iter().map(Delta::PassItem);
    [Delta::PassBegin].into_iter().chain(items).chain([Delta::PassEnd(version.into())]).collect()
}

/// All events that are ready: kinds, names and positions.
fn taken(subscriber: &mut Subscriber) -> Vec<(EventKind, String, Resumable)> {
    let mut all = Vec::new();
    while let Some(events) = ready(subscriber) {
        all.extend(events.into_iter().map(|event| {
            let name = event.payload.key().map(|key| key.name().to_owned()).unwrap_or_default();
            (event.kind, name, event.position)
        }));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_cut_off_within_a_relists_changes_starts_over() {
    // Found by the simulation: changes of a relist are not in commit order. An object that is sent later may have
    // changed or stopped matching before. A replica asked to resume from the middle would not send that.
    let mut upstream = Upstream::default();
    (0..4).for_each(|number| upstream.put(&format!("x{number}"), true));
    let selecting = Selection::new(
        Vec::new(),
        None,
        &LabelSelector::parse("app=true").expect("a selector"),
        &FieldSelector::parse("").expect("a selector"),
    );
    for selection in [Selection::default(), selecting] {
        let mut life = Life::new(&upstream);
        let mut subscriber = subscribe(&life, selection, event(4));
        assert_eq!(taken(&mut subscriber), [(EventKind::Bookmark, String::new(), 4.into())]);
        let now = [("x0", 8, true), ("x1", 9, true), ("x2", 10, true), ("x3", 4, true)];
        life.writer.commit(list(
            12,
            now.map(|(name, version, app)| {
                object(name, 1 + name[1..].parse::<u64>().expect("a number"), version, app)
            }),
        ));
        let modified = |name: &str, position: u64| (EventKind::Modified, name.to_owned(), position.into());
        let expected = [modified("x0", 0), modified("x1", 0), modified("x2", 12)];
        assert_eq!(taken(&mut subscriber), expected, "the last event does not have the final position");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_follows_a_relist_whose_last_changes_do_not_concern_the_client() {
    let mut upstream = Upstream::default();
    (0..3).for_each(|number| upstream.put(&format!("x{number}"), number == 0));
    let mut life = Life::new(&upstream);
    let labels = LabelSelector::parse("app=true").expect("a selector");
    let selection = Selection::new(Vec::new(), None, &labels, &FieldSelector::default());
    let mut subscriber = subscribe(&life, selection, event(3));
    assert_eq!(taken(&mut subscriber), [(EventKind::Bookmark, String::new(), 3.into())]);
    (0..3).for_each(|number| upstream.put(&format!("x{number}"), number == 0));
    life.relist(&upstream);
    let expected =
        [(EventKind::Modified, "x0".to_owned(), 0.into()), (EventKind::Bookmark, String::new(), 6.into())];
    assert_eq!(taken(&mut subscriber), expected, "a client that is cut off now would start over");
}

/// A second informer in the same hub.
fn second(life: &Life) -> cache::Writer {
    let (writer, reader) = cache::cache(LIMITS, Instant::now());
    let parts = ResourceParts {
        version: "v1".into(),
        plural: "nodes".into(),
        kind: "Node".into(),
        ..Default::default()
    };
    life.hub.add(Informer::new(InformerSpec::new(Resource::new(parts), Scope::All), reader));
    writer
}

#[tokio::test(start_paused = true)]
async fn a_client_that_starts_over_waits_for_every_cache_to_reach_its_token() {
    // Found by the simulation, seed 18: one part of the token was too old for its cache, and the other ahead of its
    // cache.
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    let life = Life::new(&upstream);
    let mut writer = second(&life);
    writer.commit(list(20, []));
    let subscribe = || {
        let token = [("pods".to_owned(), ResourceVersion::from(9)), ("nodes".to_owned(), 3.into())];
        subscribe(&life, Selection::default(), StartAt::Token(token.into_iter().collect()))
    };
    let mut waits = subscribe();
    assert_eq!(taken(&mut waits), [], "sent although the pods are behind the token");
    let reason = |delivery: Delivery| {
        let Payload::Mark { reason, .. } = delivery.events()[0].payload else { panic!("{delivery:?}") };
        reason
    };
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(reason(waits.next().await), Some(ResetReason::TokenAhead), "the reason of the RESET");
    let mut waits = subscribe();
    assert_eq!(taken(&mut waits), []);
    let mut life = life;
    life.writer.commit(vec![Delta::Bookmark(9.into())]);
    assert_eq!(reason(waits.next().await), Some(ResetReason::TokenTooOld));
}

#[tokio::test(start_paused = true)]
async fn a_client_ahead_of_an_idle_cache_is_served_once_upstream_confirms_its_version() {
    let mut upstream = Upstream::default();
    ["a", "b"].iter().for_each(|name| upstream.put(name, true));
    let mut life = Life::new(&upstream);
    let tokens = [event(4), bookmark(4)];
    let bookmark = |version: u64| (EventKind::Bookmark, String::new(), version.into());
    for from in tokens {
        let mut life = Life::new(&upstream);
        let mut subscriber = subscribe(&life, Selection::default(), from);
        assert_eq!(taken(&mut subscriber), [], "served although the token may belong to another history");
        assert!(life.tell_head(Some(&3.into())));
        assert_eq!(taken(&mut subscriber), [], "served although the API server is behind the token");
        assert!(life.tell_head(None), "asked again");
        assert_eq!(taken(&mut subscriber), []);
        assert!(life.tell_head(Some(&9.into())));
        assert_eq!(taken(&mut subscriber), [bookmark(4)], "not the position of the token");
        tokio::time::advance(Duration::from_secs(61)).await;
        assert_eq!(taken(&mut subscriber), [bookmark(4)]);
        let at = |version| object("a", 1, version, true);
        life.writer.commit(vec![Delta::Apply(at(3)), Delta::Apply(at(4))]);
        assert_eq!(taken(&mut subscriber), [], "a change that the client already has");
        life.writer.commit(vec![Delta::Apply(at(5))]);
        assert_eq!(taken(&mut subscriber), [(EventKind::Modified, "a".to_owned(), 5.into())]);
    }
    // An answer for one history does not count for the next.
    let mut waits = subscribe(&life, Selection::default(), event(4));
    assert_eq!(taken(&mut waits), []);
    assert!(life.tell_head(Some(&9.into())));
    assert_eq!(taken(&mut waits), [bookmark(4)]);
    assert_eq!(taken(&mut subscribe(&life, Selection::default(), event(9))), [bookmark(9)], "known already");
    life.writer.commit(list(1, []));
    let reset = taken(&mut waits);
    assert_eq!(reset[0].0, EventKind::Reset, "{reset:?}");
    let mut other = subscribe(&life, Selection::default(), event(8));
    assert_eq!(taken(&mut other), []);
    assert!(life.tell_head(Some(&7.into())), "asked anew");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_waits_while_the_versions_go_back_starts_over() {
    // Found by the simulation, seed 443742: the restored cluster reached the token's version while the client waited.
    let mut upstream = Upstream::default();
    ["a", "b"].iter().for_each(|name| upstream.put(name, true));
    let version = ResourceVersion::from(4);
    let bookmark = StartAt::Bookmark([("pods".to_owned(), version.clone())].into_iter().collect());
    for from in [event(4), bookmark] {
        let mut life = Life::new(&upstream);
        let mut subscriber = subscribe(&life, Selection::default(), from);
        assert_eq!(taken(&mut subscriber), [], "served although the cache is behind the token");
        life.writer.commit(list(1, []));
        let at = |version| object("a", 1, version, true);
        life.writer.commit(vec![Delta::Apply(at(3)), Delta::Apply(at(5))]);
        let first = subscriber.next().now_or_never().expect("it starts").events().remove(0);
        let Payload::Mark { reason, .. } = first.payload else { panic!("{first:?}") };
        assert_eq!((first.kind, reason), (EventKind::Reset, Some(ResetReason::HistoryLost)));
    }
}

/// A client whose token is that of the pods, and of a version of the nodes that the API server has confirmed and the cache has not reached.
fn ahead_of_nodes(upstream: &Upstream, resync: Option<Duration>) -> (Life, cache::Writer, Subscriber) {
    let life = Life::new(upstream);
    let mut nodes = second(&life);
    nodes.commit(list(20, []));
    let token =
        [("pods".to_owned(), upstream.version.into()), ("nodes".to_owned(), ResourceVersion::from(30))];
    let (informers, from) = (life.hub.informers(), StartAt::Token(token.into_iter().collect()));
    let selection = Selection::default();
    let subscription = Subscription { informers, selection, join: None, from, resync, timeout: None };
    let mut subscriber = life.hub.subscribe(subscription).unwrap();
    assert_eq!(taken(&mut subscriber), []);
    let head = nodes.version_requests();
    head.answer(head.next().expect("asked"), Some(30.into()));
    assert_eq!(taken(&mut subscriber).len(), 1);
    (life, nodes, subscriber)
}

#[tokio::test(start_paused = true)]
async fn a_client_ahead_of_one_cache_gets_changes_of_the_others_meanwhile() {
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    let (mut life, mut writer, mut subscriber) = ahead_of_nodes(&upstream, None);
    upstream.put("b", true);
    life.watch(&upstream, 1);
    assert_eq!(taken(&mut subscriber), [(EventKind::Added, "b".to_owned(), 2.into())]);
    writer.commit(vec![Delta::Bookmark(31.into())]);
    tokio::time::advance(Duration::from_secs(61)).await;
    let told = subscriber.next().now_or_never().expect("a bookmark").events();
    let Payload::Mark { positions, .. } = &told[0].payload else { panic!("{told:?}") };
    assert_eq!(positions[..], [2.into(), 31.into()]);
}

#[tokio::test(start_paused = true)]
async fn a_client_ahead_of_one_cache_that_starts_over_does_not_go_back() {
    // Found by the simulation, seed 800187.
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    for (is_lost_at_once, gets_there) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut life = Life::new(&upstream);
        let mut nodes = second(&life);
        nodes.commit(list(20, []));
        let token = [("pods".to_owned(), ResourceVersion::from(1)), ("nodes".to_owned(), 30.into())];
        let from = StartAt::Token(token.into_iter().collect());
        let lose = |life: &mut Life| {
            life.writer.commit(vec![Delta::OtherHistory]);
            life.writer.commit(list(9, []));
        };
        if is_lost_at_once {
            lose(&mut life);
        }
        let mut subscriber = subscribe(&life, Selection::default(), from);
        assert_eq!(taken(&mut subscriber), []);
        let head = nodes.version_requests();
        head.answer(head.next().expect("asked"), Some(30.into()));
        if !is_lost_at_once {
            assert_eq!(taken(&mut subscriber).len(), 1);
            lose(&mut life);
        }
        assert_eq!(taken(&mut subscriber), [], "nodes went back");
        nodes.commit(vec![Delta::Bookmark(29.into())]);
        assert_eq!(taken(&mut subscriber), []);
        if gets_there {
            nodes.commit(vec![Delta::Bookmark(30.into())]);
        } else {
            // Found by the simulation, seed 900288: there may be no further event for a long time.
            tokio::time::advance(Duration::from_secs(11)).await;
        }
        let Payload::Mark { reason, .. } = subscriber.next().await.events()[0].payload.clone() else {
            panic!("not a RESET")
        };
        let expected = match (gets_there, is_lost_at_once) {
            (true, true) => ResetReason::TokenTooOld,
            (true, false) => ResetReason::HistoryLost,
            (false, _) => ResetReason::TokenAhead,
        };
        assert_eq!(reason, Some(expected));
    }
}

/// Time passes by itself only while everything waits: a stream that spins never ends this test.
#[tokio::test(start_paused = true)]
async fn a_client_that_waits_to_start_over_waits_for_no_resync() {
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    let (mut life, _nodes, mut subscriber) = ahead_of_nodes(&upstream, Some(Duration::from_secs(1)));
    life.writer.commit(vec![Delta::OtherHistory]);
    life.writer.commit(list(9, []));
    let began = Instant::now();
    while subscriber.next().await.events().first().is_none_or(|event| event.kind != EventKind::Reset) {}
    assert_eq!(began.elapsed(), life.hub.config().resume_wait);
}

#[tokio::test(start_paused = true)]
async fn a_token_of_a_cache_with_another_selection_starts_over() {
    let selecting = |label_selector: &str| {
        let mut upstream = Upstream::default();
        upstream.put("a", true);
        let mut spec = InformerSpec::new(super::pods(), Scope::All);
        spec.content.label_selector = label_selector.to_owned();
        Life::with(spec, &upstream)
    };
    let [all, web, same] = ["", "app=web", "app=web"].map(selecting);
    let name = web.hub.informers()[0].spec.token_name();
    assert!(name.starts_with("pods_") && name.len() == 13, "{name}");
    let token = || StartAt::Token([(name.clone(), ResourceVersion::from(1))].into_iter().collect());
    assert_eq!(
        first_events(&same, token())[0].0,
        EventKind::Bookmark,
        "the digest depends on more than the contents"
    );
    assert_eq!(first_events(&all, token())[0].0, EventKind::Reset);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_cut_off_within_a_catch_up_starts_over() {
    // Found by the simulation, seed 212202: `b` changed twice and is sent last. On a replica with the first change
    // only, a client that was cut off before `b` got a bookmark and lacked both changes.
    let mut upstream = Upstream::default();
    ["a", "b"].iter().for_each(|name| upstream.put(name, true));
    let mut life = Life::new(&upstream);
    ["b", "c", "d", "e", "b"].iter().for_each(|name| upstream.put(name, true));
    life.watch(&upstream, usize::MAX);
    let mut subscriber = subscribe(&life, Selection::default(), event(2));
    let positions: Vec<_> =
        taken(&mut subscriber).into_iter().map(|(_, name, position)| (name, position)).collect();
    let at = |name: &str, position: u64| (name.to_owned(), position.into());
    assert_eq!(positions, [at("c", 0), at("d", 0), at("e", 0), at("b", 7), at("", 7)]);
}

#[tokio::test(start_paused = true)]
async fn shared_batches_are_dropped_with_the_last_subscriber() {
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    let mut life = Life::new(&upstream);
    let [mut first, mut second] = [0, 1].map(|_| subscribe(&life, Selection::default(), event(1)));
    [&mut first, &mut second].into_iter().for_each(|subscriber| drop(taken(subscriber)));
    upstream.put("b", true);
    life.watch(&upstream, 1);
    let run = |subscriber: &mut Subscriber| match subscriber.next().now_or_never() {
        Some(Delivery::Shared(mut runs)) => runs.remove(0),
        other => panic!("{other:?}"),
    };
    let (one, other) = (run(&mut first), run(&mut second));
    assert!(Arc::ptr_eq(&one, &other), "made once");
    let kept = Arc::downgrade(&one);
    drop((one, other, first));
    assert!(kept.upgrade().is_some());
    drop(second);
    assert!(kept.upgrade().is_none());
}
