//! What readers request of the API server, a backfill or its version, and the answers. A cache itself asks nobody: the reflector finds the requests here,
//! bounds them, and brings the answers.
//!
//! # Backfills
//! A reader comes with a version from before the first list: a client that outlived a restart. The API server may still be
//! able to list that version ([`Reader::request_backfill`]).
//!
//! # The upstream version
//! A reader comes with a version that the cache has not reached. Where nothing changes, a cache reaches newer versions by
//! bookmarks alone, about one a minute, each replica at moments of its own. A reader that moves from one replica to another
//! may have to wait that long. Until then it may be served all the same, as it has everything up to its version, if only
//! that version is of this history: the API server, asked for its version, has been there ([`Reader::request_version`]).

use std::cmp::Ordering;
use std::collections::HashMap;

use tokio::sync::watch;

use super::shared::{Mark, Reader, Writer};
use super::state::State;
use super::{BackfillAnswer, BackfillBuilder};
use crate::k8s::{Key, ResourceVersion};

/// The end that answers [`Reader::request_backfill`]. Separate from the [`Writer`], so that a list of a past version and the
/// watch do not wait for each other.
#[derive(Debug)]
pub struct BackfillRequests {
    reader: Reader,
}

/// The end that answers [`Reader::request_version`].
#[derive(Debug)]
pub struct VersionRequests {
    reader: Reader,
}

/// A request for the API server's version, of one history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRequest {
    history: u64,
}

// === impl State ===

impl State {
    /// What is known of a version that [`State::locate`] does not find; `None` if it was never requested and
    /// may be.
    fn backfill_answer(&self, version: &ResourceVersion) -> Option<BackfillAnswer> {
        match self.backfills.known(version, self.floor) {
            None if self.may_ask(version) => None,
            known => Some(known.unwrap_or(BackfillAnswer::Unknown)),
        }
    }

    fn may_ask(&self, version: &ResourceVersion) -> bool {
        let before = version.partial_cmp(&self.store.position) == Some(Ordering::Less);
        self.backfills.has_room() && self.synced && before && version.is_number() && !version.is_zero()
    }

    /// Puts a version among those to be requested, if it is not known.
    fn ask(&mut self, version: &ResourceVersion) -> BackfillAnswer {
        self.backfill_answer(version).unwrap_or_else(|| {
            self.backfills.request(version);
            BackfillAnswer::Requested
        })
    }
}

// === impl Writer ===

impl Writer {
    /// The end that answers requests for past versions.
    pub fn backfill_requests(&self) -> BackfillRequests {
        BackfillRequests { reader: self.reader() }
    }

    /// The end that answers requests for the API server's version.
    pub fn version_requests(&self) -> VersionRequests {
        VersionRequests { reader: self.reader() }
    }
}

// === impl Reader ===

impl Reader {
    /// What changed since a version that is [`Located::Lost`](super::Located::Lost), if the API server knows. It is asked once
    /// for each version, for a while after the first list, and for a few versions at most.
    pub fn request_backfill(&self, version: &ResourceVersion) -> BackfillAnswer {
        // Hundreds of readers may have the same version: all but the first take only the read lock.
        if let Some(answer) = self.shared.read().backfill_answer(version) {
            return answer;
        }
        let answer = self.shared.write().ask(version);
        self.shared.inquiries.backfill_tx.send_replace(());
        answer
    }

    /// Whether the API server has been at a version in the cache's history. Where that is not known it is asked, and
    /// readers wake once it has answered; to be requested again then, as the answer may be that it is not there yet.
    pub fn request_version(&self, version: &ResourceVersion) -> bool {
        let history = self.mark().history;
        let mut known = self.shared.inquiries.version();
        let known = known.of(history);
        if *version <= known.reached {
            return true;
        }
        let is_first = known.requested.is_none();
        if known.requested.as_ref().is_none_or(|requested| requested < version) {
            known.requested = Some(version.clone());
        }
        if is_first {
            self.shared.inquiries.version_tx.send_replace(());
        }
        false
    }
}

