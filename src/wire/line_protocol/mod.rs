//! InfluxDB line protocol.
//!
//! A line is a reading of one device:
//! ```text
//! sensor,deviceId=S1,floor=2 temp=22.4,hum=40i 1776693610000000000
//! measurement,tag=value,... field=value,... time
//! ```
//! The device is one of the tags; the others are its metadata, in the order in which they stand. Field
//! `value` of measurement `m` is metric `m`, any other field `f` is metric `m_f`. Numbers are floats
//! (`22.4`), integers (`40i`) and unsigned integers (`40u`); booleans are 1 and 0. Strings are not kept, so a
//! line that has one is refused. A field that stands twice has its last value, as in InfluxDB; a tag that
//! stands twice is refused.
//!
//! A backslash takes its meaning from a comma, a space or (except in measurements) an equals sign behind it;
//! before anything else it is itself. Names have no control characters. In strings `\"` is a quote, and a
//! newline is part of them. Blank lines and lines that begin with `#` are no readings; spaces and tabs before
//! a line and white space behind it mean nothing.
//!
//! Each line stands for itself: it is one reading or one rejection, the first problem from left to right with
//! its column, which is counted in bytes from 1. Where a string is not closed, its line ends at the first
//! newline all the same, so that a broken line takes nothing with it.
//!
//! The body is read once and nothing is allocated for a plain line: one without escapes and with at most 16
//! fields. What makes a line unacceptable whatever else it holds is checked before names or metadata are
//! built: the number of its fields, the length of each metric's name, the size of its tags as metadata.

mod fields;
mod lines;
mod point;
mod precision;
mod scan;
#[cfg(test)]
mod tests;

pub use self::precision::Precision;
use self::{lines::Lines, point::Reader};
use super::{Code, Sink, problem::rejection, work};

/// What a body does not say about itself.
#[derive(Debug, Clone, Copy)]
pub struct Options<'o> {
    /// The unit of the times.
    pub precision: Precision,
    /// The tags that may name the device; of those that a line has, the first of this list does.
    pub device_tags: &'o [String],
}

/// Reads a body of lines.
///
/// [`Sink::line`] is called before each line that is neither blank nor a comment, and then either
/// [`Sink::reading`] or [`Sink::reject`] once. A line that goes on behind a newline in a string has the
/// number of its start.
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
