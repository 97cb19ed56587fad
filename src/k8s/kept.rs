//! The JSON of packed objects that a thread has unpacked, for its next reader.
//!
//! An object is matched, hashed and written one after the other, so a thread keeps what it unpacked last. Programs that poll ask for the same
//! few objects again and again, so a thread also keeps an object of a short list that it is asked for twice with few others in between.

use std::cell::RefCell;

use bytes::Bytes;
use hashbrown::HashMap;

use super::Key;
use super::places::Places;

/// Bytes of the largest JSON that is kept.
const JSON_BYTES_MAX: usize = 64 << 10;

/// Bytes of JSON that a thread keeps, at most, beside the last. It forgets all of them once they would be more.
const KEPT_BYTES_MAX: usize = 512 << 10;

/// An object is kept if it is asked for again after at most this number of others.
const WINDOW: u32 = 256;

/// Where a thread notes what it was asked for. Two objects may have the same place, and then one of them may not be kept.
const PLACES: usize = 1 << PLACES_BITS;
const PLACES_BITS: u32 = 10;

/// A state of an object. Another object may have its address later, so the rest has to be the same, too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct StateId<'o> {
    pub(super) address: usize,
    /// As the object's head has it.
    pub(super) version: u64,
    pub(super) checksum: u32,
    /// Bytes of the JSON.
    pub(super) len: u32,
    pub(super) key: &'o Key,
}

/// The JSON of an object that is packed. It does not hold the object, which would hold its dictionary: an idle thread would keep that in
/// memory.
struct Unpacked {
    address: usize,
    key: Key,
    version: u64,
    checksum: u32,
    json: Bytes,
    places: Places,
}

/// What a thread keeps.
#[derive(Default)]
struct Kept {
    last: Option<Unpacked>,
    /// By address.
    often: HashMap<usize, Unpacked>,
    /// Bytes of their JSON.
    bytes: usize,
    /// What the thread was asked for: 32 bits of an address, and how many objects it had been asked for before. Empty until the first.
    asked: Vec<(u32, u32)>,
    asks: u32,
}

thread_local! {
    static KEPT: RefCell<Kept> = RefCell::default();
}

/// The JSON of an object and the places in it, if this thread has it.
pub(super) fn find(object: StateId<'_>) -> Option<(Bytes, Places)> {
    KEPT.with_borrow(|kept| kept.find(object))
}

/// Keeps what was unpacked last.
pub(super) fn keep_last(object: StateId<'_>, json: &Bytes, places: Places) {
    if json.len() <= JSON_BYTES_MAX {
        KEPT.with_borrow_mut(|kept| kept.last = Some(Unpacked::new(object, json, places)));
    }
}

/// Keeps it until others take its room.
pub(super) fn keep(object: StateId<'_>, json: &Bytes, places: Places) {
    if json.len() <= JSON_BYTES_MAX {
        KEPT.with_borrow_mut(|kept| kept.keep(Unpacked::new(object, json, places)));
    }
}

/// Whether an object is to be kept: this thread was asked for it lately, and does not keep it yet. Notes that it is asked for now.
pub(super) fn is_to_keep(object: StateId<'_>) -> bool {
    KEPT.with_borrow_mut(|kept| kept.kept(object).is_none() && kept.is_asked_again(object.address))
}

// === impl Kept ===

impl Kept {
    fn find(&self, object: StateId<'_>) -> Option<(Bytes, Places)> {
        let last = self.last.as_ref().filter(|last| last.state_id() == object);
        let found = last.or_else(|| self.kept(object))?;
        Some((found.json.clone(), found.places))
    }

    /// What it keeps of an object beside the last.
    fn kept(&self, object: StateId<'_>) -> Option<&Unpacked> {
        self.often.get(&object.address).filter(|kept| kept.state_id() == object)
    }

    fn keep(&mut self, unpacked: Unpacked) {
        if self.bytes + unpacked.json.len() > KEPT_BYTES_MAX {
            self.often.clear();
            self.bytes = 0;
        }
        self.bytes += unpacked.json.len();
        if let Some(before) = self.often.insert(unpacked.address, unpacked) {
            self.bytes -= before.json.len();
        }
    }

    fn is_asked_again(&mut self, address: usize) -> bool {
        if self.asked.is_empty() {
            // No address is 0.
            self.asked = vec![(0, 0); PLACES];
        }
        // The golden ratio spreads addresses, which differ in their middle bits.
        let spread = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = &mut self.asked[(spread >> (u64::BITS - PLACES_BITS)) as usize];
        let tag = (address >> 4) as u32;
        let others = self.asks.wrapping_sub(place.1).wrapping_sub(1);
        let is_again = place.0 == tag && others <= WINDOW;
        *place = (tag, self.asks);
        self.asks = self.asks.wrapping_add(1);
        is_again
    }
}

// === impl Unpacked ===

impl Unpacked {
    fn new(object: StateId<'_>, json: &Bytes, places: Places) -> Self {
        let StateId { address, key, version, checksum, .. } = object;
        Self { address, key: key.clone(), version, checksum, json: json.clone(), places }
    }

    fn state_id(&self) -> StateId<'_> {
        let Self { address, ref key, version, checksum, ref json, .. } = *self;
        StateId { address, version, checksum, len: json.len() as u32, key }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_id(address: usize, key: &Key) -> StateId<'_> {
        StateId { address, key, version: 7, checksum: 9, len: 4 }
    }

    #[test]
    fn an_object_is_asked_again_if_few_others_were_between() {
        for (between, again) in [(0, true), (200, true), (256, true), (257, false), (5000, false)] {
            let mut kept = Kept::default();
            let address = 0x7000_0000;
            assert!(!kept.is_asked_again(address));
            // At places of their own, as another object at the same place would replace it.
            let place =
                |address: usize| (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES_BITS);
            let others =
                (1..).map(|nth| address + nth * 0x1450).filter(|other| place(*other) != place(address));
            for other in others.take(between) {
                kept.is_asked_again(other);
            }
            assert_eq!(kept.is_asked_again(address), again, "{between}");
        }
    }

    #[test]
    fn only_the_same_state_of_an_object_is_found() {
        let (key, other) = (Key::new("shop", "web"), Key::new("shop", "db"));
        let json = Bytes::from_static(b"{\"\"}");
        let mut kept = Kept::default();
        kept.keep(Unpacked::new(state_id(0x50, &key), &json, Places::default()));
        assert_eq!(kept.find(state_id(0x50, &key)).unwrap().0, json);
        for wrong in [
            state_id(0x60, &key),
            state_id(0x50, &other),
            StateId { version: 8, ..state_id(0x50, &key) },
            StateId { checksum: 8, ..state_id(0x50, &key) },
            StateId { len: 5, ..state_id(0x50, &key) },
        ] {
            assert!(kept.find(wrong).is_none());
        }
    }

    #[test]
    fn the_kept_bytes_are_bounded() {
        let key = Key::new("shop", "web");
        let json = Bytes::from(vec![b' '; JSON_BYTES_MAX]);
        let mut kept = Kept::default();
        for address in (0..1000).chain(0..1000) {
            kept.keep(Unpacked::new(state_id(address, &key), &json, Places::default()));
            assert!(kept.bytes <= KEPT_BYTES_MAX);
            assert_eq!(kept.bytes, kept.often.values().map(|one| one.json.len()).sum::<usize>());
            assert!(kept.often.contains_key(&address));
        }
        // The same object again takes the place of the first.
        let before = kept.bytes;
        kept.keep(Unpacked::new(state_id(999, &key), &json, Places::default()));
        assert!(kept.bytes <= before);
    }
}
