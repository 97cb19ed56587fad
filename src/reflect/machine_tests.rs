//! The machine against the conformance cases of the upstream side, as scripts: one input a word group, one
//! answer each. `woke` and `wait` move the clock; entropy is 0 unless told.

use proptest::prelude::*;

use super::*;
use crate::k8s::{DecodeOptions, Decoder, Object, Resource, ResourceParts};

struct Run {
    machine: Machine,
    now: Instant,
    entropy: f64,
    slept: Duration,
    reaction: Reaction,
}

fn object(text: &str) -> Object {
    let (name, version) = text.split_once('@').expect("name@version");
    let resource = Resource::new(ResourceParts { plural: "pods".into(), ..Default::default() });
    let options =
        DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
    let json = format!(r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}}}}"#);
    Decoder::new(resource, options).object(&json).unwrap()
}

fn kind(word: &str) -> FailureKind {
    FailureKind::ALL.into_iter().find(|kind| kind.as_str() == word).expect("a kind of failure")
}

fn show(deltas: &[Delta], step: Option<&Step>) -> String {
    let mut words: Vec<String> = deltas
        .iter()
        .map(|delta| match delta {
            Delta::PassBegin => "begin".into(),
            Delta::PassItem(object) => format!("item {object:?}"),
            Delta::PassEnd(version) => format!("end {version}"),
            Delta::PassAbort => "abort".into(),
            Delta::Apply(object) => format!("put {object:?}"),
            Delta::Delete(object) => format!("del {object:?}"),
            Delta::Bookmark(version) => format!("mark {version}"),
        })
        .collect();
    words.extend(step.map(|step| match step {
        Step::List(PageRequest { limit: 2, continue_token: None }) => "> list".into(),
        Step::List(PageRequest { limit: 2, continue_token: Some(token) }) => format!("> list {token}"),
        Step::List(PageRequest { limit, continue_token }) => {
            format!("> list {} limit {limit}", continue_token.as_deref().unwrap_or("first"))
        }
        Step::Watch { request, .. } => format!("> watch {}", request.resource_version),
        Step::Sleep(delay) => format!("> sleep {}", delay.as_secs_f64()),
    }));
    words.join(" ")
}

impl Run {
    fn new() -> (Self, String) {
        let (now, mut deltas) = (Instant::now(), Vec::new());
        let (machine, step) = Machine::start(2, now, &mut deltas);
        let first = show(&deltas, Some(&step));
        (Self { machine, now, entropy: 0.0, slept: Duration::ZERO, reaction: Reaction::default() }, first)
    }

    fn input(&mut self, text: &str) -> String {
        let mut words = text.split_whitespace();
        let word = words.next().expect("a word");
        let rest: Vec<&str> = words.collect();
        let failure = || Failure {
            kind: kind(rest[0]),
            sentence: format!("it was {}", rest[0]),
            retry_after: rest.get(1).map(|seconds| Duration::from_secs(seconds.parse().unwrap())),
        };
        let input = match word {
            "wait" => {
                self.now += Duration::from_millis(rest[0].parse().unwrap());
                return "-".into();
            }
            "page" => Input::Page(ListPage {
                resource_version: ResourceVersion::new(rest[0]),
                continue_token: rest.iter().find_map(|word| word.strip_prefix('+')).map(str::to_owned),
                objects: rest[1..]
                    .iter()
                    .filter(|word| word.contains('@'))
                    .map(|word| object(word))
                    .collect(),
                skipped: Vec::new(),
            }),
            "fail" => Input::PageFailed(failure()),
            "opened" => Input::WatchOpened,
            "refuse" => Input::WatchRefused(failure()),
            "add" => Input::Event(WatchEvent::Added(object(rest[0]))),
            "mod" => Input::Event(WatchEvent::Modified(object(rest[0]))),
            "del" => Input::Event(WatchEvent::Deleted(object(rest[0]))),
            "mark" => Input::Event(WatchEvent::Bookmark {
                resource_version: ResourceVersion::new(rest[0]),
                initial_events_end: false,
            }),
            "error" => {
                let reason = if rest[0] == "504" { "Timeout" } else { "" };
                let status = Status::failure(rest[0].parse().unwrap(), reason, "said so");
                Input::Event(WatchEvent::Error(status))
            }
            "eof" => Input::WatchEnded(WatchEnd::Eof),
            "rst" => Input::WatchEnded(WatchEnd::Broken(Failure {
                kind: FailureKind::Transport,
                sentence: "reset".into(),
                retry_after: None,
            })),
            "silent" => Input::WatchEnded(WatchEnd::Silent),
            "overdue" => Input::WatchEnded(WatchEnd::Overdue),
            "bad" => Input::WatchEnded(WatchEnd::Undecodable("rubbish".into())),
            "woke" => {
                self.now += self.slept;
                Input::Woke
            }
            other => panic!("unknown word {other}"),
        };
        let mut deltas = Vec::new();
        let moment = Moment { now: self.now, entropy: self.entropy };
        self.reaction = self.machine.on(input, moment, &mut deltas);
        if let Some(Step::Sleep(delay)) = self.reaction.step {
            self.slept = delay;
        }
        let shown = show(&deltas, self.reaction.step.as_ref());
        if shown.is_empty() { "-".into() } else { shown }
    }
}

