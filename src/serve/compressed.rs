//! Compressed lists: in turns, and a whole list once for all clients that ask for it while it is current.
//!
//! A list is compressed in blocks, each in a turn. The blocks of a whole list are kept for its other readers, also while it is
//! being made: the reader that has all blocks so far makes the next one. So the fastest reader sets the pace, a slow one reads
//! what is there, and without readers no work is done.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use tokio::time::Instant;
use tower_http::compression::predicate::Predicate;

use super::body::FramesBody;
use super::metrics;
use super::turns::Turns;
use crate::encode::{Checksum, Coding, Frames};
use crate::hub::Selection;

/// Bytes of all shared lists together, those included that only slow readers still hold. A list counts as half of its JSON until
/// it is complete (pods become 39 % or less), so text that cannot be compressed takes up to twice as much. Further lists
/// are compressed for their readers alone.
const BYTES_MAX: usize = 64 << 20;
/// Number of shared lists.
const LISTS_MAX: usize = 64;
/// Time after the last request for which a list is kept: clients that come back together after a restart share one.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// Time from its beginning within which an incomplete list can be joined. The state behind it cannot be held for ever.
const JOINED_FOR: Duration = Duration::from_secs(30);
/// Time for which a reader may hold a shared list, as long as a list may hold its state. Then its answer breaks off.
const READ_FOR: Duration = Duration::from_secs(300);

/// The shared lists of a server.
#[derive(Default)]
pub(super) struct CompressedLists {
    kept: Mutex<Kept>,
    bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Kept {
    lists: HashMap<ListKey, Entry>,
    /// Whether a task removes what is no longer asked for.
    tended: bool,
}

struct Entry {
    /// The state that the list shows.
    state: String,
    list: Arc<SharedList>,
    used: Instant,
}

/// What a list is of, whatever the objects are at the moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ListKey {
    /// The informers and the format.
    pub(super) list: String,
    pub(super) selection: Arc<Selection>,
    pub(super) coding: Coding,
}

/// A whole list at one state.
#[derive(Clone, Debug)]
pub(super) struct WholeList {
    pub(super) key: ListKey,
    /// Two lists of one key and state have the same bytes.
    pub(super) state: String,
    /// Size of the JSON that it is at most about.
    pub(super) json_bytes: usize,
}

/// A list that several readers read.
struct SharedList {
    since: Instant,
    made: Mutex<Made>,
    maker: tokio::sync::Mutex<Compressing>,
}

/// The blocks so far.
struct Made {
    blocks: Vec<Bytes>,
    /// How it ended, once it did.
    end: Option<Result<(), io::ErrorKind>>,
    reserved: Reserved,
}

/// A share of the bytes of all lists, given back when it is dropped.
struct Reserved {
    bytes: usize,
    of: Arc<AtomicUsize>,
}

/// A list that is being compressed.
struct Compressing {
    body: FramesBody,
    coding: Coding,
    turns: Arc<Turns>,
    /// What waits for its turn.
    pending: Option<Frames>,
    checksum: Checksum,
    begun: bool,
    ended: bool,
}

/// A list compressed for one reader.
pub(super) fn compress(body: FramesBody, coding: Coding, turns: Arc<Turns>) -> FramesBody {
    let compressing = Compressing::new(body, coding, turns);
    FramesBody::new(futures_util::stream::unfold(compressing, async |mut compressing| {
        let block = compressing.next().await?;
        Some((block.map(framed), compressing))
    }))
}

/// A response with a compressed body.
pub(super) fn response(body: FramesBody, coding: Coding) -> Response {
    let mut response = body.into_response();
    if let Some(name) = coding.name() {
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static(name));
    }
    response
}

/// Compresses only answers that a list has marked, for clients that take neither gzip nor zstd. Streams of events are never
/// compressed like this: events would wait in the compressor, and each stream would cost a context.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompressWhen;

/// The mark, an extension of the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compress;

