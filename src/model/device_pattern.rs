//! Patterns of device IDs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{DeviceIdCase, DeviceIdError, check_device_id};

/// A device ID in which each `*` stands for any characters, or none: `LIGHT-*`, `*-ZONE4`, `PUMP-7`.
///
/// A match takes time in proportion to the length of the ID, whatever the pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePattern {
    text: String,
    /// Whether only the device with this ID matches, even if the ID has a `*`.
    is_one_id: bool,
}

impl DevicePattern {
    /// Makes a pattern that only this ID matches. A `*` in the ID is a character like others.
    #[must_use]
    pub fn one_id(id: &str) -> Self {
        Self { text: id.to_owned(), is_one_id: true }
    }

    /// Whether `id` matches the pattern.
    #[must_use]
    pub fn matches(&self, id: &str) -> bool {
        if self.is_one_id {
            return self.text == id;
        }
        let (start, rest) = self.text.split_once('*').unwrap_or((&self.text, ""));
        let (between, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(middle) = id.strip_prefix(start).and_then(|id| id.strip_suffix(end)) else { return false };
        // The first occurrence of a piece leaves the most characters for later pieces. So no piece is tried
        // twice.
        let mut pieces = between.split('*');
        pieces.try_fold(middle, |left, piece| left.find(piece).map(|at| &left[at + piece.len()..])).is_some()
    }

    /// The text with which every matching ID begins: `LIGHT-` for `LIGHT-*`.
    #[must_use]
    pub fn start(&self) -> &str {
        if self.is_one_id { &self.text } else { self.text.split('*').next().unwrap_or_default() }
    }

    /// Whether only one ID matches.
    #[must_use]
    pub const fn is_one_id(&self) -> bool {
        self.is_one_id
    }

    /// This pattern in the case of stored IDs.
    #[must_use]
    pub fn in_case(&self, case: DeviceIdCase) -> Self {
        Self { text: case.apply(&self.text).into_owned(), ..*self }
    }
}

impl FromStr for DevicePattern {
    type Err = DeviceIdError;

    fn from_str(text: &str) -> Result<Self, DeviceIdError> {
        check_device_id(text)?;
        Ok(Self { text: text.to_owned(), is_one_id: !text.contains('*') })
    }
}

impl fmt::Display for DevicePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for DevicePattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for DevicePattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, id: &str) -> bool {
        pattern.parse::<DevicePattern>().unwrap().matches(id)
    }

    /// Matches by trying every way.
    fn oracle(pattern: &[u8], id: &[u8]) -> bool {
        match pattern {
            [] => id.is_empty(),
            [b'*', rest @ ..] => (0..=id.len()).any(|skipped| oracle(rest, &id[skipped..])),
            [byte, rest @ ..] => id.first() == Some(byte) && oracle(rest, &id[1..]),
        }
    }

    #[test]
    fn stars_match_anything_and_other_bytes_themselves() {
        for (pattern, id, expected) in [
            ("LIGHT-*", "LIGHT-1", true),
            ("LIGHT-*", "LIGHT-", true),
            ("LIGHT-*", "LIGHT", false),
            ("LIGHT-*", "xLIGHT-1", false),
            ("LIGHT-*", "light-1", false),
            ("PUMP", "PUMP", true),
            ("PUMP", "PUMP1", false),
            ("*-ZONE4", "a-ZONE4", true),
            ("*-ZONE4", "a-ZONE42", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*a", "aba", true),
            ("a*b*a", "ab", false),
            ("*", "anything", true),
            ("a.*", "abc", false),
        ] {
            assert_eq!(matches(pattern, id), expected, "{pattern} {id}");
        }
    }

    proptest! {
        #[test]
        fn a_match_agrees_with_trying_every_way(pattern in "[ab*]{1,8}", id in "[ab]{0,10}") {
            prop_assert_eq!(matches(&pattern, &id), oracle(pattern.as_bytes(), id.as_bytes()));
        }
    }

    #[test]
    fn a_hostile_pattern_takes_linear_time() {
        let (pattern, id) = ("a*".repeat(64), "a".repeat(127) + "b");
        let before = std::time::Instant::now();
        for _ in 0..1_000 {
            assert!(matches(&pattern, &id) && !matches(&pattern[..127], &id[..63]));
        }
        assert!(before.elapsed().as_secs() < 60, "trying every way would never end");
    }

    #[test]
    fn a_pattern_has_the_characters_of_device_ids() {
        for bad in ["", "a ", " *", "a\0", "..", "\u{202E}*", &"x".repeat(129)] {
            bad.parse::<DevicePattern>().expect_err(bad);
        }
        assert!(matches("Küche *", "Küche 1") && !matches("a?", "ab") && !matches("[ab]", "a"));
    }

    #[test]
    fn a_star_in_the_one_id_is_a_character() {
        for id in ["*", "a*", "a*b"] {
            let (one, any): (_, DevicePattern) = (DevicePattern::one_id(id), id.parse().unwrap());
            assert!(one.matches(id) && any.matches(id) && any.matches(&id.replace('*', "xy")), "{id}");
            assert!(!one.matches(&id.replace('*', "xy")) && !one.matches("") && one.is_one_id());
            assert_eq!((one.start(), any.is_one_id()), (id, false));
        }
    }

    #[test]
    fn the_start_is_the_common_prefix_of_all_matches() {
        for (pattern, start, is_one) in
            [("LIGHT-*", "LIGHT-", false), ("a*b*", "a", false), ("*", "", false), ("x", "x", true)]
        {
            let pattern: DevicePattern = pattern.parse().unwrap();
            assert_eq!((pattern.start(), pattern.is_one_id()), (start, is_one));
        }
    }
}
