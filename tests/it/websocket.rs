//! Watch over WebSocket: the handshake, and what RFC 6455 asks of both sides.

use informerd::testing::config::Origin;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::support::client::{self, Item, Stream, head};
use crate::support::server::TestServer;
use crate::support::{eventually, in_time, mk_pod};

const WATCH: &str = "/v1/watch/pods";
/// The handshake of RFC 6455 section 1.3.
const HANDSHAKE: [(&str, &str); 3] = [
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
];

/// A connection after the handshake, and the answer's head.
async fn shake_hands(server: &TestServer) -> (TcpStream, String) {
    shake_hands_with(server, WATCH, &HANDSHAKE).await
}

async fn shake_hands_with(
    server: &TestServer,
    target: &str,
    headers: &[(&str, &str)],
) -> (TcpStream, String) {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let request = head("GET", target, "localhost", headers, "keep-alive, Upgrade");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(in_time("the handshake", socket.read_u8()).await.unwrap());
    }
    (socket, String::from_utf8(answer).unwrap())
}

/// The next frame: its first byte and its payload.
async fn frame(socket: &mut TcpStream) -> (u8, Vec<u8>) {
    in_time("a frame", async {
        let first = socket.read_u8().await.unwrap();
        let length = match socket.read_u8().await.unwrap() {
            126 => usize::from(socket.read_u16().await.unwrap()),
            127 => usize::try_from(socket.read_u64().await.unwrap()).unwrap(),
            short => usize::from(short),
        };
        let mut payload = vec![0; length];
        socket.read_exact(&mut payload).await.unwrap();
        (first, payload)
    })
    .await
}

