//! `influxdb-line-protocol` as an oracle: if both parsers accept a line, they read the same point.
//!
//! It is laxer than InfluxDB's first parser in some places (an `=` in the value of a tag, control characters)
//! and stricter in others (`1.`), so lines that only one parser accepts are ignored. It unescapes `\\` in
//! names, which InfluxDB does not; the tests avoid such lines.

use std::collections::BTreeMap;

use influxdb_line_protocol::{FieldValue, ParsedLine, parse_lines};
use proptest::{prelude::*, sample::Index};

use super::{super::*, random::any_piece};
use crate::model::series;
use crate::wire::{Ignored, Incoming, Rejection};

#[derive(Debug, PartialEq, Default)]
struct Read {
    device: String,
    /// By the text of the series.
    values: BTreeMap<String, f64>,
    time: Option<i64>,
}

#[derive(Default)]
struct Reads(Vec<Option<Read>>);

impl Sink for Reads {
    fn reading(&mut self, incoming: Incoming<'_>) {
        self.0.push(Some(Read {
            device: incoming.device.to_owned(),
            values: incoming.values.iter().map(|(series, value)| (series.to_string(), *value)).collect(),
            time: incoming.ts_ms,
        }));
    }

    fn reject(&mut self, _: Rejection) {
        self.0.push(None);
    }

    fn reject_value(&mut self, _: Rejection) {}

    fn ignore(&mut self, _: Ignored, _: &str) {}
}

fn ours(line: &str) -> Option<Read> {
    let mut reads = Reads::default();
    let options = Options {
        device: None,
        precision: Precision::Milliseconds,
        mapping: &LineProtocol { device_tags: vec!["host".to_owned()], ..LineProtocol::default() },
    };
    parse(line.as_bytes(), &options, &mut reads);
    reads.0.pop()?
}

/// The point that the oracle reads, if it is one point with a device and without strings.
fn theirs(line: &str) -> Option<Read> {
    let points: Vec<ParsedLine<'_>> = parse_lines(line).collect::<Result<_, _>>().ok()?;
    let [point] = &points[..] else { return None };
    let mut read = Read { time: point.timestamp, ..Read::default() };
    let tags = point.series.tag_set.iter().flatten();
    let mut tags: BTreeMap<_, _> = tags.map(|(key, value)| (key.to_string(), value.to_string())).collect();
    read.device = tags.remove("host")?;
    for (key, value) in &point.field_set {
        let value = match value {
            FieldValue::F64(float) => *float,
            FieldValue::I64(integer) => *integer as f64,
            FieldValue::U64(integer) => *integer as f64,
            FieldValue::Boolean(boolean) => f64::from(u8::from(*boolean)),
            FieldValue::String(_) => return None,
        };
        let measurement = &point.series.measurement;
        let metric = if *key == "value" { measurement.to_string() } else { format!("{measurement}_{key}") };
        let mut labels: Vec<_> = tags.iter().map(|(key, value)| (&**key, &**value)).collect();
        let mut series = String::new();
        series::write(&mut series, &metric, &mut labels).ok()?;
        read.values.insert(series, value);
    }
    Some(read)
}

fn assert_no_contradiction(line: &str) {
    if line.contains("\\\\") {
        return;
    }
    if let (Some(ours), Some(theirs)) = (ours(line), theirs(line)) {
        assert_eq!(ours, theirs, "{line:?}");
    }
}

#[test]
fn usual_lines_are_read_like_the_oracle() {
    for line in [
        "sensor,host=S1 temp=22.4,hum=40 1776693610000000000",
        "weather\\,x\\ y\\=z,loc\\=a=us\\ mid\\,west,host=h\\=1 te\\ mp\\,\\==-82i,ok=T,value=7u -5",
        "m,host=h,a=\"b\\c\" f=1e5,g=-1.5E-3,f=2",
        "  m,host=h   f=1   5  ",
    ] {
        assert!(theirs(line).is_some(), "{line}");
        assert_eq!(ours(line), theirs(line), "{line}");
    }
}

proptest! {
    #[test]
    fn changed_lines_are_read_the_same(
        changes in prop::collection::vec((any::<Index>(), 0usize..3, any_piece()), 1..5),
        escapes in any::<bool>(),
    ) {
        let plain = "sensor,host=S1,floor=2 temp=22.4,hum=40i,on=t 1776693610";
        let full = "a\\ b\\,c,z\\=1=\\,x,host=a\\ \\=b f\\ \\,\\=g=1,value=2u 5";
        let mut line: Vec<char> = if escapes { full } else { plain }.chars().collect();
        for (place, removed, piece) in changes {
            let start = place.index(line.len() + 1);
            let end = line.len().min(start + removed);
            line.splice(start..end, piece.chars());
        }
        assert_no_contradiction(&line.iter().collect::<String>().replace('\n', ""));
    }

    #[test]
    fn random_lines_are_read_like_the_oracle(pieces in prop::collection::vec(any_piece(), 0..10)) {
        assert_no_contradiction(&format!("m,host=h{}", pieces.concat().replace('\n', "")));
    }
}
