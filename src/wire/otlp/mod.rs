//! OTLP metrics, as protobuf and as JSON.
//!
//! A body is an `ExportMetricsServiceRequest`: resources, their scopes, their metrics, and the data points of
//! each. How data points become readings:
//! - **Device** is the first attribute of [`Options::device_attributes`] that the resource has. If it has
//!   more of these attributes, they are labels of each of its series: two services of one host remain two
//!   series.
//! - **Metadata** of the device are all other attributes of the resource. Those that do not fit are ignored.
//! - **Metric** is the name as it is, with its dots.
//! - **Labels** are the attributes of the data point, and `otel.scope.name`, the name of the scope. An
//!   attribute with an empty value counts as absent. An attribute of the data point replaces the label of the
//!   resource or the scope with the same name.
//! - **Value** is the number of a gauge or a sum. A sum is stored as it was sent, whether it is cumulative or
//!   a delta. A histogram, an exponential histogram or a summary `m` has up to four values, `m_count`,
//!   `m_sum`, `m_min` and `m_max`.
//! - **Time** is cut off to milliseconds; no time is the server's clock.
//! - Consecutive data points with the same device and time are passed on as one reading.
//!
//! An attribute is a text, a number or a boolean. A data point with an attribute of another type is rejected,
//! because without the attribute it could replace another data point; in a resource, such an attribute is
//! ignored. The parser also ignores, and counts with [`Sink::ignore`]: the buckets of histograms and the
//! quantiles of summaries, data points without a recorded value, exemplars, units and descriptions, and
//! fields that OTLP does not have.
//!
//! JSON is converted to protobuf first (`json`), so that one parser has all rules. The parser reads each
//! resource, scope and metric twice, because their fields may be in any order, and keeps one data point in
//! memory.

pub mod answer;
mod attribute;
mod json;
mod point;
mod resource;
#[cfg(test)]
mod tests;

use self::point::Points;
use self::resource::{ResourceLabels, ResourceReader};
use super::grouping::Grouping;
use super::json::SyntaxError;
use super::protobuf::{Fields, ProtobufError, Result};
use super::{Ignored, Sink};

/// The options of the parser, which are not in the body.
#[derive(Debug, Clone, Copy)]
pub struct Options<'o> {
    /// The attributes of a resource that may name the device, in order of preference.
    pub device_attributes: &'o [String],
}

/// Why a body is not a request of OTLP.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OtlpError {
    /// The protobuf is malformed.
    #[error(transparent)]
    Protobuf(#[from] ProtobufError),
    /// The JSON is malformed, or a field of it does not have its type.
    #[error(transparent)]
    Json(#[from] SyntaxError),
}

/// Parses a body in JSON.
///
/// # Errors
/// When the body is not a request of OTLP. `sink` may have the readings before the error; the caller must
/// drop them.
pub fn parse_json(body: &[u8], options: &Options<'_>, sink: &mut impl Sink) -> std::result::Result<(), OtlpError> {
    let body = json::to_protobuf(body, &mut |key| sink.ignore(Ignored::UnknownKey, key))?;
    Ok(parse(&body, options, sink)?)
}

/// Parses a body in protobuf.
///
/// # Errors
/// When the body is not a request of OTLP. `sink` may have the readings before the error; the caller must
/// drop them.
pub fn parse_protobuf(body: &[u8], options: &Options<'_>, sink: &mut impl Sink) -> std::result::Result<(), OtlpError> {
    Ok(parse(body, options, sink)?)
}

fn parse(body: &[u8], options: &Options<'_>, sink: &mut impl Sink) -> Result<()> {
    let mut resources = ResourceReader::new(options, sink.limits());
    let mut points = Points::default();
    let mut readings = Grouping::new(sink);
    let mut fields = Fields::of(body);
    while let Some(field) = fields.next()? {
        match field.number {
            1 if readings.is_over() => return Ok(()),
            1 => read_resource_metrics(field.bytes()?, &mut resources, &mut points, &mut readings)?,
            _ => readings.sink().ignore(Ignored::UnknownKey, "an unknown field of a request"),
        }
    }
    readings.finish();
    Ok(())
}

fn read_resource_metrics<'b, S: Sink>(
    bytes: &'b [u8],
    resources: &mut ResourceReader<'b, '_>,
    points: &mut Points<'b>,
    readings: &mut Grouping<'_, S>,
) -> Result<()> {
    let resource = resources.read(bytes, readings)?;
    let mut fields = Fields::of(bytes);
    while let Some(field) = fields.next()? {
        match field.number {
            1 | 3 => {} // the resource, and the address of its schema
            2 => read_scope_metrics(field.bytes()?, &resource, points, readings)?,
            _ => readings.sink().ignore(Ignored::UnknownKey, "an unknown field of the metrics of a resource"),
        }
    }
    Ok(())
}

fn read_scope_metrics<'b, S: Sink>(
    bytes: &'b [u8],
    resource: &ResourceLabels<'b, '_>,
    points: &mut Points<'b>,
    readings: &mut Grouping<'_, S>,
) -> Result<()> {
    let scope = read_scope(bytes, readings.sink())?;
    let mut fields = Fields::of(bytes);
    while let Some(field) = fields.next()? {
        match field.number {
            1 | 3 => {} // the scope, and the address of its schema
            2 if readings.is_over() => return Ok(()),
            2 => points.read_metric(field.bytes()?, resource, scope, readings)?,
            _ => readings.sink().ignore(Ignored::UnknownKey, "an unknown field of the metrics of a scope"),
        }
    }
    Ok(())
}

/// The name of a scope; empty if it has none.
fn read_scope<'b>(scope_metrics: &'b [u8], sink: &mut impl Sink) -> Result<&'b str> {
    let mut name = "";
    let mut fields = Fields::of(scope_metrics);
    while let Some(field) = fields.next()? {
        if field.number != 1 {
            continue;
        }
        let mut scope = field.message()?;
        while let Some(field) = scope.next()? {
            match field.number {
                1 => name = field.text()?,
                2 | 4 => {} // the version, and the number of attributes that the sender dropped
                3 => sink.ignore(Ignored::Attribute, "an attribute of a scope"),
                _ => sink.ignore(Ignored::UnknownKey, "an unknown field of a scope"),
            }
        }
    }
    Ok(name)
}
