//! The line splitter: the lines do not depend on where chunks are cut.

use informerd::testing::k8s::LineSplitter;

use super::engine::{Target, chunks};

const LINE_BYTES_MAX: usize = 40;

/// The lines up to the first one that is too long, the number of bytes left at the end, and whether a line was too
/// long.
fn split(bytes: &[u8], chunks: &[&[u8]]) -> (Vec<Vec<u8>>, usize, bool) {
    let (mut splitter, mut lines, mut pushed) = (LineSplitter::new(LINE_BYTES_MAX), Vec::new(), 0);
    for chunk in chunks {
        splitter.push(chunk);
        pushed += chunk.len();
        loop {
            match splitter.next_line() {
                Ok(Some(line)) => lines.push(line.to_vec()),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(error.limit, LINE_BYTES_MAX);
                    assert!(bytes[..pushed].len() > LINE_BYTES_MAX);
                    return (lines, 0, true);
                }
            }
        }
        assert!(splitter.pending() <= LINE_BYTES_MAX, "the splitter holds more than the longest line");
    }
    (lines, splitter.pending(), false)
}

fn check(input: &[u8]) {
    let (mut expected, mut left, mut too_long) = (Vec::new(), 0, false);
    let mut pieces: Vec<_> = input.split(|byte| *byte == b'\n').collect();
    let rest = pieces.pop().unwrap_or_default();
    for piece in pieces {
        too_long |= piece.len() > LINE_BYTES_MAX;
        if !too_long && !piece.trim_ascii().is_empty() {
            expected.push(piece.to_vec());
        }
    }
    too_long |= rest.len() > LINE_BYTES_MAX;
    if !too_long {
        left = rest.len();
    }
    let seed = input.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let bytes: Vec<_> = input.chunks(1).collect();
    for cuts in [vec![input], bytes, chunks(input, seed), chunks(input, seed ^ 1)] {
        assert_eq!(split(input, &cuts), (expected.clone(), left, too_long));
    }
}

#[test]
fn lines_do_not_depend_on_chunks() {
    let tokens = &["\n", "\r\n", "\n\n", " \n", "\r", "\0", "{\"type\":\"ADDED\"}\n", "0123456789"];
    Target { name: "lines", tokens, check: &check }.run(1);
}
