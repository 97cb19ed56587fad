use std::convert::Infallible;
use std::sync::Mutex;

use futures_util::StreamExt;
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::*;
use crate::k8s::ResourceParts;
use crate::upstream::{FailureKind, UpstreamSource};

type Log = Arc<Mutex<Vec<Request<()>>>>;

/// A server on loopback whose answers depend on the request.
async fn serve(answer: fn(&Request<()>) -> Response<Full<Bytes>>) -> (String, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let log = Log::default();
    let seen = log.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let seen = seen.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let (parts, _) = request.into_parts();
                let request = Request::from_parts(parts, ());
                let response = answer(&request);
                seen.lock().unwrap().push(request);
                async move { Ok::<_, Infallible>(response) }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service),
            );
        }
    });
    (url, log)
}

fn target() -> Target {
    let parts =
        ResourceParts { version: "v1".into(), plural: "pods".into(), namespaced: true, ..Default::default() };
    Target {
        resource: Resource::new(parts),
        namespace: None,
        selectors: Selectors::default(),
        metadata_only: false,
    }
}

fn text(body: &'static str) -> Response<Full<Bytes>> {
    Response::new(Full::new(Bytes::from_static(body.as_bytes())))
}

async fn to(url: &str) -> Client {
    Client::connect(Config::new(UpstreamSource::Server { url: url.to_owned() })).await.unwrap()
}

/// A client over a service that sends these chunks, and then is silent.
fn stalling(chunks: &'static [&'static str]) -> Client {
    let service = tower::service_fn(move |_: Request<Body>| async move {
        let chunks = futures_util::stream::iter(chunks)
            .map(|chunk| Ok(Frame::data(Bytes::from_static(chunk.as_bytes()))));
        let body = StreamBody::new(chunks.chain(futures_util::stream::pending::<Result<_, Infallible>>()));
        Ok::<_, Infallible>(Response::new(body))
    });
    let config = Config { page_bytes_max: 10, ..Config::new(UpstreamSource::InCluster) };
    Client::over(kube::Client::new(service, "default"), &config)
}

#[tokio::test]
async fn lists_may_be_compressed_and_watches_never() {
    let (url, log) = serve(|_| text("{}\n")).await;
    let client = to(&url).await;
    assert_eq!(
        client.list_page(&target(), &PageRequest { limit: 7, ..PageRequest::default() }).await.unwrap().body,
        b"{}\n"
    );
    let watch = WatchRequest { from: WatchFrom::After(5.into()), timeout: Duration::from_millis(240_900) };
    let chunks: Vec<_> = client.watch(&target(), &watch).await.unwrap().collect().await;
    assert_eq!(chunks.len(), 1);
    let log = log.lock().unwrap();
    let header = |index: usize, name: &str| log[index].headers()[name].to_str().unwrap().to_owned();
    assert_eq!(
        (header(0, "accept-encoding"), header(1, "accept-encoding")),
        ("gzip".into(), "identity".into())
    );
    assert_eq!(header(0, "user-agent"), AGENT);
    assert_eq!(log[0].uri().to_string(), "/api/v1/pods?limit=7");
    let expected = "/api/v1/pods?watch=true&allowWatchBookmarks=true&timeoutSeconds=240&resourceVersion=5";
    assert_eq!(log[1].uri().to_string(), expected);
}

#[tokio::test]
async fn a_past_version_is_listed_exactly_and_as_metadata() {
    let (url, log) = serve(|_| text("{}\n")).await;
    let client = to(&url).await;
    let first =
        PageRequest { limit: 7, continue_token: None, as_of: AsOf::Exactly(5.into()), metadata_only: true };
    let second = PageRequest { continue_token: Some("t".into()), ..first.clone() };
    for request in [first, second] {
        assert_eq!(client.list_page(&target(), &request).await.unwrap().body, b"{}\n");
    }
    let log = log.lock().unwrap();
    let paths: Vec<_> = log.iter().map(|request| request.uri().to_string()).collect();
    let first = "/api/v1/pods?limit=7&resourceVersion=5&resourceVersionMatch=Exact";
    assert_eq!(paths, [first, "/api/v1/pods?limit=7&continue=t"]);
    assert!(log.iter().all(|request| request.headers()["accept"] == METADATA_LIST));
}

