//! Random requests against a plain model, in both encodings.

use std::collections::BTreeMap;

use proptest::prelude::*;
use prost::Message;

use super::super::{Options, parse_json, parse_protobuf};
use super::in_json::in_json;
use super::messages::*;
use super::{attribute, device_attributes};
use crate::wire::fuzz;
use crate::wire::{Ignored, Incoming, Limits, Rejection, Sink};

/// The last value of each device, time and series, and the number of data points that are missing from it.
#[derive(Debug, Default, PartialEq)]
struct Model {
    values: BTreeMap<(String, Option<i64>, String), f64>,
    rejected: usize,
    with_parts: usize,
    stale: usize,
}

impl Sink for Model {
    fn limits(&self) -> Limits {
        Limits { max_metrics: 3, max_metadata_bytes: 4_096 }
    }

    fn reading(&mut self, incoming: Incoming<'_>) {
        assert!(incoming.values.len() <= 3);
        for (series, value) in incoming.values {
            let identity = (incoming.device.to_owned(), incoming.ts_ms, series.to_string());
            self.values.insert(identity, *value);
        }
    }

    fn reject(&mut self, _: Rejection) {
        self.rejected += 1;
    }

    fn reject_value(&mut self, _: Rejection) {
        self.rejected += 1;
    }

    fn ignore(&mut self, what: Ignored, _: &str) {
        self.with_parts += usize::from(what == Ignored::Histogram);
        self.stale += usize::from(what == Ignored::Stale);
    }
}

/// The expected values, from the data points one by one.
fn expected(request: &Request) -> Model {
    let mut model = Model::default();
    for of_resource in &request.resource_metrics {
        let mut resource = BTreeMap::new();
        for attribute in of_resource.resource.iter().flat_map(|resource| &resource.attributes) {
            if let Some(Ok(value)) = value_of(attribute) {
                resource.entry(attribute.key.clone()).or_insert(value);
            }
        }
        let device = device_attributes().iter().find_map(|name| resource.remove(name));
        resource.retain(|key, _| device_attributes().contains(key));
        for of_scope in &of_resource.scope_metrics {
            let mut outer = resource.clone();
            let scope = of_scope.scope.as_ref().map(|scope| scope.name.clone()).filter(|name| !name.is_empty());
            outer.extend(scope.map(|name| ("otel.scope.name".to_owned(), name)));
            for metric in &of_scope.metrics {
                for Expected { attributes, ns, flags, has_parts, values } in points_of(metric) {
                    model.with_parts += usize::from(has_parts);
                    let labels = labels_of(&attributes, &outer);
                    let ts_ms = (ns > 0).then_some((ns / 1_000_000) as i64);
                    if flags & 1 == 1 {
                        model.stale += 1;
                    } else if let (Some(device), Some(labels)) = (&device, labels)
                        && !values.is_empty()
                        && !(metric.name.is_empty() && values[0].0.is_empty())
                    {
                        model.rejected += usize::from(values.iter().any(|(_, value)| !value.is_finite()));
                        for (suffix, value) in values.into_iter().filter(|(_, value)| value.is_finite()) {
                            let series = format!("{}{suffix}{labels}", metric.name);
                            model.values.insert((device.clone(), ts_ms, series), value);
                        }
                    } else {
                        model.rejected += 1;
                    }
                }
            }
        }
    }
    model
}

