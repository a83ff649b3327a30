//! Metrics and their data points.

use smallvec::SmallVec;

use super::super::grouping::Grouping;
use super::super::protobuf::{Fields, Result};
use super::super::{
    Code, Ignored, Rejection, Sink,
    problem::{quoted, rejection},
};
use super::attribute::{Attribute, AttributeValue};
use super::resource::{Labels, Resource, ResourceRejection};
use crate::common::work;
use crate::model::series::{self, SERIES_MAX_BYTES, SERIES_MAX_LABELS, SeriesError};

/// The label with the name of the scope.
const SCOPE: &str = "otel.scope.name";

/// The flag of a data point without a recorded value.
const NO_RECORDED_VALUE: u64 = 1;

/// Up to this many labels are collected without an allocation.
const USUAL_LABELS: usize = 8;

/// Reads one data point after the other. Data points share its buffers.
#[derive(Debug, Default)]
pub(super) struct Points<'b> {
    /// The attributes of the data point, except empty ones.
    attributes: Labels<'b>,
    /// The canonical text of the series.
    text: String,
}

/// The fields of a metric that its data points need.
#[derive(Debug, Clone, Copy)]
struct Metric<'b, 'r> {
    name: &'b str,
    scope: &'b str,
    resource: &'r Resource<'b, 'r>,
}

/// A `NumberDataPoint`, except its attributes.
#[derive(Debug, Default)]
struct Point {
    ts_ms: Option<i64>,
    value: Option<f64>,
    flags: u64,
    /// The number of attributes, except empty ones.
    attributes: usize,
    /// Why the data point is rejected.
    rejection: Option<Rejection>,
}

/// The kinds of metrics, as the numbers of their fields.
const GAUGE: u32 = 5;
const SUM: u32 = 7;
const HISTOGRAM: u32 = 9;
const EXPONENTIAL_HISTOGRAM: u32 = 10;
const SUMMARY: u32 = 11;

