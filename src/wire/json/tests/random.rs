//! Random bodies: the lexer agrees with `serde_json`, and readings survive a round trip.

use proptest::{prelude::*, sample::Index};
use serde_json::Value;

use super::{super::*, RecordingSink};
use crate::wire::Incoming;
use crate::wire::readings_only::ReadingsOnly;

fn any_json() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        "(deviceId|device|ts|ageMs|metric|unit|value|values|labels|meta|readings|seq|measurementBytes)",
        ".{0,4}"
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..6).prop_map(Value::from_iter),
        ]
    })
}

/// Pieces of JSON. Their places make a text valid or invalid.
fn any_piece() -> impl Strategy<Value = Vec<u8>> {
    let telling = prop::sample::select(vec![
        "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u", "\\uD83D", "\\uDE00", "\\u00e9", "\\n", "-", "+", ".", "e",
        "E1", "0", "1", " ", "\n", "\t", "true", "null", "\u{1}", "é", "\"a\":1", ",1", "\u{7F}",
    ]);
    prop_oneof![telling.prop_map(|piece| piece.as_bytes().to_vec()), any::<u8>().prop_map(|byte| vec![byte])]
}

/// Asserts that the parser and `serde_json` agree on whether the bytes are JSON.
///
/// Numbers beyond the range of floats are excluded: `serde_json` refuses them, and the parser leaves them to
/// admission. So are `NaN` and infinities, and lines after an object, which are NDJSON.
fn assert_json_like_serde_json(bytes: &[u8]) {
    let ours = parse(bytes, &Options::default(), &mut RecordingSink::default());
    match serde_json::from_slice::<Value>(bytes) {
        Ok(_) => assert_eq!(ours, Ok(()), "{:?}", String::from_utf8_lossy(bytes)),
        Err(error) if error.to_string().starts_with("number out of range") => {}
        Err(_) if has_non_finite(bytes) || bytes.contains(&b'\n') => {}
        Err(error) => assert!(ours.is_err(), "{:?}: {error}", String::from_utf8_lossy(bytes)),
    }
}

fn has_non_finite(bytes: &[u8]) -> bool {
    let bytes = bytes.to_ascii_lowercase();
    [&b"nan"[..], b"inf"].iter().any(|word| bytes.windows(3).any(|window| window == *word))
}

/// A random reading: device, time in milliseconds, values.
type Made = (String, Option<i64>, Vec<(String, f64)>);

fn any_reading() -> impl Strategy<Value = Made> {
    let value = prop_oneof![any::<f64>().prop_filter("JSON has no others", |value| value.is_finite()), -1e3..1e3];
    let values = prop::collection::btree_map(any::<String>(), value, 1..20).prop_map(|map| map.into_iter().collect());
    (any::<String>(), any::<Option<i64>>(), values)
}

proptest! {
    #[test]
    fn the_output_of_serde_json_is_accepted(json in any_json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_vec_pretty(&json) } else { serde_json::to_vec(&json) }.unwrap();
        prop_assert_eq!(parse(&text, &Options::default(), &mut RecordingSink::default()), Ok(()));
    }

    #[test]
    fn broken_json_is_taken_exactly_when_serde_json_takes_it(
        json in any_json(),
        changes in prop::collection::vec((any::<Index>(), 0usize..3, any_piece()), 1..4),
    ) {
        let mut bytes = serde_json::to_vec(&json).unwrap();
        for (place, removed, piece) in changes {
            let start = place.index(bytes.len() + 1);
            let end = bytes.len().min(start + removed);
            bytes.splice(start..end, piece);
        }
        assert_json_like_serde_json(&bytes);
    }

    #[test]
    fn random_tokens_are_json_exactly_if_serde_json_agrees(pieces in prop::collection::vec(any_piece(), 0..8)) {
        assert_json_like_serde_json(&pieces.concat());
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any_piece(), 0..40)) {
        let bytes = bytes.concat();
        let _ = parse(&bytes, &Options::default(), &mut RecordingSink::default());
        parse_lines(&bytes, &Options::default(), &mut RecordingSink::default());
        parse_value_or_lines(&bytes, &Options::default(), &mut RecordingSink::default());
    }

    #[test]
    fn each_reading_comes_out_as_it_went_in(
        readings in prop::collection::vec(any_reading(), 0..4),
        shuffle in prop::collection::vec(any::<Index>(), 3),
    ) {
        let json = |text: &str| serde_json::to_string(text).unwrap();
        let objects = readings.iter().map(|(device, ts_ms, values)| {
            let values: Vec<_> = values.iter().map(|(metric, value)| format!("{}:{value:?}", json(metric))).collect();
            let mut fields = [
                format!("\"deviceId\": {}", json(device)),
                format!("\"ts\":{}", serde_json::to_string(ts_ms).unwrap()),
                format!("\"values\" :{{{}}}", values.join(" , ")),
            ];
            for (at, other) in shuffle.iter().enumerate() {
                fields.swap(at, other.index(3));
            }
            format!("{{{}}}", fields.join(","))
        });
        let objects: Vec<_> = objects.collect();
        let mut kept: Vec<Made> = Vec::new();
        let mut sink = ReadingsOnly(|Incoming { device, ts_ms, values, .. }: Incoming<'_>| {
            let values = values.iter().map(|(metric, value)| (metric.to_string(), *value)).collect();
            kept.push((device.to_owned(), ts_ms, values));
        });
        parse(format!("[{}]", objects.join(",\n")).as_bytes(), &Options::default(), &mut sink).unwrap();
        parse_lines(objects.join("\n").as_bytes(), &Options::default(), &mut sink);
        prop_assert_eq!(kept, [&readings[..], &readings].concat(), "from an array, and from lines");
    }
}
