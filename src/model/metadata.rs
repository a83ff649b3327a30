//! The rules for a device's metadata. Every store accepts metadata that obeys them, and returns it unchanged.
//!
//! Metadata is the text of a JSON object. SQLite stores the text, MongoDB a sub-document, which has integers
//! of 64 bits, floats of 64 bits, and field names without `.`, `$` and NUL. The rules allow what both can
//! store. `wire` checks them key by key and number by number while it parses, so that no second pass is
//! needed. The length of the text is a setting, not a rule.

use super::metric::is_stored_escape;

/// The most levels of nested objects and arrays in metadata, the outermost included.
pub const METADATA_MAX_DEPTH: usize = 8;

/// Why a JSON object is not valid metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    /// A key has no characters.
    #[error("a key of metadata must not be empty")]
    EmptyKey,
    /// A key has a NUL.
    #[error("a key of metadata has no NUL")]
    NulInKey,
    /// A key has U+FF0E or U+FF04, which stand for `.` and `$` in stored documents.
    #[error("a key of metadata has no U+FF0E or U+FF04: stored documents use them for '.' and '$'")]
    EscapeInKey,
    /// A key of the outermost object is `deviceId`, which stored documents have beside the metadata.
    #[error("\"deviceId\" is the device and cannot be a key of metadata")]
    ReservedKey,
    /// An integer does not fit into 64 bits.
    #[error("a whole number in metadata lies between -2^63 and 2^63 - 1")]
    LargeInteger,
    /// A number with a fraction or an exponent does not fit into a float.
    #[error("a number in metadata is beyond what a 64-bit float holds")]
    LargeNumber,
    /// The metadata has more than [`METADATA_MAX_DEPTH`] levels.
    #[error("metadata has at most {METADATA_MAX_DEPTH} levels of objects and arrays")]
    TooDeep,
}

/// Checks a key of an object at this `depth`.
///
/// Metadata itself is at depth 1, and an object in it at depth 2. Depth 0 is an object with a member for each
/// key of metadata, such as `{"floor": {"value": 2}}`.
///
/// # Errors
/// The part of the rule that `key` breaks.
pub fn check_metadata_key(key: &str, depth: usize) -> Result<(), MetadataError> {
    if key.is_empty() {
        return Err(MetadataError::EmptyKey);
    }
    if depth <= 1 && key == "deviceId" {
        return Err(MetadataError::ReservedKey);
    }
    if key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(()); // the common case, decided without decoding
    }
    key.chars().try_for_each(|character| match character {
        '\0' => Err(MetadataError::NulInKey),
        escape if is_stored_escape(escape) => Err(MetadataError::EscapeInKey),
        _ => Ok(()),
    })
}

/// Checks a JSON number, given as its text: an integer of 64 bits, or a float of 64 bits.
///
/// # Errors
/// When a store cannot keep the number.
pub fn check_metadata_number(number: &str) -> Result<(), MetadataError> {
    if number.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')) {
        let is_finite = number.parse().is_ok_and(f64::is_finite);
        return if is_finite { Ok(()) } else { Err(MetadataError::LargeNumber) };
    }
    number.parse::<i64>().map(drop).map_err(|_| MetadataError::LargeInteger)
}

/// Checks how many levels of objects and arrays are nested: 2 for `{"a": {}}`.
///
/// # Errors
/// When `depth` is more than [`METADATA_MAX_DEPTH`].
pub const fn check_metadata_depth(depth: usize) -> Result<(), MetadataError> {
    if depth > METADATA_MAX_DEPTH { Err(MetadataError::TooDeep) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_that_every_store_returns_unchanged() {
        for good in ["floor", "a.b", "$load", "Zone 4", "ä", "0", "_id", "ts", "a\n"] {
            assert_eq!(check_metadata_key(good, 1), Ok(()), "{good}");
        }
        assert_eq!(check_metadata_key("", 2), Err(MetadataError::EmptyKey));
        assert_eq!(check_metadata_key("a\0", 2), Err(MetadataError::NulInKey));
        assert_eq!(check_metadata_key("a\u{FF0E}b", 2), Err(MetadataError::EscapeInKey));
        assert_eq!(check_metadata_key("\u{FF04}", 2), Err(MetadataError::EscapeInKey));
        assert_eq!(check_metadata_key("deviceId", 1), Err(MetadataError::ReservedKey));
        assert_eq!(check_metadata_key("deviceId", 0), Err(MetadataError::ReservedKey));
        assert_eq!(check_metadata_key("deviceId", 2), Ok(()));
    }

    #[test]
    fn a_number_has_64_bits() {
        for good in ["0", "-0", "9223372036854775807", "-9223372036854775808", "1e308", "-1.7e308", "1e-400", "0.1"] {
            assert_eq!(check_metadata_number(good), Ok(()), "{good}");
        }
        for large in ["9223372036854775808", "-9223372036854775809", &"9".repeat(400)] {
            assert_eq!(check_metadata_number(large), Err(MetadataError::LargeInteger), "{large}");
        }
        for large in ["1e309", "-1e400", "1E+9999999999999999999", &format!("{}.0", "9".repeat(400))] {
            assert_eq!(check_metadata_number(large), Err(MetadataError::LargeNumber), "{large}");
        }
    }
}
