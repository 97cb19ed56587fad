//! A subscriber while a live view reads for it.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::Resumable;
use super::super::follower::Follower;
use super::super::live_place::LivePlace;
use super::super::registry::SubscriberPermit;
use super::super::source::Source;
use super::{Resync, Subscriber, SubscriberState};
use crate::k8s::ResourceVersion;

/// A member of a live view. The view reads the caches for it, so it has no matcher, no wake-up and no timer, and its place is that of
/// the view: there may be ten thousand, most of them idle.
pub struct LiveSubscriber {
    resync: Option<Box<Resync>>,
    deadline: Option<Instant>,
    /// For each source the version with which a replacement of the informer last deleted an object; empty if none did.
    left_at: Box<[ResourceVersion]>,
    permit: SubscriberPermit,
}

impl Subscriber {
    /// The subscriber as a member of a live view, which it joins at the place of [`Subscriber::live_place`].
    pub fn into_live(self) -> LiveSubscriber {
        let Self { sources, resync, deadline, permit, .. } = self;
        let none_left = sources.iter().all(|source| source.left_at().is_zero());
        let left_at = sources.iter().filter(|_| !none_left).map(|source| source.left_at().clone());
        LiveSubscriber { resync, deadline, left_at: left_at.collect(), permit }
    }
}

impl LiveSubscriber {
    /// The subscriber in figures.
    pub fn follower(&self) -> &Arc<Follower> {
        self.permit.follower()
    }

    /// Counts events that its live view sent.
    pub fn count(&self, events: usize) {
        self.permit.metrics().events.increment(events as u64);
    }

    /// The subscriber that goes on by itself, from the place to which its view has brought it. The view has sent heartbeats and
    /// bookmarks, too.
    pub fn leave(self, place: &LivePlace) -> Subscriber {
        let Self { resync, deadline, left_at, permit } = self;
        let LivePlace { sources, selection, ordered, heartbeat_at, bookmark_at, gather_until, .. } = place;
        let mut left_at = left_at.into_iter();
        let wake = Arc::<Notify>::default();
        let source = |position| {
            let left_at = left_at.next().unwrap_or(ResourceVersion::ZERO);
            Source::at(position, selection, permit.generations(), &wake, *ordered, left_at)
        };
        let sources: Box<[_]> = sources.iter().map(source).collect();
        // A view may be amid what a relist found, where no bookmark has its place.
        let caught_up = sources.iter().all(|source| *source.position() != Resumable::No);
        let state = SubscriberState::Live;
        let idle = Subscriber::idle(selection.clone(), sources, wake, state, permit, Instant::now());
        Subscriber {
            caught_up,
            ordered: *ordered,
            resync,
            deadline,
            heartbeat_at: *heartbeat_at,
            bookmark_at: *bookmark_at,
            gather_until: *gather_until,
            ..idle
        }
    }
}
