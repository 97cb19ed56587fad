//! WebSocket frames of clients, compared with a reader that has all bytes at once.

use informerd::testing::encode::{ClientFrame, FrameParser};
use proptest::prelude::*;

use super::engine::{Target, chunks};

/// Longest accepted payload.
const PAYLOAD_BYTES_MAX: usize = 4096;

/// The frames of a client, and the close code of the error that ends them. RFC 6455 sections 5.2, 5.4, 5.5 and 8.1.
fn read(mut bytes: &[u8]) -> (Vec<ClientFrame>, Option<u16>) {
    let mut frames = Vec::new();
    // The bytes of the message under way, and whether it is a text.
    let mut message: Option<(bool, Vec<u8>)> = None;
    loop {
        let [first, second, rest @ ..] = bytes else { return (frames, None) };
        let (last, reserved, opcode) = (first >> 7 == 1, first >> 4 & 7, first & 15);
        let control = opcode >= 8;
        let (masked, short) = (second >> 7 == 1, usize::from(second & 127));
        let unknown = matches!(opcode, 3..=7 | 11..=15);
        if reserved != 0 || unknown || !masked || (control && (short > 125 || !last)) {
            return (frames, Some(1002));
        }
        let (len, rest) = match (short, rest) {
            (126, [a, b, rest @ ..]) => (usize::from(*a) << 8 | usize::from(*b), rest),
            (126, _) => return (frames, None),
            // No accepted payload needs a length of 64 bits.
            (127, _) => return (frames, Some(1009)),
            (len, rest) => (len, rest),
        };
        if len > PAYLOAD_BYTES_MAX {
            return (frames, Some(1009));
        }
        if rest.len() < 4 + len {
            return (frames, None);
        }
        let payload: Vec<u8> = (0..len).map(|at| rest[4 + at] ^ rest[at % 4]).collect();
        bytes = &rest[4 + len..];
        frames.push(match opcode {
            8 => match *payload {
                [] => ClientFrame::Close(None),
                [_] => return (frames, Some(1002)),
                [a, b, ..] => {
                    let code = u16::from_be_bytes([a, b]);
                    // Section 7.4: the close codes that a frame may have.
                    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
                        return (frames, Some(1002));
                    }
                    if std::str::from_utf8(&payload[2..]).is_err() {
                        return (frames, Some(1007));
                    }
                    ClientFrame::Close(Some(code))
                }
            },
            9 => ClientFrame::Ping(payload),
            10 => ClientFrame::Pong,
            _ => {
                if (opcode == 0) != message.is_some() {
                    return (frames, Some(1002));
                }
                let (is_text, mut whole) = message.take().unwrap_or((opcode == 1, Vec::new()));
                whole.extend(payload);
                let wrong = match std::str::from_utf8(&whole) {
                    Ok(_) => false,
                    // A character may end in the next fragment.
                    Err(error) => last || error.error_len().is_some(),
                };
                if is_text && wrong {
                    return (frames, Some(1007));
                }
                message = (!last).then_some((is_text, whole));
                ClientFrame::Data
            }
        });
    }
}

fn parse(chunks: &[&[u8]]) -> (Vec<ClientFrame>, Option<u16>) {
    let (mut parser, mut frames) = (FrameParser::default(), Vec::new());
    for chunk in chunks {
        parser.push(chunk);
        loop {
            match parser.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error.close_code())),
            }
        }
    }
    (frames, None)
}

fn check(input: &[u8]) {
    let expected = read(input);
    let seed = input.iter().fold(3_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let bytes: Vec<_> = input.chunks(1).collect();
    for cuts in [vec![input], bytes, chunks(input, seed)] {
        assert_eq!(parse(&cuts), expected);
    }
}

#[test]
fn websocket_frames_are_parsed_as_by_the_standard_however_cut() {
    let tokens = &["\u{1}", "\0\0\0\0", "hello", "~", "\x08\x02"];
    let target = Target { name: "websocket", tokens, check: &check };
    target.run(2);
    let frames =
        (any::<u8>(), 0..140_usize, any::<[u8; 4]>(), any::<u8>()).prop_map(|(first, len, mask, fill)| {
            // Mostly valid frames of clients.
            let said = [0x81, 0x88, 0x89, 0x8A, 0x01, 0x00, 0x80, 0x02];
            let first = if fill % 4 == 0 { first } else { said[usize::from(first % 8)] };
            let len = if first == 0x88 && fill % 3 > 0 { 2 } else { len };
            let mut frame = match u8::try_from(len).ok().filter(|len| *len < 126) {
                Some(len) => vec![first, 0x80 | len],
                None => vec![first, 0xFE, (len >> 8) as u8, len as u8],
            };
            frame.extend(mask);
            // The payload of a close frame, a text, or bytes that are not text.
            let fill = if fill % 5 > 0 { fill % 128 } else { fill };
            frame.extend((0..len).map(|at| [3, fill][at % 2] ^ mask[at % 4]));
            frame
        });
    let streams = prop::collection::vec(frames, 0..6).prop_map(|frames| frames.concat());
    target.generate_bytes(streams, 2);
}
