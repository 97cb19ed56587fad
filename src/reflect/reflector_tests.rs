//! The reflector against a scripted API server, on paused time, without sockets.

use std::collections::VecDeque;
use std::sync::Mutex;

use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use kube::client::Body;

use super::*;
use crate::cache::{self, BackfillAnswer, Phase, Reader};
use crate::k8s::{Key, Resource, ResourceParts};
use crate::reflect::InitialList;
use crate::upstream::{Config, Selectors, UpstreamSource};

/// The server's answer to one request.
enum Answer {
    /// A whole response.
    Whole(u16, &'static str, String),
    /// Chunks of a body, and what follows them.
    Stream(Vec<Vec<u8>>, After),
    /// The connection is refused.
    Refuse,
}

enum After {
    End,
    Break,
    Open,
}

/// A server that takes its answers from a script, and then repeats the last rule.
#[derive(Clone)]
struct Server(Arc<Mutex<Script>>);

struct Script {
    answers: VecDeque<Answer>,
    otherwise: fn() -> Answer,
    /// Seconds since the start, and path, of each request.
    requests: Vec<(f64, String)>,
    began: Instant,
}

impl Server {
    fn new(answers: Vec<Answer>, otherwise: fn() -> Answer) -> Self {
        let requests = Vec::new();
        let began = Instant::now();
        let script = Script { answers: answers.into(), otherwise, requests, began };
        Self(Arc::new(Mutex::new(script)))
    }

    async fn answer(
        self,
        request: Request<Body>,
    ) -> Result<Response<UnsyncBoxBody<Bytes, std::io::Error>>, std::io::Error> {
        let answer = {
            let mut script = self.0.lock().unwrap();
            let at = (script.began.elapsed().as_secs_f64() * 10.0).round() / 10.0;
            let path = request.uri().to_string();
            if path.ends_with("limit=1") {
                script.requests.push((at, path));
                // A probe gets a version beyond those of all scripts, and no object.
                list(1_000_000, "", "")
            } else if path.contains("limit=1&") {
                Answer::Whole(410, "", "{}".into())
            } else {
                script.requests.push((at, path));
                let next = script.answers.pop_front();
                next.unwrap_or_else(script.otherwise)
            }
        };
        let response = Response::builder();
        match answer {
            Answer::Refuse => Err(std::io::Error::other("connection refused")),
            Answer::Whole(code, retry_after, body) => {
                let response = if retry_after.is_empty() {
                    response
                } else {
                    response.header("retry-after", retry_after)
                };
                let body = Full::new(Bytes::from(body)).map_err(|never| match never {});
                Ok(response.status(code).body(body.boxed_unsync()).unwrap())
            }
            Answer::Stream(chunks, after) => {
                let chunks = stream::iter(chunks).map(|chunk| Ok(Frame::data(Bytes::from(chunk))));
                let end = match after {
                    After::End => stream::empty().boxed(),
                    After::Break => stream::iter([Err(std::io::Error::other("connection reset"))]).boxed(),
                    After::Open => stream::pending().boxed(),
                };
                Ok(response.body(StreamBody::new(chunks.chain(end)).boxed_unsync()).unwrap())
            }
        }
    }

    fn requests(&self) -> Vec<(f64, String)> {
        self.0.lock().unwrap().requests.clone()
    }