/// Each line of the script is `input => answer`.
#[track_caller]
fn check(script: &str) -> Run {
    let (mut run, first) = Run::new();
    assert_eq!(first, "begin > list");
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (input, expected) = line.split_once("=>").unwrap_or((line, "-"));
        assert_eq!(run.input(input), expected.trim(), "at {line:?}");
    }
    run
}

const SYNCED: &str = "page 10 a@3 b@4 => item a@3 item b@4 end 10 > watch 10\nopened\nwait 60000\n";

#[track_caller]
fn check_synced(script: &str) -> Run {
    check(&format!("{SYNCED}{script}"))
}

#[test]
fn case_5_pages_are_one_pass_and_the_watch_starts_at_the_lists_version() {
    check(
        "page 10 +t1 a@3 => item a@3 > list t1
         page 10 +t2 b@4 => item b@4 > list t2
         page 10 c@5     => item c@5 end 10 > watch 10",
    );
}

#[test]
fn the_first_pages_version_counts_even_if_a_later_one_says_otherwise() {
    check("page 10 +t1 => > list t1\npage 12 => end 10 > watch 10");
}

#[test]
fn case_6_an_expired_token_starts_the_list_over_and_twice_in_one_piece() {
    let run = check(
        "page 10 +t1 a@3 => item a@3 > list t1
         fail expired    => abort > sleep 1
         woke            => begin > list
         page 20 +t2 a@3 => item a@3 > list t2
         fail expired    => abort > sleep 1
         woke            => begin > list first limit 0
         page 30 a@3     => item a@3 end 30 > watch 30",
    );
    assert_eq!(run.machine.page_limit, 2);
}

#[test]
fn a_page_that_fails_is_asked_for_again_with_the_pass_kept() {
    check(
        "page 10 +t1 a@3  => item a@3 > list t1
         fail transport   => > sleep 0.8
         woke             => > list t1
         fail unavailable => > sleep 1.6
         woke             => > list t1
         page 10 b@4      => item b@4 end 10 > watch 10",
    );
}

#[test]
fn a_page_that_is_refused_starts_the_list_over() {
    check(
        "page 10 +t1 a@3 => item a@3 > list t1
         fail refused    => abort > sleep 0.8
         woke            => begin > list
         fail not_found  => abort > sleep 1.6
         woke            => begin > list
         fail not_found  => abort > sleep 3.2",
    );
}

#[test]
fn a_page_that_is_too_large_is_asked_for_in_smaller_ones() {
    check(
        "fail too_large  => > sleep 0.8
         woke            => > list first limit 1
         fail too_large  => > sleep 1.6
         woke            => > list first limit 1
         page 10 +t a@3  => item a@3 > list t limit 1",
    );
}

#[test]
fn a_repeated_token_does_not_list_for_ever() {
    check("page 10 +t a@3 => item a@3 > list t\npage 10 +t a@3 => abort > sleep 0.8\nwoke => begin > list");
}

