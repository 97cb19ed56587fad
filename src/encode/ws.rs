//! The server's side of WebSocket framing (RFC 6455).
//!
//! Why not a library: libraries copy each message into a buffer of the connection, so each object would be copied for each
//! subscriber. A server's frames are not masked, so that a frame is a header before bytes by reference. Clients may only
//! send small frames, which are parsed here.

use base64::Engine as _;
use sha1::{Digest as _, Sha1};

use super::Frames;

/// Longest frame that a client may send, in bytes, as clients have nothing long to send. RFC 6455 allows control frames of
/// 125 bytes.
pub(super) const CLIENT_FRAME_BYTES_MAX: usize = 4096;

/// A frame from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFrame {
    /// Asks for a pong with the same bytes.
    Ping(Vec<u8>),
    /// Answers a ping.
    Pong,
    /// Ends the connection, with a code if the client gave one.
    Close(Option<u16>),
    /// Text or binary data, which is ignored.
    Data,
    /// A whole text, for a parser of texts.
    Text(String),
}

/// Why a client's bytes are not valid WebSocket frames. Its close code goes into the close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A client must mask what it sends.
    #[error("a client's frame is not masked")]
    Unmasked,
    /// Reserved bits or an unknown opcode.
    #[error("a frame uses what was not negotiated")]
    Unknown,
    /// A control frame is fragmented or longer than 125 bytes.
    #[error("a control frame is fragmented or too long")]
    Control,
    /// A close frame with a code that is not allowed in one (RFC 6455 section 7.4).
    #[error("a close frame has no valid code")]
    CloseCode,
    /// A continuation without a message, or a new message before the end of the current one (RFC 6455 section 5.4).
    #[error("a frame does not continue the message under way")]
    OutOfOrder,
    /// A text, or the reason of a close frame, is not UTF-8.
    #[error("a text is not UTF-8")]
    NotUtf8,
    /// A frame, or a text, is longer than those of a client may be.
    #[error("a frame is longer than those of a client may be")]
    TooLong,
    /// A binary message where texts are expected.
    #[error("a message is not text")]
    Binary,
}

/// A small, complete frame.
pub type WsFrame = Vec<u8>;

/// Parses what a client sends, in any pieces.
#[derive(Debug, Default)]
pub struct FrameParser {
    buffer: Vec<u8>,
    /// The current message, if fragments of it are missing.
    message: Option<Message>,
    /// Longest text that is returned, in bytes; `None` if messages are ignored.
    text_bytes_max: Option<usize>,
}

/// The state of an incomplete message.
#[derive(Debug)]
struct Message {
    is_text: bool,
    /// The first bytes, at most three, of a character that ends in the next fragment.
    unfinished: Vec<u8>,
    /// The text so far, if texts are returned.
    text: String,
}

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xA;
const FINAL: u8 = 0x80;

impl FrameError {
    /// The close code of RFC 6455 section 7.4.1.
    pub fn close_code(self) -> u16 {
        match self {
            Self::TooLong => 1009,
            Self::Binary => 1003,
            Self::NotUtf8 => 1007,
            Self::Unmasked | Self::Unknown | Self::Control | Self::CloseCode | Self::OutOfOrder => 1002,
        }
    }
}

/// `Sec-WebSocket-Accept` for a `Sec-WebSocket-Key` (RFC 6455 section 4.2.2).
pub fn accept_key(key: &str) -> String {
    let digest =
        Sha1::new().chain_update(key).chain_update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11").finalize();
    base64::engine::general_purpose::STANDARD.encode(digest)
}

/// Appends the header of a text message of this many bytes.
pub(super) fn text_header(bytes: usize, out: &mut Frames) {
    match (u8::try_from(bytes), u16::try_from(bytes)) {
        (Ok(short), _) if short < 126 => out.put_bytes(&[FINAL | TEXT, short]),
        (_, Ok(medium)) => {
            let [a, b] = medium.to_be_bytes();
            out.put_bytes(&[FINAL | TEXT, 126, a, b]);
        }
        (_, Err(_)) => {
            out.put_bytes(&[FINAL | TEXT, 127]);
            out.put_bytes(&(bytes as u64).to_be_bytes());
        }
    }
}

/// Appends a text message.
pub fn text_frame(text: &str, out: &mut Frames) {
    text_header(text.len(), out);
    out.put(text);
}

/// A ping.
pub fn ping_frame() -> WsFrame {
    vec![FINAL | PING, 0]
}

/// The answer to a ping.
pub fn pong_frame(payload: &[u8]) -> WsFrame {
    control_frame(PONG, payload)
}

/// The end of the connection, with a code and a reason of at most 123 bytes.
pub fn close_frame(code: u16, reason: &str) -> WsFrame {
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(reason.as_bytes());
    payload.truncate(125);
    control_frame(CLOSE, &payload)
}

fn control_frame(opcode: u8, payload: &[u8]) -> WsFrame {
    debug_assert!(payload.len() <= 125);
    let mut frame = vec![FINAL | opcode, payload.len() as u8];
    frame.extend_from_slice(payload);
    frame
}

