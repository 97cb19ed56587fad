//! Watches: a cursor into the window of one table, read as fast as the client reads.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{Response, header};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::fault::{Cut, CutOrder, Fault, Gone, StreamingLists};
use super::http::{self, Body, Call, Form, negotiate};
use super::kinds::Kind;
use super::object::Stored;
use super::params::{Asked, WatchParams};
use super::read::append_object;
use super::selector::Filter;
use super::shared::Shared;
use super::status::Status;
use super::table::{Counters, Event, EventType};
use super::target::Target;

/// Bytes of a chunk, as on real servers: lines are cut wherever a chunk is full.
const CHUNK_BYTES: usize = 2048;

/// Bytes of a chunk while a lot is to be sent; an odd number, so that lines are cut in these, too.
const BULK_CHUNK_BYTES: usize = 65_521;

/// Bytes to send above which the large chunks are used.
const BULK_BYTES_MIN: usize = 256 * 1024;

/// Events read from the window, or objects from a snapshot, at a time.
const BATCH_LEN_MAX: usize = 256;

/// Number of chunks that may wait between the watch and its socket.
const CHUNKS_IN_FLIGHT_MAX: usize = 4;

/// How long before the end of a watch with `timeoutSeconds` it gets a bookmark.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// The end of a watch: the client is gone, or no more events follow.
struct Ended;

/// One open watch.
struct Watch {
    shared: Arc<Shared>,
    kind: Kind,
    version: String,
    filter: Filter,
    form: Form,
    params: WatchParams,
    /// Everything up to this revision was sent.
    cursor: u64,
    /// The revision that the client named, if any.
    begun_at: Option<u64>,
    changed: watch::Receiver<u64>,
    definition_ended: CancellationToken,
    cuts: watch::Receiver<Option<CutOrder>>,
    lags: watch::Receiver<Option<u64>>,
    /// An event that is held back until the next one was sent.
    held: Option<Bytes>,
    abort: CancellationToken,
    chunks: mpsc::Sender<Result<Frame<Bytes>, io::Error>>,
    deadline: Instant,
}

/// Answers a watch: headers at once, then events from a task of its own.
pub(super) fn start(
    shared: &Arc<Shared>,
    abort: &CancellationToken,
    call: &Call,
    target: &Target,
) -> Result<Response<Body>, Status> {
    let form = negotiate(call.header(header::ACCEPT))?;
    let streaming = shared.faults.streaming_lists_now();
    let params = WatchParams::parse(&call.query, streaming).inspect_err(|_| {
        if streaming != StreamingLists::On && call.query.get("sendInitialEvents").is_some() {
            shared.faults.count(Fault::StreamingListRefused);
        }
    })?;
    let (labels, fields) = (call.query.text("labelSelector"), call.query.text("fieldSelector"));
    let filter = Filter::parse(&target.kind, &target.namespace, labels, fields)?;
    let gone = shared.faults.take_gone(&target.resource());
    let (chunks, body) = mpsc::channel(CHUNKS_IN_FLIGHT_MAX);
    let mut state = shared.cluster.lock();
    let newest = shared.seen(state.revision);
    let table = state.table_mut(&target.resource())?;
    if gone == Some(Gone::Http) {
        let asked = if let Asked::Revision(revision) = params.asked { revision } else { 0 };
        return Err(Status::watch_too_old(asked, newest));
    }
    table.counters.watches_started += 1;
    table.counters.watches_open += 1;
    let watch = Watch {
        shared: Arc::clone(shared),
        kind: target.kind.clone(),
        version: target.version.clone(),
        filter,
        form,
        cursor: newest,
        begun_at: None,
        changed: table.changed.subscribe(),
        definition_ended: table.ended.clone(),
        cuts: shared.faults.cuts(),
        lags: shared.faults.lags(),
        held: None,
        abort: abort.clone(),
        chunks,
        deadline: deadline(shared, params.timeout_seconds),
        params,
    };
    drop(state);
    tokio::spawn(watch.run(streaming, gone.is_some()));
    let body = StreamBody::new(ReceiverStream::new(body).map(|frame| frame)).boxed_unsync();
    Ok(http::respond(200, "application/json", body))
}