#[test]
fn case_7_a_410_in_the_stream_lists_again() {
    let run = check_synced("error 410 => begin > list");
    assert_eq!(
        (run.reaction.relist, run.reaction.ended),
        (Some(RelistReason::Expired), Some(EndReason::Expired))
    );
}

#[test]
fn case_8_a_410_as_http_status_lists_again() {
    let run = check_synced("eof => > watch 10\nrefuse expired => begin > list");
    assert_eq!((run.reaction.relist, run.reaction.ended), (Some(RelistReason::Expired), None));
}

#[test]
fn a_410_after_each_list_lists_ever_more_rarely() {
    let run = check(
        "page 10 => end 10 > watch 10
         refuse expired => > sleep 1
         woke => begin > list
         page 11 => end 11 > watch 11
         refuse expired => > sleep 1
         woke => begin > list
         page 12 => end 12 > watch 12
         opened
         error 410 => > sleep 1.6
         woke => begin > list
         page 13 => end 13 > watch 13
         refuse expired => > sleep 3.2
         woke => begin > list
         page 14 => end 14 > watch 14
         opened
         wait 120000
         error 410 => begin > list",
    );
    assert_eq!(run.machine.relists_lately, 1);
}

#[test]
fn case_9_a_server_that_is_behind_is_asked_again_and_then_listed() {
    let run = check_synced(
        "error 504      => > sleep 0.8
         woke           => > watch 10
         refuse refused => > sleep 1.6
         woke           => > watch 10
         opened
         error 504      => > sleep 3.2
         woke           => > watch 10
         refuse refused => > sleep 6.4
         woke           => > watch 10
         refuse refused => begin > list",
    );
    assert_eq!(run.reaction.relist, Some(RelistReason::Stuck));
}

#[test]
fn case_10_retry_after_is_obeyed() {
    let run = check_synced(
        "eof                  => > watch 10
         refuse throttled 2   => > sleep 2
         woke                 => > watch 10
         refuse unavailable 7 => > sleep 7",
    );
    assert_eq!(run.machine.condition().phase, Phase::BackingOff);
    check("fail throttled 20 => > sleep 20\nwoke => > list");
}

#[test]
fn case_11_an_outage_is_waited_out_without_a_list() {
    let mut script = "rst => > watch 10\n".to_owned();
    for delay in ["0.8", "1.6", "3.2", "6.4", "12.8", "24", "24", "24", "24"] {
        script += &format!("refuse transport => > sleep {delay}\nwoke => > watch 10\n");
    }
    script += "opened\nmod a@11 => put a@11\nrst => > watch 11\nrefuse transport => > sleep 0.8";
    check_synced(&script);
}

#[test]
fn case_12_a_clean_end_resumes_at_once() {
    let mut script = String::new();
    for _ in 0..20 {
        script += "eof => > watch 10\nopened\nwait 10000\n";
    }
    check_synced(&script);
}

#[test]
fn quiet_watches_that_end_soon_are_spaced_by_what_they_lived() {
    check_synced(
        "eof => > watch 10
         opened
         wait 2000
         eof => > watch 10
         opened
         wait 2000
         eof => > sleep 0.8
         woke => > watch 10
         opened
         wait 2000
         eof => > sleep 1.6
         woke => > watch 10
         opened
         wait 2000
         eof => > sleep 2
         woke => > watch 10
         opened
         mod a@11 => put a@11
         wait 2000
         eof => > watch 11",
    );
}

#[test]
fn watches_that_end_at_once_back_off_and_then_list() {
    let run = check_synced(
        "eof => > watch 10
         opened
         eof => > sleep 0.8
         woke => > watch 10
         opened
         rst => > sleep 1.6
         woke => > watch 10
         opened
         eof => > sleep 3.2
         woke => > watch 10
         opened
         eof => > sleep 6.4
         woke => > watch 10
         opened
         eof => > sleep 12.8
         woke => > watch 10
         opened
         eof => begin > list",
    );
    assert_eq!(run.reaction.relist, Some(RelistReason::Stuck));
    assert_eq!(run.machine.condition().phase, Phase::Listing);
}

