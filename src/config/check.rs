//! Checks of values that several sections use: ranges, names, device scopes.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::ConfigError;
use crate::model::{DevicePattern, check_device_prefix};

/// The longest `device_prefix`, in bytes: half of the longest stored ID.
const PREFIX_MAX_BYTES: usize = 64;

/// Whether a text can be the name of a token or the ID of a key.
///
/// It has 1 to `max_bytes` characters of `A-Z a-z 0-9 . _ -`.
pub(super) fn is_name(name: &[u8], max_bytes: usize) -> bool {
    let is_name_byte = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
    (1..=max_bytes).contains(&name.len()) && name.iter().all(is_name_byte)
}

/// Checks that `min <= value <= max`.
pub(super) fn within<T: PartialOrd + Display + Copy>(
    key: &'static str,
    value: T,
    min: T,
    max: T,
) -> Result<(), ConfigError> {
    if value < min || value > max {
        return Err(ConfigError::invalid(key, format!("is {value}, must be from {min} to {max}")));
    }
    Ok(())
}

/// Checks that `value` is at most `other`, the value of `other_key`.
pub(super) fn not_above<T: PartialOrd + Display + Copy>(
    key: &'static str,
    value: T,
    other_key: &'static str,
    other: T,
) -> Result<(), ConfigError> {
    if value > other {
        return Err(ConfigError::invalid(key, format!("is {value}, must be at most {other_key}, which is {other}")));
    }
    Ok(())
}

/// Checks that `value` is at least `other`, the value of `other_key`.
pub(super) fn not_below<T: PartialOrd + Display + Copy>(
    key: &'static str,
    value: T,
    other_key: &'static str,
    other: T,
) -> Result<(), ConfigError> {
    if value < other {
        return Err(ConfigError::invalid(key, format!("is {value}, must be at least {other_key}, which is {other}")));
    }
    Ok(())
}

/// Checks that the number of names is in `count`, and that no name is empty.
pub(super) fn names(key: &'static str, names: &[String], count: RangeInclusive<usize>) -> Result<(), ConfigError> {
    if !count.contains(&names.len()) {
        let (found, min, max) = (names.len(), count.start(), count.end());
        return Err(ConfigError::invalid(key, format!("is a list of {found}, must have {min} to {max} names")));
    }
    if names.iter().any(String::is_empty) {
        return Err(ConfigError::invalid(key, "is a list with an empty name"));
    }
    Ok(())
}

/// Checks the device patterns and the tenant prefix of a token, key or broker.
///
/// For errors, `keys` are the configuration keys of the patterns and of the prefix, and `whose` names the
/// token, key or broker.
pub(super) fn check_device_scope(
    keys: [&'static str; 2],
    devices: Option<&[DevicePattern]>,
    prefix: Option<&str>,
    whose: &str,
) -> Result<(), ConfigError> {
    let [devices_key, prefix_key] = keys;
    if devices.is_some_and(<[_]>::is_empty) {
        let problem = format!("is an empty list; for all devices leave it out ({whose})");
        return Err(ConfigError::invalid(devices_key, problem));
    }
    check_prefix(prefix).map_err(|problem| ConfigError::invalid(prefix_key, format!("{problem} ({whose})")))
}

/// Checks the length of a tenant prefix, and that a device ID can begin with it.
pub(super) fn check_prefix(prefix: Option<&str>) -> Result<(), String> {
    let Some(prefix) = prefix else { return Ok(()) };
    if prefix.len() > PREFIX_MAX_BYTES {
        return Err(format!("is {} bytes long, must have at most {PREFIX_MAX_BYTES}", prefix.len()));
    }
    if prefix.contains('*') {
        return Err("is a text with a *, which is no wildcard here: remove it".to_owned());
    }
    check_device_prefix(prefix).map_err(|error| format!("is no start of a device id: {error}"))
}
