//! An idle kind: how many requests it costs the API server, and how old its version gets.

use std::io::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use informerd::testing::reflect::InitialList;
use informerd::testing::sim::{ApiHandler, ApiServerConfig, Cluster, StreamingLists};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::dice::Dice;
use crate::meter::Ask;
use crate::network::{Api, Link, Weather};
use crate::plan::Profile;
use crate::replica::Replica;
use crate::trace::Trace;
use crate::truth::RESOURCES;

/// Duration of a run.
const HOURS: u32 = 4;

/// Interval of the writes to the other kind.
const WRITE_INTERVAL: Duration = Duration::from_secs(2);

/// Largest number of requests an hour for an idle kind, if the API server's bookmarks are rarer than `silence_max`.
const REQUESTS_PER_HOUR_MAX: u64 = 165;

/// The same if bookmarks are more frequent.
const REQUESTS_PER_HOUR_LIVELY_MAX: u64 = 20;

/// Largest age of the version of an idle kind: `silence_max`.
const VERSION_AGE_MAX: Duration = Duration::from_secs(30);

/// Longest silence of a pinged watch.
const PINGED_SILENCE_SECONDS: u64 = 90;

/// Seconds between bookmarks, longest silence of a watch in seconds, and whether its connection is pinged.
const RHYTHMS: [(u64, u64, bool); 7] = [
    (60, 30, false),
    (60, 30, true),
    (1000, 30, false),
    (1000, 30, true),
    (60, 75, false),
    (20, 30, false),
    (20, 30, true),
];

/// The result of a run.
struct Quiet {
    requests_per_hour: u64,
    version_age_max: Duration,
}

pub(crate) fn check() {
    for streaming in [StreamingLists::On, StreamingLists::Unknown] {
        for (bookmark_seconds, silence_seconds, is_pinged) in RHYTHMS {
            let quiet = live(bookmark_seconds, silence_seconds, is_pinged, streaming);
            let Quiet { requests_per_hour, version_age_max } = quiet;
            let path = if is_pinged { "pinged" } else { "not pinged" };
            let what =
                format!("bookmarks each {bookmark_seconds} s, silence_max {silence_seconds} s, {path}");
            let silence_seconds = if is_pinged { PINGED_SILENCE_SECONDS } else { silence_seconds };
            let told =
                format!("{requests_per_hour} requests an hour, version {version_age_max:?} old at most");
            let _ = writeln!(std::io::stderr(), "{what}: {told}");
            let is_lively = bookmark_seconds < silence_seconds;
            let most = if is_lively { REQUESTS_PER_HOUR_LIVELY_MAX } else { REQUESTS_PER_HOUR_MAX };
            assert!(requests_per_hour <= most, "{what}: {requests_per_hour} requests an hour");
            let oldest = VERSION_AGE_MAX.max(Duration::from_secs(silence_seconds)) + WRITE_INTERVAL;
            assert!(version_age_max <= oldest, "{what}: {version_age_max:?}");
        }
    }
}

fn live(bookmark_seconds: u64, silence_seconds: u64, is_pinged: bool, streaming: StreamingLists) -> Quiet {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut profile = Profile::roll(&mut Dice::new(1, 1));
        profile.machine.initial_list = InitialList::Auto;
        profile.machine.silence_max = Duration::from_secs(silence_seconds);
        let cluster = Cluster::default();
        let bookmark_interval = Duration::from_secs(bookmark_seconds);
        let config = ApiServerConfig { bookmark_interval, ..Default::default() };
        let current = ApiHandler::new(cluster.clone(), config);
        current.faults().streaming_lists(streaming);
        let api = Arc::new(Mutex::new(Api { current, behind: None }));
        let link = Link::new(0, [2, 3].map(|which| Dice::new(1, which)), api, Arc::default(), Trace::off());
        link.set_weather(Weather { pinged_chance: f64::from(u8::from(is_pinged)), ..Weather::default() });
        let replica = Replica::start(0, 1, &profile, &link, &Arc::new(Notify::new()), [true; 2]);
        write(&cluster);
        // The first watch, of the streaming list, finds out that the kind is idle.
        sleep(Duration::from_secs(120)).await;
        let asked = |link: &Link| {
            let asks = [Ask::List, Ask::Page, Ask::Stream, Ask::Watch, Ask::Probe, Ask::Head, Ask::Backfill];
            link.meter(1, |meter| asks.map(|ask| meter.count(ask)).iter().sum::<u64>())
        };
        let (began, before) = (Instant::now(), asked(&link));
        let (mut position, mut moved, mut version_age_max) = (0, Instant::now(), Duration::ZERO);
        while began.elapsed() < HOURS * Duration::from_secs(3600) {
            sleep(WRITE_INTERVAL).await;
            write(&cluster);
            if replica.position(1) > position {
                (position, moved) = (replica.position(1), Instant::now());
            }
            version_age_max = version_age_max.max(moved.elapsed());
        }
        let requests_per_hour = (asked(&link) - before) / u64::from(HOURS);
        Quiet { requests_per_hour, version_age_max }
    })
}

fn write(cluster: &Cluster) {
    let object = json!({"metadata": {"namespace": "a", "name": format!("at-{}", cluster.revision())}});
    cluster.create(RESOURCES[0], object).expect("the name is new");
}
