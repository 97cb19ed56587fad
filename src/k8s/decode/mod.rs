//! Decodes the API server's bytes into objects, pages and watch events. The JSON is kept; only the metadata that
//! informerd needs is parsed.
//!
//! One pass over the text: each member of the object and of its metadata is appended to a scratch buffer unchanged,
//! dropped members are skipped, and the result is copied once into the object's allocation, which has exactly its size, so that
//! no object keeps a page or a receive buffer alive.

mod drop;
mod identity;
mod list;
mod without;

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use memchr::memmem;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

pub use drop::DropPaths;
use drop::{Branch, Cut};
pub use identity::{Identity, IdentityPage, identities};

use super::json::{MemberKey, string};
use super::places::{Places, Span};
use super::{INITIAL_EVENTS_END, Key, LAST_APPLIED, Object, Resource, ResourceVersion, WatchEvent};

/// What the decoder removes from objects, and how large an object may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Drop `metadata.managedFields`, often half of an object's bytes.
    pub drop_managed_fields: bool,
    /// Drop the annotation in which `kubectl apply` keeps the previous manifest.
    pub drop_last_applied: bool,
    /// Objects above this many bytes of JSON are refused (and counted).
    pub object_bytes_max: usize,
}

/// Turns bytes of one resource into objects. Keeps a scratch buffer, so one per reflector.
pub struct Decoder {
    resource: Resource,
    options: DecodeOptions,
    /// `{"kind":"Pod","apiVersion":"v1"`: put before list items, which lack it (U6), in the order in which
    /// Go's TypeMeta is written, so that a listed and a watched object are the same bytes.
    type_meta: String,
    metadata_only: bool,
    dropped: DropPaths,
    /// Whether the current text has no line separator. Searched for once in the text, not in each value.
    is_one_line: bool,
    /// A gap for the longest prefix, then each member with a comma before it.
    scratch: Vec<u8>,
}

/// A page of a list.
#[derive(Debug)]
pub struct ListPage {
    /// The version of the whole list, the same on each page.
    pub resource_version: ResourceVersion,
    /// The token of the next page.
    pub continue_token: Option<String>,
    /// The objects, in the server's order.
    pub objects: Vec<Object>,
    /// Items that could not be decoded.
    pub skipped: Vec<Skipped>,
}

/// An item that could not be decoded, for log and metric.
#[derive(Debug)]
pub struct Skipped {
    /// `namespace/name` as far as it could be read.
    pub key: String,
    /// Why.
    pub error: DecodeError,
}

