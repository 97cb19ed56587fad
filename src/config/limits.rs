//! Relations between the limits of `table.rs`.

use std::fmt::Display;
use std::time::Duration;

use super::ConfigError;
use super::quantity::{Count, Quantity, Size, Span};
use super::setting::Origin;
use super::table::{LimitSettings, Limits, find, wrong};

// The defaults satisfy the relations that `check_relations` demands of every configuration, and some that concern only
// the defaults.
const _: () = {
    let limits = &Limits::DEFAULT;
    assert!(limits.object_bytes_max <= limits.line_bytes_max);
    assert!(limits.line_bytes_max <= limits.page_bytes_max);
    assert!(limits.object_bytes_max <= limits.journal_bytes_max);
    assert!(limits.url_bytes_max <= limits.header_bytes_max);
    assert!(limits.streams_per_connection_max <= limits.subscribers_max);
    assert!(limits.connections_max <= limits.subscribers_max);
    assert!(limits.journal_len_max <= limits.tombstones_len_max);
    assert!(limits.batch_len_max <= limits.journal_len_max);
    assert!(limits.heartbeat_interval.as_millis() < limits.write_stall_timeout.as_millis());
    assert!(limits.heartbeat_interval.as_millis() <= limits.bookmark_interval.as_millis());
};

/// How long a watch may be silent whose connection is pinged: longer than the time between two bookmarks of an API server
/// (60 s), even where up to a seventh is taken off at random. Source: Kubernetes `apiserver/pkg/storage/cacher/cacher.go`,
/// `defaultBookmarkFrequency`.
const PINGED_SILENCE_MAX: Duration = Duration::from_secs(90);

/// Longest time until a ping, and longest time for its answer.
const PING_MAX: Duration = Duration::from_secs(15);

impl Limits {
    /// How long a watch over HTTP/2 may be silent.
    pub fn pinged_silence_max(&self) -> Duration {
        self.watch_silence_max.max(PINGED_SILENCE_MAX)
    }

    /// The time without a byte on an HTTP/2 connection after which the server is pinged, and the time for its answer. Together
    /// they are at most `watch_silence_max`.
    pub fn ping(&self) -> Duration {
        (self.watch_silence_max / 2).min(PING_MAX)
    }

    /// The limits of each cache.
    pub fn cache(&self) -> crate::cache::Config {
        crate::cache::Config {
            journal_len_max: self.journal_len_max,
            journal_bytes_max: self.journal_bytes_max,
            tombstones_len_max: self.tombstones_len_max,
        }
    }

    /// Checks the relations between limits. `origin` says where a limit was given, for the error.
    fn check_relations(&self, origin: &dyn Fn(&str) -> Option<Origin>) -> Result<(), ConfigError> {
        let at_odds = |name: &str, value: &dyn Display, other: &str, bound: &dyn Display| {
            let key = find(other).and_then(|setting| setting.key.clone()).unwrap_or_default();
            wrong(name, origin(name), value, format!("expected at most {key}, which is {bound}"))
        };
        let sizes = [
            // An object that does not fit into a line could be listed but never updated.
            ("object_bytes_max", self.object_bytes_max, "line_bytes_max", self.line_bytes_max),
            ("line_bytes_max", self.line_bytes_max, "page_bytes_max", self.page_bytes_max),
            // One change of the largest object must fit into the journal, or every reader would always be behind.
            ("object_bytes_max", self.object_bytes_max, "journal_bytes_max", self.journal_bytes_max),
            ("url_bytes_max", self.url_bytes_max, "header_bytes_max", self.header_bytes_max),
        ];
        for (name, value, other, bound) in sizes {
            if value > bound {
                return Err(at_odds(name, &Size::of(value), other, &Size::of(bound)));
            }
        }
        let (name, value) = ("streams_per_connection_max", self.streams_per_connection_max);
        if value > self.subscribers_max {
            let bound = Count::of(self.subscribers_max);
            return Err(at_odds(name, &Count::of(value), "subscribers_max", &bound));
        }
        // A dead peer is found by heartbeats that it does not take.
        let (name, value) = ("heartbeat_interval", self.heartbeat_interval);
        if value > self.write_stall_timeout {
            let bound = Span::of(self.write_stall_timeout);
            return Err(at_odds(name, &Span::of(value), "write_stall_timeout", &bound));
        }
        Ok(())
    }
}

impl LimitSettings {
    /// Applies the defaults and checks the relations.
    ///
    /// # Errors
    /// [`ConfigError::Setting`] for a limit that contradicts another one.
    pub fn resolve(&self) -> Result<Limits, ConfigError> {
        let limits = self.values();
        limits.check_relations(&|name| self.origin(name))?;
        Ok(limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::setting::Given;

    fn flag<T>(value: T) -> Option<Given<T>> {
        Some(Given { value, origin: Origin::Flag })
    }

    #[test]
    fn conflicting_limits_are_refused_with_the_name_used_to_set_them() {
        let settings = LimitSettings { object_bytes_max: flag(Size::of(32 << 20)), ..Default::default() };
        let message = settings.resolve().unwrap_err().to_string();
        assert_eq!(
            message,
            r#"--object-bytes-max "32MiB": expected at most limits.lineBytesMax, which is 16MiB"#
        );
        // The conflicting value is the default of the other limit.
        let settings = LimitSettings { line_bytes_max: flag(Size::of(1 << 20)), ..Default::default() };
        let message = settings.resolve().unwrap_err().to_string();
        assert_eq!(
            message,
            r#"limits.objectBytesMax (--object-bytes-max) "8MiB": expected at most limits.lineBytesMax, which is 1MiB"#
        );
        let settings =
            LimitSettings { heartbeat_interval: flag("2m".parse().unwrap()), ..Default::default() };
        assert!(settings.resolve().unwrap_err().to_string().contains("limits.writeStallTimeout"));
    }

    #[test]
    fn defaults_resolve_to_themselves() {
        assert_eq!(LimitSettings::default().resolve().unwrap(), Limits::DEFAULT);
    }
}