/// A data point of any kind.
struct Expected {
    attributes: Vec<KeyValue>,
    ns: u64,
    flags: u32,
    /// Whether it has buckets or quantiles.
    has_parts: bool,
    /// The values by the suffix of their metric.
    values: Vec<(&'static str, f64)>,
}

fn points_of(metric: &Metric) -> Vec<Expected> {
    let distribution = |ns: u64, count: u64, others: [(&'static str, Option<f64>); 3]| {
        let others = others.into_iter().filter_map(|(suffix, value)| Some((suffix, value?)));
        let mut values: Vec<_> = others.collect();
        if ns > 0 || count > 0 || !values.is_empty() {
            values.push(("_count", count as f64));
        }
        values
    };
    match metric.data.clone() {
        None => Vec::new(),
        Some(Data::Gauge(numbers) | Data::Sum(numbers)) => {
            let value = |number| match number {
                Number::AsDouble(double) => ("", double),
                Number::AsInt(integer) => ("", integer as f64),
            };
            let expected = |Point { attributes, time_unix_nano: ns, flags, value: found, .. }: Point| Expected {
                attributes,
                ns,
                flags,
                has_parts: false,
                values: found.map(value).into_iter().collect(),
            };
            numbers.data_points.into_iter().map(expected).collect()
        }
        Some(Data::Histogram(of)) => {
            let expected = |point: HistogramPoint| Expected {
                ns: point.time_unix_nano,
                flags: point.flags,
                has_parts: !point.bucket_counts.is_empty(),
                values: distribution(
                    point.time_unix_nano,
                    point.count,
                    [("_sum", point.sum), ("_min", point.min), ("_max", point.max)],
                ),
                attributes: point.attributes,
            };
            of.data_points.into_iter().map(expected).collect()
        }
        Some(Data::ExponentialHistogram(of)) => {
            let expected = |point: ExponentialHistogramPoint| Expected {
                ns: point.time_unix_nano,
                flags: point.flags,
                has_parts: point.positive.is_some(),
                values: distribution(
                    point.time_unix_nano,
                    point.count,
                    [("_sum", point.sum), ("_min", point.min), ("_max", point.max)],
                ),
                attributes: point.attributes,
            };
            of.data_points.into_iter().map(expected).collect()
        }
        Some(Data::Summary(of)) => {
            let expected = |point: SummaryPoint| {
                // Protobuf leaves out zeros.
                let ns = point.time_unix_nano;
                let sum = (ns > 0 || point.count > 0 || point.sum != 0.0).then_some(point.sum);
                Expected {
                    ns,
                    flags: point.flags,
                    has_parts: !point.quantile_values.is_empty(),
                    values: distribution(ns, point.count, [("_sum", sum), ("_min", None), ("_max", None)]),
                    attributes: point.attributes,
                }
            };
            of.data_points.into_iter().map(expected).collect()
        }
    }
}

/// The labels of a data point as text; `None` if they reject it.
fn labels_of(attributes: &[KeyValue], outer: &BTreeMap<String, String>) -> Option<String> {
    let mut labels = outer.clone();
    let mut inner = BTreeMap::new();
    for attribute in attributes {
        if let Some(value) = value_of(attribute)
            && inner.insert(attribute.key.clone(), value.ok()?).is_some()
        {
            return None;
        }
    }
    labels.extend(inner);
    let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    Some(if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) })
}

/// The text of an attribute, if it has a value.
fn value_of(attribute: &KeyValue) -> Option<Result<String, ()>> {
    match attribute.value.as_ref()?.value.as_ref()? {
        Value::String(text) => (!text.is_empty()).then(|| Ok(text.clone())),
        Value::Bool(boolean) => Some(Ok(boolean.to_string())),
        Value::Int(integer) => Some(Ok(integer.to_string())),
        Value::Double(double) => Some(Ok(double.to_string())),
        Value::Array(_) | Value::Bytes(_) => Some(Err(())),
    }
}

fn any_attribute(keys: &'static [&'static str]) -> impl Strategy<Value = KeyValue> {
    let value = prop_oneof![
        6 => "[xyz]{0,3}".prop_map(Value::String),
        1 => any::<bool>().prop_map(Value::Bool),
        1 => any::<i64>().prop_map(Value::Int),
        1 => (-1e3..1e3).prop_map(Value::Double),
        1 => Just(Value::Array(Empty {})),
    ];
    (prop::sample::select(keys), value).prop_map(|(key, value)| attribute(key, value))
}

fn any_point() -> impl Strategy<Value = Point> {
    let value = prop_oneof![
        4 => (-1e3..1e3).prop_map(|double| Some(Number::AsDouble(double))),
        2 => any::<i64>().prop_map(|integer| Some(Number::AsInt(integer))),
        1 => Just(Some(Number::AsDouble(f64::NAN))),
        1 => Just(None),
    ];
    let attributes = prop::collection::vec(any_attribute(&["a", "b", "service.name"]), 0..3);
    (value, attributes, 0u64..3, 0u32..8).prop_map(|(value, attributes, ms, flags)| {
        let flags = u32::from(flags == 0);
        Point { attributes, time_unix_nano: ms * 1_000_000, value, flags, ..Point::default() }
    })
}

