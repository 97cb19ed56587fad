//! The network between an informerd and the API server, with its faults.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{Request, Response, Version};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use informerd::testing::sim::ApiHandler;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::dice::Dice;
use crate::fault::{Fault, Hits};
use crate::meter::{Ask, Meter};
use crate::trace::Trace;
use crate::truth::RESOURCES;
use crate::wire::{Order, Wire, WirePlan};

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// The API servers behind the address.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) current: ApiHandler,
    /// Another API server that lacks the latest writes, and when it is gone.
    pub(crate) behind: Option<(ApiHandler, Instant)>,
}

/// The faults that may happen, and the probability of each for a request, for the body of an answer, and for a line
/// of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weather {
    pub(crate) requests: Vec<Fault>,
    pub(crate) bodies: Vec<Fault>,
    pub(crate) lines: Vec<Fault>,
    pub(crate) request_chance: f64,
    pub(crate) body_chance: f64,
    pub(crate) line_chance: f64,
    /// Largest size of the chunks into which bodies are cut; 0 leaves chunks whole.
    pub(crate) chunk_bytes_max: usize,
    /// Longest time that a chunk takes.
    pub(crate) latency_ms_max: u64,
    /// Probability that a watch uses a pinged connection.
    pub(crate) pinged_chance: f64,
    /// Whether the API server cannot be reached.
    pub(crate) outage: bool,
    /// Whether lists may be answered by an API server that is behind.
    pub(crate) stale_lists: bool,
}

/// The connection of one replica to the API server.
pub(crate) struct Link {
    state: Mutex<LinkState>,
    /// By resource: one channel for both would wake their reflectors in an order that is not the seed's.
    pub(crate) orders: [watch::Sender<Order>; 2],
    pub(crate) api: Arc<Mutex<Api>>,
    pub(crate) hits: Arc<Hits>,
    pub(crate) trace: Trace,
    replica: usize,
}

struct LinkState {
    /// The dice of each resource: tasks of different resources are woken in any order.
    dice: [Dice; 2],
    weather: Weather,
    meters: [Meter; 2],
}

/// What happens to a request before the API server sees it.
enum Fate {
    Pass,
    Refuse,
    Hang,
    Answer { code: u16, retry_after: Option<u32>, status: bool },
}

