//! Delays between tries.

use std::time::Duration;

/// The first delay. Source: client-go `tools/cache/reflector.go`, `defaultBackoffInit`.
const INIT: Duration = Duration::from_millis(800);

/// The longest delay. Source: client-go `tools/cache/reflector.go`, `defaultBackoffMax`.
const MAX: Duration = Duration::from_secs(30);

/// Fraction by which a delay may exceed its base, so that many clients do not return together. client-go uses 1.0, which
/// would make the last delay a minute; here it stays within [`MAX`].
const JITTER: f64 = 0.25;

/// Exponential backoff with jitter: 0.8 s, 1.6 s, … 30 s. Entropy is an argument, so a run can be repeated.
#[derive(Clone, Debug, Default)]
pub struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// The delay before the next try. Each call makes the following one longer. `entropy` lies in `0.0..1.0`.
    pub fn next(&mut self, entropy: f64) -> Duration {
        let base = INIT.saturating_mul(1 << self.attempts.min(6)).min(MAX.div_f64(1.0 + JITTER));
        self.attempts = self.attempts.saturating_add(1);
        spread(base, entropy)
    }

    /// Starts again from the first delay, after a success.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }

    /// The delay after a server's `Retry-After`: never shorter, up to a quarter longer, and at most five minutes, so that a
    /// wrong header cannot stop informerd for a day.
    pub fn obey(retry_after: Duration, entropy: f64) -> Duration {
        spread(retry_after.clamp(INIT, Duration::from_secs(300)), entropy)
    }
}

fn spread(base: Duration, entropy: f64) -> Duration {
    base.mul_f64(1.0 + JITTER * entropy.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_with_jitter_to_a_cap_and_reset() {
        for entropy in [0.0, 0.5, 1.0] {
            let mut backoff = Backoff::default();
            let delays: Vec<_> = (0..40).map(|_| backoff.next(entropy)).collect();
            assert!(delays.windows(2).all(|pair| pair[0] <= pair[1]), "{delays:?}");
            assert!(delays[0] >= INIT && delays[0] <= Duration::from_secs(1), "{delays:?}");
            assert!(delays[39] <= MAX && delays[39] >= Duration::from_secs(24), "{delays:?}");
            backoff.reset();
            assert_eq!(backoff.next(entropy), delays[0]);
        }
    }

    #[test]
    fn a_retry_after_is_never_shortened_and_is_bounded() {
        for entropy in [0.0, 0.3, 1.0] {
            let two = Backoff::obey(Duration::from_secs(2), entropy);
            assert!(two >= Duration::from_secs(2) && two <= Duration::from_millis(2500));
            assert!(Backoff::obey(Duration::from_secs(u64::MAX), entropy) < Duration::from_secs(400));
            assert!(Backoff::obey(Duration::ZERO, entropy) >= INIT);
        }
    }
}
