//! Random bodies: points survive a round trip, and no line affects another.

use std::collections::BTreeMap;

use proptest::{prelude::*, sample::Index};

use super::{super::*, RecordingSink, device_tags, entries};
use crate::model::series;
use crate::wire::readings_only::ReadingsOnly;
use crate::wire::{Ignored, Incoming, Rejection};

/// A random point.
#[derive(Debug, Clone)]
struct Made {
    measurement: String,
    device: String,
    tags: BTreeMap<String, String>,
    fields: BTreeMap<String, Value>,
    time: Option<i64>,
}

#[derive(Debug, Clone, Copy)]
enum Value {
    Float(f64),
    Integer(i64),
    Unsigned(u64),
    Boolean(bool),
}

/// Names that a line can hold: a backslash at the end would escape the next character.
fn any_name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{1,8}", "[a-c,= \\\\\"#é]{1,6}", "[^\\x00-\\x1F\\x7F-\\x9F{}\u{FF04}\u{FF0E}]{1,8}"]
        .prop_filter("ends with a backslash", |name| !name.ends_with('\\'))
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<f64>().prop_filter("has no form", |value| value.is_finite()).prop_map(Value::Float),
        (-1e3..1e3).prop_map(Value::Float),
        any::<i64>().prop_map(Value::Integer),
        any::<u64>().prop_map(Value::Unsigned),
        any::<bool>().prop_map(Value::Boolean),
    ]
}

fn any_point() -> impl Strategy<Value = Made> {
    let measurement = any_name().prop_filter("is a comment", |name| !name.starts_with('#'));
    let measurement = measurement.prop_filter("is a reserved name", |name| name != "ts");
    let key = any_name().prop_filter("names a device", |name| !device_tags().contains(name));
    let field = prop_oneof![4 => any_name(), 1 => Just("value".to_owned())];
    (
        measurement,
        any_name(),
        prop::collection::btree_map(key, any_name(), 0..4),
        prop::collection::btree_map(field, any_value(), 1..20),
        any::<Option<i64>>(),
    )
        .prop_map(|(measurement, device, tags, fields, time)| Made { measurement, device, tags, fields, time })
}

fn escaped(name: &str, ends: &str) -> String {
    name.chars().flat_map(|char| ends.contains(char).then_some('\\').into_iter().chain([char])).collect()
}

impl Made {
    /// Writes the line, with the device as the tag at `place`.
    fn line(&self, place: Index) -> String {
        let mut tags: Vec<_> = self.tags.iter().collect();
        let host = "host".to_owned();
        tags.insert(place.index(tags.len() + 1), (&host, &self.device));
        let tags = tags.iter().map(|(key, value)| format!(",{}={}", escaped(key, ",= "), escaped(value, ",= ")));
        let fields = self.fields.iter().map(|(key, value)| {
            let value = match value {
                Value::Float(float) => format!("{float:?}"),
                Value::Integer(integer) => format!("{integer}i"),
                Value::Unsigned(integer) => format!("{integer}u"),
                Value::Boolean(boolean) => boolean.to_string(),
            };
            format!("{}={value}", escaped(key, ",= "))
        });
        let (tags, fields): (String, Vec<String>) = (tags.collect(), fields.collect());
        let time = self.time.map_or(String::new(), |time| format!(" {time}"));
        format!("{}{tags} {}{time}", escaped(&self.measurement, ", "), fields.join(","))
    }

    fn values(&self) -> Vec<(String, f64)> {
        let values = self.fields.iter().map(|(key, value)| {
            let metric = if key == "value" { self.measurement.clone() } else { format!("{}_{key}", self.measurement) };
            let value = match *value {
                Value::Float(float) => float,
                Value::Integer(integer) => integer as f64,
                Value::Unsigned(integer) => integer as f64,
                Value::Boolean(boolean) => f64::from(u8::from(boolean)),
            };
            let mut labels: Vec<_> = self.tags.iter().map(|(key, value)| (&**key, &**value)).collect();
            let mut text = String::new();
            series::write(&mut text, &metric, &mut labels).unwrap();
            (text, value)
        });
        values.collect()
    }
}

