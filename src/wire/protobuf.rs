//! A pull reader and a writer of Protocol Buffers, for the messages of remote write and OTLP.
//!
//! The reader yields the fields of one message in their order and borrows from the body, so a message is
//! never built as a tree: memory does not depend on the number of messages in it. It knows no schema. A
//! field whose wire type is not that of its schema makes the message invalid, as do groups, which neither
//! format has.

use crate::common::{leb128, work};

/// Why bytes are not a message of the expected kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// The message ends within a field.
    #[error("the protobuf message ends within a field")]
    Truncated,
    /// A variable-length integer has more than 64 bits.
    #[error("the protobuf message has an integer of more than 64 bits")]
    LargeVarint,
    /// The key of a field is not valid.
    #[error("the protobuf message has a field with the invalid key {0}")]
    Key(u64),
    /// A field does not have the type that its number stands for.
    #[error("field {0} of a protobuf message has an unexpected type")]
    Type(u32),
    /// A text is not UTF-8.
    #[error("field {0} of a protobuf message is not UTF-8")]
    Utf8(u32),
}

pub(super) type Result<T> = std::result::Result<T, ProtobufError>;

/// A field of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field<'b> {
    pub(super) number: u32,
    value: Value<'b>,
}

#[derive(Debug, Clone, Copy)]
enum Value<'b> {
    Varint(u64),
    Fixed64(u64),
    Fixed32,
    Bytes(&'b [u8]),
}

/// The fields of a message that are not read yet.
#[derive(Debug, Clone)]
pub(super) struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    pub(super) const fn of(message: &'b [u8]) -> Self {
        Self(message)
    }

    /// The next field; `None` at the end of the message.
    pub(super) fn next(&mut self) -> Result<Option<Field<'b>>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).ok().filter(|number| (1..1 << 29).contains(number));
        let number = number.ok_or(ProtobufError::Key(key))?;
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let bytes = usize::try_from(self.varint()?).map_err(|_| ProtobufError::Truncated)?;
                Value::Bytes(self.take(bytes)?)
            }
            5 => {
                self.array::<4>()?;
                Value::Fixed32
            }
            _ => return Err(ProtobufError::Key(key)),
        };
        Ok(Some(Field { number, value }))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut number = 0u64;
        for (at, &byte) in self.0.iter().take(10).enumerate() {
            number |= u64::from(byte & 0x7F) << (7 * at);
            if byte < 0x80 {
                if at == 9 && byte > 1 {
                    break; // the tenth byte has the last of 64 bits
                }
                work::count(at + 1);
                self.0 = &self.0[at + 1..];
                return Ok(number);
            }
        }
        Err(if self.0.len() < 10 { ProtobufError::Truncated } else { ProtobufError::LargeVarint })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk().ok_or(ProtobufError::Truncated)?;
        work::count(N);
        self.0 = rest;
        Ok(*array)
    }

    fn take(&mut self, bytes: usize) -> Result<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(ProtobufError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }
}

impl<'b> Field<'b> {
    const fn wrong_type(self) -> ProtobufError {
        ProtobufError::Type(self.number)
    }

    /// The value of a field of bytes, of a message, or of packed numbers.
    pub(super) const fn bytes(self) -> Result<&'b [u8]> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(self.wrong_type()),
        }
    }

    /// The fields of a field that is a message.
    pub(super) fn message(self) -> Result<Fields<'b>> {
        self.bytes().map(Fields::of)
    }

    /// The value of a `string`.
    pub(super) fn text(self) -> Result<&'b str> {
        let bytes = self.bytes()?;
        work::count(bytes.len());
        std::str::from_utf8(bytes).map_err(|_| ProtobufError::Utf8(self.number))
    }

    /// The value of an `int64`, `uint32`, `bool` or enumeration.
    pub(super) const fn varint(self) -> Result<u64> {
        match self.value {
            Value::Varint(number) => Ok(number),
            _ => Err(self.wrong_type()),
        }
    }

    /// The value of a `fixed64` or `sfixed64`.
    pub(super) const fn fixed64(self) -> Result<u64> {
        match self.value {
            Value::Fixed64(bits) => Ok(bits),
            _ => Err(self.wrong_type()),
        }
    }

    /// The value of a `double`.
    pub(super) fn double(self) -> Result<f64> {
        self.fixed64().map(f64::from_bits)
    }

    /// The elements of a repeated integer, which may be packed.
    pub(super) fn varints(self) -> Result<Varints<'b>> {
        match self.value {
            Value::Varint(number) => Ok(Varints::One(Some(number))),
            Value::Bytes(bytes) => Ok(Varints::Packed(Fields::of(bytes))),
            _ => Err(self.wrong_type()),
        }
    }
}