#[test]
fn watches_that_bring_one_event_each_and_end_do_not_spin() {
    check_synced(
        "eof => > watch 10
         opened
         mark 11 => mark 11
         eof => > watch 11
         opened
         mark 12 => mark 12
         eof => > sleep 0.8
         woke => > watch 12
         opened
         mark 13 => mark 13
         eof => > sleep 0.8",
    );
}

#[test]
fn case_14_a_watch_that_is_forbidden_keeps_the_list_and_says_so() {
    let run = check(
        "page 10 a@3       => item a@3 end 10 > watch 10
         refuse forbidden  => > sleep 0.8
         woke              => > watch 10
         refuse forbidden  => > sleep 1.6",
    );
    let condition = run.machine.condition();
    assert_eq!(condition.message.as_deref(), Some("it was forbidden"));
    assert_eq!(condition.retry_at, Some(run.now + Duration::from_millis(1600)));
}

#[test]
fn case_15_a_bookmark_is_where_the_next_watch_starts() {
    check_synced("mark 150 => mark 150\neof => > watch 150");
}

#[test]
fn cases_17_and_18_duplicates_reach_the_cache_which_drops_them_and_the_version_moves_on() {
    check_synced(
        "mod a@11 => put a@11
         mod a@11 => put a@11
         del x@12 => del x@12
         eof      => > watch 12",
    );
}

#[test]
fn an_older_event_does_not_take_the_version_back() {
    check_synced("mod a@20 => put a@20\nmod b@15 => put b@15\nmark 18 => mark 18\neof => > watch 20");
}

#[test]
fn case_24_versions_of_thirty_digits_are_resumed_from() {
    check(
        "page 123456789012345678901234567890 => end 123456789012345678901234567890 > watch 123456789012345678901234567890
         opened
         mod a@123456789012345678901234567891 => put a@123456789012345678901234567891
         wait 60000
         eof => > watch 123456789012345678901234567891",
    );
}

#[test]
fn versions_that_are_no_numbers_are_taken_as_they_come() {
    check("page abc => end abc > watch abc\nopened\nmod a@xyz => put a@xyz\nwait 60000\neof => > watch xyz");
}

#[test]
fn case_26_a_removed_definition_is_waited_for() {
    check_synced(
        "del a@11         => del a@11
         del b@12         => del b@12
         eof              => > watch 12
         refuse not_found => > sleep 0.8
         woke             => > watch 12
         refuse not_found => > sleep 1.6
         woke             => > watch 12
         opened
         error 410        => begin > list
         page 40          => end 40 > watch 40",
    );
}

#[test]
fn case_27_silence_counts_only_where_bookmarks_come_each_minute() {
    let mut run = check_synced("mark 11 => mark 11\nwait 2000\nmark 12 => mark 12");
    assert_eq!(run.machine.silence_max(), None);
    for line in ["wait 60000", "mark 13", "wait 60000", "mark 13"] {
        run.input(line);
    }
    assert_eq!(run.machine.silence_max(), Some(SILENCE_MAX));
    run.input("wait 180000");
    assert_eq!(run.input("silent"), "> watch 13");
    assert_eq!(run.machine.silence_max(), None);
    run.input("opened");
    run.input("wait 305000");
    assert_eq!(run.input("overdue"), "> watch 13");
}

#[test]
fn a_line_that_cannot_be_read_is_asked_for_again_and_then_gone_around() {
    let run = check_synced(
        "mod a@11 => put a@11
         bad => > watch 11
         opened
         bad => begin > list
         page 13 a@11 => item a@11 end 13 > watch 13
         opened
         bad => > watch 13
         opened
         bad => > sleep 1
         woke => begin > list
         page 14 => end 14 > watch 14
         opened
         bad => > watch 14
         opened
         bad => > sleep 1.6",
    );
    assert_eq!(run.reaction.relist, Some(RelistReason::Undecodable));
}

