//! The programs that informerd is compared with: kube-rs' watcher with its store, and a loop that only reads the
//! bytes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Client, ResourceExt as _};
use memchr::memmem;

use crate::process::{Process, Usage};

/// A program that lists and watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// kube-rs with k8s-openapi's type.
    Typed,
    /// kube-rs with `DynamicObject`.
    Dynamic,
    /// Reads the bytes and drops them.
    Bytes,
}

/// How it requests the first state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Initial {
    /// A list in pages of 500.
    Page,
    /// A streaming list.
    Stream,
}

/// A contender in a process of its own.
pub(crate) struct Contender(Process);

/// Objects in a page, as informerd and kube-rs request them.
const PAGE_LEN: usize = 500;

/// The mark at the end of a streaming list.
const MARK: &[u8] = b"initial-events-end";

/// Longer than any sync here takes.
const PATIENCE: Duration = Duration::from_secs(300);

impl Contender {
    /// Starts it and waits until it has everything. Returns the time that this took, and the number of objects that
    /// it counts.
    pub(crate) fn start(url: &str, kind: Kind, initial: Initial) -> anyhow::Result<(Self, Duration, usize)> {
        let began = Instant::now();
        let mut process = Process::role("contender")?;
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.map(|value| value.get_name().to_owned()).unwrap_or_default()
        };
        let (kind, initial) = (name(kind.to_possible_value()), name(initial.to_possible_value()));
        process.send(&format!("{url} {kind} {initial}"))?;
        let count = process.receive()?.parse()?;
        Ok((Self(process), began.elapsed(), count))
    }

    /// Waits until it has everything again.
    pub(crate) fn synced_again(&mut self) -> anyhow::Result<usize> {
        Ok(self.0.receive()?.parse()?)
    }

    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        self.0.usage()
    }

    pub(crate) fn reset_peak(&self) -> anyhow::Result<()> {
        self.0.reset_peak()
    }
}

/// Plays the role until standard input ends. A line says what to do; the number of objects is printed each time
/// everything has arrived.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut lines = std::io::stdin().lock().lines();
    let line = lines.next().context("nothing to do")??;
    let [url, kind, initial] = line.split(' ').collect::<Vec<_>>()[..] else { bail!("{line:?}") };
    let parse = |text| Initial::from_str(text, false).map_err(anyhow::Error::msg);
    let initial = parse(initial)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let client = || anyhow::Ok(Client::try_from(kube::Config::new(url.parse()?))?);
    match Kind::from_str(kind, false).map_err(anyhow::Error::msg)? {
        Kind::Bytes => println!("{}", read_everything(url, initial)?),
        Kind::Typed => {
            let client = runtime.block_on(async { client() })?;
            runtime.spawn(async move {
                let (reader, writer) = reflector::store();
                let stream = watcher(Api::<Pod>::all(client), config(initial)).default_backoff();
                let stream = stream.modify(|pod| pod.managed_fields_mut().clear());
                Box::pin(tell(reflector(writer, stream), || reader.len())).await;
            });
        }
        Kind::Dynamic => {
            let client = runtime.block_on(async { client() })?;
            runtime.spawn(async move {
                let pods = ApiResource::erase::<Pod>(&());
                let writer = reflector::store::Writer::new(pods.clone());
                let reader = writer.as_reader();
                let api = Api::<DynamicObject>::all_with(client, &pods);
                let stream = watcher(api, config(initial)).default_backoff();
                let stream = stream.modify(|pod| pod.managed_fields_mut().clear());
                Box::pin(tell(reflector(writer, stream), || reader.len())).await;
            });
        }
    }
    lines.try_for_each(|line| line.map(drop))?;
    Ok(())
}

fn config(initial: Initial) -> watcher::Config {
    let config = watcher::Config::default();
    match initial {
        Initial::Page => config,
        Initial::Stream => config.streaming_lists(),
    }
}

/// Drives a reflector without end, and prints each time its store is complete.
async fn tell<K>(stream: impl Stream<Item = watcher::Result<watcher::Event<K>>>, count: impl Fn() -> usize) {
    let mut stream = pin!(stream);
    while let Some(event) = stream.next().await {
        if matches!(event, Ok(watcher::Event::InitDone)) {
            println!("{}", count());
        }
    }
}

/// Reads all pods as bytes. Returns the number of objects that it counts in them.
fn read_everything(url: &str, initial: Initial) -> anyhow::Result<usize> {
    let authority = url.trim_start_matches("http://").trim_end_matches('/');
    let mut socket = BufReader::with_capacity(256 << 10, TcpStream::connect(authority)?);
    socket.get_ref().set_read_timeout(Some(PATIENCE))?;
    socket.get_ref().set_nodelay(true)?;
    let ask = |query: &str, socket: &mut BufReader<TcpStream>| {
        // In one write: of several writes the kernel holds the second back until the first is acknowledged, 40 ms
        // later.
        let request = format!("GET /api/v1/pods?{query} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        socket.get_mut().write_all(request.as_bytes())
    };
    if initial == Initial::Stream {
        ask(
            "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            &mut socket,
        )?;
        return read_body(&mut socket, |body| memmem::find(body, MARK).is_some())
            .map(|(lines, _)| lines.saturating_sub(1));
    }
    let (mut count, mut token) = (0, String::new());
    loop {
        ask(&format!("limit={PAGE_LEN}&continue={token}"), &mut socket)?;
        let (_, body) = read_body(&mut socket, |_| false)?;
        count += memmem::find_iter(&body, br#","uid":""#).count();
        // Metadata precedes the items, and the continue token is base64.
        let head = String::from_utf8_lossy(&body[..body.len().min(1000)]).into_owned();
        let Some((_, rest)) = head.split_once(r#""continue":""#) else { return Ok(count) };
        token = rest.split('"').next().unwrap_or_default().to_owned();
    }
}

/// Reads one body to its end, or until its last bytes are a mark. Returns the number of lines, and the body itself if
/// it ended.
fn read_body(
    socket: &mut BufReader<TcpStream>,
    is_last: impl Fn(&[u8]) -> bool,
) -> anyhow::Result<(usize, Vec<u8>)> {
    let (mut length, mut line) = (None, String::new());
    while line != "\r\n" {
        line.clear();
        anyhow::ensure!(socket.read_line(&mut line)? > 0, "no answer");
        let lower = line.to_ascii_lowercase();
        length = lower.strip_prefix("content-length:").and_then(|text| text.trim().parse().ok()).or(length);
    }
    let is_stream = length.is_none() && is_last(MARK);
    let mut body = Vec::new();
    if let Some(length) = length {
        body.resize(length, 0);
        socket.read_exact(&mut body)?;
        return Ok((0, body));
    }
    let mut lines = 0;
    loop {
        line.clear();
        socket.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim(), 16).context("a chunk's size")?;
        let start = body.len();
        body.resize(start + size + 2, 0);
        socket.read_exact(&mut body[start..])?;
        body.truncate(start + size);
        lines += memchr::memchr_iter(b'\n', &body[start..]).count();
        if size == 0 || is_last(&body[start.saturating_sub(64)..]) {
            return Ok((lines, body));
        }
        if is_stream {
            // Only the end matters, and a mark may be cut in two.
            body.drain(..body.len().saturating_sub(64));
        }
    }
}
