//! The roles that set the limit: loops that only write to sockets.

use std::io::{BufRead as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::Instant;

use anyhow::{Context as _, bail};
use socket2::{Domain, SockRef, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::client::{STAMP_DIGITS, stamp_prefix};
use crate::peer::Load;
use crate::simulator::micros_since_1970;

/// The send buffer that informerd sets by default.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// The send buffer that the kernel would choose.
const STREAM_BUFFER_BYTES: usize = 4 << 20;
/// The default of informerd's largest batch.
const BATCH_BYTES_MAX: usize = 256 << 10;
/// The listen backlog, as informerd's: thousands connect at once.
const BACKLOG: i32 = 4096;

/// Plays the write loop until standard input ends.
pub(crate) fn run_writer() -> anyhow::Result<()> {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    listener.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    listener.listen(BACKLOG)?;
    let listener = std::net::TcpListener::from(listener);
    println!("{}", listener.local_addr()?);
    let sockets: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    let accepted = sockets.clone();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let options = SockRef::from(&socket);
            // The options that informerd sets; each is an improvement, and none is needed.
            let _ = options.set_tcp_nodelay(true);
            let _ = options.set_send_buffer_size(SEND_BUFFER_BYTES);
            #[cfg(target_os = "linux")]
            let _ = options.set_tcp_notsent_lowat(u32::try_from(SEND_BUFFER_BYTES / 2).unwrap_or(u32::MAX));
            accepted.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        }
    });
    let mut content = Vec::new();
    let mut loops = 1;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let words: Vec<_> = line.split(' ').collect();
        match *words {
            ["count"] => println!("{}", sockets.len()),
            ["loops", count] => {
                loops = count.parse()?;
                println!("{loops}");
            }
            ["frames", ref load @ ..] => {
                write_side_by_side(&mut sockets, loops, &Load::parse(load)?)?;
                println!("written");
            }
            ["stream", bytes] => {
                // All of the content is in memory, as in informerd: a small piece sent repeatedly would come from the
                // processor's cache.
                content.resize(bytes.parse()?, b'.');
                stream(std::mem::take(&mut *sockets), &content)?;
                println!("written");
            }
            _ => bail!("unknown command {line:?}"),
        }
    }
    Ok(())
}

/// Writes all frames with several loops, each on a thread of its own and for its share of the sockets.
fn write_side_by_side(sockets: &mut [TcpStream], loops: usize, load: &Load) -> anyhow::Result<()> {
    let share = sockets.len().div_ceil(loops).max(1);
    std::thread::scope(|scope| {
        let write = |sockets| scope.spawn(move || write_frames(sockets, load));
        let loops: Vec<_> = sockets.chunks_mut(share).map(write).collect();
        loops.into_iter().try_for_each(|one| one.join().expect("a loop does not panic"))
    })
}

/// Writes all frames that are due with one write to each socket, until none is left. Like informerd, it batches as
/// soon as it cannot keep up. Each frame contains the time at which it was due.
fn write_frames(sockets: &mut [TcpStream], load: &Load) -> anyhow::Result<()> {
    let (events, frame_bytes) = (load.rhythm.events(), load.frame_bytes);
    let mut frame = stamp_prefix().into_bytes();
    let stamp_at = frame.len();
    anyhow::ensure!(stamp_at + STAMP_DIGITS + 2 <= frame_bytes, "{frame_bytes} bytes are too few");
    frame.resize(frame_bytes - 2, b'.');
    frame.extend(b"\n\n");
    let batch_len_max = (BATCH_BYTES_MAX / frame_bytes).max(1);
    let mut batch = frame.repeat(batch_len_max);
    let (began, began_micros) = (Instant::now(), micros_since_1970());
    let mut written = 0;
    while written < events {
        sleep(load.due_at(written).saturating_sub(began.elapsed()));
        let now = began.elapsed();
        let mut due = 1;
        while due < batch_len_max && written + due < events && load.due_at(written + due) <= now {
            due += 1;
        }
        for (at, frame) in batch.chunks_mut(frame_bytes).take(due).enumerate() {
            let stamp = began_micros + u64::try_from(load.due_at(written + at).as_micros())?;
            write!(&mut frame[stamp_at..], "{stamp:0STAMP_DIGITS$}")?;
        }
        for socket in &mut *sockets {
            socket.write_all(&batch[..due * frame_bytes])?;
        }
        written += due;
    }
    Ok(())
}

/// Writes all of the content to each socket, in turns, and closes them.
fn stream(mut sockets: Vec<TcpStream>, content: &[u8]) -> anyhow::Result<()> {
    let mut piece_bytes = SEND_BUFFER_BYTES;
    if let [socket] = &*sockets {
        // A single socket may have the kernel's buffer.
        piece_bytes = BATCH_BYTES_MAX;
        let options = SockRef::from(socket);
        let _ = options.set_send_buffer_size(STREAM_BUFFER_BYTES);
        #[cfg(target_os = "linux")]
        let _ = options.set_tcp_notsent_lowat(u32::MAX);
    }
    // With many sockets, a piece has the size of a socket's buffer. The loop then rarely waits for a socket, and does
    // not need to poll which are ready.
    for piece in content.chunks(piece_bytes) {
        for socket in &mut sockets {
            socket.write_all(piece)?;
        }
    }
    Ok(())
}

/// Answers every request (anything that ends with an empty line), on as many threads as informerd has.
pub(crate) fn run_responder() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    println!("{}", listener.local_addr()?);
    let mut lines = std::io::stdin().lock().lines();
    let bytes: usize = lines.next().context("the bytes of an answer")??.parse()?;
    let answer: Arc<[u8]> = std::iter::repeat_n(b'.', bytes - 4).chain(*b"\r\n\r\n").collect();
    runtime.spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let _ = socket.set_nodelay(true);
                let mut request = vec![0; 8 << 10];
                let mut filled = 0;
                while let Ok(count @ 1..) = socket.read(&mut request[filled..]).await {
                    filled += count;
                    if request[..filled].ends_with(b"\r\n\r\n") {
                        filled = 0;
                        if socket.write_all(&answer).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    println!("ready");
    // The role ends with standard input.
    for line in lines {
        line?;
    }
    Ok(())
}
