//! The proxy through which the API server is reached, and its credentials.
//!
//! kube's own reading of the variables is off (its features `http-proxy` and `socks5`): it compares `NO_PROXY` with the address of the proxy, and
//! refuses values that kubectl takes.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::Matcher;
use kube::config::Kubeconfig;
use percent_encoding::percent_decode_str;

/// The variables that name a proxy, and hosts that are reached without one.
pub(super) struct Variables {
    https_proxy: String,
    no_proxy: String,
}

// === impl Variables ===

impl Variables {
    /// Those of the process.
    pub(super) fn of_process() -> Self {
        let first = |names: [&str; 2]| {
            let values = names.into_iter().filter_map(|name| std::env::var(name).ok());
            values.into_iter().find(|value| !value.is_empty()).unwrap_or_default()
        };
        Self { https_proxy: first(["HTTPS_PROXY", "https_proxy"]), no_proxy: first(["NO_PROXY", "no_proxy"]) }
    }

    /// The proxy to a server. One that the kubeconfig names always counts, as in kubectl: `NO_PROXY` limits `HTTPS_PROXY` alone.
    /// A server on this machine is reached without one.
    ///
    /// Source: `k8s.io/client-go/tools/clientcmd/client_config.go` (`proxy-url`), `golang.org/x/net/http/httpproxy`.
    ///
    /// # Errors
    /// An address that cannot be read.
    pub(super) fn proxy(
        &self,
        declared: Option<&str>,
        server: &Uri,
    ) -> Result<Option<Uri>, http::uri::InvalidUri> {
        if let Some(declared) = declared.filter(|declared| !declared.is_empty()) {
            return declared.parse().map(Some);
        }
        if self.https_proxy.is_empty() || !self.applies(server) {
            return Ok(None);
        }
        self.https_proxy.parse().map(Some)
    }

    fn applies(&self, server: &Uri) -> bool {
        let host = server.host().unwrap_or_default();
        let is_loopback = |address: IpAddr| address.is_loopback();
        if host == "localhost" || bare(host).parse().is_ok_and(is_loopback) {
            return false;
        }
        let port = server.port_u16().unwrap_or(if server.scheme_str() == Some("http") { 80 } else { 443 });
        let entries = self.no_proxy.split(',').map(str::trim);
        // hyper-util takes the sign for names, not for addresses.
        if entries.clone().any(|entry| entry == "*") {
            return false;
        }
        let excepted: Vec<&str> = entries.filter_map(|entry| host_of(entry, port)).collect();
        // It only says whether there is a proxy: any address will do.
        let matcher = Matcher::builder().all("http://proxy").no(excepted.join(",")).build();
        matcher.intercept(server).is_some()
    }
}

/// An entry of `NO_PROXY` as hyper-util knows it, which has no `*.NAME` and no port; `None` for one of another port.
fn host_of(entry: &str, port: u16) -> Option<&str> {
    let entry = entry.strip_prefix("*.").unwrap_or(entry);
    match entry.rsplit_once(':') {
        // More than one colon: an IPv6 address, whose brackets belong to a port.
        Some((host, of_port)) if !host.contains(':') || host.ends_with(']') => {
            (of_port.parse() == Ok(port)).then_some(bare(host))
        }
        Some(_) | None => Some(bare(entry)),
    }
}

/// An IPv6 address without its brackets.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// The `proxy-url` of the cluster that a context of a kubeconfig names.
pub(super) fn declared(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let named = kubeconfig.contexts.iter().find(|one| one.name == name)?;
    let cluster = &named.context.as_ref()?.cluster;
    let cluster = kubeconfig.clusters.iter().find(|one| one.name == *cluster)?;
    cluster.cluster.as_ref()?.proxy_url.clone()
}

/// CONNECT through a proxy, with the user name and password in its address, if any.
pub(super) fn tunnel<C>(proxy: Uri, connector: C) -> Tunnel<C> {
    let header = userinfo(&proxy).map(|(user, password)| {
        HeaderValue::from_str(&format!("Basic {}", STANDARD.encode([&*user, b":", &*password].concat())))
    });
    let tunnel = Tunnel::new(proxy, connector);
    match header {
        Some(Ok(header)) => tunnel.with_auth(header),
        Some(Err(_)) | None => tunnel,
    }
}

