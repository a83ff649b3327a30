//! JSON and NDJSON.
//!
//! An object carries one reading, or the `readings` of one device; a body is one object or an array of them,
//! and NDJSON has one such value per line:
//! ```json
//! { "deviceId": "S1", "ts": "2026-04-20T14:00:10Z", "value": 320 }
//! { "deviceId": "S1", "ts": 1776693610000, "values": { "temp": 22.4, "hum": 40 } }
//! { "deviceId": "S1", "metadata": { "floor": 2 }, "readings": [ { "ts": 1776693610000, "value": 1 } ] }
//! ```
//! Keys stand in any order, unknown keys are skipped. `ts` is an RFC 3339 string or whole Unix milliseconds,
//! absent or null for the server's clock; next to `readings` it holds for those that have none of their own.
//! `value` is metric `value`, and may stand beside `values`. An object that has both a value and `readings`
//! carries all of them, its own first. An object may have a `seq`, a whole number from 0 that grows by one
//! with each object of the device, so that lost ones can be counted ([`Sink::sequence`]); anything else under
//! that key means nothing.
//!
//! Text that is not JSON has no meaning at all, so it is a [`SyntaxError`]. JSON that is no good reading is a
//! rejection of that reading, and what follows goes on: one rejection, the first problem found. What is wrong
//! with an object's device or metadata rejects each of its readings. A key that stands twice is refused where
//! it has a meaning, because parsers differ in which of the two they take.
//!
//! The text is read once, front to back, and nothing is allocated for a plain reading. Only `readings` are
//! read over at first and then read again, when all about their device is known. So the memory in use is that
//! of one reading, however many the body has.

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

/// Text that is not JSON, by the letter of RFC 8259 and with at most 64 levels of nesting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail} at byte {offset}")]
pub struct SyntaxError {
    /// Where, in bytes from the start of the text.
    pub offset: usize,
    /// What is wrong there, without the place.
    pub detail: String,
}

impl SyntaxError {
    fn new(offset: usize, detail: impl Into<String>) -> Self {
        Self { offset, detail: detail.into() }
    }
}

/// Reads a body that is one JSON value: an object, or an array of objects. A byte order mark before it is
/// skipped.
///
/// # Errors
/// The body is not JSON. Of an array, `sink` may have been given the elements before the error; who wants all
/// or nothing drops them.
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

/// Reads a body that has one JSON value, an object or an array of objects, on each line. Blank lines are
/// skipped.
///
/// [`Sink::line`] is called before each line that is not blank. A line that is not JSON is one rejection and
/// nothing else: its detail gives the place in bytes from the start of the line.
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
        // A broken line yields nothing but its rejection, so an array is read over before its elements are
        // handed on.
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
            reader.hand_on(object, sink)?;
            if sink.is_over() {
                return Ok(());
            }
        }
        return lexer.end();
    }
    let object = reader.read(&mut lexer)?;
    lexer.end()?;
    reader.hand_on(object, sink)
}
