//! Patterns of device IDs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::device::is_device_id_byte;
use super::{DEVICE_ID_MAX_BYTES, DeviceIdCase};

/// A device ID in which each `*` stands for any characters, or none: `LIGHT-*`, `*-ZONE4`, `PUMP-7`.
///
/// A match takes time in proportion to the ID, whatever the pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePattern(String);

/// A string is not a pattern of device IDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to {DEVICE_ID_MAX_BYTES} bytes of A-Z a-z 0-9 . _ : / - and *, such as \"LIGHT-*\"")]
pub struct DevicePatternError;

impl DevicePattern {
    /// Whether `id` matches the pattern.
    #[must_use]
    pub fn matches(&self, id: &str) -> bool {
        let Some((start, rest)) = self.0.split_once('*') else { return self.0 == id };
        let (between, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        let Some(middle) = id.strip_prefix(start).and_then(|id| id.strip_suffix(end)) else { return false };
        // The first occurrence of a piece leaves the most characters for later pieces. So no piece is tried
        // twice.
        let mut pieces = between.split('*');
        pieces.try_fold(middle, |left, piece| left.find(piece).map(|at| &left[at + piece.len()..])).is_some()
    }

    /// The prefix of every ID that matches.
    #[must_use]
    pub fn start(&self) -> &str {
        self.0.split('*').next().unwrap_or_default()
    }

    /// Whether only one ID matches.
    #[must_use]
    pub fn is_one_id(&self) -> bool {
        !self.0.contains('*')
    }

    /// Whether its start decides: every ID that begins with it matches, or only one ID does.
    #[must_use]
    pub fn is_by_start(&self) -> bool {
        !self.0.trim_end_matches('*').contains('*')
    }

    /// The pattern for stored IDs.
    #[must_use]
    pub fn in_case(&self, case: DeviceIdCase) -> Self {
        Self(case.apply(&self.0).into_owned())
    }
}

impl FromStr for DevicePattern {
    type Err = DevicePatternError;

    fn from_str(text: &str) -> Result<Self, DevicePatternError> {
        let is_good = (1..=DEVICE_ID_MAX_BYTES).contains(&text.len())
            && text.bytes().all(|byte| byte == b'*' || is_device_id_byte(byte));
        if is_good { Ok(Self(text.to_owned())) } else { Err(DevicePatternError) }
    }
}

impl fmt::Display for DevicePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for DevicePattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
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
    fn the_start_decides_if_a_star_is_at_the_end_only() {
        for (pattern, expected) in [("LIGHT-*", true), ("PUMP", true), ("*", true), ("a**", true), ("*-Z", false)] {
            assert_eq!(pattern.parse::<DevicePattern>().unwrap().is_by_start(), expected, "{pattern}");
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
    fn other_characters_are_refused() {
        for bad in ["", "a b", "pümp*", "a?", "[ab]", "a\0", "(a+)+", &"x".repeat(129)] {
            assert_eq!(bad.parse::<DevicePattern>(), Err(DevicePatternError), "{bad}");
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