/// A connection through a SOCKS5 proxy, with the user name and password in its address, if any.
pub(super) fn socks<C>(proxy: Uri, connector: C) -> SocksV5<C> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let userinfo = userinfo(&proxy).map(|(user, password)| (text(user), text(password)));
    let socks = SocksV5::new(proxy, connector);
    match userinfo {
        Some((user, password)) => socks.with_auth(user, password),
        None => socks,
    }
}

/// User name and password of an address, which are percent-encoded there.
fn userinfo(proxy: &Uri) -> Option<(Vec<u8>, Vec<u8>)> {
    let (userinfo, _) = proxy.authority()?.as_str().rsplit_once('@')?;
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    let decoded = |text: &str| percent_decode_str(text).collect();
    Some((decoded(user), decoded(password)))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tower::Service as _;

    use super::*;

    #[test]
    fn no_proxy_is_compared_with_the_api_server_and_not_with_the_proxy() {
        for (no_proxy, server, proxied) in [
            ("", "https://10.0.0.1:6443", true),
            ("10.0.0.0/8", "https://10.0.0.1:6443", false),
            ("192.168.0.0/16, 10.0.0.1", "https://10.0.0.1:6443", false),
            ("10.0.0.2", "https://10.0.0.1:6443", true),
            ("proxy.example.org", "https://10.0.0.1:6443", true),
            ("example.com", "https://api.example.com:6443", false),
            (".example.com", "https://api.example.com:6443", false),
            ("*.example.com", "https://api.example.com:6443", false),
            ("example.com", "https://api.notexample.com:6443", true),
            ("api.example.com:6443", "https://api.example.com:6443", false),
            ("api.example.com:443", "https://api.example.com:6443", true),
            ("api.example.com:443", "https://api.example.com", false),
            ("fd00::/8", "https://[fd00::1]:6443", false),
            ("[fd00::1]", "https://[fd00::1]:6443", false),
            ("[fd00::1]:6443", "https://[fd00::1]:6443", false),
            ("[fd00::1]:443", "https://[fd00::1]:6443", true),
            ("localhost,10.0.0.1,", "https://10.0.0.1:6443", false),
            ("", "https://127.0.0.1:6443", false),
            ("", "https://[::1]:6443", false),
            ("", "https://localhost:6443", false),
            ("*", "https://10.0.0.1:6443", false),
        ] {
            let https_proxy = "http://proxy.example.org:3128".to_owned();
            let variables = Variables { https_proxy, no_proxy: no_proxy.to_owned() };
            let found = variables.proxy(None, &server.parse().unwrap()).unwrap();
            assert_eq!(found.is_some(), proxied, "NO_PROXY={no_proxy} {server}");
            let declared = variables.proxy(Some("http://other:3128"), &server.parse().unwrap()).unwrap();
            assert_eq!(declared.unwrap(), "http://other:3128", "of the kubeconfig, NO_PROXY={no_proxy}");
        }
    }

    #[tokio::test]
    async fn socks5_credentials_are_sent_decoded() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = format!("socks5://me:a%40b@{}", listener.local_addr().unwrap()).parse().unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // RFC 1928: version, number of methods, methods.
            let mut hello = [0; 2];
            stream.read_exact(&mut hello).await.unwrap();
            let mut methods = vec![0; usize::from(hello[1])];
            stream.read_exact(&mut methods).await.unwrap();
            assert!(methods.contains(&2), "user name and password are offered: {methods:?}");
            stream.write_all(&[5, 2]).await.unwrap();
            // RFC 1929: version, length and user name, length and password.
            let mut request = [0; 8];
            stream.read_exact(&mut request).await.unwrap();
            request
        });
        let mut http = hyper_util::client::legacy::connect::HttpConnector::new();
        http.enforce_http(false);
        let mut connector = socks(proxy, http);
        std::future::poll_fn(|context| connector.poll_ready(context)).await.unwrap();
        let connected = connector.call("http://10.0.0.1:443".parse().unwrap()).await;
        assert!(connected.is_err(), "the proxy has gone after the credentials");
        assert_eq!(&server.await.unwrap(), b"\x01\x02me\x03a@b");
    }
}
