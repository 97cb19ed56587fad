//! An immutable object: its identity and its JSON.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use once_cell::race::OnceBox;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use triomphe::ThinArc;

use super::json::{MemberKey, string};
use super::kept::{self, StateId};
use super::labels::Labels;
use super::packed::{Common, PackedRef};
use super::places::{Places, Span};
use super::{
    ContentHash, Damaged, Dictionary, IndexPaths, IndexValues, Key, Resource, ResourceVersion,
    damages_of_thread,
};

/// An object as the API server sent it: one allocation of exact size with its compact JSON and the places of uid, version and
/// labels in it. Labels and fields are read from the JSON when needed, so that nothing is held twice. Cheap to clone: a clone is the
/// same object.
///
/// An object that has not changed for a while may be packed. Its key, uid, version and labels are read without
/// unpacking; its JSON is unpacked when it is read.
#[derive(Clone)]
pub struct Object(ThinArc<Head, u8>);

/// What stands before the JSON of an object, or before its packed data.
pub(super) struct Head {
    key: Key,
    /// The version as a number, or [`NO_NUMBER`].
    version: u64,
    /// What was found out about the object, once somebody asked for it.
    found: OnceBox<Found>,
    /// `None`: the JSON follows as it is, and then its [`Places`]. Otherwise its packed data follows, and this is what it has in
    /// common with others.
    common: Option<Common>,
    /// Bytes of the JSON.
    json_len: u32,
    /// The CRC-32 of the JSON and of the places, if it is packed.
    checksum: u32,
}

// There are hundreds of thousands. The allocator rounds each allocation up, so that 8 bytes more may cost 16 or 128.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Head>() <= 40 && size_of::<Object>() == 8);

/// Stands for every version that is not a number below this one. API servers with etcd give no such version. It is not in the head, but is
/// read from the JSON each time. Therefore such an object is not packed.
const NO_NUMBER: u64 = u64::MAX;

/// What is found out about an object when somebody asks for it.
#[derive(Default)]
struct Found {
    /// The hash of the JSON.
    content_hash: OnceBox<ContentHash>,
    /// The values that were read last, for reuse.
    values: ArcSwapOption<IndexValues>,
}

/// The JSON of an object, to be read and not to be kept. It costs no allocation, unless the object is packed.
pub struct JsonText<'o> {
    source: Source<'o>,
    version: Span,
}

enum Source<'o> {
    Held(&'o Object),
    Unpacked(Bytes),
}

/// Lends the JSON of an object that is not packed to [`Bytes`].
struct Lender(Object);

impl AsRef<[u8]> for Lender {
    fn as_ref(&self) -> &[u8] {
        self.0.data()
    }
}

// === impl Head ===

impl Head {
    /// The head of an object that is not packed.
    fn new(key: Key, version: &ResourceVersion, json_len: usize) -> Self {
        Self {
            key,
            version: version.to_u64().unwrap_or(NO_NUMBER),
            found: OnceBox::new(),
            common: None,
            json_len: json_len as u32,
            checksum: 0,
        }
    }

    /// The same with what was found out about the object.
    fn copy(&self) -> Self {
        let found = self.found.get().map(|found| Box::new(found.copy()));
        Self { found: found.map_or_else(OnceBox::new, OnceBox::with_value), ..self.copy_without_found() }
    }

    fn copy_without_found(&self) -> Self {
        Self {
            key: self.key.clone(),
            version: self.version,
            found: OnceBox::new(),
            common: self.common.clone(),
            json_len: self.json_len,
            checksum: self.checksum,
        }
    }

    fn found(&self) -> &Found {
        self.found.get_or_init(Box::default)
    }

    /// The values that were read last.
    fn values(&self) -> Option<Arc<IndexValues>> {
        self.found.get()?.values.load_full()
    }
}

// === impl Found ===

impl Found {
    fn copy(&self) -> Self {
        Self { content_hash: self.content_hash.clone(), values: ArcSwapOption::new(self.values.load_full()) }
    }
}

// === impl JsonText ===

impl JsonText<'_> {
    /// The bytes, to be kept. Shares them with the object, if it is not packed, at the cost of an allocation of some bytes.
    pub fn into_bytes(self) -> Bytes {
        match self.source {
            Source::Held(object) => Bytes::from_owner(Lender(object.clone())),
            Source::Unpacked(json) => json,
        }
    }

    /// As [`Object::json_around_version`].
    pub fn around_version(&self) -> (&[u8], &[u8]) {
        let Span { start, end } = self.version;
        (&self[..start as usize], &self[end as usize..])
    }

    /// As [`Object::metadata`].
    pub fn metadata(&self) -> &str {
        let mut found = None;
        let mut reader = serde_json::Deserializer::from_slice(self);
        // The visitor stops once it has found the metadata, which serde reports as an error.
        let version_at = self.as_ptr() as usize + self.version.start as usize;
        let _ = reader.deserialize_map(MetadataSeeker { version_at, found: &mut found });
        found.expect("the decoder only takes objects with metadata")
    }
}