/// A client's frame.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [7, 77, 177, 3];
    let mut frame = vec![first, 0x80 | u8::try_from(payload.len()).unwrap()];
    frame.extend(mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_answers_the_handshake_of_the_rfc() {
    let server = TestServer::start(&["pods"]).await;
    let (mut socket, head) = shake_hands(&server).await;
    assert!(head.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{head}");
    let lower = head.to_lowercase();
    for line in ["connection: upgrade\r\n", "upgrade: websocket\r\n"] {
        assert!(lower.contains(line), "{head}");
    }
    assert!(head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    let (first, payload) = frame(&mut socket).await;
    assert_eq!(first, 0x81, "not a whole, unmasked text message");
    assert!(payload.starts_with(br#"{"type":"BOOKMARK","object":{"#));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offered_subprotocol_is_chosen() {
    let server = TestServer::start(&["pods"]).await;
    let offer = ("Sec-WebSocket-Protocol", "base64.binary.k8s.io");
    for target in [WATCH, "/api/v1/pods?watch=1", "/v1/ws"] {
        let headers = [&HANDSHAKE[..], &[offer]].concat();
        let (_, head) = shake_hands_with(&server, target, &headers).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let chosen = "sec-websocket-protocol: base64.binary.k8s.io\r\n";
        assert!(head.to_lowercase().contains(chosen), "{target}: {head}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_handshake_is_refused_with_the_header_named() {
    let server = TestServer::start(&["pods"]).await;
    for (headers, field) in [
        (vec![HANDSHAKE[0], HANDSHAKE[1]], "Sec-WebSocket-Version"),
        (vec![HANDSHAKE[0], HANDSHAKE[1], ("Sec-WebSocket-Version", "8")], "Sec-WebSocket-Version"),
        (vec![HANDSHAKE[0], HANDSHAKE[2]], "Sec-WebSocket-Key"),
        (vec![HANDSHAKE[0], HANDSHAKE[2], ("Sec-WebSocket-Key", "dGVuIGJ5dGVz")], "Sec-WebSocket-Key"),
        (vec![HANDSHAKE[0], HANDSHAKE[2], ("Sec-WebSocket-Key", "not base64 at all!!")], "Sec-WebSocket-Key"),
    ] {
        let socket = TcpStream::connect(server.address).await.unwrap();
        let request = head("GET", WATCH, "localhost", &headers, "Upgrade, close");
        let answer = client::exchange(socket, "GET", request.as_bytes()).await;
        assert_eq!(answer.status(), 400, "{headers:?}");
        assert_eq!(answer.json()["details"]["causes"][0]["field"], field);
    }
    let request = head("GET", WATCH, "localhost", &HANDSHAKE, "Upgrade").replace("HTTP/1.1", "HTTP/1.0");
    let socket = TcpStream::connect(server.address).await.unwrap();
    let old = client::exchange(socket, "GET", request.as_bytes()).await;
    assert_eq!((old.status(), &old.json()["reason"]), (400, &json!("BadRequest")));
    assert_eq!(server.hub.subscribers(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_messages_close_the_connection_with_the_code_of_the_rfc() {
    let server = TestServer::start(&["pods"]).await;
    for (frames, code) in [
        (vec![masked(0x80, b"stray")], 1002u16),
        (vec![masked(0x01, b"begin"), masked(0x81, b"amid")], 1002),
        (vec![masked(0x81, b"\xff")], 1007),
        (vec![masked(0x01, b"\xe2"), masked(0x80, b"a")], 1007),
    ] {
        let (mut socket, _) = shake_hands(&server).await;
        socket.write_all(&frames.concat()).await.unwrap();
        let close = in_time("a close frame", async {
            loop {
                let (first, payload) = frame(&mut socket).await;
                if first == 0x88 {
                    break payload;
                }
            }
        })
        .await;
        assert_eq!(close, code.to_be_bytes(), "{frames:x?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_every_length_are_single_frames() {
    let server = TestServer::start(&["configmaps"]).await;
    let padding = [10, 100, 125, 126, 1000, 65_000, 65_535, 65_536, 70_000, 300_000];
    for (number, bytes) in padding.into_iter().enumerate() {
        let data = json!({"text": "x".repeat(bytes)});
        let object =
            json!({"metadata": {"name": format!("c{number:02}"), "namespace": "default"}, "data": data});
        server.cluster.create("configmaps", object).unwrap();
    }
    server.caught_up("configmaps").await;
    let mut stream = Stream::websocket(server.address, "/v1/watch/cm", None).await.unwrap();
    let events = stream.until("SYNCED").await;
    let lengths: Vec<_> =
        events.iter().filter_map(|event| Some(event.object["data"]["text"].as_str()?.len())).collect();
    assert_eq!(lengths, padding);
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_are_answered_and_other_messages_ignored() {
    let server = TestServer::start(&["pods"]).await;
    let (mut socket, _) = shake_hands(&server).await;
    frame(&mut socket).await;
    socket.write_all(&masked(0x81, b"hello")).await.unwrap();
    socket.write_all(&masked(0x82, &[0, 255])).await.unwrap();
    socket.write_all(&masked(0x8A, b"unasked")).await.unwrap();
    // In pieces, and with the longest payload of a control frame.
    let payload = [b'p'; 125];
    for piece in masked(0x89, &payload).chunks(7) {
        socket.write_all(piece).await.unwrap();
    }
    assert_eq!(frame(&mut socket).await, (0x8A, payload.to_vec()));
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    let (first, payload) = frame(&mut socket).await;
    assert_eq!((first, payload.starts_with(br#"{"type":"ADDED""#)), (0x81, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_is_answered_with_its_code_and_ends_the_connection() {
    let server = TestServer::start(&["pods"]).await;
    let (mut socket, _) = shake_hands(&server).await;
    frame(&mut socket).await;
    socket.write_all(&masked(0x88, &[0x0F, 0xA0, b'b', b'y', b'e'])).await.unwrap();
    assert_eq!(frame(&mut socket).await, (0x88, vec![0x0F, 0xA0]));
    let mut rest = Vec::new();
    assert_eq!(in_time("the end", socket.read_to_end(&mut rest)).await.unwrap(), 0);
    eventually("no subscriber is left", || server.hub.subscribers() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_violations_close_the_connection_with_the_right_code() {
    let server = TestServer::start(&["pods"]).await;
    let unmasked = vec![0x81, 2, b'h', b'i'];
    let reserved = masked(0xC1, b"hi");
    let mut long = vec![0x81, 0x80 | 126, 0xFF, 0xFF];
    long.extend([0; 100]);
    let fragmented_ping = masked(0x09, b"hi");
    for (bytes, code) in [(unmasked, 1002), (reserved, 1002), (long, 1009), (fragmented_ping, 1002)] {
        let (mut socket, _) = shake_hands(&server).await;
        frame(&mut socket).await;
        socket.write_all(&bytes).await.unwrap();
        let (first, payload) = frame(&mut socket).await;
        assert_eq!((first, &payload[..2]), (0x88, &u16::to_be_bytes(code)[..]), "{bytes:x?}");
    }
    eventually("no subscriber is left", || server.hub.subscribers() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vanished_client_frees_its_subscription() {
    let server = TestServer::start(&["pods"]).await;
    for round in 0..20 {
        let (mut socket, _) = shake_hands(&server).await;
        match round % 3 {
            // Closed without a message, in the middle of a frame, or by a reset.
            0 => drop(socket),
            1 => socket.write_all(&masked(0x81, b"half a fr")[..7]).await.unwrap(),
            _ => socket2::SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO)).unwrap(),
        }
    }
    eventually("no subscriber is left", || server.hub.subscribers() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_gets_no_websocket_unless_it_is_allowed() {
    let server = TestServer::start_with(&["pods"], |config| {
        config.allow_origins = vec!["https://app.example".parse::<Origin>().unwrap()];
    })
    .await;
    for (origin, host, code) in [
        ("https://evil.example", "localhost", 403),
        ("null", "localhost", 403),
        ("http://localhost", "localhost", 101),
        ("https://app.example", "localhost", 101),
        ("http://rebound.example", "rebound.example", 403),
    ] {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        let headers = [&HANDSHAKE[..], &[("Origin", origin)]].concat();
        let request = head("GET", WATCH, host, &headers, "Upgrade");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        in_time("an answer", socket.read_exact(&mut status)).await.unwrap();
        assert_eq!(status, *format!("HTTP/1.1 {code}").as_bytes(), "{origin}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tungstenite_client_can_ping_and_close() {
    let server = TestServer::start(&["pods"]).await;
    let mut stream = Stream::websocket(server.address, WATCH, None).await.unwrap();
    stream.until("SYNCED").await;
    stream.send(Message::Text("what is this?".into())).await;
    stream.send(Message::Ping(Bytes::from_static(b"there?"))).await;
    server.cluster.create("pods", mk_pod("default", "a", "web")).unwrap();
    assert_eq!(stream.next().await.unwrap().name(), "a");
    stream.send(Message::Close(None)).await;
    let end = in_time("the end", stream.item()).await;
    assert!(matches!(end, Item::End(Some(1000))), "{end:?}");
}
