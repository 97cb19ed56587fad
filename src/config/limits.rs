//! Every limit, each defined once: flag, variable, file key, unit, default and the reason for it.

use super::quantity::{Count, Quantity, Size, Span};
use super::{ConfigError, Environment, text_of};
use std::time::Duration;

/// Defines the limits: a line each gives the flag `--name-in-kebab-case`, its environment variable, the key
/// `limits.nameInCamelCase` of the file, the field of [`Limits`] and its line in the help.
macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ident = $default:expr, least $least:expr, $env:literal;)+) => {
        /// Limits, with defaults applied and relations checked.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Limits {
            $($(#[doc = $doc])+ pub $name: <$kind as Quantity>::Plain,)+
        }

        /// Limits as flags or the environment gave them.
        #[derive(clap::Args, Clone, Debug, Default)]
        #[command(next_help_heading = "Limits")]
        pub struct LimitSettings {
            $($(#[doc = $doc])+ #[arg(long, env = $env, value_name = <$kind as Quantity>::VALUE_NAME)]
            pub $name: Option<$kind>,)+
        }

        /// Limits as the file gives them.
        #[derive(serde::Deserialize, Clone, Debug, Default)]
        #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
        pub(super) struct LimitFile {
            $($name: Option<String>,)+
        }

        impl Limits {
            /// What holds where nothing else is said.
            pub const DEFAULT: Self = Self { $($name: $default,)+ };

            /// Each limit's name in code, its value, its default, and why.
            pub fn list(&self) -> Vec<Limit> {
                vec![$(Limit {
                    name: stringify!($name),
                    value: $kind::of(self.$name).to_string(),
                    default: $kind::of(Self::DEFAULT.$name).to_string(),
                    why: concat!($($doc),+).trim(),
                },)+]
            }
        }

        impl LimitSettings {
            /// These settings, and where they are silent the lower layer's.
            pub(super) fn or(self, lower: Self) -> Self {
                Self { $($name: self.$name.or(lower.$name),)+ }
            }

            /// Applies the defaults and checks each limit, then their relations.
            ///
            /// # Errors
            /// [`ConfigError::Setting`] for a limit below its least value or at odds with another.
            pub fn resolve(&self) -> Result<Limits, ConfigError> {
                $(let $name = self.$name.map_or(Limits::DEFAULT.$name, Quantity::plain);
                if $name < $least {
                    let least = $kind::of($least);
                    return Err(refused(stringify!($name), &$kind::of($name), &format!("expected at least {least}")));
                })+
                let limits = Limits { $($name,)+ };
                limits.check_relations()?;
                Ok(limits)
            }
        }

        impl LimitFile {
            pub(super) fn settings(self, environment: Environment<'_>) -> Result<LimitSettings, ConfigError> {
                Ok(LimitSettings {
                    $($name: text_of(&key(stringify!($name)), self.$name, environment)?,)+
                })
            }
        }
    };
}

/// One limit, for the log line at start, the documentation and the tests.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Name in code: `journal_len_max`.
    pub name: &'static str,
    /// Its value, with unit.
    pub value: String,
    /// Its default, with unit.
    pub default: String,
    /// What it bounds, and why the default is what it is.
    pub why: &'static str,
}

