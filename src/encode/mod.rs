//! Deliveries into bytes: SSE, NDJSON, WebSocket, lists. Pure.
//!
//! In come [`hub::Event`](crate::hub::Event)s and objects; out come [`Frames`], runs of byte slices in which an
//! object's JSON stands by reference between short prefixes: no copy, no second serialisation, however many
//! subscribers and transports there are. This room never sees a socket.

mod encoder;
mod frames;
mod list;
mod table;
mod ws;

pub use encoder::{Clock, Encoder, Format, Framing, Kubernetes};
pub use frames::Frames;
pub use list::{ListEncoder, ListFormat, partial};
pub use table::{IncludeObject, TableEncoder, TableVersion};
pub use ws::{
    ClientFrame, FrameError, FrameParser, WsFrame, accept_key, close_frame, ping_frame, pong_frame,
};

/// The annotation of bookmarks in which the whole resume token stands.
pub const RESUME_ANNOTATION: &str = "informerd.dev/resume";

/// The annotation of a RESET in which its reason stands.
pub const REASON_ANNOTATION: &str = "informerd.dev/reason";
