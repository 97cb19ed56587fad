//! Randomness from a seed. Every actor has its own dice, so that the draws of one do not change those of another.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Dice of one actor.
pub(crate) struct Dice(StdRng);

impl Dice {
    /// Dice of actor `which` in the history of `seed`.
    pub(crate) fn new(seed: u64, which: u64) -> Self {
        Self(StdRng::seed_from_u64(
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ which.wrapping_mul(0xd1b5_4a32_d192_ed03),
        ))
    }

    /// One of `0..n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n.max(1))
    }

    /// True with this probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.0.random::<f64>() < probability
    }

    /// One of them.
    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// One of them, by weight.
    pub(crate) fn weighted<T: Copy>(&mut self, of: &[(T, usize)]) -> T {
        let mut at = self.below(of.iter().map(|(_, weight)| weight).sum());
        for (what, weight) in of {
            if at < *weight {
                return *what;
            }
            at -= weight;
        }
        of[0].0
    }

    /// A time between two bounds, in milliseconds.
    pub(crate) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.0.random_range(from..=to))
    }

    /// A number that seeds other randomness.
    pub(crate) fn seed(&mut self) -> u64 {
        self.0.random()
    }
}