limits! {
    /// Connections open at once [default 10000: about 12 KiB each, so 120 MiB]; more are answered 503
    connections_max: Count = 10_000, least 1, "INFORMERD_CONNECTIONS_MAX";
    /// Resources × namespaces in one stream [default 100: more than a cluster has kinds worth joining]; more is 400
    streams_per_connection_max: Count = 100, least 1, "INFORMERD_STREAMS_PER_CONNECTION_MAX";
    /// Subscriptions at once over all connections [default 20000: two for each connection]; more are answered 503
    subscribers_max: Count = 20_000, least 1, "INFORMERD_SUBSCRIBERS_MAX";
    /// Informers that run at once because clients asked for them [default 32: each holds a cache and a journal]; more
    /// are answered 503
    on_demand_max: Count = 32, least 1, "INFORMERD_ON_DEMAND_MAX";
    /// Requests passed through to the API server at once [default 64: a few people's; watches and logs last]; more are
    /// answered 503
    pass_through_max: Count = 64, least 1, "INFORMERD_PASS_THROUGH_MAX";
    /// Bytes of the body of a request that is passed through [default 3MiB: what the API server takes]; more is 413
    pass_through_body_bytes_max: Size = 3 << 20, least 1 << 10, "INFORMERD_PASS_THROUGH_BODY_BYTES_MAX";
    /// Bytes of a request's head [default 16KiB: room for a cookie jar on localhost]; more is 431
    header_bytes_max: Size = 16 << 10, least 8 << 10, "INFORMERD_HEADER_BYTES_MAX";
    /// Bytes of a request's path and query [default 8KiB: a selector over hundreds of names]; more is 414
    url_bytes_max: Size = 8 << 10, least 256, "INFORMERD_URL_BYTES_MAX";
    /// Time for a request's head to arrive [default 10s: slow links pass, slow-header attacks do not]
    header_timeout: Span = Duration::from_secs(10), least Duration::from_millis(100), "INFORMERD_HEADER_TIMEOUT";
    /// Time a peer may take nothing while data waits for it [default 1m: a laptop changing networks passes]; then its
    /// connection is closed
    write_stall_timeout: Span = Duration::from_secs(60), least Duration::from_secs(1), "INFORMERD_WRITE_STALL_TIMEOUT";
    /// Kernel send buffer for each connection [default 64KiB: a stuck peer pins this and not the 4 MiB of autotuning]
    send_buffer_bytes: Size = 64 << 10, least 4 << 10, "INFORMERD_SEND_BUFFER_BYTES";
    /// Changes each informer keeps for readers that are behind [default 10000: minutes of a busy cluster]; older
    /// readers get the latest states instead of each change
    journal_len_max: Count = 10_000, least 16, "INFORMERD_JOURNAL_LEN_MAX";
    /// Bytes of superseded objects in each informer's journal [default 64MiB: 10000 changes of 6 KiB pods fit]
    journal_bytes_max: Size = 64 << 20, least 1 << 20, "INFORMERD_JOURNAL_BYTES_MAX";
    /// Deletions each informer remembers beyond the journal [default 65536: about 10 MiB]; a reader away for longer
    /// gets RESET
    tombstones_len_max: Count = 65_536, least 16, "INFORMERD_TOMBSTONES_LEN_MAX";
    /// Bytes of one object's JSON [default 8MiB: etcd refuses writes above 1.5 MiB, JSON needs more]; larger ones are
    /// skipped and counted, and one that grows beyond it is told as deleted
    object_bytes_max: Size = 8 << 20, least 64 << 10, "INFORMERD_OBJECT_BYTES_MAX";
    /// Bytes of one line of an upstream watch [default 16MiB: the largest object, its managedFields and the frame]
    line_bytes_max: Size = 16 << 20, least 64 << 10, "INFORMERD_LINE_BYTES_MAX";
    /// Objects asked for in one page of a list [default 500: what kubectl and client-go ask for]
    page_size: Count = 500, least 1, "INFORMERD_PAGE_SIZE";
    /// Bytes of one page of an upstream list [default 256MiB: 500 objects of 512 KiB]; a larger page is
    /// asked for in smaller ones
    page_bytes_max: Size = 256 << 20, least 1 << 20, "INFORMERD_PAGE_BYTES_MAX";
    /// Time without a byte on a watch after which its connection is taken for dead and it is opened anew [default 30s:
    /// a half-open connection is noticed before anyone asks; an idle watch costs the API server one request in this time,
    /// and says how far the server is; above the interval of the server's bookmarks (60s) it costs 13 an hour]
    watch_silence_max: Span = Duration::from_secs(30), least Duration::from_millis(100), "INFORMERD_WATCH_SILENCE_MAX";
    /// Snapshots held for clients that page with limit and continue [default 16: each pins what has changed since];
    /// the oldest goes first, its continue is then 410
    snapshot_pages_max: Count = 16, least 1, "INFORMERD_SNAPSHOT_PAGES_MAX";
    /// Time such a snapshot is held after its last page [default 5m: etcd's compaction gives an API server's as long]
    snapshot_pages_ttl: Span = Duration::from_secs(300), least Duration::from_secs(1), "INFORMERD_SNAPSHOT_PAGES_TTL";
    /// Time between heartbeats on a quiet stream [default 15s: below the 30 to 60s idle timeouts of proxies]
    heartbeat_interval: Span = Duration::from_secs(15), least Duration::from_millis(100), "INFORMERD_HEARTBEAT_INTERVAL";
    /// Time between BOOKMARKs on a stream [default 1m: as an API server's, so that resume tokens stay fresh]
    bookmark_interval: Span = Duration::from_secs(60), least Duration::from_millis(100), "INFORMERD_BOOKMARK_INTERVAL";
    /// Time to wait for a token that is ahead of the cache and of what the API server says it has reached, or for what
    /// changed since one from before the start [default 10s: a replica is rarely further behind]; then RESET
    resume_wait: Span = Duration::from_secs(10), least Duration::ZERO, "INFORMERD_RESUME_WAIT";
    /// Changes taken from the journal in one go [default 256: one wake-up, one write]
    batch_len_max: Count = 256, least 1, "INFORMERD_BATCH_LEN_MAX";
    /// Bytes handed to a socket in one go [default 256KiB: four send buffers; one object always goes]
    batch_bytes_max: Size = 256 << 10, least 4 << 10, "INFORMERD_BATCH_BYTES_MAX";
}

