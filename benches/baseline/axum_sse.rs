//! The role of a straightforward server: axum's `Sse` over a broadcast channel.

use std::convert::Infallible;
use std::io::BufRead as _;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::bail;
use axum::Router;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use axum::serve::ListenerExt as _;
use futures_util::{Stream, StreamExt as _};
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;

use crate::client::{STAMP_DIGITS, stamp_prefix};
use crate::peer::Load;
use crate::simulator::micros_since_1970;

/// The path that it serves.
pub(crate) const PATH: &str = "/events";
/// Events that a receiver may be behind. More than any measurement sends: if the channel dropped events for slow
/// receivers, the frames that are waited for would never arrive.
const CAPACITY: usize = 1 << 14;
/// The heartbeat interval, as informerd's where frames are counted.
const KEEP_ALIVE: Duration = Duration::from_secs(1800);
/// The id of every event, always the same, so that frames have one size.
const ID: &str = "pods:1000000";

type Sender = broadcast::Sender<Arc<str>>;

/// Plays the role until standard input ends.
pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (sender, _) = broadcast::channel(CAPACITY);
    let routes = Router::new().route(PATH, get(events)).with_state(Sender::clone(&sender));
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    println!("{}", listener.local_addr()?);
    let listener = listener.tap_io(|socket| {
        // Improves latency; the server works without it.
        let _ = socket.set_nodelay(true);
    });
    runtime.spawn(async move { axum::serve(listener, routes).await });
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split(' ').collect();
        match *words {
            ["count"] => println!("{}", sender.receiver_count()),
            ["frames", ref load @ ..] => {
                send(&sender, &Load::parse(load)?)?;
                println!("sent");
            }
            _ => bail!("unknown command {line:?}"),
        }
    }
    Ok(())
}

async fn events(State(sender): State<Sender>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let stream = BroadcastStream::new(sender.subscribe()).map(|update| {
        Ok(match update {
            Ok(json) => Event::default().event("MODIFIED").id(ID).data(json),
            // A client that was too slow must start over.
            Err(_) => Event::default().event("RESET").data(""),
        })
    });
    Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

/// Sends each event when it is due. The event contains that time.
fn send(sender: &Sender, load: &Load) -> anyhow::Result<()> {
    // The bytes that axum and HTTP add to the data.
    let around = format!("event: MODIFIED\nid: {ID}\ndata: \n\n").len() + "1357\r\n\r\n".len();
    let prefix = stamp_prefix();
    let rest = load.frame_bytes.saturating_sub(around + prefix.len() + STAMP_DIGITS);
    let rest = ".".repeat(rest);
    let (began, began_micros) = (Instant::now(), micros_since_1970());
    for event in 0..load.rhythm.events() {
        let due_at = load.due_at(event);
        sleep(due_at.saturating_sub(began.elapsed()));
        let stamp = began_micros + u64::try_from(due_at.as_micros())?;
        // Fails if there is no receiver.
        let _ = sender.send(format!("{prefix}{stamp:0STAMP_DIGITS$}{rest}").into());
    }
    Ok(())
}
