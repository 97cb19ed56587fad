//! An immutable object: its identity and its JSON.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::json::{MemberKey, Text};
use super::packed::Packed;
use super::shorthand::{CommonValues, Held, HeldAt, Shortened, shorten};
use super::{ContentHash, Damaged, Dictionary, IndexPaths, IndexValues, Key, Resource, ResourceVersion};

/// A place in an object's JSON, in bytes. `u32` because objects are limited to megabytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

/// An object as the API server sent it: compact JSON in one allocation of exact size, and the offsets of uid, version
/// and labels in it. Labels and fields are read from the JSON when needed, so that nothing is held twice.
///
/// An object that has not changed for a while may be packed. Its key, uid, version and labels are read without
/// unpacking; its JSON is unpacked when it is read.
#[derive(Clone)]
pub struct Object {
    pub(super) key: Key,
    pub(super) resource_version: ResourceVersion,
    pub(super) body: Body,
    /// The hash of the JSON, once somebody asked for it.
    pub(super) content_hash: OnceLock<Box<ContentHash>>,
    /// The text of `metadata.uid`, without its quotes.
    pub(super) uid: Span,
    /// The text of `metadata.resourceVersion`, without its quotes.
    pub(super) version: Span,
    /// The JSON object `metadata.labels`; empty where there is none.
    pub(super) labels: Span,
    pub(super) values: ValuesCell,
}

// There are hundreds of thousands. One that is larger takes, with the counts of its `Arc`, the allocator's next size, which is 160.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Object>() <= 112);

/// The JSON of an object.
#[derive(Clone)]
pub(super) enum Body {
    Plain(Bytes),
    Packed(Packed),
}

/// The JSON of an object as it is, and where its version is in it.
struct VersionedJson {
    json: Bytes,
    version: Span,
}

/// The values that were read last, for reuse. A clone of the object starts without.
#[derive(Debug, Default)]
pub(super) struct ValuesCell(ArcSwapOption<IndexValues>);

impl Clone for ValuesCell {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Object {
    /// Namespace and name.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// `metadata.uid`: tells it from other objects that have or had this key.
    pub fn uid(&self) -> Cow<'_, str> {
        match &self.body {
            Body::Plain(json) => text(json, self.uid).into(),
            Body::Packed(packed) => packed.uid(),
        }
    }

    /// `metadata.resourceVersion`.
    pub fn resource_version(&self) -> &ResourceVersion {
        &self.resource_version
    }

    /// The whole object, compact, without line breaks. Shares the bytes, or unpacks them: some microseconds.
    ///
    /// If the packed bytes are damaged, the result has only what identifies the object, and [`damages`](super::damages) rises, so that
    /// the caller does not write it to a client.
    pub fn json(&self) -> Bytes {
        self.shown().json
    }

    /// As [`Object::json`].
    ///
    /// # Errors
    /// [`Damaged`].
    pub fn try_json(&self) -> Result<Bytes, Damaged> {
        match &self.body {
            Body::Plain(json) => Ok(json.clone()),
            Body::Packed(packed) => packed.unpack(&self.key, &self.resource_version),
        }
    }

    /// Bytes of the JSON.
    pub fn json_len(&self) -> usize {
        match &self.body {
            Body::Plain(json) => json.len(),
            Body::Packed(packed) => packed.len(),
        }
    }

    /// Bytes that hold the JSON.
    pub fn held_bytes(&self) -> usize {
        match &self.body {
            Body::Plain(json) => json.len(),
            Body::Packed(packed) => packed.held_bytes(),
        }
    }

    /// The dictionary that it is packed with; `None` if it is not packed.
    pub fn dictionary(&self) -> Option<&Arc<Dictionary>> {
        match &self.body {
            Body::Plain(_) => None,
            Body::Packed(packed) => Some(packed.dictionary()),
        }
    }

    /// The JSON in shorter forms, but for values that many objects have: what is packed. `None` if the object is packed already.
    pub(super) fn shortened(&self, common: &CommonValues) -> Option<Shortened> {
        let Body::Plain(json) = &self.body else { return None };
        let held = Held {
            key: &self.key,
            uid: text(json, self.uid),
            version: &self.resource_version,
            labels: text(json, self.labels),
        };
        let at = HeldAt { uid: self.uid, version: self.version, labels: self.labels };
        shorten(json, held, at, common)
    }

    /// The same object, not packed.
    pub fn plain(object: Arc<Self>) -> Arc<Self> {
        if object.dictionary().is_none() { object } else { Arc::new(object.unpacked()) }
    }

    /// The same object with another body, and with what was found out about it.
    pub(super) fn with_body(&self, body: Body) -> Self {
        let values = ValuesCell(ArcSwapOption::new(self.values.0.load_full()));
        Self { body, values, ..self.clone() }
    }

    /// The same object with damaged bytes.
    #[cfg(test)]
    pub(crate) fn damaged(&self) -> Self {
        match &self.body {
            Body::Plain(_) => self.clone(),
            Body::Packed(packed) => Self {
                body: Body::Packed(packed.damaged(20, 0xff)),
                content_hash: OnceLock::new(),
                ..self.clone()
            },
        }
    }

    fn unpacked(&self) -> Self {
        match self.try_json() {
            Ok(json) => self.with_body(Body::Plain(json)),
            Err(Damaged) => self.stand_in(),
        }
    }

    fn shown(&self) -> VersionedJson {
        let object = match self.try_json() {
            Ok(json) => return VersionedJson { json, version: self.version },
            Err(Damaged) => self.stand_in(),
        };
        VersionedJson { json: object.json(), version: object.version }
    }

