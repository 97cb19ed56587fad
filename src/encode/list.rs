//! Encodes snapshots as Kubernetes lists and as lines.

use super::Frames;
use crate::k8s::{Object, ResourceVersion};

/// The beginning of a `PartialObjectMetadata`, before its metadata.
pub(super) const PARTIAL_HEAD: &str =
    r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#;

/// Appends an object as a `PartialObjectMetadata`, its metadata by reference.
pub fn partial(object: &Object, out: &mut Frames) {
    out.put(PARTIAL_HEAD);
    out.share(object.metadata().0);
    out.put("}");
}

/// Appends an object: by reference, or copied if it has to be unpacked.
pub(super) fn whole(object: &Object, out: &mut Frames) {
    match object.json_at_hand() {
        Some(json) => out.share(json),
        None => object.lend(|json| out.put_bytes(json)),
    }
}

/// The format of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListFormat {
    /// A Kubernetes list.
    Json,
    /// One object in each line.
    Ndjson,
}

/// Writes a snapshot piece by piece: head, any number of objects, tail.
#[derive(Debug)]
pub struct ListEncoder {
    format: ListFormat,
    head: String,
    first: bool,
}

impl ListEncoder {
    /// Begins a list of a kind: `PodList`, or `List` for several kinds, without a version. `continue_token` and `remaining` are
    /// given if more pages follow.
    pub fn new(
        format: ListFormat,
        kind: &str,
        api_version: &str,
        version: Option<&ResourceVersion>,
        next: Option<(&str, Option<usize>)>,
    ) -> Self {
        let version = version.map(ResourceVersion::json).unwrap_or_default();
        let mut metadata = format!(r#""resourceVersion":"{version}""#);
        if let Some((token, remaining)) = next {
            metadata.push_str(&format!(r#","continue":"{token}""#));
            if let Some(remaining) = remaining {
                metadata.push_str(&format!(r#","remainingItemCount":{remaining}"#));
            }
        }
        let head =
            format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{{{metadata}}},"items":["#);
        Self { format, head, first: true }
    }

    /// Appends an object.
    pub fn object(&mut self, object: &Object, out: &mut Frames) {
        self.item(out, |out| whole(object, out));
    }

    /// Appends an object as a `PartialObjectMetadata`, its metadata by reference.
    pub fn metadata(&mut self, object: &Object, out: &mut Frames) {
        self.item(out, |out| partial(object, out));
    }

    /// Appends what this writes, between what separates it from others.
    fn item(&mut self, out: &mut Frames, write: impl FnOnce(&mut Frames)) {
        match self.format {
            ListFormat::Json => {
                out.put(if self.first { &self.head } else { "," });
                write(out);
            }
            ListFormat::Ndjson => {
                write(out);
                out.put("\n");
            }
        }
        self.first = false;
    }

    /// Appends the end.
    pub fn end(&mut self, out: &mut Frames) {
        if self.format == ListFormat::Json {
            if self.first {
                out.put(&self.head);
                self.first = false;
            }
            out.put("]}\n");
        }
        out.cut();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::{CommonLabels, DecodeOptions, Decoder, Dictionary, Press, Resource, ResourceParts};

    #[track_caller]
    fn check(format: ListFormat, objects: &[&str], expected: &str) {
        let version = ResourceVersion::from(7);
        let mut list = ListEncoder::new(format, "PodList", "v1", Some(&version), None);
        let mut out = Frames::new();
        for object in objects {
            list.item(&mut out, |out| out.put(object));
        }
        list.end(&mut out);
        assert_eq!(String::from_utf8(out.to_vec()).unwrap(), expected);
    }

    #[test]
    fn packed_objects_are_listed_as_they_were() {
        let options =
            DecodeOptions { drop_managed_fields: true, drop_last_applied: true, object_bytes_max: 1 << 20 };
        let mut decoder = Decoder::new(Resource::new(ResourceParts::default()), options);
        let note = "the same in each object".repeat(20);
        let objects: Vec<_> = (0..50)
            .map(|at| {
                format!(r#"{{"metadata":{{"name":"web-{at}","resourceVersion":"{at}"}},"note":"{note}"}}"#)
            })
            .map(|json| decoder.object(&json).unwrap())
            .collect();
        let dictionary = Dictionary::train(&objects, 4096).unwrap();
        let packed = Press::new(dictionary.into()).pack(&objects, &mut CommonLabels::default());
        let list_of = |objects: &mut dyn Iterator<Item = &Object>| {
            let mut out = Frames::new();
            let mut list = ListEncoder::new(ListFormat::Ndjson, "PodList", "v1", None, None);
            objects.for_each(|object| list.object(object, &mut out));
            list.end(&mut out);
            out.to_vec()
        };
        let of_packed = list_of(&mut packed.iter().map(|packed| packed.as_ref().expect("is packed")));
        assert_eq!(of_packed, list_of(&mut objects.iter()));
    }

    #[test]
    fn the_bytes_of_a_kubernetes_list() {
        let head = r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":["#;
        check(ListFormat::Json, &[], &format!("{head}]}}\n"));
        check(ListFormat::Json, &["{1}", "{2}"], &format!("{head}{{1}},{{2}}]}}\n"));
        check(ListFormat::Ndjson, &[], "");
        check(ListFormat::Ndjson, &["{1}", "{2}"], "{1}\n{2}\n");
    }
}