impl Deref for JsonText<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.source {
            Source::Held(object) => object.data(),
            Source::Unpacked(json) => json,
        }
    }
}

impl AsRef<[u8]> for JsonText<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for JsonText<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for JsonText<'_> {}

impl fmt::Debug for JsonText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(self))
    }
}

// === impl Object ===

impl Object {
    /// An object that is not packed. Its JSON is what the buffer holds from `start` on, and is shorter than 4 GiB. The places are added to
    /// the buffer, so that one copy makes the object.
    pub(super) fn new(
        key: Key,
        version: &ResourceVersion,
        places: Places,
        buffer: &mut Vec<u8>,
        start: usize,
    ) -> Self {
        let head = Head::new(key, version, buffer.len() - start);
        buffer.extend_from_slice(&places.to_bytes());
        Self::with_head(head, &buffer[start..])
    }

    /// `data` is what follows the head.
    fn with_head(head: Head, data: &[u8]) -> Self {
        Self(ThinArc::from_header_and_slice(head, data))
    }

    fn head(&self) -> &Head {
        &self.0.header.header
    }

    /// The JSON, or what is packed of it.
    fn data(&self) -> &[u8] {
        match self.head().common {
            None => &self.0.slice[..self.json_len()],
            Some(_) => &self.0.slice,
        }
    }

