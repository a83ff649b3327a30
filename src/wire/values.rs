//! The values of a reading that is being grouped.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::common::work;

/// Up to this many names are compared with each other; more are hashed.
const FEW: usize = 8;

/// The values of a reading, each metric once.
#[derive(Debug, Default)]
pub(super) struct Values {
    /// The names of the metrics, concatenated.
    names: String,
    /// The end of each name, and its value.
    ends: Vec<(usize, f64)>,
    /// The indexes of the names, if there are more than [`FEW`].
    table: HashTable<usize>,
    hasher: RandomState,
}

impl Values {
    /// Adds a value unless its metric has a value already.
    ///
    /// Returns whether it was added.
    pub(super) fn push(&mut self, name: &str, value: f64) -> bool {
        let count = self.ends.len();
        if count < FEW {
            work::count(self.names.len());
            if self.iter().any(|(other, _)| other == name) {
                return false;
            }
        } else {
            let places = if count == FEW { 0..count } else { count..count };
            for place in places {
                self.index(place);
            }
            if self.table.find(self.hasher.hash_one(name), |&place| self.name(place) == name).is_some() {
                return false;
            }
        }
        self.names.push_str(name);
        self.ends.push((self.names.len(), value));
        if count >= FEW {
            self.index(count);
        }
        true
    }

    fn index(&mut self, place: usize) {
        let Self { names, ends, table, hasher } = self;
        let hash = |place: usize| hasher.hash_one(slice(names, ends, place));
        table.insert_unique(hash(place), place, |&place| hash(place));
    }

    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.ends.clear();
        if !self.table.is_empty() {
            self.table.clear();
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        (0..).zip(&self.ends).map(|(place, &(_, value))| (self.name(place), value))
    }

    pub(super) const fn len(&self) -> usize {
        self.ends.len()
    }

    fn name(&self, place: usize) -> &str {
        slice(&self.names, &self.ends, place)
    }
}

fn slice<'a>(names: &'a str, ends: &[(usize, f64)], place: usize) -> &'a str {
    let start = if place == 0 { 0 } else { ends[place - 1].0 };
    &names[start..ends[place].0]
}
