//! An interner: each text is stored once and has a number.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use crate::common::work;

/// Numbers texts from 0 in the order of their first use.
#[derive(Debug)]
pub(super) struct Interner {
    max: u32,
    text: String,
    /// The end of each text in `text`.
    ends: Vec<usize>,
    table: HashTable<u32>,
    hasher: RandomState,
}

impl Interner {
    /// An interner of at most `max` texts.
    pub(super) fn new(max: u32) -> Self {
        let (text, ends) = (String::new(), Vec::new());
        Self { max, text, ends, table: HashTable::new(), hasher: RandomState::default() }
    }

    /// The number of a text.
    ///
    /// A new text gets the next number; `None` if the interner is full.
    pub(super) fn number(&mut self, text: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(text);
        work::count(2 * text.len());
        if let Some(&known) = self.table.find(hash, |&known| self.text(known) == text) {
            return Some(known);
        }
        let number = u32::try_from(self.ends.len()).ok().filter(|&number| number < self.max)?;
        self.text.push_str(text);
        self.ends.push(self.text.len());
        let (all, ends, hasher) = (&self.text, &self.ends, &self.hasher);
        self.table.insert_unique(hash, number, |&known| hasher.hash_one(slice(all, ends, known)));
        Some(number)
    }

    /// The number of a known text.
    pub(super) fn find(&self, text: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(text);
        work::count(2 * text.len());
        self.table.find(hash, |&known| self.text(known) == text).copied()
    }

    /// The text with this number.
    pub(super) fn text(&self, number: u32) -> &str {
        slice(&self.text, &self.ends, number)
    }
}

fn slice<'a>(text: &'a str, ends: &[usize], number: u32) -> &'a str {
    let at = number as usize;
    let start = if at == 0 { 0 } else { ends[at - 1] };
    &text[start..ends[at]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_has_one_number_until_the_interner_is_full() {
        let mut interner = Interner::new(100);
        for round in 0..2 {
            for number in 0..100 {
                assert_eq!(interner.number(&format!("text {number}")), Some(number), "round {round}");
            }
        }
        assert_eq!((interner.number("more"), interner.find("more")), (None, None));
        assert_eq!((interner.find("text 99"), interner.text(0), interner.text(99)), (Some(99), "text 0", "text 99"));
        assert_eq!(Interner::new(1).number(""), Some(0));
    }
}
