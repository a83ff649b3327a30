//! The rules for device IDs.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The longest device ID, in bytes.
pub const DEVICE_ID_MAX_BYTES: usize = 128;

/// Why a text is not a device ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DeviceIdError {
    /// The ID has no characters.
    #[error("a device id must not be empty")]
    Empty,
    /// The ID is longer than [`DEVICE_ID_MAX_BYTES`].
    #[error("a device id has at most {DEVICE_ID_MAX_BYTES} bytes, this one has {0}")]
    TooLong(usize),
    /// The ID is `.` or `..`.
    #[error("a device id must not be \".\" or \"..\": clients remove them from the path of a URL")]
    Dots,
    /// The ID begins or ends with white space.
    #[error("a device id must not begin or end with a space: remove it")]
    Space,
    /// The ID has this character, which no ID may have.
    #[error("a device id must not contain the control character U+{:04X}", u32::from(*.0))]
    Control(char),
}

/// Checks that `id` is a device ID.
///
/// It has 1 to [`DEVICE_ID_MAX_BYTES`] bytes of UTF-8. It has no control characters, neither begins nor ends
/// with white space, and is neither `.` nor `..`. IDs are compared by their bytes; nothing normalises them.
///
/// # Errors
/// The part of the rule that `id` breaks.
pub fn check_device_id(id: &str) -> Result<(), DeviceIdError> {
    check(id, true)
}

/// Checks that `id` is a device ID, or the beginning of device IDs.
///
/// # Errors
/// The part of the rule that `id` breaks.
pub fn check_device_prefix(id: &str) -> Result<(), DeviceIdError> {
    check(id, false)
}

#[inline]
fn check(id: &str, is_whole: bool) -> Result<(), DeviceIdError> {
    if id.is_empty() {
        return Err(DeviceIdError::Empty);
    }
    if id.len() > DEVICE_ID_MAX_BYTES {
        return Err(DeviceIdError::TooLong(id.len()));
    }
    // Visible ASCII needs no decoding. This loop has no branch for each byte, so the compiler compares many
    // bytes at once.
    if id.bytes().fold(true, |is_visible, byte| is_visible & matches!(byte, b'!'..=b'~')) {
        return if is_whole && matches!(id, "." | "..") { Err(DeviceIdError::Dots) } else { Ok(()) };
    }
    if id.starts_with(char::is_whitespace) || (is_whole && id.ends_with(char::is_whitespace)) {
        return Err(DeviceIdError::Space);
    }
    id.chars().find(|&character| is_control(character)).map_or(Ok(()), |found| Err(DeviceIdError::Control(found)))
}

/// Whether device IDs must not have the character.
///
/// These are the control characters of Unicode (Cc), the line and paragraph separators, the characters that
/// change the direction of others, and the byte order mark. With them, a line of a log or a table would not
/// show the ID as it is.
fn is_control(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}' | '\u{FEFF}')
}

/// The first text after all texts that begin with `prefix`, in the order of bytes: `b` for `a`. `None` if no
/// text comes after them.
#[must_use]
pub fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        // The bytes of UTF-8 sort as its characters do.
        if let Some(next) = (last..=char::MAX).nth(1) {
            end.push(next);
            return Some(end);
        }
    }
    None
}

/// Case handling of device IDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceIdCase {
    /// The case is significant: `Pump-1` and `pump-1` are two devices.
    #[default]
    Preserve,
    /// A to Z become a to z: `Pump-1` is `pump-1`. Other capitals stay, so that an ID keeps its length.
    Lower,
}