#[tokio::test]
async fn a_streaming_list_names_its_version_and_accepts_both_metadata_forms() {
    let (url, log) = serve(|_| text("{}\n")).await;
    let client = to(&url).await;
    let target = Target { metadata_only: true, ..target() };
    let timeout = Duration::from_secs(9);
    for as_of in [AsOf::Now, AsOf::AtLeast(5.into())] {
        let watch = WatchRequest { from: WatchFrom::Everything(as_of), timeout };
        client.watch(&target, &watch).await.unwrap();
    }
    let page = PageRequest { as_of: AsOf::AtLeast(5.into()), ..PageRequest::default() };
    client.list_page(&target, &page).await.unwrap();
    let log = log.lock().unwrap();
    let paths: Vec<_> = log.iter().map(|request| request.uri().to_string()).collect();
    let watch = "/api/v1/pods?watch=true&allowWatchBookmarks=true&timeoutSeconds=9&sendInitialEvents=true";
    let expected = [
        format!("{watch}&resourceVersionMatch=NotOlderThan"),
        format!("{watch}&resourceVersion=5&resourceVersionMatch=NotOlderThan"),
        "/api/v1/pods?resourceVersion=5&resourceVersionMatch=NotOlderThan".to_owned(),
    ];
    assert_eq!(paths, expected);
    let accepts: Vec<_> = log.iter().map(|request| request.headers()["accept"].to_str().unwrap()).collect();
    assert_eq!(accepts, [METADATA_WATCH, METADATA_WATCH, METADATA_LIST]);
}

#[tokio::test]
async fn case_25_a_compressed_list_is_decompressed() {
    // `{}` and a line feed, compressed by gzip.
    const GZIP: &[u8] =
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\xae\xe5\x02\x00\x06\xb0\xa1\xdd\x03\x00\x00\x00";
    let (url, _) = serve(|_| {
        Response::builder()
            .header("content-encoding", "gzip")
            .body(Full::new(Bytes::from_static(GZIP)))
            .unwrap()
    })
    .await;
    assert_eq!(to(&url).await.list_page(&target(), &PageRequest::default()).await.unwrap().body, b"{}\n");
}

fn is_new(headers: &http::HeaderMap) -> bool {
    headers.get("authorization").is_some_and(|value| value == "Bearer new")
}

/// Answers requests with the token `new`; all others get 401.
fn only_new(request: &Request<()>) -> Response<Full<Bytes>> {
    if is_new(request.headers()) {
        text("{}")
    } else {
        Response::builder().status(401).body(Full::default()).unwrap()
    }
}

/// A client with the token `old` in a file, and the path of that file.
async fn with_token(url: &str) -> (tempfile::TempDir, std::path::PathBuf, Client) {
    let folder = tempfile::tempdir().unwrap();
    let (kubeconfig, token) = (folder.path().join("config"), folder.path().join("token"));
    std::fs::write(&token, "old").unwrap();
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{{"name":"c","cluster":{{"server":"{url}"}}}}],"users":[{{"name":"u","user":{{"tokenFile":"{}"}}}}],"contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}]}}"#,
        token.display()
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let source = UpstreamSource::Kubeconfig { path: Some(kubeconfig), context: None };
    let client = Client::connect(Config::new(source)).await.unwrap();
    (folder, token, client)
}

