//! The list around the objects.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::{DecodeError, Decoder, ListPage, ObjectSeed, Skipped, is_one_line, key_for_log};
use crate::k8s::json::Text;
use crate::k8s::{Object, ResourceVersion};

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

impl ListMeta {
    pub(super) fn into_page(
        self,
        objects: Vec<Object>,
        skipped: Vec<Skipped>,
    ) -> Result<ListPage, DecodeError> {
        let (resource_version, continue_token) = self.into_parts()?;
        Ok(ListPage { resource_version, continue_token, objects, skipped })
    }

    /// The list's version, and the token of its next page.
    pub(super) fn into_parts(self) -> Result<(ResourceVersion, Option<String>), DecodeError> {
        if self.resource_version.is_empty() {
            return Err(DecodeError::Missing("resourceVersion"));
        }
        let token = self.continue_token.filter(|token| !token.is_empty());
        Ok((ResourceVersion::new(&self.resource_version), token))
    }
}

impl Decoder {
    /// A page of a list. Items that cannot be decoded are in `skipped`.
    ///
    /// # Errors
    /// [`DecodeError`] when the body is not a list or has no resourceVersion.
    pub fn list(&mut self, body: &[u8]) -> Result<ListPage, DecodeError> {
        let text = std::str::from_utf8(body)?;
        // Go's encoder ends a document with a line feed.
        self.is_one_line = is_one_line(text.trim_ascii_end());
        let mut reader = serde_json::Deserializer::from_str(text);
        let quick = ListSeed { decoder: self }.deserialize(&mut reader);
        match quick.and_then(|page| reader.end().map(|()| page)) {
            Ok(page) => page,
            // One item of the wrong shape fails the whole pass; go item by item so that it costs only itself.
            Err(_) => self.list_item_by_item(text),
        }
    }

    fn list_item_by_item(&mut self, text: &str) -> Result<ListPage, DecodeError> {
        #[derive(Deserialize)]
        struct RawList<'a> {
            #[serde(default)]
            metadata: ListMeta,
            #[serde(borrow, default)]
            items: Option<Vec<&'a RawValue>>,
        }
        let list: RawList<'_> = serde_json::from_str(text)?;
        let mut objects = Vec::new();
        let mut skipped = Vec::new();
        for item in list.items.unwrap_or_default() {
            match self.object(item.get()) {
                Ok(object) => objects.push(object),
                Err(error) => skipped.push(Skipped { key: key_for_log(item.get()), error }),
            }
        }
        list.metadata.into_page(objects, skipped)
    }
}

struct ListSeed<'d> {
    decoder: &'d mut Decoder,
}

impl<'de> DeserializeSeed<'de> for ListSeed<'_> {
    type Value = Result<ListPage, DecodeError>;

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ListSeed<'_> {
    type Value = Result<ListPage, DecodeError>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut metadata: Option<ListMeta> = None;
        let mut items = false;
        let mut objects = Vec::new();
        let mut skipped = Vec::new();
        while let Some(Text(key)) = map.next_key()? {
            match &*key {
                // Nothing says which of the two is meant.
                "metadata" if metadata.is_some() => return Err(A::Error::duplicate_field("metadata")),
                "items" if items => return Err(A::Error::duplicate_field("items")),
                "metadata" => metadata = Some(map.next_value()?),
                "items" => map
                    .next_value_seed(ItemsSeed {
                        decoder: &mut *self.decoder,
                        objects: &mut objects,
                        skipped: &mut skipped,
                    })
                    .map(|()| items = true)?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(metadata.unwrap_or_default().into_page(objects, skipped))
    }
}

struct ItemsSeed<'d> {
    decoder: &'d mut Decoder,
    objects: &'d mut Vec<Object>,
    skipped: &'d mut Vec<Skipped>,
}

impl<'de> DeserializeSeed<'de> for ItemsSeed<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemsSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the items of a list")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        // Go writes a nil slice as null.
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(item) = seq.next_element_seed(ObjectSeed { decoder: &mut *self.decoder })? {
            match item {
                Ok(object) => self.objects.push(object),
                Err(error) => {
                    let members = String::from_utf8_lossy(self.decoder.members()).into_owned();
                    self.skipped.push(Skipped { key: key_for_log(&members.replacen(',', "{", 1)), error });
                }
            }
        }
        Ok(())
    }
}