    /// What identifies the object, for one whose packed bytes are damaged.
    fn stand_in(&self) -> Self {
        let mut json = String::from(r#"{"metadata":{"#);
        let mut put = |name: &str, value: &str| {
            let comma = if json.ends_with('{') { "" } else { "," };
            let quoted = serde_json::Value::from(value).to_string();
            json.push_str(&format!(r#"{comma}"{name}":"#));
            let start = json.len() as u32 + 1;
            json.push_str(&quoted);
            Span { start, end: json.len() as u32 - 1 }
        };
        put("name", self.key.name());
        put("namespace", self.key.namespace());
        let uid = put("uid", &self.uid());
        let version = put("resourceVersion", &self.resource_version.to_string());
        json.push_str("}}");
        let object = self.with_body(Body::Plain(json.into()));
        Self { uid, version, labels: Span::default(), content_hash: OnceLock::new(), ..object }
    }

    /// The hash of the JSON. Computed when it is first asked for, about a nanosecond a byte: that is as much as the object's
    /// decoding, which those who never ask must not pay.
    pub fn content_hash(&self) -> ContentHash {
        **self.content_hash.get_or_init(|| Box::new(ContentHash::of(&self.json())))
    }

    /// Whether the hash is known, so that it costs nothing.
    pub fn has_content_hash(&self) -> bool {
        self.content_hash.get().is_some()
    }

    /// The JSON before and after the text of `metadata.resourceVersion`, by reference, so that the same
    /// object can be shown at another version (a deletion found by relist, an object that left a selector).
    pub fn json_around_version(&self) -> (Bytes, Bytes) {
        let VersionedJson { json, version } = self.shown();
        (json.slice(..version.start as usize), json.slice(version.end as usize..))
    }

    /// The JSON of `metadata`, by reference, and the range of its `resourceVersion`'s text within. If the object has metadata
    /// twice, it is the one that counts, which holds that version. Costs a scan of the members before it.
    pub fn metadata(&self) -> (Bytes, Range<usize>) {
        let VersionedJson { json, version } = self.shown();
        let mut found = None;
        let mut reader = serde_json::Deserializer::from_slice(&json);
        // The visitor stops once it has found the metadata, which serde reports as an error.
        let version_at = json.as_ptr() as usize + version.start as usize;
        let _ = reader.deserialize_map(MetadataSeeker { version_at, found: &mut found });
        let text: &str = found.expect("the decoder only takes objects with metadata");
        let metadata = json.slice_ref(text.as_bytes());
        let start = metadata.as_ptr() as usize - json.as_ptr() as usize;
        let version = version.start as usize - start..version.end as usize - start;
        (metadata, version)
    }

    /// The JSON of `metadata.labels`; empty where there is none.
    pub fn labels_json(&self) -> &str {
        match &self.body {
            Body::Plain(json) => text(json, self.labels),
            Body::Packed(packed) => packed.labels(),
        }
    }

    /// `metadata.labels`. Shape: in the order of the JSON, each key once.
    pub fn labels(&self) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
        read_labels(self.labels_json())
    }

    /// The values at these paths. They are read once and stay with the object until another set of paths is asked for.
    pub fn values(&self, paths: &IndexPaths) -> Arc<IndexValues> {
        if let Some(values) = &*self.values.0.load()
            && values.generation() == paths.generation()
        {
            return values.clone();
        }
        let values = Arc::new(self.read_values(paths));
        self.values.0.store(Some(values.clone()));
        values
    }

    /// As [`Object::values`], but the values are read anew and do not stay with the object.
    pub fn read_values(&self, paths: &IndexPaths) -> IndexValues {
        paths.read(&self.key, || self.labels(), || self.json())
    }

    /// The JSON of a deleted object of which only the identity is still known.
    pub fn identity(resource: &Resource, key: &Key, uid: &str, version: &ResourceVersion) -> Bytes {
        let mut metadata = serde_json::Map::new();
        metadata.insert("name".into(), key.name().into());
        if !key.namespace().is_empty() {
            metadata.insert("namespace".into(), key.namespace().into());
        }
        metadata.insert("resourceVersion".into(), version.to_string().into());
        metadata.insert("uid".into(), uid.into());
        let metadata = serde_json::Value::Object(metadata);
        let (kind, api_version) = (resource.kind(), resource.api_version());
        format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{metadata}}}"#).into()
    }
}

/// The pairs of a `metadata.labels` in JSON, in its order; none where the text is empty.
pub(crate) fn read_labels(text: &str) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    // No API server accepts labels of another shape. If it did, no selector would match them.
    reader.deserialize_map(StringMap).unwrap_or_default()
}

fn text(json: &Bytes, span: Span) -> &str {
    let bytes = &json[span.start as usize..span.end as usize];
    std::str::from_utf8(bytes).expect("the decoder only takes UTF-8")
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key, self.resource_version)
    }
}

/// Looks for the JSON of `metadata` among an object's members, and stops there.
struct MetadataSeeker<'f, 'de> {
    /// The address of the version's text.
    version_at: usize,
    found: &'f mut Option<&'de str>,
}

impl<'de> Visitor<'de> for MetadataSeeker<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key()?.map(MemberKey::new) {
            if key.text == "metadata" {
                let text = map.next_value::<&RawValue>()?.get();
                let start = text.as_ptr() as usize;
                if (start..start + text.len()).contains(&self.version_at) {
                    *self.found = Some(text);
                    return Ok(());
                }
                continue;
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// Reads a JSON object of strings, borrowing where nothing is escaped.
struct StringMap;

impl<'de> Visitor<'de> for StringMap {
    type Value = Vec<(Cow<'de, str>, Cow<'de, str>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::with_capacity(8);
        while let Some(Text(key)) = map.next_key()? {
            let Text(value) = map.next_value()?;
            pairs.push((key, value));
        }
        Ok(pairs)
    }
}
