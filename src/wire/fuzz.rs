//! Invariants fuzzed on the wire formats.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use strum::IntoEnumIterator;

use super::line_protocol::Precision;
use super::webhook::{self as webhook_format, Hook};
use super::{Code, Ignored, Incoming, Rejection, Sink, senml, timestamp::parse_rfc3339};
use super::{
    json as json_format, line_protocol as line_format, otlp as otlp_format, remote_write as remote_write_format,
};
use crate::config::{LineProtocol, Preset};
use crate::model::series;

/// The clock for relative times in bodies, in Unix milliseconds.
const NOW_MS: i64 = 1_776_693_610_000;

/// A reading: its device, metadata, time, and values by name.
type Reading = (String, Option<String>, Option<i64>, Vec<(String, f64)>);

/// The readings and rejections of a body.
#[derive(Debug, Default)]
pub(crate) struct ParsedBody {
    readings: Vec<Reading>,
    rejections: Vec<Rejection>,
    rejected_values: Vec<Rejection>,
    lines: Vec<u64>,
}

impl Sink for ParsedBody {
    fn reading(&mut self, Incoming { device, metadata, ts_ms, values, .. }: Incoming<'_>) {
        assert!(!values.is_empty(), "a reading has values");
        let mut values: Vec<_> = values.iter().map(|(name, value)| (name.to_string(), *value)).collect();
        values.sort_by(|(a, _), (b, _)| a.cmp(b));
        self.readings.push((device.to_owned(), metadata.map(str::to_owned), ts_ms, values));
    }

    fn reject(&mut self, rejection: Rejection) {
        self.rejections.push(rejection);
    }

    fn reject_value(&mut self, rejection: Rejection) {
        self.rejected_values.push(rejection);
    }

    fn ignore(&mut self, _: Ignored, _: &str) {}

    fn line(&mut self, number: u64) {
        self.lines.push(number);
    }
}

impl ParsedBody {
    /// Panics if a reading or rejection of `body` breaks a promise.
    pub(crate) fn check(&self, body: &[u8]) {
        for rejection in self.rejections.iter().chain(&self.rejected_values) {
            for place in [" at byte ", " at column "] {
                let place = rejection.detail.trim_end_matches(" of the line").rsplit_once(place);
                let place = place.and_then(|(_, number)| number.parse::<usize>().ok());
                assert!(place.is_none_or(|place| place <= body.len() + 1), "{rejection:?} lies behind the end");
            }
        }
        assert!(self.lines.is_sorted(), "lines come in order");
        let lines = memchr::memchr_iter(b'\n', body).count() as u64 + 1;
        assert!(self.lines.last().is_none_or(|&last| last <= lines), "line {:?} of {lines}", self.lines.last());
        for reading in &self.readings {
            Self::check_reading(reading);
        }
    }

    /// Panics if a value is not finite, or a series is not in its canonical form.
    fn check_series(&self) {
        for (device, _, _, values) in &self.readings {
            assert!((1..=128).contains(&device.len()), "{device:?} is no device");
            for (name, value) in values {
                assert!(value.is_finite(), "{name} is {value}");
                assert_eq!(series::canonical(name).as_deref(), Ok(&**name));
            }
        }
    }

