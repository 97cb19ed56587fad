//! Encodes events and lists: SSE, NDJSON, WebSocket, Kubernetes. Pure.
//!
//! In come [`hub::Event`](crate::hub::Event)s and objects; out come [`Frames`], runs of byte slices. An object's JSON
//! is in them by reference between short prefixes, so it is neither copied nor serialized again, however many
//! subscribers and transports there are. The JSON of a packed object is copied into them once it is unpacked. This room never sees a
//! socket.

mod coding;
mod encoder;
mod frames;
mod list;
mod table;
mod ws;

pub use coding::{Checksum, Coding};
pub use encoder::{Encoder, EncoderKind, Format, Framing, Kubernetes, StateRoom};
pub use frames::Frames;
pub use list::{ListEncoder, ListFormat, partial};
pub use table::{IncludeObject, TableEncoder, TableVersion};
pub use ws::{ClientFrame, FrameParser, accept_key, close_frame, ping_frame, pong_frame, text_frame};

/// The annotation of a bookmark that holds the whole resume token.
pub const RESUME_ANNOTATION: &str = "informerd.dev/resume";

/// The annotation of a RESET that holds its reason.
pub const REASON_ANNOTATION: &str = "informerd.dev/reason";