impl Predicate for CompressWhen {
    fn should_compress<B: http_body::Body>(&self, response: &http::Response<B>) -> bool {
        response.extensions().get::<Compress>().is_some()
    }
}

impl CompressedLists {
    /// A reader of a list that is there.
    pub(super) fn find(&self, whole: &WholeList, now: Instant) -> Option<FramesBody> {
        let mut kept = self.lock();
        let entry = kept.lists.get_mut(&whole.key)?;
        if entry.state != whole.state || !entry.list.can_be_joined(now) {
            // Readers that have begun keep it.
            kept.lists.remove(&whole.key);
            return None;
        }
        entry.used = now;
        metrics::compressed_list("shared");
        Some(read(entry.list.clone()))
    }

    /// A reader of a list that is made from this body, unless another request has begun it meanwhile.
    pub(super) fn begin(
        self: &Arc<Self>,
        whole: WholeList,
        body: FramesBody,
        turns: Arc<Turns>,
        now: Instant,
    ) -> FramesBody {
        if let Some(body) = self.find(&whole, now) {
            return body;
        }
        let coding = whole.key.coding;
        let mut kept = self.lock();
        let Some(reserved) = kept.room(&self.bytes, whole.json_bytes / 2) else {
            metrics::compressed_list("alone");
            return compress(body, coding, turns);
        };
        metrics::compressed_list("made");
        let made = Mutex::new(Made { blocks: Vec::new(), end: None, reserved });
        let maker = tokio::sync::Mutex::new(Compressing::new(body, coding, turns));
        let list = Arc::new(SharedList { since: now, made, maker });
        kept.lists.insert(whole.key, Entry { state: whole.state, list: list.clone(), used: now });
        if !std::mem::replace(&mut kept.tended, true) {
            tokio::spawn(tend(Arc::downgrade(self)));
        }
        read(list)
    }

    /// Drops lists that were not asked for. Tells whether any are left.
    fn tend(&self, now: Instant) -> bool {
        let mut kept = self.lock();
        kept.lists.retain(|_, entry| now.saturating_duration_since(entry.used) < KEPT_FOR);
        kept.tended = !kept.lists.is_empty();
        kept.tended
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Reserves bytes for a list, in place of lists that were used longer ago. `None` if readers hold too much.
    fn room(&mut self, of: &Arc<AtomicUsize>, bytes: usize) -> Option<Reserved> {
        if bytes > BYTES_MAX {
            return None;
        }
        while self.lists.len() >= LISTS_MAX || of.load(Ordering::Relaxed) + bytes > BYTES_MAX {
            let oldest = self.lists.iter().min_by_key(|(_, entry)| entry.used);
            let oldest = oldest.map(|(key, _)| key.clone())?;
            self.lists.remove(&oldest);
        }
        let mut reserved = Reserved { bytes: 0, of: of.clone() };
        reserved.set(bytes);
        Some(reserved)
    }
}

async fn tend(lists: Weak<CompressedLists>) {
    loop {
        tokio::time::sleep(KEPT_FOR / 10).await;
        let Some(lists) = lists.upgrade() else { return };
        if !lists.tend(Instant::now()) {
            return;
        }
    }
}

fn read(list: Arc<SharedList>) -> FramesBody {
    let begun = (list, Instant::now(), 0);
    FramesBody::new(futures_util::stream::unfold(begun, async |(list, began, at)| {
        let block = list.block(at, began).await?;
        Some((block.map(framed), (list, began, at + 1)))
    }))
}

fn framed(block: Bytes) -> Frames {
    let mut frames = Frames::new();
    frames.share(block);
    frames
}

impl SharedList {
    fn can_be_joined(&self, now: Instant) -> bool {
        let joined_for = match self.lock().end {
            None => JOINED_FOR,
            Some(Ok(())) => READ_FOR,
            Some(Err(_)) => return false,
        };
        now.saturating_duration_since(self.since) < joined_for
    }

