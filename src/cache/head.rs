//! How far the API server is, for readers that come with a version which the cache has not reached.
//!
//! Where nothing changes, a cache reaches newer versions by bookmarks alone, about one a minute, each replica at moments of
//! its own. A reader that moves from one replica to another may have to wait that long. Until then it may be served all
//! the same, as it has everything up to its version, if only that version is of this history: the API server, asked how
//! far it is, has been there.

use tokio::sync::watch;

use super::shared::{Reader, Writer};
use crate::k8s::ResourceVersion;

/// What is known of it.
#[derive(Debug)]
pub(super) struct Head {
    /// The cache's history of which this is known.
    history: u64,
    /// The newest version that the API server told.
    reached: ResourceVersion,
    /// The newest version that a reader came with and that is not answered.
    asked: Option<ResourceVersion>,
}

/// The end that answers [`Reader::is_reached`].
#[derive(Debug)]
pub struct HeadWriter {
    reader: Reader,
}

/// A question how far the API server is, of one history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadAsked {
    history: u64,
}

impl Head {
    /// Of the first history nothing is known.
    pub(super) fn new() -> Self {
        Self { history: 0, reached: ResourceVersion::ZERO, asked: None }
    }

    fn of(&mut self, history: u64) -> &mut Self {
        if self.history != history {
            *self = Self { history, ..Self::new() };
        }
        self
    }
}

impl Writer {
    /// The end that tells how far the API server is.
    pub fn head(&self) -> HeadWriter {
        HeadWriter { reader: self.reader() }
    }
}

impl Reader {
    /// Whether the API server has been at a version in the cache's history. Where that is not known it is asked, and
    /// readers wake once it has answered; to be asked again then, as the answer may be that it is not there yet.
    pub fn is_reached(&self, version: &ResourceVersion) -> bool {
        let history = self.mark().history;
        let mut head = self.lock_head();
        let head = head.of(history);
        if *version <= head.reached {
            return true;
        }
        let is_first = head.asked.is_none();
        if head.asked.as_ref().is_none_or(|asked| asked < version) {
            head.asked = Some(version.clone());
        }
        if is_first {
            self.ask_head();
        }
        false
    }
}

impl HeadWriter {
    /// A receiver that wakes when a reader has asked. Take it before [`HeadWriter::next`].
    pub fn asked(&self) -> watch::Receiver<()> {
        self.reader.head_asked()
    }

    /// What was asked, where the cache itself has not got there since.
    pub fn next(&self) -> Option<HeadAsked> {
        let (history, position) = (self.reader.mark().history, self.reader.summary().position);
        let mut head = self.reader.lock_head();
        let head = head.of(history);
        head.asked = head.asked.take().filter(|asked| *asked > position);
        head.asked.is_some().then_some(HeadAsked { history })
    }

    /// Answers with the API server's version; `None` if it did not tell.
    pub fn answer(&self, asked: HeadAsked, version: Option<ResourceVersion>) {
        let history = self.reader.mark().history;
        let mut head = self.reader.lock_head();
        let head = head.of(history);
        head.asked = None;
        // What was asked of another history says nothing of this one.
        if let Some(version) = version.filter(|version| asked.history == history && *version > head.reached) {
            head.reached = version;
        }
        // Not those of one scope: they have begun, and an answer that clients asked for is nothing to them.
        self.reader.wake_waiting();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::super::{Config, Delta, cache};

    #[tokio::test]
    async fn an_answer_wakes_waiting_readers_and_not_those_of_one_namespace() {
        let limits = Config { journal_len_max: 4, journal_bytes_max: 1 << 20, tombstones_len_max: 4 };
        let (mut writer, reader) = cache(limits, Instant::now());
        writer.commit(vec![Delta::PassBegin, Delta::PassEnd(5.into())]);
        let (head, wake) = (writer.head(), reader.wake());
        let mut scoped = reader.wake_scoped("web", None);
        scoped.saw();
        assert_eq!(head.next(), None);
        assert!(!reader.is_reached(&9.into()));
        let asked = head.next().expect("asked");
        head.answer(asked, Some(9.into()));
        assert!(wake.has_changed().expect("it is there"));
        let scoped = scoped.receiver().expect("a receiver");
        assert!(!scoped.has_changed().expect("it is there"));
        assert!(reader.is_reached(&9.into()) && !reader.is_reached(&10.into()));
        // Who is there by itself asks nothing.
        writer.commit(vec![Delta::Bookmark(10.into())]);
        assert_eq!(head.next(), None);
    }
}
