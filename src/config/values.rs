//! Values of single settings: each knows how it is written, and says so when it is written otherwise.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::quantity::{Quantity, Span};

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Where probes and metrics are answered; `None` for nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminListen(pub Option<SocketAddr>);

/// How stale the cache may be before the process is not ready; `None` for as stale as it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unready(pub Option<Duration>);

/// Time between comparisons with the API server; `None` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyInterval(pub Option<Duration>);

/// A filter of log lines whose syntax is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

/// Form of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// For people.
    Text,
    /// For machines, one object a line.
    Json,
}

/// How everything is listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum InitialList {
    /// As a stream where the API server takes it, else in pages.
    #[default]
    Auto,
    /// As a stream only.
    Stream,
    /// In pages only.
    Page,
}

/// Which requests that the caches cannot answer are handed on to the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PassThrough {
    /// None.
    #[default]
    Off,
    /// Those that read.
    Reads,
    /// All of them.
    All,
}

/// A resource with the subresource `proxy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Proxied {
    /// `nodes/proxy`: the kubelet's own interface.
    Nodes,
    /// `pods/proxy`: what listens in a pod.
    Pods,
    /// `services/proxy`: what listens behind a Service.
    Services,
}

/// An origin as a browser sends it (`https://app.example:8443`), or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(String);

/// A host name as in a `Host` header, without port; `*.` before it stands for all names below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

// === impl Listen ===

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => {
                Err("expected an absolute path after unix:, as in unix:/run/informerd.sock".to_owned())
            }
            None => text.trim().parse().map(Self::Tcp).map_err(|_| {
                "expected ADDRESS:PORT, as in 127.0.0.1:8090 or [::1]:8090, or unix:/path".to_owned()
            }),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

// === impl AdminListen ===

impl FromStr for AdminListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "off" => Ok(Self(None)),
            address => address
                .parse()
                .map(|address| Self(Some(address)))
                .map_err(|_| "expected ADDRESS:PORT, as in 0.0.0.0:8091, or off".to_owned()),
        }
    }
}

impl fmt::Display for AdminListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("off"),
        }
    }
}

// === impl Unready ===

impl FromStr for Unready {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "off" => Ok(Self(None)),
            span => span
                .parse::<Span>()
                .map(|span| Self(Some(span.plain())))
                .map_err(|error| format!("{error}, or off")),
        }
    }
}

impl fmt::Display for Unready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(span) => write!(f, "{}", Span::of(span)),
            None => f.write_str("off"),
        }
    }
}

// === impl VerifyInterval ===

impl VerifyInterval {
    /// Each comparison lists every object's metadata; more often than this nothing else would be done.
    const LEAST: Duration = Duration::from_millis(100);
}

impl Default for VerifyInterval {
    fn default() -> Self {
        Self(Some(Duration::from_secs(3600)))
    }
}

impl FromStr for VerifyInterval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "off" {
            return Ok(Self(None));
        }
        let span = text.trim().parse::<Span>().map_err(|error| format!("{error}, or off"))?.plain();
        if span < Self::LEAST {
            return Err(format!("expected at least {}, or off", Span::of(Self::LEAST)));
        }
        Ok(Self(Some(span)))
    }
}

impl fmt::Display for VerifyInterval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(span) => write!(f, "{}", Span::of(span)),
            None => f.write_str("off"),
        }
    }
}

// === impl LogFilter ===

impl LogFilter {
    /// The filter's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        tracing_subscriber::EnvFilter::try_new(text).map(|_| Self(text.to_owned())).map_err(|error| {
            format!("{error}; expected a level (error, warn, info, debug, trace, off) or target=level,…")
        })
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl LogFormat ===

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as clap::ValueEnum>::from_str(text, false).map_err(|_| "expected auto, text or json".to_owned())
    }
}

// === impl InitialList ===

impl FromStr for InitialList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as clap::ValueEnum>::from_str(text, false)
            .map_err(|_| "expected auto, stream or page".to_owned())
    }
}

impl fmt::Display for InitialList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Stream => "stream",
            Self::Page => "page",
        })
    }
}

// === impl PassThrough ===

impl FromStr for PassThrough {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as clap::ValueEnum>::from_str(text, false).map_err(|_| "expected off, reads or all".to_owned())
    }
}

impl fmt::Display for PassThrough {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Reads => "reads",
            Self::All => "all",
        })
    }
}

// === impl Proxied ===

impl FromStr for Proxied {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as clap::ValueEnum>::from_str(text.trim(), false)
            .map_err(|_| "expected nodes, pods or services".to_owned())
    }
}

impl fmt::Display for Proxied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nodes => "nodes",
            Self::Pods => "pods",
            Self::Services => "services",
        })
    }
}

// === impl Origin ===

impl Origin {
    /// The origin's text, in lower case as browsers send it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let origin = text.trim().to_ascii_lowercase();
        let authority = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        let fits = authority.is_some_and(|authority| {
            !authority.contains('@') && authority.parse::<http::uri::Authority>().is_ok()
        });
        if fits || origin == "*" {
            return Ok(Self(origin));
        }
        Err("expected an origin like https://app.example:8443, without a path, or *".to_owned())
    }
}

// === impl HostName ===

impl HostName {
    /// The name's text, in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = text.trim().to_ascii_lowercase();
        let character = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let plain = name.strip_prefix("*.").unwrap_or(&name);
        if !plain.is_empty() && plain.chars().all(character) {
            return Ok(Self(name));
        }
        Err("expected a host name like informerd.example or *.example, without a port".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: FromStr<Err = String>>(text: &str, fits: bool) {
        assert_eq!(text.parse::<T>().is_ok(), fits, "{text:?}");
    }

    #[test]
    fn addresses_are_explicit() {
        for text in ["127.0.0.1:8090", "[::1]:0", "unix:/run/informerd.sock"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        for text in ["8090", ":8090", "localhost", "unix:relative", "unix:"] {
            check::<Listen>(text, false);
        }
        assert_eq!("off".parse(), Ok(AdminListen(None)));
        check::<AdminListen>("unix:/run/admin.sock", false);
    }

    #[test]
    fn origins_and_hosts_have_no_path_and_no_port() {
        for (text, fits) in [
            ("https://app.example", true),
            ("HTTP://localhost:3000", true),
            ("*", true),
            ("app.example", false),
            ("https://app.example/", false),
            ("https://user@app.example", false),
            ("https://", false),
        ] {
            check::<Origin>(text, fits);
        }
        for (text, fits) in [
            ("informerd.web.svc", true),
            ("*.example", true),
            ("*", false),
            ("*.", false),
            ("a.*", false),
            ("a:80", false),
            ("", false),
        ] {
            check::<HostName>(text, fits);
        }
    }

    #[test]
    fn filters_and_spans_are_checked() {
        check::<LogFilter>("info,informerd::upstream=debug", true);
        check::<LogFilter>("informerd=loud", false);
        assert_eq!("5m".parse(), Ok(Unready(Some(Duration::from_secs(300)))));
        check::<Unready>("never", false);
        check::<LogFormat>("json", true);
        check::<LogFormat>("xml", false);
        check::<InitialList>("stream", true);
        check::<InitialList>("pages", false);
        check::<PassThrough>("reads", true);
        check::<PassThrough>("writes", false);
        check::<Proxied>("services", true);
        check::<Proxied>("deployments", false);
    }
}
