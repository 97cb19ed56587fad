use std::convert::Infallible;

use futures_util::{StreamExt, stream};
use http_body_util::StreamBody;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::*;
use crate::k8s::{Resource, ResourceParts, ResourceVersion};
use crate::upstream::{
    ByteStream, Client, Config, PageRequest, Selectors, Target, UpstreamSource, WatchFrom, WatchRequest,
};

/// An API server with TLS. Its watches send a byte and stay open until all are ended.
struct Server {
    kubeconfig: tempfile::TempDir,
    seen: Arc<Mutex<Seen>>,
    ended: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Seen {
    connections: usize,
    /// For each request: the connection, the HTTP version, and whether it is a watch.
    requests: Vec<(usize, Version, bool)>,
}

impl Server {
    async fn start(protocols: &[&[u8]]) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let chain = vec![certificate.der().clone()];
        let mut tls = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let kubeconfig = tempfile::tempdir().unwrap();
        std::fs::write(kubeconfig.path().join("ca.crt"), certificate.pem()).unwrap();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters:\n- name: a\n  cluster: {{server: \"https://{}\", \
             certificate-authority: ca.crt}}\nusers:\n- name: a\n  user: {{}}\ncontexts:\n- name: a\n  context: {{cluster: a, \
             user: a}}\n",
            listener.local_addr().unwrap()
        );
        std::fs::write(kubeconfig.path().join("kubeconfig"), text).unwrap();
        let (seen, ended) = (Arc::<Mutex<Seen>>::default(), watch::Sender::new(false));
        tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(tls)), seen.clone(), ended.subscribe()));
        Self { kubeconfig, seen, ended }
    }

    async fn client(&self, change: impl FnOnce(&mut Config)) -> Client {
        let path = Some(self.kubeconfig.path().join("kubeconfig"));
        let mut config = Config::new(UpstreamSource::Kubeconfig { path, context: None });
        change(&mut config);
        Client::connect(config).await.unwrap()
    }

    /// The connections of watches, and those of other requests, in the order of the requests.
    fn connections(&self) -> (Vec<usize>, Vec<usize>) {
        let seen = self.seen.lock().unwrap();
        let of = |watches: bool| {
            let requests = seen.requests.iter().filter(|(_, _, is_watch)| *is_watch == watches);
            requests.map(|(connection, ..)| *connection).collect()
        };
        (of(true), of(false))
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    seen: Arc<Mutex<Seen>>,
    ended: watch::Receiver<bool>,
) {
    while let Ok((socket, _)) = listener.accept().await {
        let Ok(socket) = acceptor.accept(socket).await else { continue };
        let connection = seen.lock().unwrap().connections;
        seen.lock().unwrap().connections += 1;
        let is_http2 = socket.get_ref().1.alpn_protocol() == Some(b"h2");
        let (seen, ended) = (seen.clone(), ended.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            seen.lock().unwrap().requests.push((connection, request.version(), is_watch));
            let mut ended = ended.clone();
            let first = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"\n")))]);
            let rest = stream::once(async move {
                if is_watch {
                    let _ = ended.wait_for(|ended| *ended).await;
                }
                Ok(Frame::data(Bytes::from_static(b"\n")))
            });
            async move { Ok::<_, Infallible>(Response::new(StreamBody::new(first.chain(rest).boxed()))) }
        });
        let socket = TokioIo::new(socket);
        if is_http2 {
            let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(http2.serve_connection(socket, service));
        } else {
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(socket, service));
        }
    }
}

fn target() -> Target {
    let parts = ResourceParts { version: "v1".into(), plural: "pods".into(), ..Default::default() };
    Target {
        resource: Resource::new(parts),
        namespace: None,
        selectors: Selectors::default(),
        metadata_only: false,
    }
}

/// An open watch that has sent its first byte.
async fn watch(client: &Client) -> ByteStream {
    let from = WatchFrom::After(ResourceVersion::new("1"));
    let request = WatchRequest { from, timeout: Duration::from_secs(300) };
    let mut stream = client.watch(&target(), &request).await.unwrap();
    stream.next().await.unwrap().unwrap();
    stream
}

async fn list(client: &Client) {
    client.list_page(&target(), &PageRequest::default()).await.unwrap();
}

#[tokio::test]
async fn ninety_watches_share_a_connection_and_other_requests_use_another() {
    let server = Server::start(&[b"h2", b"http/1.1"]).await;
    let client = server.client(|_| {}).await;
    list(&client).await;
    let mut open = Vec::new();
    for _ in 0..STREAMS_MAX + 1 {
        open.push(watch(&client).await);
    }
    assert!(open.iter().all(ByteStream::is_pinged));
    list(&client).await;
    let (watches, others) = server.connections();
    assert!(watches[..STREAMS_MAX].iter().all(|connection| *connection == watches[0]), "{watches:?}");
    assert_ne!(watches[STREAMS_MAX], watches[0]);
    assert!(!others.is_empty() && others.iter().all(|other| !watches.contains(other)), "{others:?}");
    // A dropped watch frees its place for the next one.
    drop(open.remove(7));
    open.push(watch(&client).await);
    assert_eq!(server.connections().0.last(), Some(&watches[0]));
    // The idle timeout of the pool does not close a connection with watches.
    assert_eq!(server.seen.lock().unwrap().connections, 3);
}

