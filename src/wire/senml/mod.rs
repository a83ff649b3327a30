//! `SenML` (RFC 8428), as JSON and as CBOR.
//!
//! A body is a pack: an array of records. A record measures one thing, and base fields spare it what it has
//! in common with those before it:
//! ```json
//! [ { "bn": "urn:dev:ow:10e2073a01080063:", "bt": 1.320067464e+09, "n": "temp", "u": "Cel", "v": 23.1 },
//!   { "n": "hum", "u": "%RH", "v": 67 } ]
//! ```
//! How records become readings:
//! - **Device and metric** come from the name, `bn` + `n`, as [`NameSplit`] says. Where the name ends with
//!   the device, the metric is the unit, because that is how the RFC tells several measurements of one name
//!   apart (`lat`, `lon`, `%RH`), and `value` when there is no unit either.
//! - **Time** is `bt` + `t` seconds, rounded to the millisecond: from 2^28 on since 1970, below that relative
//!   to now. No time, or zero, is the server's clock.
//! - **Value** is `bv` + `v`, or 1 and 0 for `vb`. A record has one value field; strings (`vs`) and data
//!   (`vd`) are no numbers, so they are refused.
//! - **Sum** is `bs` + `s`, the integral over time, stored as the metric's name with `_sum` behind it. A
//!   record that has an `s` needs no value.
//! - **Units** become metadata of the device, gathered over the whole pack: `{"units":{"temp":"Cel"}}`. A sum
//!   has no entry: it is in the unit of its metric times seconds. The last unit of a metric stands. A unit
//!   has at most 32 bytes and no control characters, else its record is rejected.
//! - Records in a row that share device and time are handed on as one reading.
//!
//! A record of base fields only measures nothing and is no reading. `ut` and unknown fields are skipped. A
//! pack that says that it needs more than this reader has (a `bver` above 10, a label that ends with `_`) is
//! refused whole, as is a body that is no pack; a record that is wrong by itself is one rejection. A base
//! field that is wrong rejects its own record and each later one that would need it.
//!
//! The body is read twice, at first for its form and its units, then for its readings, so that nothing is
//! handed on from a pack that is refused, and the memory in use is that of the different names and units, not
//! of the records. The length of names and units is checked before anything is made of them, and a base name
//! is looked at once.

mod cbor;
mod field;
mod interner;
mod json;
mod name;
mod reading;
mod record;
mod resolve;
#[cfg(test)]
mod tests;
mod units;

use self::{reading::Readings, record::Record, resolve::Resolver, units::UnitTable};
use super::{Code, Rejection, Sink};

pub use name::NameSplit;

/// What the bytes of a pack do not say.
#[derive(Debug, Clone)]
pub struct Options {
    /// How a name becomes device and metric.
    pub split: NameSplit,
    /// The clock that relative times refer to, in Unix milliseconds.
    pub now_ms: i64,
    /// How many readings a request may carry.
    pub max_readings: usize,
    /// How many metrics a reading may have. More records of one device and time make several readings.
    pub max_metrics: usize,
    /// How long metadata may be, in bytes. A device whose units take more goes without them.
    pub max_metadata_bytes: usize,
}

/// A body that is refused whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SenmlError {
    /// It is no `SenML`: not JSON or CBOR, or not an array of objects.
    #[error("{0}")]
    Invalid(String),
    /// It asks to be understood by newer readers only.
    #[error("{0}")]
    Unsupported(String),
}

impl SenmlError {
    /// The stable code.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidSenml,
            Self::Unsupported(_) => Code::UnsupportedSenml,
        }
    }
}

/// Reads a pack in JSON, `application/senml+json`.
///
/// # Errors
/// The body is no pack, or one for newer readers. `sink` was given nothing.
pub fn parse_json(body: &[u8], options: &Options, sink: &mut impl Sink) -> Result<(), SenmlError> {
    parse(|take| json::read(body, take), options, sink)
}

/// Reads a pack in CBOR, `application/senml+cbor`. Lengths may be definite or not, and labels may also be the
/// texts that JSON has.
///
/// # Errors
/// The body is no pack, or one for newer readers. `sink` was given nothing.
pub fn parse_cbor(body: &[u8], options: &Options, sink: &mut impl Sink) -> Result<(), SenmlError> {
    parse(|take| cbor::read(body, take), options, sink)
}

/// What a format does with a body: it calls this for each record, in order, until it returns false.
type Take<'t, 'b> = &'t mut dyn FnMut(&Record<'b>) -> bool;

fn parse<'b>(
    read: impl Fn(Take<'_, 'b>) -> Result<(), SenmlError>,
    options: &Options,
    sink: &mut impl Sink,
) -> Result<(), SenmlError> {
    let mut units = UnitTable::new(options);
    let mut resolver = Resolver::new(options);
    read(&mut |record| {
        if let Some(Ok(measured)) = resolver.resolve(record) {
            units.note(&measured);
        }
        true
    })?;
    let devices = units.into_devices();
    let mut resolver = Resolver::new(options);
    let mut readings = Readings::new(&devices, options.max_metrics, sink);
    let mut index = 0;
    read(&mut |record| {
        match resolver.resolve(record) {
            None => {}
            Some(Ok(measured)) => readings.add(&measured),
            Some(Err(Rejection { code, detail })) => {
                readings.reject(Rejection { code, detail: format!("record [{index}]: {detail}") });
            }
        }
        index += 1;
        !readings.is_over()
    })?;
    readings.finish();
    Ok(())
}