/// Pieces of lines. Their places make a line valid or invalid.
pub(super) fn any_piece() -> impl Strategy<Value = String> {
    let telling = prop::sample::select(vec![
        "m", ",", "=", " ", "  ", "\\", "\\ ", "\\,", "\\=", "\"", "=\"", "\\\"", "#", "host=h", ",a=b", " f=1",
        ",g=2i", "3u", "t", "TRUE", "False", "-", "-1.5e3", ".5", "1.", "e", "NaN", " 123", " -5", "\t", "\r", "\0",
        "é",
    ]);
    prop_oneof![8 => telling.prop_map(str::to_owned), 1 => any::<char>().prop_map(String::from)]
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => any_piece().prop_map(String::into_bytes),
        2 => Just(b"\n".to_vec()),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

/// Counts the calls for each line: one for its number, and one for each outcome.
#[derive(Default)]
struct Heard(Vec<(u64, u32)>);

impl Sink for Heard {
    fn reading(&mut self, incoming: Incoming<'_>) {
        assert!(!incoming.values.is_empty());
        assert_eq!(incoming.metadata, None);
        let texts = incoming.values.iter().map(|(text, _)| text);
        assert!(texts.into_iter().all(|text| series::canonical(text).is_ok_and(|canonical| canonical == *text)));
        self.0.last_mut().unwrap().1 += 1;
    }

    fn reject(&mut self, _: Rejection) {
        self.0.last_mut().unwrap().1 += 1;
    }

    fn reject_value(&mut self, _: Rejection) {}

    fn ignore(&mut self, _: Ignored, _: &str) {}

    fn line(&mut self, number: u64) {
        self.0.push((number, 0));
    }
}

fn heard(body: &[u8]) -> Vec<(u64, u32)> {
    let mut heard = Heard::default();
    parse(body, &Options { precision: Precision::Auto, device: None, mapping: &LineProtocol::default() }, &mut heard);
    heard.0
}

proptest! {
    #[test]
    fn each_point_survives_a_round_trip(points in prop::collection::vec((any_point(), any::<Index>()), 1..4)) {
        let lines: Vec<_> = points.iter().map(|(point, place)| point.line(*place)).collect();
        let mut expected = points.iter();
        let mut expect = ReadingsOnly(|Incoming { device, ts_ms, values, .. }: Incoming<'_>| {
            let (made, _) = expected.next().unwrap();
            let values: Vec<_> = values.iter().map(|(metric, value)| (metric.to_string(), *value)).collect();
            assert_eq!((device, ts_ms), (&*made.device, made.time));
            assert_eq!(values, made.values());
        });
        let options = Options { precision: Precision::Milliseconds, device: None, mapping: &LineProtocol::default() };
        parse(lines.join("\n").as_bytes(), &options, &mut expect);
        prop_assert_eq!(expected.len(), 0);
    }

    #[test]
    fn each_line_has_at_most_one_outcome_whatever_the_bytes(body in any_bytes()) {
        for (number, outcomes) in heard(&body) {
            prop_assert!(outcomes <= 1, "line {}", number);
        }
    }

    #[test]
    fn without_quotes_each_line_is_read_alone(body in any_bytes()) {
        let body: Vec<u8> = body.into_iter().filter(|&byte| byte != b'"').collect();
        let lines = (1..).zip(body.split(|&byte| byte == b'\n'));
        let is_blank = |byte: &&u8| matches!(byte, b' ' | b'\t');
        let first = |line: &[u8]| line.trim_ascii_end().iter().find(|byte| !is_blank(byte)).copied();
        let telling = lines.filter(|(_, line)| !matches!(first(line), None | Some(b'#')));
        let expected: Vec<_> = telling.map(|(number, _)| (number, 1)).collect();
        prop_assert_eq!(heard(&body), expected, "without strings, each line has an outcome");
    }

    #[test]
    fn a_malformed_line_affects_no_other_line(pieces in prop::collection::vec(any_piece(), 0..12)) {
        let line = pieces.concat().replace('\n', "");
        let mut entries = entries(format!("{line}\nm,host=after f=1 5"));
        prop_assert_eq!(entries.pop().unwrap(), "2: after 5 m_f=1");
        prop_assert_eq!(entries, self::entries(line));
    }

    #[test]
    fn no_bytes_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let mapping = LineProtocol { device_tags: Vec::new(), ..LineProtocol::default() };
        let options = Options { precision: Precision::Auto, device: None, mapping: &mapping };
        parse(&body, &options, &mut RecordingSink::default());
    }
}
