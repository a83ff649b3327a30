//! Values with a unit: sizes such as `64MiB` and periods such as `1h30m`.

mod bytes;
mod period;

pub use bytes::Bytes;
pub use period::Period;

/// A text is not a size or a period. The error describes the valid forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct UnitError(&'static str);

/// Splits `"1h30m"` into the number 1, its unit `"h"`, and the rest `"30m"`.
///
/// The unit and the rest may be empty. `None`: the text does not begin with a number that fits into `u64`.
fn number_and_unit(text: &str) -> Option<(u64, &str, &str)> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit_and_rest) = text.split_at(digits_end);
    let unit_end = unit_and_rest.find(|c: char| c.is_ascii_digit()).unwrap_or(unit_and_rest.len());
    let (unit, rest) = unit_and_rest.split_at(unit_end);
    Some((digits.parse().ok()?, unit, rest))
}
