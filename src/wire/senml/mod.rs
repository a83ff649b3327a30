//! `SenML` (RFC 8428), as JSON and as CBOR.
//!
//! A body is a pack: an array of records. A record measures one thing. Its base fields also apply to the
//! records after it:
//! ```json
//! [ { "bn": "urn:dev:ow:10e2073a01080063:", "bt": 1.320067464e+09, "n": "temp", "u": "Cel", "v": 23.1 },
//!   { "n": "hum", "u": "%RH", "v": 67 } ]
//! ```
//! How records become readings:
//! - **Device and metric** follow from the name, `bn` + `n`, as [`NameSplit`] describes. If the name has no
//!   metric, the unit is the metric, because the RFC distinguishes several measurements of one name by their
//!   units (`lat`, `lon`, `%RH`). Without a unit, the metric is `value`. If the options name the device
//!   ([`Options::device`]), a name without a separator is a metric.
//! - **Time** is `bt` + `t` seconds, cut off to milliseconds. It counts from 1970 if it is 2^28 or more,
//!   and from now if it is less. No time, or zero, is the server's clock.
//! - **Value** is `bv` + `v`, or 1 and 0 for `vb`. A record has one value field; strings (`vs`) and data
//!   (`vd`) are not numbers, so they are rejected.
//! - **Sum** is `bs` + `s`, the integral over time, stored under the metric's name and `_sum`. A record with
//!   an `s` needs no value.
//! - **Units** of the whole pack become metadata of the device: `{"units":{"temp":"Cel"}}`. A sum has no
//!   entry: its unit is the unit of its metric times seconds. The last unit of a metric counts. A record is
//!   rejected if its unit has more than 32 bytes or control characters.
//! - **Labels** are a field that the RFC does not have, `"labels": {"phase": "L1"}`, with text labels also in
//!   CBOR. They tell series of one metric apart, and apply to their record only.
//! - Consecutive records with the same device and time are passed on as one reading.
//!
//! A record of base fields only is not a reading. Unknown fields are ignored, as the RFC demands, and
//! counted; `ut` stores nothing. A value that is null is absent. A pack for newer parsers (a `bver` above 10,
//! a label that ends with `_`) is refused whole, as is a body that is not a pack. An invalid record is one
//! rejection. An invalid base field rejects its own record and each later record that needs it.
//!
//! The parser reads the body twice: first for its form and units, then for its readings. So it passes on
//! nothing of a refused pack, and it needs memory for the different names and units, not for the records. It
//! checks the lengths of names and units before it builds anything from them, and each base name once.

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

/// The options of the parser, which are not in the pack.
#[derive(Debug, Clone)]
pub struct Options<'o> {
    /// The device of names without a separator, which are names of metrics.
    ///
    /// `None`: a name without a separator is a device.
    pub device: Option<&'o str>,
    /// The split of names into device and metric.
    pub split: NameSplit,
    /// The clock that relative times refer to, in Unix milliseconds.
    pub now_ms: i64,
    /// The most readings of a request.
    pub max_readings: usize,
    /// The most metrics of a reading.
    ///
    /// More records of one device and time form several readings.
    pub max_metrics: usize,
    /// The longest metadata, in bytes. Longer units of a device are dropped.
    pub max_metadata_bytes: usize,
}

/// A body that is refused whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SenmlError {
    /// The body is not `SenML`: not JSON or CBOR, or not an array of objects.
    #[error("{0}")]
    Invalid(String),
    /// The pack is for newer parsers only.
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

/// Parses a pack in JSON, `application/senml+json`.
///
/// # Errors
/// When the body is not a pack, or is a pack for newer parsers. Then `sink` has received no readings.
pub fn parse_json(body: &[u8], options: &Options<'_>, sink: &mut impl Sink) -> Result<(), SenmlError> {
    parse(|take| json::read(body, take), options, sink)
}

/// Parses a pack in CBOR, `application/senml+cbor`.
///
/// Lengths may be definite or not, and labels may also be the labels of JSON.
///
/// # Errors
/// When the body is not a pack, or is a pack for newer parsers. Then `sink` has received no readings.
pub fn parse_cbor(body: &[u8], options: &Options<'_>, sink: &mut impl Sink) -> Result<(), SenmlError> {
    parse(|take| cbor::read(body, take), options, sink)
}

/// A callback for each record, in order. The parser stops when it returns false.
type Take<'t, 'b> = &'t mut dyn FnMut(&Record<'b>) -> bool;

fn parse<'b>(
    read: impl Fn(Take<'_, 'b>) -> Result<(), SenmlError>,
    options: &Options<'_>,
    sink: &mut impl Sink,
) -> Result<(), SenmlError> {
    let mut units = UnitTable::new(options);
    let mut resolver = Resolver::new(options);
    read(&mut |record| {
        if let Some(Ok(measurement)) = resolver.resolve(record) {
            units.add(&measurement);
        }
        true
    })?;
    let devices = units.into_devices();
    let mut resolver = Resolver::new(options);
    let mut readings = Readings::new(&devices, options.max_metrics, sink);
    let mut index = 0;
    read(&mut |record| {
        readings.ignore(record.unknown());
        match resolver.resolve(record) {
            None => {}
            Some(Ok(measurement)) => readings.add(&measurement),
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
