//! The table of the metrics of a batch, with their labels.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::{PushError, offset};

/// The metrics of a batch by name and labels, each with its index.
///
/// Readings of one kind name the same metrics in the same order. So a lookup first tries the name at the same
/// place of the previous reading, and then the hash table.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The names as the payload has them: each after its length.
    bytes: Vec<u8>,
    /// The offset in `bytes` and the length of each name, by index.
    places: Vec<(u32, u16)>,
    /// The indexes, by the hash of the name.
    table: HashTable<u16>,
    hasher: RandomState,
}

impl Names {
    /// The number of bytes that the names take in the payload.
    pub(super) fn encoded_bytes(&self) -> usize {
        2 + self.bytes.len()
    }

    /// Appends the part `names` of the grammar of a payload.
    pub(super) fn append_to(&self, payload: &mut Vec<u8>) {
        let count = u16::try_from(self.places.len()).expect("`index` adds at most 65,535 names");
        payload.extend_from_slice(&count.to_le_bytes());
        payload.extend_from_slice(&self.bytes);
    }

    /// The index of a name, which is added if it is new. `hint` is the index to try first.
    ///
    /// `measurement_bytes` is the length of the measurement that the name may begin with. A name that is
    /// known with another measurement keeps it.
    pub(super) fn index(&mut self, name: &str, measurement_bytes: u8, hint: usize) -> Result<u16, PushError> {
        if let Some(&place) = self.places.get(hint)
            && slice(&self.bytes, place) == name.as_bytes()
        {
            return u16::try_from(hint).map_err(|_| PushError::TooManyNames);
        }
        let hash = self.hasher.hash_one(name.as_bytes());
        if let Some(&known) = self.table.find(hash, |&known| self.name(known) == name.as_bytes()) {
            return Ok(known);
        }
        let index = u16::try_from(self.places.len()).ok().filter(|&index| index < u16::MAX);
        let index = index.ok_or(PushError::TooManyNames)?;
        let len = u16::try_from(name.len()).map_err(|_| PushError::TooLong)?;
        let has_field = measurement_bytes > 0 && name.as_bytes().get(usize::from(measurement_bytes)) == Some(&b'_');
        match u8::try_from(len) {
            Ok(short) if !has_field => self.bytes.push(short),
            _ => {
                self.bytes.extend_from_slice(&[0, if has_field { measurement_bytes } else { 0 }]);
                self.bytes.extend_from_slice(&len.to_le_bytes());
            }
        }
        self.places.push((offset(self.bytes.len()), len));
        self.bytes.extend_from_slice(name.as_bytes());
        let (bytes, places, hasher) = (&self.bytes, &self.places, &self.hasher);
        self.table.insert_unique(hash, index, |&known| hasher.hash_one(slice(bytes, places[usize::from(known)])));
        Ok(index)
    }

    fn name(&self, index: u16) -> &[u8] {
        slice(&self.bytes, self.places[usize::from(index)])
    }
}

fn slice(bytes: &[u8], (start, len): (u32, u16)) -> &[u8] {
    &bytes[start as usize..start as usize + usize::from(len)]
}
