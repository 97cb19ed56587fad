//! The decisions that a seed makes at the start of a history.

use std::sync::Arc;
use std::time::Duration;

use informerd::testing::cache;
use informerd::testing::hub::{self, Form, Selection};
use informerd::testing::k8s::{Condition, FieldMask, FieldSelector, LabelSelector};
use informerd::testing::reflect::{InitialList, MachineConfig};
use informerd::testing::sim::StreamingLists;

use crate::dice::Dice;
use crate::fault::Fault;
use crate::network::Weather;
use crate::replica::hub_config;
use crate::truth::{Shows, Test, Wanted};

/// Names of objects, and their namespaces. The key prefix `b-c/` sorts before `b/`.
pub(crate) const NAMES: [&str; 5] = ["x0", "x1", "x2", "x3", "x4"];
pub(crate) const NAMESPACES: [&str; 3] = ["a", "b", "b-c"];

const REQUEST_FAULTS: [Fault; 13] = [
    Fault::Refused,
    Fault::Hung,
    Fault::Delayed,
    Fault::Unauthorized,
    Fault::Forbidden,
    Fault::NotFound,
    Fault::WatchGoneHttp,
    Fault::Throttled,
    Fault::Unavailable,
    Fault::InternalError,
    Fault::BadGateway,
    Fault::GarbageAnswer,
    Fault::TokenExpired,
];

const BODY_FAULTS: [Fault; 8] = [
    Fault::CutClean,
    Fault::CutMidLine,
    Fault::CutReset,
    Fault::Stalled,
    Fault::Paused,
    Fault::ListCutShort,
    Fault::ListReset,
    Fault::ListStalled,
];

const LINE_FAULTS: [Fault; 9] = [
    Fault::WatchGoneInStream,
    Fault::ErrorInStream,
    Fault::GarbageLine,
    Fault::EndlessLine,
    Fault::NoMetadata,
    Fault::UnknownType,
    Fault::Duplicate,
    Fault::Replayed,
    Fault::BookmarkDropped,
];

/// Faults that the driver plays on all open connections.
pub(crate) const ORDERED: [Fault; 5] =
    [Fault::CutClean, Fault::CutMidLine, Fault::CutReset, Fault::Stalled, Fault::Paused];

/// The properties of a history.
#[derive(Clone)]
pub(crate) struct Profile {
    /// Whether only clients and replicas have faults.
    pub(crate) calm: bool,
    pub(crate) steps: usize,
    pub(crate) clients: usize,
    pub(crate) machine: MachineConfig,
    pub(crate) cache: cache::Config,
    pub(crate) hub: hub::Config,
    pub(crate) streaming: StreamingLists,
    pub(crate) window_events_max: usize,
    /// Seconds between bookmarks of the API server.
    pub(crate) bookmark_seconds: u64,
    /// Probability that a write makes an object too large to be held.
    pub(crate) oversized_chance: f64,
    /// Whether nothing is ever written to the second resource.
    pub(crate) idle: bool,
    /// Whether graphs have links by selector. Without, nothing but the objects that links name tells that they changed.
    pub(crate) graph_selects: bool,
    /// Probability that a watch uses a pinged connection.
    pub(crate) pinged_chance: f64,
    pub(crate) chunk_bytes_max: usize,
    pub(crate) latency_ms_max: u64,
    /// Whether the cluster has faults, too: restarts, compaction, removed definitions, backups.
    pub(crate) cluster_faults: bool,
    requests: Vec<Fault>,
    bodies: Vec<Fault>,
    lines: Vec<Fault>,
}

/// What a client keeps in order to resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// Nothing: it always starts over.
    Nothing,
    /// The token of the last event, like an EventSource.
    Event,
    /// The token of the last bookmark, like a reader of NDJSON.
    Bookmark,
}

/// How a client reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Everything at once.
    Fast,
    /// A number of events at a time, with a pause between, in milliseconds.
    Slow { events: usize, pause_ms: u64 },
}

/// The properties of a client.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    pub(crate) sources: Vec<usize>,
    pub(crate) wanted: Wanted,
    pub(crate) keeps: Keeps,
    pub(crate) pace: Pace,
    /// Whether it begins with later changes only.
    pub(crate) from_now: bool,
}