fn deadline(shared: &Shared, timeout_seconds: i64) -> Instant {
    let lifetime = match timeout_seconds {
        0 => shared.config.watch_timeout_min.mul_f64(1.0 + shared.jitter()),
        seconds => Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
    };
    Instant::now() + lifetime
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.count(|counters| counters.watches_open -= 1);
    }
}

impl Watch {
    async fn run(mut self, streaming: StreamingLists, gone: bool) {
        // An error here is the end of the watch, whose last words were sent already.
        let _: Result<(), Ended> = async {
            if self.form == Form::MetadataList {
                return Ok(());
            }
            self.begin(streaming, gone).await?;
            self.follow().await
        }
        .await;
    }

    /// Sends what comes before live events.
    async fn begin(&mut self, streaming: StreamingLists, gone: bool) -> Result<(), Ended> {
        let asked_for_stream = self.params.send_initial_events == Some(true);
        let initial = match self.params.send_initial_events {
            Some(wanted) => wanted,
            None => !matches!(self.params.asked, Asked::Revision(_)),
        };
        if streaming == StreamingLists::NoProgress && self.params.bookmarks && initial {
            self.shared.faults.count(Fault::StreamingListRefused);
            let message = "a watch stream was requested by the client but the required storage feature \
                           RequestWatchProgress is disabled";
            return self.send_error(&Status::new(500, "InternalError", message)).await;
        }
        if gone {
            let asked = if let Asked::Revision(revision) = self.params.asked { revision } else { 0 };
            return self.send_error(&Status::watch_too_old(asked, self.cursor)).await;
        }
        if let (Asked::Revision(revision), true) = (self.params.asked, asked_for_stream)
            && let Err(status) = super::read::reach(&self.shared, revision).await
        {
            return self.send_error(&status).await;
        }
        if initial {
            let end_mark = self.params.bookmarks && streaming == StreamingLists::On;
            if streaming == StreamingLists::Ignored {
                self.shared.faults.count(Fault::StreamingListRefused);
            }
            return self.send_initial(end_mark).await;
        }
        if let Asked::Revision(revision) = self.params.asked {
            self.cursor = revision;
            self.begun_at = Some(revision);
            let floor = self.shared.cluster.lock().tables[&self.kind.resource()].floor;
            if revision < floor {
                return self.send_error(&Status::watch_too_old(revision, floor)).await;
            }
        }
        Ok(())
    }

    /// Sends the state as ADDED events in key order, and the end mark.
    async fn send_initial(&mut self, end_mark: bool) -> Result<(), Ended> {
        let (objects, revision) = {
            let state = self.shared.cluster.lock();
            let revision = self.shared.seen(state.revision);
            (state.matching_at(&self.kind.resource(), &self.filter, revision), revision)
        };
        self.cursor = revision;
        if let Some(cut) =
            end_mark.then(|| self.shared.faults.take_cut_before_mark(&self.kind.resource())).flatten()
        {
            let mut text = BytesMut::new();
            for object in &objects[..objects.len() / 2] {
                self.append_event(&mut text, EventType::Added, object);
            }
            self.send(text.freeze()).await?;
            return self.cut(cut).await;
        }
        if self.shared.faults.take_nameless() {
            self.send(self.nameless(EventType::Added)).await?;
        }
        for batch in objects.chunks(BATCH_LEN_MAX) {
            let mut text = BytesMut::new();
            for object in batch {
                self.append_event(&mut text, EventType::Added, object);
            }
            self.count(|counters| counters.events_sent += batch.len() as u64);
            self.send(text.freeze()).await?;
        }
        if end_mark {
            self.send_bookmark(true).await?;
        }
        Ok(())
    }

