//! The readings and rejections of JSON bodies.

mod keys;
mod lines;
mod names;
mod random;
mod values;

use super::*;
use crate::wire::recording_sink::RecordingSink;

fn entries(body: impl AsRef<[u8]>) -> Vec<String> {
    entries_with(Options::default(), body)
}

fn entries_with(options: Options<'_>, body: impl AsRef<[u8]>) -> Vec<String> {
    let mut entries = RecordingSink::default();
    parse(body.as_ref(), &options, &mut entries).unwrap();
    entries.0
}

fn entries_of_lines(body: impl AsRef<[u8]>) -> Vec<String> {
    let mut entries = RecordingSink::default();
    parse_lines(body.as_ref(), &Options::default(), &mut entries);
    entries.0
}

fn syntax_error(body: impl AsRef<[u8]>) -> String {
    parse(body.as_ref(), &Options::default(), &mut RecordingSink::default()).unwrap_err().to_string()
}

#[test]
fn the_sequence_number_precedes_the_readings() {
    let batch = r#"{"readings":[{"ts":1,"value":1},{"ts":2,"value":2}],"seq":7,"deviceId":"S1"}"#;
    assert_eq!(entries(batch), ["S1 sequence 7", "S1 1 value=1", "S1 2 value=2"]);
    let largest = format!(r#"{{"deviceId":"S1","seq":{},"ts":1}}"#, u64::MAX);
    assert_eq!(entries(largest)[0], format!("S1 sequence {}", u64::MAX));
    for no_number in ["-1", "1.5", "18446744073709551616", "\"7\"", "{}", "[7]"] {
        let body = format!(r#"{{"deviceId":"S1","seq":{no_number},"ts":1,"value":1}}"#);
        assert_eq!(entries(body), ["ignored UnknownKey seq", "S1 1 value=1"]);
    }
    assert_eq!(entries(r#"{"deviceId":"S1","seq":null,"ts":1,"value":1}"#), ["S1 1 value=1"]);
}

#[test]
fn each_shape_is_read() {
    assert_eq!(entries(r#"{"deviceId":"S1","ts":"1970-01-01T00:00:10Z","value":320}"#), ["S1 10000 value=320"]);
    assert_eq!(entries(r#" {"deviceId":"S1","ts":7,"values":{"temp":22.4,"hum":-4e1}} "#), ["S1 7 temp=22.4 hum=-40"]);
    assert_eq!(
        entries(
            r#"{"deviceId":"S1","metadata":{ "floor": 2 },"readings":[{"ts":1,"value":1},{"ts":2,"values":{"t":2}}]}"#
        ),
        [r#"S1 1 value=1 { "floor": 2 }"#, r#"S1 2 t=2 { "floor": 2 }"#]
    );
    assert_eq!(
        entries(
            r#"[{"deviceId":"A","ts":1,"value":1},{"deviceId":"B","readings":[{"value":2},{"value":3}]},
                {"deviceId":"C","metadata":{},"value":4}]"#
        ),
        ["A 1 value=1", "B now value=2", "B now value=3", "C now value=4 {}"]
    );
    assert_eq!(entries("[]"), [""; 0]);
    assert_eq!(entries("\u{FEFF}{\"deviceId\":\"S1\",\"value\":1}"), ["S1 now value=1"]);
}

#[test]
fn keys_are_in_any_order() {
    assert_eq!(
        entries(r#"{"readings":[{"value":1,"ts":5},{"value":2}],"ts":9,"metadata":{"a":1},"deviceId":"S1"}"#),
        [r#"S1 5 value=1 {"a":1}"#, r#"S1 9 value=2 {"a":1}"#]
    );
    assert_eq!(entries(r#"{"value":1,"ts":5,"\u0064eviceId":"S\u0031"}"#), ["S1 5 value=1"]);
}

#[test]
fn value_may_occur_with_values_and_with_readings() {
    assert_eq!(entries(r#"{"deviceId":"S","values":{"a":1},"value":2}"#), ["S now a=1 value=2"]);
    assert_eq!(entries(r#"{"deviceId":"S","values":{},"value":2}"#), ["S now value=2"]);
    assert_eq!(
        entries(r#"{"deviceId":"S","readings":[{"ts":1,"value":1}],"ts":2,"value":2}"#),
        ["S 2 value=2", "S 1 value=1"]
    );
    assert_eq!(entries(r#"{"deviceId":"S","readings":[],"value":2}"#), ["S now value=2"]);
}

#[test]
fn ts_is_a_string_or_milliseconds_or_left_to_the_server() {
    for (ts, read) in [
        ("null", "now"),
        ("0", "0"),
        ("-5", "-5"),
        ("1.776e12", "1776000000000"),
        ("1776693610000.25", "1776693610000"),
        ("\"-0.5\"", "-1"),
        (r#""1970-01-01T01:00:00.0019+01:00""#, "1"),
        (r#""1970-01-01t00\u003a00:01z""#, "1000"),
    ] {
        assert_eq!(entries(format!(r#"{{"deviceId":"S","ts":{ts},"value":1}}"#)), [format!("S {read} value=1")]);
    }
    for (ts, detail) in [
        ("1e300", "a \"ts\" that is a number must be Unix milliseconds"),
        ("true", "\"ts\" must be an RFC 3339 string or Unix milliseconds, found true"),
        ("[1]", "\"ts\" must be an RFC 3339 string or Unix milliseconds, found an array"),
        ("\"\"", "a timestamp looks like 2026-04-20T14:00:10Z or 2026-04-20T16:00:10.250+02:00"),
        ("\"2026-02-29T00:00:00Z\"", "the day of this timestamp does not exist"),
    ] {
        let body = format!(r#"{{"deviceId":"S","ts":{ts},"value":1}}"#);
        assert_eq!(entries(body), [format!("invalid_timestamp: {detail}")]);
    }
}

#[test]
fn a_bad_default_ts_rejects_only_the_readings_that_need_it() {
    assert_eq!(
        entries(r#"{"deviceId":"S","ts":1e300,"readings":[{"ts":1,"value":1},{"ts":null,"value":2},{"value":3}]}"#),
        [
            "S 1 value=1",
            "invalid_timestamp: a \"ts\" that is a number must be Unix milliseconds",
            "invalid_timestamp: a \"ts\" that is a number must be Unix milliseconds",
        ]
    );
}

#[test]
fn a_bad_default_ts_that_no_reading_needs_is_reported() {
    for (time, ignored) in [
        (r#""ts":1e300"#, &["ignored UnknownKey ts"][..]),
        (r#""timestamp":1,"ts":2"#, &["ignored UnknownKey ts"]),
        (r#""ageMs":-1"#, &["ignored UnknownKey ageMs"]),
        (r#""ts":1,"ageMs":1"#, &["ignored UnknownKey ts", "ignored UnknownKey ageMs"]),
        (r#""ts":9"#, &[]),
        (r#""ts":null"#, &[]),
    ] {
        let body = format!(r#"{{"deviceId":"S","readings":[{{"ts":1,"value":1}},{{"ageMs":0,"value":2}}],{time}}}"#);
        let found = entries(&body);
        assert_eq!(
            (&*found[0], &found[2..]),
            ("S 1 value=1", &ignored.iter().map(|&name| name.to_owned()).collect::<Vec<_>>()[..]),
            "{body}"
        );
    }
    let own = r#"{"deviceId":"S","ts":1e300,"value":1,"readings":[{"ts":1,"value":1}]}"#;
    assert_eq!(entries(own).len(), 2, "the reading of the object itself is rejected");
}

#[test]
fn a_reading_without_values_is_rejected() {
    let nothing = "missing_values: there is no \"value\" and no \"values\"";
    assert_eq!(entries(r#"{"deviceId":"S","ts":1}"#), [nothing]);
    assert_eq!(entries(r#"{"deviceId":"S","values":{}}"#), ["missing_values: \"values\" is empty"]);
    assert_eq!(entries(r#"{"deviceId":"S","readings":[]}"#), ["missing_values: \"readings\" is empty"]);
    assert_eq!(entries(r#"{"deviceId":"S","readings":[{},{"value":1}]}"#), [nothing, "S now value=1"]);
    assert_eq!(
        entries(r#"{"deviceId":"S","readings":{"value":1}}"#),
        ["missing_values: \"readings\" must be an array of readings, found an object"]
    );
}

#[test]
fn a_bad_device_or_metadata_rejects_each_reading_of_the_object() {
    let missing = "missing_device_id: there is no \"deviceId\"";
    assert_eq!(
        entries(r#"[{"value":1},{"readings":[{"value":1},{}]},{"readings":[]}]"#),
        [missing, missing, missing, "missing_values: \"readings\" is empty"]
    );
    for (device, found) in [("5", "a number"), ("null", "null"), ("{}", "an object")] {
        let rejection = format!("invalid_device_id: \"deviceId\" must be a string, found {found}");
        let body = format!(r#"{{"readings":[{{"value":1}},{{"value":2}}],"deviceId":{device}}}"#);
        assert_eq!(entries(body), [rejection.clone(), rejection]);
    }
    for (metadata, rejection) in [
        ("[]", "invalid_metadata: \"metadata\" must be an object, found an array"),
        (r#"{"a":[[[[[[[[]]]]]]]]}"#, "invalid_metadata: metadata has at most 8 levels of objects and arrays"),
        (r#"{"a":1,"a":1}"#, "duplicate_key: the key \"a\" is duplicated in \"metadata\""),
    ] {
        let body = format!(
            r#"[{{"deviceId":"S","metadata":{metadata},"readings":[{{"value":1}},{{"value":2}}]}},
                {{"deviceId":"S","metadata":{metadata},"value":3}},{{"deviceId":"S","value":4}}]"#
        );
        assert_eq!(entries(body), [rejection, rejection, rejection, "S now value=4"]);
    }
}

#[test]
fn a_duplicate_key_rejects_the_readings_it_affects() {
    let twice = |key: &str| {
        let same = match key {
            "deviceId" => ": deviceId, device_id, deviceID, device, sensorId, sensor_id are the same key",
            "ts" => ": ts, timestamp, time are the same key",
            "values" => ": values, fields, measurements are the same key",
            "metadata" => ": metadata, tags, meta are the same key",
            _ => "",
        };
        format!("duplicate_key: the key \"{key}\" is duplicated{same}")
    };
    for (fields, key) in [
        (r#""deviceId":"S","value":1"#, "deviceId"),
        (r#""metadata":{},"metadata":{},"value":1"#, "metadata"),
        (r#""ts":null,"ts":1,"value":1"#, "ts"),
        (r#""value":1,"value":1"#, "value"),
        (r#""values":{"a":1},"values":{"b":1}"#, "values"),
        (r#""values":{"a":1,"b":2,"a":1}"#, "a"),
        (r#""values":{"value":1},"value":1"#, "value"),
        (r#""readings":[{"value":1}],"readings":[{"value":1}]"#, "readings"),
        (r#""seq":1,"value":1,"seq":1"#, "seq"),
        (r#""labels":{},"value":1,"labels":{}"#, "labels"),
    ] {
        assert_eq!(entries(format!(r#"{{"deviceId":"S",{fields}}}"#)), [twice(key)], "{fields}");
    }
    assert_eq!(
        entries(r#"{"deviceId":"S","readings":[{"value":1,"value":2},{"value":3},{"ts":1,"value":1,"ts":1}]}"#),
        [twice("value"), "S now value=3".to_owned(), twice("ts")]
    );
}

#[test]
fn one_reading_has_one_rejection() {
    assert_eq!(
        entries(r#"{"deviceId":"S","ts":true,"value":"a","values":{"b":null,"b":null}}"#),
        ["invalid_timestamp: \"ts\" must be an RFC 3339 string or Unix milliseconds, found true"]
    );
}

#[test]
fn an_element_that_is_not_an_object_is_rejected_alone() {
    let no_object = |found: &str| format!("invalid_json: a reading must be an object, found {found}");
    assert_eq!(entries("5"), [no_object("a number")]);
    assert_eq!(
        entries(r#"[null,[{"deviceId":"S","value":1}],{"deviceId":"S","value":1}]"#),
        [no_object("null"), no_object("an array"), "S now value=1".to_owned()]
    );
    assert_eq!(
        entries(r#"{"deviceId":"S","readings":["x",{"value":1}]}"#),
        [no_object("a string"), "S now value=1".to_owned()]
    );
}

#[test]
fn text_that_is_not_json_is_an_error_with_its_position() {
    let empty = "expected an object or an array of objects but the body is empty";
    assert_eq!(syntax_error(""), format!("{empty} at byte 1"));
    assert_eq!(syntax_error(" \r\n"), format!("{empty} at byte 4"));
    assert_eq!(syntax_error("\u{FEFF}"), format!("{empty} at byte 4"));
    assert_eq!(syntax_error(r#"{"deviceId":"S",}"#), "expected a key in double quotes at byte 17");
    assert_eq!(syntax_error(r#"{"deviceId":"S"} x"#), "expected nothing after the value at byte 18");
    assert_eq!(
        syntax_error("{\"deviceId\":\"S\"} {}"),
        "expected nothing after the value, or a value on each line, which is NDJSON, at byte 18"
    );
    assert_eq!(syntax_error(r#"{"readings":[{"value":1},]}"#), "expected a value at byte 26");
    assert_eq!(syntax_error(b"{\"deviceId\":\"\xC3\"}"), "the text is not valid UTF-8 at byte 14");
}

#[test]
fn an_object_with_garbage_after_it_yields_nothing() {
    let mut entries = RecordingSink::default();
    assert!(parse(br#"{"deviceId":"S","value":1}}"#, &Options::default(), &mut entries).is_err());
    assert!(entries.0.is_empty());
}