impl DeviceIdCase {
    /// Converts `id` to the case of stored IDs. `id` need not be valid.
    #[must_use]
    pub fn apply(self, id: &str) -> Cow<'_, str> {
        match self {
            Self::Lower if id.bytes().any(|byte| byte.is_ascii_uppercase()) => Cow::Owned(id.to_ascii_lowercase()),
            Self::Lower | Self::Preserve => Cow::Borrowed(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_has_one_to_128_bytes_of_utf8() {
        for id in
            ["LIGHT-FL02-ZONE4", "Line 3 / Press", "Küche Fenster", "a\"b\\c", "%2F", "*", "\u{10FFFF}", "e\u{301}"]
        {
            assert_eq!(check_device_id(id), Ok(()), "{id}");
        }
        for longest in ["x".repeat(128), "ä".repeat(64), "\u{1F321}".repeat(32)] {
            assert_eq!(check_device_id(&longest), Ok(()));
            assert_eq!(check_device_id(&(longest + "x")), Err(DeviceIdError::TooLong(129)));
        }
        assert_eq!(
            (check_device_id(""), check_device_prefix("")),
            (Err(DeviceIdError::Empty), Err(DeviceIdError::Empty))
        );
    }

    #[test]
    fn an_id_has_no_characters_that_end_a_line_or_reorder_others() {
        for bad in "\0\t\n\r\u{1B}\u{7F}\u{85}\u{2028}\u{2029}\u{202E}\u{2066}\u{FEFF}".chars() {
            let expected = Err(DeviceIdError::Control(bad));
            let id = format!("a{bad}b");
            assert_eq!((check_device_id(&id), check_device_prefix(&id)), (expected, expected), "{bad:?}");
        }
        // Marks of direction and joiners are parts of words and emoji.
        for good in ["\u{5D0}\u{200F}-1", "\u{1F468}\u{200D}\u{1F527}", "a\u{202F}b"] {
            assert_eq!(check_device_id(good), Ok(()), "{good:?}");
        }
        let told = DeviceIdError::Control('\u{7}').to_string();
        assert_eq!(told, "a device id must not contain the control character U+0007");
    }

    #[test]
    fn a_space_may_be_within_an_id_and_at_the_end_of_a_prefix() {
        for space in [" ", "\u{A0}", "\u{3000}"] {
            assert_eq!(check_device_id(&format!("a{space}b")), Ok(()), "{space:?}");
            assert_eq!(check_device_prefix(&format!("a{space}")), Ok(()), "{space:?}");
            assert_eq!(check_device_prefix(&format!("{space}a")), Err(DeviceIdError::Space), "{space:?}");
            for id in [format!("a{space}"), format!("{space}a"), space.to_owned()] {
                assert_eq!(check_device_id(&id), Err(DeviceIdError::Space), "{id:?}");
            }
        }
    }

    #[test]
    fn an_id_may_begin_with_dots_and_is_not_made_of_one_or_two() {
        for id in [".", ".."] {
            assert_eq!((check_device_id(id), check_device_prefix(id)), (Err(DeviceIdError::Dots), Ok(())));
        }
        for id in ["...", ".a", "a.", "..a", "./.", "../a"] {
            assert_eq!(check_device_id(id), Ok(()), "{id}");
        }
    }

    #[test]
    fn a_prefix_ends_before_the_next_character_of_unicode() {
        for (prefix, end) in [
            ("", None),
            ("a", Some("b")),
            ("a\u{7F}", Some("a\u{80}")),
            ("ä", Some("å")),
            ("a\u{D7FF}", Some("a\u{E000}")),
            ("a\u{10FFFF}\u{10FFFF}", Some("b")),
            ("\u{10FFFF}", None),
        ] {
            assert_eq!(end_of_prefix(prefix).as_deref(), end, "{prefix:?}");
        }
    }

    proptest! {
        #[test]
        fn a_text_is_before_the_end_of_a_prefix_if_it_begins_with_it_or_is_less(
            prefix in "[ab\u{7F}\u{80}\u{7FF}\u{D7FF}\u{E000}\u{10FFFF}]{0,3}",
            text in "[ab\u{7F}\u{80}\u{7FF}\u{D7FF}\u{E000}\u{10FFFF}]{0,4}",
        ) {
            let is_before = end_of_prefix(&prefix).is_none_or(|end| text < end);
            prop_assert_eq!(is_before, text.starts_with(&prefix) || text < prefix);
        }
    }

    #[test]
    fn lower_turns_ascii_capitals_into_small_letters() {
        for (id, lower) in [("Pump-1", "pump-1"), ("pump-1", "pump-1"), ("", ""), ("ÄA", "Äa")] {
            assert_eq!(DeviceIdCase::Lower.apply(id), lower);
            assert_eq!(DeviceIdCase::Preserve.apply(id), id);
        }
    }
}
