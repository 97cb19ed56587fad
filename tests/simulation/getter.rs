//! A client of snapshots: it sends the tag of its last answer, and reads long lists page by page, at any replica. The checks: an
//! answer is what the cache of its replica holds; after a 304 the client has that already, whatever a restore or a reload did; and
//! the pages of a list are of one state, or 410.

use std::collections::BTreeMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::TryStreamExt;
use http::header::{ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};
use informerd::testing::k8s::Object;
use serde_json::Value;
use tokio::time::Instant;

use crate::client::Around;
use crate::dice::Dice;
use crate::fault::Fault;
use crate::plan::{NAMES, NAMESPACES};
use crate::replica::Replica;
use crate::truth::RESOURCES;

/// How often a request is polled at one moment. Its handlers wait for nothing but their turns.
const POLLS_MAX: usize = 10_000;

/// The label value that a client with a selector asks for.
const APP: &str = "web";

/// Objects by key.
type Items = BTreeMap<String, Value>;

/// What a client asks for.
#[derive(Clone, Debug)]
struct Ask {
    /// The index into [`RESOURCES`].
    resource: usize,
    namespace: Option<&'static str>,
    /// Of one object.
    name: Option<&'static str>,
    /// Whether it selects by label.
    selects: bool,
}

/// The answer that a client has.
struct Known {
    tag: HeaderValue,
    items: Items,
}

/// A list that is being read.
struct Pages {
    ask: Ask,
    replica: usize,
    next: String,
    version: Value,
    /// What the cache held at the first page, and what came of it.
    state: Items,
    items: Items,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

pub(crate) struct Getter {
    dice: Dice,
    ask: Ask,
    known: Option<Known>,
    pages: Option<Pages>,
    at: Instant,
}

impl Getter {
    pub(crate) fn new(mut dice: Dice, now: Instant) -> Self {
        let namespace = dice.chance(0.5).then(|| dice.pick(&NAMESPACES));
        let name = namespace.and_then(|_| dice.chance(0.4).then(|| dice.pick(&NAMES)));
        let ask =
            Ask { resource: dice.below(2), namespace, name, selects: name.is_none() && dice.chance(0.3) };
        Self { dice, ask, known: None, pages: None, at: now }
    }

    /// When it asks next.
    pub(crate) fn wants_at(&self) -> Instant {
        self.at
    }

    /// Asks, if it is due.
    pub(crate) fn run(&mut self, around: &Around<'_>) -> Result<(), String> {
        if self.at > around.now {
            return Ok(());
        }
        self.at = around.now + self.dice.millis(1, 15_000);
        let number = match &self.pages {
            Some(pages) if self.dice.chance(0.8) => pages.replica,
            _ => self.dice.below(around.replicas.len()),
        };
        let replica = &around.replicas[number];
        let is_complete = |index: &usize| replica.readers[*index].mark().synced;
        if replica.drain.is_cancelled() || ![0, 1].iter().all(is_complete) {
            return Ok(());
        }
        if let Some(pages) = self.pages.take() {
            return self.next_page(pages, replica, around);
        }
        if self.ask.name.is_none() && self.dice.chance(0.5) {
            return self.first_page(number, replica, around);
        }
        self.whole(replica, around)
    }

    /// Asks for everything, or for what has changed since the last answer.
    fn whole(&mut self, replica: &Replica, around: &Around<'_>) -> Result<(), String> {
        let known = self.known.take();
        let mut headers = HeaderMap::new();
        if let Some(known) = &known {
            headers.insert(IF_NONE_MATCH, known.tag.clone());
        }
        let path = self.ask.path();
        let Answer { status, headers, body } = get(replica, &path, headers)?;
        around.trace.say(|| format!("  {path} is answered with {status}"));
        let there = self.ask.held(replica);
        let (items, tag) = match (status, known) {
            (StatusCode::NOT_MODIFIED, Some(known)) => {
                around.hits.count(Fault::NotModified);
                (known.items, known.tag)
            }
            (StatusCode::NOT_FOUND, _) if self.ask.name.is_some() => {
                return if there.is_empty() { Ok(()) } else { Err(format!("{path} is not found")) };
            }
            (StatusCode::OK, _) => {
                let body: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
                let items = match self.ask.name {
                    Some(_) => keyed(vec![body]),
                    None => keyed(body["items"].as_array().cloned().unwrap_or_default()),
                };
                (items, headers.get(ETAG).ok_or("an answer has no tag")?.clone())
            }
            (status, _) => return Err(format!("{path} is answered with {status}")),
        };
        if items != there {
            return Err(format!("{path} is answered with {status}, and has {items:?} instead of {there:?}"));
        }
        self.known = Some(Known { tag, items });
        Ok(())
    }

