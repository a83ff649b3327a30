//! What bodies mean, and that JSON here is what JSON is to `serde_json`.

use proptest::{prelude::*, sample::Index};
use serde_json::Value;

use super::*;
use crate::wire::{Incoming, Rejection};

/// Writes down what it is given, a line each: `device ts metric=value ... [metadata]`, or `code: detail`.
#[derive(Default)]
struct Notes(Vec<String>);

impl Sink for Notes {
    fn reading(&mut self, incoming: Incoming<'_>) {
        let ts = incoming.ts_ms.map_or("now".to_owned(), |ms| ms.to_string());
        let mut note = format!("{} {ts}", incoming.device);
        for (metric, value) in incoming.values {
            note += &format!(" {metric}={value}");
        }
        if let Some(metadata) = incoming.metadata {
            note += &format!(" {metadata}");
        }
        self.0.push(note);
    }

    fn reject(&mut self, rejection: Rejection) {
        self.0.push(format!("{}: {}", rejection.code.as_str(), rejection.detail));
    }

    fn line(&mut self, number: u64) {
        self.0.push(format!("line {number}"));
    }
}

fn notes(body: impl AsRef<[u8]>) -> Vec<String> {
    let mut notes = Notes::default();
    parse(body.as_ref(), &mut notes).unwrap();
    notes.0
}

fn line_notes(body: impl AsRef<[u8]>) -> Vec<String> {
    let mut notes = Notes::default();
    parse_lines(body.as_ref(), &mut notes);
    notes.0
}

fn syntax_error(body: impl AsRef<[u8]>) -> String {
    parse(body.as_ref(), &mut Notes::default()).unwrap_err().to_string()
}

