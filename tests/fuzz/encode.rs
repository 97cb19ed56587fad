//! Every object that the decoder accepts can be encoded, in each format and form, and the result is JSON of the same
//! object.

use std::sync::Arc;

use informerd::testing::cache;
use informerd::testing::encode::{Encoder, Format, Frames, Kubernetes, ListEncoder, ListFormat};
use informerd::testing::hub::{Event, EventKind, Informer, InformerSpec, Payload, Scope};
use informerd::testing::k8s::{Object, ResourceVersion};
use tokio::time::Instant;

use super::decode::resource;
use super::json::{self, Node};

/// Formats with one line for each event.
const FORMATS: [Format; 4] = [
    Format::Ndjson,
    Format::Sse,
    Format::Kubernetes(Kubernetes { messages: false, metadata: false, bookmarks: true }),
    Format::Kubernetes(Kubernetes { messages: false, metadata: true, bookmarks: true }),
];

/// The version that an object is shown with, if it is not its own.
const OTHER_VERSION: &str = "777";

/// Encodes an object in every way in which a stream or a list does.
pub(crate) fn check(object: &Object) {
    let other = ResourceVersion::new(OTHER_VERSION);
    let identity =
        Payload::Identity { key: object.key().clone(), uid: object.uid().into(), version: other.clone() };
    let since = Payload::ObjectSince { object: object.clone(), version: other.clone(), since: other.clone() };
    for format in FORMATS {
        let own = object.resource_version().to_string();
        event(format, EventKind::Modified, Payload::Object(object.clone()), &own);
        event(format, EventKind::Deleted, Payload::ObjectAt(object.clone(), other.clone()), OTHER_VERSION);
        event(format, EventKind::Deleted, since.clone(), OTHER_VERSION);
        event(format, EventKind::Deleted, identity.clone(), OTHER_VERSION);
    }
    list(object);
}

fn event(format: Format, kind: EventKind, payload: Payload, version: &str) {
    let limits = cache::Config { journal_len_max: 1, journal_bytes_max: 1, tombstones_len_max: 1 };
    let (_, reader) = cache::cache(limits, Instant::now());
    let informer = Arc::new(Informer::new(InformerSpec::new(resource(), Scope::All), reader));
    let mut frames = Frames::new();
    let event =
        Event { source: 0, kind, payload, position: ResourceVersion::new("9").into(), is_amid: false };
    Encoder::new(format, [&informer]).encode(&[event], &mut frames);
    let text = String::from_utf8(frames.to_vec()).expect("UTF-8");
    let line = text.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
    let line = line.filter(|line| line.starts_with('{')).collect::<Vec<_>>();
    assert_eq!(line.len(), 1, "{format:?}: one event, one line: {text}");
    let node = json::parse(line[0]).unwrap_or_else(|| panic!("{format:?}: no JSON: {text}"));
    check_shown(node.get("object").expect("an object"), version);
}

fn list(object: &Object) {
    let version = object.resource_version().to_string();
    let mut frames = Frames::new();
    let mut list = ListEncoder::new(ListFormat::Json, "PodList", "v1", None, None);
    list.object(object, &mut frames);
    list.metadata(object, &mut frames);
    list.end(&mut frames);
    let text = String::from_utf8(frames.to_vec()).expect("UTF-8");
    let node = json::parse(text.trim_end()).unwrap_or_else(|| panic!("no JSON: {text}"));
    let items = node.get("items").and_then(Node::elements).expect("items");
    assert_eq!(items.len(), 2);
    items.iter().for_each(|item| check_shown(item, &version));
}

fn check_shown(object: &Node<'_>, version: &str) {
    let told = object.get("metadata").and_then(|meta| meta.get("resourceVersion")).and_then(Node::string);
    assert_eq!(told.as_deref(), Some(version));
}