    /// Panics if a reading changes when it is written as JSON and parsed again.
    fn check_reading(reading: &Reading) {
        let (device, metadata, ts_ms, values) = reading;
        let names: BTreeSet<_> = values.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), values.len(), "a metric stands once in a reading");
        if values.iter().any(|(_, value)| !value.is_finite()) {
            return; // not expressible in JSON, and admission rejects it
        }
        let text = |text: &str| serde_json::to_string(text).expect("text is JSON");
        let values: Vec<_> = values.iter().map(|(name, value)| format!("{}:{value:?}", text(name))).collect();
        let mut fields =
            vec![format!(r#""deviceId":{}"#, text(device)), format!(r#""values":{{{}}}"#, values.join(","))];
        fields.extend(metadata.as_ref().map(|metadata| format!(r#""metadata":{metadata}"#)));
        fields.extend(ts_ms.map(|ts_ms| format!(r#""ts":{ts_ms}"#)));
        let line = format!("{{{}}}", fields.join(","));
        let mut again = Self::default();
        json_format::parse(line.as_bytes(), &json_format::Options::default(), &mut again).expect("JSON");
        assert!(again.rejections.is_empty(), "{line}: {:?}", again.rejections);
        assert_eq!(format!("{:?}", again.readings), format!("{:?}", [reading]), "{line}");
    }
}

/// Options of JSON: the default, and those that accept the most.
const JSON_OPTIONS: [json_format::Options<'_>; 2] = [
    json_format::Options { device: None, ignore_unknown_keys: false, flat: false, now_ms: NOW_MS },
    json_format::Options { device: None, ignore_unknown_keys: true, flat: true, now_ms: NOW_MS },
];

/// Checks a body of JSON.
pub fn json(body: &[u8]) {
    for options in &JSON_OPTIONS {
        let mut found = ParsedBody::default();
        match json_format::parse(body, options, &mut found) {
            Err(error) => assert!(error.offset <= body.len(), "{error:?} lies behind the end"),
            Ok(()) if found.lines.is_empty() => assert!(std::str::from_utf8(body).is_ok(), "JSON is text"),
            Ok(()) => {}
        }
        found.check(body);
    }
}

/// Checks a body of lines of JSON.
pub fn ndjson(body: &[u8]) {
    for options in &JSON_OPTIONS {
        let mut found = ParsedBody::default();
        json_format::parse_lines(body, options, &mut found);
        found.check(body);
    }
}

/// Checks a body of line protocol, in each precision.
pub fn line_protocol(body: &[u8]) {
    let mapping = LineProtocol::default();
    for name in ["s", "ms", "us", "ns"] {
        let precision = Precision::from_v2(name).expect("a precision");
        let mut found = ParsedBody::default();
        line_format::parse(body, &line_format::Options { precision, device: None, mapping: &mapping }, &mut found);
        assert!(found.lines.len() >= found.readings.len() + found.rejections.len(), "a line is at most one of both");
        found.check(body);
    }
}

/// Checks a pack of `SenML` in JSON.
pub fn senml_json(body: &[u8]) {
    senml(body, |options, found| senml::parse_json(body, options, found));
}

/// Checks a pack of `SenML` in CBOR.
pub fn senml_cbor(body: &[u8]) {
    senml(body, |options, found| senml::parse_cbor(body, options, found));
}

fn senml(body: &[u8], parse: impl Fn(&senml::Options<'_>, &mut ParsedBody) -> Result<(), senml::SenmlError>) {
    let options = senml::Options {
        device: None,
        split: senml::NameSplit::default(),
        now_ms: NOW_MS,
        max_readings: 100_000,
        max_metrics: 4,
        max_metadata_bytes: 100,
    };
    let mut found = ParsedBody::default();
    if let Err(error) = parse(&options, &mut found) {
        assert!(matches!(error.code(), Code::InvalidSenml | Code::UnsupportedSenml));
        assert!(found.readings.is_empty() && found.rejections.is_empty(), "of a pack that is refused nothing is taken");
    }
    for (_, metadata, _, values) in &found.readings {
        assert!(values.len() <= options.max_metrics);
        assert!(metadata.as_ref().is_none_or(|text| text.len() <= options.max_metadata_bytes));
    }
    found.check(body);
}

/// Checks a body of remote write 1.0.
pub fn remote_write_1(body: &[u8]) {
    remote_write(body, remote_write_format::Version::V1);
}

/// Checks a request of remote read.
pub fn remote_read(body: &[u8]) {
    for query in super::remote_read::parse(body).map(|request| request.queries).unwrap_or_default() {
        assert!(query.matchers.len() <= 64 && query.matchers.iter().all(|it| it.value.len() <= body.len()));
    }
}

/// Checks a body of remote write 2.0.
pub fn remote_write_2(body: &[u8]) {
    remote_write(body, remote_write_format::Version::V2);
}

fn remote_write(body: &[u8], version: remote_write_format::Version) {
    let device_labels = ["instance", "host"].map(str::to_owned);
    let metadata_labels = ["job", "deviceId"].map(str::to_owned);
    let options =
        remote_write_format::Options { version, device_labels: &device_labels, metadata_labels: &metadata_labels };
    let mut found = ParsedBody::default();
    drop(remote_write_format::parse(body, &options, &mut found));
    found.check_series();
    found.check(body);
}

/// Checks a body of OTLP in protobuf.
pub fn otlp(body: &[u8]) {
    let mut found = ParsedBody::default();
    drop(otlp_format::parse_protobuf(body, &otlp_options(&otlp_attributes()), &mut found));
    found.check_series();
    found.check(body);
}

/// Checks a body of OTLP in JSON.
pub fn otlp_json(body: &[u8]) {
    let mut found = ParsedBody::default();
    if let Err(error) = otlp_format::parse_json(body, &otlp_options(&otlp_attributes()), &mut found) {
        let otlp_format::OtlpError::Json(error) = error else { panic!("{error} in protobuf that was written here") };
        assert!(error.offset <= body.len(), "{error:?} lies behind the end");
    }
    found.check_series();
    found.check(body);
}

fn otlp_attributes() -> [String; 2] {
    ["host.name", "service.name"].map(str::to_owned)
}

const fn otlp_options(device_attributes: &[String]) -> otlp_format::Options<'_> {
    otlp_format::Options { device_attributes }
}

/// Checks a payload with the hook of each preset, and with hooks of all path forms.
pub fn webhook(body: &[u8]) {
    static HOOKS: LazyLock<Vec<Hook>> = LazyLock::new(|| {
        let presets = Preset::iter().map(|preset| format!("preset = \"{}\"", <&str>::from(preset)));
        let others = [
            "metrics = [{ n = \"a[1].b\" }, \"c.*\", \"*\"]\nlabels = [\"l\", \"a[0]\"]\nmetadata = [\"m\", \"c\"]",
            "metrics = \"l[*].*\"\nlabels = [\"l[*].p\", \"q\"]\ntime = \"t\"\nwhen = [\"l[*].u\", { v = \"x\" }]",
        ];
        let all = presets.chain(others.map(str::to_owned));
        let hook = |keys: String| toml::from_str(&format!("path = \"/h/{{deviceId}}\"\n{keys}")).expect("a hook");
        all.map(|keys| Hook::new(&hook(keys))).collect()
    });
    for hook in HOOKS.iter() {
        let mut found = ParsedBody::default();
        if let Err(error) = webhook_format::parse(body, hook, &webhook_format::Address::of(Some("d")), &mut found) {
            assert!(error.offset <= body.len(), "{error:?} lies behind the end");
            assert!(found.readings.is_empty() && found.rejections.is_empty(), "nothing of a payload that is not JSON");
        }
        found.check(body);
    }
}

/// Checks a timestamp.
pub fn timestamp(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let Ok(ms) = parse_rfc3339(text) else { return };
    let again = jiff::Timestamp::from_millisecond(ms).map(|instant| format!("{instant:.3}"));
    if let Ok(again) = again
        && !again.starts_with('-')
    {
        assert_eq!(parse_rfc3339(&again), Ok(ms), "{text} is {again}");
    }
    assert!(text.len() >= 20, "{text} is short");
}