    /// A block, made if it is the next one; `None` after the last. The reader has begun at a time.
    async fn block(self: &Arc<Self>, at: usize, began: Instant) -> Option<io::Result<Bytes>> {
        if let Some(made) = self.made(at, began) {
            return made;
        }
        // In a task of its own, as hyper does not poll the answer of a client that has closed its HTTP/2 window. Otherwise all readers
        // of this list would wait for that client.
        let making = tokio::spawn({
            let list = self.clone();
            async move { list.make(at, began).await }
        });
        making.await.unwrap_or_else(|error| Some(Err(io::Error::other(error))))
    }

    /// Makes a block, unless another reader has made it meanwhile.
    async fn make(&self, at: usize, began: Instant) -> Option<io::Result<Bytes>> {
        let mut maker = self.maker.lock().await;
        if let Some(made) = self.made(at, began) {
            return made;
        }
        let next = maker.next().await;
        let mut made = self.lock();
        match &next {
            Some(Ok(block)) => {
                made.blocks.push(block.clone());
                let bytes = made.blocks.iter().map(Bytes::len).sum();
                if bytes > made.reserved.bytes {
                    made.reserved.set(bytes);
                }
            }
            Some(Err(error)) => made.end = Some(Err(error.kind())),
            None => {
                let bytes = made.blocks.iter().map(Bytes::len).sum();
                made.reserved.set(bytes);
                made.end = Some(Ok(()));
            }
        }
        next
    }