    /// What is packed; `None` if it is not packed.
    fn packed(&self) -> Option<PackedRef<'_>> {
        let head = self.head();
        let common = head.common.as_ref()?;
        Some(PackedRef { data: self.data(), common, len: head.json_len, checksum: head.checksum })
    }

    /// Whether it is the same allocation: one state of one object, in one form. A packed object is not the same as the one
    /// that it was made of.
    pub fn is_same(&self, other: &Self) -> bool {
        self.address() == other.address()
    }

    fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// Namespace and name.
    pub fn key(&self) -> &Key {
        &self.head().key
    }

    /// Takes the same key from another object, so that both hold its text once. An object that is held in several places keeps its own.
    pub fn share_key(&mut self, other: &Self) {
        debug_assert_eq!(self.key(), other.key());
        self.0.with_arc_mut(|object| {
            if let Some(object) = triomphe::Arc::get_mut(object) {
                object.header_mut().key = other.key().clone();
            }
        });
    }

    /// `metadata.uid`: tells it from other objects that have or had this key.
    pub fn uid(&self) -> Cow<'_, str> {
        match self.packed() {
            None => text(self.data(), self.places().uid).into(),
            Some(packed) => packed.uid(),
        }
    }

    /// Where in the JSON the identity stands, of an object that is not packed. For a packed one, unpacking gives the places.
    pub(super) fn places(&self) -> Places {
        let places = self.head().common.is_none().then(|| self.0.slice.last_chunk()).flatten();
        places.map(Places::from_bytes).unwrap_or_default()
    }

    /// `metadata.resourceVersion`. Read from the JSON if it is not a number of 64 bits, at the cost of some allocations.
    pub fn resource_version(&self) -> ResourceVersion {
        match self.head().version {
            NO_NUMBER => self.version_in_json(),
            number => number.into(),
        }
    }

    fn version_in_json(&self) -> ResourceVersion {
        let Span { start, end } = self.places().version;
        // With its quotes.
        let quoted = text(self.data(), Span { start: start - 1, end: end + 1 });
        ResourceVersion::new(&string(quoted).expect("the decoder only takes a version that is text"))
    }

    /// The whole object, compact, without line breaks. Shares the bytes, or unpacks them: some microseconds. Code that only reads them
    /// uses [`Object::text`].
    ///
    /// If the packed bytes are damaged, the result has only what identifies the object, and [`damages`](super::damages) rises, so that
    /// the caller does not write it to a client.
    pub fn json(&self) -> Bytes {
        self.text().into_bytes()
    }

    /// As [`Object::json`].
    ///
    /// # Errors
    /// [`Damaged`].
    pub fn try_json(&self) -> Result<Bytes, Damaged> {
        self.try_text().map(JsonText::into_bytes)
    }

    /// As [`Object::json`], to be read and not to be kept.
    pub fn text(&self) -> JsonText<'_> {
        self.try_text().unwrap_or_else(|Damaged| {
            let object = self.stand_in();
            JsonText { source: Source::Unpacked(object.json()), version: object.places().version }
        })
    }

    /// As [`Object::text`].
    ///
    /// # Errors
    /// [`Damaged`].
    pub fn try_text(&self) -> Result<JsonText<'_>, Damaged> {
        let Some(packed) = self.packed() else {
            return Ok(JsonText { source: Source::Held(self), version: self.places().version });
        };
        let (json, places) = self.unpack(packed)?;
        Ok(JsonText { source: Source::Unpacked(json), version: places.version })
    }

    /// The JSON of what is packed, and the places in it. An object that is asked for again by the same thread is not unpacked twice.
    fn unpack(&self, packed: PackedRef<'_>) -> Result<(Bytes, Places), Damaged> {
        if let Some(known) = kept::find(self.state_id()) {
            return Ok(known);
        }
        let copy = |json: &[u8], places| (Bytes::copy_from_slice(json), places);
        let (json, places) = packed.unpack(self.key(), &self.resource_version(), copy)?;
        kept::keep_last(self.state_id(), &json, places);
        Ok((json, places))
    }

    /// The JSON, to be kept, if it is not packed or this thread has unpacked it already. Otherwise [`Object::lend`] takes less time than
    /// [`Object::json`].
    pub fn json_at_hand(&self) -> Option<Bytes> {
        match self.packed() {
            None => Some(self.json()),
            Some(_) => kept::find(self.state_id()).map(|(json, _)| json),
        }
    }

    /// Notes that a client reads this object among few. If another one did so lately, the thread keeps the JSON of a packed object for the
    /// next.
    pub fn note_read(&self) {
        let Some(packed) = self.packed() else { return };
        if kept::is_to_keep(self.state_id())
            && let Ok((json, places)) = self.unpack(packed)
        {
            kept::keep(self.state_id(), &json, places);
        }
    }

    /// Lends the JSON to `read`, without an allocation for it. A packed object is unpacked into a buffer of the thread. So `read` must not
    /// read the JSON of a packed object, not even of this one: that would panic.
    ///
    /// If the packed bytes are damaged, this lends what [`Object::json`] returns then.
    pub fn lend(&self, mut read: impl FnMut(&[u8])) {
        let Some(packed) = self.packed() else { return read(self.data()) };
        packed
            .unpack(self.key(), &self.resource_version(), |json, _| read(json))
            .unwrap_or_else(|Damaged| read(self.stand_in().data()));
    }

    fn state_id(&self) -> StateId<'_> {
        let Head { ref key, version, checksum, json_len: len, .. } = *self.head();
        StateId { address: self.address(), key, version, checksum, len }
    }

    /// Bytes of the JSON.
    pub fn json_len(&self) -> usize {
        self.head().json_len as usize
    }

    /// Bytes that hold the JSON.
    pub fn held_bytes(&self) -> usize {
        self.data().len()
    }

    /// The dictionary that it is packed with; `None` if it is not packed.
    pub fn dictionary(&self) -> Option<&Arc<Dictionary>> {
        self.head().common.as_ref().map(Common::dictionary)
    }

    /// The JSON, if it is not packed.
    pub(super) fn plain_json(&self) -> Option<&[u8]> {
        self.head().common.is_none().then(|| self.data())
    }

    /// The same object, not packed.
    pub fn plain(object: Self) -> Self {
        let Some(packed) = object.packed() else { return object };
        match object.unpack(packed) {
            Ok((json, places)) => {
                let head = Head { common: None, checksum: 0, ..object.head().copy() };
                Self::with_head(head, &[&json, &places.to_bytes()[..]].concat())
            }
            Err(Damaged) => object.stand_in(),
        }
    }

    /// Whether it can be packed: it is not packed yet, and its head holds its version.
    pub fn can_be_packed(&self) -> bool {
        let head = self.head();
        head.common.is_none() && head.version != NO_NUMBER
    }

    /// The same object, packed, with what was found out about it.
    pub(super) fn pack(&self, packed: PackedRef<'_>) -> Self {
        let PackedRef { data, common, len, checksum } = packed;
        let common = Some(common.clone());
        Self::with_head(Head { common, json_len: len, checksum, ..self.head().copy() }, data)
    }

    /// The same object with other JSON, a part of its own that holds what identifies it.
    pub(super) fn with_json(&self, json: &[u8], places: Places) -> Self {
        let mut buffer = Vec::with_capacity(json.len() + Places::BYTES);
        buffer.extend_from_slice(json);
        Self::new(self.key().clone(), &self.resource_version(), places, &mut buffer, 0)
    }

    /// The same object with damaged bytes, which do not belong to its uid.
    #[cfg(test)]
    pub(crate) fn damaged(&self) -> Self {
        self.damaged_at(self.data().len() - 1, 0xff)
    }

    /// The same object with another byte at a place of its packed bytes.
    #[cfg(test)]
    pub(super) fn damaged_at(&self, at: usize, mask: u8) -> Self {
        let Some(packed) = self.packed() else { return self.clone() };
        Self::with_head(self.head().copy_without_found(), &packed.damaged(at, mask))
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
        put("name", self.key().name());
        put("namespace", self.key().namespace());
        let uid = put("uid", &self.uid());
        let version = put("resourceVersion", &self.resource_version().to_string());
        json.push_str("}}");
        let object = self.with_json(json.as_bytes(), Places { uid, version, labels: Span::default() });
        if let Some(values) = self.head().values() {
            object.head().found().values.store(Some(values));
        }
        object
    }

    /// The hash of the JSON. Computed when it is first asked for, about a nanosecond a byte: that is as much as the object's
    /// decoding, which those who never ask must not pay.
    pub fn content_hash(&self) -> ContentHash {
        if let Some(hash) = self.known_content_hash() {
            return *hash;
        }
        match self.try_text() {
            Ok(text) => *self.head().found().content_hash.get_or_init(|| Box::new(ContentHash::of(&text))),
            // It does not stay with the object, so that `damages` rises for the next reader, too.
            Err(Damaged) => ContentHash::of(&self.stand_in().text()),
        }
    }

    /// Whether the hash is known, so that it costs nothing.
    pub fn has_content_hash(&self) -> bool {
        self.known_content_hash().is_some()
    }

    fn known_content_hash(&self) -> Option<&ContentHash> {
        self.head().found.get()?.content_hash.get()
    }

    /// Whether another state of an object says the same, but for its version.
    pub fn is_same_but_version(&self, other: &Self) -> bool {
        self.text().around_version() == other.text().around_version()
    }

    /// The JSON before and after the text of `metadata.resourceVersion`, by reference, so that the same
    /// object can be shown at another version (a deletion found by relist, an object that left a selector).
    pub fn json_around_version(&self) -> (Bytes, Bytes) {
        let text = self.text();
        let Span { start, end } = text.version;
        let json = text.into_bytes();
        (json.slice(..start as usize), json.slice(end as usize..))
    }

    /// The JSON of `metadata`, by reference, and the range of its `resourceVersion`'s text within. If the object has metadata
    /// twice, it is the one that counts, which holds that version. Costs a scan of the members before it.
    pub fn metadata(&self) -> (Bytes, Range<usize>) {
        let text = self.text();
        let metadata = text.metadata();
        let start = metadata.as_ptr() as usize - text.as_ptr() as usize;
        let (end, version) = (start + metadata.len(), text.version);
        let version = version.start as usize - start..version.end as usize - start;
        (text.into_bytes().slice(start..end), version)
    }

    /// The JSON of `metadata.labels`; empty where there is none.
    pub fn labels_json(&self) -> Cow<'_, str> {
        self.held_labels().json()
    }

    /// `metadata.labels`. Shape: in the order of the JSON, each key once.
    pub fn labels(&self) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
        self.held_labels().pairs()
    }

    pub(super) fn held_labels(&self) -> Labels<'_> {
        match &self.head().common {
            None => Labels::Json(text(self.data(), self.places().labels)),
            Some(common) => common.labels(),
        }
    }

    /// The values at these paths. They are read once and stay with the object until another set of paths is asked for.
    pub fn values(&self, paths: &IndexPaths) -> Arc<IndexValues> {
        if let Some(values) = self.head().values()
            && values.generation() == paths.generation()
        {
            return values;
        }
        let before = damages_of_thread();
        let values = paths.share(self.read_values(paths));
        // Values of a damaged object do not stay with it, so that `damages` rises for the next reader, too.
        if damages_of_thread() == before {
            self.head().found().values.store(Some(values.clone()));
        }
        values
    }

    /// Whether it has values that were read.
    #[cfg(test)]
    pub(super) fn has_values(&self) -> bool {
        self.head().values().is_some()
    }

    /// As [`Object::values`], but the values are read anew and do not stay with the object.
    pub fn read_values(&self, paths: &IndexPaths) -> IndexValues {
        paths.read(self.key(), || self.labels(), || self.text())
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

fn text(json: &[u8], span: Span) -> &str {
    let bytes = &json[span.start as usize..span.end as usize];
    std::str::from_utf8(bytes).expect("the decoder only takes UTF-8")
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key(), self.resource_version())
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
