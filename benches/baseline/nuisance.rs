//! Misbehaving clients.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use socket2::SockRef;

/// How a client misbehaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Sends a request, and never reads.
    NeverReads,
    /// Reads this number of bytes a second.
    Trickles(usize),
    /// Sends a request, and resets the connection after the first byte. Each client does so once a second.
    Vanishes,
}

/// Running clients; dropping this ends them.
pub(crate) struct Nuisance {
    stop: Arc<AtomicBool>,
    connected: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

/// Time between two clients that join, so that they do not all hold the same state.
const JOIN_INTERVAL: Duration = Duration::from_millis(100);

impl Nuisance {
    pub(crate) fn start(address: SocketAddr, count: usize, manner: Manner, path: &'static str) -> Self {
        let (stop, connected) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (stop.clone(), connected.clone());
        let thread = std::thread::spawn(move || match manner {
            Manner::Vanishes => vanish(address, count, path, &stopped, &counted),
            Manner::NeverReads => hold(address, count, 0, path, &stopped, &counted),
            Manner::Trickles(bytes) => hold(address, count, bytes, path, &stopped, &counted),
        });
        Self { stop, connected, thread: Some(thread) }
    }

    /// Number of connections made so far.
    pub(crate) fn connected(&self) -> usize {
        self.connected.load(Ordering::Relaxed)
    }
}

impl Drop for Nuisance {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

fn ask(address: SocketAddr, path: &str) -> std::io::Result<TcpStream> {
    let mut socket = TcpStream::connect(address)?;
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n")?;
    Ok(socket)
}

/// Connects the clients one after the other, then reads `bytes` from each, every second.
fn hold(
    address: SocketAddr,
    count: usize,
    bytes: usize,
    path: &str,
    stop: &AtomicBool,
    connected: &AtomicUsize,
) {
    let mut sockets: Vec<TcpStream> = Vec::new();
    let mut buffer = vec![0; bytes];
    let mut read_at = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if sockets.len() < count
            && let Ok(socket) = ask(address, path)
        {
            // A socket without data, or closed by the server, is skipped.
            let _ = socket.set_nonblocking(true);
            sockets.push(socket);
            connected.fetch_add(1, Ordering::Relaxed);
        }
        sleep(JOIN_INTERVAL);
        if bytes > 0 && read_at.elapsed() >= Duration::from_secs(1) {
            read_at = Instant::now();
            for socket in &mut sockets {
                let _ = socket.read(&mut buffer);
            }
        }
    }
}

fn vanish(address: SocketAddr, count: usize, path: &str, stop: &AtomicBool, connected: &AtomicUsize) {
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        for at in 0..count {
            let due = Duration::from_secs(1) * u32::try_from(at).unwrap_or(0);
            sleep((due / u32::try_from(count).unwrap_or(1)).saturating_sub(began.elapsed()));
            if stop.load(Ordering::Relaxed) {
                return;
            }
            if let Ok(mut socket) = ask(address, path) {
                let _ = socket.read(&mut [0; 1]);
                // Without linger, closing resets the connection.
                let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
                connected.fetch_add(1, Ordering::Relaxed);
            }
        }
        sleep(Duration::from_secs(1).saturating_sub(began.elapsed()));
    }
}