#[test]
fn each_shape_is_read() {
    assert_eq!(notes(r#"{"deviceId":"S1","ts":"1970-01-01T00:00:10Z","value":320}"#), ["S1 10000 value=320"]);
    assert_eq!(notes(r#" {"deviceId":"S1","ts":7,"values":{"temp":22.4,"hum":-4e1}} "#), ["S1 7 temp=22.4 hum=-40"]);
    assert_eq!(
        notes(
            r#"{"deviceId":"S1","metadata":{ "floor": 2 },"readings":[{"ts":1,"value":1},{"ts":2,"values":{"t":2}}]}"#
        ),
        [r#"S1 1 value=1 { "floor": 2 }"#, r#"S1 2 t=2 { "floor": 2 }"#]
    );
    assert_eq!(
        notes(
            r#"[{"deviceId":"A","ts":1,"value":1},{"deviceId":"B","readings":[{"value":2},{"value":3}]},
                {"deviceId":"C","metadata":{},"value":4}]"#
        ),
        ["A 1 value=1", "B now value=2", "B now value=3", "C now value=4 {}"]
    );
    assert_eq!(notes("[]"), [""; 0]);
    assert_eq!(notes("\u{FEFF}{\"deviceId\":\"S1\",\"value\":1}"), ["S1 now value=1"]);
}

#[test]
fn keys_stand_in_any_order_and_unknown_keys_are_skipped() {
    assert_eq!(
        notes(
            r#"{"x":[1,{"deviceId":"no"}],"readings":[{"value":1,"unit":"C","ts":5},{"value":2}],"ts":9,"y":null,
                "metadata":{"a":1},"deviceId":"S1"}"#
        ),
        [r#"S1 5 value=1 {"a":1}"#, r#"S1 9 value=2 {"a":1}"#]
    );
    assert_eq!(notes(r#"{"value":1,"ts":5,"\u0064eviceId":"S\u0031"}"#), ["S1 5 value=1"]);
}

#[test]
fn value_may_stand_beside_values_and_beside_readings() {
    assert_eq!(notes(r#"{"deviceId":"S","values":{"a":1},"value":2}"#), ["S now a=1 value=2"]);
    assert_eq!(notes(r#"{"deviceId":"S","values":{},"value":2}"#), ["S now value=2"]);
    assert_eq!(
        notes(r#"{"deviceId":"S","readings":[{"ts":1,"value":1}],"ts":2,"value":2}"#),
        ["S 2 value=2", "S 1 value=1"]
    );
    assert_eq!(notes(r#"{"deviceId":"S","readings":[],"value":2}"#), ["S now value=2"]);
}

#[test]
fn ts_is_a_string_or_whole_milliseconds_or_left_to_the_server() {
    for (ts, read) in [
        ("null", "now"),
        ("0", "0"),
        ("-5", "-5"),
        ("1.776e12", "1776000000000"),
        (r#""1970-01-01T01:00:00.0019+01:00""#, "1"),
        (r#""1970-01-01t00\u003a00:01z""#, "1000"),
    ] {
        assert_eq!(notes(format!(r#"{{"deviceId":"S","ts":{ts},"value":1}}"#)), [format!("S {read} value=1")]);
    }
    let numbers = "a \"ts\" that is a number must be whole Unix milliseconds";
    for (ts, detail) in [
        ("1.5", numbers),
        ("1e300", numbers),
        ("true", "\"ts\" must be an RFC 3339 string or Unix milliseconds, found true"),
        ("[1]", "\"ts\" must be an RFC 3339 string or Unix milliseconds, found an array"),
        ("\"\"", "a timestamp looks like 2026-04-20T14:00:10Z or 2026-04-20T16:00:10.250+02:00"),
        ("\"2026-02-29T00:00:00Z\"", "the day of this timestamp does not exist"),
    ] {
        let body = format!(r#"{{"deviceId":"S","ts":{ts},"value":1}}"#);
        assert_eq!(notes(body), [format!("invalid_timestamp: {detail}")]);
    }
}

#[test]
fn a_bad_default_ts_rejects_only_the_readings_that_need_it() {
    assert_eq!(
        notes(r#"{"deviceId":"S","ts":1.5,"readings":[{"ts":1,"value":1},{"ts":null,"value":2},{"value":3}]}"#),
        [
            "S 1 value=1",
            "invalid_timestamp: a \"ts\" that is a number must be whole Unix milliseconds",
            "invalid_timestamp: a \"ts\" that is a number must be whole Unix milliseconds",
        ]
    );
}

#[test]
fn a_value_is_a_number() {
    for (value, found) in [
        ("true", "true"),
        ("false", "false"),
        ("null", "null"),
        ("\"1\"", "a string"),
        ("[1]", "an array"),
        ("{\"a\":1}", "an object"),
    ] {
        assert_eq!(
            notes(format!(r#"[{{"deviceId":"S","value":{value}}},{{"deviceId":"S","values":{{"a":1,"b":{value}}}}}]"#)),
            [
                format!("invalid_value: the value of \"value\" must be a number, found {found}"),
                format!("invalid_value: the value of \"b\" must be a number, found {found}"),
            ]
        );
    }
    assert_eq!(
        notes(r#"{"deviceId":"S","value":1,"values":[1]}"#),
        ["invalid_value: \"values\" must be an object of metrics and numbers, found an array"]
    );
    assert_eq!(notes(r#"{"deviceId":"S","values":{"a":1e999,"b":-1e999}}"#), ["S now a=inf b=-inf"]);
}

#[test]
fn a_reading_without_values_is_rejected() {
    let nothing = "missing_values: there is no \"value\" and no \"values\"";
    assert_eq!(notes(r#"{"deviceId":"S","ts":1}"#), [nothing]);
    assert_eq!(notes(r#"{"deviceId":"S","values":{}}"#), ["missing_values: \"values\" is empty"]);
    assert_eq!(notes(r#"{"deviceId":"S","readings":[]}"#), ["missing_values: \"readings\" is empty"]);
    assert_eq!(notes(r#"{"deviceId":"S","readings":[{},{"value":1}]}"#), [nothing, "S now value=1"]);
    assert_eq!(
        notes(r#"{"deviceId":"S","readings":{"value":1}}"#),
        ["missing_values: \"readings\" must be an array of readings, found an object"]
    );
}

#[test]
fn what_is_wrong_with_device_or_metadata_rejects_each_reading_of_the_object() {
    let missing = "missing_device_id: there is no \"deviceId\"";
    assert_eq!(
        notes(r#"[{"value":1},{"readings":[{"value":1},{}]},{"readings":[]}]"#),
        [missing, missing, missing, "missing_values: \"readings\" is empty"]
    );
    for (device, found) in [("5", "a number"), ("null", "null"), ("{}", "an object")] {
        let rejection = format!("invalid_device_id: \"deviceId\" must be a string, found {found}");
        let body = format!(r#"{{"readings":[{{"value":1}},{{"value":2}}],"deviceId":{device}}}"#);
        assert_eq!(notes(body), [rejection.clone(), rejection]);
    }
    for (metadata, rejection) in [
        ("[]", "invalid_metadata: \"metadata\" must be an object, found an array"),
        (r#"{"a":[[[[[[[[]]]]]]]]}"#, "invalid_metadata: \"metadata\" has more than 8 levels"),
        (r#"{"a":1,"a":1}"#, "duplicate_key: the key \"a\" stands twice in \"metadata\""),
    ] {
        let body = format!(
            r#"[{{"deviceId":"S","metadata":{metadata},"readings":[{{"value":1}},{{"value":2}}]}},
                {{"deviceId":"S","metadata":{metadata},"value":3}},{{"deviceId":"S","value":4}}]"#
        );
        assert_eq!(notes(body), [rejection, rejection, rejection, "S now value=4"]);
    }
}

#[test]
fn a_key_that_stands_twice_rejects_what_it_affects() {
    let twice = |key: &str| format!("duplicate_key: the key \"{key}\" stands twice");
    for (fields, key) in [
        (r#""deviceId":"S","value":1"#, "deviceId"),
        (r#""metadata":{},"metadata":{},"value":1"#, "metadata"),
        (r#""ts":null,"ts":1,"value":1"#, "ts"),
        (r#""value":1,"value":1"#, "value"),
        (r#""values":{"a":1},"values":{"b":1}"#, "values"),
        (r#""values":{"a":1,"b":2,"a":1}"#, "a"),
        (r#""values":{"value":1},"value":1"#, "value"),
        (r#""readings":[{"value":1}],"readings":[{"value":1}]"#, "readings"),
    ] {
        assert_eq!(notes(format!(r#"{{"deviceId":"S",{fields}}}"#)), [twice(key)], "{fields}");
    }
    assert_eq!(
        notes(r#"{"deviceId":"S","readings":[{"value":1,"value":2},{"value":3},{"ts":1,"value":1,"ts":1}]}"#),
        [twice("value"), "S now value=3".to_owned(), twice("ts")]
    );
    assert_eq!(notes(r#"{"deviceId":"S","note":1,"note":2,"value":1}"#), ["S now value=1"]);
}

#[test]
fn one_reading_has_one_rejection() {
    assert_eq!(
        notes(r#"{"deviceId":"S","ts":true,"value":"a","values":{"b":null,"b":null}}"#),
        ["invalid_timestamp: \"ts\" must be an RFC 3339 string or Unix milliseconds, found true"]
    );
}

#[test]
fn what_is_no_object_is_rejected_by_itself() {
    let no_object = |found: &str| format!("invalid_json: a reading must be an object, found {found}");
    assert_eq!(notes("5"), [no_object("a number")]);
    assert_eq!(
        notes(r#"[null,[{"deviceId":"S","value":1}],{"deviceId":"S","value":1}]"#),
        [no_object("null"), no_object("an array"), "S now value=1".to_owned()]
    );
    assert_eq!(
        notes(r#"{"deviceId":"S","readings":["x",{"value":1}]}"#),
        [no_object("a string"), "S now value=1".to_owned()]
    );
}

#[test]
fn text_that_is_not_json_is_an_error_with_its_place() {
    let empty = "expected an object or an array of objects but the body is empty";
    assert_eq!(syntax_error(""), format!("{empty} at byte 0"));
    assert_eq!(syntax_error(" \r\n"), format!("{empty} at byte 3"));
    assert_eq!(syntax_error("\u{FEFF}"), format!("{empty} at byte 3"));
    assert_eq!(syntax_error(r#"{"deviceId":"S",}"#), "expected a key in double quotes at byte 16");
    assert_eq!(syntax_error(r#"{"deviceId":"S"} x"#), "expected nothing more behind the value at byte 17");
    assert_eq!(syntax_error(r#"{"readings":[{"value":1},]}"#), "expected a value at byte 25");
    assert_eq!(syntax_error(b"{\"deviceId\":\"\xC3\"}"), "the text is not valid UTF-8 at byte 13");
}

#[test]
fn a_single_object_with_garbage_behind_it_yields_nothing() {
    let mut notes = Notes::default();
    assert!(parse(br#"{"deviceId":"S","value":1}}"#, &mut notes).is_err());
    assert!(notes.0.is_empty());
}

#[test]
fn lines_stand_for_themselves() {
    let body = b"{\"deviceId\":\"S\",\"value\":1}\r\n\n  \t\n{\"deviceId\":\"S\",\"value\":}\n\
        [{\"deviceId\":\"S\",\"value\":2},{\"value\":3}]\n[{\"deviceId\":\"S\",\"value\":4},]\n\
        {\"deviceId\":\"\xFF\",\"value\":5}\n{\"deviceId\":\"S\",\"value\":6} {}\n{\"deviceId\":\"S\",\"value\":7}";
    assert_eq!(
        line_notes(body),
        [
            "line 1",
            "S now value=1",
            "line 4",
            "invalid_json: expected a value at byte 24 of the line",
            "line 5",
            "S now value=2",
            "missing_device_id: there is no \"deviceId\"",
            "line 6",
            "invalid_json: expected a value at byte 29 of the line",
            "line 7",
            "invalid_json: the text is not valid UTF-8 at byte 13 of the line",
            "line 8",
            "invalid_json: expected nothing more behind the value at byte 27 of the line",
            "line 9",
            "S now value=7",
        ]
    );
    assert_eq!(line_notes("\n \n"), [""; 0]);
}

fn any_json() -> impl Strategy<Value = Value> {
    let key = prop_oneof!["(deviceId|ts|value|values|metadata|readings)", ".{0,4}"];
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
            prop::collection::btree_map(key.clone(), inner, 0..6).prop_map(|fields| Value::from_iter(fields)),
        ]
    })
}

/// Pieces that make or break JSON when they come to stand somewhere.
fn any_piece() -> impl Strategy<Value = Vec<u8>> {
    let telling = prop::sample::select(vec![
        "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u", "\\uD83D", "\\uDE00", "\\u00e9", "\\n", "-", "+", ".", "e",
        "E1", "0", "1", " ", "\n", "\t", "true", "null", "\u{1}", "é", "\"a\":1", ",1", "\u{7F}",
    ]);
    prop_oneof![telling.prop_map(|piece| piece.as_bytes().to_vec()), any::<u8>().prop_map(|byte| vec![byte])]
}

/// Asserts that the bytes are JSON here exactly when they are JSON to `serde_json`. It refuses numbers beyond the range
/// of floats, which are left to admission here, so these say nothing.
fn assert_json_like_serde_json(bytes: &[u8]) {
    let ours = parse(bytes, &mut Notes::default());
    match serde_json::from_slice::<Value>(bytes) {
        Ok(_) => assert_eq!(ours, Ok(()), "{:?}", String::from_utf8_lossy(bytes)),
        Err(error) if error.to_string().starts_with("number out of range") => {}
        Err(error) => assert!(ours.is_err(), "{:?}: {error}", String::from_utf8_lossy(bytes)),
    }
}

/// A reading as it is made up: device, time in milliseconds, values.
type Made = (String, Option<i64>, Vec<(String, f64)>);

fn any_reading() -> impl Strategy<Value = Made> {
    let value = prop_oneof![any::<f64>().prop_filter("JSON has no others", |value| value.is_finite()), -1e3..1e3];
    let values = prop::collection::btree_map(any::<String>(), value, 1..20).prop_map(|map| map.into_iter().collect());
    (any::<String>(), any::<Option<i64>>(), values)
}

proptest! {
    #[test]
    fn whatever_serde_json_writes_is_json_here(json in any_json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_vec_pretty(&json) } else { serde_json::to_vec(&json) }.unwrap();
        prop_assert_eq!(parse(&text, &mut Notes::default()), Ok(()));
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
    fn made_up_tokens_are_json_exactly_when_serde_json_takes_them(pieces in prop::collection::vec(any_piece(), 0..8)) {
        assert_json_like_serde_json(&pieces.concat());
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any_piece(), 0..40)) {
        let bytes = bytes.concat();
        let _ = parse(&bytes, &mut Notes::default());
        parse_lines(&bytes, &mut Notes::default());
    }

    #[test]
    fn each_reading_comes_out_as_it_went_in(
        readings in prop::collection::vec(any_reading(), 0..6),
        shuffle in prop::collection::vec(any::<prop::sample::Index>(), 3),
    ) {
        #[derive(Default)]
        struct Kept(Vec<Made>);
        impl Sink for Kept {
            fn reading(&mut self, incoming: Incoming<'_>) {
                let values = incoming.values.iter().map(|(metric, value)| (metric.to_string(), *value)).collect();
                self.0.push((incoming.device.to_owned(), incoming.ts_ms, values));
            }
            fn reject(&mut self, rejection: Rejection) {
                panic!("{rejection:?}");
            }
        }

        let json = |text: &str| serde_json::to_string(text).unwrap();
        let objects = readings.iter().map(|(device, ts_ms, values)| {
            let values: Vec<_> = values.iter().map(|(metric, value)| format!("{}:{value:?}", json(metric))).collect();
            let mut fields = vec![
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
        let mut kept = Kept::default();
        parse(format!("[{}]", objects.join(",\n")).as_bytes(), &mut kept).unwrap();
        prop_assert_eq!(&kept.0, &readings);
        kept.0.clear();
        parse_lines(objects.join("\n").as_bytes(), &mut kept);
        prop_assert_eq!(&kept.0, &readings);
    }
}
