//! Renewed certificates, replaced authorities and changed addresses: files that change on disk while informerd runs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use informerd::testing::config::{InitialList, Serve};
use informerd::testing::sim::rfc3339;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::json;
use tokio::time::Instant;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::{PATIENCE, Trial, cluster_with, counter, until_state};
use crate::support::gate::Gate;
use crate::support::relay::Relay;
use crate::support::server::{TestServer, kubeconfig};
use crate::support::{client, eventually};

/// A certificate authority.
struct Authority {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

// === impl Authority ===

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self { certificate: params.self_signed(&key).unwrap(), key }
    }

    /// A certificate for loopback and its key, as PEM.
    fn sign(&self) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.certificate, &self.key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// A server with a new certificate of this authority. With `clients`, it asks for client certificates of that
    /// authority.
    fn server(&self, clients: Option<&Self>) -> ServerConfig {
        // There is one provider in the dependency tree, so it does not matter who installs it first.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let builder = match clients {
            None => ServerConfig::builder().with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(clients.certificate.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
                ServerConfig::builder().with_client_cert_verifier(verifier)
            }
        };
        let (certificate, key) = self.sign();
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        builder.with_single_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
    }

    /// Writes the certificate of this authority.
    fn write(&self, folder: &Path) {
        std::fs::write(folder.join("ca.crt"), self.certificate.pem()).unwrap();
    }

    /// Writes a client certificate of this authority, and its key.
    fn write_client(&self, folder: &Path) {
        let (certificate, key) = self.sign();
        std::fs::write(folder.join("client.crt"), certificate).unwrap();
        std::fs::write(folder.join("client.key"), key).unwrap();
    }
}

/// Writes a kubeconfig that refers to files in the same folder.
fn write_kubeconfig(folder: &Path, url: &str, client: bool) {
    let user = if client { "{client-certificate: client.crt, client-key: client.key}" } else { "{}" };
    let authority = if url.starts_with("https") { ", certificate-authority: ca.crt" } else { "" };
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters:\n- name: a\n  cluster: {{server: \"{url}\"{authority}}}\n\
         users:\n- name: a\n  user: {user}\ncontexts:\n- name: a\n  context: {{cluster: a, user: a}}\n"
    );
    std::fs::write(folder.join("kubeconfig"), text).unwrap();
}

/// A trial over TLS, and the folder of its files.
async fn over_tls(
    name: &str,
    authority: &Authority,
    clients: Option<&Authority>,
) -> (Trial, Relay, tempfile::TempDir) {
    over_tls_with(name, authority, clients, &[], |_| {}).await
}

/// As [`over_tls`], with the ALPN protocols that the server offers, and with changed settings.
async fn over_tls_with(
    name: &str,
    authority: &Authority,
    clients: Option<&Authority>,
    protocols: &[&[u8]],
    change: impl FnOnce(&mut Serve),
) -> (Trial, Relay, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, resource) = cluster_with(name);
    let api = TestServer::api(cluster.clone()).await;
    let mut tls = authority.server(clients);
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let relay = Relay::tls(api.address(), tls).await;
    authority.write(folder.path());
    if let Some(clients) = clients {
        clients.write_client(folder.path());
    }
    write_kubeconfig(folder.path(), &format!("https://{}", relay.address), clients.is_some());
    let path = folder.path().join("kubeconfig");
    let server = TestServer::beside(cluster, api, &[&resource], |config| {
        config.upstream = kubeconfig(path);
        config.initial_list = InitialList::Page;
        change(config);
    })
    .await;
    (Trial::over(server, resource).await, relay, folder)
}

