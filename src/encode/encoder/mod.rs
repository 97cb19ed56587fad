//! Encodes events as SSE, NDJSON, WebSocket messages, and lines of the API server's own watch.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;

use super::list::{PARTIAL_HEAD, whole};
use super::table::TableEncoder;
use super::{Checksum, Coding, Frames, REASON_ANNOTATION, RESUME_ANNOTATION, ws};
use crate::hub::{
    BOOKMARK_PART, Event, EventKind, Informer, Payload, RENDERINGS, Rendered, ResetReason, Resumable,
    ResumeToken, SharedBatch, TokenKind,
};
use crate::k8s::table::Timestamp;
use crate::k8s::{INITIAL_EVENTS_END, Object, ResourceVersion, Status};

mod framing;
mod world;
mod world_state;

pub use framing::Framing;
use framing::{chunk_of, framed};
pub use world_state::StateRoom;
use world_state::World;

/// The format of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Server-Sent Events: `event`, `id` (the resume token), `data`.
    Sse,
    /// One JSON value in each line.
    Ndjson,
    /// One text message for each event.
    WebSocket,
    /// The API server's own watch.
    Kubernetes(Kubernetes),
}

/// The form of the API server's own watch: each event is a line, or a text message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kubernetes {
    /// Text messages, not lines.
    pub messages: bool,
    /// Objects as `PartialObjectMetadata`.
    pub metadata: bool,
    /// Whether the client asked for bookmarks.
    pub bookmarks: bool,
}

/// Streams of one subscription with the same kind of encoder get the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderKind {
    format: Format,
    coding: Coding,
    token_kind: TokenKind,
}

/// Turns the events of a subscription into frames. Keeps the position of each informer, for the tokens.
pub struct Encoder {
    format: Format,
    coding: Coding,
    /// What it has said, before compression.
    checksum: Checksum,
    sources: Box<[EncodedSource]>,
    /// The member `"id"` of each event, with a comma, where several subscriptions share a connection; otherwise empty.
    label: Box<str>,
    /// Whether the client may hold events from beyond each token, until it starts over.
    holds_beyond: bool,
    /// Reused for each prefix.
    prefix: String,
    /// Shows objects as tables, with ages as of the clock.
    tables: Option<Box<(TableEncoder, Clock)>>,
    /// Puts each batch into one message.
    world: Option<Box<World>>,
}

/// A clock, handed in as this room has none.
pub type Clock = fn() -> Timestamp;

struct EncodedSource {
    informer: Arc<Informer>,
    /// Where a client that is cut off after the last event resumes.
    position: Resumable,
}

/// The content between prefix and suffix of an event.
enum Body {
    /// A packed one is unpacked only when it is appended.
    Object(Object),
    Whole(Bytes),
    Pieces(Bytes, String, Bytes),
    /// An object's metadata alone: before and after a replaced version, if it is replaced.
    Partial(Bytes, String, Bytes),
}

impl Format {
    /// Whether it is carried by a WebSocket.
    pub fn is_websocket(self) -> bool {
        match self {
            Self::WebSocket => true,
            Self::Sse | Self::Ndjson => false,
            Self::Kubernetes(kubernetes) => kubernetes.messages,
        }
    }

    /// Its slot in a shared batch. Whether bookmarks are wanted does not matter, as a shared batch has none.
    fn slot(self, coding: Coding, tokens: TokenKind) -> usize {
        let slot = match (self, coding) {
            (Self::Sse, coding) if tokens == TokenKind::Bookmark => match coding {
                Coding::Identity => 11,
                Coding::Gzip => 12,
                Coding::Zstd => 13,
            },
            (Self::Sse, Coding::Identity) => 0,
            (Self::Ndjson, Coding::Identity) => 1,
            (Self::WebSocket, _) => 2,
            (Self::Kubernetes(Kubernetes { messages, metadata, .. }), _) => {
                3 + usize::from(messages) + 2 * usize::from(metadata)
            }
            (Self::Sse, Coding::Gzip) => 7,
            (Self::Ndjson, Coding::Gzip) => 8,
            (Self::Sse, Coding::Zstd) => 9,
            (Self::Ndjson, Coding::Zstd) => 10,
        };
        debug_assert!(slot < RENDERINGS);
        slot
    }
}

