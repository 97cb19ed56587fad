//! The host that a request names, and whether this server answers under that name.
//!
//! A listener without authentication relies on who can connect to it. A web page in a user's browser can connect to
//! everything that the browser can, and reads the answer if its own name resolves to the listener's address (DNS
//! rebinding). The `Host` header then has the page's name, so only names that no stranger can register are answered.
//!
//! Source: RFC 9112, section 3.2 (`Host`); RFC 9113, section 8.3.1 (`:authority`).

use std::net::{IpAddr, Ipv6Addr};

use axum::http::{Version, header, request::Parts};

use super::ApiError;
use super::metrics::limit_hit;

/// Suffixes of the names that a cluster gives to Services and Pods. Neither is a public top-level domain.
const CLUSTER_SUFFIXES: [&str; 2] = [".svc", ".cluster.local"];

/// The host and port that a request names; `None` for a request of HTTP/1.0 without them, which no browser sends.
///
/// # Errors
/// 400 where the request names no host, several in Host headers, or something that is no host; 403 where the header
/// differs from the target.
pub(super) fn requested(parts: &Parts) -> Result<Option<&str>, ApiError> {
    let mut fields = parts.headers.get_all(header::HOST).iter();
    let field = fields.next().map(|field| field.to_str().unwrap_or(""));
    if fields.next().is_some() {
        return Err(refused("the request has more than one Host header".to_owned()));
    }
    let target = parts.uri.authority().map(axum::http::uri::Authority::as_str);
    let authority = match (target, field) {
        (Some(target), Some(field)) if !target.eq_ignore_ascii_case(field) => {
            limit_hit("host");
            let message = format!("the request is for {target:?}, but its Host header says {field:?}");
            return Err(ApiError::forbidden(message));
        }
        (_, None) if parts.version == Version::HTTP_11 => {
            return Err(refused("the request has no Host header".to_owned()));
        }
        (None, None) if parts.version < Version::HTTP_11 => return Ok(None),
        (None, None) => return Err(refused("the request has no :authority".to_owned())),
        (_, Some(authority)) | (Some(authority), None) => authority,
    };
    if name_of(authority).is_none() {
        return Err(refused(format!("Host {authority:?} is not HOST or HOST:PORT")));
    }
    Ok(Some(authority))
}

/// Whether a server answers to a host.
///
/// # Errors
/// 403 where it does not.
pub(super) fn check(authority: &str, allowed: &[String]) -> Result<(), ApiError> {
    let name = name_of(authority).unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
    if is_private(&name) || allowed.iter().any(|pattern| matches(pattern, &name)) {
        return Ok(());
    }
    limit_hit("host");
    let message = format!(
        "Host {authority:?} is not served, so that no web page can reach this server through DNS; use an address, \
         localhost, a name without dots or one below {}, or allow this one with --allow-host {name} (allowHosts)",
        CLUSTER_SUFFIXES.join(" or ")
    );
    Err(ApiError::forbidden(message))
}

fn refused(message: String) -> ApiError {
    limit_hit("host");
    ApiError::bad_request(message)
}

/// The host without its port; `None` if it is no host.
fn name_of(authority: &str) -> Option<&str> {
    let (name, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            // A zone names a network interface of the client.
            let (number, _zone) = address.split_once('%').unwrap_or((address, ""));
            number.parse::<Ipv6Addr>().ok()?;
            (number, port)
        }
        None => {
            let (name, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
            if name.trim_end_matches('.').is_empty() || !name.bytes().all(plain) {
                return None;
            }
            (name, port)
        }
    };
    let number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    (port.is_empty() || port.strip_prefix(':').is_some_and(number)).then_some(name)
}

/// Whether an attacker cannot point a host at this server: addresses, which are no names; names without a dot, which only the
/// client's own network resolves; localhost; and names within a cluster.
fn is_private(name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
        || !name.contains('.')
        || name.ends_with(".localhost")
        || CLUSTER_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

/// Whether a name is the allowed one, or below it if that begins with `*.`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(suffix) => name.len() > suffix.len() && name.ends_with(suffix),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[track_caller]
    fn check_host(host: &str, code: u16) {
        let allowed = ["informerd.example".to_owned(), "*.apps.example".to_owned()];
        let (parts, ()) = Request::get("/").header("host", host).body(()).unwrap().into_parts();
        let result = requested(&parts).and_then(|host| check(host.unwrap(), &allowed));
        assert_eq!(result.map_or_else(|error| error.code().as_u16(), |()| 200), code, "{host:?}");
    }

    #[test]
    fn only_host_names_that_nobody_else_can_register_are_served() {
        for host in [
            "localhost",
            "localhost:8090",
            "LOCALHOST.",
            "localhost:",
            "127.0.0.1:1",
            "10.0.0.1:80",
            "[::1]:80",
            "[fe80::1%eth0]",
            "a.localhost",
            "informerd",
            "informerd:8090",
            "informerd.web.svc",
            "informerd.web.svc:8090",
            "informerd.web.svc.cluster.local.",
            "10-0-0-1.web.pod.cluster.local",
            "Informerd.Example:80",
            "a.apps.example",
            "a.b.apps.example",
        ] {
            check_host(host, 200);
        }
        for host in [
            "example.com",
            "informerd.web",
            "localhost.example.com",
            "127.0.0.1.nip.io",
            "informerd.web.svc.example.com",
            "xcluster.local",
            "apps.example",
            "xapps.example",
            "x.informerd.example",
        ] {
            check_host(host, 403);
        }
        for host in [
            "",
            ".",
            ":80",
            "[::1",
            "[::1]x",
            "[localhost]",
            "localhost:x",
            "a b",
            "a@localhost",
            "a/b",
            "a,b",
        ] {
            check_host(host, 400);
        }
    }

    #[test]
    fn a_request_must_name_exactly_one_host() {
        let code = |request: Request<()>| {
            let (parts, ()) = request.into_parts();
            requested(&parts).map_or_else(|error| error.code().as_u16(), |_| 200)
        };
        let get = |target: &str, version: Version| Request::get(target).version(version);
        let of_1 = |target| get(target, Version::HTTP_11);
        assert_eq!(code(of_1("/").body(()).unwrap()), 400);
        assert_eq!(code(of_1("/").header("host", "a").header("host", "a").body(()).unwrap()), 400);
        let foreign = axum::http::HeaderValue::from_bytes("café".as_bytes()).unwrap();
        assert_eq!(code(of_1("/").header("host", foreign).body(()).unwrap()), 400);
        assert_eq!(code(of_1("http://a/").body(()).unwrap()), 400);
        assert_eq!(code(of_1("http://a/").header("host", "b").body(()).unwrap()), 403);
        assert_eq!(code(of_1("http://a/").header("host", "a").body(()).unwrap()), 200);
        assert_eq!(code(of_1("http://user@a/").header("host", "user@a").body(()).unwrap()), 400);
        assert_eq!(code(get("/", Version::HTTP_10).body(()).unwrap()), 200);
        assert_eq!(code(get("/", Version::HTTP_2).body(()).unwrap()), 400);
        assert_eq!(code(get("http://a/", Version::HTTP_2).body(()).unwrap()), 200);
        assert_eq!(code(get("http://a/", Version::HTTP_2).header("host", "b").body(()).unwrap()), 403);
    }
}
