//! InfluxDB line protocol.
//!
//! A line is a reading of one device:
//! ```text
//! disk,host=S1,path=/var used=22.4,free=40i 1776693610000000000
//! measurement,tag=value,... field=value,... time
//! ```
//! One tag names the device, the tags in `metadata_tags` describe it, and all other tags are labels of the
//! metrics: points that differ in a tag are different series, as in InfluxDB. Field `value` of measurement
//! `m` is metric `m`, any other field `f` is metric `m_f`. Numbers are floats (`22.4`), integers (`40i`) and
//! unsigned integers (`40u`); booleans are 1 and 0. Strings are not stored: they are dropped, rejected or
//! metadata ([`Strings`](crate::config::Strings)). A field with another value is rejected alone. A duplicate
//! field has its last value, as in InfluxDB; a line with a duplicate tag is rejected.
//!
//! A backslash escapes a comma, a space and (except in measurements) an equals sign; before any other
//! character it is an ordinary character. Names have no control characters. In strings `\"` is a quote, and
//! newlines are part of the string. Blank lines and lines that begin with `#` are skipped, as are spaces and
//! tabs before a line and white space after it.
//!
//! Each line is one reading or one rejection, or nothing if it has only strings that are dropped. A rejection
//! is the first problem from left to right with its column, which is counted in bytes from 1. A line with an
//! unclosed string ends at the first newline, so that a malformed line never affects the next.
//!
//! The parser reads the body once and allocates nothing for a plain line: one without escapes and with at
//! most 16 fields. Before it builds names or metadata, it checks the number of fields, the length of each
//! metric name, and the size of the tags as metadata.

mod fields;
mod lines;
mod point;
mod precision;
mod scan;
#[cfg(test)]
mod tests;

pub use self::precision::Precision;
use self::{lines::Lines, point::Reader};
use super::{Code, Sink, problem::rejection};
use crate::common::work;
use crate::config::LineProtocol;

/// The options of the parser, which are not in the body.
#[derive(Debug, Clone, Copy)]
pub struct Options<'o> {
    /// The unit of the times.
    pub precision: Precision,
    /// The device of lines without a tag that names a device.
    pub device: Option<&'o str>,
    /// The meaning of tags and strings.
    pub mapping: &'o LineProtocol,
}

/// Parses a body of lines.
///
/// It calls [`Sink::line`] before each line that is neither blank nor a comment, and then at most one of
/// [`Sink::reading`] and [`Sink::reject`], once. A line with a newline in a string has the number of its
/// start.
pub fn parse(body: &[u8], options: &Options<'_>, sink: &mut impl Sink) {
    let mut reader = Reader::new(sink.limits());
    for (number, line) in Lines::new(body) {
        let line = line.trim_ascii_end();
        if matches!(line.get(lines::indent(line)), None | Some(b'#')) {
            continue;
        }
        if sink.is_over() {
            return;
        }
        sink.line(number);
        work::count(line.len());
        match std::str::from_utf8(line) {
            Ok(line) => reader.read(line, options, sink),
            Err(error) => {
                let column = error.valid_up_to() + 1;
                sink.reject(rejection(Code::InvalidLine, format!("the line is not valid UTF-8 at column {column}")));
            }
        }
    }
}
