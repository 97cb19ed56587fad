//! A hash of the content of objects. Equal hashes mean equal content.

use std::fmt;

/// The hash of an object's JSON, or of a set of objects. That of a set is the sum of the objects' hashes: it does not depend
/// on their order, and can be updated at a change without reading the other objects.
///
/// Why BLAKE3: ETags are made from it, and a client that gets 304 reads no objects. A user who may write objects must not be
/// able to give one the hash of another, which non-cryptographic hashes allow. The hash is the same on every machine and in
/// every release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
// Bytes and not a `u128`, which would be aligned to 16 bytes wherever it is held.
pub struct ContentHash([u8; 16]);

impl ContentHash {
    /// The hash of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut short = [0; 16];
        short.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
        Self(short)
    }

    /// A half of it, where a set is so small that no two contents have the same half, unless somebody seeks them.
    pub fn half(self) -> [u8; 8] {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        [a, b, c, d, e, f, g, h]
    }

    /// Adds an object to the set.
    pub fn add(&mut self, object: Self) {
        self.0 = self.number().wrapping_add(object.number()).to_le_bytes();
    }

    /// Removes an object from the set.
    pub fn remove(&mut self, object: Self) {
        self.0 = self.number().wrapping_sub(object.number()).to_le_bytes();
    }

    fn number(self) -> u128 {
        u128::from_le_bytes(self.0)
    }
}

/// As 32 hexadecimal digits.
impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_set_does_not_depend_on_the_order_of_changes() {
        let [a, b, c] = ["a", "b", "c"].map(|text| ContentHash::of(text.as_bytes()));
        let (mut one, mut other) = (ContentHash::default(), ContentHash::default());
        [a, b].into_iter().for_each(|hash| one.add(hash));
        [c, b, a].into_iter().for_each(|hash| other.add(hash));
        assert_ne!(one, other);
        other.remove(c);
        assert_eq!(one, other);
    }

    #[test]
    fn a_hash_is_the_same_in_each_release() {
        assert_eq!(ContentHash::of(b"").to_string(), "af1349b9f5f9a1a6a0404dea36dcc949");
    }
}
