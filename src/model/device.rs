//! The rules for device IDs.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The longest device ID, in bytes.
pub const DEVICE_ID_MAX_BYTES: usize = 128;

/// A string is not a device ID.
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
    /// The ID has a byte outside `[A-Za-z0-9._:/-]`, at this byte offset.
    #[error("a device id is made of A-Z a-z 0-9 . _ : / -, character {} of this one is something else", .0 + 1)]
    BadByte(usize),
}

/// Checks that `id` is a device ID: 1 to 128 bytes of `[A-Za-z0-9._:/-]`, neither `.` nor `..`.
///
/// # Errors
/// The part of the rule that `id` breaks.
pub fn check_device_id(id: &str) -> Result<(), DeviceIdError> {
    if matches!(id, "." | "..") {
        return Err(DeviceIdError::Dots);
    }
    check_device_prefix(id)
}

/// Checks that device IDs may begin with `id`, or be `id`: 1 to 128 bytes of `[A-Za-z0-9._:/-]`.
///
/// # Errors
/// The part of the rule that `id` breaks.
pub fn check_device_prefix(id: &str) -> Result<(), DeviceIdError> {
    if id.is_empty() {
        return Err(DeviceIdError::Empty);
    }
    if id.len() > DEVICE_ID_MAX_BYTES {
        return Err(DeviceIdError::TooLong(id.len()));
    }
    match id.bytes().position(|byte| !is_device_id_byte(byte)) {
        Some(at) => Err(DeviceIdError::BadByte(at)),
        None => Ok(()),
    }
}

/// The bytes of device IDs. A table is faster than comparisons, and each ID is checked.
static IS_DEVICE_ID_BYTE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        let ascii = byte as u8;
        table[byte] = ascii.is_ascii_alphanumeric() || matches!(ascii, b'.' | b'_' | b':' | b'/' | b'-');
        byte += 1;
    }
    table
};

pub(super) fn is_device_id_byte(byte: u8) -> bool {
    IS_DEVICE_ID_BYTE[usize::from(byte)]
}

/// Case handling of device IDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceIdCase {
    /// The case is significant: `Pump-1` and `pump-1` are two devices.
    #[default]
    Preserve,
    /// Capitals become small letters: `Pump-1` is `pump-1`.
    Lower,
}

impl DeviceIdCase {
    /// The ID with the case of a stored ID. It need not be a valid ID.
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
    use super::*;

    #[test]
    fn an_id_has_one_to_128_bytes_of_the_alphabet() {
        assert_eq!(check_device_id("LIGHT-FL02-ZONE4"), Ok(()));
        assert_eq!(check_device_id("acme/site.1:pump_7"), Ok(()));
        assert_eq!(check_device_id(&"x".repeat(128)), Ok(()));
        assert_eq!(check_device_id(""), Err(DeviceIdError::Empty));
        assert_eq!(check_device_id(&"x".repeat(129)), Err(DeviceIdError::TooLong(129)));
        assert_eq!(check_device_id("a b"), Err(DeviceIdError::BadByte(1)));
        assert_eq!(check_device_id("pümp"), Err(DeviceIdError::BadByte(1)));
        assert_eq!(check_device_id("a\0"), Err(DeviceIdError::BadByte(1)));
    }

    #[test]
    fn an_id_may_begin_with_dots_and_is_not_made_of_one_or_two() {
        for id in [".", ".."] {
            assert_eq!((check_device_id(id), check_device_prefix(id)), (Err(DeviceIdError::Dots), Ok(())));
        }
        for id in ["...", ".a", "a.", "..a", "./.", "../a"] {
            assert_eq!(check_device_id(id), Ok(()), "{id}");
        }
        assert_eq!(check_device_prefix(""), Err(DeviceIdError::Empty));
    }

    #[test]
    fn lower_turns_ascii_capitals_into_small_letters() {
        for (id, lower) in [("Pump-1", "pump-1"), ("pump-1", "pump-1"), ("", ""), ("ÄA", "Äa")] {
            assert_eq!(DeviceIdCase::Lower.apply(id), lower);
            assert_eq!(DeviceIdCase::Preserve.apply(id), id);
        }
    }
}
