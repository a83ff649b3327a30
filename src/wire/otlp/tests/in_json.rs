//! The same messages in JSON, as the mapping of protobuf writes them.

use serde_json::{Value as Json, json};

use super::messages::{
    Attributes, Data, ExponentialHistogramPoint, HistogramPoint, KeyValue, Metric, Number, Numbers, Point, Request,
    Scope, SummaryPoint, Value,
};

/// A request in JSON.
pub(super) fn in_json(request: &Request) -> Json {
    let resource_metrics = request.resource_metrics.iter().map(|of| {
        let scope_metrics = of.scope_metrics.iter().map(|of| {
            let metrics: Vec<_> = of.metrics.iter().map(metric).collect();
            json!({ "metrics": metrics, "scope": of.scope.as_ref().map(scope) })
        });
        let scope_metrics: Vec<_> = scope_metrics.collect();
        json!({ "scopeMetrics": scope_metrics, "resource": of.resource.as_ref().map(resource) })
    });
    json!({ "resourceMetrics": resource_metrics.collect::<Vec<_>>() })
}

fn resource(resource: &Attributes) -> Json {
    json!({ "attributes": attributes(&resource.attributes), "droppedAttributesCount": 0 })
}

fn scope(scope: &Scope) -> Json {
    json!({ "name": scope.name, "version": scope.version })
}

fn attributes(all: &[KeyValue]) -> Vec<Json> {
    let value = |value: &Value| match value {
        Value::String(text) => json!({ "stringValue": text }),
        Value::Bool(boolean) => json!({ "boolValue": boolean }),
        Value::Int(integer) => json!({ "intValue": integer.to_string() }),
        Value::Double(double) => json!({ "doubleValue": number(*double) }),
        Value::Array(_) => json!({ "arrayValue": { "values": [{ "intValue": 1 }] } }),
        Value::Bytes(_) => json!({ "bytesValue": "AAAA" }),
    };
    let any = |key_value: &KeyValue| key_value.value.as_ref().map(|any| any.value.as_ref().map_or(json!({}), value));
    all.iter().map(|key_value| json!({ "key": key_value.key, "value": any(key_value) })).collect()
}

fn number(double: f64) -> Json {
    match double {
        _ if double.is_nan() => json!("NaN"),
        f64::INFINITY => json!("Infinity"),
        f64::NEG_INFINITY => json!("-Infinity"),
        double => json!(double),
    }
}

fn metric(metric: &Metric) -> Json {
    let points = |points: Vec<Json>| json!({ "dataPoints": points });
    let (kind, data) = match &metric.data {
        None => return json!({ "name": metric.name, "unit": metric.unit }),
        Some(Data::Gauge(numbers)) => ("gauge", data(numbers)),
        Some(Data::Sum(numbers)) => ("sum", data(numbers)),
        Some(Data::Histogram(of)) => ("histogram", points(of.data_points.iter().map(histogram).collect())),
        Some(Data::ExponentialHistogram(of)) => {
            ("exponentialHistogram", points(of.data_points.iter().map(exponential).collect()))
        }
        Some(Data::Summary(of)) => ("summary", points(of.data_points.iter().map(summary).collect())),
    };
    json!({ kind: data, "name": metric.name, "unit": metric.unit })
}

fn histogram(point: &HistogramPoint) -> Json {
    json!({
        "attributes": attributes(&point.attributes),
        "startTimeUnixNano": point.start_time_unix_nano.to_string(),
        "timeUnixNano": point.time_unix_nano.to_string(),
        "count": (point.count > 0).then(|| point.count.to_string()),
        "sum": point.sum.map(number),
        "bucketCounts": point.bucket_counts.iter().map(u64::to_string).collect::<Vec<_>>(),
        "explicitBounds": point.explicit_bounds,
        "flags": point.flags,
        "min": point.min.map(number),
        "max": point.max.map(number),
    })
}

fn exponential(point: &ExponentialHistogramPoint) -> Json {
    json!({
        "attributes": attributes(&point.attributes),
        "timeUnixNano": point.time_unix_nano.to_string(),
        "count": (point.count > 0).then(|| point.count.to_string()),
        "sum": point.sum.map(number),
        "scale": point.scale,
        "zeroCount": point.zero_count.to_string(),
        "positive": point.positive.map(|_| json!({ "offset": 1, "bucketCounts": ["1"] })),
        "flags": point.flags,
        "min": point.min.map(number),
        "max": point.max.map(number),
    })
}

fn summary(point: &SummaryPoint) -> Json {
    let quantile = json!({ "quantile": 0.5, "value": 2.0 });
    json!({
        "attributes": attributes(&point.attributes),
        "timeUnixNano": point.time_unix_nano.to_string(),
        "count": (point.count > 0).then(|| point.count.to_string()),
        "sum": (point.sum != 0.0).then(|| number(point.sum)),
        "quantileValues": point.quantile_values.iter().map(|_| quantile.clone()).collect::<Vec<_>>(),
        "flags": point.flags,
    })
}

fn data(numbers: &Numbers) -> Json {
    let points: Vec<_> = numbers.data_points.iter().map(point).collect();
    json!({ "dataPoints": points, "aggregationTemporality": numbers.aggregation_temporality })
}

fn point(point: &Point) -> Json {
    let mut json = json!({
        "attributes": attributes(&point.attributes),
        "startTimeUnixNano": point.start_time_unix_nano.to_string(),
        "timeUnixNano": point.time_unix_nano.to_string(),
        "flags": point.flags,
        "exemplars": point.exemplars.iter().map(|_| json!({ "asInt": "1" })).collect::<Vec<_>>(),
    });
    match point.value {
        None => {}
        Some(Number::AsDouble(double)) => json["asDouble"] = number(double),
        Some(Number::AsInt(integer)) => json["asInt"] = json!(integer.to_string()),
    }
    json
}