impl FrameParser {
    /// A parser that returns texts of at most this many bytes. Other parsers read messages over.
    pub fn of_texts(bytes_max: usize) -> Self {
        Self { text_bytes_max: Some(bytes_max), ..Self::default() }
    }

    /// Takes bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame; `None` until more bytes arrive.
    ///
    /// # Errors
    /// [`FrameError`]; the connection must be closed with its code.
    pub fn next_frame(&mut self) -> Result<Option<ClientFrame>, FrameError> {
        let [first, second, rest @ ..] = &*self.buffer else { return Ok(None) };
        let (opcode, last) = (first & 0x0F, first & FINAL != 0);
        if first & 0x70 != 0 || !matches!(opcode, 0..=2 | CLOSE | PING | PONG) {
            return Err(FrameError::Unknown);
        }
        if second & 0x80 == 0 {
            return Err(FrameError::Unmasked);
        }
        let short = usize::from(second & 0x7F);
        if opcode >= CLOSE && (short > 125 || !last) {
            return Err(FrameError::Control);
        }
        let (len, extended) = match short {
            126 => match rest {
                [a, b, ..] => (usize::from(u16::from_be_bytes([*a, *b])), 2),
                _ => return Ok(None),
            },
            127 => return Err(FrameError::TooLong),
            len => (len, 0),
        };
        if len > self.text_bytes_max.unwrap_or(CLIENT_FRAME_BYTES_MAX) {
            return Err(FrameError::TooLong);
        }
        let Some(frame) = rest.get(extended..extended + 4 + len) else { return Ok(None) };
        let (mask, masked) = frame.split_at(4);
        let payload: Vec<u8> =
            masked.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        self.buffer.drain(..2 + extended + 4 + len);
        Ok(Some(match opcode {
            CLOSE => ClientFrame::Close(close_code(&payload)?),
            PING => ClientFrame::Ping(payload),
            PONG => ClientFrame::Pong,
            _ => self.fragment(opcode, &payload, last)?.map_or(ClientFrame::Data, ClientFrame::Text),
        }))
    }

    /// Checks a frame of a message, and returns the text that it completes, if texts are returned. Otherwise only the bytes of an
    /// incomplete character are kept.
    fn fragment(&mut self, opcode: u8, payload: &[u8], last: bool) -> Result<Option<String>, FrameError> {
        let mut message = match (opcode, self.message.take()) {
            (CONTINUATION, Some(message)) => message,
            (CONTINUATION, None) | (_, Some(_)) => return Err(FrameError::OutOfOrder),
            (_, None) => Message { is_text: opcode == TEXT, unfinished: Vec::new(), text: String::new() },
        };
        if !message.is_text && self.text_bytes_max.is_some() {
            return Err(FrameError::Binary);
        }
        if message.is_text {
            message.unfinished.extend_from_slice(payload);
            let valid = match std::str::from_utf8(&message.unfinished) {
                Ok(text) => text,
                Err(error) if error.error_len().is_none() && !last => {
                    // The part before the error is UTF-8.
                    std::str::from_utf8(&message.unfinished[..error.valid_up_to()]).unwrap_or_default()
                }
                Err(_) => return Err(FrameError::NotUtf8),
            };
            let len = valid.len();
            if let Some(max) = self.text_bytes_max {
                if message.text.len() + len > max {
                    return Err(FrameError::TooLong);
                }
                message.text.push_str(valid);
            }
            message.unfinished.drain(..len);
        }
        if !last {
            self.message = Some(message);
            return Ok(None);
        }
        Ok(self.text_bytes_max.map(|_| message.text))
    }
}

