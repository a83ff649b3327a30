//! Helpers of the parsers for rejections.

use std::collections::HashSet;

use super::{Code, Rejection};
use crate::common::work;

/// A parsed value, or the rejection of its reading.
pub(super) type Parsed<T> = Result<T, Rejection>;

/// Up to this many names are compared with each other; more are hashed.
const FEW: usize = 16;

pub(super) fn rejection(code: Code, detail: impl Into<String>) -> Rejection {
    Rejection { code, detail: detail.into() }
}

pub(super) fn invalid_time(detail: impl Into<String>) -> Rejection {
    rejection(Code::InvalidTimestamp, detail)
}

/// A name in quotation marks for a message: escaped, and cut after 64 characters.
pub(super) fn quoted(name: &str) -> String {
    match name.char_indices().nth(64) {
        Some((end, _)) => format!("{:?}...", &name[..end]),
        None => format!("{name:?}"),
    }
}

/// The first name that occurs twice.
pub(super) fn repeated<'a>(names: impl ExactSizeIterator<Item = &'a str> + Clone) -> Option<&'a str> {
    if cfg!(test) {
        let passes = if names.len() <= FEW { names.len().div_ceil(2) } else { 1 };
        names.clone().for_each(|name| work::count(passes * (1 + name.len())));
    }
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
