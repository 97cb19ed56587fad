//! Prints what happens in a history, for a single seed.

use std::io::Write as _;

use tokio::time::Instant;

/// Prints what happens, if it is switched on.
#[derive(Clone)]
pub(crate) struct Trace(Option<Instant>);

impl Trace {
    pub(crate) fn off() -> Self {
        Self(None)
    }

    pub(crate) fn on() -> Self {
        Self(Some(Instant::now()))
    }

    /// Prints a line, with the seconds since the beginning.
    pub(crate) fn say(&self, text: impl FnOnce() -> String) {
        if let Some(began) = self.0 {
            // Written directly, as this output is the purpose of the run and the test harness must not capture it.
            let _ = writeln!(std::io::stderr(), "{:10.3} {}", began.elapsed().as_secs_f64(), text());
        }
    }
}
