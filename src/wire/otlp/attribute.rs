//! Attributes: keys, and values as texts.

use std::borrow::Cow;

use super::super::protobuf::{Fields, Result};

/// An attribute of a resource or a data point.
#[derive(Debug)]
pub(super) struct Attribute<'b> {
    pub(super) key: &'b str,
    pub(super) value: AttributeValue<'b>,
}

/// The value of an attribute.
#[derive(Debug)]
pub(super) enum AttributeValue<'b> {
    /// A text, a number or a boolean, as a text that is not empty.
    Text(Cow<'b, str>),
    /// No value, or an empty text.
    Empty,
    /// An array, a list of attributes, or bytes.
    Other,
}

impl<'b> Attribute<'b> {
    /// Reads a `KeyValue`.
    pub(super) fn read(mut fields: Fields<'b>) -> Result<Self> {
        let mut attribute = Self { key: "", value: AttributeValue::Empty };
        while let Some(field) = fields.next()? {
            match field.number {
                1 => attribute.key = field.text()?,
                2 => attribute.value.read(field.message()?)?,
                _ => {}
            }
        }
        Ok(attribute)
    }
}

impl<'b> AttributeValue<'b> {
    /// Reads an `AnyValue`. Its last field counts.
    fn read(&mut self, mut fields: Fields<'b>) -> Result<()> {
        while let Some(field) = fields.next()? {
            *self = match field.number {
                1 => match field.text()? {
                    "" => Self::Empty,
                    text => Self::Text(Cow::Borrowed(text)),
                },
                2 => Self::Text(Cow::Borrowed(if field.varint()? == 0 { "false" } else { "true" })),
                3 => Self::Text(Cow::Owned(field.varint()?.cast_signed().to_string())),
                4 => Self::Text(Cow::Owned(field.double()?.to_string())),
                _ => Self::Other,
            };
        }
        Ok(())
    }
}
