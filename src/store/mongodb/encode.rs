//! Writes BSON, append only, into one buffer.
//!
//! A flush encodes hundreds of thousands of readings into one command. An owned document for each would cost
//! more than the rest of the flush, so the encoder writes values into the bytes of the command. The length of
//! a document precedes its elements and is known only after them: the encoder fills it in when the document
//! ends. Closures write the documents, so that each document that begins also ends.
//!
//! Format: <https://bsonspec.org/spec.html>.

use bson::{Document, RawDocument, RawDocumentBuf};

const DOUBLE: u8 = 0x01;
const STRING: u8 = 0x02;
const DOCUMENT: u8 = 0x03;
const ARRAY: u8 = 0x04;
const BINARY: u8 = 0x05;
const BOOLEAN: u8 = 0x08;
const DATETIME: u8 = 0x09;
const NULL: u8 = 0x0A;
const INT32: u8 = 0x10;
const INT64: u8 = 0x12;

/// The key of an element: a name, an index of an array, or a path in pieces.
pub(super) trait Key {
    /// Appends the text of the key, which contains no NUL.
    fn write(self, bytes: &mut Vec<u8>);
}

impl Key for &str {
    fn write(self, bytes: &mut Vec<u8>) {
        debug_assert!(!self.as_bytes().contains(&0), "a NUL would end the key early");
        bytes.extend_from_slice(self.as_bytes());
    }
}

/// An index of an array. A flush has one for each reading, so its digits are not written by `format!`.
impl Key for usize {
    fn write(self, bytes: &mut Vec<u8>) {
        let (mut rest, mut digits, mut at) = (self, [0; usize::MAX.ilog10() as usize + 1], 0);
        while at == 0 || rest > 0 {
            digits[at] = b'0' + (rest % 10) as u8;
            (rest, at) = (rest / 10, at + 1);
        }
        bytes.extend(digits[..at].iter().rev());
    }
}

/// A path in pieces, which are written one after the other.
impl<const N: usize> Key for [&str; N] {
    fn write(self, bytes: &mut Vec<u8>) {
        for piece in self {
            piece.write(bytes);
        }
    }
}

/// A document that grows at its end.
pub(super) struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// Builds the document that `fill` writes.
    pub(super) fn build(fill: impl FnOnce(&mut Self)) -> RawDocumentBuf {
        let mut encoder = Self { bytes: Vec::with_capacity(1024) };
        encoder.body(fill);
        RawDocumentBuf::from_bytes(encoder.bytes).expect("begins with its length and ends with a zero")
    }

    /// The number of bytes that were written so far.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Removes everything after the first `len` bytes. These must end between two elements of the document
    /// that is being filled.
    pub(super) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    pub(super) fn document(&mut self, key: impl Key, fill: impl FnOnce(&mut Self)) {
        self.begin(DOCUMENT, key);
        self.body(fill);
    }

    /// Writes a document that is encoded already.
    pub(super) fn raw_document(&mut self, key: impl Key, document: &RawDocument) {
        self.begin(DOCUMENT, key);
        self.bytes.extend_from_slice(document.as_bytes());
    }

    /// Writes the elements of a document of the driver. This costs more than to write each element, so it
    /// suits statements that are seldom sent.
    pub(super) fn elements_of(&mut self, document: &Document) {
        let raw = RawDocumentBuf::try_from(document).expect("its keys have no NUL");
        let bytes = raw.as_bytes();
        self.bytes.extend_from_slice(&bytes[4..bytes.len() - 1]);
    }

    /// Writes an array. `fill` writes its elements with the keys 0, 1, 2...
    pub(super) fn array(&mut self, key: impl Key, fill: impl FnOnce(&mut Self)) {
        self.begin(ARRAY, key);
        self.body(fill);
    }

    pub(super) fn double(&mut self, key: impl Key, value: f64) {
        self.begin(DOUBLE, key);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn int32(&mut self, key: impl Key, value: i32) {
        self.begin(INT32, key);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn int64(&mut self, key: impl Key, value: i64) {
        self.begin(INT64, key);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes an instant in Unix milliseconds.
    pub(super) fn datetime(&mut self, key: impl Key, ms: i64) {
        self.begin(DATETIME, key);
        self.bytes.extend_from_slice(&ms.to_le_bytes());
    }

    pub(super) fn string(&mut self, key: impl Key, value: &str) {
        self.begin(STRING, key);
        self.bytes.extend_from_slice(&length(value.len() + 1));
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
    }

    pub(super) fn boolean(&mut self, key: impl Key, value: bool) {
        self.begin(BOOLEAN, key);
        self.bytes.push(u8::from(value));
    }

    /// Writes bytes of a subtype. `fill` appends them.
    pub(super) fn binary(&mut self, key: impl Key, subtype: u8, fill: impl FnOnce(&mut Vec<u8>)) {
        self.begin(BINARY, key);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0, 0, 0, subtype]);
        fill(&mut self.bytes);
        let length = length(self.bytes.len() - start - 5);
        self.bytes[start..start + 4].copy_from_slice(&length);
    }

    pub(super) fn null(&mut self, key: impl Key) {
        self.begin(NULL, key);
    }

    fn begin(&mut self, kind: u8, key: impl Key) {
        self.bytes.push(kind);
        key.write(&mut self.bytes);
        self.bytes.push(0);
    }

    fn body(&mut self, fill: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        fill(self);
        self.bytes.push(0);
        let length = length(self.bytes.len() - start);
        self.bytes[start..start + 4].copy_from_slice(&length);
    }
}

fn length(bytes: usize) -> [u8; 4] {
    i32::try_from(bytes).expect("commands are split far below 2 GB").to_le_bytes()
}

#[cfg(test)]
mod tests {
    use bson::{Bson, DateTime, Document, doc};

    use super::*;

    #[test]
    fn the_driver_reads_what_the_encoder_writes() {
        let built = Encoder::build(|top| {
            top.double("double", 1.5);
            top.int32("int32", -7);
            top.int64("int64", i64::MAX);
            top.string("string", "Temp °C");
            top.boolean("boolean", true);
            top.datetime("datetime", 1_776_693_610_000);
            top.null("null");
            top.binary("binary", 7, |bytes| bytes.extend_from_slice(b"abc"));
            top.document(["stats.", "lux", ".sum"], |_| {});
            top.array("array", |array| {
                (0..12).for_each(|at| array.document(at, |element| element.int32("at", at as i32)));
            });
        });
        let read = Document::try_from(built.as_ref()).unwrap();
        let array: Vec<Bson> = (0..12).map(|at| doc! { "at": at }.into()).collect();
        let expected = doc! {
            "double": 1.5, "int32": -7, "int64": i64::MAX, "string": "Temp °C", "boolean": true,
            "datetime": DateTime::from_millis(1_776_693_610_000), "null": Bson::Null,
            "binary": bson::Binary { subtype: bson::spec::BinarySubtype::Column, bytes: b"abc".to_vec() },
            "stats.lux.sum": {}, "array": array,
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn elements_can_be_removed() {
        let built = Encoder::build(|top| {
            top.int32("kept", 1);
            let mark = top.len();
            top.document("dropped", |document| document.int32("x", 2));
            top.truncate(mark);
            top.int32("after", 3);
        });
        assert_eq!(Document::try_from(built.as_ref()).unwrap(), doc! { "kept": 1, "after": 3 });
    }
}
