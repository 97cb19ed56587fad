//! Types of the values of settings. Each parses its text, and says what is accepted if it cannot.

use std::borrow::Cow;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::quantity::{Count, Quantity, Size, Span};
use super::setting::{Form, Scalar};

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Where probes and metrics are answered; `None` for no such listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminListen(pub Option<SocketAddr>);

/// How stale a cache may be before the process is unready; `None` for no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unready(pub Option<Duration>);

/// Time between comparisons with the API server; `None` for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyInterval(pub Option<Duration>);

/// A filter of log lines whose syntax is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(Cow<'static, str>);

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

/// Whether caches hold objects packed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CachePacking {
    /// Where it saves memory.
    Auto,
    /// Never.
    #[default]
    Off,
}

/// Which requests that the caches cannot answer are passed through to the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum PassThrough {
    /// None.
    #[default]
    Off,
    /// GET requests.
    Reads,
    /// All of them.
    All,
}

/// A resource with the subresource `proxy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Proxied {
    /// `nodes/proxy`: the kubelet's own interface.
    Nodes,
    /// `pods/proxy`: a server in a pod.
    Pods,
    /// `services/proxy`: the servers behind a Service.
    Services,
}

/// An origin as a browser sends it (`https://app.example:8443`), or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(String);

/// A host name as in a `Host` header, without port; `*.` before it stands for all names below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath(PathBuf);

/// A name that is not checked here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

/// A URL with `http` or `https`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl(String);

/// Where the demo's API server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiListen(SocketAddr);

/// Events a second in the demo.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(f64);

/// Seed of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(u64);

/// An address with its port. `localhost` is the loopback address of IPv4, as in the default.
fn address(text: &str) -> Option<SocketAddr> {
    let text = text.trim();
    let of_localhost =
        |port: &str| port.parse().ok().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    match text.rsplit_once(':') {
        Some((host, port)) if host.eq_ignore_ascii_case("localhost") => of_localhost(port),
        _ => text.parse().ok(),
    }
}

// === impl Listen ===

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim().strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            Some(_) => {
                Err("expected an absolute path after unix:, as in unix:/run/informerd.sock".to_owned())
            }
            None => address(text).map(Self::Tcp).ok_or_else(|| {
                "expected ADDRESS:PORT, as in 127.0.0.1:8090, localhost:8090 or [::1]:8090, or unix:/path"
                    .to_owned()
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
            text => address(text).map(|address| Self(Some(address))).ok_or_else(|| {
                "expected ADDRESS:PORT, as in 0.0.0.0:8091 or localhost:8091, or off".to_owned()
            }),
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
    /// The shortest interval: each comparison lists every object's metadata.
    const LEAST: Duration = Duration::from_millis(100);
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
    /// Lifecycle, warnings and errors.
    pub const INFO: Self = Self(Cow::Borrowed("info"));

    /// Warnings and errors.
    pub(super) const WARN: Self = Self(Cow::Borrowed("warn"));

    /// Levels, as words and as equivalent numbers.
    const LEVELS: [&str; 12] =
        ["off", "error", "warn", "info", "debug", "trace", "0", "1", "2", "3", "4", "5"];

    /// The filter's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self::INFO
    }
}

impl FromStr for LogFilter {
    type Err = String;

    /// Here a bare word is a level. The filter's own parser would take it for a target, so that the typo `inof` would silence
    /// everything else.
    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected a level (error, warn, info, debug, trace, off) or target=level, several joined by commas";
        let level = |word: &str| Self::LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
        for directive in directives(text) {
            // The fields of a span, in brackets, may contain an = themselves.
            let outside = directive.rsplit_once(']').map_or(directive, |(_, after)| after);
            let fits = match outside.rsplit_once('=') {
                Some((_, last)) => level(last.trim()),
                None => directive.contains('[') || level(directive),
            };
            if !fits {
                return Err(format!("{directive:?} is no level; {expected}"));
            }
        }
        if directives(text).next().is_none() {
            return Err(expected.to_owned());
        }
        let filter = directives(text).collect::<Vec<_>>().join(",");
        tracing_subscriber::EnvFilter::try_new(&filter)
            .map(|_| Self(Cow::Owned(filter)))
            .map_err(|error| format!("{error}; {expected}"))
    }
}

/// The parts of a filter.
fn directives(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
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

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Text => "text",
            Self::Json => "json",
        })
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

// === impl CachePacking ===

impl FromStr for CachePacking {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as clap::ValueEnum>::from_str(text, false).map_err(|_| "expected auto or off".to_owned())
    }
}

impl fmt::Display for CachePacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Off => "off",
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

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl FilePath ===

impl FromStr for FilePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.is_empty() {
            true => Err("expected a file".to_owned()),
            false => Ok(Self(text.into())),
        }
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.display())
    }
}

// === impl Name ===

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.is_empty() {
            true => Err("expected a name".to_owned()),
            false => Ok(Self(text.to_owned())),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl ServerUrl ===

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let uri = text.parse::<http::Uri>().ok();
        if uri.is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https"))) {
            return Ok(Self(text.to_owned()));
        }
        Err("expected http://HOST[:PORT] or https://HOST[:PORT]".to_owned())
    }
}

impl fmt::Display for ServerUrl {
    /// The URL without a password before an `@`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.split_once("://"), self.0.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, host))) => write!(f, "{scheme}://{host}"),
            _ => f.write_str(&self.0),
        }
    }
}