// === impl BackfillRequests ===

impl BackfillRequests {
    /// A receiver that wakes at each commit, as [`Reader::wake`].
    pub fn wake(&self) -> watch::Receiver<Mark> {
        self.reader.wake()
    }

    /// A receiver that wakes when a version was requested. Take it before [`BackfillRequests::next`].
    pub fn requested(&self) -> watch::Receiver<()> {
        self.reader.shared.inquiries.backfill_tx.subscribe()
    }

    /// A version that was requested and is not answered.
    pub fn next(&self) -> Option<ResourceVersion> {
        self.reader.shared.read().backfills.next().cloned()
    }

    /// Compares the cache with the objects that existed at exactly this version: their keys and uids.
    pub fn compare(&self, version: &ResourceVersion, there: HashMap<Key, Box<str>>) -> BackfillBuilder {
        BackfillBuilder::new(version.clone(), there, self.reader.snapshot())
    }

    /// Answers with what a comparison found; `None` if the API server does not tell. Returns what is known now.
    pub fn answer(&self, version: &ResourceVersion, compared: Option<BackfillBuilder>) -> BackfillAnswer {
        let backfill = compared.and_then(BackfillBuilder::end);
        let answer = self.reader.shared.write().backfills.answer(version, backfill);
        self.reader.shared.wake_waiting();
        answer
    }

    /// From now on nothing before the first list is known, nor requested.
    pub fn close(&self) {
        self.reader.shared.write().backfills.close();
        self.reader.shared.wake_waiting();
    }
}

// === impl VersionRequests ===

impl VersionRequests {
    /// A receiver that wakes when a reader has made a request. Take it before [`VersionRequests::next`].
    pub fn requested(&self) -> watch::Receiver<()> {
        self.reader.shared.inquiries.version_tx.subscribe()
    }

    /// The request, where the cache itself has not got there since.
    pub fn next(&self) -> Option<VersionRequest> {
        let (history, position) = (self.reader.mark().history, self.reader.summary().position);
        let mut known = self.reader.shared.inquiries.version();
        let known = known.of(history);
        known.requested = known.requested.take().filter(|requested| *requested > position);
        known.requested.is_some().then_some(VersionRequest { history })
    }

    /// Answers with the API server's version; `None` if it did not tell.
    pub fn answer(&self, request: VersionRequest, version: Option<ResourceVersion>) {
        let history = self.reader.mark().history;
        let mut known = self.reader.shared.inquiries.version();
        let known = known.of(history);
        known.requested = None;
        // An answer for another history says nothing of this one.
        if let Some(version) =
            version.filter(|version| request.history == history && *version > known.reached)
        {
            known.reached = version;
        }
        // Not those of one scope: they have begun, and an answer that clients asked for is nothing to them.
        self.reader.shared.wake_waiting();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt as _;
    use tokio::time::Instant;

    use super::super::{Config, Delta, cache};

    #[tokio::test]
    async fn an_upstream_version_wakes_waiting_readers_but_not_those_of_one_namespace() {
        let limits = Config { journal_len_max: 4, journal_bytes_max: 1 << 20, tombstones_len_max: 4 };
        let (mut writer, reader) = cache(limits, Instant::now());
        writer.commit(vec![Delta::PassBegin, Delta::PassEnd(5.into())]);
        let (head, wake) = (writer.version_requests(), reader.wake());
        let scoped = reader.wake_scoped("web", None, Arc::default());
        scoped.saw();
        assert_eq!(head.next(), None);
        assert!(!reader.request_version(&9.into()));
        let asked = head.next().expect("asked");
        head.answer(asked, Some(9.into()));
        assert!(wake.has_changed().expect("it exists"));
        assert!(scoped.woken().now_or_never().is_none());
        assert!(reader.request_version(&9.into()) && !reader.request_version(&10.into()));
        // A cache that reaches the version by itself requests nothing.
        writer.commit(vec![Delta::Bookmark(10.into())]);
        assert_eq!(head.next(), None);
    }
}
