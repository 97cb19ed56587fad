//! Runs the machine on conformance cases, written as scripts of `input => answer`. `woke` and `wait` move the clock.
//! Entropy is 0 unless a script sets it.

use proptest::prelude::*;

use super::silence::WATCH_GRACE;
use super::*;
use crate::k8s::{DecodeOptions, Decoder, Key, ListPage, Object, Resource, ResourceParts};
use crate::reflect::watching::Doubt;
use crate::upstream::{AsOf, PageRequest, WatchRequest};

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

fn reset() -> Input {
    let (kind, sentence) = (FailureKind::Transport, "reset".to_owned());
    Input::WatchEnded(WatchEnd::Broken(Failure { kind, sentence, retry_after: None }))
}

fn unheld(text: &str) -> Input {
    let (name, version) = text.split_once('@').expect("name@version");
    Input::Unheld(Key::new("", name), ResourceVersion::new(version))
}

fn kind(word: &str) -> FailureKind {
    FailureKind::ALL.into_iter().find(|kind| kind.as_str() == word).expect("a kind of failure")
}

/// Reads `version held found`: the API server's version, and the version of the newest object in the cache and at the
/// API server. A leading `cached` means that a cache answered.
fn probed(words: &[&str]) -> Probed {
    if words[0] == "cached" {
        return Probed { is_cached: true, ..probed(&words[1..]) };
    }
    let sample = words.get(1).map(|held| SampleObject {
        key: Key::new("web", "a"),
        held: ResourceVersion::new(held),
        found: words.get(2).map(|found| ResourceVersion::new(found)),
    });
    Probed { version: ResourceVersion::new(words[0]), sample, is_cached: false }
}

fn show(deltas: &[Delta], step: Option<&Step>) -> String {
    let mut words: Vec<String> = deltas
        .iter()
        .map(|delta| match delta {
            Delta::PassBegin => "begin".into(),
            Delta::PassItem(object) => format!("item {object:?}"),
            Delta::PassGone(object) => format!("gone {object:?}"),
            Delta::PassEnd(version) => format!("end {version}"),
            Delta::PassDoubted => "doubted".into(),
            Delta::PassAbort => "abort".into(),
            Delta::OtherHistory => "other".into(),
            Delta::Apply(object) => format!("put {object:?}"),
            Delta::Unheld(key, version) => format!("unheld {key}@{version}"),
            Delta::Delete(object) => format!("del {object:?}"),
            Delta::Bookmark(version) => format!("mark {version}"),
        })
        .collect();
    words.extend(step.map(|step| match step {
        Step::List(PageRequest { limit, continue_token, as_of, .. }) => {
            let first = if *limit == 2 { "" } else { " first" };
            let token = continue_token.as_ref().map_or(first.into(), |token| format!(" {token}"));
            let limit = if *limit == 2 { String::new() } else { format!(" limit {limit}") };
            format!("> list{token}{limit}{}", since(as_of))
        }
        Step::Probe(Question::Now) => "> probe".into(),
        Step::Probe(Question::Then) => "> probe then".into(),
        Step::Probe(Question::Exactness) => "> probe exactness".into(),
        Step::Watch { request, .. } => match &request.from {
            WatchFrom::After(version) => format!("> watch {version}"),
            WatchFrom::Everything(as_of) => format!("> stream{}", since(as_of)),
        },
        Step::Sleep(delay) => format!("> sleep {}", delay.as_secs_f64()),
    }));
    words.join(" ")
}

fn since(as_of: &AsOf) -> String {
    match as_of {
        AsOf::Now => String::new(),
        AsOf::AtLeast(version) => format!(" >={version}"),
        AsOf::Exactly(version) => format!(" ={version}"),
    }
}

