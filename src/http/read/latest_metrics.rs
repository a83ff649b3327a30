//! `GET /metrics/latest`: the latest values as metrics for Prometheus.
//!
//! Prometheus asks for all values at once, and takes a series that is absent for one that has ended. A value
//! that is too old looks like a device that is silent. So the answer is complete, or a problem: it has no
//! pages, and the server refuses the request if the store is away, or readings wait because pending is full.
//! The server reads the devices in pages, and holds the text of all of them.
//! Only series that have been silent for long may be missing: a metric names their devices.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::QueryParts;
use super::devices::BYTES_PER_DEVICE;
use crate::http::answer::body_in_pieces::BodyInPieces;
use crate::http::answer::format::write_number;
use crate::http::openapi::parameter::{DEVICE, LABELS, METADATA, METADATA_LABEL, METRIC, PREFIX};
use crate::http::openapi::{Operation, Parameters, Tag};
use crate::http::problem::{Problem, ProblemCode};
use crate::http::request::params::Params;
use crate::model::prometheus::label_name;
use crate::model::series::{Series, metric_of};
use crate::model::{Metric, find_member};
use crate::query::{Latest, QueryError};
use crate::telemetry::Exposition;

/// How many bytes of text an answer may have for each value that is allowed.
const BYTES_PER_VALUE: usize = 300;

/// The most keys of metadata that can be labels.
const MAX_LABELS: usize = 8;

/// The labels that the answer uses itself, so no other label may have their names.
const OWN_LABELS: [&str; 4] = ["device", "metric", "series", "bound"];

const PARAMETERS: Parameters = &[&[&DEVICE, &PREFIX, &METADATA, &METRIC, &LABELS, &METADATA_LABEL]];

/// Describes `GET /metrics/latest`.
pub(in crate::http) fn describe() -> Operation {
    let text = json!({ "type": "string" });
    Operation::get(Tag::Queries, "getLatestMetrics", "The latest values as metrics for Prometheus")
        .parameters(PARAMETERS)
        .answers_as(200, "The text format of Prometheus.", "text/plain", &text)
        .tagged()
        .queries()
        .problems(&[ProblemCode::TooManyDevices])
}

/// `GET /metrics/latest`
pub(in crate::http) async fn latest_metrics(
    QueryParts { app, grant, running, uri, .. }: QueryParts,
) -> Result<Response, Problem> {
    let mut params = Params::of(&uri, PARAMETERS);
    let labels = MetadataLabel::all(&mut params)?;
    let series = params.series()?;
    let max_devices = app.limits.max_devices;
    let mut request = super::devices::first_page(&app, &grant, &mut params, max_devices)?;
    params.end()?;
    request.skips_any = true;
    let max_bytes = app.limits.max_points.saturating_mul(BYTES_PER_VALUE);
    running.reserve(max_devices.saturating_mul(BYTES_PER_DEVICE).saturating_add(max_bytes)).await?;

    let read = async {
        let mut families = Families::default();
        loop {
            let now_ms = app.clock.now_ms();
            let page = app.queries.latest_of_devices(&grant.device_scope, &request, &series).await?.complete()?;
            for (device, latest) in &page.devices {
                families.add(device, latest, &labels, now_ms, max_bytes)?;
            }
            let Some(next) = page.next else { return Ok::<_, Problem>(families.finish()) };
            request.after = Some(next.to_string());
        }
    };
    // No other limit ends the pages that have no device that matches. In a large fleet, these may be many.
    let read = tokio::time::timeout_at(app.queries.deadline(), read).await;
    let pieces = read.map_err(|_| QueryError::Timeout(app.queries.limits().timeout))??;
    let body = Body::new(BodyInPieces::new(pieces));
    Ok(([(header::CONTENT_TYPE, Exposition::CONTENT_TYPE)], body).into_response())
}

/// A key of metadata, and the name of its label: `at.city` and `at_city`.
struct MetadataLabel {
    key: String,
    name: String,
}

impl MetadataLabel {
    /// Reads all parameters `label`, which name keys of metadata.
    fn all(params: &mut Params<'_>) -> Result<Vec<Self>, Problem> {
        let mut labels: Vec<Self> = Vec::new();
        for key in params.all("label") {
            let refused = |why: &str| Err(Problem::invalid_parameter("label", format!("{key:.64}: {why}")));
            let name = label_name(&key);
            if key.is_empty() || key.len() > 256 || OWN_LABELS.contains(&&*name) || name.starts_with("__") {
                return refused("cannot be the name of a label");
            }
            if labels.iter().any(|label| label.name == name) {
                return refused("is the name of another label too");
            }
            if labels.len() == MAX_LABELS {
                return refused("at most 8 keys of metadata can be labels");
            }
            labels.push(Self { key: key.into_owned(), name });
        }
        Ok(labels)
    }

