//! Metric names: the rule, and a shared handle.

use std::sync::Arc;

/// The longest metric name, in bytes.
pub const METRIC_MAX_BYTES: usize = 128;

/// A metric name that passed [`check_metric_name`], cheap to clone.
pub type Metric = Arc<str>;

/// Why a string is not a metric name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MetricNameError {
    /// The name has no characters.
    #[error("a metric name must not be empty")]
    Empty,
    /// The name is longer than [`METRIC_MAX_BYTES`].
    #[error("a metric name has at most {METRIC_MAX_BYTES} bytes, this one has {0}")]
    TooLong(usize),
    /// The name holds a control character, at this byte offset.
    #[error("a metric name has no control characters, there is one at byte {0}")]
    Control(usize),
    /// The name is `ts`, which is the reading's time.
    #[error("\"ts\" is the time of a reading and cannot name a metric")]
    Reserved,
    /// The name holds U+FF0E or U+FF04, which stand for `.` and `$` in stored documents.
    #[error("a metric name has no U+FF0E or U+FF04: stored documents use them for '.' and '$'")]
    Escape,
}

/// Checks that `name` can name a metric: 1 to 128 bytes of UTF-8 without control characters, other than `ts`, and
/// without the two characters (U+FF0E, U+FF04) that stand for `.` and `$` in stored documents.
///
/// # Errors
/// Says which part of the rule `name` breaks.
pub fn check_metric_name(name: &str) -> Result<(), MetricNameError> {
    if name.is_empty() {
        return Err(MetricNameError::Empty);
    }
    if name.len() > METRIC_MAX_BYTES {
        return Err(MetricNameError::TooLong(name.len()));
    }
    if name == "ts" {
        return Err(MetricNameError::Reserved);
    }
    if name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(()); // the common case, decided without decoding
    }
    for (at, character) in name.char_indices() {
        if character.is_control() {
            return Err(MetricNameError::Control(at));
        }
        if matches!(character, '\u{FF0E}' | '\u{FF04}') {
            return Err(MetricNameError::Escape);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_printable_and_not_ts() {
        for good in ["temp", "value", "Temp °C", "a.b", "$load", "_x", "0"] {
            assert_eq!(check_metric_name(good), Ok(()), "{good}");
        }
        assert_eq!(check_metric_name(""), Err(MetricNameError::Empty));
        assert_eq!(check_metric_name("ts"), Err(MetricNameError::Reserved));
        assert_eq!(check_metric_name(&"m".repeat(129)), Err(MetricNameError::TooLong(129)));
        assert_eq!(check_metric_name("a\0"), Err(MetricNameError::Control(1)));
        assert_eq!(check_metric_name("a\u{85}"), Err(MetricNameError::Control(1)));
        assert_eq!(check_metric_name("a\u{FF0E}b"), Err(MetricNameError::Escape));
    }
}