// The relations that `check_relations` asks of every configuration hold for the defaults, and so do those that
// only make sense of them.
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

impl Limits {
    /// The limits of each cache.
    pub fn cache(&self) -> crate::cache::Config {
        crate::cache::Config {
            journal_len_max: self.journal_len_max,
            journal_bytes_max: self.journal_bytes_max,
            tombstones_len_max: self.tombstones_len_max,
        }
    }

    /// Checks what must hold between limits, whoever set them.
    fn check_relations(&self) -> Result<(), ConfigError> {
        let sizes = [
            // An object that cannot arrive in a line would be listed but never updated.
            ("object_bytes_max", self.object_bytes_max, "line_bytes_max", self.line_bytes_max),
            ("line_bytes_max", self.line_bytes_max, "page_bytes_max", self.page_bytes_max),
            // One change of the largest object must fit, or every reader would always be behind.
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
        // Heartbeats are the pending data by which a silent dead peer is found.
        let (name, value) = ("heartbeat_interval", self.heartbeat_interval);
        if value > self.write_stall_timeout {
            let bound = Span::of(self.write_stall_timeout);
            return Err(at_odds(name, &Span::of(value), "write_stall_timeout", &bound));
        }
        Ok(())
    }
}

impl Limit {
    /// The limit as a flag: `--journal-len-max`.
    pub fn flag(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }

    /// The limit as a key of the file: `limits.journalLenMax`.
    pub fn key(&self) -> String {
        key(self.name)
    }
}

fn key(name: &str) -> String {
    format!("limits.{}", super::camel_case(name))
}

fn refused(name: &str, value: &dyn std::fmt::Display, problem: &str) -> ConfigError {
    let flag = name.replace('_', "-");
    ConfigError::Setting {
        key: format!("{} (--{flag})", key(name)),
        value: value.to_string(),
        problem: problem.to_owned(),
    }
}

fn at_odds(
    name: &str,
    value: &dyn std::fmt::Display,
    other: &str,
    bound: &dyn std::fmt::Display,
) -> ConfigError {
    refused(name, value, &format!("expected at most {}, which is {bound}", key(other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_tells_its_default_in_its_help() {
        for limit in Limits::DEFAULT.list() {
            let told = format!("[default {}: ", limit.default);
            assert!(limit.why.contains(&told), "{}: {:?} not in {:?}", limit.name, told, limit.why);
        }
    }

    #[test]
    fn a_limit_below_its_least_value_is_refused_by_name() {
        let settings = LimitSettings { header_bytes_max: Some(Size::of(100)), ..Default::default() };
        let message = settings.resolve().unwrap_err().to_string();
        assert_eq!(message, r#"limits.headerBytesMax (--header-bytes-max) "100": expected at least 8KiB"#);
    }

    #[test]
    fn limits_at_odds_are_refused_by_name() {
        let settings = LimitSettings { object_bytes_max: Some(Size::of(32 << 20)), ..Default::default() };
        let message = settings.resolve().unwrap_err().to_string();
        assert_eq!(
            message,
            r#"limits.objectBytesMax (--object-bytes-max) "32MiB": expected at most limits.lineBytesMax, which is 16MiB"#
        );
        let settings =
            LimitSettings { heartbeat_interval: Some("2m".parse().unwrap()), ..Default::default() };
        assert!(settings.resolve().unwrap_err().to_string().contains("limits.writeStallTimeout"));
    }

    #[test]
    fn defaults_resolve_to_themselves() {
        assert_eq!(LimitSettings::default().resolve().unwrap(), Limits::DEFAULT);
    }
}