    /// Sends live events until the watch ends.
    async fn follow(&mut self) -> Result<(), Ended> {
        let before_end = self.deadline.checked_sub(LAST_BOOKMARK).filter(|at| *at > Instant::now());
        let mut last_bookmark = before_end.filter(|_| self.params.timeout_seconds > 0);
        let mut next_bookmark = Instant::now() + self.shared.config.bookmark_interval;
        loop {
            self.send_changes().await?;
            let bookmark_at = last_bookmark.map_or(next_bookmark, |last| last.min(next_bookmark));
            // A fixed order, so that any run can be repeated; writes come last, as there may always be one more.
            tokio::select! {
                biased;
                // The client is gone.
                () = self.chunks.closed() => return Err(Ended),
                // The definition was changed or deleted: send what happened until then.
                () = self.definition_ended.cancelled() => {
                    return self.send_changes().await;
                }
                // The switchboard has ordered another revision. It lives as long as the server.
                _ = self.lags.changed() => {}
                ordered = self.cuts.changed() => {
                    if ordered.is_ok() {
                        self.obey_cut().await?;
                    }
                }
                () = tokio::time::sleep_until(self.deadline) => return Ok(()),
                () = tokio::time::sleep_until(bookmark_at) => {
                    self.send_changes().await?;
                    self.send_bookmark(false).await?;
                    last_bookmark = last_bookmark.filter(|last| *last > Instant::now());
                    next_bookmark = Instant::now() + self.shared.config.bookmark_interval;
                }
                // There was a write. A closed sender means that the table was replaced, for which its token is cancelled, too.
                _ = self.changed.changed() => {}
            }
            self.wait_out_silence().await?;
        }
    }

    /// Sends everything between the cursor and now.
    async fn send_changes(&mut self) -> Result<(), Ended> {
        loop {
            let (events, newest) = {
                let state = self.shared.cluster.lock();
                // Behind the window: a real server ends such a watch without an error.
                let table = &state.tables[&self.kind.resource()];
                let newest = self.shared.faults.seen(state.revision);
                let mut events = table.events_after(self.cursor, BATCH_LEN_MAX).ok_or(Ended)?;
                events.retain(|event| event.revision <= newest);
                (events, newest)
            };
            let Some(last) = events.last().map(|e| e.revision) else {
                // No event of this kind, but a bookmark may say that this revision is reached.
                self.cursor = self.cursor.max(newest);
                return Ok(());
            };
            if self.shared.faults.take_endless_line() {
                return self.send_endless_line().await;
            }
            let text = self.render(&events);
            self.cursor = last;
            if !text.is_empty() {
                self.send(text).await?;
            }
        }
    }

    /// Converts events for this watch's selectors.
    fn render(&mut self, events: &[Event]) -> Bytes {
        let mut text = BytesMut::new();
        let mut sent = 0;
        if self.shared.faults.take_garbage_line() {
            text.extend_from_slice(b"{\"type\":\"MODI<html>not json\n");
        }
        if self.shared.faults.take_nameless() {
            text.extend_from_slice(&self.nameless(EventType::Modified));
        }
        for event in events {
            let now = event.event_type != EventType::Deleted && self.filter.matches(&event.object);
            let before = event.previous.as_ref().is_some_and(|object| self.filter.matches(object));
            if (before || now) && self.shared.faults.take_swallowed() {
                continue;
            }
            let start = text.len();
            match (before, now) {
                (false, false) => continue,
                (false, true) => self.append_event(&mut text, EventType::Added, &event.object),
                (true, true) => self.append_event(&mut text, EventType::Modified, &event.object),
                (true, false) if event.event_type == EventType::Deleted => {
                    self.append_event(&mut text, EventType::Deleted, &event.object);
                }
                // It stopped matching: the last matching state, at the new revision (U12).
                (true, false) => {
                    let previous = event.previous.as_ref().expect("it matched before, so there was a before");
                    let last = previous.at_revision(&self.kind, event.revision);
                    self.append_event(&mut text, EventType::Deleted, &last);
                }
            }
            sent += 1;
            if self.shared.faults.take_duplicate() {
                let line = text[start..].to_vec();
                text.extend_from_slice(&line);
                sent += 1;
            }
            if let (EventType::Deleted, Some(previous)) = (event.event_type, &event.previous)
                && self.shared.faults.take_ghost()
            {
                self.append_event(&mut text, EventType::Modified, previous);
                sent += 1;
            }
            if let Some(held) = self.held.take() {
                text.extend_from_slice(&held);
            } else if self.shared.faults.take_disorder() {
                self.held = Some(text.split_off(start).freeze());
            }
        }
        self.count(|counters| counters.events_sent += sent);
        text.freeze()
    }

