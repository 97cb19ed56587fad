//! Packs objects by a dictionary of their kind.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use zstd::bulk::Compressor;
use zstd::dict::EncoderDictionary;
use zstd::zstd_safe::CParameter;

use super::object::{Body, Object};
use super::packed::{Common, Dictionary, Packed};
use super::shorthand::Shortened;

/// zstd's level: its default, a balance of time and bytes.
const LEVEL: i32 = 3;

/// What a packed object costs beside its data and what it shares, in bytes: it has to save at least that.
const OVERHEAD_BYTES: usize = 64;

/// Number of labels that are remembered, so that objects of one owner share theirs. Lists are sorted by name, so that such objects follow
/// each other.
const LABELS_LEN_MAX: usize = 1024;

/// Packs objects by a dictionary.
pub struct Press {
    dictionary: Arc<Dictionary>,
    encoder: EncoderDictionary<'static>,
}

/// What the objects that were packed last have in common. It outlives a press, as objects that were packed by one dictionary share it.
#[derive(Default)]
pub struct CommonLabels(HashSet<Common>);

impl Press {
    /// Makes what packs by this dictionary. It holds tables of zstd's, so it is not to be kept for long.
    pub fn new(dictionary: Arc<Dictionary>) -> Self {
        Self { encoder: EncoderDictionary::copy(dictionary.bytes(), LEVEL), dictionary }
    }

    /// The same objects, packed; `None` for those that are packed already or do not get small enough. What is packed is unpacked and
    /// compared.
    pub fn pack(&self, objects: &[Arc<Object>], labels: &mut CommonLabels) -> Vec<Option<Arc<Object>>> {
        let compressor = Compressor::with_prepared_dictionary(&self.encoder).and_then(|mut compressor| {
            compressor.set_parameter(CParameter::ChecksumFlag(false))?;
            compressor.set_parameter(CParameter::ContentSizeFlag(false))?;
            compressor.set_parameter(CParameter::DictIdFlag(false))?;
            Ok(compressor)
        });
        let Ok(mut compressor) = compressor else { return objects.iter().map(|_| None).collect() };
        let mut frame = Vec::new();
        let mut pack = |object: &Arc<Object>| {
            let Body::Plain(json) = &object.body else { return None };
            let Shortened { text, values } = object.shortened(self.dictionary.common_values())?;
            frame.clear();
            frame.reserve(zstd::zstd_safe::compress_bound(text.len()));
            compressor.compress_to_buffer(&text, &mut frame).ok()?;
            let common = labels.of(&self.dictionary, object.labels_json());
            let packed = Packed::new(common, &object.uid(), &values, &frame, json)?;
            // Below a fifth, the time to unpack is not worth it.
            if (packed.held_bytes() + OVERHEAD_BYTES) * 5 > json.len() * 4 {
                return None;
            }
            let unpacked = packed.unpack_anew(&object.key, &object.resource_version);
            let same = unpacked.is_ok_and(|unpacked| unpacked == **json);
            same.then(|| Arc::new(object.with_body(Body::Packed(packed))))
        };
        objects.iter().map(&mut pack).collect()
    }
}

impl CommonLabels {
    /// What packed objects with this dictionary and these labels have in common.
    fn of(&mut self, dictionary: &Arc<Dictionary>, labels: &str) -> Common {
        if let Some(common) = self.0.get(labels)
            && Arc::ptr_eq(common.dictionary(), dictionary)
        {
            return common.clone();
        }
        if self.0.len() >= LABELS_LEN_MAX {
            self.0.clear();
        }
        let common = Common::new(dictionary.clone(), labels);
        self.0.replace(common.clone());
        common
    }
}

impl fmt::Debug for Press {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Press({:?})", self.dictionary)
    }
}

#[cfg(test)]
#[path = "press_tests.rs"]
mod tests;