impl<'b> Points<'b> {
    /// Reads a metric, and passes on its data points.
    pub(super) fn read_metric<S: Sink>(
        &mut self,
        bytes: &'b [u8],
        resource: &Resource<'b, '_>,
        scope: &'b str,
        readings: &mut Grouping<'_, S>,
    ) -> Result<()> {
        let (mut name, mut kind, mut is_described) = ("", 0, false);
        let mut fields = Fields::of(bytes);
        while let Some(field) = fields.next()? {
            match field.number {
                1 => name = field.text()?,
                2 | 3 => is_described |= !field.bytes()?.is_empty(),
                GAUGE | SUM | HISTOGRAM | EXPONENTIAL_HISTOGRAM | SUMMARY => kind = field.number,
                12 => is_described = true,
                _ => readings.sink().ignore(Ignored::UnknownKey, "an unknown field of a metric"),
            }
        }
        if is_described {
            readings.sink().ignore(Ignored::Metadata, name);
        }
        let metric = Metric { name, scope, resource };
        let mut fields = Fields::of(bytes);
        while let Some(field) = fields.next()? {
            match field.number {
                GAUGE | SUM if field.number == kind => self.read_numbers(field.message()?, &metric, readings)?,
                _ if field.number == kind => ignore_points(field.message()?, name, readings.sink())?,
                GAUGE | SUM | HISTOGRAM | EXPONENTIAL_HISTOGRAM | SUMMARY => {
                    readings.sink().ignore(Ignored::UnknownKey, "a second kind of a metric");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the data points of a gauge or a sum.
    fn read_numbers<S: Sink>(
        &mut self,
        mut fields: Fields<'b>,
        metric: &Metric<'b, '_>,
        readings: &mut Grouping<'_, S>,
    ) -> Result<()> {
        while let Some(field) = fields.next()? {
            match field.number {
                1 if readings.is_over() => return Ok(()),
                1 => {
                    let point = self.read_point(field.message()?, metric, readings.sink())?;
                    self.pass_on(&point, metric, readings);
                }
                2 | 3 => {} // the temporality of a sum, and whether it is monotonic
                _ => readings.sink().ignore(Ignored::UnknownKey, "an unknown field of a gauge or a sum"),
            }
        }
        Ok(())
    }

    fn read_point(&mut self, mut fields: Fields<'b>, metric: &Metric<'b, '_>, sink: &mut impl Sink) -> Result<Point> {
        self.attributes.clear();
        let mut point = Point::default();
        while let Some(field) = fields.next()? {
            match field.number {
                2 => {} // the time at which a sum started
                3 => point.ts_ms = Some(field.fixed64()?).filter(|&ns| ns > 0).map(|ns| (ns / 1_000_000).cast_signed()),
                4 => point.value = Some(field.double()?),
                5 => sink.ignore(Ignored::Exemplar, metric.name),
                6 => point.value = Some(field.fixed64()?.cast_signed() as f64),
                7 => self.read_attribute(field.message()?, metric, &mut point)?,
                8 => point.flags = field.varint()?,
                _ => sink.ignore(Ignored::UnknownKey, "an unknown field of a data point"),
            }
        }
        Ok(point)
    }

    fn read_attribute(&mut self, fields: Fields<'b>, metric: &Metric<'b, '_>, point: &mut Point) -> Result<()> {
        let Attribute { key, value } = Attribute::read(fields)?;
        match value {
            AttributeValue::Empty => {}
            AttributeValue::Text(value) => {
                point.attributes += 1;
                if self.attributes.len() <= SERIES_MAX_LABELS {
                    self.attributes.push((key, value));
                }
            }
            AttributeValue::Other => {
                point.rejection.get_or_insert_with(|| {
                    let (key, name) = (quoted(key), quoted(metric.name));
                    let what = format!("the attribute {key} of a data point of {name} is no text, number or boolean");
                    rejection(Code::InvalidLabel, what)
                });
            }
        }
        Ok(())
    }

    fn pass_on<S: Sink>(&mut self, point: &Point, metric: &Metric<'b, '_>, readings: &mut Grouping<'_, S>) {
        if point.flags & NO_RECORDED_VALUE != 0 {
            readings.sink().ignore(Ignored::Stale, metric.name);
            return;
        }
        let labels = match &metric.resource.labels {
            Ok(labels) => labels,
            Err(ResourceRejection::NoDevice(rejection)) => return readings.reject(rejection),
            Err(ResourceRejection::Label(rejection)) => return readings.add(point.ts_ms, Err(rejection)),
        };
        let ts_ms = point.ts_ms;
        match check_value(point, metric.name).and_then(|value| self.write(point, metric, labels).map(|()| value)) {
            Ok(value) => readings.add(ts_ms, Ok((&self.text, value))),
            Err(rejection) => readings.add(ts_ms, Err(&rejection)),
        }
    }

    /// Writes the canonical text of the series of a data point.
    fn write(
        &mut self,
        point: &Point,
        metric: &Metric<'b, '_>,
        of_resource: &[(&str, std::borrow::Cow<'b, str>)],
    ) -> std::result::Result<(), Rejection> {
        if let Some(rejection) = &point.rejection {
            return Err(rejection.clone());
        }
        let attributes = || self.attributes.iter().map(|(key, value)| (*key, &**value));
        let of_scope = (!metric.scope.is_empty()).then_some((SCOPE, metric.scope));
        let outer = of_resource.iter().map(|(key, value)| (*key, &**value)).chain(of_scope);
        let outer = outer.filter(|(key, _)| !attributes().any(|(inner, _)| inner == *key));
        let mut labels: SmallVec<[(&str, &str); USUAL_LABELS]> = outer.chain(attributes()).collect();
        let surplus = point.attributes - self.attributes.len();
        // Numbers and lengths are checked before a label is read, as a scope has many data points.
        let bytes = metric.name.len() + labels.iter().map(|(key, value)| key.len() + value.len() + 2).sum::<usize>();
        let written = if surplus > 0 {
            Err(SeriesError::TooManyLabels(labels.len() + surplus))
        } else if bytes > SERIES_MAX_BYTES {
            Err(SeriesError::TooLong(bytes))
        } else {
            work::count(bytes);
            series::write(&mut self.text, metric.name, &mut labels)
        };
        written.map_err(|error| rejection(Code::from(&error), error.to_string()))
    }
}

fn check_value(point: &Point, name: &str) -> std::result::Result<f64, Rejection> {
    let Some(value) = point.value else {
        return Err(rejection(Code::InvalidValue, format!("a data point of {} has no value", quoted(name))));
    };
    if value.is_finite() {
        return Ok(value);
    }
    Err(rejection(Code::NonFiniteValue, format!("the value of {} is not a finite number", quoted(name))))
}

/// Counts the data points of a metric that is neither a gauge nor a sum.
fn ignore_points(mut fields: Fields<'_>, name: &str, sink: &mut impl Sink) -> Result<()> {
    while let Some(field) = fields.next()? {
        match field.number {
            1 => sink.ignore(Ignored::Histogram, name),
            2 => {} // the temporality
            _ => sink.ignore(Ignored::UnknownKey, "an unknown field of a histogram"),
        }
    }
    Ok(())
}
