//! Bodies that an independent library encodes in protobuf, and the same in JSON.

mod in_json;
mod messages;
mod random;

use prost::Message;

use self::in_json::in_json;
use self::messages::*;
use super::{Options, answer, json as transcoder, parse_json, parse_protobuf};
use crate::wire::recording_sink::RecordingSink;

const TS: u64 = 1_776_693_610_123_456_789;

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::String(value.to_owned()))
}

fn point(value: f64, attributes: Vec<KeyValue>) -> Point {
    Point { attributes, time_unix_nano: TS, value: Some(Number::AsDouble(value)), ..Point::default() }
}

fn gauge(name: &str, data_points: Vec<Point>) -> Metric {
    let numbers = Numbers { data_points, ..Numbers::default() };
    Metric { name: name.to_owned(), unit: String::new(), data: Some(Data::Gauge(numbers)) }
}

fn of_resource(attributes: Vec<KeyValue>, metrics: Vec<Metric>) -> ResourceMetrics {
    let scope_metrics = vec![ScopeMetrics { scope: None, metrics }];
    ResourceMetrics { resource: Some(Attributes { attributes }), scope_metrics, schema_url: "https://x".to_owned() }
}

fn request(attributes: Vec<KeyValue>, metrics: Vec<Metric>) -> Request {
    Request { resource_metrics: vec![of_resource(attributes, metrics)] }
}

fn device_attributes() -> [String; 3] {
    ["host.name", "service.instance.id", "service.name"].map(str::to_owned)
}

/// The entries of a request, the same in both encodings.
fn parsed(request: &Request) -> Vec<String> {
    let names = device_attributes();
    let options = Options { device_attributes: &names };
    let (mut first, mut second) = (RecordingSink::default(), RecordingSink::default());
    parse_protobuf(&request.encode_to_vec(), &options, &mut first).unwrap();
    parse_json(in_json(request).to_string().as_bytes(), &options, &mut second).unwrap();
    assert_eq!(first.0, second.0);
    first.0
}

fn parsed_json(body: &str) -> Result<Vec<String>, String> {
    let names = device_attributes();
    let mut sink = RecordingSink::default();
    parse_json(body.as_bytes(), &Options { device_attributes: &names }, &mut sink)
        .map_err(|error| error.to_string())?;
    Ok(sink.0)
}

#[test]
fn resources_are_devices_and_attributes_are_labels() {
    let resource = vec![
        text("service.name", "shop"),
        text("host.name", "node-1"),
        text("os.type", "linux"),
        attribute("process.pid", Value::Int(17)),
    ];
    let states = ["used", "free"].map(|state| point(1.5, vec![text("state", state)]));
    let all =
        request(resource, vec![gauge("system.memory.usage", states.to_vec()), gauge("up", vec![point(1.0, vec![])])]);
    assert_eq!(
        parsed(&all),
        [concat!(
            "node-1 1776693610123 system.memory.usage{service.name=shop,state=used}=1.5 ",
            "system.memory.usage{service.name=shop,state=free}=1.5 up{service.name=shop}=1 ",
            r#"{"os.type":"linux","process.pid":"17"}"#
        )]
    );
}

#[test]
fn the_scope_is_a_label_unless_a_data_point_has_that_label() {
    let scope = |name: &str| Some(Scope { name: name.to_owned(), version: "1".to_owned() });
    let metrics = || vec![gauge("m", vec![point(1.0, vec![])])];
    let scopes = [scope("a"), scope("b"), scope(""), None];
    let scope_metrics = scopes.map(|scope| ScopeMetrics { scope, metrics: metrics() }).to_vec();
    let resource = Some(Attributes { attributes: vec![text("host.name", "h"), text("service.name", "s")] });
    let mut all = Request { resource_metrics: vec![ResourceMetrics { resource, scope_metrics, ..Default::default() }] };
    assert_eq!(
        parsed(&all),
        [
            "h 1776693610123 m{otel.scope.name=a,service.name=s}=1 m{otel.scope.name=b,service.name=s}=1 \
             m{service.name=s}=1",
            "h 1776693610123 m{service.name=s}=1"
        ]
    );
    let inner = vec![text("service.name", "inner"), text("otel.scope.name", "c")];
    all.resource_metrics[0].scope_metrics.truncate(1);
    all.resource_metrics[0].scope_metrics[0].metrics = vec![gauge("m", vec![point(1.0, inner)])];
    assert_eq!(parsed(&all), ["h 1776693610123 m{otel.scope.name=c,service.name=inner}=1"]);
}

