//! The state of the world: each batch of a stream in one message, with the token up to which it goes.
//!
//! A program that reconciles everything at once needs a moment at which its objects of several kinds belong together. That is
//! at the end of a complete message.

use bytes::{Buf as _, Bytes};

use super::world_state::{StateRoom, World, WorldState};
use super::{Body, Encoder, Format};
use crate::encode::{Frames, ws};
use crate::hub::{BOOKMARK_PART, Event, EventKind, Payload, Resumable};
use crate::k8s::Status;

/// Largest state that is put into each message, in bytes of objects.
const STATE_BYTES_MAX: usize = 32 << 20;

/// The type of a message over SSE.
const UPDATES: &str = "UPDATES";

impl Encoder {
    /// Puts each batch into one message: `{"type":"UPDATES","updates":[…],"resume":"…","more":false}`. With `resumed` the client holds objects
    /// already; with `full` each complete message has the whole state, too, for which the stream takes room there.
    #[must_use]
    pub fn of_world(mut self, resumed: bool, full: Option<StateRoom>) -> Self {
        let state = full.map(WorldState::new);
        self.world = Some(Box::new(World { complete: String::new(), resets: !resumed, state }));
        self
    }

    /// Why the stream cannot go on: 413 for a state that is too large, 503 if the states of all streams leave no room for it. The state is
    /// given up then.
    pub fn take_failure(&mut self) -> Option<Status> {
        let world = self.world.as_mut()?;
        let state = world.state.as_ref()?;
        let what = "select fewer objects or fields, or leave out state=full";
        let failure = if state.bytes > STATE_BYTES_MAX {
            let message = format!("the state has more than {} MiB: {what}", STATE_BYTES_MAX >> 20);
            Status::failure(413, "RequestEntityTooLarge", message)
        } else if state.is_refused {
            let max = state.room().bytes_max();
            let message = format!(
                "the states of all streams would have more than {max} bytes: {what}, or come back later"
            );
            Status::failure(503, "ServiceUnavailable", message)
        } else {
            return None;
        };
        world.state = None;
        Some(failure)
    }

    /// Appends the message of a batch.
    pub(super) fn messages(&mut self, world: &mut World, events: &[Event], out: &mut Frames) {
        let mut updates = Frames::new();
        let mut count = 0;
        for event in events {
            self.moves_to(event);
            if event.kind == EventKind::Reset {
                if count > 0 {
                    self.message(world, std::mem::take(&mut updates), true, out);
                    count = 0;
                }
                world.complete.clear();
                world.resets = true;
                if let Some(state) = &mut world.state {
                    state.clear();
                }
                continue;
            }
            let Some(key) = event.payload.key() else {
                // A bookmark without a position takes back the tokens of before: its client has to start over if it is cut off now.
                if self.sources.iter().any(|source| source.position == Resumable::No) {
                    world.complete.clear();
                }
                continue;
            };
            let mut body = self.body(event);
            if let Some(state) = &mut world.state {
                match event.kind {
                    EventKind::Deleted => state.remove(event.source, key),
                    EventKind::Added | EventKind::Modified | EventKind::Patched => {
                        let json = body.into_bytes();
                        state.put(event.source, key, json.clone());
                        // State and message share it.
                        body = Body::Whole(json);
                    }
                    EventKind::Bookmark | EventKind::Synced | EventKind::Reset => {}
                }
            }
            let comma = if count > 0 { "," } else { "" };
            updates.put(&format!(r#"{comma}{{"type":"{}","object":"#, event.kind.as_str()));
            body.append(&mut updates);
            updates.put("}");
            count += 1;
        }
        let is_amid = events.last().is_some_and(|event| event.is_amid);
        let more = is_amid || self.sources.iter().any(|source| source.position == Resumable::No);
        self.message(world, updates, more, out);
    }

    fn message(&mut self, world: &mut World, updates: Frames, more: bool, out: &mut Frames) {
        if !more {
            world.complete.clear();
            super::write_token(&self.sources, &mut world.complete);
        }
        let mut resume = world.complete.clone();
        if (more || self.holds_beyond) && !resume.is_empty() {
            // The client holds objects from after that token, or may hold some.
            resume = format!("{resume},{BOOKMARK_PART}");
        }
        let mut content = Frames::new();
        let reset = if std::mem::take(&mut world.resets) { r#","reset":true"# } else { "" };
        content.put(&format!(r#"{{"type":"{UPDATES}"{reset},"updates":["#));
        content.append(updates);
        content.put("]");
        if let Some(state) = world.state.as_ref().filter(|_| !more) {
            content.put(r#","state":["#);
            for (index, json) in state.objects.values().enumerate() {
                content.put(if index > 0 { "," } else { "" });
                content.share(json.clone());
            }
            content.put("]");
        }
        let shown = if resume.is_empty() { "null".to_owned() } else { format!("\"{resume}\"") };
        content.put(&format!(r#","resume":{shown},"more":{more}}}"#));
        match self.format {
            Format::Sse => {
                // An empty id makes an EventSource forget the one before.
                out.put(&format!("event: {UPDATES}\nid: {resume}\ndata: "));
                out.append(content);
                out.put("\n\n");
            }
            Format::WebSocket => {
                ws::text_header(content.remaining(), out);
                out.append(content);
            }
            Format::Ndjson | Format::Kubernetes(_) => {
                out.append(content);
                out.put("\n");
            }
        }
        out.cut();
    }

    /// Moves to the position of an event.
    pub(super) fn moves_to(&mut self, event: &Event) {
        if event.kind == EventKind::Reset {
            // The client drops what it holds.
            self.holds_beyond = false;
        }
        match &event.payload {
            Payload::Mark { positions, .. } => {
                for (source, position) in self.sources.iter_mut().zip(positions) {
                    source.position = position.clone();
                }
            }
            Payload::Object(_)
            | Payload::Patch { .. }
            | Payload::ObjectAt(..)
            | Payload::ObjectSince { .. }
            | Payload::Identity { .. } => {
                self.sources[event.source].position = event.position.clone();
            }
        }
    }
}

impl Body {
    fn into_bytes(self) -> Bytes {
        match self {
            Self::Object(object) => object.json(),
            Self::Whole(json) => json,
            Self::Pieces(before, version, after) | Self::Partial(before, version, after) => {
                [&before, version.as_bytes(), &after].concat().into()
            }
        }
    }
}
