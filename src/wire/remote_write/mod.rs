//! Prometheus remote write, versions 1.0 and 2.0: protobuf, after the compression is undone.
//!
//! A body has series: labels, and samples of a value and a time in milliseconds. In version 1.0
//! (`prometheus.WriteRequest`) a series has its labels as texts; in version 2.0
//! (`io.prometheus.write.v2.Request`) as references to a table of symbols.
//!
//! How samples become readings:
//! - **Metric** is the label `__name__`.
//! - **Device** is the first label of [`Options::device_labels`] that the series has.
//! - **Metadata** of the device are the labels of [`Options::metadata_labels`]. A label of more than 128
//!   bytes, or beyond the limit of the metadata, is ignored.
//! - Every other label is a **label** of the series. A label with an empty value counts as absent, as in
//!   Prometheus.
//! - A **native histogram** of metric `m` is `m_count` and `m_sum`, as in OTLP. Its buckets are ignored and
//!   counted.
//! - Consecutive samples with the same device and time are passed on as one reading.
//! - **Derived series** are ignored and counted: alerts of Prometheus, and latest values that it scraped from
//!   here. They repeat readings, and often name a device. As its readings they would end the alert that the
//!   device is silent.
//!
//! A series with a missing or an invalid metric, device or label rejects each of its samples. The parser
//! ignores and counts ([`Sink::ignore`]) samples that are not finite, because Prometheus sends NaN regularly
//! (the marker of a series that ended is one), exemplars, and the types, units and help of metrics.
//!
//! The parser reads the labels of a series before its samples, whatever their order in the body, and keeps
//! one series in memory, besides the table of symbols. It checks lengths before it builds anything, because a
//! reference of one byte may be a symbol of any length.

mod series;
#[cfg(test)]
mod tests;

use self::series::{Part, SeriesReader};
use super::grouping::{Grouping, SampleRejection};
use super::protobuf::{Fields, ProtobufError, Result};
use super::{
    Code, Ignored, Sink,
    problem::{quoted, rejection},
};

/// The bits of the NaN that marks the end of a series.
const STALE_BITS: u64 = 0x7FF0_0000_0000_0002;

/// The options of the parser, which are not in the body.
#[derive(Debug, Clone, Copy)]
pub struct Options<'o> {
    /// The message of the body.
    pub version: Version,
    /// The labels that may name the device, in order of preference.
    pub device_labels: &'o [String],
    /// The labels that describe the device.
    pub metadata_labels: &'o [String],
}

/// A version of remote write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// 1.0: `prometheus.WriteRequest`.
    V1,
    /// 2.0: `io.prometheus.write.v2.Request`.
    V2,
}

/// Why a body is not a message of remote write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteWriteError {
    /// The body is not valid protobuf.
    #[error(transparent)]
    Protobuf(#[from] ProtobufError),
    /// The body has a field of the other version.
    #[error("the body is not a {0}, which its content type names: it has field {1}")]
    OtherVersion(&'static str, u32),
}

/// The field numbers of a version.
struct Numbers {
    series: u32,
    histograms: u32,
    exemplars: u32,
}

impl Version {
    /// The name of the message.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::V1 => "prometheus.WriteRequest",
            Self::V2 => "io.prometheus.write.v2.Request",
        }
    }

    const fn numbers(self) -> Numbers {
        match self {
            Self::V1 => Numbers { series: 1, exemplars: 3, histograms: 4 },
            Self::V2 => Numbers { series: 5, histograms: 3, exemplars: 4 },
        }
    }
}

/// Parses a body.
///
/// # Errors
/// When the body is not a message of this version. `sink` may have the readings before the error; the caller
/// must drop them.
pub fn parse(body: &[u8], options: &Options<'_>, sink: &mut impl Sink) -> std::result::Result<(), RemoteWriteError> {
    let numbers = options.version.numbers();
    let symbols = symbols(body, options.version)?;
    let mut reader = SeriesReader::new(options, &symbols, sink.limits());
    let mut readings = Grouping::new(sink);
    let mut fields = Fields::of(body);
    while let Some(field) = fields.next()? {
        if readings.is_over() {
            return Ok(());
        }
        match (options.version, field.number) {
            (_, number) if number == numbers.series => {
                read_series(field.bytes()?, &numbers, &mut reader, &mut readings)?;
            }
            (Version::V1, 3) => readings.sink().ignore(Ignored::Metadata, "metadata"),
            (Version::V1, 4 | 5) | (Version::V2, 1 | 3) => {
                return Err(RemoteWriteError::OtherVersion(options.version.message(), field.number));
            }
            (Version::V2, 4) => {}
            _ => readings.sink().ignore(Ignored::UnknownKey, "an unknown field of a request"),
        }
    }
    readings.finish();
    Ok(())
}

