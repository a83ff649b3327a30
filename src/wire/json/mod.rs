//! JSON and NDJSON.
//!
//! An object has one reading, or the `readings` of one device. A body is one object or an array of objects.
//! NDJSON has an object or an array on each line:
//! ```json
//! { "deviceId": "S1", "ts": "2026-04-20T14:00:10Z", "value": 320 }
//! { "deviceId": "S1", "ts": 1776693610000, "values": { "temp": 22.4, "hum": 40 } }
//! { "deviceId": "S1", "metadata": { "floor": 2 }, "readings": [ { "ts": 1776693610000, "value": 1 } ] }
//! ```
//! **Keys** may be in any order, and have other names too (`key`). An unknown key rejects its reading; beside
//! `readings`, it rejects all of them. By configuration, unknown keys are ignored and counted instead, or are
//! metrics ([`Options::flat`]). An object that has a key twice, perhaps by two names, is rejected, because
//! parsers differ in which of the two values they use. Null stands for an absent value.
//!
//! **Time** is an RFC 3339 text, Unix milliseconds, or an age in milliseconds (`ageMs`). Without a time,
//! the server's clock counts.
//!
//! **Metrics.** `values` has any number of metrics. `value` is one metric, whose name is in `metric`, or else
//! `value`. An object may have both. The `unit` of the value becomes its label `unit`: metadata would hold
//! only the last unit, and values in different units must not meet in one series. `measurementBytes` says
//! where the measurement ends in the names, as [`Incoming`](super::Incoming) has it: forwarding and dead
//! letters keep the measurements of line protocol so.
//!
//! **Defaults.** A time, `labels`, `metric`, `unit` or `measurementBytes` beside `readings` is the default of
//! the readings. If an object has a value and `readings`, the value is one more reading, the first.
//!
//! **Devices.** An element of `readings` may name a device of its own, and may have metadata. If it is of the
//! object's device, its metadata counts from this element on. An object may have a `seq`, a whole number from
//! 0 that grows by one with each object of the device, so that lost objects are counted
//! ([`Sink::sequence`](super::Sink::sequence)).
//!
//! Text that is not JSON is a [`SyntaxError`]. JSON that is not a valid reading is one rejection with the
//! first problem found, and the parser goes on. A bad value is rejected by itself
//! ([`Sink::reject_value`](super::Sink::reject_value)). A problem with an object's device or metadata rejects
//! each of its readings.
//!
//! The parser reads the text once, front to back, and allocates nothing for a plain reading. It skips
//! `readings` at first, and reads them when device and metadata are known. So it needs memory for one reading
//! only, whatever the size of the body.

mod body;
mod context;
mod flat;
mod key;
pub(in crate::wire) mod labels;
pub(in crate::wire) mod lexer;
pub(in crate::wire) mod metadata;
mod metric_names;
pub(in crate::wire) mod problem;
mod reading;
#[cfg(test)]
mod tests;
mod time;

pub use self::{
    body::{parse, parse_lines, parse_value_or_lines},
    key::key_names,
};
use self::{
    lexer::{Kind, Lexer},
    problem::rejection,
};
use super::{Code, Limits, Rejection};
use serde_json::{Map, Value};

/// The options of the parser, which are not in the body.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'o> {
    /// The device of objects that do not name a device.
    pub device: Option<&'o str>,
    /// Whether unknown keys are ignored, and do not reject their readings.
    pub ignore_unknown_keys: bool,
    /// Whether unknown keys of a reading are metrics.
    pub flat: bool,
    /// The clock that ages refer to, in Unix milliseconds.
    pub now_ms: i64,
}

impl Options<'_> {
    /// The same options for a body that arrives at this time, in Unix milliseconds.
    #[must_use]
    pub const fn at(self, now_ms: i64) -> Self {
        Self { now_ms, ..self }
    }
}

/// Text that is not strict JSON (RFC 8259), or has more than 64 levels of nesting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail} at byte {}", .offset + 1)]
pub struct SyntaxError {
    /// The position in bytes from the start of the text. The message counts from 1.
    pub offset: usize,
    /// The problem, without the position.
    pub detail: String,
}

impl SyntaxError {
    fn new(offset: usize, detail: impl Into<String>) -> Self {
        Self { offset, detail: detail.into() }
    }
}

/// Parses a body that is metadata: one JSON object.
///
/// The object obeys the rules of [`model`](crate::model).
///
/// # Errors
/// Returns the first problem of the body.
pub fn parse_metadata(body: &[u8], limits: &Limits) -> Result<Map<String, Value>, Rejection> {
    parse_object(body, limits, 1)
}

/// Parses an object of metadata keys, such as `{"floor": {"value": 2}}`.
///
/// The keys and everything below them obey the rules of [`model`](crate::model).
///
/// # Errors
/// Returns the first problem of the body.
pub fn parse_metadata_keys(body: &[u8], limits: &Limits) -> Result<Map<String, Value>, Rejection> {
    parse_object(body, limits, 0)
}

fn parse_object(body: &[u8], limits: &Limits, depth: usize) -> Result<Map<String, Value>, Rejection> {
    let not_json = |error: &dyn std::fmt::Display| rejection(Code::InvalidJson, error.to_string());
    let read = || {
        let mut lexer = Lexer::new(body)?;
        let kind = lexer.kind()?;
        if kind != Kind::Object {
            let problem = format!("metadata must be an object, found {kind}");
            return Ok(Err(rejection(Code::InvalidMetadata, problem)));
        }
        let text = metadata::check(&mut lexer, &mut Vec::new(), limits, depth)?;
        lexer.end()?;
        Ok(text)
    };
    let text = read().map_err(|error: SyntaxError| not_json(&error))??;
    serde_json::from_str(text).map_err(|error| not_json(&error))
}