/// The data point of a histogram or summary, with the fields that all kinds have.
fn any_distribution() -> impl Strategy<Value = HistogramPoint> {
    let attributes = prop::collection::vec(any_attribute(&["a", "b", "service.name"]), 0..3);
    let value = || prop::option::of(prop_oneof![5 => -1e3..1e3, 1 => Just(f64::INFINITY), 1 => Just(0.0)]);
    let buckets = prop::collection::vec(0u64..9, 0..3);
    (attributes, 0u64..3, 0u64..3, [value(), value(), value()], buckets, 0u32..8).prop_map(
        |(attributes, ms, count, [sum, min, max], bucket_counts, flags)| HistogramPoint {
            attributes,
            time_unix_nano: ms * 1_000_000,
            count,
            sum,
            min,
            max,
            bucket_counts,
            flags: u32::from(flags == 0),
            ..HistogramPoint::default()
        },
    )
}

fn any_distributions() -> impl Strategy<Value = Data> {
    (prop::collection::vec(any_distribution(), 0..3), 0..3).prop_map(|(points, kind)| {
        let points = points.into_iter();
        match kind {
            0 => Data::Histogram(Histogram { data_points: points.collect(), ..Histogram::default() }),
            1 => {
                let exponential = |of: HistogramPoint| ExponentialHistogramPoint {
                    attributes: of.attributes,
                    time_unix_nano: of.time_unix_nano,
                    count: of.count,
                    sum: of.sum,
                    positive: (!of.bucket_counts.is_empty()).then_some(Empty {}),
                    flags: of.flags,
                    min: of.min,
                    max: of.max,
                    ..ExponentialHistogramPoint::default()
                };
                let data_points = points.map(exponential).collect();
                Data::ExponentialHistogram(ExponentialHistogram { data_points, ..ExponentialHistogram::default() })
            }
            _ => {
                let summary = |of: HistogramPoint| SummaryPoint {
                    attributes: of.attributes,
                    time_unix_nano: of.time_unix_nano,
                    count: of.count,
                    sum: of.sum.unwrap_or_default(),
                    quantile_values: of.bucket_counts.iter().map(|_| Empty {}).collect(),
                    flags: of.flags,
                };
                Data::Summary(Summary { data_points: points.map(summary).collect() })
            }
        }
    })
}

fn any_metric() -> impl Strategy<Value = Metric> {
    let points = prop::collection::vec(any_point(), 0..4);
    let numbers = points.prop_map(|data_points| Numbers { data_points, ..Numbers::default() });
    let data = prop_oneof![
        1 => Just(None),
        2 => any_distributions().prop_map(Some),
        3 => (numbers, any::<bool>()).prop_map(|(numbers, is_sum)| {
            Some(if is_sum { Data::Sum(numbers) } else { Data::Gauge(numbers) })
        }),
    ];
    ("[mn.]{0,2}", data).prop_map(|(name, data)| Metric { name, unit: String::new(), data })
}

fn any_request() -> impl Strategy<Value = Request> {
    let scope = prop::option::of("[st]{0,1}".prop_map(|name| Scope { name, version: String::new() }));
    let scope_metrics =
        (scope, prop::collection::vec(any_metric(), 0..4)).prop_map(|(scope, metrics)| ScopeMetrics { scope, metrics });
    let resource = prop::collection::vec(any_attribute(&["host.name", "service.name", "os"]), 0..4)
        .prop_map(|attributes| Attributes { attributes });
    let resource_metrics = (prop::option::of(resource), prop::collection::vec(scope_metrics, 0..3))
        .prop_map(|(resource, scope_metrics)| ResourceMetrics { resource, scope_metrics, schema_url: String::new() });
    prop::collection::vec(resource_metrics, 0..4).prop_map(|resource_metrics| Request { resource_metrics })
}

proptest! {
    #[test]
    fn random_requests_are_what_a_plain_model_says(request in any_request()) {
        let names = device_attributes();
        let options = Options { device_attributes: &names };
        let (mut first, mut second) = (Model::default(), Model::default());
        parse_protobuf(&request.encode_to_vec(), &options, &mut first).unwrap();
        prop_assert_eq!(&first, &expected(&request));
        parse_json(in_json(&request).to_string().as_bytes(), &options, &mut second).unwrap();
        prop_assert_eq!(&second, &first);
    }

    #[test]
    fn any_bytes_keep_the_promises(body in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz::otlp(&body);
        fuzz::otlp_json(&body);
    }
}