#[test]
fn attributes_are_texts_of_their_values() {
    let resource = || vec![text("service.name", "s")];
    let labels = vec![
        text("text", "a b"),
        attribute("yes", Value::Bool(true)),
        attribute("no", Value::Bool(false)),
        attribute("int", Value::Int(i64::MIN)),
        attribute("double", Value::Double(0.5)),
        text("empty", ""),
        KeyValue { key: "nothing".to_owned(), value: None },
        KeyValue { key: "none".to_owned(), value: Some(AnyValue { value: None }) },
    ];
    let all = request(resource(), vec![gauge("m", vec![point(1.0, labels)])]);
    let series = "m{double=0.5,int=-9223372036854775808,no=false,text=a b,yes=true}=1";
    assert_eq!(parsed(&all), [format!("s 1776693610123 {series}")]);
    for value in [Value::Array(Empty {}), Value::Bytes(vec![1])] {
        let rejected = point(1.0, vec![attribute("list", value)]);
        let all = request(resource(), vec![gauge("m", vec![rejected, point(2.0, vec![])])]);
        let why = "the attribute \"list\" of a data point of \"m\" is no text, number or boolean";
        assert_eq!(parsed(&all), [format!("value invalid_label: {why}"), "s 1776693610123 m=2".to_owned()]);
    }
}