/// The table of symbols of version 2.0, which may be anywhere in the body.
fn symbols(body: &[u8], version: Version) -> Result<Vec<&str>> {
    const SYMBOL: u32 = 4;
    if version == Version::V1 {
        return Ok(Vec::new());
    }
    let mut count = 0;
    let mut fields = Fields::of(body);
    while let Some(field) = fields.next()? {
        count += usize::from(field.number == SYMBOL);
    }
    let mut symbols = Vec::with_capacity(count); // at most eight times the bytes of the body
    let mut fields = Fields::of(body);
    while let Some(field) = fields.next()? {
        if field.number == SYMBOL {
            symbols.push(field.text()?);
        }
    }
    Ok(symbols)
}

fn read_series<'b, S: Sink>(
    series: &'b [u8],
    numbers: &Numbers,
    reader: &mut SeriesReader<'b, '_>,
    readings: &mut Grouping<'_, S>,
) -> Result<()> {
    let read = reader.read(series, readings)?;
    let mut fields = Fields::of(series);
    while let Some(field) = fields.next()? {
        if readings.is_over() {
            return Ok(());
        }
        match field.number {
            1 => {} // the labels
            2 => read_sample(field.message()?, reader, read.as_ref(), readings)?,
            number if number == numbers.histograms => {
                read_histogram(field.message()?, reader, read.as_ref(), readings)?;
            }
            number if number == numbers.exemplars => readings.sink().ignore(Ignored::Exemplar, reader.metric()),
            5 if numbers.series == 5 => readings.sink().ignore(Ignored::Metadata, reader.metric()),
            6 if numbers.series == 5 => {} // the time at which a counter started
            _ => readings.sink().ignore(Ignored::UnknownKey, "an unknown field of a series"),
        }
    }
    Ok(())
}

fn read_sample<S: Sink>(
    mut fields: Fields<'_>,
    reader: &mut SeriesReader<'_, '_>,
    series: std::result::Result<&(), &SampleRejection>,
    readings: &mut Grouping<'_, S>,
) -> Result<()> {
    let (mut value, mut ts_ms) = (0f64, 0i64);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => value = field.double()?,
            2 => ts_ms = field.varint()?.cast_signed(),
            3 => {} // the time at which a counter started
            _ => readings.sink().ignore(Ignored::UnknownKey, "an unknown field of a sample"),
        }
    }
    match series {
        _ if value.to_bits() == STALE_BITS => readings.sink().ignore(Ignored::Stale, reader.metric()),
        _ if !value.is_finite() => readings.sink().ignore(Ignored::NonFinite, reader.metric()),
        _ if reader.is_derived() => readings.sink().ignore(Ignored::Derived, reader.metric()),
        Ok(()) => readings.add(Some(ts_ms), reader.text(Part::Sample).map(|text| (text, value))),
        Err(rejection) => readings.reject(Some(ts_ms), rejection),
    }
    Ok(())
}

/// Reads a native histogram of whole or fractional counts.
fn read_histogram<S: Sink>(
    mut fields: Fields<'_>,
    reader: &mut SeriesReader<'_, '_>,
    series: std::result::Result<&(), &SampleRejection>,
    readings: &mut Grouping<'_, S>,
) -> Result<()> {
    let (mut count, mut sum, mut ts_ms, mut has_buckets) = (None, 0f64, 0i64, false);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => count = Some(field.varint()? as f64),
            2 => count = Some(field.double()?),
            3 => sum = field.double()?, // protobuf leaves out 0
            8..=13 => has_buckets = true,
            15 => ts_ms = field.varint()?.cast_signed(),
            4..=7 | 14 | 16 | 17 => {} // the scale, the zero bucket, a hint, the bounds, the start
            _ => readings.sink().ignore(Ignored::UnknownKey, "an unknown field of a histogram"),
        }
    }
    if sum.to_bits() == STALE_BITS {
        readings.sink().ignore(Ignored::Stale, reader.metric());
        return Ok(());
    }
    if reader.is_derived() {
        readings.sink().ignore(Ignored::Derived, reader.metric());
        return Ok(());
    }
    if has_buckets {
        readings.sink().ignore(Ignored::Histogram, reader.metric());
    }
    if let Err(rejection) = series {
        readings.reject(Some(ts_ms), rejection);
        return Ok(());
    }
    let Some(count) = count else {
        let what = format!("a histogram of {} has no count", quoted(reader.metric()));
        readings.add(Some(ts_ms), Err(&rejection(Code::InvalidValue, what)));
        return Ok(());
    };
    for (part, value) in [(Part::Count, count), (Part::Sum, sum)] {
        if !value.is_finite() {
            readings.sink().ignore(Ignored::NonFinite, reader.metric());
            break; // without a count, the sum says nothing
        }
        match reader.text(part) {
            Ok(text) => readings.add_of_histogram(Some(ts_ms), text, value, matches!(part, Part::Count)),
            // The name of the sum is shorter and may be valid. But one histogram is rejected once, so the
            // loop ends.
            Err(rejection) => {
                readings.add(Some(ts_ms), Err(rejection));
                break;
            }
        }
    }
    Ok(())
}
