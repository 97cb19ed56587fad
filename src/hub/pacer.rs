//! Decides when a live loop sends: at once, or a moment later together with further changes. No clock: time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// Time after a round within which further events wait for more.
const GATHER: Duration = Duration::from_micros(500);

/// Longest wait within a burst. The wait is as long as the last round took, so that the reflector gets half of the time and
/// the next round has more events.
const BURST_GATHER_MAX: Duration = Duration::from_millis(10);

/// How long the first event after a quiet period waits for more, for each member: well below the cost of one write, so
/// that a burst goes out in one round.
const GATHER_PER_MEMBER: Duration = Duration::from_micros(1);
const GATHER_MAX: Duration = Duration::from_millis(1);

/// Decides when the next round of writes begins.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    not_before: Instant,
}

/// The wait before a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Nothing.
    None,
    /// This moment.
    Until(Instant),
    /// A time shorter than a timer's resolution: let other tasks run until there was no commit for `quiet`, at most for `most`.
    Yield {
        /// The longest wait.
        most: Duration,
        /// The wait ends after this time without a commit.
        quiet: Duration,
    },
}

impl Pacer {
    /// A pacer before its first round.
    pub fn new(now: Instant) -> Self {
        Self { not_before: now }
    }

    /// Notes a round: how long it took, and how many events it had.
    pub fn sent(&mut self, now: Instant, took: Duration, events: usize) {
        let pause = if events > 1 { took.clamp(GATHER, BURST_GATHER_MAX) } else { GATHER };
        self.not_before = now + pause;
    }

    /// The wait before a round. `crowd` is the number of its members if they are many, else 0.
    pub fn before_round(&self, now: Instant, crowd: usize) -> Pause {
        if now < self.not_before {
            return Pause::Until(self.not_before);
        }
        if crowd == 0 {
            return Pause::None;
        }
        let most = (GATHER_PER_MEMBER * u32::try_from(crowd).unwrap_or(u32::MAX)).min(GATHER_MAX);
        Pause::Yield { most, quiet: most / 8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_out_in_rounds_spaced_by_the_last_rounds_duration() {
        let now = Instant::now();
        let mut pacer = Pacer::new(now);
        assert_eq!(pacer.before_round(now, 0), Pause::None);
        let took = Duration::from_millis(3);
        pacer.sent(now, took, 1);
        assert_eq!(pacer.before_round(now, 1000), Pause::Until(now + GATHER));
        pacer.sent(now, took, 2);
        assert_eq!(pacer.before_round(now, 0), Pause::Until(now + took));
        pacer.sent(now, Duration::from_secs(1), 100);
        assert_eq!(pacer.before_round(now, 0), Pause::Until(now + BURST_GATHER_MAX));
        let later = now + BURST_GATHER_MAX;
        assert_eq!(pacer.before_round(later, 0), Pause::None);
        let most = Duration::from_micros(200);
        assert_eq!(pacer.before_round(later, 200), Pause::Yield { most, quiet: most / 8 });
        let most = GATHER_MAX;
        assert_eq!(pacer.before_round(later, 1 << 40), Pause::Yield { most, quiet: most / 8 });
    }
}