impl EncoderKind {
    /// An encoder of this kind for a subscription to these informers, in its order.
    pub fn encoder<'a>(self, informers: impl IntoIterator<Item = &'a Arc<Informer>>) -> Encoder {
        let encoder = Encoder::new(self.format, informers).compressed(self.coding);
        match self.token_kind {
            TokenKind::PerEvent => encoder,
            TokenKind::Bookmark => encoder.after_bookmark(),
        }
    }
}

impl Encoder {
    /// An encoder for a subscription to these informers, in its order.
    pub fn new<'a>(format: Format, informers: impl IntoIterator<Item = &'a Arc<Informer>>) -> Self {
        let sources = informers.into_iter().map(EncodedSource::new).collect();
        Self {
            format,
            coding: Coding::Identity,
            checksum: Checksum::default(),
            sources,
            label: Box::default(),
            holds_beyond: false,
            prefix: String::new(),
            tables: None,
            world: None,
        }
    }

    /// Encodes for a client that resumed from a bookmark's token. The client may hold events from beyond that token and from beyond
    /// every later one. So each token is that of a bookmark, until a RESET.
    #[must_use]
    pub fn after_bookmark(self) -> Self {
        Self { holds_beyond: true, ..self }
    }

    /// Begins at the positions of the token with which a stream resumes, so that its first events have tokens of all informers.
    /// Not for messages of the state of the world: there, informers without a position say that the state is incomplete.
    #[must_use]
    pub fn resumed_from(mut self, token: &ResumeToken) -> Self {
        for source in self.sources.iter_mut().filter(|_| self.world.is_none()) {
            if let Some(position) = token.get(source.informer.token_name()) {
                source.position = position.clone();
            }
        }
        self
    }

    /// Puts an id into each event, by which a client tells subscriptions on one connection apart, and its resume token.
    #[must_use]
    pub fn labelled(mut self, id: &str) -> Self {
        self.label = format!(r#""id":{},"#, serde_json::Value::from(id)).into();
        self
    }

    /// Whether each event has an id.
    pub fn is_labelled(&self) -> bool {
        !self.label.is_empty()
    }

    /// Compresses the stream. Only for SSE and NDJSON.
    #[must_use]
    pub fn compressed(mut self, coding: Coding) -> Self {
        self.coding = coding;
        self
    }

    /// Shows objects as tables. Only for a subscription to one informer.
    #[must_use]
    pub fn with_tables(mut self, table: TableEncoder, clock: Clock) -> Self {
        self.tables = Some(Box::new((table, clock)));
        self
    }

    /// Its kind; `None` if no other stream gets the same bytes.
    pub fn kind(&self) -> Option<EncoderKind> {
        let kind = EncoderKind { format: self.format, coding: self.coding, token_kind: self.token_kind() };
        self.is_shared().then_some(kind)
    }

    /// Whether streams of the same kind get the same bytes. Tables do not: their ages depend on the time, and the first one of a
    /// stream also has the columns. Events with an id do not either.
    fn is_shared(&self) -> bool {
        self.tables.is_none() && self.world.is_none() && !self.is_labelled()
    }

    /// The kind of its tokens. Over the other transports than SSE only bookmarks have one.
    pub fn token_kind(&self) -> TokenKind {
        if self.format == Format::Sse && !self.holds_beyond {
            TokenKind::PerEvent
        } else {
            TokenKind::Bookmark
        }
    }

    /// Replaces the informer of a source.
    pub fn replace(&mut self, source: usize, informer: &Arc<Informer>) {
        self.sources[source].informer = informer.clone();
    }

    /// Appends an ERROR event that says why the stream ends. It has no token, as it brings nothing new.
    pub fn error(&mut self, status: &Status, out: &mut Frames) {
        let mut json = status.to_line();
        json.pop();
        self.prefix.clear();
        if self.format == Format::Sse {
            self.prefix.push_str("event: ERROR\ndata: ");
        }
        self.put_envelope("ERROR", None, Body::Whole(json.into()), out);
        out.cut();
    }

    /// Appends events, each complete.
    pub fn encode(&mut self, events: &[Event], out: &mut Frames) {
        if let Some(mut world) = self.world.take() {
            self.messages(&mut world, events, out);
            self.world = Some(world);
            return;
        }
        for event in events {
            self.event(event, out);
        }
        out.cut();
    }

    /// A shared batch of the one informer. The first stream of a format and coding that sends it renders it for all others.
    pub fn shared(&mut self, batch: &SharedBatch, framing: Framing) -> Bytes {
        let (is_shared, coding) = (self.is_shared(), self.coding);
        let slot = self.format.slot(coding, self.token_kind());
        let mut render = || {
            let mut frames = Frames::new();
            let events: Vec<_> = batch.events().collect();
            self.encode(&events, &mut frames);
            let (block, Checksum { crc, len }) = coding.block(frames);
            Rendered { crc, len, ..chunk_of(&block.to_vec()) }
        };
        let own;
        let form = if is_shared {
            batch.rendered(slot, render)
        } else {
            own = render();
            &own
        };
        self.checksum.append(Checksum { crc: form.crc, len: form.len });
        self.advance_to([batch.position()].iter());
        framed(form, framing)
    }

    /// Events in one piece, to be written to many streams.
    pub fn whole(&mut self, events: &[Event], framing: Framing) -> Bytes {
        let mut frames = Frames::new();
        events.iter().for_each(|event| self.event(event, &mut frames));
        self.in_one_piece(frames, framing)
    }

    /// A heartbeat in one piece; empty for formats without one.
    pub fn whole_heartbeat(&mut self, framing: Framing) -> Bytes {
        let mut frames = Frames::new();
        self.heartbeat(&mut frames);
        self.in_one_piece(frames, framing)
    }

    fn in_one_piece(&mut self, frames: Frames, framing: Framing) -> Bytes {
        let mut out = Frames::new();
        self.append(frames, framing, &mut out);
        out.to_vec().into()
    }

    /// Appends what comes before everything else of a stream.
    pub fn begin(&self, framing: Framing, out: &mut Frames) {
        let mut head = Frames::new();
        head.put_bytes(self.coding.head());
        framing.append(head, out);
    }

    /// Gives back what it reuses from event to event. For streams that wait.
    pub fn rest(&mut self) {
        self.prefix = String::new();
    }

    /// Appends frames that this encoder has made, compressed and framed.
    pub fn append(&mut self, frames: Frames, framing: Framing, out: &mut Frames) {
        let (block, checksum) = self.coding.block(frames);
        if self.coding != Coding::Identity {
            self.checksum.append(checksum);
        }
        framing.append(block, out);
    }

    /// Appends the end of a stream.
    pub fn end(&mut self, framing: Framing, out: &mut Frames) {
        let mut end = Frames::new();
        end.put_bytes(&self.coding.end(self.checksum));
        framing.append(end, out);
        framing.end(out);
    }

    /// The checksum of what it has said so far, before compression; that of nothing without compression.
    pub fn checksum(&self) -> Checksum {
        self.checksum
    }

    /// Adds what another encoder has said for this stream.
    pub fn said_elsewhere(&mut self, checksum: Checksum) {
        self.checksum.append(checksum);
    }

    /// How the stream is compressed.
    pub fn coding(&self) -> Coding {
        self.coding
    }

    /// Sets the positions after events that another encoder has encoded, in the order of the informers.
    pub fn advance_to<'a>(&mut self, positions: impl Iterator<Item = &'a Resumable>) {
        for (source, position) in self.sources.iter_mut().zip(positions) {
            source.position.clone_from(position);
        }
    }

    /// The format of the stream.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Appends a heartbeat: a comment, an empty line or a ping.
    pub fn heartbeat(&self, out: &mut Frames) {
        match self.format {
            Format::Sse => out.put(":\n\n"),
            Format::Ndjson => out.put("\n"),
            Format::WebSocket => out.put_bytes(&ws::ping_frame()),
            Format::Kubernetes(kubernetes) if kubernetes.messages => out.put_bytes(&ws::ping_frame()),
            // Its clients take every line for an event, even an empty one.
            Format::Kubernetes(_) => {}
        }
        out.cut();
    }

    /// Appends bytes that mean nothing: a client that has left refuses them, and any other client ignores them.
    pub fn probe(&self, out: &mut Frames) {
        match self.format {
            // White space before the next event.
            Format::Kubernetes(kubernetes) if !kubernetes.messages => out.put(" "),
            Format::Sse | Format::Ndjson | Format::WebSocket | Format::Kubernetes(_) => self.heartbeat(out),
        }
        out.cut();
    }

    /// Appends the time after which an EventSource reconnects, in milliseconds; nothing for other formats.
    pub fn retry(&self, retry_ms: u64, out: &mut Frames) {
        if self.format == Format::Sse {
            out.put(&format!("retry: {retry_ms}\n\n"));
            out.cut();
        }
    }

    fn event(&mut self, event: &Event, out: &mut Frames) {
        self.moves_to(event);
        let unknown = matches!(self.format, Format::Kubernetes(kubernetes) if !kubernetes.bookmarks);
        if unknown && matches!(event.payload, Payload::Mark { .. }) {
            return;
        }
        let body = match &mut self.tables {
            Some(tables) => {
                let (table, clock) = &mut **tables;
                table_of(table, clock(), &self.sources[event.source], event)
            }
            None => self.body(event),
        };
        // Except over SSE, SYNCED is a BOOKMARK with an annotation, as in Kubernetes.
        let kind = if event.kind == EventKind::Synced { EventKind::Bookmark } else { event.kind }.as_str();
        self.prefix.clear();
        if self.format == Format::Sse {
            let _ = write!(self.prefix, "event: {}\nid: ", event.kind.as_str());
            write_event_token(&self.sources, event, self.holds_beyond, &mut self.prefix);
            self.prefix.push_str("\ndata: ");
        }
        let with_token = self.is_labelled().then_some(event);
        self.put_envelope(kind, with_token, body, out);
    }

    /// Appends `{"type":…,"object":…}` after the prefix, framed. If an event is given, its token is a member, too.
    fn put_envelope(&mut self, kind: &str, event: Option<&Event>, body: Body, out: &mut Frames) {
        let before = self.prefix.len();
        self.prefix.push('{');
        self.prefix.push_str(&self.label);
        if let Some(event) = event {
            self.prefix.push_str("\"resume\":\"");
            write_event_token(&self.sources, event, self.holds_beyond, &mut self.prefix);
            self.prefix.push_str("\",");
        }
        let _ = write!(self.prefix, r#""type":"{kind}","object":"#);
        if self.format.is_websocket() {
            ws::text_header(self.prefix.len() - before + body.len() + 1, out);
        }
        out.put(&self.prefix);
        body.append(out);
        out.put(match self.format {
            Format::Sse => "}\n\n",
            format if format.is_websocket() => "}",
            Format::Ndjson | Format::Kubernetes(_) | Format::WebSocket => "}\n",
        });
    }

    fn body(&self, event: &Event) -> Body {
        let shown = self.sources[event.source].informer.shown();
        let partial = matches!(self.format, Format::Kubernetes(kubernetes) if kubernetes.metadata);
        let at = |object: &Object, version: &ResourceVersion| {
            if partial {
                return Body::partial_at(object, version);
            }
            let (before, after) = object.json_around_version();
            Body::Pieces(before, version.json(), after)
        };
        match &event.payload {
            Payload::Object(object) if partial => {
                Body::Partial(object.metadata().0, String::new(), Bytes::new())
            }
            Payload::Object(object) => Body::Object(object.clone()),
            Payload::Patch { patch, .. } => Body::Whole(patch.clone()),
            Payload::ObjectAt(object, version) => at(object, version),
            Payload::ObjectSince { object, version, since } => match self.format {
                // Its clients resume from the version of the last event.
                Format::Kubernetes(_) => at(object, since),
                Format::Sse | Format::Ndjson | Format::WebSocket => at(object, version),
            },
            Payload::Identity { key, uid, version } => {
                Body::Whole(Object::identity(shown, key, uid, version))
            }
            Payload::Mark { reason, .. } => Body::Whole(self.mark(event.kind, *reason)),
        }
    }

    /// A bookmark's object. For one resource it has its kind, as an API server's; for several it is a `List`
    /// without a version of its own, as their versions do not compare.
    fn mark(&self, kind: EventKind, reason: Option<ResetReason>) -> Bytes {
        if let (Format::Kubernetes(kubernetes), [source]) = (self.format, &*self.sources) {
            return source.bookmark(kubernetes, kind == EventKind::Synced);
        }
        let mut token = String::new();
        write_token(&self.sources, &mut token);
        if self.holds_beyond || (self.format != Format::Sse && !self.is_labelled()) {
            // Over NDJSON and WebSocket, clients get a token with bookmarks alone, and may hold events from after it.
            let _ = write!(token, ",{BOOKMARK_PART}");
        }
        let mut annotations = serde_json::Map::new();
        annotations.insert(RESUME_ANNOTATION.into(), token.into());
        if kind == EventKind::Synced {
            annotations.insert(INITIAL_EVENTS_END.into(), "true".into());
        }
        if let Some(reason) = reason {
            annotations.insert(REASON_ANNOTATION.into(), reason.as_str().into());
        }
        let annotations = serde_json::Value::Object(annotations);
        let (kind, api_version, version) = match &*self.sources {
            [source] => {
                let shown = source.informer.shown();
                (shown.kind(), shown.api_version(), source.position.written().json())
            }
            _ => ("List", "v1".to_owned(), String::new()),
        };
        let metadata = format!(r#"{{"resourceVersion":"{version}","annotations":{annotations}}}"#);
        format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{metadata}}}"#).into()
    }
}