// === impl ApiListen ===

impl FromStr for ApiListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected ADDRESS:PORT, as in 127.0.0.1:6443 or localhost:0";
        address(text).map(Self).ok_or_else(|| expected.to_owned())
    }
}

impl fmt::Display for ApiListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

// === impl Rate ===

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.trim()
            .parse::<f64>()
            .ok()
            .filter(|rate| (0.0..=100_000.0).contains(rate))
            .map(Self)
            .ok_or_else(|| "expected a number from 0 (nothing happens by itself) to 100000".to_owned())
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

// === impl Seed ===

impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.trim().parse().map(Self).map_err(|_| "expected a whole number from 0".to_owned())
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

// === impl Scalar ===

/// Values whose plain form is the value itself, the value that it wraps, or a quantity.
macro_rules! scalars {
    (itself: $($kind:ty = $form:expr),+; wraps: $($wrapper:ident($plain:ty) = $wrapper_form:expr),+; quantity: $($quantity:ty = $quantity_form:expr),+;) => {
        $(impl Scalar for $kind {
            type Plain = Self;
            const FORM: Form = $form;

            fn dressed(plain: &Self) -> Self {
                plain.clone()
            }

            fn undressed(self) -> Self {
                self
            }
        })+
        $(impl Scalar for $wrapper {
            type Plain = $plain;
            const FORM: Form = $wrapper_form;

            fn dressed(plain: &$plain) -> Self {
                Self(plain.clone())
            }

            fn undressed(self) -> $plain {
                self.0
            }
        })+
        $(impl Scalar for $quantity {
            type Plain = <$quantity as Quantity>::Plain;
            const FORM: Form = $quantity_form;

            fn dressed(plain: &Self::Plain) -> Self {
                <Self as Quantity>::of(*plain)
            }

            fn undressed(self) -> Self::Plain {
                Quantity::plain(self)
            }
        })+
    };
}

scalars! {
    itself:
        Listen = Form::Text("ADDR"),
        LogFilter = Form::Text("FILTER"),
        LogFormat = Form::OneOf(&["auto", "text", "json"]),
        InitialList = Form::OneOf(&["auto", "stream", "page"]),
        CachePacking = Form::OneOf(&["auto", "off"]),
        PassThrough = Form::OneOf(&["off", "reads", "all"]),
        super::LeaseName = Form::Text("LEASE"),
        super::QueueMode = Form::OneOf(&["off", "config", "api"]),
        Origin = Form::Text("ORIGIN"),
        HostName = Form::Text("HOST"),
        Proxied = Form::Text("RESOURCE"),
        super::Pattern = Form::Text("PATTERN");
    wraps:
        AdminListen(Option<SocketAddr>) = Form::Text("ADDR"),
        Unready(Option<Duration>) = Form::SpanOrOff,
        VerifyInterval(Option<Duration>) = Form::SpanOrOff,
        FilePath(PathBuf) = Form::Text("FILE"),
        Name(String) = Form::Text("NAME"),
        ServerUrl(String) = Form::Text("URL"),
        ApiListen(SocketAddr) = Form::Text("ADDR"),
        Rate(f64) = Form::Number,
        Seed(u64) = Form::Count;
    quantity: Count = Form::Count, Size = Form::Size, Span = Form::Span;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: FromStr<Err = String>>(text: &str, fits: bool) {
        assert_eq!(text.parse::<T>().is_ok(), fits, "{text:?}");
    }

    #[test]
    fn listen_addresses_need_a_host_and_port_or_an_absolute_path() {
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
    fn localhost_is_the_loopback() {
        assert_eq!("localhost:8090".parse::<Listen>().unwrap().to_string(), "127.0.0.1:8090");
        assert_eq!("LOCALHOST:0".parse::<AdminListen>().unwrap().to_string(), "127.0.0.1:0");
        assert_eq!("localhost:1".parse::<ApiListen>().unwrap().to_string(), "127.0.0.1:1");
        for text in ["localhost", "localhost:", "localhost:70000", "localhost.example:1", "example:1"] {
            check::<Listen>(text, false);
        }
    }

    #[test]
    fn a_misspelt_log_level_is_not_taken_for_a_target() {
        for text in ["info", "WARN", "off", "info,informerd::upstream=debug", "3", " debug , kube=off"] {
            check::<LogFilter>(text, true);
        }
        for text in ["[reflector{resource=pods}]=debug", "info,[http]", "informerd[http]=trace"] {
            check::<LogFilter>(text, true);
        }
        for text in ["inof", "informerd", "info,debgu", "informerd=loud", "kube=inof", "", ",", "info,=x"] {
            check::<LogFilter>(text, false);
        }
        let error = "info,debgu".parse::<LogFilter>().unwrap_err();
        assert!(error.starts_with("\"debgu\" is no level; expected a level (error, warn"), "{error}");
    }

    #[test]
    fn words_and_spans_are_checked() {
        assert_eq!("5m".parse(), Ok(Unready(Some(Duration::from_secs(300)))));
        check::<Unready>("never", false);
        check::<LogFormat>("json", true);
        check::<LogFormat>("xml", false);
        check::<InitialList>("stream", true);
        check::<InitialList>("pages", false);
        check::<CachePacking>("off", true);
        check::<CachePacking>("on", false);
        check::<PassThrough>("reads", true);
        check::<PassThrough>("writes", false);
        check::<Proxied>("services", true);
        check::<Proxied>("deployments", false);
    }
}
