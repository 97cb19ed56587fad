//! The body of a client's request that is passed through: sent as it arrives, and again from its beginning if the request
//! has to be repeated.

use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

type BoxError = Box<dyn Error + Send + Sync>;

/// A body that can be read several times, one reader after the other. It keeps all that has arrived; the caller must bound
/// its size.
#[derive(Clone)]
pub(super) struct Replay(Arc<Mutex<ReplayState>>);

/// Reads a [`Replay`] from its beginning.
pub(super) struct Reader {
    replay: Replay,
    number: u64,
    /// Chunks that this reader has returned.
    taken: usize,
}

struct ReplayState {
    /// `None` once it is over.
    arriving: Option<UnsyncBoxBody<Bytes, BoxError>>,
    arrived: Vec<Bytes>,
    is_broken: bool,
    /// The number of the newest reader. Older readers get an error.
    newest: u64,
}

// === impl Replay ===

impl Replay {
    pub(super) fn new<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let arriving = Some(body.map_err(Into::into).boxed_unsync());
        Self(Arc::new(Mutex::new(ReplayState { arriving, arrived: Vec::new(), is_broken: false, newest: 0 })))
    }

    /// A new reader from the beginning. Older readers get an error.
    pub(super) fn read(&self) -> Reader {
        let mut state = self.lock();
        state.newest += 1;
        Reader { number: state.newest, replay: self.clone(), taken: 0 }
    }

    /// Whether the body broke off. Then that is why the request failed, and the connection to the API server may be fine.
    pub(super) fn is_broken(&self) -> bool {
        self.lock().is_broken
    }

    fn lock(&self) -> MutexGuard<'_, ReplayState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Reader ===

impl Body for Reader {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let reader = &mut *self;
        let mut state = reader.replay.lock();
        if state.newest != reader.number {
            return Poll::Ready(Some(Err("the request is sent once more".into())));
        }
        if let Some(chunk) = state.arrived.get(reader.taken) {
            reader.taken += 1;
            return Poll::Ready(Some(Ok(Frame::data(chunk.clone()))));
        }
        loop {
            let Some(arriving) = &mut state.arriving else {
                let broken = state.is_broken.then(|| Err("the body broke off".into()));
                return Poll::Ready(broken);
            };
            match ready!(Pin::new(arriving).poll_frame(context)) {
                Some(Ok(frame)) => {
                    // Trailers mean nothing to an API server.
                    let Ok(chunk) = frame.into_data() else { continue };
                    state.arrived.push(chunk.clone());
                    reader.taken += 1;
                    return Poll::Ready(Some(Ok(Frame::data(chunk))));
                }
                Some(Err(error)) => {
                    (state.arriving, state.is_broken) = (None, true);
                    return Poll::Ready(Some(Err(error)));
                }
                None => state.arriving = None,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let state = self.replay.lock();
        let is_over = state.arriving.as_ref().map_or(!state.is_broken, Body::is_end_stream);
        is_over && self.taken == state.arrived.len()
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.replay.lock();
        let arriving = state.arriving.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let kept: u64 = state.arrived.iter().skip(self.taken).map(|chunk| chunk.len() as u64).sum();
        let mut hint = SizeHint::new();
        hint.set_lower(arriving.lower() + kept);
        if let Some(upper) = arriving.upper() {
            hint.set_upper(upper + kept);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::{Full, StreamBody};

    use super::*;

    fn chunks(chunks: &'static [Result<&str, &str>]) -> Replay {
        let frames = chunks.iter().map(|chunk| match chunk {
            Ok(text) => Ok(Frame::data(Bytes::from_static(text.as_bytes()))),
            Err(error) => Err(BoxError::from(*error)),
        });
        Replay::new(StreamBody::new(stream::iter(frames)))
    }

    async fn next(reader: &mut Reader) -> Result<String, String> {
        match reader.frame().await {
            Some(Ok(frame)) => Ok(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()),
            Some(Err(error)) => Err(error.to_string()),
            None => Ok("end".into()),
        }
    }

    #[tokio::test]
    async fn a_second_reader_replays_the_body_and_the_first_one_ends() {
        let replay = chunks(&[Ok("a"), Ok("b"), Ok("c")]);
        let mut first = replay.read();
        assert_eq!(next(&mut first).await.unwrap(), "a");
        assert_eq!(next(&mut first).await.unwrap(), "b");
        let mut second = replay.read();
        assert_eq!(next(&mut first).await.unwrap_err(), "the request is sent once more");
        for expected in ["a", "b", "c", "end"] {
            assert_eq!(next(&mut second).await.unwrap(), expected);
        }
        assert!(second.is_end_stream());
        let mut third = replay.read();
        assert!(!third.is_end_stream());
        assert_eq!(third.size_hint().exact(), Some(3));
        for expected in ["a", "b", "c", "end"] {
            assert_eq!(next(&mut third).await.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn a_broken_body_is_never_taken_for_whole() {
        let replay = chunks(&[Ok("a"), Err("reset"), Ok("b")]);
        let mut first = replay.read();
        assert_eq!(next(&mut first).await.unwrap(), "a");
        assert!(!replay.is_broken());
        assert_eq!(next(&mut first).await.unwrap_err(), "reset");
        assert!(replay.is_broken());
        let mut second = replay.read();
        assert_eq!(next(&mut second).await.unwrap(), "a");
        assert!(!second.is_end_stream());
        assert_eq!(next(&mut second).await.unwrap_err(), "the body broke off");
    }

    #[tokio::test]
    async fn a_known_length_is_announced_after_any_number_of_reads() {
        let replay = Replay::new(Full::new(Bytes::from_static(b"abc")));
        assert_eq!(replay.read().size_hint().exact(), Some(3));
        let mut reader = replay.read();
        next(&mut reader).await.unwrap();
        assert_eq!(reader.size_hint().exact(), Some(0));
        assert_eq!(replay.read().size_hint().exact(), Some(3));
    }
}