    /// Each request in short (`list`, `list t1`, `watch 10`), with the second of its arrival.
    fn log(&self) -> Vec<String> {
        let value = |path: &str, name: &str| {
            let from = path.split_once(&format!("{name}="))?.1;
            Some(from.split('&').next().unwrap_or_default().to_owned())
        };
        let short = |(at, path): (f64, String)| match value(&path, "watch") {
            Some(_) => format!("{at} watch {}", value(&path, "resourceVersion").unwrap()),
            None if path.ends_with("limit=1") => format!("{at} probe"),
            None => {
                format!("{at} list{}", value(&path, "continue").map(|t| format!(" {t}")).unwrap_or_default())
            }
        };
        self.requests().into_iter().map(short).collect()
    }
}

const PAGES: MachineConfig = MachineConfig {
    page_size: 500,
    initial_list: InitialList::Page,
    silence_max: Duration::from_secs(30),
    pinged_silence_max: Duration::from_secs(90),
};

fn pods() -> Resource {
    let (version, plural, kind) = ("v1".into(), "pods".into(), "Pod".into());
    Resource::new(ResourceParts { version, plural, kind, namespaced: true, ..Default::default() })
}

fn run(server: &Server) -> (Reader, Arc<ReflectorStats>) {
    run_with(server, InitialList::Page)
}

fn run_with(server: &Server, initial_list: InitialList) -> (Reader, Arc<ReflectorStats>) {
    let limits =
        cache::Config { journal_len_max: 1000, journal_bytes_max: 64 << 20, tombstones_len_max: 1000 };
    let (writer, reader) = cache::cache(limits, Instant::now());
    let server = server.clone();
    let kube = kube::Client::new(tower::service_fn(move |request| server.clone().answer(request)), "default");
    let client = Client::over(kube, &Config::new(UpstreamSource::InCluster));
    let selectors =
        Selectors { label: "app in (a, b),x=\u{e9}".into(), field: "status.phase=Running".into() };
    let config = ReflectorConfig {
        target: Target { resource: pods(), namespace: Some("web".into()), selectors, metadata_only: false },
        decode: DecodeOptions {
            drop_managed_fields: true,
            drop_last_applied: true,
            object_bytes_max: 8 << 20,
        },
        machine: MachineConfig { initial_list, ..PAGES },
        line_bytes_max: 8 << 20,
        seed: 7,
    };
    let reflector = Reflector::new(config, client, writer);
    let stats = reader.stats().clone();
    tokio::spawn(reflector.run(CancellationToken::new()));
    (reader, stats)
}

fn item(text: &str) -> String {
    let (name, version) = text.split_once('@').unwrap();
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"web","uid":"u-{name}","resourceVersion":"{version}"}},"spec":{{}}}}"#
    )
}

fn list(version: u32, token: &str, items: &str) -> Answer {
    let items: Vec<_> = items.split_whitespace().map(item).collect();
    let items = items.join(",");
    let body = format!(
        r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","continue":"{token}"}},"items":[{items}]}}"#
    );
    Answer::Whole(200, "", body)
}

