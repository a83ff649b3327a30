//! The words in which JSON readings are refused.

use std::collections::HashSet;

use super::lexer::Kind;
use crate::wire::{Code, Rejection};

/// What was found, or why it is refused.
pub(in crate::wire) type Found<T> = Result<T, Rejection>;

/// So many names are compared with each other; more are hashed.
const FEW: usize = 16;

pub(in crate::wire) fn rejection(code: Code, detail: impl Into<String>) -> Rejection {
    Rejection { code, detail: detail.into() }
}

pub(super) fn not_an_object(kind: Kind) -> Rejection {
    rejection(Code::InvalidJson, format!("a reading must be an object, found {kind}"))
}

pub(super) fn duplicate_key(key: &str) -> Rejection {
    rejection(Code::DuplicateKey, format!("the key {} stands twice", quoted(key)))
}

/// A name as it may stand in a detail: escaped, and cut to a length that suits an error message.
pub(in crate::wire) fn quoted(name: &str) -> String {
    match name.char_indices().nth(64) {
        Some((end, _)) => format!("{:?}...", &name[..end]),
        None => format!("{name:?}"),
    }
}

/// Fills the slot of a key; a slot that is filled already becomes a duplicate key.
pub(in crate::wire) fn fill<T>(slot: &mut Option<Found<T>>, key: &str, found: Found<T>) {
    *slot = Some(if slot.is_none() { found } else { Err(duplicate_key(key)) });
}

/// A name that occurs twice.
pub(super) fn repeated<'a>(names: impl ExactSizeIterator<Item = &'a str> + Clone) -> Option<&'a str> {
    if names.len() <= FEW {
        let mut places = names.clone().enumerate();
        return places
            .find(|&(place, name)| names.clone().take(place).any(|other| other == name))
            .map(|(_, name)| name);
    }
    let mut seen = HashSet::with_capacity(names.len());
    names.into_iter().find(|&name| !seen.insert(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_name_is_found_among_few_and_among_many() {
        for count in [0, 1, 2, FEW, FEW + 1, 1_000] {
            let mut names: Vec<String> = (0..count).map(|name| name.to_string()).collect();
            assert_eq!(repeated(names.iter().map(String::as_str)), None);
            names.push("0".to_owned());
            assert_eq!(repeated(names.iter().map(String::as_str)), (count > 0).then_some("0"));
        }
    }

    #[test]
    fn a_name_in_a_detail_is_escaped_and_short() {
        assert_eq!(quoted("a\"\n"), r#""a\"\n""#);
        assert_eq!(quoted(&"ä".repeat(64)), format!("\"{}\"", "ä".repeat(64)));
        assert_eq!(quoted(&"ä".repeat(65)), format!("\"{}\"...", "ä".repeat(64)));
    }
}
