//! Values with a unit: sizes and periods.

mod bytes;
mod period;

pub use bytes::Bytes;
pub use period::Period;

/// A text is not a size or a period. The error describes the valid forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct UnitError(&'static str);

/// Splits a text into a whole number, its unit (which may be empty), and the rest from the next digit on.
fn number_and_unit(text: &str) -> Option<(u64, &str, &str)> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit_and_rest) = text.split_at(digits_end);
    let unit_end = unit_and_rest.find(|c: char| c.is_ascii_digit()).unwrap_or(unit_and_rest.len());
    let (unit, rest) = unit_and_rest.split_at(unit_end);
    Some((digits.parse().ok()?, unit, rest))
}
