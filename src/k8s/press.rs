//! Packs objects by a dictionary of their kind.

use std::fmt;
use std::sync::Arc;

use zstd::bulk::Compressor;
use zstd::dict::EncoderDictionary;
use zstd::zstd_safe::CParameter;

use super::object::{Body, Object};
use super::packed::{Dictionary, Packed};

/// zstd's level: its default, a balance of time and bytes.
const LEVEL: i32 = 3;

/// What a packed object costs beside its data and what it shares, in bytes: it has to save at least that.
const OVERHEAD_BYTES: usize = 64;

/// Packs objects by a dictionary.
pub struct Press {
    dictionary: Arc<Dictionary>,
    encoder: EncoderDictionary<'static>,
}

impl Press {
    /// Makes what packs by this dictionary. It holds tables of zstd's, so it is not to be kept for long.
    pub fn new(dictionary: Arc<Dictionary>) -> Self {
        Self { encoder: EncoderDictionary::copy(dictionary.bytes(), LEVEL), dictionary }
    }

    /// The same objects, packed; `None` for those that are packed already or do not get small enough. `share` gives the
    /// shared text of an object's labels. What is packed is unpacked and compared.
    pub fn pack(
        &self,
        objects: &[Arc<Object>],
        mut share: impl FnMut(&str) -> Arc<str>,
    ) -> Vec<Option<Arc<Object>>> {
        let compressor = Compressor::with_prepared_dictionary(&self.encoder).and_then(|mut compressor| {
            compressor.set_parameter(CParameter::ChecksumFlag(true))?;
            compressor.set_parameter(CParameter::ContentSizeFlag(false))?;
            compressor.set_parameter(CParameter::DictIdFlag(false))?;
            Ok(compressor)
        });
        let Ok(mut compressor) = compressor else { return objects.iter().map(|_| None).collect() };
        let mut frame = Vec::new();
        let mut pack = |object: &Arc<Object>| {
            let Body::Plain(json) = &object.body else { return None };
            frame.clear();
            frame.reserve(zstd::zstd_safe::compress_bound(json.len()));
            compressor.compress_to_buffer(json, &mut frame).ok()?;
            let uid = object.uid();
            let held = uid.len() + frame.len() + OVERHEAD_BYTES;
            // Below a fifth, the time to unpack is not worth it.
            if held * 5 > json.len() * 4 {
                return None;
            }
            let labels = share(object.labels_json());
            let packed = Packed::new(self.dictionary.clone(), uid, &frame, labels, json.len())?;
            let same = packed.unpack_anew().is_ok_and(|unpacked| unpacked == **json);
            same.then(|| Arc::new(object.with_body(Body::Packed(packed))))
        };
        objects.iter().map(&mut pack).collect()
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
