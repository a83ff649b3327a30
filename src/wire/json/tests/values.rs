//! Values, and times in other forms.

use super::*;
use crate::wire::Sink;

const NOW_MS: i64 = 1_776_693_610_000;
const NOW: Options<'_> = Options { device: None, ignore_unknown_keys: false, flat: false, now_ms: NOW_MS };
const FLAT: Options<'_> = Options { device: None, ignore_unknown_keys: false, flat: true, now_ms: NOW_MS };

#[test]
fn null_is_no_value_and_a_boolean_is_one_or_zero() {
    assert_eq!(entries(r#"{"deviceId":"S","values":{"t":null,"h":1}}"#), ["S now h=1"]);
    assert_eq!(
        entries(r#"{"deviceId":"S","values":{"on":true,"off":false},"value":true}"#),
        ["S now on=1 off=0 value=1"]
    );
    assert_eq!(entries(r#"{"deviceId":"S","values":null,"value":1}"#), ["S now value=1"]);
    let nothing = "missing_values: there is no value except null, which stands for none";
    for fields in [r#""value":null"#, r#""values":{"t":null}"#, r#""values":null"#, r#""values":{},"value":null"#] {
        assert_eq!(entries(format!(r#"{{"deviceId":"S",{fields}}}"#)), [nothing], "{fields}");
    }
    assert_eq!(entries(r#"{"deviceId":"S","value":null,"readings":[{"value":1}]}"#), ["S now value=1"]);
}

#[test]
fn a_bad_value_costs_itself() {
    for (value, rejection) in [
        (r#""x""#, "invalid_value: the value of \"b\" must be a number or a boolean, found a string at byte 37"),
        (
            r#""21.5""#,
            "invalid_value: the value of \"b\" must be a number or a boolean, found a string at byte 37; send numbers \
             without quotation marks",
        ),
        ("[1]", "invalid_value: the value of \"b\" must be a number or a boolean, found an array at byte 37"),
        (r#"{"a":1}"#, "invalid_value: the value of \"b\" must be a number or a boolean, found an object at byte 37"),
        ("NaN", "non_finite_value: the value of \"b\" is not a finite number at byte 37"),
        ("-inf", "non_finite_value: the value of \"b\" is not a finite number at byte 37"),
    ] {
        let body = format!(r#"{{"deviceId":"S","values":{{"a":1,"b":{value},"c":3}}}}"#);
        assert_eq!(entries(&body), [&format!("value {rejection}"), "S now a=1 c=3"], "{value}");
        let alone = format!(r#"{{"deviceId":"S","ts":1,"values":{{"b":{value}}}}}"#);
        assert_eq!(entries(alone), [rejection.replace("byte 37", "byte 38")], "{value}");
    }
    assert_eq!(
        entries(r#"{"deviceId":"S","value":1,"values":[1]}"#),
        [
            "value invalid_value: \"values\" must be an object of metrics and numbers, found an array at byte 36",
            "S now value=1"
        ]
    );
    assert_eq!(entries(r#"{"deviceId":"S","values":{"a":1e999,"b":-1e999}}"#), ["S now a=inf b=-inf"]);
    assert_eq!(
        entries_of_lines(" {\"deviceId\":\"S\",\"values\":{\"a\":1,\"b\":nan}}"),
        [
            "line 1",
            "value non_finite_value: the value of \"b\" is not a finite number at byte 38 of the line",
            "S now a=1"
        ]
    );
}

#[test]
fn bad_values_of_one_reading_stay_with_it() {
    assert_eq!(
        entries(
            r#"{"deviceId":"S","readings":[{"values":{"a":"x","b":1}},{"values":{"a":"x"},"ts":"x"},{"value":2}],
                "value":[]}"#
        ),
        [
            "invalid_value: the value of \"value\" must be a number or a boolean, found an array at byte 124",
            "value invalid_value: the value of \"a\" must be a number or a boolean, found a string at byte 44",
            "S now b=1",
            "invalid_timestamp: a timestamp looks like 2026-04-20T14:00:10Z or 2026-04-20T16:00:10.250+02:00",
            "S now value=2",
        ]
    );
}

#[test]
fn bad_values_count_towards_the_most_metrics() {
    struct Strict(RecordingSink);
    impl Sink for Strict {
        fn limits(&self) -> crate::wire::Limits {
            crate::wire::Limits { max_metrics: 2, ..crate::wire::Limits::NONE }
        }
        fn reading(&mut self, incoming: crate::wire::Incoming<'_>) {
            self.0.reading(incoming);
        }
        fn reject(&mut self, rejection: crate::wire::Rejection) {
            self.0.reject(rejection);
        }
        fn reject_value(&mut self, rejection: crate::wire::Rejection) {
            self.0.reject_value(rejection);
        }
        fn ignore(&mut self, what: crate::wire::Ignored, name: &str) {
            self.0.ignore(what, name);
        }
    }
    let found = |values: &str| {
        let mut strict = Strict(RecordingSink::default());
        parse(format!(r#"{{"deviceId":"S","values":{{{values}}}}}"#).as_bytes(), &NOW, &mut strict).unwrap();
        strict.0.0
    };
    assert_eq!(found(r#""a":1,"b":"x""#).len(), 2);
    for values in [r#""a":1,"b":"x","c":"x""#, r#""a":"x","b":"x","c":1"#, r#""a":"x","b":"x","c":"x""#] {
        let refused = "too_many_metrics: a reading has at most 2 metrics (ingest.max_metrics_per_reading), this has 3";
        assert_eq!(found(values), [refused], "{values}");
    }
}

#[test]
fn an_age_refers_to_the_clock() {
    for (fields, ts_ms) in [
        (r#""ageMs":0"#, NOW_MS),
        (r#""ageMs":10000"#, NOW_MS - 10_000),
        (r#""ageMs":1e4"#, NOW_MS - 10_000),
        (r#""ageMs":5,"ts":null"#, NOW_MS - 5),
        (r#""ageMs":null,"time":7"#, 7),
        (r#""ageMs":9223372036854775807"#, NOW_MS - i64::MAX),
    ] {
        let body = format!(r#"{{"deviceId":"S",{fields},"value":1}}"#);
        assert_eq!(entries_with(NOW, body), [format!("S {ts_ms} value=1")], "{fields}");
    }
    assert_eq!(
        entries_with(
            NOW,
            r#"{"deviceId":"S","ageMs":9,"readings":[{"ageMs":1000,"value":1},{"value":2},{"ts":3,"value":3}]}"#
        ),
        ["S 1776693609000 value=1", "S 1776693609991 value=2", "S 3 value=3"]
    );
    let expected = "invalid_timestamp: \"ageMs\" must be a whole number of milliseconds from 0";
    for (age, found) in [("-1", ""), ("1.5", ""), ("\"1\"", ", found a string"), ("true", ", found true")] {
        let body = format!(r#"{{"deviceId":"S","ageMs":{age},"value":1}}"#);
        assert_eq!(entries_with(NOW, body), [format!("{expected}{found}")]);
    }
    let both =
        r#"duplicate_key: a reading has either a time ("ts", "timestamp" or "time") or an "ageMs", and this has both"#;
    assert_eq!(entries_with(NOW, r#"{"deviceId":"S","ageMs":1,"time":1,"value":1}"#), [both]);
}

#[test]
fn a_time_may_be_a_number_in_quotation_marks() {
    for (ts, ms) in [
        (r#""1776693610000""#, "1776693610000"),
        (r#""-5""#, "-5"),
        (r#""2026-04-20T16:00:10,250+0200""#, "1776693610250"),
        (r#""2026-04-20 14:00:10+00""#, "1776693610000"),
    ] {
        assert_eq!(entries(format!(r#"{{"deviceId":"S","time":{ts},"value":1}}"#)), [format!("S {ms} value=1")]);
    }
    let looks_like = "1776693610.25 looks like seconds, so multiply it by 1000 and round it";
    for (ts, start) in [
        ("1776693610.25", "a \"time\" that is a number must be Unix milliseconds"),
        (r#""1776693610.25""#, "a timestamp looks like 2026-04-20T14:00:10Z or 2026-04-20T16:00:10.250+02:00"),
    ] {
        let body = format!(r#"{{"deviceId":"S","time":{ts},"value":1}}"#);
        assert_eq!(entries(body), [format!("invalid_timestamp: {start}; {looks_like}")]);
    }
}

#[test]
fn other_keys_of_a_flat_object_are_metrics() {
    assert_eq!(
        entries_with(
            FLAT,
            r#"{"deviceId":"S","time":5,"temp":22.4,"on":true,"fan":null,"mode":"auto","wifi":{"rssi":-61,"ssid":"x",
                "a":{"b":{}, "c":2}},"value":1,"values":{"h":3}}"#
        ),
        ["ignored String mode", "ignored String wifi.ssid", "S 5 temp=22.4 on=1 wifi.rssi=-61 wifi.a.c=2 value=1 h=3",]
    );
    assert_eq!(
        entries_with(FLAT, r#"{"deviceId":"S","readings":[{"ts":1,"t":1},{"ts":2,"t":2}],"fw":"1.2"}"#),
        ["ignored String fw", "S 1 t=1", "S 2 t=2"]
    );
    assert_eq!(
        entries_with(FLAT, r#"{"deviceId":"S","t":1,"name":"Kitchen","list":[1,2]}"#),
        [
            "ignored String metric",
            "value invalid_value: the value of \"list\" must be a number or a boolean, found an array at byte 47",
            "S now t=1"
        ]
    );
    assert_eq!(
        entries_with(FLAT, r#"{"deviceId":"S","a":{"b":1},"a.b":2}"#),
        ["duplicate_key: the key \"a.b\" is duplicated"]
    );
}

#[test]
fn the_paths_of_flat_objects_are_limited() {
    let nested = |levels: usize| {
        format!(r#"{{"deviceId":"S","t":1,{}1{}}}"#, r#""a":{"#.repeat(levels) + r#""b":"#, "}".repeat(levels))
    };
    assert_eq!(entries_with(FLAT, nested(8)), [format!("S now t=1 {}b=1", "a.".repeat(8))]);
    let deep = &entries_with(FLAT, nested(9))[0];
    assert!(
        deep.starts_with("value invalid_metric_name: the metrics below \"a.a.a.a.a.a.a.a.a\" have more than 8 levels"),
        "{deep}"
    );
    for (outer, inner) in [(100, 100), (200, 1), (1, 200), (127, 1)] {
        let body = format!(r#"{{"deviceId":"S","t":1,"{}":{{"{}":1}}}}"#, "a".repeat(outer), "b".repeat(inner));
        let entries = entries_with(FLAT, body);
        assert_eq!(entries[1], "S now t=1", "{entries:?}");
        assert!(entries[0].contains("a metric name has at most 128 bytes, the path after \""), "{entries:?}");
    }
    let longest = format!(r#"{{"deviceId":"S","{}":{{"b":1}}}}"#, "a".repeat(126));
    assert_eq!(entries_with(FLAT, longest), [format!("S now {}.b=1", "a".repeat(126))]);
}
