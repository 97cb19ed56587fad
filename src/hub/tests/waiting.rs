//! What a subscriber waits for. Time passes by itself only while everything waits, so one that spins never ends these tests.

use super::*;
use crate::k8s::Links;

fn subscription(life: &Life, selection: Selection, from: StartAt) -> Subscription {
    Subscription { informers: life.hub.informers(), selection, join: None, from, resync: None, timeout: None }
}

/// The kinds of the next events; none for a heartbeat.
async fn kinds(subscriber: &mut Subscriber) -> Vec<EventKind> {
    match subscriber.next().await {
        Delivery::Heartbeat => Vec::new(),
        delivery @ (Delivery::Events(_) | Delivery::Shared(_)) => {
            delivery.events().iter().map(|event| event.kind).collect()
        }
        other @ (Delivery::Replaced { .. } | Delivery::Closed(_)) => panic!("{other:?}"),
    }
}

fn one_pod() -> Upstream {
    let mut upstream = Upstream::default();
    upstream.put("a", true);
    upstream
}

#[tokio::test(start_paused = true)]
async fn a_join_waits_for_a_related_cache_that_is_incomplete() {
    let life = Life::new(&one_pod());
    let (_writer, reader) = cache::cache(LIMITS, Instant::now());
    let parts = ResourceParts { plural: "secrets".into(), version: "v1".into(), ..Default::default() };
    let secrets = Informer::new(InformerSpec::new(Resource::new(parts), Scope::All), reader);
    let related = RelatedInformer { informer: Arc::new(secrets), linked: false, owners: true };
    let join = Arc::new(Join::new(&life.hub.informers(), vec![related], &Links::default()).unwrap());
    let asked = subscription(&life, Selection::default(), StartAt::Start);
    let mut subscriber = life.hub.subscribe(Subscription { join: Some(join), ..asked }).unwrap();
    // Longer than it waits for a token.
    for _ in 0..3 {
        assert_eq!(kinds(&mut subscriber).await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_resync_waits_for_the_end_of_what_is_gathered() {
    let life = Life::new(&one_pod());
    let mut selection = Selection::default();
    selection.form.coalesce = Some(Duration::from_secs(40));
    let asked = subscription(&life, selection, StartAt::Start);
    let resync = Some(Duration::from_secs(1));
    let mut subscriber = life.hub.subscribe(Subscription { resync, ..asked }).unwrap();
    assert_eq!(kinds(&mut subscriber).await, [EventKind::Added, EventKind::Synced]);
    let begun = Instant::now();
    assert_eq!(kinds(&mut subscriber).await, []);
    assert_eq!(kinds(&mut subscriber).await, []);
    assert_eq!(kinds(&mut subscriber).await[0], EventKind::Modified);
    assert_eq!(begun.elapsed(), Duration::from_secs(40));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_begins_without_objects_gets_no_patches() {
    let mut life = Life::new(&one_pod());
    let mut selection = Selection::default();
    selection.form.patch = true;
    let mut subscriber = life.hub.subscribe(subscription(&life, selection, StartAt::Now)).unwrap();
    while ready(&mut subscriber).is_some() {}
    life.writer.commit(vec![Delta::Apply(object("a", 1, 2, false))]);
    assert_eq!(kinds(&mut subscriber).await[0], EventKind::Modified);
}

#[tokio::test(start_paused = true)]
async fn a_stream_with_a_costly_condition_has_a_task_of_its_own() {
    for (depth, is_live) in [(0, true), (3, false)] {
        let life = Life::new(&one_pod());
        let selection = Selection::default().with_condition(Some(looping(depth)));
        let mut subscriber = life.hub.subscribe(subscription(&life, selection, StartAt::Start)).unwrap();
        assert_eq!(kinds(&mut subscriber).await, [EventKind::Added, EventKind::Synced]);
        assert!(ready(&mut subscriber).is_none());
        assert_eq!(subscriber.live_place().is_some(), is_live, "{depth}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_catch_up_of_one_event_is_known_to_have_passed_over_others() {
    let mut life = Life::new(&one_pod());
    let asked = subscription(&life, Selection::default(), StartAt::Start);
    let mut subscriber = life.hub.subscribe(asked).unwrap();
    while ready(&mut subscriber).is_some() {}
    // The journal holds all of it.
    life.writer.commit(vec![Delta::Apply(object("a", 1, 2, false))]);
    while ready(&mut subscriber).is_some() {}
    assert!(!subscriber.take_passed_over());
    // It holds the last four changes only. One object came and went.
    life.writer.commit(vec![Delta::Apply(object("b", 2, 3, true)), Delta::Delete(object("b", 2, 4, true))]);
    life.writer.commit((5..10).map(|version| Delta::Apply(object("a", 1, version, true))).collect());
    let events = ready(&mut subscriber).unwrap();
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].kind, &events[0].position, events[0].is_amid),
        (EventKind::Modified, &9.into(), false)
    );
    assert!(subscriber.take_passed_over() && !subscriber.take_passed_over());
}