    /// A block that is there, or that the list has ended; `None` if the block has yet to be made.
    fn made(&self, at: usize, began: Instant) -> Option<Option<io::Result<Bytes>>> {
        let made = self.lock();
        match (made.blocks.get(at), made.end) {
            (_, Some(Err(kind))) => Some(Some(Err(kind.into()))),
            (None, Some(Ok(()))) => Some(None),
            _ if began.elapsed() >= READ_FOR => Some(Some(Err(io::ErrorKind::TimedOut.into()))),
            (Some(block), _) => Some(Some(Ok(block.clone()))),
            (None, None) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Made> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reserved {
    fn set(&mut self, bytes: usize) {
        self.of.fetch_add(bytes, Ordering::Relaxed);
        self.of.fetch_sub(self.bytes, Ordering::Relaxed);
        metrics::compressed_list_bytes().increment(bytes as f64 - self.bytes as f64);
        self.bytes = bytes;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Compressing {
    fn new(body: FramesBody, coding: Coding, turns: Arc<Turns>) -> Self {
        let checksum = Checksum::default();
        Self { body, coding, turns, pending: None, checksum, begun: false, ended: false }
    }

    /// The next block; `None` after the last. A call that is dropped before it returns loses nothing.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.ended {
            return None;
        }
        if self.begun {
            tokio::task::yield_now().await;
        }
        if self.pending.is_none() {
            self.pending = match self.body.next().await {
                Some(Ok(frames)) => Some(frames),
                Some(Err(error)) => {
                    self.ended = true;
                    return Some(Err(error));
                }
                None => None,
            };
        }
        let turns = self.turns.clone();
        let _permit = turns.take().await;
        let mut block =
            if std::mem::replace(&mut self.begun, true) { Vec::new() } else { self.coding.head().to_vec() };
        match self.pending.take() {
            Some(frames) => {
                let (frames, checksum) = self.coding.block(frames);
                self.checksum.append(checksum);
                block.extend(frames.to_vec());
            }
            None => {
                self.ended = true;
                block.extend(self.coding.end(self.checksum));
            }
        }
        (!block.is_empty() || !self.ended).then(|| Ok(block.into()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use futures_util::stream;

    use super::*;

    const PIECES: usize = 20;

    fn whole(coding: Coding, state: &str, json_bytes: usize) -> WholeList {
        let key = ListKey { list: "pods".to_owned(), selection: Arc::default(), coding };
        WholeList { key, state: state.to_owned(), json_bytes }
    }

    /// A body of some pieces, and the number of pieces made so far.
    fn body(text: &'static str) -> (FramesBody, Arc<AtomicUsize>) {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = made.clone();
        let pieces = stream::iter(0..PIECES).map(move |at| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(framed(format!("{text} {at}\n").repeat(50).into()))
        });
        use futures_util::StreamExt as _;
        (FramesBody::new(pieces.boxed()), made)
    }

    fn expected(text: &str) -> String {
        (0..PIECES).map(|at| format!("{text} {at}\n").repeat(50)).collect()
    }

    async fn rest(mut body: FramesBody) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while let Some(frames) = body.next().await {
            bytes.extend(frames?.to_vec());
        }
        Ok(bytes)
    }

    fn unpacked(coding: Coding, bytes: &[u8]) -> String {
        let mut text = String::new();
        match coding {
            Coding::Gzip => {
                let mut member = flate2::bufread::GzDecoder::new(bytes);
                member.read_to_string(&mut text).unwrap();
                assert!(member.into_inner().is_empty(), "bytes after the one member");
            }
            Coding::Identity | Coding::Zstd => {
                text = String::from_utf8(zstd::stream::decode_all(bytes).unwrap()).unwrap()
            }
        }
        text
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_requests_share_one_compressed_list() {
        for coding in [Coding::Gzip, Coding::Zstd] {
            let (lists, turns) = (Arc::new(CompressedLists::default()), Turns::new());
            let (body, made) = body("one");
            let mut first = lists.begin(whole(coding, "1", 1 << 20), body, turns.clone(), Instant::now());
            let head = first.next().await.unwrap().unwrap().to_vec();
            // The second reader joins while the list is compressed, the third where the others have left, the fourth
            // afterwards.
            let second = lists.find(&whole(coding, "1", 1 << 20), Instant::now()).unwrap();
            let (second, rest_of_first) = tokio::join!(rest(second), rest(first));
            let third =
                rest(lists.find(&whole(coding, "1", 1 << 20), Instant::now()).unwrap()).await.unwrap();
            let first = [head, rest_of_first.unwrap()].concat();
            assert_eq!(first, second.unwrap());
            assert_eq!(first, third);
            assert_eq!(unpacked(coding, &first), expected("one"));
            assert_eq!(made.load(Ordering::Relaxed), PIECES, "a piece was made twice");
            assert_eq!(lists.bytes.load(Ordering::Relaxed), first.len());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_begun_twice_at_once_is_compressed_once() {
        let (lists, turns) = (Arc::new(CompressedLists::default()), Turns::new());
        let ((one, _), (other, made)) = (body("one"), body("one"));
        let one = lists.begin(whole(Coding::Gzip, "1", 0), one, turns.clone(), Instant::now());
        let other = lists.begin(whole(Coding::Gzip, "1", 0), other, turns, Instant::now());
        assert_eq!(rest(other).await.unwrap(), rest(one).await.unwrap());
        assert_eq!(made.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_newer_state_replaces_a_compressed_list() {
        let (lists, turns) = (Arc::new(CompressedLists::default()), Turns::new());
        let mut old = lists.begin(whole(Coding::Gzip, "1", 0), body("old").0, turns.clone(), Instant::now());
        let begun = old.next().await.unwrap().unwrap().to_vec();
        assert!(lists.find(&whole(Coding::Gzip, "2", 0), Instant::now()).is_none());
        let new = lists.begin(whole(Coding::Gzip, "2", 0), body("new").0, turns, Instant::now());
        assert_eq!(unpacked(Coding::Gzip, &rest(new).await.unwrap()), expected("new"));
        assert!(lists.find(&whole(Coding::Gzip, "1", 0), Instant::now()).is_none());
        // A reader of the replaced list gets the rest of that list.
        let old = [begun, rest(old).await.unwrap()].concat();
        assert_eq!(unpacked(Coding::Gzip, &old), expected("old"));
        assert_eq!(lists.bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_leaves_within_a_block_does_not_affect_the_others() {
        let (lists, turns) = (Arc::new(CompressedLists::default()), Turns::new());
        let mut first =
            lists.begin(whole(Coding::Zstd, "1", 0), body("one").0, turns.clone(), Instant::now());
        first.next().await.unwrap().unwrap();
        let second = lists.find(&whole(Coding::Zstd, "1", 0), Instant::now()).unwrap();
        let mut permits = Vec::new();
        while let Ok(permit) = tokio::time::timeout(Duration::from_millis(1), turns.take()).await {
            permits.push(permit);
        }
        // The reader has taken the next piece, and waits for a turn.
        assert!(tokio::time::timeout(Duration::from_millis(1), first.next()).await.is_err());
        drop(first);
        drop(permits);
        assert_eq!(unpacked(Coding::Zstd, &rest(second).await.unwrap()), expected("one"));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_compressed_list_is_dropped() {
        let (lists, turns) = (Arc::new(CompressedLists::default()), Turns::new());
        let body = lists.begin(whole(Coding::Gzip, "1", 1000), body("one").0, turns, Instant::now());
        rest(body).await.unwrap();
        assert!(lists.bytes.load(Ordering::Relaxed) > 0);
        tokio::time::sleep(KEPT_FOR + KEPT_FOR / 10).await;
        assert_eq!((lists.bytes.load(Ordering::Relaxed), lists.lock().lists.len()), (0, 0));
        assert!(!lists.lock().tended, "its task still runs");
    }

    #[tokio::test(start_paused = true)]
    async fn lists_are_bounded_in_bytes_and_number() {
        let (lists, turns) = (Arc::new(CompressedLists::default()), Turns::new());
        let begin = |state: &str, list: &str, bytes| {
            let mut whole = whole(Coding::Gzip, state, bytes);
            whole.key.list = list.to_owned();
            lists.begin(whole, body("one").0, turns.clone(), Instant::now())
        };
        // Too large to be shared.
        let large = begin("1", "large", 2 * BYTES_MAX + 2);
        assert!(lists.lock().lists.is_empty());
        assert_eq!(unpacked(Coding::Gzip, &rest(large).await.unwrap()), expected("one"));
        // A reader holds its bytes also when the list is no longer kept.
        let held = begin("1", "held", 2 * BYTES_MAX);
        let alone = begin("1", "alone", 2);
        assert!(lists.lock().lists.is_empty());
        assert_eq!(lists.bytes.load(Ordering::Relaxed), BYTES_MAX);
        assert_eq!(rest(alone).await.unwrap(), rest(held).await.unwrap());
        for at in 0..LISTS_MAX + 10 {
            rest(begin("1", &at.to_string(), 0)).await.unwrap();
        }
        assert_eq!(lists.lock().lists.len(), LISTS_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_holds_a_list_for_a_bounded_time() {
        let (lists, turns) = (Arc::new(CompressedLists::default()), Turns::new());
        let mut slow = lists.begin(whole(Coding::Gzip, "1", 0), body("one").0, turns.clone(), Instant::now());
        slow.next().await.unwrap().unwrap();
        tokio::time::sleep(JOINED_FOR).await;
        assert!(lists.find(&whole(Coding::Gzip, "1", 0), Instant::now()).is_none(), "an old list was joined");
        tokio::time::sleep(READ_FOR).await;
        assert_eq!(slow.next().await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_list_fails_for_all_its_readers_and_is_not_kept() {
        let (lists, turns) = (Arc::new(CompressedLists::default()), Turns::new());
        let pieces = stream::iter([Ok(framed("a".into())), Err(io::ErrorKind::TimedOut.into())]);
        let body = FramesBody::new(pieces);
        let first = lists.begin(whole(Coding::Gzip, "1", 0), body, turns, Instant::now());
        let second = lists.find(&whole(Coding::Gzip, "1", 0), Instant::now()).unwrap();
        assert!(rest(first).await.is_err());
        assert!(rest(second).await.is_err());
        assert!(lists.find(&whole(Coding::Gzip, "1", 0), Instant::now()).is_none());
    }
}
