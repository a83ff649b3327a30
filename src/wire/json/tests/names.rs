//! The names of metrics: `metric`, `unit` and `labels`.

use super::*;
use crate::wire::Incoming;
use crate::wire::readings_only::ReadingsOnly;

#[test]
fn a_metric_names_the_value() {
    for key in ["metric", "name"] {
        assert_eq!(entries(format!(r#"{{"{key}":"temp","deviceId":"S","value":1}}"#)), ["S now temp=1"]);
    }
    assert_eq!(entries(r#"{"deviceId":"S","value":1,"values":{"value":2},"metric":"temp"}"#), ["S now temp=1 value=2"]);
    assert_eq!(
        entries(
            r#"{"deviceId":"S","metric":"temp","readings":[{"value":1},{"value":2,"metric":"hum"},{"values":{"x":3}}]}"#
        ),
        ["S now temp=1", "S now hum=2", "S now x=3"]
    );
    let twice = "duplicate_key: the key \"temp\" is duplicated";
    assert_eq!(entries(r#"{"deviceId":"S","value":1,"values":{"temp":2},"metric":"temp"}"#), [twice]);
}

#[test]
fn a_metric_that_names_nothing_is_rejected() {
    let nothing = "invalid_value: \"metric\" describes \"value\", and there is none";
    assert_eq!(
        entries(r#"{"deviceId":"S","name":"Kitchen","values":{"t":1}}"#),
        [&format!("value {nothing}"), "S now t=1"]
    );
    assert_eq!(entries(r#"{"deviceId":"S","metric":"temp"}"#), [nothing]);
    let number = "invalid_metric_name: \"metric\" must be a string, found a number";
    assert_eq!(entries(r#"{"deviceId":"S","metric":5,"value":1}"#), [number]);
    assert_eq!(
        entries(r#"{"deviceId":"S","metric":5,"value":1,"values":{"t":1}}"#),
        [&format!("value {number}"), "S now t=1"]
    );
    assert_eq!(entries(r#"{"deviceId":"S","metric":null,"value":1}"#), ["S now value=1"]);
}

#[test]
fn a_metric_and_a_unit_that_no_reading_needs_are_reported() {
    assert_eq!(
        entries(r#"{"deviceId":"S","metric":"temp","unit":"C","readings":[{"values":{"t":1}},{"values":{"t":2}}]}"#),
        ["S now t=1", "S now t=2", "ignored UnknownKey metric", "ignored UnknownKey unit"]
    );
    assert_eq!(
        entries(r#"{"deviceId":"S","unit":"C","readings":[{"values":{"t":1}},{"value":2}]}"#),
        ["S now t=1", "S now value{unit=C}=2"]
    );
    assert_eq!(
        entries(r#"{"deviceId":"S","metric":"temp","value":1,"readings":[{"values":{"t":1}}]}"#),
        ["S now temp=1", "S now t=1"],
        "the reading of the object itself needs it"
    );
}

#[test]
fn a_bad_metric_or_unit_that_no_reading_needs_is_reported() {
    let with_own = r#"{"value":1,"metric":"a","unit":"C"},{"values":{"t":1}}"#;
    for (names, readings, expected) in [
        (r#""metric":5"#, with_own, &["S now a{unit=C}=1", "S now t=1", "ignored UnknownKey metric"][..]),
        (r#""unit":5"#, with_own, &["S now a{unit=C}=1", "S now t=1", "ignored UnknownKey unit"]),
        (r#""unit":"F","metric":"b""#, with_own, &["S now a{unit=C}=1", "S now t=1"]),
        (r#""metric":5"#, r#"{"values":{"t":1}}"#, &["S now t=1", "ignored UnknownKey metric"]),
        (
            r#""metric":5"#,
            r#"{"value":1,"metric":"a"},{"value":2}"#,
            &["S now a=1", "invalid_metric_name: \"metric\" must be a string, found a number"],
        ),
    ] {
        assert_eq!(entries(format!(r#"{{"deviceId":"S",{names},"readings":[{readings}]}}"#)), expected, "{names}");
    }
}

#[test]
fn a_unit_is_a_label_of_the_value() {
    assert_eq!(
        entries(r#"{"deviceId":"S","metric":"temp","unit":"C","value":1,"values":{"h":2}}"#),
        ["S now temp{unit=C}=1 h=2"]
    );
    assert_eq!(
        entries(r#"{"deviceId":"S","unit":"C","readings":[{"value":1},{"value":2,"unit":"F"},{"value":3,"unit":""}]}"#),
        ["S now value{unit=C}=1", "S now value{unit=F}=2", "S now value=3"]
    );
    assert_eq!(
        entries(r#"{"deviceId":"S","unit":"C","readings":[{"value":1,"labels":{"unit":"K"}}]}"#),
        ["S now value{unit=K}=1"]
    );
    assert_eq!(
        entries(r#"{"deviceId":"S","unit":5,"value":1}"#),
        ["invalid_label: \"unit\" must be a string, found a number"]
    );
    assert_eq!(
        entries(r#"{"deviceId":"S","unit":"C","labels":{"unit":"K"},"value":1}"#),
        ["invalid_label: the label \"unit\" is duplicated"]
    );
}

#[test]
fn the_measurement_that_begins_the_names_has_a_length() {
    let lengths = |body: &str| {
        let mut found = Vec::new();
        let mut sink = ReadingsOnly(|incoming: Incoming<'_>| found.push(incoming.measurement_bytes));
        parse(body.as_bytes(), &Options::default(), &mut sink).unwrap();
        found
    };
    assert_eq!(lengths(r#"{"deviceId":"S","values":{"cpu_idle":1,"cpu":2},"measurementBytes":3}"#), [3]);
    assert_eq!(lengths(r#"{"measurementBytes":null,"deviceId":"S","values":{"cpu_idle":1}}"#), [0]);
    assert_eq!(
        lengths(
            r#"{"deviceId":"S","measurementBytes":3.0,"readings":[{"values":{"cpu_idle":1}},
                {"values":{"disk_free":1},"measurementBytes":4},{"values":{"a_b":1},"measurementBytes":0}]}"#
        ),
        [3, 4, 0]
    );
    assert_eq!(lengths(r#"{"deviceId":"S","values":{"a{b_c=x}":1,"cpu_idle":2},"measurementBytes":3}"#), [0]);
    let problem = "invalid_metric_name: \"measurementBytes\" must be a whole number from 0 to 255";
    for no_length in ["256", "-1", "1.5", "\"3\"", "[3]", "true"] {
        let body = format!(r#"{{"deviceId":"S","measurementBytes":{no_length},"values":{{"a_b":1}}}}"#);
        assert_eq!(entries(body), [problem], "{no_length}");
    }
}

#[test]
fn labels_tell_series_of_one_metric_apart() {
    assert_eq!(
        entries(r#"{"deviceId":"S","labels":{"phase":"L1","b":"x=y"},"values":{"u":230,"i{n=1}":2}}"#),
        [r"S now u{b=x\=y,phase=L1}=230 i{n=1,b=x\=y,phase=L1}=2"]
    );
    assert_eq!(
        entries(
            r#"{"deviceId":"S","labels":{"site":"a","n":"0"},"readings":[{"value":1,"labels":{"n":"1"}},{"value":2},
                {"value":3,"labels":null}]}"#
        ),
        ["S now value{n=1,site=a}=1", "S now value{n=0,site=a}=2", "S now value{n=0,site=a}=3"]
    );
    assert_eq!(entries(r#"{"deviceId":"S","labels":{"a":null},"value":1}"#), ["S now value=1"]);
}

#[test]
fn bad_labels_reject_the_readings_that_have_them() {
    let many: Vec<_> = (0..33).map(|key| format!(r#""{key}":"v""#)).collect();
    for (labels, rejection) in [
        ("[]".to_owned(), "invalid_label: \"labels\" must be an object of strings, found an array"),
        (r#"{"a":1}"#.to_owned(), "invalid_label: the label \"a\" must be a string, found a number"),
        (r#"{"a":"1","a":"2"}"#.to_owned(), "invalid_label: the label \"a\" is duplicated"),
        (format!("{{{}}}", many.join(",")), "too_many_labels: a series has at most 32 labels, this has 33"),
        (
            format!(r#"{{"a":"{}"}}"#, "x".repeat(600)),
            "series_too_long: a metric with its labels has at most 512 bytes, this has 601",
        ),
    ] {
        let one = format!(r#"{{"deviceId":"S","labels":{labels},"value":1}}"#);
        assert_eq!(entries(one), [rejection]);
        let some = format!(r#"{{"deviceId":"S","readings":[{{"labels":{labels},"value":1}},{{"value":2}}]}}"#);
        assert_eq!(entries(some), [rejection, "S now value=2"]);
        let all = format!(r#"{{"deviceId":"S","labels":{labels},"readings":[{{"value":1}},{{"value":2}}]}}"#);
        assert_eq!(entries(all), [rejection, rejection]);
    }
    let long = format!(
        r#"{{"deviceId":"S","labels":{{"a":"{}"}},"values":{{"{}":1,"t":2}}}}"#,
        "x".repeat(450),
        "m".repeat(100)
    );
    let found = entries(long);
    assert_eq!(found[0], "value series_too_long: a metric with its labels has at most 512 bytes, this has 554");
    assert!(found[1].starts_with("S now t{a=xxx"), "{}", found[1]);
}