impl Profile {
    pub(crate) fn roll(dice: &mut Dice) -> Self {
        let calm = dice.chance(0.08);
        let journal_len_max = dice.weighted(&[(4, 2), (8, 3), (16, 3), (64, 2), (1000, 2)]);
        let cache = cache::Config {
            journal_len_max,
            journal_bytes_max: 1 << 20,
            tombstones_len_max: journal_len_max * dice.pick(&[1, 2, 20]),
        };
        let batch = dice.pick(&[1, 2, 3, 8, 256]);
        let streaming = dice.weighted(&[
            (StreamingLists::On, 6),
            (StreamingLists::Unknown, 2),
            (StreamingLists::Disabled, 1),
            (StreamingLists::NoProgress, 1),
            (StreamingLists::Ignored, 1),
        ]);
        let chunk_bytes_max = dice.weighted(&[(0, 3), (30, 1), (300, 2), (2000, 2)]);
        let latency_ms_max = if calm { 0 } else { dice.weighted(&[(0, 4), (50, 2), (800, 2), (4000, 1)]) };
        let mut some = |of: &[Fault]| -> Vec<Fault> {
            let share = dice.pick(&[0.0, 0.2, 0.5, 1.0]);
            of.iter().copied().filter(|_| dice.chance(share)).collect()
        };
        let (requests, bodies, lines) = (some(&REQUEST_FAULTS), some(&BODY_FAULTS), some(&LINE_FAULTS));
        Self {
            calm,
            steps: 40 + dice.below(80),
            clients: 12 + dice.below(20),
            machine: MachineConfig {
                page_size: dice.weighted(&[(2, 2), (3, 2), (7, 2), (500, 3)]),
                initial_list: dice.weighted(&[(InitialList::Auto, 8), (InitialList::Page, 2)]),
                silence_max: Duration::from_secs(30),
                pinged_silence_max: Duration::from_secs(90),
            },
            cache,
            hub: hub_config(batch, dice.pick(&[5, 60])),
            streaming,
            window_events_max: if calm { 100_000 } else { dice.weighted(&[(6, 1), (20, 2), (100_000, 4)]) },
            // Faster and slower than every timeout.
            bookmark_seconds: dice.pick(&[1, 7, 20, 29, 35, 60, 100, 280, 1000]),
            oversized_chance: dice.weighted(&[(0.0, 3), (0.05, 1), (0.3, 1)]),
            idle: dice.chance(0.25),
            graph_selects: true,
            pinged_chance: dice.pick(&[0.0, 0.5, 1.0, 1.0]),
            chunk_bytes_max,
            latency_ms_max,
            cluster_faults: !calm && dice.chance(0.6),
            requests,
            bodies,
            lines,
        }
    }

    /// A network with faults.
    pub(crate) fn weather(&self, dice: &mut Dice) -> Weather {
        if self.calm {
            return self.fair();
        }
        Weather {
            requests: self.requests.clone(),
            bodies: self.bodies.clone(),
            lines: self.lines.clone(),
            request_chance: dice.pick(&[0.0, 0.1, 0.3, 0.6]),
            body_chance: dice.pick(&[0.0, 0.2, 0.6]),
            line_chance: dice.pick(&[0.0, 0.02, 0.15]),
            latency_ms_max: self.latency_ms_max,
            stale_lists: self.cluster_faults,
            ..self.fair()
        }
    }

    /// A network without faults. Its chunks are not aligned with lines, either.
    pub(crate) fn fair(&self) -> Weather {
        Weather {
            chunk_bytes_max: self.chunk_bytes_max,
            pinged_chance: self.pinged_chance,
            ..Weather::default()
        }
    }
}

impl Habits {
    pub(crate) fn roll(dice: &mut Dice) -> Self {
        let sources = dice.weighted(&[(&[0][..], 5), (&[1], 2), (&[0, 1], 2), (&[1, 0], 1)]).to_vec();
        let test = |dice: &mut Dice, values: [&'static str; 2]| match dice.below(5) {
            0 | 1 => None,
            2 => Some(Test::Is(dice.pick(&values))),
            3 => Some(Test::IsNot(dice.pick(&values))),
            _ => Some(dice.pick(&[Test::OneOf(values[0], values[1]), Test::Exists])),
        };
        let namespaces =
            dice.weighted(&[(&[][..], 5), (&["a"], 1), (&["b", "b-c"], 1), (&["b"], 1)]).to_vec();
        let name = dice.weighted(&[(None, 8), (Some("x1"), 1)]);
        let app = test(dice, ["web", "db"]);
        let color = test(dice, ["red", "blue"]).filter(|test| matches!(test, Test::Is(_) | Test::IsNot(_)));
        let shows = dice.weighted(&[
            (Shows::Whole, 6),
            (Shows::Patches, 1),
            (Shows::Fields, 1),
            (Shows::Changed, 1),
            (Shows::FieldPatches, 1),
        ]);
        let by_expression = dice.chance(0.2);
        let coalesce_ms = dice.weighted(&[(None, 6), (Some(20), 1), (Some(1000), 1), (Some(7000), 1)]);
        let pace = match dice.below(4) {
            0 | 1 => Pace::Fast,
            _ => Pace::Slow { events: 1 + dice.below(4), pause_ms: dice.pick(&[50, 1000, 7000]) },
        };
        Self {
            sources,
            wanted: Wanted { namespaces, name, app, color, shows, by_expression, coalesce_ms },
            keeps: dice.weighted(&[(Keeps::Event, 5), (Keeps::Bookmark, 3), (Keeps::Nothing, 1)]),
            pace,
            // A patch applies to an object that the client already has.
            from_now: dice.chance(0.1) && !matches!(shows, Shows::Patches | Shows::FieldPatches),
        }
    }

    /// The subscription that it asks for.
    pub(crate) fn selection(&self) -> Selection {
        let wanted = &self.wanted;
        let selection = Selection::new(
            wanted.namespaces.iter().map(|namespace| (*namespace).to_owned()).collect(),
            wanted.name.map(str::to_owned),
            &LabelSelector::parse(&wanted.label_selector()).unwrap(),
            &FieldSelector::parse(&wanted.field_selector()).unwrap(),
        );
        let condition = wanted.expression().map(|expression| Condition::parse(&expression).unwrap());
        let part = || Some(Arc::new(FieldMask::parse("metadata.labels,data.color").unwrap()));
        let form = match wanted.shows {
            Shows::Whole => Form::default(),
            Shows::Patches => Form { patch: true, ..Form::default() },
            Shows::Fields => Form { fields: part(), ..Form::default() },
            Shows::FieldPatches => Form { fields: part(), patch: true, ..Form::default() },
            Shows::Changed => Form { changed: part(), ..Form::default() },
        };
        let form = Form { coalesce: wanted.coalesce_ms.map(Duration::from_millis), ..form };
        selection.with_condition(condition).with_form(form)
    }
}
