//! An encoder of protobuf messages for stretched bodies.

use super::{Case, Format};

/// A message that is being encoded.
#[derive(Clone, Default)]
pub(super) struct Message(pub(super) Vec<u8>);

impl Message {
    pub(super) fn varint(mut self, number: u8, value: u64) -> Self {
        self.0.push(number << 3);
        self.put(value);
        self
    }

    pub(super) fn fixed64(mut self, number: u8, value: u64) -> Self {
        self.0.push(number << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn bytes(mut self, number: u8, bytes: impl AsRef<[u8]>) -> Self {
        self.0.push(number << 3 | 2);
        self.put(bytes.as_ref().len() as u64);
        self.0.extend(bytes.as_ref());
        self
    }

    pub(super) fn message(self, number: u8, message: &Self) -> Self {
        self.bytes(number, &message.0)
    }

    /// Appends `part` with the numbers 0, 1, 2 and so on, until there are about this many bytes.
    pub(super) fn fill(mut self, bytes: usize, part: impl Fn(Self, usize) -> Self) -> Self {
        let mut number = 0;
        while self.0.len() < bytes {
            self = part(self, number);
            number += 1;
        }
        self
    }

    fn put(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

pub(super) fn message() -> Message {
    Message::default()
}

pub(super) fn case(format: Format, name: &'static str, body: impl Fn(usize) -> Message + 'static) -> Case {
    Case { name, format, body: Box::new(move |bytes| body(bytes).0) }
}

/// A body that is filled with messages of field `number`.
pub(super) fn filled(
    format: Format,
    name: &'static str,
    number: u8,
    part: impl Fn(usize) -> Message + 'static,
) -> Case {
    case(format, name, move |bytes| message().fill(bytes, |body, at| body.message(number, &part(at))))
}