    /// Returns the value of each label in the metadata of a device.
    fn values<'l>(labels: &'l [Self], metadata: &str) -> Vec<(&'l str, String)> {
        if labels.is_empty() {
            return Vec::new();
        }
        let metadata: Map<String, Value> = serde_json::from_str(metadata).unwrap_or_default();
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
            _ => None,
        };
        let value = |label: &'l Self| Some((&*label.name, find_member(&metadata, &label.key, &text)?));
        labels.iter().filter_map(value).collect()
    }
}

/// The families of metrics in the text format, line by line.
#[derive(Default)]
struct Families {
    values: Vec<u8>,
    ages: Vec<u8>,
    limits: Vec<u8>,
    invalid_limits: Vec<u8>,
    more_metrics: Vec<u8>,
}

impl Families {
    /// Adds the latest values, ages and limits of a device.
    fn add(
        &mut self,
        device: &str,
        latest: &Latest,
        labels: &[MetadataLabel],
        now_ms: i64,
        max_bytes: usize,
    ) -> Result<(), Problem> {
        let metadata = latest.metadata.as_ref().map_or("{}", |metadata| &*metadata.text);
        let limits = latest.limits();
        let of_device = MetadataLabel::values(labels, metadata);
        let mut metrics: BTreeSet<&str> = BTreeSet::new();
        let mut known = HashSet::new();
        for (series, (ts_ms, value)) in &latest.values {
            let mut labels = labels_of(device, series, &of_device);
            if !of_device.is_empty() {
                // Metadata may give a series the label that tells another one apart.
                let mut sorted = labels.clone();
                sorted.sort_unstable();
                if !known.insert(sorted) {
                    labels.push(("series", (&**series).into()));
                }
            }
            write_sample(&mut self.values, "tidegauge_latest_value", &labels, *value);
            let age = now_ms.saturating_sub(*ts_ms) as f64 / 1_000.0;
            write_sample(&mut self.ages, "tidegauge_latest_age_seconds", &labels, age);
            metrics.insert(metric_of(series));
            self.check_bytes(max_bytes)?;
        }
        for metric in metrics {
            let Some(bounds) = limits.bounds_of(metric) else { continue };
            for (bound, limit) in [("min", bounds.min), ("max", bounds.max)] {
                let Some(limit) = limit else { continue };
                let labels = [("device", device), ("metric", metric), ("bound", bound)];
                write_sample(&mut self.limits, "tidegauge_latest_limit", &labels, limit);
            }
        }
        let invalid = limits.invalid as f64;
        write_sample(&mut self.invalid_limits, "tidegauge_latest_limits_invalid", &[("device", device)], invalid);
        if latest.has_more {
            write_sample(&mut self.more_metrics, "tidegauge_latest_more_metrics", &[("device", device)], 1.0);
        }
        self.check_bytes(max_bytes)
    }

    /// Refuses more than `max_bytes` of samples.
    fn check_bytes(&self, max_bytes: usize) -> Result<(), Problem> {
        let families = [&self.values, &self.ages, &self.limits, &self.invalid_limits, &self.more_metrics];
        if families.into_iter().map(Vec::len).sum::<usize>() <= max_bytes {
            return Ok(());
        }
        let why = format!(
            "the answer has more than {max_bytes} bytes ({BYTES_PER_VALUE} for each of query.max_points); select fewer \
             values with `prefix=`, `device=`, `meta.KEY=` or `metric=`, in several scrapes"
        );
        Err(Problem::invalid_parameter("prefix", why))
    }

    /// Returns the text of all families in pieces.
    fn finish(self) -> Vec<Bytes> {
        let families = [
            ("tidegauge_latest_value", "The latest value of a series.", self.values),
            ("tidegauge_latest_age_seconds", "The time since the reading of the latest value.", self.ages),
            ("tidegauge_latest_limit", "A limit of the metadata of a device.", self.limits),
            (
                "tidegauge_latest_limits_invalid",
                "The limits of the metadata of a device that are not understood.",
                self.invalid_limits,
            ),
            ("tidegauge_latest_more_metrics", "1 for a device of which old metrics may be missing.", self.more_metrics),
        ];
        let pieces = families.into_iter().flat_map(|(name, help, samples)| {
            let head = format!("# HELP {name} {help}\n# TYPE {name} gauge\n");
            [Bytes::from(head), Bytes::from(samples)]
        });
        pieces.collect()
    }
}