impl EncodedSource {
    fn new(informer: &Arc<Informer>) -> Self {
        Self { informer: informer.clone(), position: Resumable::No }
    }

    /// A bookmark as the API server writes it.
    fn bookmark(&self, format: Kubernetes, ends_initial: bool) -> Bytes {
        let shown = self.informer.shown();
        let shown = if format.metadata { shown.metadata_only() } else { shown.clone() };
        let (kind, api_version, version) =
            (shown.kind(), shown.api_version(), self.position.written().json());
        let annotations = match ends_initial {
            true => format!(r#","annotations":{{"{INITIAL_EVENTS_END}":"true"}}"#),
            false => String::new(),
        };
        let metadata = format!(r#"{{"resourceVersion":"{version}"{annotations}}}"#);
        format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{metadata}}}"#).into()
    }
}

impl Body {
    /// The metadata of an object at another version than its own.
    fn partial_at(object: &Object, version: &ResourceVersion) -> Self {
        let (metadata, own) = object.metadata();
        Self::Partial(metadata.slice(..own.start), version.json(), metadata.slice(own.end..))
    }

    fn len(&self) -> usize {
        match self {
            Self::Object(object) => object.json_len(),
            Self::Whole(json) => json.len(),
            Self::Partial(before, version, after) => {
                PARTIAL_HEAD.len() + before.len() + version.len() + after.len() + 1
            }
            Self::Pieces(before, version, after) => before.len() + version.len() + after.len(),
        }
    }