#[tokio::test]
async fn case_13_after_a_401_the_token_is_read_again_at_once() {
    let (url, log) = serve(only_new).await;
    let (_folder, token, client) = with_token(&url).await;
    std::fs::write(&token, "new").unwrap();
    client.list_page(&target(), &PageRequest::default()).await.unwrap();
    assert_eq!(log.lock().unwrap().len(), 2);
    // A token that stays wrong is not read again at every request.
    std::fs::write(&token, "wrong").unwrap();
    client.list_page(&target(), &PageRequest::default()).await.unwrap();
    assert_eq!(log.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn after_a_401_a_streamed_body_is_sent_again_from_its_beginning() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let refused = Arc::new(tokio::sync::Notify::new());
    let refusing = refused.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let refusing = refusing.clone();
            let service = service_fn(move |mut request: Request<Incoming>| {
                let refusing = refusing.clone();
                async move {
                    if !is_new(request.headers()) {
                        // A server that answers 401 as soon as it has read the head.
                        let first = request.body_mut().frame().await.unwrap().unwrap();
                        assert_eq!(first.into_data().unwrap(), "first, ");
                        refusing.notify_one();
                        return Ok(Response::builder().status(401).body(Full::default()).unwrap());
                    }
                    let body = request.into_body().collect().await?.to_bytes();
                    Ok::<_, hyper::Error>(Response::new(Full::new(body)))
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service),
            );
        }
    });
    let (_folder, token, client) = with_token(&url).await;
    std::fs::write(&token, "new").unwrap();
    let first = futures_util::stream::iter([Ok(Frame::data(Bytes::from_static(b"first, ")))]);
    let after = futures_util::stream::once(async move {
        refused.notified().await;
        Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"after")))
    });
    let body = StreamBody::new(first.chain(after));
    let answer = client.forward(Request::post("/api/v1/pods").body(body).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.into_body().collect_bytes().await.unwrap(), "first, after");
}

#[tokio::test]
async fn a_request_body_that_breaks_off_does_not_renew_credentials() {
    let (url, log) = serve(only_new).await;
    let (_folder, token, client) = with_token(&url).await;
    std::fs::write(&token, "new").unwrap();
    for _ in 0..5 {
        // The body breaks off before anything was sent, so there is no response.
        let left = futures_util::stream::iter([Err::<Frame<Bytes>, _>("the client left")]);
        let request = Request::post("/api/v1/pods").body(StreamBody::new(left)).unwrap();
        client.forward(request).await.unwrap_err();
    }
    log.lock().unwrap().clear();
    client.list_page(&target(), &PageRequest::default()).await.unwrap();
    assert_eq!(log.lock().unwrap().len(), 2, "credentials were read again before there was a reason");
}

#[tokio::test]
async fn a_server_that_does_not_listen_is_a_transport_failure_with_its_cause() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = to(&url).await.version().await.unwrap_err();
    assert_eq!(error.kind(), FailureKind::Transport);
    assert!(error.sentence().contains("refused"), "{}", error.sentence());
}

#[tokio::test]
async fn an_unusable_configuration_is_refused_with_the_reason() {
    let missing = UpstreamSource::Kubeconfig { path: Some("/nowhere/config".into()), context: None };
    for (source, expected) in
        [(missing, "/nowhere/config"), (UpstreamSource::Server { url: "http://a b".into() }, "invalid")]
    {
        let error = Client::connect(Config::new(source)).await.err().unwrap();
        assert_eq!(error.kind(), FailureKind::Config);
        assert!(error.sentence().contains(expected), "{}", error.sentence());
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_is_bounded_in_bytes_and_idle_time() {
    let idle = stalling(&["12345"]).list_page(&target(), &PageRequest::default()).await.unwrap_err();
    assert!(matches!(idle, UpstreamError::Idle(_)), "{idle:?}");
    let large =
        stalling(&["12345", "12345", "1"]).list_page(&target(), &PageRequest::default()).await.unwrap_err();
    assert!(matches!(large, UpstreamError::BodyTooLarge { limit: 10 }), "{large:?}");
}

#[tokio::test(start_paused = true)]
async fn a_missing_response_head_is_an_idle_timeout() {
    let service =
        tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
    let client = Client::over(kube::Client::new(service, "default"), &Config::new(UpstreamSource::InCluster));
    let error = client.version().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.sentence().as_str()),
        (FailureKind::Idle, "the API server sent nothing for 70s")
    );
}

#[tokio::test]
async fn an_access_review_is_parsed() {
    let (url, log) = serve(|_| {
        text(r#"{"kind":"SelfSubjectAccessReview","status":{"allowed":false,"reason":"no RBAC policy matched"}}"#)
    })
    .await;
    let access = to(&url).await.can("watch", &target()).await.unwrap();
    assert_eq!((access.allowed, access.reason.as_str()), (false, "no RBAC policy matched"));
    let log = log.lock().unwrap();
    assert_eq!(
        (log[0].method(), log[0].uri().path()),
        (&Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
    );
}