/// Returns the labels of a series of a device.
///
/// A label of the series precedes metadata of the same name. A series with a label that Prometheus does not
/// allow has its text as the label `series`. So without metadata, two series never have the same labels.
fn labels_of<'a>(
    device: &'a str,
    series: &'a Metric,
    of_device: &'a [(&'a str, String)],
) -> Vec<(&'a str, Cow<'a, str>)> {
    let metric = metric_of(series);
    let mut labels: Vec<(&str, Cow<'_, str>)> = vec![("device", device.into()), ("metric", metric.into())];
    if metric.len() < series.len() {
        let of_series = Series::parse(series).map(|series| series.labels).unwrap_or_default();
        let is_usual = |key: &str| label_name(key) == *key && !OWN_LABELS.contains(&key) && !key.starts_with("__");
        let mut is_whole = !of_series.is_empty();
        for (key, value) in of_series {
            match key {
                Cow::Borrowed(key) if is_usual(key) => labels.push((key, value)),
                _ => is_whole = false,
            }
        }
        if !is_whole {
            labels.push(("series", (&**series).into()));
        }
    }
    for (name, value) in of_device {
        if !labels.iter().any(|(known, _)| known == name) {
            labels.push((name, value.as_str().into()));
        }
    }
    labels
}

/// Writes a line of the text format: `name{label="x"} 1.5`.
fn write_sample(text: &mut Vec<u8>, name: &str, labels: &[(&str, impl AsRef<str>)], value: f64) {
    text.extend_from_slice(name.as_bytes());
    for (nth, (label, value)) in labels.iter().enumerate() {
        text.push(if nth == 0 { b'{' } else { b',' });
        text.extend_from_slice(label.as_bytes());
        text.extend_from_slice(b"=\"");
        for byte in value.as_ref().bytes() {
            match byte {
                b'\\' => text.extend_from_slice(b"\\\\"),
                b'"' => text.extend_from_slice(b"\\\""),
                b'\n' => text.extend_from_slice(b"\\n"),
                byte => text.push(byte),
            }
        }
        text.push(b'"');
    }
    text.extend_from_slice(b"} ");
    write_number(text, value);
    text.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::Hour;
    use crate::store::DeviceMetadata;

    fn text(metadata: &str, values: &[(&str, f64)], labels: &[&str]) -> String {
        let values = values.iter().map(|(series, value)| ((*series).into(), (9_000, *value))).collect();
        let metadata = Some(DeviceMetadata { hour: Hour(0), text: metadata.into() });
        let latest = Latest { values, has_more: false, metadata };
        let query: Vec<String> = labels.iter().map(|label| format!("label={label}")).collect();
        let uri = format!("/?{}", query.join("&")).parse().expect("a URI");
        let labels = MetadataLabel::all(&mut Params::of(&uri, PARAMETERS)).expect("labels");
        let mut families = Families::default();
        families.add("d:1", &latest, &labels, 10_500, 10_000).expect("few");
        let text = String::from_utf8(families.finish().concat()).expect("UTF-8");
        text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_value_has_its_labels_its_age_and_its_limits() {
        let metadata =
            r#"{"hall":3,"at":{"city":"Graz"},"note":null,"limits":{"level":{"min":20,"max":90},"x":{"min":1}}}"#;
        let found =
            text(metadata, &[("level", 12.5), ("level{side=left}", 1e300)], &["hall", "at.city", "note", "side"]);
        let place = r#"hall="3",at_city="Graz""#;
        let expected = [
            format!(r#"tidegauge_latest_value{{device="d:1",metric="level",{place}}} 12.5"#),
            format!(r#"tidegauge_latest_value{{device="d:1",metric="level",side="left",{place}}} 1e+300"#),
            format!(r#"tidegauge_latest_age_seconds{{device="d:1",metric="level",{place}}} 1.5"#),
            format!(r#"tidegauge_latest_age_seconds{{device="d:1",metric="level",side="left",{place}}} 1.5"#),
            r#"tidegauge_latest_limit{device="d:1",metric="level",bound="min"} 20.0"#.to_owned(),
            r#"tidegauge_latest_limit{device="d:1",metric="level",bound="max"} 90.0"#.to_owned(),
            r#"tidegauge_latest_limits_invalid{device="d:1"} 0.0"#.to_owned(),
        ];
        assert_eq!(found.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_device_of_which_series_may_be_missing_is_named() {
        for (has_more, lines) in [(false, 0), (true, 1)] {
            let mut families = Families::default();
            families.add("d:1", &Latest { has_more, ..Latest::default() }, &[], 0, 1_000).expect("few");
            let text = String::from_utf8(families.finish().concat()).expect("UTF-8");
            let line = "\ntidegauge_latest_more_metrics{device=\"d:1\"} 1.0\n";
            assert_eq!(text.matches(line).count(), lines, "{text}");
        }
    }

    #[test]
    fn the_lines_of_all_families_are_counted() {
        let limits = r#"{"limits":{"t":{"min":1,"max":2}}}"#;
        let metadata = Some(DeviceMetadata { hour: Hour(0), text: limits.into() });
        let values = BTreeMap::from([("t".into(), (0, 1.5))]);
        for latest in [
            Latest { values, has_more: true, metadata },
            Latest { has_more: true, ..Latest::default() },
            Latest::default(),
        ] {
            let add = |families: &mut Families, max_bytes| families.add("d:1", &latest, &[], 0, max_bytes);
            let mut families = Families::default();
            add(&mut families, 1_000).expect("few");
            let text = String::from_utf8(families.finish().concat()).expect("UTF-8");
            let samples = text.lines().filter(|line| !line.starts_with('#'));
            let bytes: usize = samples.map(|line| line.len() + 1).sum();
            add(&mut Families::default(), bytes).expect("as many as are allowed");
            let refused = add(&mut Families::default(), bytes - 1).expect_err("more than are allowed");
            assert!(refused.detail().contains("(300 for each of query.max_points)"), "{}", refused.detail());
        }
    }

    #[test]
    fn hostile_names_are_escaped_and_stay_different() {
        let hostile = [("a\"b\\c\nd", 1.0), ("v{a.b=1}", 2.0), ("v{a_b=1}", 3.0), ("v{device=x\"}", 4.0)];
        let found = text(r#"{"a_b":"metadata"}"#, &hostile, &["a_b"]);
        let lines: Vec<&str> = found.lines().take(4).collect();
        assert_eq!(lines[0], r#"tidegauge_latest_value{device="d:1",metric="a\"b\\c\nd",a_b="metadata"} 1.0"#);
        assert_eq!(lines[1], r#"tidegauge_latest_value{device="d:1",metric="v",series="v{a.b=1}",a_b="metadata"} 2.0"#);
        assert_eq!(lines[2], r#"tidegauge_latest_value{device="d:1",metric="v",a_b="1"} 3.0"#);
        let device = r#"tidegauge_latest_value{device="d:1",metric="v",series="v{device=x\"}",a_b="metadata"} 4.0"#;
        assert_eq!(lines[3], device);
    }

    #[test]
    fn metadata_makes_no_two_series_the_same() {
        let values = [("v", 1.0), ("v{a=1,b=2}", 2.0), ("v{a=1}", 3.0), ("v{a=3}", 4.0), ("v{b=2}", 5.0), ("w", 6.0)];
        let found = text(r#"{"a":1,"b":"2"}"#, &values, &["b", "a"]);
        let expected = [
            r#"metric="v",b="2",a="1"} 1.0"#,
            r#"metric="v",a="1",b="2",series="v{a=1,b=2}"} 2.0"#,
            r#"metric="v",a="1",b="2",series="v{a=1}"} 3.0"#,
            r#"metric="v",a="3",b="2"} 4.0"#,
            r#"metric="v",b="2",a="1",series="v{b=2}"} 5.0"#,
            r#"metric="w",b="2",a="1"} 6.0"#,
        ];
        let expected = expected.map(|labels| format!(r#"tidegauge_latest_value{{device="d:1",{labels}"#));
        assert_eq!(found.lines().take(values.len()).collect::<Vec<_>>(), expected);
        let of_ages: BTreeSet<&str> = found.lines().filter(|line| line.contains("_age_")).collect();
        assert_eq!(of_ages.len(), values.len(), "the ages have the same labels: {found}");
    }

    #[test]
    fn labels_that_prometheus_would_refuse_are_refused() {
        for query in ["label=device", "label=__name__", "label=", "label=a.b&label=a_b", "label=a&label=a"] {
            let uri = format!("/?{query}").parse().expect("a URI");
            assert!(MetadataLabel::all(&mut Params::of(&uri, PARAMETERS)).is_err(), "{query}");
        }
    }
}