impl Link {
    pub(crate) fn new(
        replica: usize,
        dice: [Dice; 2],
        api: Arc<Mutex<Api>>,
        hits: Arc<Hits>,
        trace: Trace,
    ) -> Arc<Self> {
        let meters = [Meter::new(), Meter::new()];
        let state = Mutex::new(LinkState { dice, weather: Weather::default(), meters });
        Arc::new(Self { state, orders: Default::default(), api, hits, trace, replica })
    }

    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap()
    }

    pub(crate) fn set_weather(&self, weather: Weather) {
        self.lock().weather = weather;
    }

    pub(crate) fn weather(&self) -> Weather {
        self.lock().weather.clone()
    }

    /// Reads or changes what was counted of a resource.
    pub(crate) fn meter<T>(&self, resource: usize, with: impl FnOnce(&mut Meter) -> T) -> T {
        with(&mut self.lock().meters[resource])
    }

    /// Resets the counts for a new informerd.
    pub(crate) fn reset_meters(&self) {
        self.lock().meters = [Meter::new(), Meter::new()];
    }

    /// Orders a fault for every connection that is open now.
    pub(crate) fn order(&self, fault: Fault) {
        for orders in &self.orders {
            orders.send_modify(|order| *order = Order { number: order.number + 1, fault: Some(fault) });
        }
    }

    pub(crate) fn say(&self, text: impl FnOnce() -> String) {
        self.trace.say(|| format!("  net {}: {}", self.replica, text()));
    }

    pub(crate) fn hit(&self, resource: usize, fault: Fault) {
        self.hits.count(fault);
        self.meter(resource, |meter| meter.trouble(fault));
        self.say(|| format!("{} {}", RESOURCES[resource], fault.text()));
    }

    /// Answers one request of the informerd.
    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Request<kube::client::Body>,
    ) -> Result<Response<Body>, io::Error> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let resource =
            RESOURCES.iter().position(|name| path.contains(name.split('.').next().unwrap_or(name)));
        let resource = resource.unwrap_or(0);
        let ask = Ask::of(&path);
        self.say(|| path.clone());
        let storm = self.meter(resource, |meter| meter.asked(ask, Instant::now()));
        if storm {
            // The checker reports the storm of requests; this only lets the history end.
            return std::future::pending().await;
        }
        let (fate, delay) = self.judge(resource, ask);
        if let Some(delay) = delay {
            self.hit(resource, Fault::Delayed);
            sleep(delay).await;
        }
        match fate {
            Fate::Pass => {}
            Fate::Refuse => return Err(io::ErrorKind::ConnectionRefused.into()),
            Fate::Hang => return std::future::pending().await,
            Fate::Answer { code, retry_after, status } => {
                let body = if status { status_body(code) } else { "<html><body>oops</body></html>\n".into() };
                let mut response = Response::builder().status(code);
                if let Some(seconds) = retry_after {
                    response = response.header("retry-after", seconds);
                }
                // Garbage on a watch is a sign of life. An error, or a page of garbage, says nothing about the
                // resource.
                if code == 200 && matches!(ask, Ask::Watch | Ask::Stream) {
                    self.meter(resource, |meter| meter.heard(Instant::now()));
                }
                let body = Full::new(Bytes::from(body)).map_err(|never| match never {});
                return Ok(response.body(body.boxed_unsync()).unwrap());
            }
        }
        let (api, behind_until) = self.api_for(resource, ask);
        let (parts, _) = request.into_parts();
        let response = api.call(Request::from_parts(parts, Bytes::new())).await;
        self.wrap(resource, (ask, lasts(&path)), behind_until, response)
    }

    /// Chooses the API server behind the address.
    fn api_for(&self, resource: usize, ask: Ask) -> (ApiHandler, Option<Instant>) {
        let api = self.api.lock().unwrap().clone();
        let Some((behind, until)) = api.behind else { return (api.current, None) };
        let mut state = self.lock();
        let meets = match ask {
            Ask::Watch | Ask::Stream => true,
            Ask::List | Ask::Probe | Ask::Head => state.weather.stale_lists,
            Ask::Page | Ask::Backfill => false,
        };
        if !meets || until <= Instant::now() || !state.dice[resource].chance(0.5) {
            return (api.current, None);
        }
        drop(state);
        let fault =
            if matches!(ask, Ask::Watch | Ask::Stream) { Fault::StaleWatch } else { Fault::StaleList };
        self.hit(resource, fault);
        (behind, Some(until))
    }

    fn judge(&self, resource: usize, ask: Ask) -> (Fate, Option<Duration>) {
        let mut state = self.lock();
        let state = &mut *state;
        if state.weather.outage {
            self.hits.count(Fault::Refused);
            state.meters[resource].trouble(Fault::Refused);
            return (Fate::Refuse, None);
        }
        let chance = state.weather.request_chance;
        let weather = &state.weather.requests;
        if weather.is_empty() || !state.dice[resource].chance(chance) {
            return (Fate::Pass, None);
        }
        let mut fault = weather[state.dice[resource].below(weather.len())];
        // Applies to pages only, and they are few.
        if ask == Ask::Page && weather.contains(&Fault::TokenExpired) && state.dice[resource].chance(0.3) {
            fault = Fault::TokenExpired;
        }
        let status = |code, retry_after| Fate::Answer { code, retry_after, status: true };
        let seconds = Some(1 + state.dice[resource].below(8) as u32);
        let fate = match fault {
            Fault::Refused => Fate::Refuse,
            Fault::Hung => Fate::Hang,
            Fault::Delayed => return (Fate::Pass, Some(state.dice[resource].millis(1, 9_000))),
            Fault::Unauthorized => status(401, None),
            Fault::Forbidden => status(403, None),
            Fault::NotFound => status(404, None),
            Fault::WatchGoneHttp if ask == Ask::Watch => status(410, None),
            Fault::Throttled => status(429, seconds),
            Fault::Unavailable => status(503, seconds),
            Fault::InternalError => status(500, None),
            Fault::BadGateway => Fate::Answer { code: 502, retry_after: None, status: false },
            Fault::GarbageAnswer => Fate::Answer { code: 200, retry_after: None, status: false },
            Fault::TokenExpired if ask == Ask::Page => status(410, None),
            _ => return (Fate::Pass, None),
        };
        self.hits.count(fault);
        state.meters[resource].trouble(fault);
        self.trace.say(|| format!("  net {}: {} {}", self.replica, RESOURCES[resource], fault.text()));
        (fate, None)
    }

    /// Passes the answer's body through the network.
    fn wrap(
        self: Arc<Self>,
        resource: usize,
        (ask, lasts): (Ask, Duration),
        behind_until: Option<Instant>,
        response: Response<Body>,
    ) -> Result<Response<Body>, io::Error> {
        let (mut parts, body) = response.into_parts();
        let code = parts.status.as_u16();
        let now = Instant::now();
        if code != 200 {
            let fault = match code {
                404 => Fault::Absent,
                410 => Fault::RealGone,
                _ => Fault::InternalError,
            };
            if matches!(fault, Fault::Absent | Fault::RealGone) {
                self.hits.count(fault);
            }
            self.meter(resource, |meter| meter.refused(code));
            self.say(|| format!("{} answers {code}", RESOURCES[resource]));
        }
        let watch = matches!(ask, Ask::Watch | Ask::Stream) && code == 200;
        if ask != Ask::Backfill && code == 200 {
            self.meter(resource, |meter| if watch { meter.heard(now) } else { meter.heard_part(now) });
        }
        let plan = {
            let mut state = self.lock();
            let state = &mut *state;
            let dice = &mut state.dice[resource];
            let is_pinged = watch && dice.chance(state.weather.pinged_chance);
            WirePlan::roll(&state.weather, watch, code == 200, behind_until, dice).pinged(is_pinged)
        };
        if plan.is_pinged {
            parts.version = Version::HTTP_2;
        }
        let wire = Wire::new(body, self.clone(), resource, ask, code, plan.lasting(lasts));
        let frames = stream::unfold(wire, Wire::next).fuse();
        Ok(Response::from_parts(parts, StreamBody::new(frames).boxed_unsync()))
    }
}

/// The time after which a watch asks the server to end it.
fn lasts(path: &str) -> Duration {
    let seconds =
        path.split_once("timeoutSeconds=").and_then(|(_, rest)| rest.split('&').next()?.parse().ok());
    seconds.map_or(Duration::MAX, Duration::from_secs)
}

fn status_body(code: u16) -> String {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"the simulation answers {code}","reason":"{reason}","code":{code}}}"#
    )
}

/// A frame of a body.
pub(crate) type Framed = Result<Frame<Bytes>, io::Error>;
