//! Bodies of OTLP that stretch one thing each.

use super::bodies::fill;
use super::messages::{Message, case, filled, message};
use super::{Case, Format};

/// An attribute with a text.
fn attribute(key: &str, value: &str) -> Message {
    message().bytes(1, key).message(2, &message().bytes(1, value))
}

/// A `ResourceMetrics`: a resource with these attributes, and metrics of one scope.
fn of_resource(attributes: &[(&str, &str)], scope: &str, metrics: &Message) -> Message {
    let resource =
        attributes.iter().fold(message(), |resource, (key, value)| resource.message(1, &attribute(key, value)));
    let scope_metrics = message().message(1, &message().bytes(1, scope)).bytes(2, &metrics.0);
    message().message(1, &resource).message(2, &scope_metrics)
}

/// A gauge with these data points.
fn gauge(name: &str, points: &Message) -> Message {
    message().bytes(1, name).message(5, points)
}

/// A data point of the value 0.
fn point() -> Message {
    message().fixed64(6, 0)
}

/// Cases with many data points, or with many attributes of one data point.
pub(super) fn points() -> Vec<Case> {
    let of = Format::Otlp;
    let host: &[(&str, &str)] = &[("host.name", "a")];
    let in_points = move |name, part: fn(Message, usize) -> Message| {
        case(of, name, move |bytes| {
            let points = message().fill(bytes, part);
            message().message(1, &of_resource(host, "", &gauge("m", &points)))
        })
    };
    let in_point = move |name, part: fn(Message, usize) -> Message| {
        case(of, name, move |bytes| {
            let points = message().message(1, &point().fill(bytes, part));
            message().message(1, &of_resource(host, "", &gauge("m", &points)))
        })
    };
    vec![
        in_points("empty data points", |points, _| points.message(1, &message())),
        in_points("data points", |points, _| points.message(1, &point())),
        in_points("data points at different times", |points, at| {
            points.message(1, &point().fixed64(3, at as u64 * 1_000_000))
        }),
        in_points("data points of different series", |points, at| {
            points.message(1, &point().message(7, &attribute("a", &at.to_string())))
        }),
        in_points("data points of different long series", |points, at| {
            points.message(1, &point().message(7, &attribute("a", &format!("{}{at}", "v".repeat(480)))))
        }),
        in_points("data points with an attribute of no text", |points, _| {
            points.message(1, &point().message(7, &message().bytes(1, "a").message(2, &message().bytes(7, ""))))
        }),
        in_points("unknown fields of data points", |points, _| points.message(1, &message().bytes(1, ""))),
        in_point("attributes of one data point", |point, at| point.message(7, &attribute(&at.to_string(), "v"))),
        in_point("one attribute again and again", |point, _| point.message(7, &attribute("a", "v"))),
        in_point("empty attributes", |point, _| point.message(7, &message())),
        in_point("numbers as attributes", |point, at| {
            point.message(7, &message().bytes(1, at.to_string()).message(2, &message().fixed64(4, u64::MAX / 3)))
        }),
        in_point("exemplars", |point, _| point.message(5, &message())),
    ]
}