/// The code of a close frame. It is checked, as the answer repeats it.
fn close_code(payload: &[u8]) -> Result<Option<u16>, FrameError> {
    match (payload, payload.first_chunk().map(|code| u16::from_be_bytes(*code))) {
        ([], _) => Ok(None),
        (_, Some(code @ (1000..=1003 | 1007..=1014 | 3000..=4999))) => {
            std::str::from_utf8(&payload[2..]).map_err(|_| FrameError::NotUtf8)?;
            Ok(Some(code))
        }
        (_, _) => Err(FrameError::CloseCode),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let mut frame = vec![first, 0x80 | payload.len() as u8];
        frame.extend_from_slice(&mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    #[test]
    fn the_handshake_of_the_rfc() {
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn headers_take_the_shortest_length() {
        for (bytes, header) in [
            (5, vec![0x81, 5]),
            (125, vec![0x81, 125]),
            (126, vec![0x81, 126, 0, 126]),
            (65_535, vec![0x81, 126, 255, 255]),
            (65_536, vec![0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let mut out = Frames::new();
            text_header(bytes, &mut out);
            assert_eq!(out.to_vec(), header);
        }
    }

    #[test]
    fn frames_are_parsed_however_the_bytes_are_cut() {
        let mut bytes = masked(0x89, b"hi");
        bytes.extend(masked(0x81, b"data"));
        bytes.extend(masked(0x88, &[3, 232]));
        for size in 1..=bytes.len() {
            let mut parser = FrameParser::default();
            let mut frames = Vec::new();
            for chunk in bytes.chunks(size) {
                parser.push(chunk);
                while let Some(frame) = parser.next_frame().unwrap() {
                    frames.push(frame);
                }
            }
            let expected =
                [ClientFrame::Ping(b"hi".to_vec()), ClientFrame::Data, ClientFrame::Close(Some(1000))];
            assert_eq!(frames, expected);
        }
    }

    #[test]
    fn protocol_violations_are_refused() {
        for (bytes, error) in [
            (vec![0x81, 0x05], FrameError::Unmasked),
            (vec![0xC1, 0x85], FrameError::Unknown),
            (vec![0x83, 0x80], FrameError::Unknown),
            (vec![0x09, 0x80], FrameError::Control),
            (vec![0x89, 0xFE], FrameError::Control),
            (vec![0x81, 0xFF], FrameError::TooLong),
            (vec![0x81, 0xFE, 0xFF, 0xFF], FrameError::TooLong),
        ] {
            let mut parser = FrameParser::default();
            parser.push(&bytes);
            assert_eq!(parser.next_frame(), Err(error), "{bytes:x?}");
        }
    }

    #[test]
    fn fragments_are_one_message_and_text_is_utf8() {
        const BINARY: u8 = 0x2;
        type Frames<'a> = &'a [(u8, &'a [u8])];
        let outcome = |frames: Frames<'_>| {
            let mut parser = FrameParser::default();
            frames.iter().for_each(|(first, payload)| parser.push(&masked(*first, payload)));
            loop {
                match parser.next_frame() {
                    Ok(Some(_)) => {}
                    Ok(None) => return None,
                    Err(error) => return Some((error, error.close_code())),
                }
            }
        };
        let disorder = Some((FrameError::OutOfOrder, 1002));
        let not_utf8 = Some((FrameError::NotUtf8, 1007));
        let cases: [(Frames<'_>, _); 12] = [
            (&[(TEXT, b"a"), (CONTINUATION, b"b"), (FINAL, b"c"), (FINAL | TEXT, b"d")], None),
            (&[(TEXT, b"a"), (FINAL | PING, b""), (FINAL, b"c")], None),
            // One character in three fragments.
            (&[(TEXT, b"\xe2"), (CONTINUATION, b"\x82"), (FINAL, b"\xac")], None),
            (&[(FINAL | BINARY, b"\xff")], None),
            (&[(BINARY, b"\xff"), (FINAL, b"\xff")], None),
            (&[(FINAL, b"stray")], disorder),
            (&[(TEXT, b"a"), (FINAL | TEXT, b"b")], disorder),
            (&[(BINARY, b"a"), (FINAL | BINARY, b"b")], disorder),
            (&[(FINAL | TEXT, b"\xff")], not_utf8),
            (&[(FINAL | TEXT, b"\xe2\x82")], not_utf8),
            (&[(TEXT, b"\xe2"), (CONTINUATION, b"a")], not_utf8),
            (&[(FINAL | CLOSE, b"\x03\xe8\xff")], not_utf8),
        ];
        for (frames, expected) in cases {
            assert_eq!(outcome(frames), expected, "{frames:x?}");
        }
    }

    #[test]
    fn a_parser_of_texts_returns_them_whole() {
        let mut parser = FrameParser::of_texts(8);
        for frame in [(TEXT, &b"a\xe2"[..]), (FINAL | PING, b""), (CONTINUATION, b"\x82"), (FINAL, b"\xacb")]
        {
            parser.push(&masked(frame.0, frame.1));
        }
        parser.push(&masked(FINAL | TEXT, b""));
        let texts: Vec<_> = std::iter::from_fn(|| parser.next_frame().unwrap()).collect();
        let text = |text: &str| ClientFrame::Text(text.into());
        assert_eq!(
            texts,
            [
                ClientFrame::Data,
                ClientFrame::Ping(Vec::new()),
                ClientFrame::Data,
                text("a\u{20ac}b"),
                text("")
            ]
        );
        for (frames, error) in [
            (vec![(FINAL | TEXT, &b"123456789"[..])], FrameError::TooLong),
            (vec![(TEXT, b"12345678"), (FINAL, b"9")], FrameError::TooLong),
            (vec![(FINAL | 0x2, b"1")], FrameError::Binary),
        ] {
            let mut parser = FrameParser::of_texts(8);
            frames.iter().for_each(|(first, payload)| parser.push(&masked(*first, payload)));
            let failed = std::iter::repeat_with(|| parser.next_frame()).find_map(Result::err);
            assert_eq!(failed, Some(error));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
            let mut parser = FrameParser::default();
            parser.push(&bytes);
            while let Ok(Some(_)) = parser.next_frame() {}
        }
    }
}