async fn renewals(trial: &Trial, reason: &str) -> u64 {
    counter(&trial.server, "informerd_upstream_renewals_total", &[("reason", reason)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_renewed_by_the_same_authority_is_accepted() {
    let authority = Authority::new();
    let (mut trial, relay, _folder) = over_tls("tls-renewed", &authority, None).await;
    let (before, connections) = (trial.costs().await, relay.connections());
    relay.present(authority.server(None));
    relay.cut();
    eventually("a new connection", || relay.connections() > connections).await;
    trial.write();
    trial.converges().await;
    trial.is_watching().await;
    assert_eq!((trial.costs().await.0, relay.refused()), (before.0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_authority_is_read_after_the_first_refused_certificate() {
    let (old, new) = (Authority::new(), Authority::new());
    let (mut trial, relay, folder) = over_tls("tls-authority", &old, None).await;
    let (before, renewed) = (trial.costs().await, renewals(&trial, "tls").await);
    new.write(folder.path());
    relay.present(new.server(None));
    relay.cut();
    eventually("a refused certificate", || relay.refused() > 0).await;
    trial.write();
    trial.converges().await;
    trial.is_watching().await;
    assert!(renewals(&trial, "tls").await > renewed);
    assert_eq!((trial.costs().await.0, relay.refused()), (before.0, 1), "informerd did not retry at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_an_unknown_authority_is_refused_until_it_is_trusted() {
    let (old, new) = (Authority::new(), Authority::new());
    let (mut trial, relay, folder) = over_tls("tls-unknown", &old, None).await;
    relay.present(new.server(None));
    relay.cut();
    trial.shows_error(&["the API server was not reached", "invalid peer certificate", "authority"]).await;
    trial.write();
    new.write(folder.path());
    let replaced = Instant::now();
    trial.converges().await;
    trial.is_watching().await;
    println!("authority replaced: healed after {:.1?}", replaced.elapsed());
    assert!(replaced.elapsed() < PATIENCE && relay.refused() < 15);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_client_certificate_is_read_when_the_old_one_is_refused() {
    let (server, old, new) = (Authority::new(), Authority::new(), Authority::new());
    let (mut trial, relay, folder) = over_tls("tls-client", &server, Some(&old)).await;
    let before = trial.costs().await;
    new.write_client(folder.path());
    relay.present(server.server(Some(&new)));
    relay.cut();
    eventually("a refused certificate", || relay.refused() > 0).await;
    trial.write();
    trial.converges().await;
    trial.is_watching().await;
    assert_eq!(trial.costs().await.0, before.0);
    assert!(relay.refused() <= 3, "{} handshakes", relay.refused());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_address_is_read_when_the_old_one_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, resource) = cluster_with("moved");
    let api = TestServer::api(cluster.clone()).await;
    let (old, new) = (Relay::to(api.address()).await, Relay::to(api.address()).await);
    write_kubeconfig(folder.path(), &format!("http://{}", old.address), false);
    let path = folder.path().join("kubeconfig");
    let server =
        TestServer::beside(cluster, api, &[&resource], |config| config.upstream = kubeconfig(path)).await;
    let mut trial = Trial::over(server, resource).await;
    let (before, renewed) = (trial.costs().await, renewals(&trial, "unreached").await);
    write_kubeconfig(folder.path(), &format!("http://{}", new.address), false);
    old.close();
    trial.write();
    trial.shows_error(&["the API server was not reached"]).await;
    trial.converges().await;
    trial.is_watching().await;
    assert!(renewals(&trial, "unreached").await > renewed);
    assert_eq!(trial.costs().await.0, before.0);
    assert!(new.connections() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugins_client_certificate_is_renewed_before_it_expires() {
    let (authority, clients, later) = (Authority::new(), Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let (cluster, resource) = cluster_with("tls-plugin");
    let api = TestServer::api(cluster.clone()).await;
    let relay = Relay::tls(api.address(), authority.server(Some(&clients))).await;
    authority.write(folder.path());
    write_kubeconfig(folder.path(), &format!("https://{}", relay.address), false);
    let path = folder.path().join("kubeconfig");
    // The credential plugin prints a file.
    let credential = folder.path().join("credential.json");
    let plugin = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [credential],
        "interactiveMode": "Never",
    }});
    let text = std::fs::read_to_string(&path).unwrap().replace("user: {}", &format!("user: {plugin}"));
    std::fs::write(&path, text).unwrap();
    let issue = |authority: &Authority| {
        let (certificate, key) = authority.sign();
        let soon = (SystemTime::now() + Duration::from_secs(50)).duration_since(UNIX_EPOCH).unwrap();
        let issued = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
            "status": {
                "clientCertificateData": certificate, "clientKeyData": key,
                "expirationTimestamp": rfc3339(u64::try_from(soon.as_millis()).unwrap()),
            },
        });
        std::fs::write(&credential, issued.to_string()).unwrap();
    };
    issue(&clients);
    let server =
        TestServer::beside(cluster, api, &[&resource], |config| config.upstream = kubeconfig(path)).await;
    let mut trial = Trial::over(server, resource).await;
    // Less than a minute of it is left, so a later request runs the plugin again.
    issue(&later);
    relay.present(authority.server(Some(&later)));
    relay.cut();
    trial.write();
    trial.converges().await;
    trial.is_watching().await;
    assert!(renewals(&trial, "expiring").await > 0);
}

/// Pings distinguish a dead connection from a silent one; a silence timeout cannot.
#[tokio::test(flavor = "multi_thread")]
async fn over_http2_a_silent_watch_stays_open_and_a_dead_path_ends_it() {
    const SILENCE_MAX: Duration = Duration::from_secs(2);
    let authority = Authority::new();
    let (mut trial, relay, _folder) =
        over_tls_with("tls-http2", &authority, None, &[b"h2", b"http/1.1"], |config| {
            config.limits.watch_silence_max = SILENCE_MAX;
            config.unready_after = Some(SILENCE_MAX + Duration::from_millis(500));
        })
        .await;
    // Without this fault, a bookmark every 200 ms keeps the watch busy.
    trial.faults().drop_bookmarks(true);
    let age = |state: &serde_json::Value| state["ageSeconds"].as_f64().unwrap_or_default();
    let before = trial.costs().await;
    let quiet = |state: &serde_json::Value| age(state) > 2.0 * SILENCE_MAX.as_secs_f64();
    until_state(&trial.server, &trial.resource, "a silence", quiet).await;
    until_state(&trial.server, &trial.resource, "a watch that is not stale", |state| {
        state["state"] == "watching" && state["stale"] == false
    })
    .await;
    let ready = client::get(trial.server.admin, "/readyz", &[]).await;
    assert_eq!(ready.status(), 200, "{}", ready.text());
    assert_eq!(trial.costs().await, before, "the watch was replaced");

    let ends = async |trial: &Trial, reason| trial.counter("watch_ends_total", &[("reason", reason)]).await;
    let (silent, broken) = (ends(&trial, "silent").await, ends(&trial, "broken").await);
    relay.freeze();
    let frozen = Instant::now();
    trial.write();
    trial.converges().await;
    println!("dead path under HTTP/2: healed after {:.1?}", frozen.elapsed());
    assert!(frozen.elapsed() < Duration::from_secs(15), "{:?}", frozen.elapsed());
    assert_eq!(ends(&trial, "silent").await, silent);
    assert_eq!(ends(&trial, "broken").await, broken + 1);
    assert_eq!(trial.costs().await.0, before.0, "the version was still valid");
    until_state(&trial.server, &trial.resource, "a young cache", |state| state["stale"] == false).await;
}

/// What the server speaks: HTTP without TLS, or the protocols that it offers within TLS.
#[derive(Clone, Copy, Debug)]
enum Spoken {
    Plain,
    Http1,
    Http2,
}

/// One of two API servers behind a load balancer hangs. New connections lead to each in turn. With every protocol the
/// watch moves to the other server.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_moves_from_a_hung_api_server_to_the_other_one() {
    let trials = [
        hang_one_of_two("one-plain", Spoken::Plain),
        hang_one_of_two("one-http1", Spoken::Http1),
        hang_one_of_two("one-http2", Spoken::Http2),
    ];
    futures_util::future::join_all(trials).await;
}

async fn hang_one_of_two(name: &str, spoken: Spoken) {
    const SILENCE_MAX: Duration = Duration::from_secs(2);
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    let (cluster, resource) = cluster_with(name);
    let api = TestServer::api(cluster.clone()).await;
    let start = async || {
        let mut tls = authority.server(None);
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        match spoken {
            Spoken::Plain => return Relay::to(api.address()).await,
            Spoken::Http1 => {}
            Spoken::Http2 => tls.alpn_protocols.insert(0, b"h2".to_vec()),
        }
        Relay::tls(api.address(), tls).await
    };
    let (first, second) = (start().await, start().await);
    let gate = Gate::start(&[first.address]).await;
    authority.write(folder.path());
    let scheme = if let Spoken::Plain = spoken { "http" } else { "https" };
    write_kubeconfig(folder.path(), &format!("{scheme}://{}", gate.address), false);
    let path = folder.path().join("kubeconfig");
    let server = TestServer::beside(cluster, api, &[&resource], |config| {
        config.upstream = kubeconfig(path);
        config.initial_list = InitialList::Page;
        config.limits.watch_silence_max = SILENCE_MAX;
    })
    .await;
    let mut trial = Trial::over(server, resource).await;
    let before = trial.costs().await;
    // The next connection leads to the hung server.
    gate.set_backends(&[first.address, second.address]);
    first.pause();
    let hung = Instant::now();
    trial.write();
    trial.converges().await;
    println!("{spoken:?}, one of two servers hung: healed after {:.1?}", hung.elapsed());
    // The time of silence, then once the timeout of a connection (or, without TLS, of a response), and a step of
    // backoff.
    let most = SILENCE_MAX + Duration::from_secs(if let Spoken::Plain = spoken { 20 } else { 10 });
    assert!(hung.elapsed() < most + Duration::from_secs(8), "{spoken:?}: {:?}", hung.elapsed());
    assert_eq!(trial.costs().await.0, before.0, "the version was still valid");
}

/// The only API server stops and goes on. Meanwhile its kernel accepts connections and bytes.
#[tokio::test(flavor = "multi_thread")]
async fn over_http2_a_stopped_server_shows_and_its_watch_resumes() {
    const SILENCE_MAX: Duration = Duration::from_secs(2);
    let authority = Authority::new();
    let (mut trial, relay, _folder) =
        over_tls_with("tls-stopped", &authority, None, &[b"h2", b"http/1.1"], |config| {
            config.limits.watch_silence_max = SILENCE_MAX;
            config.unready_after = Some(Duration::from_secs(4));
        })
        .await;
    // Without this fault, a bookmark every 200 ms keeps the watch busy.
    trial.faults().drop_bookmarks(true);
    let before = trial.costs().await;
    relay.pause();
    let stopped = Instant::now();
    trial.write();
    let hung = |state: &serde_json::Value| state["state"] == "connecting" && state["stale"] == true;
    until_state(&trial.server, &trial.resource, "no answer, and an old cache", hung).await;
    println!("stopped server under HTTP/2: shown after {:.1?}", stopped.elapsed());
    // Pings take as long as a watch over HTTP/1.1 may be silent.
    assert!(stopped.elapsed() < SILENCE_MAX + Duration::from_secs(3), "{:?}", stopped.elapsed());
    eventually_unready(&trial).await;
    trial.shows_error(&["the API server was not reached"]).await;
    relay.resume();
    let resumed = Instant::now();
    trial.converges().await;
    trial.is_watching().await;
    println!("stopped server under HTTP/2: healed {:.1?} after it went on", resumed.elapsed());
    until_state(&trial.server, &trial.resource, "a young cache", |state| state["stale"] == false).await;
    assert_eq!(client::get(trial.server.admin, "/readyz", &[]).await.status(), 200);
    assert_eq!(trial.costs().await.0, before.0, "the version was still valid");
}

async fn eventually_unready(trial: &Trial) {
    let unready = async {
        while client::get(trial.server.admin, "/readyz", &[]).await.status() != 503 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, unready).await.expect("informerd did not become unready");
}
