//! Lists and watches of the Kubernetes interface, compared with the real kube-apiserver that informerd follows: the
//! same objects, byte for byte, the same requests, the same clients.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::Bench;
use crate::client::{Measure, Readers};
use crate::process::Usage;
use crate::real_server::{RealServer, Writer};
use crate::report::{Row, median};
use crate::server::{QUIET, Server, get, wait_until};

const API_SERVER: &str = "kube-apiserver 1.36";
const COLLECTION: &str = "/api/v1/namespaces/default/configmaps";
/// A list from the API server's watch cache, its cheapest answer.
const LIST: &str = "/api/v1/configmaps?resourceVersion=0";
/// Size of an object's content, in bytes.
const BYTES: usize = 4500;
/// Time between two writes.
const INTERVAL: Duration = Duration::from_millis(20);

/// The cost of one round of writes at the two servers.
struct Cost {
    api: f64,
    informerd: f64,
}

pub(crate) fn run(bench: &mut Bench) -> anyhow::Result<()> {
    let Some(api) = RealServer::start()? else {
        println!("skipped: no binaries of an API server, set KUBEBUILDER_ASSETS to the folder that has them");
        return Ok(());
    };
    let api = &api;
    let objects = bench.pick(1000, 20);
    let mut writer = api.writer()?;
    for number in 0..objects {
        let text = "a line of what a program is told\\n".repeat(BYTES / 34);
        let body = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"config-{number:05}"}},"data":{{"text":"{text}"}}}}"#
        );
        writer.send("POST", COLLECTION, &body)?;
    }
    // Nothing is dropped, so that both servers send the same.
    let flags: Vec<_> = QUIET.into_iter().chain(["--keep-managed-fields", "--keep-last-applied"]).collect();
    let (server, _) = Server::start(&api.url(), &["configmaps"], &flags)?;
    lists(bench, api, &server)?;
    watches(bench, api, &server, &mut writer, objects)
}

fn lists(bench: &mut Bench, api: &RealServer, server: &Server) -> anyhow::Result<()> {
    let (times, mut ours, mut theirs) = (bench.pick(20, 2), Vec::new(), Vec::new());
    let mut bytes = (0, 0);
    for _ in 0..bench.pick(3, 1) {
        let measure = |address: SocketAddr, usage: &dyn Fn() -> anyhow::Result<Usage>| {
            let (before, mut bytes) = (usage()?.cpu_seconds, 0);
            for _ in 0..times {
                bytes = get(address, LIST)?.len();
            }
            anyhow::Ok(((usage()?.cpu_seconds - before) * 1e3 / f64::from(times), bytes))
        };
        let (cost, length) = measure(server.address, &|| server.usage())?;
        ours.push(cost);
        bytes.0 = length;
        let (cost, length) = measure(api.address, &|| api.usage())?;
        theirs.push(cost);
        bytes.1 = length;
    }
    let same = bytes.0.abs_diff(bytes.1) * 100 < bytes.1;
    anyhow::ensure!(same, "lists of {} and {} bytes are not the same", bytes.0, bytes.1);
    let case = format!("list of {:.1} MB", bytes.0 as f64 / 1e6);
    let row = Row::new("kube-api", case).value("server CPU", median(ours), "ms/list");
    bench.report.add(row.against(API_SERVER, median(theirs)));
    Ok(())
}

fn watches(
    bench: &mut Bench,
    api: &RealServer,
    server: &Server,
    writer: &mut Writer,
    objects: usize,
) -> anyhow::Result<()> {
    let clients = bench.pick(1000, 10);
    let writes = bench.pick(200, 10);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for turn in 0..bench.pick(3, 1) {
        let alone = write(api, server, writer, turn * 3, writes, objects, None)?;
        let frames = (clients * writes) as f64;
        let readers = watch(server.address, clients)?;
        let cost = write(api, server, writer, turn * 3 + 1, writes, objects, Some((&readers, clients)))?;
        ours.push((cost.informerd - alone.informerd) * 1e6 / frames);
        drop(readers);
        wait_until("clients to leave", || server.subscribers().is_ok_and(|count| count == 0))?;
        let readers = watch(api.address, clients)?;
        let cost = write(api, server, writer, turn * 3 + 2, writes, objects, Some((&readers, clients)))?;
        theirs.push((cost.api - alone.api) * 1e6 / frames);
    }
    let case = format!("{clients} watches, {:.1} KB", BYTES as f64 / 1e3);
    let row = Row::new("kube-api", case).value("server CPU beyond the writes'", median(ours), "s/M frames");
    bench.report.add(row.against(API_SERVER, median(theirs)));
    Ok(())
}

/// Clients that watch from the current version on.
fn watch(address: SocketAddr, count: usize) -> anyhow::Result<Readers> {
    let list = get(address, "/api/v1/configmaps?limit=1")?;
    let prefix = br#""resourceVersion":""#;
    let at = memchr::memmem::find(&list, prefix).context("a list has a version")? + prefix.len();
    let version: String =
        list[at..].iter().take_while(|byte| **byte != b'"').map(|byte| *byte as char).collect();
    let path = format!("/api/v1/configmaps?watch=true&timeoutSeconds=3600&resourceVersion={version}");
    Readers::connect(address, count, Some(&path), Measure::Events)
}

/// Changes objects in turn and waits until every client has each change.
fn write(
    api: &RealServer,
    server: &Server,
    writer: &mut Writer,
    turn: usize,
    writes: usize,
    objects: usize,
    readers: Option<(&Readers, usize)>,
) -> anyhow::Result<Cost> {
    let expected =
        readers.map(|(readers, clients)| anyhow::Ok(readers.seen()?.frames + (clients * writes) as u64));
    let expected = expected.transpose()?;
    let before = (api.usage()?.cpu_seconds, server.usage()?.cpu_seconds);
    for number in 0..writes {
        let began = Instant::now();
        let patch = format!(r#"{{"metadata":{{"annotations":{{"turn":"{turn:03}-{number:05}"}}}}}}"#);
        let path = format!("{COLLECTION}/config-{:05}", number % objects);
        writer.send("PATCH", &path, &patch)?;
        std::thread::sleep(INTERVAL.saturating_sub(began.elapsed()));
    }
    if let (Some((readers, _)), Some(expected)) = (readers, expected) {
        readers.wait_for(expected)?;
    }
    let after = (api.usage()?.cpu_seconds, server.usage()?.cpu_seconds);
    Ok(Cost { api: after.0 - before.0, informerd: after.1 - before.1 })
}
