//! Watch over a WebSocket: the same frames by reference behind RFC 6455 headers.

use std::sync::{Mutex, PoisonError};

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Buf as _;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::Notify;

use super::metrics::StreamObserver;
use super::{ApiError, Server};
use crate::encode::{ClientFrame, Encoder, Format, FrameParser, Frames, accept_key, close_frame, pong_frame};
use crate::hub::{CloseReason, Delivery, Subscriber};

/// What a client's handshake asks for.
#[derive(Debug)]
pub(super) struct Handshake {
    key: String,
}

/// Bytes read from a client in one go: it has little to say.
const READ_BYTES: usize = 512;

/// What the reading side asks of the writing side. Only the latest ping needs an answer (RFC 6455, 5.5.3),
/// so this cannot grow.
#[derive(Default)]
struct Control {
    pong: Mutex<Option<Vec<u8>>>,
    close: Mutex<Option<u16>>,
    wake: Notify,
}

/// Whether a request asks to become a WebSocket.
pub(super) fn is_upgrade(headers: &HeaderMap) -> bool {
    let names = |name: header::HeaderName, wanted: &str| {
        let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(wanted))
    };
    names(header::CONNECTION, "upgrade") && names(header::UPGRADE, "websocket")
}

impl Handshake {
    /// Reads the handshake of RFC 6455 section 4.2.1.
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, ApiError> {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or("");
        let version = text(header::SEC_WEBSOCKET_VERSION);
        if version != "13" {
            return Err(ApiError::invalid("Sec-WebSocket-Version", version, "expected 13"));
        }
        let key = text(header::SEC_WEBSOCKET_KEY);
        if key.is_empty() {
            return Err(ApiError::invalid("Sec-WebSocket-Key", key, "expected a key"));
        }
        Ok(Self { key: key.to_owned() })
    }
}

/// Answers the handshake and runs the stream once the connection is handed over.
pub(super) fn upgrade(
    server: &Server,
    mut request: Request,
    handshake: &Handshake,
    subscriber: Subscriber,
    encoder: Encoder,
) -> Response {
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else {
        return ApiError::bad_request("this connection cannot become a WebSocket").into_response();
    };
    // Keeps the connection counted for as long as the WebSocket lives.
    let connection = request.extensions().get::<super::connection::Connected>().cloned();
    server.tasks.spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            run(TokioIo::new(upgraded), subscriber, encoder).await;
        }
        drop(connection);
    });
    let accept = HeaderValue::from_str(&accept_key(&handshake.key)).expect("base64 is a header value");
    let headers = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static("websocket")),
        (header::SEC_WEBSOCKET_ACCEPT, accept),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

async fn run(io: TokioIo<Upgraded>, subscriber: Subscriber, encoder: Encoder) {
    let control = Control::default();
    let (reader, writer) = tokio::io::split(io);
    let mut observer = StreamObserver::new(Format::WebSocket);
    tokio::select! {
        // Ends when the client is gone; a close it asks for goes through the writer, behind a whole frame.
        () = read(reader, &control) => {}
        () = write(writer, subscriber, encoder, &control, &mut observer) => {}
    }
}

async fn read(mut reader: ReadHalf<TokioIo<Upgraded>>, control: &Control) {
    let mut parser = FrameParser::default();
    let mut buffer = [0; READ_BYTES];
    let ask_close = |code| {
        control.close.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(code);
        control.wake.notify_one();
    };
    while let Ok(count) = reader.read(&mut buffer).await {
        if count == 0 {
            return;
        }
        parser.push(&buffer[..count]);
        loop {
            match parser.next_frame() {
                Ok(None) => break,
                Ok(Some(ClientFrame::Ping(payload))) => {
                    *control.pong.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
                    control.wake.notify_one();
                }
                // What a client says is not part of the contract; subscriptions are by URL.
                Ok(Some(ClientFrame::Pong | ClientFrame::Data)) => {}
                Ok(Some(ClientFrame::Close(code))) => {
                    ask_close(code.unwrap_or(1000));
                    return std::future::pending().await;
                }
                Err(error) => {
                    ask_close(error.close_code());
                    return std::future::pending().await;
                }
            }
        }
    }
}

async fn write(
    mut writer: WriteHalf<TokioIo<Upgraded>>,
    mut subscriber: Subscriber,
    mut encoder: Encoder,
    control: &Control,
    observer: &mut StreamObserver,
) {
    loop {
        let mut frames = Frames::new();
        let mut last = false;
        tokio::select! {
            delivery = subscriber.next() => match delivery {
                Delivery::Events(events) => encoder.encode(&events, &mut frames),
                Delivery::Replaced { source, informer } => encoder.replace(source, &informer),
                Delivery::Heartbeat => encoder.heartbeat(&mut frames),
                Delivery::Closed(reason) => {
                    observer.closed(reason.as_str());
                    super::watch::end(reason, &subscriber, &mut encoder, &mut frames);
                    // 1001: the server goes away; 1000: what was asked for is done.
                    let code = if reason == CloseReason::Shutdown { 1001 } else { 1000 };
                    frames.put_bytes(&close_frame(code, reason.as_str()));
                    last = true;
                }
            },
            () = control.wake.notified() => {
                if let Some(payload) = control.pong.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    frames.put_bytes(&pong_frame(&payload));
                }
                if let Some(code) = *control.close.lock().unwrap_or_else(PoisonError::into_inner) {
                    frames.put_bytes(&close_frame(code, ""));
                    last = true;
                }
            }
        }
        frames.cut();
        observer.bytes(frames.remaining());
        if writer.write_all_buf(&mut frames).await.is_err() || writer.flush().await.is_err() {
            return;
        }
        if last {
            // The client answers a close by closing; an error means that it did already.
            let _ = writer.shutdown().await;
            return;
        }
    }
}