    /// An event of an object without metadata.
    fn nameless(&self, event_type: EventType) -> Bytes {
        let (kind, api_version) = (&self.kind.kind, self.kind.api_version(&self.version));
        let object = format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}"}}"#);
        Bytes::from(format!("{{\"type\":\"{}\",\"object\":{object}}}\n", event_type.name()))
    }

    /// Sends until the client is gone.
    async fn send_endless_line(&self) -> Result<(), Ended> {
        let filler = Bytes::from(vec![b'x'; BULK_CHUNK_BYTES]);
        self.send(Bytes::from_static(br#"{"type":"MODIFIED","object":{"kind":""#)).await?;
        loop {
            self.send(filler.clone()).await?;
        }
    }

    fn append_event(&self, text: &mut BytesMut, event_type: EventType, object: &Stored) {
        text.extend_from_slice(br#"{"type":""#);
        text.extend_from_slice(event_type.name().as_bytes());
        text.extend_from_slice(br#"","object":"#);
        append_object(text, &self.kind, &self.version, self.form, object);
        text.extend_from_slice(b"}\n");
    }

    async fn send_bookmark(&mut self, end_mark: bool) -> Result<(), Ended> {
        // A watch from a future revision has nothing to confirm until the cluster gets there, and the client knows the
        // revision where it began.
        let ahead = self.cursor > self.shared.faults.seen(self.shared.cluster.revision());
        let news = end_mark || self.begun_at.is_none_or(|begun_at| self.cursor > begun_at);
        if !self.params.bookmarks || ahead || !news || self.shared.faults.takes_bookmark() {
            return Ok(());
        }
        let (kind, api_version) = match self.form {
            Form::Plain => (self.kind.kind.clone(), self.kind.api_version(&self.version)),
            Form::Metadata | Form::MetadataList => ("PartialObjectMetadata".into(), "meta.k8s.io/v1".into()),
        };
        let mark = if end_mark { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
        let line = format!(
            r#"{{"type":"BOOKMARK","object":{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{{"resourceVersion":"{}"{mark}}}}}}}"#,
            self.cursor
        );
        self.count(|counters| counters.bookmarks += 1);
        self.send(Bytes::from(line + "\n")).await
    }

    /// The one ERROR event that a watch can have; it is the last.
    async fn send_error(&self, status: &Status) -> Result<(), Ended> {
        let line = format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", status.to_json());
        self.send(Bytes::from(line)).await?;
        Err(Ended)
    }

    async fn send(&self, mut text: Bytes) -> Result<(), Ended> {
        let usual = if text.len() > BULK_BYTES_MIN { BULK_CHUNK_BYTES } else { CHUNK_BYTES };
        let size = self.shared.faults.chunk_bytes_now().unwrap_or(usual);
        while !text.is_empty() {
            let chunk = text.split_to(size.min(text.len()));
            self.chunks.send(Ok(Frame::data(chunk))).await.map_err(|_| Ended)?;
        }
        Ok(())
    }

    async fn obey_cut(&mut self) -> Result<(), Ended> {
        let order = self.cuts.borrow_and_update().clone();
        let Some(order) = order.filter(|order| order.includes(&self.kind.resource())) else { return Ok(()) };
        self.shared.faults.count(Fault::Cut);
        self.cut(order.cut).await
    }

    /// Ends the watch in this way.
    async fn cut(&self, cut: Cut) -> Result<(), Ended> {
        match cut {
            Cut::Clean => {}
            Cut::MidLine => {
                let half = format!(
                    r#"{{"type":"MODIFIED","object":{}"metadata":{{"na"#,
                    self.kind.head(&self.version)
                );
                self.send(Bytes::from(half)).await?;
            }
            Cut::Abort => {
                self.abort.cancel();
                // Ending the body now could still reach the client as a clean end, before the reset does.
                self.chunks.closed().await;
            }
        }
        Err(Ended)
    }

    /// Stays silent for as long as the switchboard orders it. The deadline is ignored, as by a dead peer.
    async fn wait_out_silence(&self) -> Result<(), Ended> {
        if !self.shared.faults.is_silent() {
            return Ok(());
        }
        self.shared.faults.count(Fault::Silenced);
        while self.shared.faults.is_silent() {
            tokio::select! {
                biased;
                () = self.chunks.closed() => return Err(Ended),
                () = tokio::time::sleep(Duration::from_millis(10)) => {}
            }
        }
        Ok(())
    }

    fn count(&self, change: impl FnOnce(&mut Counters)) {
        let mut state = self.shared.cluster.lock();
        if let Some(table) = state.tables.get_mut(&self.kind.resource()) {
            change(&mut table.counters);
        }
    }
}
