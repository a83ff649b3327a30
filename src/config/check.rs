//! The checks that sections share.

use std::fmt::Display;

use super::ConfigError;

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

/// Checks that `value` is not below that of another key.
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
