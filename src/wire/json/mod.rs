//! JSON and NDJSON.
//!
//! An object has one reading, or the `readings` of one device. A body is one object or an array of objects.
//! NDJSON has one such value per line:
//! ```json
//! { "deviceId": "S1", "ts": "2026-04-20T14:00:10Z", "value": 320 }
//! { "deviceId": "S1", "ts": 1776693610000, "values": { "temp": 22.4, "hum": 40 } }
//! { "deviceId": "S1", "metadata": { "floor": 2 }, "readings": [ { "ts": 1776693610000, "value": 1 } ] }
//! ```
//! Keys are in any order; unknown keys are skipped. `ts` is an RFC 3339 string or whole Unix milliseconds; if
//! it is absent or null, the server's clock counts. Beside `readings` it is the default of the readings.
//! `value` is the metric `value`, and may occur together with `values`. An object with both a value and
//! `readings` has all of these readings, its own first. An object may have a `seq`, a whole number from 0
//! that grows by one with each object of the device, so that lost objects are counted ([`Sink::sequence`]);
//! any other value of that key is ignored.
//!
//! Text that is not JSON is a [`SyntaxError`]. JSON that is not a valid reading is one rejection with the
//! first problem found, and the parser goes on. A problem with an object's device or metadata rejects each of
//! its readings. A duplicate of a known key is rejected, because parsers differ in which of the two they use.
//!
//! The parser reads the text once, front to back, and allocates nothing for a plain reading. It skips
//! `readings` at first, and reads them when device and metadata are known. So memory in use is that of one
//! reading, whatever the size of the body.

pub(in crate::wire) mod lexer;
mod metadata;
mod object;
pub(in crate::wire) mod problem;
mod reading;
mod string;
#[cfg(test)]
mod tests;

use self::{
    lexer::{Kind, Lexer},
    object::Reader,
    problem::rejection,
};
use super::{Code, Sink};

/// Text that is not strict JSON (RFC 8259), or has more than 64 levels of nesting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail} at byte {offset}")]
pub struct SyntaxError {
    /// The position, in bytes from the start of the text.
    pub offset: usize,
    /// The problem, without the position.
    pub detail: String,
}

impl SyntaxError {
    fn new(offset: usize, detail: impl Into<String>) -> Self {
        Self { offset, detail: detail.into() }
    }
}

/// Parses a body that is one JSON value: an object, or an array of objects. A byte order mark before it is
/// skipped.
///
/// # Errors
/// When the body is not JSON. `sink` may have the readings before the error; the caller must drop them.
pub fn parse(body: &[u8], sink: &mut impl Sink) -> Result<(), SyntaxError> {
    let mut lexer = Lexer::new(body)?;
    if lexer.is_at_end() {
        return Err(SyntaxError::new(
            lexer.offset(),
            "expected an object or an array of objects but the body is empty",
        ));
    }
    read_value(lexer, &mut Reader::new(sink.limits()), sink)
}

/// Parses a body with one JSON value per line, an object or an array of objects. Blank lines are skipped.
///
/// It calls [`Sink::line`] before each line that is not blank. A line that is not JSON is one rejection,
/// whose detail has the position in bytes from the start of the line.
pub fn parse_lines(body: &[u8], sink: &mut impl Sink) {
    let mut reader = Reader::new(sink.limits());
    for (number, line) in (1..).zip(body.split(|&byte| byte == b'\n')) {
        if line.trim_ascii().is_empty() {
            continue;
        }
        if sink.is_over() {
            return;
        }
        sink.line(number);
        if let Err(error) = read_line(line, &mut reader, sink) {
            sink.reject(rejection(Code::InvalidJson, format!("{error} of the line")));
        }
    }
}

fn read_line<'b>(line: &'b [u8], reader: &mut Reader<'b>, sink: &mut impl Sink) -> Result<(), SyntaxError> {
    let mut lexer = Lexer::new(line)?;
    if lexer.kind()? == Kind::Array {
        // A line that is not JSON yields its rejection only, so an array is checked to its end before its
        // readings are passed on.
        let mut ahead = lexer.clone();
        ahead.skip()?;
        ahead.end()?;
    }
    read_value(lexer, reader, sink)
}

fn read_value<'b>(mut lexer: Lexer<'b>, reader: &mut Reader<'b>, sink: &mut impl Sink) -> Result<(), SyntaxError> {
    if lexer.kind()? == Kind::Array {
        lexer.open()?;
        while lexer.element()? {
            let object = reader.read(&mut lexer)?;
            reader.emit(object, sink)?;
            if sink.is_over() {
                return Ok(());
            }
        }
        return lexer.end();
    }
    let object = reader.read(&mut lexer)?;
    lexer.end()?;
    reader.emit(object, sink)
}