/// Why bytes could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not the JSON it should be.
    #[error("not the JSON of a Kubernetes object: {0}")]
    Json(#[from] serde_json::Error),
    /// Not UTF-8.
    #[error("not UTF-8: {0}")]
    Utf8(#[from] std::str::Utf8Error),
    /// `metadata.name` or `metadata.resourceVersion` is missing.
    #[error("metadata.{0} is missing")]
    Missing(&'static str),
    /// `metadata.name` or `metadata.namespace` holds a slash, which no path could name, and which would make
    /// the key another object's.
    #[error("metadata.{0} holds a slash")]
    Slash(&'static str),
    /// Larger than allowed.
    #[error("object of {bytes} bytes exceeds the limit of {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// `object_bytes_max`.
        limit: usize,
        /// Which object.
        key: Key,
        /// In which state.
        version: ResourceVersion,
    },
    /// A watch event of an unknown type. Never skipped, as it may stand for a change (U11).
    #[error("unknown watch event type {0:?}")]
    UnknownType(String),
}

// === impl Decoder ===

impl Decoder {
    /// A decoder for one resource.
    pub fn new(resource: Resource, options: DecodeOptions) -> Self {
        let type_meta = type_meta(&resource);
        let dropped = DropPaths::default();
        let (metadata_only, is_one_line) = (false, false);
        Self { resource, options, type_meta, metadata_only, dropped, is_one_line, scratch: Vec::new() }
    }

    /// Keeps only the metadata of each object, as a `PartialObjectMetadata`, even if the server sends whole objects, as one
    /// does that does not know that form (U34).
    #[must_use]
    pub fn metadata_only(self) -> Self {
        Self { type_meta: type_meta(&self.resource.metadata_only()), metadata_only: true, ..self }
    }

    /// Removes these members from each object.
    #[must_use]
    pub fn dropping(self, dropped: DropPaths) -> Self {
        Self { dropped, ..self }
    }

    /// The resource whose objects are decoded.
    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    /// One object.
    ///
    /// # Errors
    /// [`DecodeError`] when it is not an object, has no name or no resourceVersion, or is too large.
    pub fn object(&mut self, text: &str) -> Result<Object, DecodeError> {
        self.is_one_line = is_one_line(text);
        let mut reader = serde_json::Deserializer::from_str(text);
        let object = ObjectSeed { decoder: self }.deserialize(&mut reader)?;
        reader.end()?;
        object
    }

    /// One line of a watch.
    ///
    /// # Errors
    /// [`DecodeError`] when it is not a watch event or its object cannot be decoded.
    pub fn watch_line(&mut self, line: &[u8]) -> Result<WatchEvent, DecodeError> {
        let line = std::str::from_utf8(line)?.trim_matches([' ', '\t', '\r', '\n']);
        // Every API server writes the type first; then the object is decoded in one pass.
        for (prefix, make) in [
            (r#"{"type":"ADDED","object":"#, WatchEvent::Added as fn(Object) -> WatchEvent),
            (r#"{"type":"MODIFIED","object":"#, WatchEvent::Modified),
            (r#"{"type":"DELETED","object":"#, WatchEvent::Deleted),
        ] {
            if let Some(object) = line.strip_prefix(prefix).and_then(|rest| rest.strip_suffix('}'))
                && let Ok(object) = self.object(object)
            {
                return Ok(make(object));
            }
        }
        self.watch_line_in_any_order(line)
    }

    fn watch_line_in_any_order(&mut self, line: &str) -> Result<WatchEvent, DecodeError> {
        #[derive(Deserialize)]
        struct RawEvent<'a> {
            #[serde(rename = "type", borrow)]
            kind: Cow<'a, str>,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        // serde would also read an array as the fields in their order; no server writes that.
        if line.starts_with('[') {
            return Err(DecodeError::Json(serde_json::Error::custom("an event is not a list")));
        }
        let event: RawEvent<'_> = serde_json::from_str(line)?;
        let object = event.object.get();
        match &*event.kind {
            "ADDED" => self.object(object).map(WatchEvent::Added),
            "MODIFIED" => self.object(object).map(WatchEvent::Modified),
            "DELETED" => self.object(object).map(WatchEvent::Deleted),
            "BOOKMARK" => bookmark(object),
            "ERROR" => Ok(WatchEvent::Error(serde_json::from_str(object)?)),
            other => Err(DecodeError::UnknownType(other.to_owned())),
        }
    }

    /// Bytes that `scratch` has before its first comma. The longest prefix of an object is `type_meta` and that comma. With
    /// `metadata_only` there is no other prefix, as neither `kind` nor `apiVersion` is read.
    fn gap(&self) -> usize {
        self.type_meta.len()
    }

    /// Begins an object without members.
    fn clear(&mut self) {
        self.scratch.clear();
        let gap = self.gap();
        self.scratch.resize(gap, b' ');
    }

    /// The members so far, each with a comma before it.
    fn members(&self) -> &[u8] {
        self.scratch.get(self.gap()..).unwrap_or_default()
    }

    /// The object in `scratch`, copied to its own allocation.
    fn finish(&mut self, found: &mut Found) -> Result<Object, DecodeError> {
        let name = found.name.take().filter(|name| !name.is_empty()).ok_or(DecodeError::Missing("name"))?;
        for (field, value) in [("name", Some(&name)), ("namespace", found.namespace.as_ref())] {
            if value.is_some_and(|value| value.contains('/')) {
                return Err(DecodeError::Slash(field));
            }
        }
        let version = found.resource_version.take().ok_or(DecodeError::Missing("resourceVersion"))?;
        let prefix = match (found.kind, found.api_version) {
            (true, true) => Cow::Borrowed("{"),
            (false, false) => Cow::Owned(format!("{},", self.type_meta)),
            (true, false) => Cow::Owned(format!(r#"{{"apiVersion":"{}","#, self.resource.api_version())),
            (false, true) => Cow::Owned(format!(r#"{{"kind":"{}","#, self.resource.kind())),
        };
        // It ends in the place of the first comma, so that the JSON is in one piece.
        let (start, end) = (self.gap() + 1 - prefix.len(), self.gap() + 1);
        let bytes = self.scratch.len() + 1 - start;
        if bytes > self.options.object_bytes_max || u32::try_from(end + bytes).is_err() {
            let (key, limit) = (found.key(&name), self.options.object_bytes_max);
            return Err(DecodeError::TooLarge { bytes, limit, key, version });
        }
        self.scratch[start..end].copy_from_slice(prefix.as_bytes());
        self.scratch.push(b'}');
        let shift = |span: Span| match span.end {
            0 => span,
            _ => Span { start: span.start - start as u32, end: span.end - start as u32 },
        };
        let Places { uid, version: version_at, labels } = found.places;
        let places = Places { uid: shift(uid), version: shift(version_at), labels: shift(labels) };
        Ok(Object::new(found.key(&name), &version, places, &mut self.scratch, start))
    }

    /// Appends `,"key":`, with the key as it is written.
    fn append_key(&mut self, key: &MemberKey<'_>) {
        self.scratch.push(b',');
        self.append_value(key.raw);
        self.scratch.push(b':');
    }

    /// Appends a value, compact and on one line, and returns where it stands.
    fn append_value(&mut self, value: &str) -> Span {
        let start = self.scratch.len() as u32;
        if has_blanks(value) || (!self.is_one_line && !is_one_line(value)) {
            clean(value, &mut self.scratch);
        } else {
            self.scratch.extend_from_slice(value.as_bytes());
        }
        Span { start, end: self.scratch.len() as u32 }
    }

    /// Ends an object or an array whose members begin at `start`, each with a comma before it.
    fn close(&mut self, start: usize, [open, close]: [u8; 2]) {
        match self.scratch.get_mut(start) {
            Some(first) => *first = open,
            None => self.scratch.push(open),
        }
        self.scratch.push(close);
    }
}

/// `{"kind":"Pod","apiVersion":"v1"`
fn type_meta(resource: &Resource) -> String {
    let kind = serde_json::Value::from(resource.kind());
    let api_version = serde_json::Value::from(resource.api_version());
    format!(r#"{{"kind":{kind},"apiVersion":{api_version}"#)
}

/// Metadata found while reading one object.
#[derive(Default)]
struct Found {
    kind: bool,
    api_version: bool,
    name: Option<String>,
    namespace: Option<String>,
    resource_version: Option<ResourceVersion>,
    /// In the scratch.
    places: Places,
}

impl Found {
    fn key(&self, name: &str) -> Key {
        Key::new(self.namespace.as_deref().unwrap_or(""), name)
    }
}

struct ObjectSeed<'d> {
    decoder: &'d mut Decoder,
}

impl<'de> DeserializeSeed<'de> for ObjectSeed<'_> {
    type Value = Result<Object, DecodeError>;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed<'_> {
    type Value = Result<Object, DecodeError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let decoder = self.decoder;
        decoder.clear();
        let mut found = Found::default();
        let dropped = decoder.dropped.share();
        let dropped = dropped.as_deref();
        while let Some(key) = map.next_key()?.map(MemberKey::new) {
            let cut = dropped.and_then(|branch| branch.get(&key.text));
            match (&*key.text, cut) {
                ("metadata", _) => {
                    decoder.append_key(&key);
                    let within = cut.and_then(Cut::within);
                    map.next_value_seed(MetadataSeed { decoder, found: &mut found, within })?;
                }
                (_, Some(Cut::Whole)) => drop(map.next_value::<IgnoredAny>()?),
                _ if decoder.metadata_only => drop(map.next_value::<IgnoredAny>()?),
                (_, Some(Cut::Within(branch))) => {
                    decoder.append_key(&key);
                    let value = map.next_value::<&RawValue>()?.get();
                    decoder.append_without(value, branch).map_err(A::Error::custom)?;
                }
                (name, None) => {
                    decoder.append_key(&key);
                    found.kind |= name == "kind";
                    found.api_version |= name == "apiVersion";
                    decoder.append_value(map.next_value::<&RawValue>()?.get());
                }
            }
        }
        if decoder.members().is_empty() {
            return Ok(Err(DecodeError::Missing("name")));
        }
        Ok(decoder.finish(&mut found))
    }
}

struct MetadataSeed<'d> {
    decoder: &'d mut Decoder,
    found: &'d mut Found,
    /// The members to drop within.
    within: Option<&'d Branch>,
}

impl<'de> DeserializeSeed<'de> for MetadataSeed<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for MetadataSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object's metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { decoder, found, within } = self;
        // If an object has metadata twice, the second counts, as for every JSON parser.
        *found = Found { kind: found.kind, api_version: found.api_version, ..Found::default() };
        let start = decoder.scratch.len();
        while let Some(key) = map.next_key()?.map(MemberKey::new) {
            let cut = within.and_then(|branch| branch.get(&key.text));
            let managed_fields = key.text == "managedFields" && decoder.options.drop_managed_fields;
            if managed_fields || matches!(cut, Some(Cut::Whole)) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value::<&RawValue>()?.get();
            let within = cut.and_then(Cut::within);
            if key.text == "annotations" && decoder.options.drop_last_applied && holds_last_applied(value) {
                append_annotations(decoder, &key, value, within).map_err(A::Error::custom)?;
                continue;
            }
            decoder.append_key(&key);
            let span = match within {
                Some(branch) => decoder.append_without(value, branch).map_err(A::Error::custom)?,
                None => decoder.append_value(value),
            };
            let inner = Span { start: span.start + 1, end: span.end.saturating_sub(1) };
            match &*key.text {
                "name" => found.name = nullable_string(value).map_err(A::Error::custom)?,
                "namespace" => found.namespace = nullable_string(value).map_err(A::Error::custom)?,
                "uid" => found.places.uid = if value.starts_with('"') { inner } else { Span::default() },
                "resourceVersion" => {
                    let text = nullable_string(value).map_err(A::Error::custom)?;
                    let text = text.filter(|text| !text.is_empty());
                    found.resource_version = text.map(|text| ResourceVersion::new(&text));
                    found.places.version = inner;
                }
                "labels" => found.places.labels = if value == "null" { Span::default() } else { span },
                _ => {}
            }
        }
        decoder.close(start, *b"{}");
        Ok(())
    }
}

/// A string. Some servers write `null` for a missing one.
fn nullable_string(raw: &str) -> Result<Option<String>, serde_json::Error> {
    if raw == "null" { Ok(None) } else { string(raw).map(Some) }
}

/// Prepared once, as preparing costs more than most searches.
static LAST_APPLIED_FINDER: LazyLock<memmem::Finder<'static>> =
    LazyLock::new(|| memmem::Finder::new(LAST_APPLIED));

/// Whether annotations may hold the last-applied one; its name may be escaped.
fn holds_last_applied(annotations: &str) -> bool {
    let bytes = annotations.as_bytes();
    annotations.starts_with('{')
        && (memchr::memchr(b'\\', bytes).is_some() || LAST_APPLIED_FINDER.find(bytes).is_some())
}

/// Appends the annotations without the last-applied one. If that was the only one, appends nothing: the API server
/// leaves out an empty map, too.
fn append_annotations(
    decoder: &mut Decoder,
    name: &MemberKey<'_>,
    value: &str,
    within: Option<&Branch>,
) -> Result<(), serde_json::Error> {
    struct Members<'d>(&'d mut Decoder, Option<&'d Branch>);
    impl<'de> Visitor<'de> for Members<'_> {
        type Value = bool;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("annotations")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
            let mut any = false;
            while let Some(key) = map.next_key()?.map(MemberKey::new) {
                let raw = map.next_value::<&RawValue>()?.get();
                let cut = self.1.and_then(|branch| branch.get(&key.text));
                if key.text == LAST_APPLIED {
                    continue;
                }
                any = true;
                if !matches!(cut, Some(Cut::Whole)) {
                    self.0.append_key(&key);
                    self.0.append_value(raw);
                }
            }
            Ok(any)
        }
    }
    let before = decoder.scratch.len();
    decoder.append_key(name);
    let start = decoder.scratch.len();
    let mut reader = serde_json::Deserializer::from_str(value);
    use serde::Deserializer as _;
    if reader.deserialize_map(Members(decoder, within))? {
        decoder.close(start, *b"{}");
    } else {
        decoder.scratch.truncate(before);
    }
    Ok(())
}

/// Whether a text has no line breaks, as a server that prints prettily writes them, and no other character at which
/// some clients split lines (D22).
fn is_one_line(text: &str) -> bool {
    let bytes = text.as_bytes();
    let has_separators =
        || ["\u{2028}", "\u{2029}", "\u{85}"].iter().any(|separator| text.contains(separator));
    memchr::memchr2(b'\n', b'\r', bytes).is_none()
        && (memchr::memchr2(0xE2, 0xC2, bytes).is_none() || !has_separators())
}

/// Whether there are blanks between the tokens of a value.
fn has_blanks(value: &str) -> bool {
    let bytes = value.as_bytes();
    // A serializer that writes blanks after colons does so after the first one. A search for two bytes would cost more to
    // prepare than this loop, as the first colon is near.
    bytes.first() == Some(&b'{')
        && (bytes.starts_with(b"{ ")
            || memchr::memchr_iter(b':', bytes)
                .find(|at| bytes[at - 1] == b'"')
                .is_some_and(|colon| bytes.get(colon + 1) == Some(&b' ')))
}

/// Appends JSON without the blanks between its tokens, with line separators escaped.
fn clean(value: &str, out: &mut Vec<u8>) {
    let (mut in_string, mut escaped) = (false, false);
    for character in value.chars() {
        match character {
            ' ' | '\n' | '\r' | '\t' if !in_string => {}
            '\u{2028}' | '\u{2029}' | '\u{85}' => {
                out.extend_from_slice(format!("\\u{:04x}", character as u32).as_bytes());
            }
            other => {
                if other == '"' && !escaped {
                    in_string = !in_string;
                }
                escaped = other == '\\' && !escaped;
                out.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }
}

/// `namespace/name` as far as it can be read.
fn key_for_log(text: &str) -> String {
    let name = text.find(r#""name":""#).map(|at| &text[at + 8..]).and_then(|rest| rest.split('"').next());
    name.unwrap_or("?").chars().take(253).collect()
}

/// Decodes a bookmark. Only its metadata counts: servers add empty required fields of the kind (U23).
fn bookmark(object: &str) -> Result<WatchEvent, DecodeError> {
    #[derive(Deserialize)]
    struct Bookmark {
        metadata: BookmarkMeta,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct BookmarkMeta {
        resource_version: String,
        #[serde(default)]
        annotations: Option<std::collections::HashMap<String, String>>,
    }
    let bookmark: Bookmark = serde_json::from_str(object)?;
    let end = bookmark
        .metadata
        .annotations
        .is_some_and(|annotations| annotations.get(INITIAL_EVENTS_END).is_some_and(|value| value == "true"));
    if bookmark.metadata.resource_version.is_empty() {
        return Err(DecodeError::Missing("resourceVersion"));
    }
    Ok(WatchEvent::Bookmark {
        resource_version: ResourceVersion::new(&bookmark.metadata.resource_version),
        initial_events_end: end,
    })
}

#[cfg(test)]
mod tests;
