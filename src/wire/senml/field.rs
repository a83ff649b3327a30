//! The supported fields and their labels (RFC 8428, section 4.3 and table 4).

use std::fmt;

use crate::wire::{Code, Rejection, problem::rejection};

/// A field of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Version,
    BaseName,
    BaseTime,
    BaseUnit,
    BaseValue,
    BaseSum,
    Name,
    Unit,
    Value,
    StringValue,
    BooleanValue,
    Sum,
    Time,
    DataValue,
}

/// Each field with its label in JSON and in CBOR, in the order of the enum.
///
/// The labels of base fields are negative.
const LABELS: [(Field, &str, i64); Field::COUNT] = [
    (Field::Version, "bver", -1),
    (Field::BaseName, "bn", -2),
    (Field::BaseTime, "bt", -3),
    (Field::BaseUnit, "bu", -4),
    (Field::BaseValue, "bv", -5),
    (Field::BaseSum, "bs", -6),
    (Field::Name, "n", 0),
    (Field::Unit, "u", 1),
    (Field::Value, "v", 2),
    (Field::StringValue, "vs", 3),
    (Field::BooleanValue, "vb", 4),
    (Field::Sum, "s", 5),
    (Field::Time, "t", 6),
    (Field::DataValue, "vd", 8),
];

impl Field {
    pub(super) const COUNT: usize = 14;

    pub(super) fn all() -> impl Iterator<Item = Self> {
        LABELS.iter().map(|entry| entry.0)
    }

    pub(super) fn of_text(label: &str) -> Option<Self> {
        LABELS.iter().find(|entry| entry.1 == label).map(|entry| entry.0)
    }

    pub(super) fn of_number(label: i64) -> Option<Self> {
        LABELS.iter().find(|entry| entry.2 == label).map(|entry| entry.0)
    }

    pub(super) const fn label(self) -> &'static str {
        LABELS[self as usize].1
    }

    pub(super) const fn is_base(self) -> bool {
        LABELS[self as usize].2 < 0
    }

    /// Whether the field is a value of a record.
    ///
    /// Such a field may be null, which is no value: a sensor has failed.
    pub(super) const fn is_value(self) -> bool {
        matches!(self, Self::Value | Self::StringValue | Self::BooleanValue | Self::DataValue | Self::Sum)
    }

    /// The rejection of a record in which this field is not `expected`.
    pub(super) fn rejection(self, expected: &str, found: &impl fmt::Display) -> Rejection {
        let code = match self {
            Self::BaseName | Self::Name => Code::InvalidDeviceId,
            Self::BaseTime | Self::Time => Code::InvalidTimestamp,
            Self::BaseUnit | Self::Unit => Code::InvalidMetadata,
            _ => Code::InvalidValue,
        };
        rejection(code, format!("\"{}\" must be {expected}, found {found}", self.label()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_is_found_by_both_labels() {
        for (place, (field, text, number)) in LABELS.into_iter().enumerate() {
            assert_eq!(field as usize, place);
            assert_eq!((Field::of_text(text), Field::of_number(number)), (Some(field), Some(field)));
            assert_eq!((field.label(), field.is_base()), (text, text.starts_with('b')));
        }
        assert_eq!((Field::of_text("ut"), Field::of_number(7)), (None, None));
    }
}
