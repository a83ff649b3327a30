//! Values with a unit: sizes and periods.

mod bytes;
mod period;

pub use bytes::Bytes;
pub use period::Period;

/// Why a text is not a size or a period. Says what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct UnitError(&'static str);

/// Takes a whole number, the unit behind it (which may be empty), and what follows from the next digit on.
fn number_and_unit(text: &str) -> Option<(u64, &str, &str)> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit_and_rest) = text.split_at(digits_end);
    let unit_end = unit_and_rest.find(|c: char| c.is_ascii_digit()).unwrap_or(unit_and_rest.len());
    let (unit, rest) = unit_and_rest.split_at(unit_end);
    Some((digits.parse().ok()?, unit, rest))
}