/// The elements of one field of a repeated integer.
#[derive(Debug)]
pub(super) enum Varints<'b> {
    One(Option<u64>),
    Packed(Fields<'b>),
}

impl Varints<'_> {
    /// The next element; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<u64>> {
        match self {
            Self::One(number) => Ok(number.take()),
            Self::Packed(elements) if elements.0.is_empty() => Ok(None),
            Self::Packed(elements) => elements.varint().map(Some),
        }
    }
}

/// Writes a message.
#[derive(Debug, Default)]
pub(crate) struct Writer(Vec<u8>);

/// The place of the length of a message that is being written.
#[derive(Debug)]
#[must_use = "end() writes the length"]
pub(crate) struct Open(usize);

/// The number of bytes for the length of a message.
///
/// The length is a padded variable-length integer, because it is written last.
const LENGTH_BYTES: usize = 5;

impl Writer {
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn varint(&mut self, number: u32, value: u64) {
        self.key(number, 0);
        leb128::put(&mut self.0, value);
    }

    pub(crate) fn fixed64(&mut self, number: u32, bits: u64) {
        self.key(number, 1);
        self.0.extend_from_slice(&bits.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.key(number, 2);
        leb128::put(&mut self.0, bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// Starts a field that is a message. Its fields follow, then [`Writer::end`].
    pub(crate) fn message(&mut self, number: u32) -> Open {
        self.key(number, 2);
        let at = self.0.len();
        self.0.extend_from_slice(&[0; LENGTH_BYTES]);
        Open(at)
    }

    /// Ends the message that was started last.
    pub(crate) fn end(&mut self, Open(at): Open) {
        let length = self.0.len() - at - LENGTH_BYTES;
        for (place, byte) in self.0[at..at + LENGTH_BYTES].iter_mut().enumerate() {
            let more = if place + 1 < LENGTH_BYTES { 0x80 } else { 0 };
            *byte = (length >> (7 * place)) as u8 & 0x7F | more;
        }
    }

    fn key(&mut self, number: u32, wire_type: u8) {
        leb128::put(&mut self.0, u64::from(number) << 3 | u64::from(wire_type));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(message: &[u8]) -> Result<Vec<u32>> {
        let mut fields = Fields::of(message);
        let mut numbers = Vec::new();
        while let Some(field) = fields.next()? {
            numbers.push(field.number);
        }
        Ok(numbers)
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut writer = Writer::default();
        writer.varint(1, u64::MAX);
        writer.fixed64(2, 1.5f64.to_bits());
        let open = writer.message(300);
        writer.bytes(3, "ä".as_bytes());
        writer.end(open);
        let message = writer.into_bytes();
        let mut fields = Fields::of(&message);
        assert_eq!(fields.next().unwrap().unwrap().varint(), Ok(u64::MAX));
        assert_eq!(fields.next().unwrap().unwrap().double(), Ok(1.5));
        let inner = fields.next().unwrap().unwrap();
        assert_eq!(inner.number, 300);
        assert_eq!(inner.message().unwrap().next().unwrap().unwrap().text(), Ok("ä"));
        assert!(fields.next().unwrap().is_none());
    }

    #[test]
    fn malformed_messages_are_refused() {
        assert_eq!(numbers(&[]), Ok(vec![]));
        assert_eq!(numbers(&[0x08, 0x01, 0x25, 1, 2, 3, 4]), Ok(vec![1, 4]));
        for (message, error) in [
            (&[0x08][..], ProtobufError::Truncated),
            (&[0x08, 0x80], ProtobufError::Truncated),
            (&[0x09, 1, 2], ProtobufError::Truncated),
            (&[0x0A, 5, 1], ProtobufError::Truncated),
            (&[0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1], ProtobufError::Truncated),
            (&[0x08, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2], ProtobufError::LargeVarint),
            (&[0x00, 1], ProtobufError::Key(0)),
            (&[0x0B], ProtobufError::Key(11)),
            (&[0x0F], ProtobufError::Key(15)),
            (&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01, 1], ProtobufError::Key((1 << 36) - 1)),
        ] {
            assert_eq!(numbers(message), Err(error), "{message:x?}");
        }
        let not_text = Fields::of(&[0x0A, 1, 0xFF]).next().unwrap().unwrap();
        assert_eq!((not_text.text(), not_text.varint()), (Err(ProtobufError::Utf8(1)), Err(ProtobufError::Type(1))));
    }

    #[test]
    fn repeated_integers_are_read_packed_or_not() {
        let mut fields = Fields::of(&[0x08, 7, 0x0A, 3, 1, 0x80, 1]);
        let mut elements = Vec::new();
        while let Some(field) = fields.next().unwrap() {
            let mut varints = field.varints().unwrap();
            while let Some(element) = varints.next().unwrap() {
                elements.push(element);
            }
        }
        assert_eq!(elements, [7, 1, 128]);
    }
}
