//! Known keys by each of their names, and unknown keys.

use super::*;
use crate::wire::Incoming;
use crate::wire::readings_only::ReadingsOnly;

const IGNORING: Options<'_> = Options { device: None, ignore_unknown_keys: true, flat: false, now_ms: 0 };

#[test]
fn each_key_has_its_other_names() {
    for device in ["deviceId", "device_id", "deviceID", "device", "sensorId", "sensor_id"] {
        for time in ["ts", "timestamp", "time"] {
            let body = format!(r#"{{"{device}":"S","{time}":7,"value":1}}"#);
            assert_eq!(entries(body), ["S 7 value=1"]);
        }
    }
    for values in ["values", "fields", "measurements"] {
        for metadata in ["metadata", "tags", "meta"] {
            let body = format!(r#"{{"deviceId":"S","readings":[{{"{values}":{{"t":1}}}}],"{metadata}":{{"a":1}}}}"#);
            assert_eq!(entries(body), [r#"S now t=1 {"a":1}"#]);
        }
    }
}

#[test]
fn two_names_of_one_key_reject_the_reading() {
    for (fields, key, names) in [
        (
            r#""deviceId":"S","device":"S","value":1"#,
            "device",
            "deviceId, device_id, deviceID, device, sensorId, sensor_id",
        ),
        (r#""deviceId":"S","time":1,"ts":1,"value":1"#, "ts", "ts, timestamp, time"),
        (r#""deviceId":"S","fields":{"a":1},"values":{"b":1}"#, "values", "values, fields, measurements"),
        (r#""deviceId":"S","metric":"a","name":"b","value":1"#, "name", "metric, name"),
        (r#""deviceId":"S","tags":{},"meta":{},"value":1"#, "meta", "metadata, tags, meta"),
    ] {
        let twice = format!("duplicate_key: the key \"{key}\" is duplicated: {names} are the same key");
        assert_eq!(entries(format!("{{{fields}}}")), [twice], "{fields}");
    }
}

#[test]
fn an_unknown_key_rejects_its_reading_and_says_what_may_be_meant() {
    for (fields, detail) in [
        (r#""Time":1,"value":1"#, r#"unknown key "Time" at byte 18; did you mean "time"?"#),
        (r#""value":1,"ts_ms":1"#, r#"unknown key "ts_ms" at byte 28; did you mean "ts"?"#),
        (r#""note":"x","value":1,"more":1"#, r#"unknown key "note" at byte 18"#),
        (r#""value":1,"x":[1,{"deviceId":"no"}]"#, r#"unknown key "x" at byte 28"#),
        (r#""bn":"urn:","v":1"#, r#"unknown key "bn" at byte 18; SenML is of type application/senml+json"#),
    ] {
        let body = format!(r#"[{{"deviceId":"S",{fields}}},{{"deviceId":"T","value":2}}]"#);
        assert_eq!(entries(body), [format!("unknown_key: {detail}"), "T now value=2".to_owned()], "{fields}");
    }
}

/// Bodies that users often send at first.
#[test]
fn an_unknown_key_of_a_flat_object_leads_to_what_takes_it() {
    let other = "(other forms: ingest.json.flat, [[webhook]])";
    for (body, detail) in [
        (
            r#"{"id":"esp-1","temperature":21.5}"#,
            format!(r#"unknown key "id" at byte 2; did you mean "deviceId"? {other}"#),
        ),
        (
            r#"{"deviceId":"esp-1","temperature":21.5}"#,
            format!(r#"unknown key "temperature" at byte 21; metrics belong into "values" {other}"#),
        ),
        (
            r#"{"device":"esp-1","on":true}"#,
            format!(r#"unknown key "on" at byte 19; metrics belong into "values" {other}"#),
        ),
    ] {
        assert_eq!(entries(body), [format!("unknown_key: {detail}")], "{body}");
    }
}

#[test]
fn an_unknown_key_beside_readings_rejects_each_of_them() {
    let unknown = r#"unknown_key: unknown key "tz" at byte 41; did you mean "ts"?"#;
    assert_eq!(entries(r#"{"readings":[{"value":1},{"value":2}],  "tz":"UTC","deviceId":"S"}"#), [unknown, unknown]);
    let inner =
        r#"{"deviceId":"S","readings":[{"value":1,"valeu":2},{"value":3},{"readings":[]},{"seq":1,"value":4}]}"#;
    assert_eq!(
        entries(inner),
        [
            r#"unknown_key: unknown key "valeu" at byte 40; did you mean "value"?"#,
            "S now value=3",
            r#"unknown_key: unknown key "readings" at byte 64; it has its place in the outermost object only"#,
            r#"unknown_key: unknown key "seq" at byte 80; it has its place in the outermost object only"#,
        ]
    );
}

#[test]
fn unknown_keys_are_ignored_and_counted_if_the_options_say_so() {
    assert_eq!(
        entries_with(IGNORING, r#"{"deviceId":"S","note":"x","readings":[{"unit_of":1,"value":1},{"value":2}]}"#),
        ["ignored UnknownKey note", "ignored UnknownKey unit_of", "S now value=1", "S now value=2"]
    );
    let missing = r#"missing_values: there is no "value" and no "values""#;
    assert_eq!(entries_with(IGNORING, r#"{"deviceId":"S","valeu":1}"#), ["ignored UnknownKey valeu", missing]);
}

#[test]
fn only_the_first_hundred_unknown_keys_have_hints() {
    let entries = entries(format!("[{}]", vec![r#"{"Time":1}"#; 150].join(",")));
    assert_eq!(entries.len(), 150);
    assert_eq!(entries.iter().filter(|entry| entry.ends_with("did you mean \"time\"?")).count(), 100);
}

#[test]
fn the_notes_of_dead_letters_are_no_unknown_keys() {
    let notes = r#""refusedAt":"2026-04-20T14:00:10.000Z","reason":"validation","detail":"x""#;
    let notes = format!(r#"{notes},"replaces":{{"1":{{"a":0}}}},"deviceId":"S""#);
    assert_eq!(entries(format!(r#"{{{notes},"readings":[{{"ts":1,"values":{{"a":1}}}}]}}"#)), ["S 1 a=1"]);
    let without = r#"unknown_key: unknown key "reason" at byte 2"#;
    assert_eq!(entries(r#"{"reason":"x","deviceId":"S","value":1}"#), [without]);
}

#[test]
fn a_reading_may_name_its_own_device() {
    assert_eq!(
        entries(
            r#"{"deviceId":"m8","metadata":{"a":1},"ts":5,"readings":[{"deviceId":"m9","value":1},{"value":2},
                {"device":"m8","value":3},{"deviceId":"m9","metadata":{"b":1},"value":4},{"deviceId":7,"value":5}]}"#
        ),
        [
            "m9 5 value=1",
            r#"m8 5 value=2 {"a":1}"#,
            r#"m8 5 value=3 {"a":1}"#,
            r#"m9 5 value=4 {"b":1}"#,
            "invalid_device_id: \"deviceId\" must be a string, found a number",
        ]
    );
    assert_eq!(
        entries(r#"{"readings":[{"deviceId":"a","value":1},{"value":2}]}"#),
        ["a now value=1", "missing_device_id: there is no \"deviceId\""]
    );
    assert_eq!(
        entries(r#"{"metadata":{},"readings":[{"deviceId":"a","value":1}]}"#),
        ["missing_device_id: beside \"readings\" there is \"metadata\" and no \"deviceId\""]
    );
    assert_eq!(
        entries(r#"{"deviceId":5,"readings":[{"deviceId":"a","value":1}]}"#),
        ["invalid_device_id: \"deviceId\" must be a string, found a number"]
    );
}

#[test]
fn metadata_of_a_reading_is_that_of_the_device_from_there_on() {
    assert_eq!(
        entries(
            r#"{"deviceId":"S","metadata":{"a":1},"readings":[{"value":1},{"value":2,"meta":{"b":2}},{"value":3},
                {"value":4,"metadata":[]},{"value":5,"metadata":null}]}"#
        ),
        [
            r#"S now value=1 {"a":1}"#,
            r#"S now value=2 {"b":2}"#,
            r#"S now value=3 {"b":2}"#,
            "invalid_metadata: \"metadata\" must be an object, found an array",
            r#"S now value=5 {"b":2}"#,
        ]
    );
}

#[test]
fn readings_with_the_same_number_share_device_and_metadata() {
    let object = r#"{"deviceId":"S","readings":[{"value":1},{"value":2},{"value":3,"meta":{"a":1}},{"value":4},
        {"deviceId":"T","value":5},{"deviceId":"T","value":6,"meta":{}},{"value":7},{"deviceId":"S","value":8}]}"#;
    let mut owners = Vec::new();
    let mut sink = ReadingsOnly(|Incoming { owner, device, metadata, .. }: Incoming<'_>| {
        owners.push((owner, format!("{device} {metadata:?}")));
    });
    parse(format!("[{object},{object}]").as_bytes(), &Options::default(), &mut sink).unwrap();
    let shared: std::collections::HashMap<_, _> = owners.iter().cloned().collect();
    for (number, owner) in &owners {
        assert!(number.is_none() || shared[number] == *owner, "{owners:?}");
    }
    assert_eq!(owners.iter().filter(|(number, _)| number.is_none()).count(), 4, "{owners:?}");
}
