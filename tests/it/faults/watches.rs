//! Watches that end, break or fall silent, and watches that send wrong events.

use std::time::Duration;

use informerd::testing::sim::{Cut, Failure, Fault, Faults, Gone, Verb};
use tokio::time::{Instant, sleep};

use super::{PATIENCE, Trial, object};
use crate::support::eventually;

/// Orders a fault this many times.
type Order = fn(&Faults, u32);

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_ends_in_any_way_resumes_at_its_version() {
    for (name, cut, reason) in [
        ("cut-clean", Cut::Clean, "eof"),
        ("cut-midline", Cut::MidLine, "eof"),
        ("cut-reset", Cut::Abort, "broken"),
    ] {
        let mut trial = Trial::start(name).await;
        let (before, events) = (trial.costs().await, trial.follower.events);
        let ends = trial.counter("watch_ends_total", &[("reason", reason)]).await;
        trial.faults().cut_watches(&trial.requests(Verb::Watch), cut);
        eventually("the cut", || trial.faults().fired(Fault::Cut) == 1).await;
        let changes = trial.write();
        trial.converges().await;
        trial.is_watching().await;
        assert_eq!(trial.counter("watch_ends_total", &[("reason", reason)]).await, ends + 1, "{name}");
        assert_eq!(trial.costs().await, (before.0, before.1 + 1), "{name}");
        let told = trial.follower.events - events;
        assert!(told >= changes, "{name}: {told} events of {changes} changes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_that_end_at_once_are_not_retried_in_a_tight_loop() {
    let mut trial = Trial::start("cut-always").await;
    let before = trial.costs().await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        trial.faults().cut_watches(&trial.requests(Verb::Watch), Cut::Clean);
        sleep(Duration::from_millis(1)).await;
    }
    trial.shows_error(&["ends each watch soon after it began"]).await;
    let cost = trial.costs().await;
    assert!(cost.1 - before.1 <= 8, "{} watches in 4 s", cost.1 - before.1);
    assert_eq!(cost.0, before.0, "watches that end cost a list");
    trial.write();
    trial.converges().await;
    trial.is_watching().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_410_in_the_stream_or_as_http_status_causes_one_relist() {
    for (name, gone) in [("gone-stream", Gone::InStream), ("gone-http", Gone::Http)] {
        let mut trial = Trial::start(name).await;
        let before = trial.costs().await;
        trial.faults().expire_next_watch(1, &trial.requests(Verb::Watch), gone);
        trial.faults().cut_watches(&trial.requests(Verb::Watch), Cut::Clean);
        eventually("the 410", || trial.faults().fired(Fault::Gone) == 1).await;
        trial.write();
        trial.converges().await;
        trial.is_watching().await;
        assert_eq!(trial.counter("relists_total", &[("reason", "expired")]).await, 1, "{name}");
        assert_eq!(trial.counter("failures_total", &[("kind", "expired")]).await, 1, "{name}");
        let (lists, watches) = trial.costs().await;
        assert_eq!(lists, before.0 + 1, "{name}");
        assert!(watches <= before.1 + 3, "{name}: {watches} watches");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_watch_waits_for_retry_after() {
    for (name, code, words, kind) in [
        ("code-429", 429, "too many requests", "throttled"),
        ("code-503", 503, "the API server answered 503", "unavailable"),
    ] {
        let mut trial = Trial::start(name).await;
        let before = trial.costs().await;
        let failure = Failure { code, retry_after_seconds: Some(3) };
        trial.faults().fail_next(1, &trial.requests(Verb::Watch), failure);
        trial.faults().cut_watches(&trial.requests(Verb::Watch), Cut::Clean);
        eventually("the refusal", || trial.faults().fired(Fault::Failed) == 1).await;
        let refused = Instant::now();
        trial.write();
        let state = trial.shows_error(&[words]).await;
        assert_eq!(state["state"], "backing off", "{name}");
        assert!(state["retryInSeconds"].as_f64().is_some_and(|seconds| seconds <= 3.75), "{name}: {state}");
        eventually("the next watch", || trial.open_watches() > 0).await;
        // The refusal was noticed up to a few milliseconds late.
        assert!(refused.elapsed() >= Duration::from_millis(2900), "{name}: after {:?}", refused.elapsed());
        trial.converges().await;
        trial.is_watching().await;
        assert_eq!(trial.counter("failures_total", &[("kind", kind)]).await, 1, "{name}");
        assert_eq!(trial.costs().await, (before.0, before.1 + 2), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_server_errors_back_off_exponentially() {
    for (name, code, kind) in [("code-500", 500, "internal"), ("code-502", 502, "unavailable")] {
        let mut trial = Trial::start(name).await;
        let before = trial.costs().await;
        let failure = Failure { code, retry_after_seconds: None };
        trial.faults().fail_next(3, &trial.requests(Verb::Watch), failure);
        trial.faults().cut_watches(&trial.requests(Verb::Watch), Cut::Clean);
        let mut refused = Vec::new();
        for times in 1..=3 {
            eventually("a refusal", || trial.faults().fired(Fault::Failed) == times).await;
            refused.push(Instant::now());
        }
        trial.write();
        trial.shows_error(&[&format!("the API server answered {code}")]).await;
        trial.converges().await;
        trial.is_watching().await;
        let pauses: Vec<_> = refused.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(
            pauses[0] >= Duration::from_millis(700) && pauses[1] >= Duration::from_millis(1500),
            "{pauses:?}"
        );
        assert_eq!(trial.counter("failures_total", &[("kind", kind)]).await, 3, "{name}");
        assert_eq!(trial.costs().await, (before.0, before.1 + 4), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undecodable_event_ends_the_watch_and_is_read_again() {
    let orders: [(_, _, _, Order); 3] = [
        ("line-garbage", "json", Fault::Garbage, Faults::garbage_lines),
        ("line-nameless", "missing", Fault::Nameless, Faults::nameless_objects),
        ("line-endless", "", Fault::EndlessLine, Faults::endless_lines),
    ];
    for (name, reason, fault, order) in orders {
        let mut trial = Trial::with(name, |config| config.limits.line_bytes_max = 1 << 20).await;
        let before = trial.costs().await;
        order(trial.faults(), 1);
        trial.write();
        trial.converges().await;
        trial.is_watching().await;
        assert_eq!(trial.faults().fired(fault), 1, "{name}");
        assert_eq!(trial.counter("watch_ends_total", &[("reason", "undecodable")]).await, 1, "{name}");
        if !reason.is_empty() {
            assert_eq!(trial.counter("objects_skipped_total", &[("reason", reason)]).await, 1, "{name}");
        }
        assert_eq!(trial.costs().await, (before.0, before.1 + 1), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_stays_undecodable_causes_a_relist() {
    let mut trial = Trial::with("line-always", |config| config.limits.line_bytes_max = 1 << 20).await;
    let before = trial.costs().await;
    // More faults than it will meet, as a watch that it has closed may still use some.
    trial.faults().garbage_lines(1000);
    trial.write();
    trial.converges().await;
    trial.is_watching().await;
    assert!(trial.faults().fired(Fault::Garbage) >= 2);
    assert_eq!(trial.counter("relists_total", &[("reason", "undecodable")]).await, 1);
    assert_eq!(trial.costs().await.0, before.0 + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicate_and_reordered_events_change_nothing() {
    let orders: [(_, _, Order); 2] = [
        ("twice", Fault::Duplicated, Faults::duplicate_events),
        ("disorder", Fault::Disordered, Faults::disorder_events),
    ];
    for (name, fault, order) in orders {
        let mut trial = Trial::start(name).await;
        let before = trial.costs().await;
        order(trial.faults(), 3);
        trial.write();
        trial.write();
        trial.converges().await;
        trial.is_watching().await;
        assert!(trial.faults().fired(fault) >= 1, "{name}");
        if fault == Fault::Duplicated {
            let duplicates = [("resource", trial.resource.as_str()), ("type", "duplicate")];
            assert_eq!(super::counter(&trial.server, "informerd_cache_changes_total", &duplicates).await, 3);
            assert_eq!(trial.costs().await, before);
        }
        assert!(trial.costs().await.0 <= before.0 + 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_event_does_not_restore_a_deleted_object() {
    let mut trial = Trial::start("ghost").await;
    let before = trial.costs().await;
    trial.faults().ghosts(1);
    trial.server.cluster.delete(&trial.resource, "default", "first-07").unwrap();
    eventually("the ghost", || trial.faults().fired(Fault::Ghost) == 1).await;
    trial.server.cluster.create(&trial.resource, object("after", 1)).unwrap();
    trial.converges().await;
    trial.is_watching().await;
    assert_eq!(trial.counter("relists_total", &[("reason", "disorder")]).await, 1);
    assert_eq!(trial.costs().await.0, before.0 + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_api_server_costs_no_list() {
    let mut trial = Trial::start("away").await;
    let before = trial.costs().await;
    trial.server.api.stop().await;
    trial.write();
    let state = trial.shows_error(&["the API server was not reached", "refused"]).await;
    assert_eq!(state["state"], "backing off");
    trial.server.api.start().await.unwrap();
    let found = Instant::now();
    trial.converges().await;
    assert!(found.elapsed() < PATIENCE);
    trial.is_watching().await;
    assert_eq!(trial.costs().await.0, before.0);
    assert!(trial.counter("failures_total", &[("kind", "transport")]).await >= 1);
}
