//! What surrounds the frames of a stream: HTTP/1.1 chunks, or nothing.

use bytes::{Buf as _, Bytes};

use super::super::Frames;
use crate::hub::Rendered;

/// What surrounds the frames of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// Nothing.
    Plain,
    /// HTTP/1.1 chunks.
    Chunked,
}

/// The end of each HTTP/1.1 chunk.
const CHUNK_END: &str = "\r\n";

impl Framing {
    /// Appends frames with the framing around them.
    pub(super) fn append(self, frames: Frames, out: &mut Frames) {
        // A chunk of no bytes would end the stream.
        if self == Self::Plain || frames.remaining() == 0 {
            return out.append(frames);
        }
        out.put(&format!("{:x}\r\n", frames.remaining()));
        out.append(frames);
        out.put(CHUNK_END);
        out.cut();
    }

    /// Appends the end of a stream.
    pub(super) fn end(self, out: &mut Frames) {
        if self == Self::Chunked {
            out.put("0\r\n\r\n");
            out.cut();
        }
    }
}

/// Content as one chunk that can also be sent without its chunk header.
pub(super) fn chunk_of(content: &[u8]) -> Rendered {
    let head = format!("{:x}\r\n", content.len());
    let mut bytes = Vec::with_capacity(head.len() + content.len() + CHUNK_END.len());
    bytes.extend_from_slice(head.as_bytes());
    bytes.extend_from_slice(content);
    bytes.extend_from_slice(CHUNK_END.as_bytes());
    Rendered { bytes: bytes.into(), framing: head.len(), crc: 0, len: 0 }
}

/// Rendered content with the framing of a stream.
pub(super) fn framed(rendered: &Rendered, framing: Framing) -> Bytes {
    match framing {
        Framing::Chunked => rendered.bytes.clone(),
        Framing::Plain => rendered.bytes.slice(rendered.framing..rendered.bytes.len() - CHUNK_END.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(text: &str) -> Frames {
        let mut frames = Frames::new();
        frames.put(text);
        frames.share(Bytes::from_static(b"{}"));
        frames
    }

    fn framed_texts(framing: Framing, texts: &[&str]) -> Vec<u8> {
        let mut out = Frames::new();
        texts.iter().for_each(|text| framing.append(frames(text), &mut out));
        framing.end(&mut out);
        out.to_vec()
    }

    #[test]
    fn frames_are_http_chunks_or_unframed_bytes() {
        assert_eq!(framed_texts(Framing::Plain, &["a", "bc"]), b"a{}bc{}");
        assert_eq!(framed_texts(Framing::Chunked, &["a", "0123456789abcdef"]), {
            b"3\r\na{}\r\n12\r\n0123456789abcdef{}\r\n0\r\n\r\n"
        });
        // An empty chunk would end the stream.
        let mut out = Frames::new();
        Framing::Chunked.append(Frames::new(), &mut out);
        assert!(out.to_vec().is_empty());
    }

    #[test]
    fn a_rendered_chunk_knows_the_range_of_its_content() {
        let content = vec![b'x'; 300];
        let form = chunk_of(&content);
        assert!(form.bytes.starts_with(b"12c\r\nx") && form.bytes.ends_with(b"x\r\n"));
        assert_eq!(form.bytes.slice(form.framing..form.bytes.len() - CHUNK_END.len()), content);
    }
}