#[test]
fn attributes_of_a_resource_that_do_not_fit_are_ignored() {
    let resource = vec![
        text("service.name", "s"),
        attribute("process.command_args", Value::Array(Empty {})),
        text("deviceId", "reserved"),
        text("lines", "a\nb"),
        text("once", "first"),
        text("once", "second"),
        text("service.name", "again"),
    ];
    let ignored = ["process.command_args", "deviceId", "lines", "once", "service.name"];
    let mut expected: Vec<_> = ignored.iter().map(|key| format!("ignored Attribute {key}")).collect();
    expected.push(r#"s 1776693610123 m=1 {"once":"first"}"#.to_owned());
    assert_eq!(parsed(&request(resource, vec![gauge("m", vec![point(1.0, vec![])])])), expected);
}

#[test]
fn each_kind_of_metric_has_its_values_and_buckets_and_quantiles_are_counted() {
    let numbers = || Numbers {
        data_points: vec![point(1.0, vec![]), point(2.0, vec![text("a", "b")])],
        aggregation_temporality: 2,
        ..Numbers::default()
    };
    let histogram = HistogramPoint {
        attributes: vec![text("a", "b")],
        time_unix_nano: TS,
        count: 3,
        sum: Some(4.5),
        bucket_counts: vec![1, 2],
        explicit_bounds: vec![0.5],
        max: Some(4.0),
        ..HistogramPoint::default()
    };
    let exponential = ExponentialHistogramPoint {
        attributes: vec![text("a", "b")],
        time_unix_nano: TS,
        sum: Some(0.0),
        scale: -2,
        positive: Some(Empty {}),
        min: Some(-1.0),
        ..ExponentialHistogramPoint::default()
    };
    let summary = SummaryPoint {
        attributes: vec![text("a", "b")],
        time_unix_nano: TS,
        count: 5,
        sum: 6.0,
        quantile_values: vec![Empty {}, Empty {}],
        ..SummaryPoint::default()
    };
    let empty = HistogramPoint { time_unix_nano: TS, ..HistogramPoint::default() };
    let empty_summary = SummaryPoint { time_unix_nano: TS, ..SummaryPoint::default() };
    let stale = HistogramPoint { flags: 1, ..histogram.clone() };
    let infinite = HistogramPoint { sum: Some(f64::INFINITY), bucket_counts: Vec::new(), ..histogram.clone() };
    let kinds = [
        Data::Gauge(numbers()),
        Data::Sum(numbers()),
        Data::Histogram(Histogram { data_points: vec![histogram, empty, stale, infinite], aggregation_temporality: 2 }),
        Data::ExponentialHistogram(ExponentialHistogram {
            data_points: vec![exponential],
            ..ExponentialHistogram::default()
        }),
        Data::Summary(Summary { data_points: vec![summary, empty_summary] }),
    ];
    let metrics = kinds.into_iter().enumerate().map(|(at, data)| Metric {
        name: format!("m{at}"),
        unit: "By".to_owned(),
        data: Some(data),
    });
    let without_data = Metric { name: "none".to_owned(), unit: String::new(), data: None };
    let all = request(vec![text("service.name", "s")], metrics.chain([without_data]).collect());
    let expected = [
        "ignored Metadata m0",
        "ignored Metadata m1",
        "ignored Metadata m2",
        "ignored Histogram m2",
        "ignored Histogram m2",
        "ignored Stale m2",
        "s 1776693610123 m0=1 m0{a=b}=2 m1=1 m1{a=b}=2 m2_count{a=b}=3 m2_max{a=b}=4 m2_sum{a=b}=4.5 m2_count=0",
        "ignored Metadata m3",
        "ignored Histogram m3",
        "ignored Metadata m4",
        "ignored Histogram m4",
        "value non_finite_value: the value of \"m2_sum\" is not a finite number",
        "s 1776693610123 m2_count{a=b}=3 m2_max{a=b}=4 m3_count{a=b}=0 m3_min{a=b}=-1 m3_sum{a=b}=0 m4_count{a=b}=5 \
         m4_sum{a=b}=6 m4_count=0 m4_sum=0",
    ];
    assert_eq!(parsed(&all), expected);
}

#[test]
fn a_histogram_without_any_field_has_no_value() {
    let histogram = Histogram { data_points: vec![HistogramPoint::default()], ..Histogram::default() };
    let metric = Metric { name: "m".to_owned(), unit: String::new(), data: Some(Data::Histogram(histogram)) };
    let rejected = "invalid_value: a data point of \"m\" has no value";
    assert_eq!(parsed(&request(vec![text("service.name", "s")], vec![metric])), [rejected]);
}

#[test]
fn values_are_finite_numbers() {
    let with = |value, flags, time_unix_nano| Point { time_unix_nano, value, flags, ..Point::default() };
    let points = vec![
        with(Some(Number::AsInt(-5)), 0, 0),
        with(None, 0, TS),
        with(Some(Number::AsDouble(f64::NAN)), 0, TS),
        with(None, 1, TS),
        with(Some(Number::AsDouble(f64::NEG_INFINITY)), 0, TS),
        with(Some(Number::AsDouble(2.5)), 2, TS),
    ];
    assert_eq!(
        parsed(&request(vec![text("service.name", "s")], vec![gauge("m", points)])),
        [
            "s now m=-5",
            "ignored Stale m",
            "value invalid_value: a data point of \"m\" has no value",
            "value non_finite_value: the value of \"m\" is not a finite number",
            "value non_finite_value: the value of \"m\" is not a finite number",
            "s 1776693610123 m=2.5"
        ]
    );
}

#[test]
fn a_resource_without_a_device_rejects_its_data_points_and_no_others() {
    let metrics = || vec![gauge("m", vec![point(1.0, vec![])])];
    let long = "x".repeat(600);
    let resources = [
        vec![text("os.type", "linux")],
        vec![text("host.name", &long)],
        vec![text("host.name", "h"), text("service.name", &long)],
        vec![text("host.name", "h")],
    ];
    let all = Request { resource_metrics: resources.map(|resource| of_resource(resource, metrics())).to_vec() };
    let entries = parsed(&all);
    let looked_for = "looked for host.name, service.instance.id, service.name";
    assert_eq!(entries[0], format!("missing_device_id: no attribute of the resource names the device ({looked_for})"));
    assert!(entries[1].starts_with("invalid_device_id: a device id has at most 128 bytes"), "{entries:?}");
    assert_eq!(
        entries[2..],
        ["value series_too_long: a metric with its labels has at most 512 bytes, this has 600", "h 1776693610123 m=1"]
    );
}

#[test]
fn series_have_limits() {
    let many = (0..40).map(|key| text(&format!("k{key}"), "v")).collect();
    let points = vec![point(1.0, many), point(1.0, vec![text("k", &"v".repeat(510))]), point(1.0, vec![text("", "v")])];
    let entries = parsed(&request(
        vec![text("service.name", "s")],
        vec![gauge("m", points), gauge("", vec![point(1.0, vec![])])],
    ));
    assert!(
        entries[0].starts_with("too_many_labels: a series has at most 32 labels, this has 40")
            || entries[0].starts_with("value "),
        "{entries:?}"
    );
    let codes: Vec<_> =
        entries.iter().map(|entry| entry.trim_start_matches("value ").split(':').next().unwrap()).collect();
    assert_eq!(codes.len(), 4);
    for code in ["too_many_labels", "series_too_long", "invalid_label", "invalid_metric_name"] {
        assert!(codes.contains(&code), "{entries:?}");
    }
}

#[test]
fn json_may_have_other_forms_of_the_same() {
    let body = r#"{"future": [1, {"x": null}], "resource_metrics": [{
        "scopeMetrics": [{"metrics": [{"name": "m", "gauge": {"dataPoints": [
            {"asDouble": "1.5", "timeUnixNano": 1776693610000000000, "attributes": null},
            {"asInt": 7, "time_unix_nano": "1776693611000000000"},
            {"asInt": "9007199254740993", "timeUnixNano": 1.776693612e18,
             "attributes": [{"key": "a", "value": {"intValue": 9007199254740993}}]}
        ]}}]}],
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "s\u0021"}}]}
    }]}"#;
    assert_eq!(
        parsed_json(body).unwrap(),
        [
            "ignored UnknownKey future",
            "s! 1776693610000 m=1.5",
            "s! 1776693611000 m=7",
            "s! 1776693612000 m{a=9007199254740993}=9007199254740992"
        ]
    );
    assert_eq!(parsed_json("{}"), Ok(vec![]));
    assert_eq!(parsed_json(r#"{"resourceMetrics": null}"#), Ok(vec![]));
}

#[test]
fn json_of_another_type_is_refused_with_its_place() {
    for (body, error) in [
        ("", "expected a value but found the end at byte 1"),
        ("[]", "expected an object, found an array at byte 1"),
        ("{} x", "expected nothing after the value at byte 4"),
        (r#"{"resourceMetrics":{}}"#, "expected an array, found an object at byte 20"),
        (r#"{"resourceMetrics":[1]}"#, "expected an object, found a number at byte 21"),
        (
            r#"{"resourceMetrics":[{"resource":{"attributes":[{"key":1}]}}]}"#,
            "expected a string, found a number at byte 55",
        ),
    ] {
        assert_eq!(parsed_json(body), Err(error.to_owned()), "{body}");
    }
    let of_point = |field: &str| {
        parsed_json(&format!(
            r#"{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":[{{"gauge":{{"dataPoints":[{{{field}}}]}}}}]}}]}}]}}"#
        ))
    };
    for (field, error) in [
        (r#""asDouble":true"#, "expected a number, found true"),
        (r#""asDouble":"1,5""#, "expected a number"),
        (r#""asDouble":"inf""#, "expected a number"),
        (r#""asInt":1.5"#, "expected a whole number of 64 bits"),
        (r#""asInt":"9223372036854775808""#, "expected a whole number of 64 bits"),
        (r#""timeUnixNano":-1"#, "expected a whole number of 64 bits without a sign"),
        (r#""attributes":[{"key":"a","value":{"boolValue":1}}]"#, "expected true or false, found a number"),
        (r#""asDouble":1,"asInt":"2""#, "asDouble and asInt exclude each other: a message has one of them"),
        (r#""as_int":1,"asInt":1"#, "asInt is duplicated"),
        (r#""asInt":null,"asInt":1"#, "asInt is duplicated"),
        (r#""timeUnixNano":1,"time_unix_nano":2"#, "timeUnixNano is duplicated"),
        (r#""attributes":[],"attributes":[]"#, "attributes is duplicated"),
        (r#""attributes":[{"key":"a","key":"b"}]"#, "key is duplicated"),
        (r#""startTimeUnixNano":1,"startTimeUnixNano":1"#, "startTimeUnixNano is duplicated"),
        (
            r#""attributes":[{"key":"a","value":{"stringValue":"b","intValue":1}}]"#,
            "stringValue and intValue exclude each other: a message has one of them",
        ),
    ] {
        let found = of_point(field).unwrap_err();
        assert!(found.starts_with(&format!("{error} at byte ")), "{field}: {found}");
    }
    assert!(of_point(r#""asInt":null,"asDouble":1"#).is_ok(), "null is an absent field");
    let kinds = r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{},"sum":{}}]}]}]}"#;
    assert!(parsed_json(kinds).unwrap_err().starts_with("gauge and sum exclude each other"));
}

#[test]
fn an_object_of_json_takes_a_few_bytes_of_protobuf() {
    let body = format!(r#"{{"resourceMetrics":[{}]}}"#, vec!["{}"; 1_000].join(","));
    let message = transcoder::to_protobuf(body.as_bytes(), &mut |_| {}).unwrap();
    assert!(message.len() <= 2 * body.len(), "{} bytes become {}", body.len(), message.len());
}

#[test]
fn answers_are_the_messages_of_otlp() {
    assert!(answer::success(0, "nothing").is_empty());
    let partial_success = Response::decode(&*answer::success(3, "why")).unwrap().partial_success;
    assert_eq!(partial_success, Some(PartialSuccess { rejected_data_points: 3, error_message: "why".to_owned() }));
    let status = Status::decode(&*answer::status(8, "later")).unwrap();
    assert_eq!(status, Status { code: 8, message: "later".to_owned() });
}