impl Run {
    fn new(initial_list: InitialList) -> (Self, String) {
        let (now, mut deltas) = (Instant::now(), Vec::new());
        let config = MachineConfig {
            page_size: 2,
            initial_list,
            silence_max: Duration::from_secs(30),
            pinged_silence_max: Duration::from_secs(90),
        };
        let (machine, step) = Machine::start(config, Moment { now, entropy: 0.0 }, &mut deltas);
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
            "probed" => Input::Probed(probed(&rest)),
            "unprobed" => Input::ProbeFailed(failure()),
            "end" => Input::Event(WatchEvent::Bookmark {
                resource_version: ResourceVersion::new(rest[0]),
                initial_events_end: true,
            }),
            "fail" => Input::PageFailed(failure()),
            "opened" => Input::WatchOpened { is_pinged: rest.first() == Some(&"pinged") },
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
                let sentence = if rest[0] == "504" { "Too large resource version: 9" } else { "said so" };
                let status = Status::failure(rest[0].parse().unwrap(), reason, sentence);
                Input::Event(WatchEvent::Error(Box::new(status)))
            }
            "large" => unheld(rest[0]),
            "eof" => Input::WatchEnded(WatchEnd::Eof),
            "rst" => reset(),
            "silent" => Input::WatchEnded(WatchEnd::Silent),
            "overdue" => Input::WatchEnded(WatchEnd::Overdue),
            "disorder" => Input::WatchEnded(WatchEnd::Doubted(Doubt::Disorder)),
            "differs" => Input::WatchEnded(WatchEnd::Doubted(Doubt::Differs)),
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
    let (run, first) = Run::new(InitialList::Page);
    assert_eq!(first, "begin > list");
    follow(run, script)
}

/// As [`check`], beginning with a streaming list.
#[track_caller]
fn check_streaming(script: &str) -> Run {
    let (run, first) = Run::new(InitialList::Auto);
    assert_eq!(first, "begin > stream");
    follow(run, script)
}

