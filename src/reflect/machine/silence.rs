//! How long a watch may last, and be silent.

use std::time::Duration;

use super::Machine;
use crate::reflect::step::{Moment, Step};
use crate::upstream::{WatchFrom, WatchRequest};

/// The server is asked to end a watch after 240 to 300 s (U29), at random, so that watches do not end together.
const WATCH_TIMEOUT: Duration = Duration::from_secs(240);
const WATCH_TIMEOUT_SPREAD: Duration = Duration::from_secs(60);

/// How much longer than the requested timeout a watch may last.
pub(super) const WATCH_GRACE: Duration = Duration::from_secs(5);

/// Largest fraction by which the allowed silence is shortened at random.
const SILENCE_SPREAD: f64 = 0.15;

/// Part of `silence_max` that is reserved for the end of a quiet watch to arrive, before the connection counts as dead.
const QUIET_GRACE: Duration = Duration::from_secs(2);

/// Least `silence_max` with which the server is asked to end quiet watches, as timeouts are whole seconds.
const QUIET_MIN: Duration = Duration::from_secs(5);

impl Machine {
    pub(super) fn watch_step(&mut self, from: WatchFrom, moment: Moment) -> Step {
        self.draw_silence(moment);
        // A streaming list may be silent for longer than a watch.
        let is_list = matches!(from, WatchFrom::Everything(_));
        let timeout = if self.idle && !is_list && self.allowed_silence() >= QUIET_MIN {
            self.silence_max - QUIET_GRACE
        } else {
            WATCH_TIMEOUT + WATCH_TIMEOUT_SPREAD.mul_f64(moment.entropy.clamp(0.0, 1.0))
        };
        let timeout = Duration::from_secs(timeout.as_secs());
        Step::Watch { request: WatchRequest { from, timeout }, deadline: timeout + WATCH_GRACE }
    }

    /// How long a watch over such a connection may be silent at most.
    pub(super) fn allowed_silence(&self) -> Duration {
        if self.is_pinged { self.config.pinged_silence_max } else { self.config.silence_max }
    }

    pub(super) fn draw_silence(&mut self, moment: Moment) {
        let spread = moment.entropy.clamp(0.0, 1.0) * SILENCE_SPREAD;
        self.silence_max = self.allowed_silence().mul_f64(1.0 - spread);
    }
}