#[tokio::test]
async fn without_http2_at_server_or_client_http1_is_used() {
    for (protocols, http1_only) in
        [(&[][..], false), (&[&b"http/1.1"[..]][..], false), (&[&b"h2"[..], &b"http/1.1"[..]][..], true)]
    {
        let server = Server::start(protocols).await;
        let client = server.client(|config| config.http1_only = http1_only).await;
        let open = [watch(&client).await, watch(&client).await];
        assert!(!open.iter().any(ByteStream::is_pinged));
        list(&client).await;
        let (watches, _) = server.connections();
        assert_ne!(watches[0], watches[1]);
        let seen = server.seen.lock().unwrap();
        assert!(seen.requests.iter().all(|(_, version, _)| *version == Version::HTTP_11), "{seen:?}");
    }
}

#[tokio::test]
async fn forgotten_connections_get_no_new_watches_and_keep_open_ones() {
    let server = Server::start(&[b"h2", b"http/1.1"]).await;
    let client = server
        .client(|config| {
            config.ping_interval = Duration::from_millis(100);
            config.ping_timeout = Duration::from_secs(10);
        })
        .await;
    let mut before = watch(&client).await;
    tokio::time::sleep(FORGOTTEN_MIN).await;
    client.forget_connections();
    // Many watches of one connection end together, but the connection is forgotten once.
    client.forget_connections();
    let mut after = watch(&client).await;
    let (watches, _) = server.connections();
    assert_ne!(watches[0], watches[1]);
    // Pings go on, and no data arrives.
    assert!(timeout(Duration::from_millis(500), before.next()).await.is_err());
    server.ended.send_replace(true);
    for stream in [&mut before, &mut after] {
        let mut rest = Vec::new();
        while let Some(chunk) = stream.next().await {
            rest.extend_from_slice(&chunk.unwrap());
        }
        assert_eq!(rest, b"\n");
    }
}

fn unconnected() -> Connections {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let tls = rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty());
    let https = https(dialer(HttpConnector::new()), tls.with_no_client_auth(), None, true).unwrap();
    let http1 = TimeoutConnector::new(https);
    let pings = Pings { interval: Duration::from_secs(15), timeout: Duration::from_secs(15) };
    Connections::new(Connectors { http1: http1.clone(), http2: Some((http1, pings)) })
}

#[test]
fn of_many_failed_requests_only_the_first_forgets_the_connection() {
    let connections = unconnected();
    let failed = connections.generation();
    let (old, place) = connections.place();
    connections.forget(failed);
    let now = connections.generation();
    assert_ne!(now, failed);
    connections.forget(failed);
    assert_eq!(connections.generation(), now);
    // Streams of old connections do not count against new ones.
    let (new, _second) = connections.place();
    assert_eq!(new.watches.lock().unwrap()[0].watches.load(Ordering::Relaxed), 1);
    drop(place);
    assert_eq!(old.watches.lock().unwrap()[0].watches.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn http2_is_offered_again_after_a_while() {
    let connections = unconnected();
    let (generation, place) = connections.place();
    assert!(place.is_some());
    connections.note_http1(&generation);
    assert!(generation.watches.lock().unwrap().is_empty());
    connections.forget(connections.generation());
    assert!(connections.place().1.is_none());
    tokio::time::advance(LACKING - Duration::from_secs(1)).await;
    assert!(connections.clone().place().1.is_none());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(connections.place().1.is_some());
}

/// A load balancer leads each connection to the next of two servers, of which one hangs. If a probe and the watch
/// after it used a connection each, every attempt would meet the hung server.
#[tokio::test]
async fn without_http2_a_watch_uses_the_connection_of_the_probe_before_it() {
    for protocols in [&[][..], &[&b"http/1.1"[..]][..]] {
        let server = Server::start(protocols).await;
        let client = server.client(|_| {}).await;
        drop(watch(&client).await);
        for _ in 0..2 {
            tokio::time::sleep(FORGOTTEN_MIN).await;
            client.forget_connections();
            let before = server.seen.lock().unwrap().connections;
            let probe = PageRequest { limit: 1, metadata_only: true, ..PageRequest::default() };
            client.list_page(&target(), &probe).await.unwrap();
            drop(watch(&client).await);
            assert_eq!(server.seen.lock().unwrap().connections, before + 1);
        }
    }
}
