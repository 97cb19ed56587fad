//! A proxy for HTTP CONNECT and for SOCKS 5, on one port, that records the requested addresses.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::server::ANY_PORT;

/// The request of a client to the proxy.
#[derive(Clone, Debug)]
pub(crate) struct Greeting {
    /// `127.0.0.1:6443`.
    pub(crate) target: String,
    /// `NAME:PASSWORD`.
    pub(crate) user: String,
}

/// A proxy. Dropping it closes it.
pub(crate) struct Proxy {
    /// The address of the proxy.
    pub(crate) address: SocketAddr,
    /// The requests of clients, in order.
    pub(crate) greetings: Arc<Mutex<Vec<Greeting>>>,
    _stop: DropGuard,
}

impl Proxy {
    /// Starts a proxy on a free port.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind(ANY_PORT).await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        let (greetings, stop) = (Arc::<Mutex<Vec<_>>>::default(), CancellationToken::new());
        let (noted, stopped) = (greetings.clone(), stop.clone());
        let accepting = async move {
            while let Ok((client, _)) = listener.accept().await {
                let forwarding = forward(client, noted.clone());
                tokio::spawn(stopped.clone().run_until_cancelled_owned(forwarding));
            }
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(accepting));
        Self { address, greetings, _stop: stop.drop_guard() }
    }
}

async fn forward(mut client: TcpStream, noted: Arc<Mutex<Vec<Greeting>>>) {
    let mut first = [0];
    client.peek(&mut first).await.unwrap();
    let (greeting, welcome) = match first[0] {
        5 => (socks(&mut client).await, vec![5, 0, 0, 1, 0, 0, 0, 0, 0, 0]),
        _ => (connect(&mut client).await, b"HTTP/1.1 200 Connected\r\n\r\n".to_vec()),
    };
    noted.lock().unwrap().push(greeting.clone());
    let mut server = TcpStream::connect(&greeting.target).await.unwrap();
    client.write_all(&welcome).await.unwrap();
    // Either side may close its connection.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}

async fn connect(client: &mut TcpStream) -> Greeting {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let target = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).unwrap().to_owned();
    let name = "proxy-authorization: basic ";
    let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(name)).unwrap_or_default();
    let user = STANDARD.decode(line.get(name.len()..).unwrap_or_default()).unwrap();
    Greeting { target, user: String::from_utf8(user).unwrap() }
}

/// Source: RFC 1928. Without a user name, as kube's client connects.
async fn socks(client: &mut TcpStream) -> Greeting {
    assert_eq!(client.read_u8().await.unwrap(), 5);
    text(client).await;
    client.write_all(&[5, 0]).await.unwrap();
    let mut request = [0; 4];
    client.read_exact(&mut request).await.unwrap();
    assert_eq!(request[..3], [5, 1, 0], "a request to connect");
    let host = match request[3] {
        1 => Ipv4Addr::from(client.read_u32().await.unwrap()).to_string(),
        3 => text(client).await,
        other => panic!("no such kind of address here: {other}"),
    };
    let port = client.read_u16().await.unwrap();
    Greeting { target: format!("{host}:{port}"), user: String::new() }
}

/// Reads a length, and as many bytes.
async fn text(client: &mut TcpStream) -> String {
    let mut text = vec![0; client.read_u8().await.unwrap().into()];
    client.read_exact(&mut text).await.unwrap();
    String::from_utf8(text).unwrap()
}