fn line(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

fn bookmark(version: u32) -> String {
    line("BOOKMARK", &format!(r#"{{"kind":"Pod","metadata":{{"resourceVersion":"{version}"}}}}"#))
}

fn expired() -> String {
    line("ERROR", r#"{"kind":"Status","status":"Failure","message":"too old","reason":"Expired","code":410}"#)
}

fn chunks(text: &str) -> Vec<Vec<u8>> {
    vec![text.as_bytes().to_vec()]
}

fn quiet() -> Answer {
    Answer::Stream(Vec::new(), After::Open)
}

fn hangs_up() -> Answer {
    Answer::Stream(Vec::new(), After::End)
}

async fn after(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

fn names(reader: &Reader) -> Vec<String> {
    reader.snapshot().after(None).map(|object| format!("{object:?}")).collect()
}

#[tokio::test(start_paused = true)]
async fn pages_fill_the_cache_and_request_parameters_are_encoded() {
    let server = Server::new(vec![list(10, "t/1+", "a@3"), list(10, "", "b@4")], quiet);
    let (reader, stats) = run(&server);
    after(0.1).await;
    assert_eq!(names(&reader), ["web/a@3", "web/b@4"]);
    assert!(reader.mark().synced);
    assert_eq!(reader.condition().phase, Phase::Watching);
    let selectors =
        "labelSelector=app%20in%20%28a%2C%20b%29%2Cx%3D%C3%A9&fieldSelector=status.phase%3DRunning";
    let paths: Vec<_> = server.requests().into_iter().map(|(_, path)| path).collect();
    assert_eq!(
        paths[..2],
        [
            format!("/api/v1/namespaces/web/pods?{selectors}&limit=500"),
            format!("/api/v1/namespaces/web/pods?{selectors}&limit=500&continue=t%2F1%2B"),
        ]
    );
    let (watch, seconds) = paths[2].split_once("&timeoutSeconds=").unwrap();
    assert_eq!(watch, format!("/api/v1/namespaces/web/pods?{selectors}&watch=true&allowWatchBookmarks=true"));
    let (seconds, version) = seconds.split_once('&').unwrap();
    assert!((240..300).contains(&seconds.parse::<u32>().unwrap()));
    assert_eq!(version, "resourceVersion=10");
    let counts = [&stats.lists, &stats.pages, &stats.watches, &stats.events].map(|count| count.get());
    assert_eq!(counts, [1, 2, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn case_20_lines_span_chunks_and_a_burst_is_one_commit() {
    let text =
        line("ADDED", &item("b@11")) + &line("MODIFIED", &item("a@12")) + &line("DELETED", &item("b@13"));
    let small = text.as_bytes().chunks(7).map(<[u8]>::to_vec).collect();
    let server = Server::new(vec![list(10, "", "a@3"), Answer::Stream(small, After::Open)], quiet);
    let (reader, _) = run(&server);
    after(0.1).await;
    assert_eq!(names(&reader), ["web/a@12"]);
    assert_eq!(reader.mark().revision.0, 3);

    let server = Server::new(vec![list(10, "", "a@3"), Answer::Stream(chunks(&text), After::Open)], quiet);
    let (reader, stats) = run(&server);
    after(0.1).await;
    assert_eq!(names(&reader), ["web/a@12"]);
    // The list and the burst.
    assert_eq!((reader.mark().commits, stats.events.get()), (2, 3));
}

#[tokio::test(start_paused = true)]
async fn case_21_a_line_of_4_mb_is_accepted() {
    let object =
        item("big@11").replace("\"spec\":{}", &format!("\"spec\":{{\"x\":\"{}\"}}", "y".repeat(4 << 20)));
    let text = line("ADDED", &object);
    let pieces = text.as_bytes().chunks(65_536).map(<[u8]>::to_vec).collect();
    let server = Server::new(vec![list(10, "", ""), Answer::Stream(pieces, After::Open)], quiet);
    let (reader, _) = run(&server);
    after(1.0).await;
    assert_eq!(names(&reader), ["web/big@11"]);
}

#[tokio::test(start_paused = true)]
async fn case_22_an_incomplete_last_line_is_ignored() {
    for end in [After::End, After::Break] {
        let whole = line("MODIFIED", &item("a@11"));
        let half = &line("MODIFIED", &item("a@12"))[..40];
        let stream = Answer::Stream(chunks(&(whole + half)), end);
        let server = Server::new(vec![list(10, "", "a@3"), stream], quiet);
        let (reader, _) = run(&server);
        after(5.0).await;
        assert_eq!(names(&reader), ["web/a@11"]);
        let log: Vec<_> = server.log().into_iter().filter(|line| line != "0 probe").collect();
        assert_eq!(log, ["0 list", "0 watch 10", "0 watch 11"]);
    }
}

#[tokio::test(start_paused = true)]
async fn cases_17_and_18_duplicates_and_unknown_deletions_are_no_change() {
    let twice = line("MODIFIED", &item("a@11"));
    let text = twice.clone() + &twice + &line("DELETED", &item("x@12"));
    let server = Server::new(vec![list(10, "", "a@3"), Answer::Stream(chunks(&text), After::Open)], quiet);
    let (reader, _) = run(&server);
    after(0.1).await;
    assert_eq!(reader.mark().revision.0, 1);
    assert_eq!(reader.snapshot().position.to_string(), "12");
}

#[tokio::test(start_paused = true)]
async fn case_15_a_bookmark_then_the_end_resumes_at_the_bookmark() {
    let stream = Answer::Stream(chunks(&bookmark(150)), After::End);
    let server = Server::new(vec![list(10, "", "a@3"), stream], quiet);
    let (reader, _) = run(&server);
    after(5.0).await;
    assert_eq!(server.log(), ["0 list", "0 watch 10", "0 watch 150"]);
    assert_eq!(reader.snapshot().position.to_string(), "150");
    assert_eq!(reader.mark().revision.0, 0);
}

#[tokio::test(start_paused = true)]
async fn cases_7_and_8_a_410_in_either_form_relists_and_commits_only_the_difference() {
    let refusal = r#"{"kind":"Status","status":"Failure","reason":"Expired","code":410}"#;
    for gone in [Answer::Stream(chunks(&expired()), After::End), Answer::Whole(410, "", refusal.into())] {
        let server = Server::new(vec![list(10, "", "a@3 b@4"), gone, list(20, "", "a@3 c@15")], quiet);
        let (reader, stats) = run(&server);
        after(0.5).await;
        assert_eq!(names(&reader), ["web/a@3", "web/b@4"], "still served");
        after(5.0).await;
        assert_eq!(names(&reader), ["web/a@3", "web/c@15"]);
        assert_eq!(reader.mark().revision.0, 2, "not one creation and one deletion");
        assert_eq!(server.log(), ["0 list", "0 watch 10", "1 list", "1 watch 20"]);
        assert_eq!(stats.relists.get(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn case_6_an_expired_continue_token_never_mixes_two_lists() {
    let gone = r#"{"kind":"Status","metadata":{"continue":"fresh"},"status":"Failure","reason":"Expired","code":410}"#;
    let answers = vec![list(10, "t1", "a@3"), Answer::Whole(410, "", gone.into()), list(20, "", "b@15")];
    let server = Server::new(answers, quiet);
    let (reader, _) = run(&server);
    after(0.5).await;
    assert!(!reader.mark().synced);
    after(5.0).await;
    assert_eq!(names(&reader), ["web/b@15"]);
    assert_eq!(server.log(), ["0 list", "0 list t1", "1 list", "1 watch 20"]);
}

#[tokio::test(start_paused = true)]
async fn case_10_retry_after_is_waited_for() {
    let busy = || Answer::Whole(429, "20", "slow down".into());
    let server = Server::new(vec![busy(), list(10, "", "a@3"), busy()], quiet);
    let (reader, stats) = run(&server);
    after(60.0).await;
    let at: Vec<f64> = server.requests().into_iter().map(|(at, _)| at).collect();
    assert!(at[1] >= 20.0 && at[1] <= 25.0, "{at:?}");
    assert!(at[3] - at[2] >= 20.0 && at[3] - at[2] <= 25.0, "{at:?}");
    assert_eq!((names(&reader), stats.failures.get()), (vec!["web/a@3".to_owned()], 2));
}

#[tokio::test(start_paused = true)]
async fn case_11_an_outage_costs_no_list() {
    let mut answers = vec![list(10, "", "a@3"), Answer::Stream(Vec::new(), After::Break)];
    answers.extend((0..6).map(|_| Answer::Refuse));
    answers.push(Answer::Stream(chunks(&line("MODIFIED", &item("a@11"))), After::Open));
    let server = Server::new(answers, quiet);
    let (reader, stats) = run(&server);
    after(3.0).await;
    let condition = reader.condition();
    assert_eq!(condition.phase, Phase::BackingOff);
    assert!(condition.message.unwrap().contains("connection refused"));
    assert!(condition.retry_at.unwrap() > Instant::now());
    assert_eq!(names(&reader), ["web/a@3"], "still served");
    after(120.0).await;
    assert_eq!(names(&reader), ["web/a@11"]);
    assert_eq!((stats.lists.get(), reader.condition().message), (1, None));
}

#[tokio::test(start_paused = true)]
async fn case_14_a_forbidden_watch_names_the_missing_permission() {
    let body = r#"{"kind":"Status","message":"pods is forbidden: User \"x\" cannot watch resource \"pods\" in API group \"\" in the namespace \"web\"","reason":"Forbidden","details":{"kind":"pods"},"code":403}"#;
    let server = Server::new(vec![list(10, "", "a@3"), Answer::Whole(403, "", body.into())], quiet);
    let (reader, _) = run(&server);
    after(0.5).await;
    let message = reader.condition().message.unwrap();
    assert_eq!(
        message,
        r#"forbidden: User "x" cannot watch resource "pods" in API group "" in the namespace "web": grant list and watch on pods"#
    );
    assert!(reader.mark().synced);
}

#[tokio::test(start_paused = true)]
async fn empty_watches_do_not_spin() {
    let server = Server::new(vec![list(10, "", "a@3")], hangs_up);
    let (_reader, _) = run(&server);
    after(60.0).await;
    // After the watch has ended, lists get an empty body, too.
    let count = server.requests().len();
    assert!((5..=12).contains(&count), "{count}: {:?}", server.log());
}

#[tokio::test(start_paused = true)]
async fn bookmarks_and_hang_ups_do_not_spin() {
    fn mark_and_end() -> Answer {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(100);
        let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Answer::Stream(chunks(&bookmark(next)), After::End)
    }
    let server = Server::new(vec![list(10, "", "a@3")], mark_and_end);
    let (_reader, stats) = run(&server);
    after(60.0).await;
    assert!((60..=80).contains(&server.requests().len()), "{:?}", server.log());
    assert_eq!(stats.lists.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_event_is_replaced_by_a_list() {
    let bad = line("MODIFIED", r#"{"metadata":{"name":"bad"}}"#);
    let good = line("MODIFIED", &item("a@11"));
    let answers = vec![
        list(10, "", "a@3"),
        Answer::Stream(chunks(&(good + &bad + &line("MODIFIED", &item("a@13")))), After::Open),
        Answer::Stream(chunks(&bad), After::Open),
        list(14, "", "a@13"),
    ];
    let server = Server::new(answers, quiet);
    let (reader, stats) = run(&server);
    after(5.0).await;
    assert_eq!(names(&reader), ["web/a@13"]);
    assert_eq!(server.log(), ["0 list", "0 watch 10", "0 watch 11", "1 list", "1 watch 14"]);
    assert_eq!((stats.skipped.get(), stats.relists.get()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_does_not_make_the_cache_younger() {
    let forbidden = || Answer::Whole(403, "", "no".into());
    let mut answers = vec![list(10, "", "a@3")];
    answers.extend((0..20).map(|_| forbidden()));
    let server = Server::new(answers, quiet);
    let (reader, _) = run(&server);
    after(60.0).await;
    assert!(server.log().len() > 3);
    assert!(reader.age(Instant::now()) >= Duration::from_secs(59), "{:?}", reader.age(Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_list_backs_off() {
    let page = || Answer::Whole(200, "", "<html>login</html>".into());
    let server = Server::new(vec![page(), page(), list(10, "", "a@3")], quiet);
    let (reader, _) = run(&server);
    after(0.5).await;
    assert!(reader.condition().message.unwrap().starts_with("the list cannot be read"));
    after(5.0).await;
    assert_eq!(names(&reader), ["web/a@3"]);
}

#[tokio::test(start_paused = true)]
async fn case_27_a_watch_past_its_deadline_is_abandoned() {
    let server = Server::new(vec![list(10, "", "a@3")], quiet);
    let (reader, _) = run(&server);
    after(1000.0).await;
    let log = server.requests();
    let watches: Vec<f64> =
        log.iter().filter(|(_, path)| path.contains("watch=")).map(|(at, _)| *at).collect();
    assert!(watches.len() > 30 && watches.windows(2).all(|w| w[1] - w[0] <= 30.0), "{watches:?}");
    let probes = log.iter().filter(|(_, path)| path.ends_with("limit=1")).count();
    assert!((2..=3).contains(&probes), "each five minutes: {probes}");
    // The head of a response shows that the API server is alive.
    assert!(reader.age(Instant::now()) <= Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn a_deletion_carries_its_own_version_into_the_cache() {
    let text = line("DELETED", &item("a@11"));
    let server = Server::new(vec![list(10, "", "a@3"), Answer::Stream(chunks(&text), After::Open)], quiet);
    let (reader, _) = run(&server);
    after(0.1).await;
    assert!(reader.snapshot().get(&Key::new("web", "a")).is_none());
    assert_eq!(reader.snapshot().position.to_string(), "11");
}

#[tokio::test(start_paused = true)]
async fn the_reflector_ends_when_cancelled_in_any_state() {
    for answers in [vec![], vec![Answer::Refuse], vec![list(10, "", "a@3")]] {
        let server = Server::new(answers, quiet);
        let (writer, _reader) = cache::cache(
            cache::Config { journal_len_max: 1, journal_bytes_max: 1, tombstones_len_max: 1 },
            Instant::now(),
        );
        let kube =
            kube::Client::new(tower::service_fn(move |request| server.clone().answer(request)), "default");
        let config = ReflectorConfig {
            target: Target {
                resource: pods(),
                namespace: None,
                selectors: Selectors::default(),
                metadata_only: false,
            },
            decode: DecodeOptions {
                drop_managed_fields: true,
                drop_last_applied: true,
                object_bytes_max: 1 << 20,
            },
            machine: PAGES,
            line_bytes_max: 1 << 20,
            seed: 1,
        };
        let client = Client::over(kube, &Config::new(UpstreamSource::InCluster));
        let cancel = CancellationToken::new();
        let running = tokio::spawn(Reflector::new(config, client, writer).run(cancel.clone()));
        after(0.5).await;
        cancel.cancel();
        tokio::time::timeout(Duration::from_secs(1), running).await.unwrap().unwrap();
    }
}

/// Requests a past version from a server that has these answers after the first list and the watch.
async fn backfilled(answers: Vec<Answer>) -> (Server, Reader, BackfillAnswer) {
    let before = vec![list(10, "", "a@3 b@9"), quiet()];
    let server = Server::new(before.into_iter().chain(answers).collect(), quiet);
    let (reader, _) = run(&server);
    after(1.0).await;
    assert!(matches!(reader.request_backfill(&5.into()), BackfillAnswer::Requested));
    after(60.0).await;
    let backfilled = reader.request_backfill(&5.into());
    (server, reader, backfilled)
}

#[tokio::test(start_paused = true)]
async fn a_past_version_is_listed_page_by_page_beside_the_watch() {
    let (server, _, backfilled) = backfilled(vec![list(5, "t/1", "a@3"), list(5, "", "gone@4")]).await;
    let BackfillAnswer::Known(backfill) = backfilled else { panic!("{backfilled:?}") };
    let gone: Vec<_> = backfill.gone.iter().map(|gone| gone.key.as_str()).collect();
    let changed: Vec<_> = backfill.changed.iter().map(|change| change.object.key().as_str()).collect();
    assert_eq!((gone, changed), (vec!["web/gone"], vec!["web/b"]));
    let selectors =
        "labelSelector=app%20in%20%28a%2C%20b%29%2Cx%3D%C3%A9&fieldSelector=status.phase%3DRunning";
    let paths: Vec<_> = server.requests().into_iter().map(|(_, path)| path).collect();
    let paths: Vec<_> = paths.into_iter().filter(|path| !path.contains("watch=")).collect();
    let path = format!("/api/v1/namespaces/web/pods?{selectors}&limit=2000");
    assert_eq!(
        paths[1..],
        [format!("{path}&resourceVersion=5&resourceVersionMatch=Exact"), format!("{path}&continue=t%2F1"),]
    );
}

#[tokio::test(start_paused = true)]
async fn a_past_version_that_cannot_be_listed_is_requested_once() {
    let gone = || Answer::Whole(410, "", "{}".into());
    for answers in [
        vec![gone()],
        vec![list(5, "t1", "a@3"), gone()],
        // A server that ignores `resourceVersionMatch=Exact`.
        vec![list(10, "", "a@3 b@9")],
        vec![Answer::Whole(200, "", "<html>".into())],
        vec![Answer::Refuse],
        // A list that never ends.
        vec![quiet()],
    ] {
        let count = answers.len();
        let (server, reader, backfilled) = backfilled(answers).await;
        assert!(matches!(backfilled, BackfillAnswer::Unknown), "{backfilled:?}");
        let lists = server.requests().into_iter().filter(|(_, path)| !path.contains("watch=")).count();
        assert_eq!(lists, 1 + count);
        assert_eq!(reader.condition().message, None);
    }
}

#[tokio::test(start_paused = true)]
async fn backfills_end_two_minutes_after_the_first_list() {
    let (server, reader, backfilled) = backfilled(vec![list(5, "", "a@3")]).await;
    assert!(matches!(backfilled, BackfillAnswer::Known(_)));
    after(70.0).await;
    let lists = || server.requests().into_iter().filter(|(_, path)| !path.contains("watch=")).count();
    let before = lists();
    for version in [4_u64, 5] {
        assert!(matches!(reader.request_backfill(&version.into()), BackfillAnswer::Unknown));
    }
    after(1.0).await;
    assert_eq!(lists(), before);
}

fn mark(version: u64) -> String {
    let metadata =
        format!(r#"{{"resourceVersion":"{version}","annotations":{{"k8s.io/initial-events-end":"true"}}}}"#);
    line("BOOKMARK", &format!(r#"{{"kind":"Pod","metadata":{metadata}}}"#))
}

fn streams(text: &str) -> Answer {
    Answer::Stream(chunks(text), After::Open)
}

#[tokio::test(start_paused = true)]
async fn case_1_a_streaming_list_is_one_request_and_complete_only_at_its_mark() {
    let initial = line("ADDED", &item("b@7")) + &line("ADDED", &item("a@3"));
    let server = Server::new(vec![streams(&initial)], quiet);
    let (reader, _) = run_with(&server, InitialList::Auto);
    after(1.0).await;
    assert!(!reader.mark().synced && names(&reader).is_empty());
    assert_eq!(reader.condition().phase, Phase::Listing);

    let rest = line("MODIFIED", &item("b@9")) + &mark(9) + &line("ADDED", &item("c@11"));
    let server = Server::new(vec![streams(&(initial + &rest))], quiet);
    let (reader, stats) = run_with(&server, InitialList::Auto);
    after(1.0).await;
    assert_eq!(names(&reader), ["web/a@3", "web/b@9", "web/c@11"]);
    assert_eq!((reader.mark().revision.0, reader.condition().phase), (1, Phase::Watching));
    let counts = [&stats.lists, &stats.streams, &stats.watches].map(|count| count.get());
    assert_eq!((server.requests().len(), counts), (1, [1, 1, 1]));
}

#[tokio::test(start_paused = true)]
async fn case_2_a_refused_streaming_list_is_replaced_by_pages_at_once() {
    let refusal = r#"{"kind":"Status","status":"Failure","reason":"Invalid","code":422}"#;
    let server = Server::new(vec![Answer::Whole(422, "", refusal.into()), list(10, "", "a@3")], quiet);
    let (reader, stats) = run_with(&server, InitialList::Auto);
    after(0.1).await;
    assert_eq!(names(&reader), ["web/a@3"]);
    assert_eq!((stats.lists.get(), stats.streams.get(), stats.pages.get()), (2, 1, 1));
    assert_eq!(reader.condition().message, None);
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_does_not_fail_a_streaming_list() {
    let bad = line("ADDED", r#"{"metadata":{"name":"bad"}}"#);
    let text = bad + &line("ADDED", &item("a@3")) + &mark(9);
    let server = Server::new(vec![streams(&text)], quiet);
    let (reader, stats) = run_with(&server, InitialList::Auto);
    after(0.1).await;
    assert_eq!((names(&reader), stats.skipped.get()), (vec!["web/a@3".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn an_older_event_of_an_absent_object_causes_a_relist() {
    // An object deleted at 11 is sent again as added at 5. Another object is new, and sent late.
    let text = line("DELETED", &item("a@11")) + &line("ADDED", &item("a@5")) + &line("ADDED", &item("b@12"));
    let server = Server::new(vec![list(10, "", "a@3"), streams(&text), list(13, "", "b@12")], quiet);
    let (reader, stats) = run(&server);
    after(5.0).await;
    assert_eq!((names(&reader), stats.relists.get()), (vec!["web/b@12".to_owned()], 1));
    assert_eq!(reader.mark().revision.0, 2, "the older event changed the cache");
}

#[tokio::test(start_paused = true)]
async fn an_older_relist_is_not_sent_to_clients() {
    let answers =
        vec![list(10, "", "a@3 b@9"), streams(&expired()), list(8, "", "a@3"), list(12, "", "a@3 b@9")];
    let server = Server::new(answers, quiet);
    let (reader, _) = run(&server);
    after(1.5).await;
    assert!(reader.condition().message.unwrap().contains("as of 8, but 10 was seen already"));
    assert_eq!(names(&reader), ["web/a@3", "web/b@9"]);
    after(5.0).await;
    assert_eq!((reader.mark().revision.0, reader.snapshot().position.to_string()), (0, "12".to_owned()));
    assert!(
        server
            .requests()
            .iter()
            .any(|(_, path)| path.contains("resourceVersion=10&resourceVersionMatch=NotOlderThan"))
    );
}

/// As `run_with`, with comparisons.
fn run_verified(server: &Server) -> (Reader, Arc<ReflectorStats>) {
    let limits =
        cache::Config { journal_len_max: 1000, journal_bytes_max: 64 << 20, tombstones_len_max: 1000 };
    let (writer, reader) = cache::cache(limits, Instant::now());
    let server = server.clone();
    let kube = kube::Client::new(tower::service_fn(move |request| server.clone().answer(request)), "default");
    let client = Client::over(kube, &Config::new(UpstreamSource::InCluster));
    let config = ReflectorConfig {
        target: Target {
            resource: pods(),
            namespace: None,
            selectors: Selectors::default(),
            metadata_only: false,
        },
        decode: DecodeOptions {
            drop_managed_fields: true,
            drop_last_applied: true,
            object_bytes_max: 8 << 20,
        },
        // The watch may be silent for longer than a comparison waits.
        machine: MachineConfig { silence_max: Duration::from_secs(20), ..PAGES },
        line_bytes_max: 8 << 20,
        seed: 7,
    };
    let turn = Arc::new(tokio::sync::Semaphore::new(1));
    let reflector = Reflector::new(config, client, writer);
    let reflector = reflector.verified(Verify { interval: Duration::from_secs(10), turn });
    let stats = reader.stats().clone();
    tokio::spawn(reflector.run(CancellationToken::new()));
    (reader, stats)
}

/// Waits until the first comparison has ended.
async fn verified(stats: &ReflectorStats) -> crate::cache::LastVerification {
    for _ in 0..2000 {
        if let Some(last) = stats.last_verification() {
            return last;
        }
        after(0.1).await;
    }
    panic!("no comparison ended");
}

#[tokio::test(start_paused = true)]
async fn without_bookmarks_a_difference_is_confirmed_by_silence() {
    // The comparison at 20 finds that b is missing, and the watch stays silent.
    let server = Server::new(vec![list(10, "", "a@3"), quiet(), list(20, "", "a@3 b@12")], quiet);
    let (reader, stats) = run_verified(&server);
    let last = verified(&stats).await;
    assert_eq!((last.outcome.as_str(), last.missing, last.extra, last.stale), ("different", 1, 0, 0));
    after(0.0).await;
    assert_eq!(stats.relists.get(), 1);
    assert_eq!(names(&reader), ["web/a@3"]);
}

#[tokio::test(start_paused = true)]
async fn a_comparison_with_an_older_list_finds_nothing() {
    let text = line("ADDED", &item("b@15")) + &line("DELETED", &item("b@16"));
    let server = Server::new(
        vec![list(10, "", "a@3"), Answer::Stream(chunks(&text), After::Open), list(15, "", "b@15")],
        quiet,
    );
    let (_, stats) = run_verified(&server);
    let last = verified(&stats).await;
    assert_eq!((last.outcome.as_str(), last.missing), ("abandoned", 0));
    assert_eq!(stats.relists.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_difference_that_a_relist_does_not_heal_causes_no_further_relist() {
    // Lists of whole objects lack b, as if it could not be decoded. Lists of names and versions have it.
    fn rule() -> Answer {
        list(20, "", "a@3 b@12")
    }
    let answers = vec![list(20, "", "a@3"), quiet(), rule(), list(20, "", "a@3"), quiet(), rule()];
    let server = Server::new(answers, quiet);
    let (_, stats) = run_verified(&server);
    let first = verified(&stats).await;
    assert_eq!((first.outcome.as_str(), first.missing), ("different", 1));
    for _ in 0..600 {
        if stats.last_verification().is_some_and(|last| last.at > first.at) {
            break;
        }
        after(0.1).await;
    }
    let second = stats.last_verification().unwrap();
    assert!(second.at > first.at);
    assert_eq!((second.outcome.as_str(), second.missing), ("different", 1));
    after(1.0).await;
    assert_eq!(stats.relists.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn content_that_differs_at_the_same_version_is_found_by_a_sample() {
    let rewritten = || match list(20, "", "a@3") {
        Answer::Whole(code, accept, body) => {
            Answer::Whole(code, accept, body.replace(r#""spec":{}"#, r#""spec":{"of":"another history"}"#))
        }
        other @ (Answer::Stream(..) | Answer::Refuse) => other,
    };
    // The list, the comparison of names and versions, the sample, and the list that heals.
    let answers = vec![list(20, "", "a@3"), quiet(), list(20, "", "a@3"), rewritten(), rewritten()];
    let server = Server::new(answers, quiet);
    let (reader, stats) = run_verified(&server);
    let last = verified(&stats).await;
    assert_eq!(
        (last.outcome.as_str(), last.missing, last.extra, last.stale),
        ("different", 0, 0, 1),
        "{:?}",
        server.requests()
    );
    after(1.0).await;
    assert_eq!((stats.relists.get(), reader.mark().history), (1, 1));
    let held = reader.newest().unwrap();
    let held = held.json();
    let held = String::from_utf8_lossy(&held);
    assert!(held.contains("another history"), "{held}");
}