    fn append(self, out: &mut Frames) {
        match self {
            Self::Object(object) => whole(&object, out),
            Self::Whole(json) => out.share(json),
            Self::Partial(before, version, after) => {
                out.put(PARTIAL_HEAD);
                out.share(before);
                out.put(&version);
                out.share(after);
                out.put("}");
            }
            Self::Pieces(before, version, after) => {
                out.share(before);
                out.put(&version);
                out.share(after);
            }
        }
    }
}

/// The table for an event's object, in one piece, as a WebSocket message begins with its length.
fn table_of(tables: &mut TableEncoder, now: Timestamp, source: &EncodedSource, event: &Event) -> Body {
    let mut frames = Frames::new();
    let mut at = |object: &Object, version: &ResourceVersion| {
        let text = object.text();
        let (before, after) = text.around_version();
        let json = [before, version.json().as_bytes(), after].concat();
        tables.single(version, &json.into(), now, &mut frames);
    };
    match &event.payload {
        Payload::Object(object) | Payload::Patch { object, .. } => {
            tables.single(&object.resource_version(), &object.json(), now, &mut frames);
        }
        Payload::ObjectAt(object, version) => at(object, version),
        Payload::ObjectSince { object, since, .. } => at(object, since),
        Payload::Identity { key, uid, version } => {
            let json = Object::identity(source.informer.shown(), key, uid, version);
            tables.single(version, &json, now, &mut frames);
        }
        Payload::Mark { .. } => {
            tables.bookmark(source.position.written(), event.kind == EventKind::Synced, &mut frames);
        }
    }
    Body::Whole(frames.to_vec().into())
}

/// Writes the token of an event. It is that of a bookmark within a gathered batch, whose events have no order, and for a client
/// that may hold events from beyond it.
fn write_event_token(sources: &[EncodedSource], event: &Event, holds_beyond: bool, out: &mut String) {
    write_token(sources, out);
    if event.is_amid || holds_beyond {
        let _ = write!(out, ",{BOOKMARK_PART}");
    }
}

fn write_token(sources: &[EncodedSource], out: &mut String) {
    for (index, source) in sources.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        let _ = ResumeToken::write_part(source.informer.token_name(), &source.position, out);
    }
}
