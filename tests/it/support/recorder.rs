//! A client that follows the contract: it applies events, resumes with its token, and checks the promises.

use std::net::SocketAddr;
use std::time::Duration;

use super::check::{Objects, Versions, key, version};
use super::client::{Item, Stream, StreamEvent, Transport};

/// A client of one stream, over any number of connections.
pub(crate) struct Recorder {
    /// The server's address; may be changed between connections.
    pub(crate) address: SocketAddr,
    /// The transport; may be changed between connections.
    pub(crate) transport: Transport,
    target: String,
    stream: Option<Stream>,
    token: Option<String>,
    state: Objects,
    versions: Versions,
    /// Whether objects may be repeated (`resyncSeconds`).
    pub(crate) resyncs: bool,
    /// Whether the state is complete: SYNCED came, or the client resumed from a complete state.
    pub(crate) synced: bool,
    /// The reasons of the RESETs received.
    pub(crate) resets: Vec<String>,
    /// Number of events received, bookmarks included.
    pub(crate) events: usize,
    /// The last event of an object: its type, key and version.
    pub(crate) last: Option<(String, String, u128)>,
    /// Number of BOOKMARK and SYNCED received.
    pub(crate) marks: usize,
    /// Number of connections made.
    pub(crate) connections: usize,
}

/// Wait between attempts to connect while the server is down.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

impl Recorder {
    /// A client that has not connected yet.
    pub(crate) fn new(transport: Transport, address: SocketAddr, target: &str) -> Self {
        Self {
            address,
            transport,
            target: target.to_owned(),
            stream: None,
            token: None,
            state: Objects::new(),
            versions: Versions::default(),
            resyncs: false,
            synced: false,
            resets: Vec::new(),
            events: 0,
            last: None,
            marks: 0,
            connections: 0,
        }
    }

    /// A client that is connected and has a complete state.
    pub(crate) async fn connect(transport: Transport, address: SocketAddr, target: &str) -> Self {
        let mut recorder = Self::new(transport, address, target);
        recorder.wait_until("SYNCED", |recorder| recorder.synced).await;
        recorder
    }

    /// The objects that it holds, by `Kind/namespace/name`.
    pub(crate) fn state(&self) -> &Objects {
        &self.state
    }

    /// The token with which it would resume.
    pub(crate) fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Closes the connection.
    pub(crate) fn disconnect(&mut self) {
        self.stream = None;
    }

    /// Connects with its token, with as many attempts as it takes; does nothing while it is connected.
    pub(crate) async fn reconnect(&mut self) {
        while self.stream.is_none() {
            let token = self.token.clone();
            match Stream::open(self.transport, self.address, &self.target, token.as_deref()).await {
                Ok(stream) => {
                    self.stream = Some(stream);
                    self.connections += 1;
                    self.versions.connected(token.as_deref());
                    if token.is_none() {
                        // Without a token everything is sent again.
                        self.state.clear();
                        self.synced = false;
                    }
                }
                // The server is down, or does not serve this resource yet.
                Err(answer) if matches!(answer.head.split(' ').nth(1), None | Some("0" | "503")) => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                Err(answer) => panic!("{}: {}", self.target, answer.head.clone() + answer.text()),
            }
        }
    }

    /// Receives the next item; `false` if the connection ended (the next call connects again). Must not be cancelled:
    /// use [`Recorder::wait_until`] for bounded waits.
    pub(crate) async fn step(&mut self) -> bool {
        self.reconnect().await;
        let Some(stream) = &mut self.stream else { return false };
        match stream.item().await {
            Item::Event(event) => self.take(&event),
            Item::Heartbeat | Item::Retry(_) => {}
            Item::End(_) | Item::Broken => self.stream = None,
        }
        self.stream.is_some()
    }

    /// Receives events until a condition holds, and reconnects as needed; panics at the time limit.
    pub(crate) async fn wait_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let reached = tokio::time::timeout(super::PATIENCE, async {
            while !holds(self) {
                self.step().await;
            }
        })
        .await;
        assert!(
            reached.is_ok(),
            "not in time: {what} ({:?} {}, {} events, {} objects, token {:?}, resets {:?})",
            self.transport,
            self.target,
            self.events,
            self.state.len(),
            self.token,
            self.resets
        );
    }

    /// Receives events until it holds exactly these objects; panics with the difference at the time limit.
    pub(crate) async fn wait_for_state(&mut self, expected: &Objects) {
        let reached = tokio::time::timeout(super::PATIENCE, async {
            while !self.synced || self.state != *expected {
                self.step().await;
            }
        })
        .await;
        if reached.is_err() {
            let missing: Vec<_> = expected.keys().filter(|key| !self.state.contains_key(*key)).collect();
            let left: Vec<_> = self.state.keys().filter(|key| !expected.contains_key(*key)).collect();
            let differs = |(key, object): &(&String, &serde_json::Value)| {
                self.state.get(*key).is_some_and(|held| held != *object)
            };
            let other: Vec<_> = expected.iter().filter(differs).map(|(key, _)| key).collect();
            panic!(
                "P1: {:?} {}: missing {missing:?}, left over {left:?}, different {other:?}, token {:?}",
                self.transport, self.target, self.token
            );
        }
    }

    /// Applies one event: put, remove, or clear.
    fn take(&mut self, event: &StreamEvent) {
        self.events += 1;
        self.last = matches!(&*event.kind, "ADDED" | "MODIFIED" | "DELETED")
            .then(|| (event.kind.clone(), key(&event.object), version(&event.object)));
        match &*event.kind {
            "ADDED" | "MODIFIED" => {
                self.versions.event(event, self.resyncs && self.synced);
                self.state.insert(key(&event.object), event.object.clone());
            }
            "DELETED" => {
                self.versions.event(event, false);
                self.state.remove(&key(&event.object));
            }
            "RESET" => {
                self.versions.reset(event.reason());
                self.state.clear();
                self.synced = false;
                self.resets.push(event.reason().to_owned());
            }
            "SYNCED" => {
                self.synced = true;
                self.marks += 1;
            }
            "BOOKMARK" => self.marks += 1,
            other => panic!("no such event: {other}"),
        }
        self.remember(event);
    }

    /// Keeps the token that a client may resume from after this event.
    fn remember(&mut self, event: &StreamEvent) {
        // A client must not resume from the version of a deletion: in a relist's changes deletions come first.
        let live = self.synced && matches!(&*event.kind, "ADDED" | "MODIFIED");
        if let Some(token) = &event.token {
            // A token of version 0 makes the client start over. It covers no events.
            self.token = Some(token.clone());
            if self.synced {
                self.versions.covered();
            }
        } else if let (true, Some(token)) = (live, self.token.as_deref()) {
            // If a single informer is followed, the event's own version serves as a token.
            let versions = token.trim_end_matches(",.kind:bookmark");
            if let Some((name, _)) = versions.rsplit_once(':').filter(|_| !versions.contains(',')) {
                self.token = Some(format!("{name}:{}", version(&event.object)));
                self.versions.covered();
            }
        }
    }
}