#[track_caller]
fn follow(mut run: Run, script: &str) -> Run {
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
fn the_version_of_the_first_page_counts() {
    check("page 10 +t1 => > list t1\npage 12 => end 10 > watch 10");
}

#[test]
fn case_6_an_expired_token_restarts_the_list_and_twice_lists_unpaged() {
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
fn a_failed_page_is_retried_within_the_pass() {
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
    // Also where each time the first page succeeds.
    check(
        "page 10 +t1 a@3 => item a@3 > list t1
         fail refused    => abort > sleep 0.8
         woke            => begin > list
         page 10 +t1 a@3 => item a@3 > list t1
         fail refused    => abort > sleep 1.6
         woke            => begin > list
         page 10 +t1 a@3 => item a@3 > list t1
         fail refused    => abort > sleep 3.2",
    );
}

#[test]
fn a_page_that_is_too_large_is_retried_in_smaller_pages() {
    check(
        "fail too_large  => > sleep 0.8
         woke            => > list first limit 1
         fail too_large  => > sleep 1.6
         woke            => > list first limit 1
         page 10 +t a@3  => item a@3 > list t limit 1",
    );
}

#[test]
fn a_repeated_continue_token_aborts_the_list() {
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
fn repeated_410s_after_lists_back_off() {
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
fn case_9_a_server_that_is_behind_is_retried_and_then_listed() {
    let run = check_synced(
        "error 504      => > sleep 0.8
         woke           => > watch 10
         refuse behind  => > sleep 1.6
         woke           => > watch 10
         opened
         error 504      => > sleep 3.2
         woke           => > watch 10
         refuse refused => > sleep 6.4
         woke           => > watch 10
         refuse behind  => begin > list",
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
    let mut script = "rst => > probe\n".to_owned();
    for delay in ["0.8", "1.6", "3.2", "6.4", "12.8", "24", "24", "24", "24"] {
        script += &format!("unprobed transport => > sleep {delay}\nwoke => > probe\n");
    }
    script +=
        "probed 12 => > watch 10\nopened\nmod a@11 => put a@11\nrst => > probe\nprobed 12 => > watch 11\n";
    script += "refuse transport => > sleep 0.8";
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
fn quiet_watches_that_end_soon_are_spaced_by_their_duration() {
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
         woke => > probe
         probed 10 => > watch 10
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
fn watches_that_end_after_one_event_each_do_not_spin() {
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
fn case_14_a_forbidden_watch_keeps_the_list_and_reports_the_error() {
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
fn case_15_the_next_watch_starts_at_the_bookmark() {
    check_synced("mark 150 => mark 150\neof => > watch 150");
}

#[test]
fn cases_17_and_18_duplicates_are_left_to_the_cache_and_advance_the_version() {
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
fn versions_that_are_not_numbers_are_taken_as_they_come() {
    check("page abc => end abc > watch abc\nopened\nmod a@xyz => put a@xyz\nwait 60000\neof => > watch xyz");
}

#[test]
fn case_26_a_removed_definition_is_waited_for() {
    check_synced(
        "del a@11         => del a@11
         del b@12         => del b@12
         eof                => > watch 12
         refuse not_found   => > sleep 0.8
         woke               => > probe
         unprobed not_found => > watch 12
         refuse not_found   => > sleep 1.6
         woke               => > probe
         probed 30          => > watch 12
         opened
         error 410        => begin > list
         page 40          => end 40 > watch 40",
    );
}

#[test]
fn case_27_a_silent_watch_is_reopened_at_once() {
    let mut run = check_synced("wait 30000\nsilent => > watch 10");
    assert_eq!(run.machine.condition().message.as_deref(), Some(WatchEnd::Silent.sentence().as_str()));
    assert_eq!(run.input("opened"), "-");
    assert_eq!(run.machine.condition().message, None);
    assert_eq!(run.machine.silence_max(), Duration::from_secs(30));
    run.entropy = 1.0;
    run.input("wait 305000");
    // After a long time without events, the version is probed first.
    assert_eq!(run.input("overdue"), "> probe");
    assert_eq!(run.input("probed 10"), "> watch 10");
    assert_eq!(run.machine.silence_max(), Duration::from_millis(25_500));
}

#[test]
fn a_streaming_list_is_one_pass_until_its_mark_and_then_the_watch() {
    let mut run = check_streaming(
        "opened
         add b@4   => item b@4
         add a@9   => item a@9
         mod b@11  => item b@11
         del a@12  => gone a@12
         end 12    => end 12
         mod c@13  => put c@13
         wait 60000",
    );
    assert_eq!(run.machine.condition().phase, Phase::Watching);
    assert_eq!(run.input("eof"), "> watch 13");
    // The phase is "connecting" until the response head arrives.
    assert_eq!(run.machine.condition().phase, Phase::Connecting);
    run.input("opened");
    assert_eq!(run.machine.condition().phase, Phase::Watching);
}

#[test]
fn case_4_a_cut_streaming_list_is_retried_and_then_paged() {
    check_streaming(
        "opened
         add b@4   => item b@4
         rst       => abort > sleep 0.8
         woke      => begin > stream
         opened
         eof       => abort > sleep 1.6
         woke      => begin > stream
         opened
         bad       => abort begin > list",
    );
}

#[test]
fn cases_2_and_3_after_a_refused_streaming_list_pages_are_used_for_an_hour() {
    for refusal in [
        "refuse refused",
        "refuse forbidden",
        "opened\nerror 422",
        "opened\nerror 500",
        "opened\nsilent",
        "opened\nmark 5",
        "opened\nwait 250000\neof",
    ] {
        let script = format!(
            "{refusal} => abort begin > list
             page 10 => end 10 > watch 10
             opened
             wait 200000
             error 410 => begin > list
             page 11 => end 11 > watch 11
             opened
             wait 3500000
             error 410 => begin > stream"
        );
        let mut run = check_streaming(&script);
        assert_eq!(run.machine.condition().phase, Phase::Listing);
        run.input("opened");
        assert_eq!(run.input("end 12"), "end 12");
    }
}

#[test]
fn an_outage_does_not_disable_streaming_lists() {
    let mut script = String::new();
    for (kind, delay) in [
        ("transport", 0.8),
        ("idle", 1.6),
        ("unauthorized", 3.2),
        ("throttled", 6.4),
        ("unavailable", 12.8),
        ("not_found", 24.0),
    ] {
        script += &format!("refuse {kind} => abort > sleep {delay}\nwoke => begin > stream\n");
    }
    check_streaming(&script);
}

#[test]
fn either_way_of_listing_can_be_configured_alone() {
    let (run, first) = Run::new(InitialList::Stream);
    assert_eq!(first, "begin > stream");
    follow(
        run,
        "refuse refused => abort > sleep 0.8\nwoke => begin > stream\nopened\nsilent => abort > sleep 1.6",
    );
    check("refuse refused\npage 10 => end 10 > watch 10\nopened\nerror 410 => > sleep 1");
}

#[test]
fn an_older_list_is_refused_and_retried() {
    let run = check_synced(
        "error 410        => begin > list
         page 9 +t a@3    => abort > sleep 0.8
         woke             => begin > list >=10
         fail behind      => abort > sleep 1.6
         woke             => begin > list
         page 8 a@3       => abort > sleep 3.2
         woke             => begin > list >=10
         page 11 a@3      => item a@3 doubted end 11 > watch 11",
    );
    assert!(!run.reaction.older);
    let run = check_streaming(
        "opened
         end 10      => end 10
         wait 60000
         error 410   => begin > stream
         opened
         add a@3     => item a@3
         end 9       => abort > sleep 0.8
         woke        => begin > stream >=10
         opened
         error 504   => abort > sleep 1.6",
    );
    assert!(run.reaction.older);
    let message = run.machine.condition().message.unwrap();
    assert!(message.starts_with("10 was seen already"), "{message}");
}

#[test]
fn answers_that_stay_older_are_accepted_in_the_end() {
    check_synced(
        "error 410   => begin > list
         page 7 a@3  => abort > sleep 0.8
         woke        => begin > list >=10
         wait 3000
         fail behind => abort > sleep 1.6
         woke        => begin > list
         page 7 a@3  => abort > sleep 3.2
         woke        => begin > list >=10
         wait 3000
         fail behind => abort > sleep 6.4
         woke        => begin > list
         page 7 a@3  => item a@3 doubted end 7 > watch 7
         opened
         error 410   => > sleep 1
         woke        => begin > list
         page 9 a@3  => item a@3 end 9 > watch 9",
    );
}

#[test]
fn a_list_after_an_older_answer_is_checked_against_the_cache() {
    // The probe gives an older version. Before the list, writes take the versions beyond the known ones.
    check_synced(
        "rst          => > probe
         probed 7     => begin > list
         page 12 a@11 => item a@11 doubted end 12 > watch 12
         opened
         wait 120000
         error 410    => begin > list
         page 13 a@11 => item a@11 end 13 > watch 13",
    );
    check_streaming(
        "opened
         end 10    => end 10
         wait 60000
         error 410 => begin > stream
         opened
         end 9     => abort > sleep 0.8
         woke      => begin > stream >=10
         opened
         add a@11  => item a@11
         end 12    => doubted end 12",
    );
}

#[test]
fn versions_that_went_back_are_found_after_a_lost_connection_and_on_idle_watches() {
    check_synced("rst => > probe\nprobed 7 => begin > list\npage 7 => abort > sleep 0.8");
    let mut script = String::new();
    for _ in 0..8 {
        script += "silent => > watch 10\nopened\nwait 30000\n";
    }
    let mut run = check_synced(&script);
    assert_eq!(run.input("silent"), "> probe");
    assert_eq!(run.input("probed 9"), "begin > list");
    assert_eq!(run.reaction.relist, Some(RelistReason::WentBack));
}

#[test]
fn a_server_unreachable_after_its_probe_is_probed_again_before_a_watch() {
    // The server stops between its answer and the watch. When it is back, its cluster may be another one.
    check_synced(
        "rst              => > probe
         probed 10 8 8    => > watch 10
         refuse transport => > sleep 0.8
         woke             => > probe
         probed 90 8      => > probe then
         probed 8 8       => other begin > list",
    );
    for kind in ["idle", "unavailable", "internal"] {
        check_synced(&format!("eof => > watch 10\nrefuse {kind} => > sleep 0.8\nwoke => > probe"));
    }
    for kind in ["throttled", "forbidden", "unauthorized"] {
        check_synced(&format!("eof => > watch 10\nrefuse {kind} => > sleep 0.8\nwoke => > watch 10"));
    }
}

#[test]
fn a_lagging_upstream_cache_is_no_sign_of_another_history() {
    check_synced("rst => > probe\nprobed cached 7 8 6 => > watch 10");
    check_synced("rst => > probe\nprobed cached 7 8 => > watch 10");
    // A cache that is as far as this one is trusted like the API server.
    check_synced("rst => > probe\nprobed cached 10 8 7 => other begin > list");
}

#[test]
fn another_history_with_higher_versions_is_found_by_the_newest_object() {
    // The same object at the same version.
    check_synced("rst => > probe\nprobed 90 8 8 => > watch 10");
    // A later answer has an earlier state of the object.
    let run = check_synced(
        "rst => > probe\nprobed 90 8 7 => other begin > list\npage 91 a@7 => item a@7 end 91 > watch 91",
    );
    assert_eq!(run.reaction.relist, None, "the last step");
    // The object was changed or deleted since, in this history or in another one: its state at the held version
    // decides.
    check_synced("rst => > probe\nprobed 90 8 60 => > probe then\nprobed 8 8 8 => > watch 10");
    check_synced("rst => > probe\nprobed 90 8 => > probe then\nprobed 8 8 8 => > watch 10");
    check_synced("rst => > probe\nprobed 90 8 60 => > probe then\nprobed 8 8 7 => other begin > list");
    let run = check_synced("rst => > probe\nprobed 90 8 => > probe then\nprobed 8 8 => other begin > list");
    assert_eq!(run.reaction.relist, Some(RelistReason::WentBack));
    let told = run.machine.condition().message.unwrap();
    assert_eq!(told, "the API server has another history: web/a at 8, which was seen already, is not in it");
    // The server has compacted that version, or does not understand the request.
    check_synced("rst => > probe\nprobed 90 8 60 => > probe then\nunprobed expired => > watch 10");
    let asked = "rst => > probe\nprobed 90 8 60 => > probe then\nprobed 90 8 60 => > probe exactness\n";
    check_synced(&format!("{asked}probed 90 8 => > watch 10"));
    // 1.20 answers with the objects at that version, but reports the current version.
    check_synced(&format!("{asked}probed 8 8 => other begin > list"));
}

#[test]
fn a_doubted_watch_lists_again() {
    let run =
        check_synced("disorder => begin > list\npage 12 => end 12 > watch 12\nopened\ndiffers => > sleep 1");
    assert_eq!(
        (run.reaction.relist, run.reaction.ended),
        (Some(RelistReason::Verify), Some(EndReason::Doubted))
    );
}

#[test]
fn an_undecodable_line_is_read_again_and_then_relisted() {
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
        script +=
            &format!("error 503 => > sleep {delay}\nwoke => > probe\nprobed 10 => > watch 10\nopened\n");
    }
    check_synced(&script);
}

#[test]
fn inputs_that_answer_no_step_are_ignored() {
    check_synced(
        "woke\npage 99 x@9\nfail transport\nrefuse expired\nopened\neof => > watch 10\neof\nmod a@50\nwoke",
    );
}

#[test]
fn watch_timeouts_are_spread_over_a_minute_before_the_deadline() {
    for (entropy, expected) in [(0.0, 240), (0.5, 270), (0.999, 299)] {
        let (mut run, _) = Run::new(InitialList::Page);
        run.entropy = entropy;
        run.input("page 10");
        let Some(Step::Watch { request, deadline }) = &run.reaction.step else {
            panic!("{:?}", run.reaction)
        };
        assert_eq!(request.timeout.as_secs(), expected);
        assert_eq!(*deadline, request.timeout + WATCH_GRACE);
    }
}

#[test]
fn only_quiet_watches_get_short_server_timeouts() {
    let timeout = |run: &Run| match &run.reaction.step {
        Some(Step::Watch { request, .. }) => request.timeout.as_secs(),
        step => panic!("{step:?}"),
    };
    // The first watch falls silent. From then on the server is asked to end watches before the silence is too long.
    let mut run = check_synced("silent => > watch 10");
    assert_eq!(timeout(&run), 28);
    assert!(Duration::from_secs(28) < run.machine.silence_max());
    for version in [11, 12] {
        run.input("opened");
        run.input("wait 26000");
        run.input(&format!("mark {version}"));
        run.input("wait 2000");
        assert_eq!(run.input("eof"), format!("> watch {version}"));
        assert_eq!(timeout(&run), 28);
    }
    // An event arrives, so no early end is requested until the watch is quiet again.
    run.input("opened");
    for version in [13, 14] {
        run.input("wait 10000");
        run.input(&format!("mod a@{version}"));
    }
    run.input("wait 8000");
    assert_eq!(run.input("eof"), "> watch 14");
    assert_eq!(timeout(&run), 240);
    run.input("opened");
    run.input("wait 30000");
    assert_eq!(run.input("silent"), "> watch 14");
    assert_eq!(timeout(&run), 28);
}

#[test]
fn a_pinged_watch_may_be_silent_for_longer_and_is_not_ended_early() {
    let timeout = |run: &Run| match &run.reaction.step {
        Some(Step::Watch { request, .. }) => request.timeout.as_secs(),
        step => panic!("{step:?}"),
    };
    let mut run = check_synced("eof => > watch 10");
    assert_eq!(run.machine.silence_max(), Duration::from_secs(30));
    assert_eq!(run.machine.condition().quiet_max, None);
    run.entropy = 1.0;
    run.input("opened pinged");
    // Even with the shortest jitter, the allowed silence leaves room for one bookmark a minute.
    assert_eq!(run.machine.silence_max(), Duration::from_millis(76_500));
    assert_eq!(run.machine.condition().quiet_max, Some(Duration::from_secs(90)));
    run.entropy = 0.0;
    for version in [11, 12, 13, 14] {
        run.input("wait 61000");
        run.input(&format!("mark {version}"));
    }
    assert_eq!(run.input("eof"), "> watch 14");
    assert_eq!(timeout(&run), 240);
    // Without an open watch, a longer silence has no explanation.
    assert_eq!(run.machine.condition().quiet_max, None);
    // No bookmark arrived, so the server is asked to end the next watch before the silence is too long.
    run.input("opened pinged");
    run.input("wait 90000");
    // After a long time the version is probed first.
    assert_eq!(run.input("silent"), "> probe");
    assert_eq!(run.input("probed 14"), "> watch 14");
    assert_eq!(timeout(&run), 88);
    // Over a connection without pings, the rules are those of any unpinged watch.
    run.input("opened");
    assert_eq!(run.machine.silence_max(), Duration::from_secs(30));
    assert_eq!(run.machine.condition().quiet_max, None);
    run.input("wait 30000");
    assert_eq!(run.input("silent"), "> watch 14");
    assert_eq!(timeout(&run), 28);
    // A pinged watch that was asked to end early ends with a bookmark. The next one gets the long timeout again.
    run.input("opened pinged");
    run.input("wait 26000");
    run.input("mark 15");
    run.input("wait 2000");
    assert_eq!(run.input("eof"), "> watch 15");
    assert_eq!(timeout(&run), 88);
    run.input("opened pinged");
    run.input("wait 61000");
    run.input("mark 16");
    run.input("wait 27000");
    assert_eq!(run.input("eof"), "> watch 16");
    assert_eq!(timeout(&run), 240);
}

#[test]
fn a_pinged_streaming_list_becomes_a_pinged_watch() {
    let (mut run, _) = Run::new(InitialList::Stream);
    run.input("opened pinged");
    assert_eq!(run.machine.silence_max(), Machine::mark_silence_max());
    assert_eq!(run.machine.condition().quiet_max, None);
    run.input("end 10");
    assert_eq!(run.machine.silence_max(), Duration::from_secs(90));
    assert_eq!(run.machine.condition().quiet_max, Some(Duration::from_secs(90)));
}

#[test]
fn an_object_that_is_too_large_is_dropped_and_the_watch_goes_on() {
    check_synced(
        "large a@11 => unheld a@11
         mod b@12   => put b@12
         eof        => > watch 12",
    );
    check_streaming("large a@9\nopened\nadd a@3 => item a@3\nlarge a@9 => unheld a@9\nend 10 => end 10");
}

fn any_input() -> impl Strategy<Value = String> {
    let fixed = [
        "opened",
        "opened pinged",
        "eof",
        "rst",
        "silent",
        "overdue",
        "bad",
        "woke",
        "error 410",
        "error 500",
        "error 503",
        "error 504",
        "disorder",
    ];
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
        1 => (1..50u32).prop_map(|version| format!("end {version}")),
        1 => (1..50u32).prop_map(|version| format!("probed {version}")),
        1 => (1..50u32, 1..50u32).prop_map(|(version, held)| format!("probed {version} {held}")),
        1 => (1..50u32, 1..50u32, 1..50u32)
            .prop_map(|(version, held, found)| format!("probed {version} {held} {found}")),
        1 => prop::sample::select(failures.to_vec()).prop_map(|kind| format!("unprobed {kind}")),
        1 => (1..100_000u32).prop_map(|millis| format!("wait {millis}")),
    ]
}

proptest! {
    #[test]
    fn for_any_inputs_one_step_is_under_way_and_each_pass_ends(
        inputs in prop::collection::vec(any_input(), 0..200),
        entropy in 0.0..1.0f64,
        initial_list in prop::sample::select(vec![InitialList::Auto, InitialList::Stream, InitialList::Page]),
    ) {
        let (mut run, _) = Run::new(initial_list);
        run.entropy = entropy;
        let timeout = Duration::from_secs(240);
        let from = WatchFrom::Everything(AsOf::Now);
        let mut step = match initial_list {
            InitialList::Page => Step::List(PageRequest { limit: 2, ..PageRequest::default() }),
            InitialList::Auto | InitialList::Stream => {
                Step::Watch { request: WatchRequest { from, timeout }, deadline: timeout }
            }
        };
        let (mut in_pass, mut watching, mut version) = (true, false, ResourceVersion::ZERO);
        let mut began = run.now;
        for input in inputs {
            let shown = run.input(&input);
            let word = input.split(' ').next().unwrap_or_default();
            let answers = match &step {
                Step::List(_) => ["page", "fail"].contains(&word),
                Step::Probe(_) => ["probed", "unprobed"].contains(&word),
                Step::Watch { .. } if watching => {
                    ["mod", "mark", "end", "error", "eof", "rst", "silent", "overdue", "bad", "disorder"]
                        .contains(&word)
                }
                Step::Watch { .. } => ["opened", "refuse"].contains(&word),
                Step::Sleep(_) => word == "woke",
            };
            // An input that does not answer the step under way has no effect.
            prop_assert!(answers || shown == "-", "{input} => {shown}");
            for word in shown.split(' ') {
                match word {
                    "begin" => {
                        prop_assert!(!in_pass);
                        in_pass = true;
                        // Except for a list in pages that replaces a streaming list.
                        prop_assert!(run.reaction.fell_back || run.now - began >= Duration::from_millis(800));
                        began = run.now;
                    }
                    "item" | "gone" => prop_assert!(in_pass),
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
                // Within a watch, the version to resume from never goes back.
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

#[test]
fn a_server_without_streaming_lists_shows_no_error() {
    let (mut run, first) = Run::new(InitialList::Auto);
    assert_eq!(first, "begin > stream");
    run.input("refuse refused");
    assert_eq!(run.machine.condition().message, None);
    // The failure is shown.
    let (mut run, _) = Run::new(InitialList::Auto);
    run.input("refuse forbidden");
    assert_eq!(run.machine.condition().message.as_deref(), Some("it was forbidden"));
}

#[test]
fn a_forbidden_list_is_shown_until_another_failure() {
    let (mut run, _) = Run::new(InitialList::Auto);
    run.input("refuse forbidden");
    assert!(!run.machine.condition().forbidden, "pages may be allowed");
    run.input("fail forbidden");
    assert!(run.machine.condition().forbidden);
    run.input("woke");
    run.input("fail unavailable");
    assert!(!run.machine.condition().forbidden);
    let (mut run, _) = Run::new(InitialList::Stream);
    run.input("refuse forbidden");
    assert!(run.machine.condition().forbidden);
}