#[test]
fn unavailable_in_the_stream_never_lists() {
    let mut script = String::new();
    for delay in ["0.8", "1.6", "3.2", "6.4", "12.8", "24", "24"] {
        script += &format!("error 503 => > sleep {delay}\nwoke => > watch 10\nopened\n");
    }
    check_synced(&script);
}

#[test]
fn inputs_that_answer_nothing_change_nothing() {
    check_synced(
        "woke\npage 99 x@9\nfail transport\nrefuse expired\nopened\neof => > watch 10\neof\nmod a@50\nwoke",
    );
}

#[test]
fn timeouts_are_spread_over_a_minute_and_the_deadline_lies_behind() {
    for (entropy, expected) in [(0.0, 240), (0.5, 270), (0.999, 299)] {
        let (mut run, _) = Run::new();
        run.entropy = entropy;
        run.input("page 10");
        let Some(Step::Watch { request, deadline }) = &run.reaction.step else {
            panic!("{:?}", run.reaction)
        };
        assert_eq!(request.timeout.as_secs(), expected);
        assert_eq!(*deadline, request.timeout + WATCH_GRACE);
    }
}

fn any_input() -> impl Strategy<Value = String> {
    let fixed =
        ["opened", "eof", "rst", "silent", "overdue", "bad", "woke", "error 410", "error 500", "error 503"];
    let failures = FailureKind::ALL.map(FailureKind::as_str);
    prop_oneof![
        4 => prop::sample::select(fixed.to_vec()).prop_map(str::to_owned),
        2 => (prop::sample::select(failures.to_vec()), prop::bool::ANY)
            .prop_map(|(kind, page)| format!("{} {kind}", if page { "fail" } else { "refuse" })),
        2 => (1..50u32, prop::option::of(0..3u32)).prop_map(|(version, token)| {
            format!("page {version} {} a@1", token.map(|token| format!("+t{token}")).unwrap_or_default())
        }),
        2 => (1..50u32).prop_map(|version| format!("mod a@{version}")),
        1 => (1..50u32).prop_map(|version| format!("mark {version}")),
        1 => (1..100_000u32).prop_map(|millis| format!("wait {millis}")),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_one_step_is_under_way_and_each_pass_ends(
        inputs in prop::collection::vec(any_input(), 0..200),
        entropy in 0.0..1.0f64,
    ) {
        let (mut run, _) = Run::new();
        run.entropy = entropy;
        let mut step = Step::List(PageRequest { limit: 2, continue_token: None });
        let (mut in_pass, mut watching, mut version) = (true, false, ResourceVersion::ZERO);
        let mut began = run.now;
        for input in inputs {
            let shown = run.input(&input);
            let word = input.split(' ').next().unwrap_or_default();
            let answers = match &step {
                Step::List(_) => ["page", "fail"].contains(&word),
                Step::Watch { .. } if watching => {
                    ["mod", "mark", "error", "eof", "rst", "silent", "overdue", "bad"].contains(&word)
                }
                Step::Watch { .. } => ["opened", "refuse"].contains(&word),
                Step::Sleep(_) => word == "woke",
            };
            // What does not answer the step under way is without effect.
            prop_assert!(answers || shown == "-", "{input} => {shown}");
            for word in shown.split(' ') {
                match word {
                    "begin" => {
                        prop_assert!(!in_pass);
                        in_pass = true;
                        prop_assert!(run.now - began >= Duration::from_millis(800));
                        began = run.now;
                    }
                    "item" => prop_assert!(in_pass),
                    "end" | "abort" => {
                        prop_assert!(in_pass);
                        in_pass = false;
                    }
                    "put" | "mark" => prop_assert!(!in_pass && watching),
                    _ => {}
                }
            }
            if word == "opened" && answers {
                watching = true;
                version = run.machine.version().clone();
            } else if watching {
                // Within a watch the version to resume from never goes back.
                prop_assert!(*run.machine.version() >= version);
                version = run.machine.version().clone();
            }
            match run.reaction.step.take() {
                Some(next) => {
                    step = next;
                    watching = false;
                }
                // Only an open watch goes on without a new step.
                None => prop_assert!(!answers || matches!(step, Step::Watch { .. }), "no step after {input}"),
            }
        }
    }
}