    fn first_page(&mut self, number: usize, replica: &Replica, around: &Around<'_>) -> Result<(), String> {
        let pages = Pages {
            ask: self.ask.clone(),
            replica: number,
            next: String::new(),
            version: Value::Null,
            state: self.ask.held(replica),
            items: Items::new(),
        };
        self.next_page(pages, replica, around)
    }

    fn next_page(&mut self, mut pages: Pages, replica: &Replica, around: &Around<'_>) -> Result<(), String> {
        let path = pages.ask.path();
        let separator = if path.contains('?') { '&' } else { '?' };
        let limit = 1 + self.dice.below(4);
        let is_first = pages.next.is_empty();
        let more = if is_first { String::new() } else { format!("&continue={}", pages.next) };
        let path = format!("{path}{separator}limit={limit}{more}");
        let Answer { status, body, .. } = get(replica, &path, HeaderMap::new())?;
        around.trace.say(|| format!("  {path} is answered with {status}"));
        if status == StatusCode::GONE && !is_first {
            around.hits.count(Fault::PagesExpired);
            return Ok(());
        }
        let page: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        if status != StatusCode::OK {
            return Err(format!("{path} is answered with {status}: {page}"));
        }
        let version = page["metadata"]["resourceVersion"].clone();
        if is_first {
            pages.version = version;
        } else if version != pages.version {
            return Err(format!("a page is of version {version}, and the first one of {}", pages.version));
        }
        let items = keyed(page["items"].as_array().cloned().unwrap_or_default());
        if items.len() > limit || items.keys().next() <= pages.items.keys().last() && !items.is_empty() {
            return Err(format!("a page of {limit} has {items:?} after {:?}", pages.items.keys()));
        }
        pages.items.extend(items);
        match page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
            Some(token) => {
                pages.next = token.to_owned();
                self.pages = Some(pages);
            }
            None if pages.items == pages.state => around.hits.count(Fault::PagesRead),
            None => {
                let Pages { items, state, .. } = pages;
                return Err(format!("the pages of {path} have {items:?} instead of {state:?}"));
            }
        }
        Ok(())
    }
}

impl Ask {
    fn path(&self) -> String {
        let part = |part: Option<&str>| part.map(|part| format!("/{part}")).unwrap_or_default();
        let (namespace, name) = (part(self.namespace), part(self.name));
        let query = if self.selects { format!("?labelSelector=app%3D{APP}") } else { String::new() };
        format!("/v1/snapshot/{}{namespace}{name}{query}", RESOURCES[self.resource])
    }

    /// The objects that a cache holds, of those that are asked for.
    fn held(&self, replica: &Replica) -> Items {
        let is_asked = |object: &Object| {
            let key = object.key();
            self.namespace.is_none_or(|namespace| key.namespace() == namespace)
                && self.name.is_none_or(|name| key.name() == name)
                && (!self.selects
                    || object.labels().iter().any(|(name, value)| name == "app" && *value == *APP))
        };
        let snapshot = replica.readers[self.resource].snapshot();
        let objects = snapshot.after(None).filter(|object| is_asked(object));
        keyed(objects.map(|object| serde_json::from_slice(&object.json()).unwrap()).collect())
    }
}

/// Objects by key, without the members by which an answer names their kind.
fn keyed(items: Vec<Value>) -> Items {
    let keyed = |mut item: Value| {
        if let Some(members) = item.as_object_mut() {
            members.remove("kind");
            members.remove("apiVersion");
        }
        let text = |member: &str| item["metadata"][member].as_str().unwrap_or_default().to_owned();
        (format!("{}/{}", text("namespace"), text("name")), item)
    };
    items.into_iter().map(keyed).collect()
}

/// The answer of a replica to a GET, at this moment.
fn get(replica: &Replica, path: &str, headers: HeaderMap) -> Result<Answer, String> {
    let asking = async {
        let (status, headers, body) = replica.http.get_with(path, headers).await;
        let body: Vec<Bytes> = body.try_collect().await.map_err(|error| error.to_string())?;
        Ok::<_, String>(Answer { status, headers, body: body.concat().into() })
    };
    let mut asking = pin!(tokio::task::unconstrained(asking));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..POLLS_MAX {
        if let Poll::Ready(answer) = asking.as_mut().poll(&mut context) {
            return answer;
        }
    }
    Err(format!("{path} is not answered"))
}
