//! Metrics and their data points.

use smallvec::SmallVec;

use super::super::grouping::Grouping;
use super::super::protobuf::{Fields, Result};
use super::super::{
    Code, Ignored, Rejection, Sink,
    problem::{quoted, rejection},
};
use super::attribute::{Attribute, AttributeValue};
use super::resource::{Labels, ResourceLabels};
use crate::common::work;
use crate::model::series::{self, SERIES_MAX_LABELS, SeriesError};

/// The label with the name of the scope.
const SCOPE: &str = "otel.scope.name";

/// The flag of a data point without a recorded value.
const NO_RECORDED_VALUE: u64 = 1;

/// Up to this many labels are collected without an allocation.
const USUAL_LABELS: usize = 8;

/// Reads one data point after the other, with the same buffers for all.
#[derive(Debug, Default)]
pub(super) struct Points<'b> {
    /// The attributes of the data point, except empty attributes.
    attributes: Labels<'b>,
    /// The name of the metric with the suffix of a value.
    name: String,
    /// The canonical text of the series.
    text: String,
}

/// The fields of a metric that its data points need.
#[derive(Debug, Clone, Copy)]
struct Metric<'b, 'r> {
    name: &'b str,
    scope: &'b str,
    resource: &'r ResourceLabels<'b, 'r>,
}

