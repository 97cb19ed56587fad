//! Packs objects by a dictionary of their kind.

use std::fmt;
use std::hash::BuildHasher as _;
use std::io;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use zstd::bulk::Compressor;
use zstd::dict::EncoderDictionary;
use zstd::zstd_safe::CParameter;

use super::Object;
use super::labels::SplitLabels;
use super::packed::{Common, Dictionary, PackedRef, Template, data_of};
use super::shorthand::{CommonValues, Held, HeldAt, Numbers, Shortened, shorten};

/// zstd's level: its default, a balance of time and bytes.
pub(super) const LEVEL: i32 = 3;

/// What a packed object has to save beside a fifth of its JSON, in bytes: for less, the time to unpack is not worth it.
const OVERHEAD_BYTES: usize = 64;

/// Most sets of labels, and most of their templates, that are remembered, so that objects of one owner share theirs. Lists are sorted by
/// name, so that such objects follow each other.
const LABELS_LEN_MAX: usize = 1024;

/// Packs objects by a dictionary.
pub struct Press {
    dictionary: Arc<Dictionary>,
    encoder: EncoderDictionary<'static>,
}

/// What the objects that were packed last have in common. It outlives a press, as objects that were packed by one dictionary share it.
#[derive(Default)]
pub struct CommonLabels {
    /// By the text of their labels' template.
    templates: HashMap<String, Arc<Template>>,
    /// By template and values.
    sets: HashTable<Common>,
    hasher: DefaultHashBuilder,
}

impl Press {
    /// Makes what packs by this dictionary. It holds tables of zstd's, so it is not to be kept for long.
    pub fn new(dictionary: Arc<Dictionary>) -> Self {
        Self { encoder: EncoderDictionary::copy(&dictionary.bytes(), LEVEL), dictionary }
    }

    /// The same objects, packed. `None` for those that are packed already, cannot be packed, or do not get small enough. What is packed is
    /// unpacked and compared.
    pub fn pack(&self, objects: &[Object], labels: &mut CommonLabels) -> Vec<Option<Object>> {
        let Ok(mut compressor) = compressor(&self.encoder) else {
            return objects.iter().map(|_| None).collect();
        };
        let (mut frame, mut numbers) = (Vec::new(), Numbers::default());
        let mut pack = |object: &Object| {
            if !object.can_be_packed() {
                return None;
            }
            let shortened = shortened(object, self.dictionary.common_values(), &mut numbers)?;
            let text = &shortened.text;
            let json = object.plain_json()?;
            write_frame(&mut compressor, text, &mut frame)?;
            let common = labels.of(&self.dictionary, &object.labels_json());
            let data = data_of(&object.uid(), object.places(), &shortened, &frame)?;
            let packed = PackedRef::new(&data, &common, json, object.places())?;
            // Below a fifth, the time to unpack is not worth it.
            if (data.len() + OVERHEAD_BYTES) * 5 > json.len() * 4 {
                return None;
            }
            let is_same = packed.unpack(object.key(), &object.resource_version(), |unpacked, places| {
                unpacked == json && places == object.places()
            });
            (is_same == Ok(true)).then(|| object.pack(packed))
        };
        objects.iter().map(&mut pack).collect()
    }
}

/// What makes zstd's frames, without what an object's head has.
pub(super) fn compressor<'d>(encoder: &'d EncoderDictionary<'_>) -> io::Result<Compressor<'d>> {
    let mut compressor = Compressor::with_prepared_dictionary(encoder)?;
    compressor.set_parameter(CParameter::ChecksumFlag(false))?;
    compressor.set_parameter(CParameter::ContentSizeFlag(false))?;
    compressor.set_parameter(CParameter::DictIdFlag(false))?;
    Ok(compressor)
}

/// Replaces what is in `frame` with the frame of a text.
pub(super) fn write_frame(compressor: &mut Compressor<'_>, text: &[u8], frame: &mut Vec<u8>) -> Option<()> {
    frame.clear();
    frame.reserve(zstd::zstd_safe::compress_bound(text.len()));
    compressor.compress_to_buffer(text, frame).is_ok().then_some(())
}

/// The JSON of an object in shorter forms, but for values that many objects have. `None` if the object is packed.
pub(super) fn shortened(
    object: &Object,
    common_values: &CommonValues,
    numbers: &mut Numbers,
) -> Option<Shortened> {
    let json = object.plain_json()?;
    let (uid, version) = (object.uid(), object.resource_version());
    let held = Held { key: object.key(), uid: &uid, version: &version, labels: object.held_labels() };
    let places = object.places();
    let at =
        HeldAt { uid: places.uid.range(), version: places.version.range(), labels: places.labels.range() };
    shorten(json, held, at, common_values, numbers)
}

impl CommonLabels {
    /// What packed objects with this dictionary and these labels have in common.
    fn of(&mut self, dictionary: &Arc<Dictionary>, labels: &str) -> Common {
        let SplitLabels { template, values } = SplitLabels::of(labels);
        let template = self.template(dictionary, template);
        let hash =
            |template: &Arc<Template>, values: &str| self.hasher.hash_one((Arc::as_ptr(template), values));
        let sought = hash(&template, &values);
        let is_same = |one: &Common| Arc::ptr_eq(one.template(), &template) && one.values() == values;
        if let Some(common) = self.sets.find(sought, is_same) {
            return common.clone();
        }
        if self.sets.len() >= LABELS_LEN_MAX {
            self.sets.clear();
        }
        let common = Common::new(template, &values);
        self.sets.insert_unique(sought, common.clone(), |one| hash(one.template(), one.values()));
        common
    }

    /// The template of labels with this dictionary. Templates of another dictionary are forgotten, as they hold it.
    fn template(&mut self, dictionary: &Arc<Dictionary>, text: String) -> Arc<Template> {
        let known = self.templates.get(&text);
        if let Some(template) = known.filter(|known| Arc::ptr_eq(&known.dictionary, dictionary)) {
            return template.clone();
        }
        if known.is_some() || self.templates.len() >= LABELS_LEN_MAX {
            self.templates.clear();
            self.sets.clear();
        }
        let template = Arc::new(Template::new(dictionary.clone(), &text));
        self.templates.insert(text, template.clone());
        template
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
