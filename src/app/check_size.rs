//! Estimates how much memory the objects of a watch will take: from one page of them and the API server's count.

use std::sync::Arc;

use serde::Deserialize;

use crate::cache::Packing;
use crate::config::{Limits, WatchSpec};
use crate::k8s::{CommonLabels, DecodeOptions, Decoder, Dictionary, Object, Press};
use crate::upstream::{Client, PageRequest, Target};

/// Number of objects by which the size of the others is estimated.
const SAMPLE_LEN: u32 = 500;

/// Memory that an object takes beside its JSON, in bytes: key, index, and what the allocator adds. Source: docs/benchmarks.md,
/// `memory`: 5,246 bytes for an object of 4,845.
const OBJECT_OVERHEAD: usize = 401;

/// The same for a packed object. Source: docs/benchmarks.md, `packing`: 100,000 similar pods take 101 MB, of which the process takes 15
/// and their packed JSON 60. Of a million such pods each takes less.
const PACKED_OVERHEAD: usize = 280;

/// Fewest objects in a sample whose packed size says something.
const PACKED_LEN_MIN: usize = 100;

/// The objects of a watch, about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    objects: usize,
    /// Whether there are more, of which the API server does not tell the number.
    is_least: bool,
    /// Average of their JSON, in bytes.
    json: usize,
    /// The same, packed; `None` if the sample is too small, or the objects are too few to be packed.
    packed: Option<usize>,
}

/// What a list says about the rest of it.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Rest {
    #[serde(rename = "continue")]
    token: String,
    /// Absent if the list has selectors. Source: `meta/v1 ListMeta`.
    remaining_item_count: Option<usize>,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: Rest,
}

/// A sentence with the number of objects, their size, and the memory that they will take.
pub(super) async fn size(
    client: &Client,
    spec: &WatchSpec,
    target: &Target,
    limits: &Limits,
) -> Result<String, String> {
    let page = PageRequest { limit: SAMPLE_LEN, ..PageRequest::default() };
    let answer = client.list_page(target, &page).await.map_err(|error| error.sentence())?;
    let decode = DecodeOptions {
        drop_managed_fields: !spec.keep_managed_fields,
        drop_last_applied: !spec.keep_last_applied,
        object_bytes_max: limits.object_bytes_max,
    };
    let decoder = Decoder::new(target.resource.clone(), decode).dropping(spec.drop.clone());
    let mut decoder = if target.metadata_only { decoder.metadata_only() } else { decoder };
    let page: Page = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
    let listed = decoder.list(&answer.body).map_err(|error| error.to_string())?;
    let estimate = move || Size::of(&listed.objects, &page.metadata);
    // It trains a dictionary.
    let size = tokio::task::spawn_blocking(estimate).await.map_err(|error| error.to_string())?;
    Ok(size.sentence(limits.journal_bytes_max))
}

// === impl Size ===

impl Size {
    fn of(sample: &[Object], rest: &Rest) -> Self {
        let len = sample.len();
        let bytes: usize = sample.iter().map(|object| object.json_len()).sum();
        let objects = len + rest.remaining_item_count.unwrap_or(0);
        let is_least = !rest.token.is_empty() && rest.remaining_item_count.is_none();
        let json = bytes.checked_div(len).unwrap_or(0);
        let is_packed = is_least || objects * json >= Packing::DEFAULT.packed_bytes_min;
        Self { objects, is_least, json, packed: (is_packed && len >= PACKED_LEN_MIN).then(|| packed(sample)) }
    }

    fn sentence(&self, journal_bytes_max: usize) -> String {
        let Self { objects, is_least, json, packed } = *self;
        if objects == 0 {
            return "no objects now".to_owned();
        }
        let least = if is_least { "more than " } else { "" };
        let memory = |each: usize| megabytes(objects * each);
        let packed = packed.map_or_else(String::new, |packed| {
            format!(", {} with --cache-packing=auto", memory(packed + PACKED_OVERHEAD))
        });
        format!(
            "{least}{objects} objects of about {json} bytes: {least}{} of memory{packed}; and at most {} for recent changes",
            memory(json + OBJECT_OVERHEAD),
            megabytes(journal_bytes_max)
        )
    }
}

/// The average size of objects, packed: every second one is for training, and the others are measured.
fn packed(sample: &[Object]) -> usize {
    let half = |parity: usize| sample.iter().skip(parity).step_by(2).cloned().collect::<Vec<_>>();
    let (training, measured) = (half(0), half(1));
    let Some(dictionary) = Dictionary::train(&training, Packing::DEFAULT.dictionary_bytes) else { return 0 };
    let pressed = Press::new(Arc::new(dictionary)).pack(&measured, &mut CommonLabels::default());
    let held = |(object, pressed): (&Object, Option<Object>)| {
        pressed.map_or(object.held_bytes(), |pressed| pressed.held_bytes())
    };
    let bytes: usize = measured.iter().zip(pressed).map(held).sum();
    bytes.checked_div(measured.len()).unwrap_or(0)
}

/// Bytes in MB, or in kB if there are few.
fn megabytes(bytes: usize) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1000)),
        _ => format!("{} MB", (bytes + 500_000) / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_has_count_size_and_memory() {
        let size = Size { objects: 100_000, is_least: false, json: 4_845, packed: Some(621) };
        assert_eq!(
            size.sentence(64 << 20),
            "100000 objects of about 4845 bytes: 525 MB of memory, 90 MB with --cache-packing=auto; and at most 67 MB for \
             recent changes"
        );
        let size = Size { objects: 500, is_least: true, json: 1_000, packed: None };
        assert_eq!(
            size.sentence(1_000),
            "more than 500 objects of about 1000 bytes: more than 701 kB of memory; and at most 1 kB for recent changes"
        );
        let size = Size { objects: 0, is_least: false, json: 0, packed: None };
        assert_eq!(size.sentence(64 << 20), "no objects now");
    }
}