/// A case with many data points of one resource.
fn points_of(
    name: &'static str,
    attributes: fn(usize) -> Vec<(&'static str, String)>,
    scope: fn(usize) -> String,
    metric: fn(usize) -> String,
) -> Case {
    case(Format::Otlp, name, move |bytes| {
        let attributes = attributes(bytes);
        let attributes: Vec<_> = attributes.iter().map(|(key, value)| (*key, &**value)).collect();
        let points = message().fill(bytes, |points, _| points.message(1, &point()));
        message().message(1, &of_resource(&attributes, &scope(bytes), &gauge(&metric(bytes), &points)))
    })
}

fn short(_: usize) -> String {
    "m".to_owned()
}

fn on_a(_: usize) -> Vec<(&'static str, String)> {
    vec![("host.name", "a".to_owned())]
}

/// Cases with many resources, or with a resource that has a long part, and with little metadata.
pub(super) fn resources() -> Vec<Case> {
    let of = Format::Otlp;
    vec![
        filled(of, "empty resources", 1, |_| message()),
        filled(of, "empty scopes", 1, |_| message().fill(1_000, |of, _| of.message(2, &message()))),
        filled(of, "empty metrics", 1, |_| {
            message().message(2, &message().fill(1_000, |scope, _| scope.message(2, &message())))
        }),
        points_of(
            "data points of the longest series",
            |_| vec![("host.name", "a".repeat(128)), ("service.name", "s".repeat(300))],
            |_| "o".repeat(100),
            short,
        ),
        points_of(
            "data points of a resource with a label of half the body",
            |bytes| vec![("host.name", "a".to_owned()), ("service.name", "s".repeat(bytes / 2))],
            short,
            short,
        ),
        points_of("data points of a long device", |bytes| vec![("host.name", "a".repeat(bytes / 2))], short, short),
        points_of("data points of a long scope", on_a, |bytes| "o".repeat(bytes / 2), short),
        points_of("data points of a long metric", on_a, short, |bytes| "m".repeat(bytes / 2)),
        points_of("data points without a device", |_| vec![("os", "x".to_owned())], short, short),
        filled(of, "different devices", 1, |at| {
            of_resource(&[("host.name", &at.to_string())], "", &gauge("m", &message().message(1, &point())))
        }),
        case(of, "one attribute of a resource again and again", |bytes| {
            let resource = message().fill(bytes, |resource, _| resource.message(1, &attribute("host.name", "v")));
            message().message(1, &message().message(1, &resource))
        }),
        case(of, "data points of histograms", |bytes| {
            let points = message().fill(bytes, |points, _| points.message(1, &message()));
            message().message(1, &of_resource(&[("host.name", "a")], "", &message().bytes(1, "m").message(9, &points)))
        }),
    ]
}

/// Cases with resources that have much metadata.
pub(super) fn metadata() -> Vec<Case> {
    let of = Format::Otlp;
    vec![
        points_of(
            "data points with much metadata",
            |_| vec![("host.name", "a".to_owned()), ("os", "x".repeat(4_000))],
            short,
            short,
        ),
        points_of(
            "data points with too much metadata",
            |bytes| vec![("host.name", "a".to_owned()), ("os", "x".repeat(bytes / 2))],
            short,
            short,
        ),
        filled(of, "devices that alternate with metadata", 1, |at| {
            let attributes = [("host.name", ["a", "b"][at % 2]), ("os", &"x".repeat(1_000))];
            of_resource(&attributes, "", &gauge("m", &message().message(1, &point())))
        }),
        filled(of, "metadata of many keys", 1, |_| {
            let resource = message().message(1, &attribute("host.name", "a"));
            let resource = resource.fill(8_000, |resource, at| resource.message(1, &attribute(&at.to_string(), "v")));
            message()
                .message(1, &resource)
                .message(2, &message().message(2, &gauge("m", &message().message(1, &point()))))
        }),
        case(of, "attributes of one resource", |bytes| {
            let resource = message().fill(bytes, |resource, at| resource.message(1, &attribute(&at.to_string(), "v")));
            message().message(1, &message().message(1, &resource))
        }),
        case(of, "empty attributes of a resource", |bytes| {
            let resource = message().fill(bytes, |resource, _| resource.message(1, &message()));
            message().message(1, &message().message(1, &resource))
        }),
    ]
}

const RESOURCE: &str = r#"{"attributes":[{"key":"host.name","value":{"stringValue":"a"}}]}"#;

pub(super) fn json() -> Vec<Case> {
    let case = |name, start: &'static str, end: &'static str, item: fn(usize) -> String| Case {
        name,
        format: Format::OtlpJson,
        body: Box::new(move |bytes| fill(bytes, start, ",", end, item)),
    };
    let in_points = |name, item: fn(usize) -> String| Case {
        name,
        format: Format::OtlpJson,
        body: Box::new(move |bytes| {
            let metric = r#"[{"metrics":[{"name":"m","gauge":{"dataPoints":["#;
            let start = format!(r#"{{"resourceMetrics":[{{"resource":{RESOURCE},"scopeMetrics":{metric}"#);
            fill(bytes, &start, ",", "]}}]}]}]}", item)
        }),
    };
    vec![
        case("empty resources", r#"{"resourceMetrics":["#, "]}", |_| "{}".to_owned()),
        case("empty scopes", r#"{"resourceMetrics":[{"scopeMetrics":["#, "]}]}", |_| "{}".to_owned()),
        case("empty metrics", r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":["#, "]}]}]}", |_| "{}".to_owned()),
        case("attributes", r#"{"resourceMetrics":[{"resource":{"attributes":["#, "]}}]}", |at| {
            format!(r#"{{"key":"{at}","value":{{"intValue":1}}}}"#)
        }),
        case("empty attributes", r#"{"resourceMetrics":[{"resource":{"attributes":["#, "]}}]}", |_| "{}".to_owned()),
        case("unknown keys", "{", "}", |_| r#""":1"#.to_owned()),
        case("long unknown keys", "{", "}", |_| format!(r#""{}":[{{}}]"#, "resource_metrics".repeat(100))),
        case("keys of underscores", "{", "}", |_| format!(r#""{}":1"#, "_".repeat(30))),
        case("a known key again and again", "{", "}", |_| r#""resourceMetrics":[]"#.to_owned()),
        case("nulls", "{", "}", |_| r#""resourceMetrics":null"#.to_owned()),
        case("broken JSON", "{", "", |_| r#""resourceMetrics":[{}]"#.to_owned()),
        case("depth", r#"{"x":"#, "", |_| "[".repeat(1_000)),
        in_points("empty data points", |_| "{}".to_owned()),
        in_points("data points", |_| r#"{"asInt":1}"#.to_owned()),
        in_points("data points of texts", |at| format!(r#"{{"asDouble":"{at}.5","timeUnixNano":"{at}000000"}}"#)),
        in_points("data points of different series", |at| {
            format!(r#"{{"asInt":1,"attributes":[{{"key":"a","value":{{"stringValue":"{at}"}}}}]}}"#)
        }),
        in_points("attributes of escapes", |at| {
            let value = r"\u0041".repeat(50);
            format!(r#"{{"asInt":1,"attributes":[{{"key":"a","value":{{"stringValue":"{value}{at}"}}}}]}}"#)
        }),
        in_points("exemplars", |_| r#"{"exemplars":[1,1,1,1]}"#.to_owned()),
    ]
}