/// A data point, except its attributes.
#[derive(Debug, Default)]
struct Point {
    ts_ms: Option<i64>,
    /// The values, each with the suffix of its metric.
    ///
    /// A gauge or sum has one value, with an empty suffix.
    values: SmallVec<[(&'static str, f64); 4]>,
    flags: u64,
    /// The number of attributes, except empty attributes.
    attributes: usize,
    /// Why the data point is rejected.
    rejection: Option<Rejection>,
}

/// The field numbers of a data point of a histogram or summary.
///
/// In all kinds, field 3 is the time, 4 the count and 5 the sum.
#[derive(Debug, Clone, Copy)]
struct DistributionFields {
    attributes: u32,
    flags: u32,
    exemplars: u32,
    min: u32,
    max: u32,
    /// Whether an absent sum is unknown, and not 0.
    is_sum_optional: bool,
    /// The fields of buckets or quantiles.
    parts: &'static [u32],
    /// The fields without an effect: the start, and the bounds or scale of buckets.
    unused: &'static [u32],
}

const OF_HISTOGRAM: DistributionFields = DistributionFields {
    attributes: 9,
    flags: 10,
    exemplars: 8,
    min: 11,
    max: 12,
    is_sum_optional: true,
    parts: &[6],
    unused: &[2, 7],
};
const OF_EXPONENTIAL_HISTOGRAM: DistributionFields = DistributionFields {
    attributes: 1,
    flags: 10,
    exemplars: 11,
    min: 12,
    max: 13,
    is_sum_optional: true,
    parts: &[8, 9],
    unused: &[2, 6, 7, 14],
};
/// A summary has neither exemplars nor extremes: 0 is the number of no field.
const OF_SUMMARY: DistributionFields = DistributionFields {
    attributes: 7,
    flags: 8,
    exemplars: 0,
    min: 0,
    max: 0,
    is_sum_optional: false,
    parts: &[6],
    unused: &[2],
};

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
        resource: &ResourceLabels<'b, '_>,
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
                GAUGE | SUM | HISTOGRAM | EXPONENTIAL_HISTOGRAM | SUMMARY if field.number == kind => {
                    self.read_points(field.message()?, kind, &metric, readings)?;
                }
                GAUGE | SUM | HISTOGRAM | EXPONENTIAL_HISTOGRAM | SUMMARY => {
                    readings.sink().ignore(Ignored::UnknownKey, "a second kind of a metric");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the data points of a kind.
    fn read_points<S: Sink>(
        &mut self,
        mut fields: Fields<'b>,
        kind: u32,
        metric: &Metric<'b, '_>,
        readings: &mut Grouping<'_, S>,
    ) -> Result<()> {
        while let Some(field) = fields.next()? {
            match field.number {
                1 if readings.is_over() => return Ok(()),
                1 => {
                    let (fields, sink) = (field.message()?, readings.sink());
                    let point = match kind {
                        HISTOGRAM => self.read_distribution(fields, &OF_HISTOGRAM, metric, sink)?,
                        EXPONENTIAL_HISTOGRAM => {
                            self.read_distribution(fields, &OF_EXPONENTIAL_HISTOGRAM, metric, sink)?
                        }
                        SUMMARY => self.read_distribution(fields, &OF_SUMMARY, metric, sink)?,
                        _ => self.read_number(fields, metric, sink)?,
                    };
                    self.pass_on(&point, metric, readings);
                }
                2 | 3 => {} // the temporality, and whether a sum is monotonic
                _ => readings.sink().ignore(Ignored::UnknownKey, "an unknown field of the data of a metric"),
            }
        }
        Ok(())
    }

    fn read_number(&mut self, mut fields: Fields<'b>, metric: &Metric<'b, '_>, sink: &mut impl Sink) -> Result<Point> {
        self.attributes.clear();
        let mut point = Point::default();
        while let Some(field) = fields.next()? {
            match field.number {
                2 => {} // the time at which a sum started
                3 => point.ts_ms = ts_ms(field.fixed64()?),
                4 => point.set("", field.double()?),
                5 => sink.ignore(Ignored::Exemplar, metric.name),
                6 => point.set("", field.fixed64()?.cast_signed() as f64),
                7 => self.read_attribute(field.message()?, metric, &mut point)?,
                8 => point.flags = field.varint()?,
                _ => sink.ignore(Ignored::UnknownKey, "an unknown field of a data point"),
            }
        }
        Ok(point)
    }

    /// Reads a data point of a histogram or a summary.
    ///
    /// An absent count is 0, and so is an absent sum of a summary: protobuf leaves out zeros. A data point
    /// that also lacks its time has no value. Otherwise two bytes of a request would make a reading.
    fn read_distribution(
        &mut self,
        mut fields: Fields<'b>,
        numbers: &DistributionFields,
        metric: &Metric<'b, '_>,
        sink: &mut impl Sink,
    ) -> Result<Point> {
        self.attributes.clear();
        let (mut point, mut count, mut has_parts) = (Point::default(), None, false);
        while let Some(field) = fields.next()? {
            match field.number {
                3 => point.ts_ms = ts_ms(field.fixed64()?),
                4 => count = Some(field.fixed64()? as f64),
                5 => point.set("_sum", field.double()?),
                number if number == numbers.attributes => self.read_attribute(field.message()?, metric, &mut point)?,
                number if number == numbers.flags => point.flags = field.varint()?,
                number if number == numbers.exemplars => sink.ignore(Ignored::Exemplar, metric.name),
                number if number == numbers.min => point.set("_min", field.double()?),
                number if number == numbers.max => point.set("_max", field.double()?),
                number if numbers.parts.contains(&number) => has_parts = true,
                number if numbers.unused.contains(&number) => {}
                _ => sink.ignore(Ignored::UnknownKey, "an unknown field of a data point"),
            }
        }
        if count.is_some() || point.ts_ms.is_some() || !point.values.is_empty() {
            point.set("_count", count.unwrap_or_default());
            if !numbers.is_sum_optional && point.values.iter().all(|(suffix, _)| *suffix != "_sum") {
                point.set("_sum", 0.0);
            }
            point.values.sort_unstable_by_key(|(suffix, _)| *suffix); // whatever the order of the fields
        }
        if has_parts {
            sink.ignore(Ignored::Histogram, metric.name);
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
        let labels = match metric.resource {
            Ok(labels) => labels,
            Err(rejection) => return readings.reject(point.ts_ms, rejection),
        };
        if let Err(rejection) = point.check(metric.name) {
            return readings.add(point.ts_ms, Err(&rejection));
        }
        // All values of a histogram or summary count as one sample, or as none if one of them is rejected.
        let (mut begins, mut is_rejected) = (point.values.iter().all(|(_, value)| value.is_finite()), false);
        for (suffix, value) in &point.values {
            if !value.is_finite() {
                if std::mem::replace(&mut is_rejected, true) {
                    continue;
                }
                let what =
                    format!("the value of {} is not a finite number", quoted(&format!("{}{suffix}", metric.name)));
                readings.add(point.ts_ms, Err(&rejection(Code::NonFiniteValue, what)));
                continue;
            }
            match self.write(point, suffix, metric, labels) {
                Ok(()) if suffix.is_empty() => readings.add(point.ts_ms, Ok((&self.text, *value))),
                Ok(()) => readings.add_of_histogram(point.ts_ms, &self.text, *value, std::mem::take(&mut begins)),
                Err(rejection) => return readings.add(point.ts_ms, Err(&rejection)),
            }
        }
    }

    /// Writes the canonical text of the series of a value.
    fn write(
        &mut self,
        point: &Point,
        suffix: &str,
        metric: &Metric<'b, '_>,
        of_resource: &[(&str, std::borrow::Cow<'b, str>)],
    ) -> std::result::Result<(), Rejection> {
        let attributes = || self.attributes.iter().map(|(key, value)| (*key, &**value));
        let of_scope = (!metric.scope.is_empty()).then_some((SCOPE, metric.scope));
        let outer = of_resource.iter().map(|(key, value)| (*key, &**value)).chain(of_scope);
        let outer = outer.filter(|(key, _)| !attributes().any(|(inner, _)| inner == *key));
        let mut labels: SmallVec<[(&str, &str); USUAL_LABELS]> = outer.chain(attributes()).collect();
        let surplus = point.attributes - self.attributes.len();
        if surplus > 0 {
            return Err(SeriesError::TooManyLabels(labels.len() + surplus).into());
        }
        // The number and the length of labels are checked before a label is read, because a scope has many
        // data points.
        let bytes = metric.name.len()
            + suffix.len()
            + labels.iter().map(|(key, value)| key.len() + value.len() + 2).sum::<usize>();
        series::check_length(bytes)?;
        work::count(bytes);
        self.name.clear();
        self.name.extend([metric.name, suffix]);
        Ok(series::write(&mut self.text, &self.name, &mut labels)?)
    }
}

impl Point {
    /// Sets the value with this suffix. If it occurs twice, the last value stays.
    fn set(&mut self, suffix: &'static str, value: f64) {
        match self.values.iter_mut().find(|(known, _)| *known == suffix) {
            Some((_, known)) => *known = value,
            None => self.values.push((suffix, value)),
        }
    }

    /// Checks the data point as a whole: it needs a value, and no invalid attribute.
    fn check(&self, name: &str) -> std::result::Result<(), Rejection> {
        if let Some(rejection) = &self.rejection {
            return Err(rejection.clone());
        }
        if self.values.is_empty() {
            return Err(rejection(Code::InvalidValue, format!("a data point of {} has no value", quoted(name))));
        }
        Ok(())
    }
}

/// An instant in Unix milliseconds. 0 is no instant.
fn ts_ms(ns: u64) -> Option<i64> {
    (ns > 0).then(|| (ns / 1_000_000).cast_signed())
}
