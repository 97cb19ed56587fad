//! Bodies of answers that are made before they are sent, and held for as long as the state of a list.

use std::collections::VecDeque;
use std::io;

use axum::body::{Body, Bytes};
use futures_util::stream::{Stream, unfold};
use tokio::time::Instant;

use super::Server;
use super::body::too_slow;
use crate::hub::HeldAnswer;

/// Largest answer that is sent as it is, in bytes: about a socket's buffer. A larger one is held for a limited time.
const WHOLE_BYTES_MAX: usize = 64 << 10;

/// The body of an answer that was made whole.
pub(super) fn whole_body(server: &Server, answer: Vec<u8>) -> Body {
    if answer.len() <= WHOLE_BYTES_MAX {
        return Body::from(answer);
    }
    held_body(server, pieces_of(&answer.into()))
}

fn pieces_of(answer: &Bytes) -> VecDeque<Bytes> {
    let piece = |at: usize| answer.slice(at..answer.len().min(at + WHOLE_BYTES_MAX));
    (0..answer.len()).step_by(WHOLE_BYTES_MAX).map(piece).collect()
}

/// The body of an answer in pieces. It breaks off for a client that does not take it in time: over HTTP/2 nothing else ends a request whose
/// client keeps its window closed.
pub(super) fn held_body(server: &Server, pieces: VecDeque<Bytes>) -> Body {
    let held = server.hub.generations().hold_answer(pieces, Instant::now());
    Body::from_stream(pieces_body(held, server.config.batch_bytes_max))
}

/// The pieces of an answer, copied together to about so many bytes at a time.
fn pieces_body(
    held: HeldAnswer<VecDeque<Bytes>>,
    bytes_max: usize,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    unfold(Some(held), move |held| async move {
        let held = held?;
        let taken = held.with(|pieces| {
            let (mut taken, mut count) = (0, 0);
            while taken < bytes_max
                && let Some(piece) = pieces.get(count)
            {
                taken += piece.len();
                count += 1;
            }
            let mut together = Vec::with_capacity(taken);
            pieces.drain(..count).for_each(|piece| together.extend_from_slice(&piece));
            (Bytes::from(together), pieces.is_empty())
        });
        match taken {
            Some((bytes, is_over)) => Some((Ok(bytes), (!is_over).then_some(held))),
            None => Some((Err(too_slow()), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::TryStreamExt as _;

    use super::*;
    use crate::hub::Generations;

    #[test]
    fn the_pieces_of_an_answer_are_the_answer() {
        for len in [WHOLE_BYTES_MAX + 1, 2 * WHOLE_BYTES_MAX, 3 * WHOLE_BYTES_MAX - 1] {
            let answer: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let pieces = pieces_of(&answer.clone().into());
            assert_eq!(pieces.len(), len.div_ceil(WHOLE_BYTES_MAX));
            assert_eq!(pieces.into_iter().flatten().collect::<Vec<_>>(), answer);
        }
    }

    #[tokio::test]
    async fn an_answer_is_sent_in_batches_and_breaks_off_when_it_was_held_too_long() {
        let generations = Generations::default();
        let now = Instant::now();
        let held = || generations.hold_answer(["ab", "cd", "efg", "h"].map(Bytes::from).into(), now);
        let batches: Vec<Bytes> = pieces_body(held(), 3).try_collect().await.unwrap();
        assert_eq!(batches, ["abcd", "efg", "h"]);
        let mut slow = Box::pin(pieces_body(held(), 3));
        assert_eq!(slow.try_next().await.unwrap(), Some("abcd".into()));
        generations.tend(now + Duration::from_secs(3600));
        assert_eq!(slow.try_next().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(slow.try_next().await.unwrap(), None);
    }
}
