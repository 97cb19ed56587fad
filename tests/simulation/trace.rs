//! What happened, in lines, where one seed is looked at.

use std::io::Write as _;

use tokio::time::Instant;

/// Writes what happens as it happens; does nothing unless it was asked for.
#[derive(Clone)]
pub(crate) struct Trace(Option<Instant>);

impl Trace {
    pub(crate) fn off() -> Self {
        Self(None)
    }

    pub(crate) fn on() -> Self {
        Self(Some(Instant::now()))
    }

    /// Tells a line, with the seconds since the beginning.
    pub(crate) fn say(&self, text: impl FnOnce() -> String) {
        if let Some(began) = self.0 {
            // Not captured by the test harness, as what it says is what it is run for.
            let _ = writeln!(std::io::stderr(), "{:10.3} {}", began.elapsed().as_secs_f64(), text());
        }
    }
}
