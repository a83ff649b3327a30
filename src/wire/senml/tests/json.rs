//! The rules of `SenML`, by examples in JSON.

use super::*;

#[track_caller]
fn assert_refused(body: &str, code: &'static str, detail: &str) {
    assert_eq!(json(body), Err((code, detail.to_owned())), "{body}");
}

#[test]
fn base_fields_apply_until_they_are_replaced() {
    assert_json(
        r#"[ {"bn":"a:","bt":1000000000,"bu":"V","bv":10,"n":"x","v":1}, {"n":"y","u":"A","t":1,"v":2},
             {"bn":"b:","bt":2000000000.5,"bv":0,"n":"x","v":3}, {"bu":"","n":"z","v":4} ]"#,
        &[
            r#"a 1000000000000 x=11 {"units":{"x":"V","y":"A"}}"#,
            r#"a 1000000001000 y=12 {"units":{"x":"V","y":"A"}}"#,
            r#"b 2000000000500 x=3 z=4 {"units":{"x":"V"}}"#,
        ],
    );
}

#[test]
fn fields_are_in_any_order_and_unknown_ones_are_ignored() {
    assert_json(
        r#"[ {"v":1,"ut":"?","x":[{"v_":2}],"n":"temp","l":null,"bn":"a/"}, {"bn":"b/","foo":1}, {"n":"m","v":2} ]"#,
        &["ignored UnknownKey x", "ignored UnknownKey l", "ignored UnknownKey foo", "a now temp=1", "b now m=2"],
    );
    assert_json("[]", &[]);
    assert_json("\u{FEFF} [ {\"\\u006e\":\"\\u0061\",\"v\":1} ] ", &["a now value=1"]);
}

#[test]
fn without_a_metric_in_the_name_the_unit_or_value_is_used() {
    assert_json(
        r#"[ {"bn":"a","v":1}, {"u":"Cel","v":2}, {"n":":","vb":true,"u":""}, {"bn":"","n":"b/","v":3} ]"#,
        &[
            r#"a now value=1 Cel=2 {"units":{"Cel":"Cel"}}"#,
            r#"a now value=1 {"units":{"Cel":"Cel"}}"#,
            "b now value=3",
        ],
    );
}

#[test]
fn names_are_split_by_the_options() {
    let options = Options { split: NameSplit::at("."), ..options() };
    assert_eq!(json_with(&options, r#"[{"n":"2001:db8::3.on","v":1}]"#), Ok(vec!["2001:db8::3 now on=1".to_owned()]));
}

#[test]
fn times_below_2_to_the_28_are_relative_to_now() {
    for (fields, read) in [
        (r#""v":1"#, "now"),
        (r#""t":0,"v":1"#, "now"),
        (r#""bt":1.5,"t":-1.5,"v":1"#, "now"),
        (r#""t":-5,"v":1"#, "1776693605000"),
        (r#""bt":-60,"t":0.25,"v":1"#, "1776693550250"),
        (r#""t":0.0004,"v":1"#, "1776693610000"),
        (r#""t":268435455.999,"v":1"#, "2045129065999"),
        (r#""t":268435456,"v":1"#, "268435456000"),
        (r#""bt":268435455,"t":1,"v":1"#, "268435456000"),
        (r#""t":-300000000,"v":1"#, "1476693610000"),
        (r#""t":-1.0004,"v":1"#, "1776693608999"),
        (r#""bt":1776693610.123,"t":0.0006,"v":1"#, "1776693610123"),
        (r#""t":1776693610.123999,"v":1"#, "1776693610123"),
        (r#""t":253402300799.999,"v":1"#, "253402300799999"),
        (r#""t":1776693610.999,"v":1"#, "1776693610999"),
        (r#""t":1.776693610001e9,"v":1"#, "1776693610001"),
    ] {
        assert_json(&format!("[{{\"n\":\"a\",{fields}}}]"), &[&format!("a {read} value=1")]);
    }
    let out_of_range = "invalid_timestamp: record [0]: the time, \"bt\" + \"t\" in seconds, is out of range";
    for time in ["1e13", "-1e13", "1e999", "1e308"] {
        assert_json(&format!("[{{\"n\":\"a\",\"t\":{time},\"v\":1}}]"), &[out_of_range]);
    }
    assert_json(r#"[{"n":"a","bt":1e999,"t":-1e999,"v":1}]"#, &[out_of_range]);
}

#[test]
fn each_millisecond_of_a_time_survives() {
    for ms in (0..1000).map(|ms| 1_776_693_610_000_i64 + ms) {
        let (seconds, fraction) = (ms / 1000, ms % 1000);
        let note = format!("a {ms} value=1");
        assert_json(&format!("[{{\"n\":\"a\",\"t\":{seconds}.{fraction:03},\"v\":1}}]"), &[&note]);
        assert_json(&format!("[{{\"n\":\"a\",\"bt\":{seconds},\"t\":0.{fraction:03},\"v\":1}}]"), &[&note]);
    }
}

#[test]
fn a_sum_is_a_metric_of_its_own() {
    assert_json(
        r#"[ {"n":"m/power","u":"W","v":5,"s":100}, {"n":"m/heat","u":"W","s":7}, {"n":"m","s":1} ]"#,
        &[r#"m now power=5 power_sum=100 heat_sum=7 value_sum=1 {"units":{"power":"W"}}"#],
    );
    assert_json(
        r#"[ {"bn":"m/","bs":1000}, {"n":"a","s":1}, {"n":"b","v":2}, {"n":"c"} ]"#,
        &["missing_values: record [3]: there is no \"v\", no \"vb\" and no \"s\"", "m now a_sum=1001 b=2 b_sum=1000"],
    );
}

#[test]
fn a_record_has_one_value_field() {
    let none = "missing_values: record [0]: there is no \"v\", no \"vb\" and no \"s\"";
    for fields in ["", r#","t":1"#, r#","bv":1"#, r#","ut":1"#] {
        assert_json(&format!(r#"[{{"n":"a"{fields}}}]"#), &[none]);
    }
    let many = "invalid_value: record [0]: a record has only one of \"v\", \"vs\", \"vb\" and \"vd\"";
    for fields in [r#""v":1,"vb":true"#, r#""v":1,"vs":"x""#, r#""vb":true,"vd":"","s":1"#] {
        assert_json(&format!(r#"[{{"n":"a",{fields}}}]"#), &[many]);
    }
    let text = "invalid_value: record [0]: only numbers and booleans can be stored, not \"vs\" or \"vd\"";
    for fields in [r#""vs":"1""#, r#""vd":"aGkgCg""#, r#""vs":"1","s":1"#] {
        assert_json(&format!(r#"[{{"n":"a",{fields}}}]"#), &[text]);
    }
    assert_json("[{}]", &["missing_device_id: record [0]: there is no \"bn\" and no \"n\""]);
}

#[test]
fn null_is_no_value() {
    let none = "missing_values: record [0]: there is no \"v\", no \"vb\" and no \"s\"";
    for fields in
        [r#""n":"a","v":null"#, r#""bn":"a","v":null"#, r#""n":"a","vb":null,"s":null"#, r#""n":"a","vs":null"#]
    {
        assert_json(&format!(r#"[{{{fields}}},{{"bn":"b","v":1}}]"#), &[none, "b now value=1"]);
    }
    assert_json(r#"[{"n":"a","v":null,"s":2}, {"n":"b","v":1,"s":null}]"#, &["a now value_sum=2", "b now value=1"]);
    assert_json(r#"[{"n":"a","v":NaN}, {"n":"b","v":1}]"#, &["a now value=NaN", "b now value=1"]);
}

#[test]
fn labels_tell_series_of_one_name_apart() {
    assert_json(
        r#"[ {"bn":"m/","n":"u","u":"V","v":1,"labels":{"phase":"L2"}}, {"n":"u","v":2,"labels":{"phase":"L1","a":"b"}},
             {"n":"u","v":3,"s":4,"labels":null}, {"n":"e","s":5,"labels":{"x":"y"}} ]"#,
        &[r#"m now u{phase=L2}=1 u{a=b,phase=L1}=2 u=3 u_sum=4 e_sum{x=y}=5 {"units":{"u":"V"}}"#],
    );
    for (labels, rejection) in [
        ("5", "invalid_label: record [0]: \"labels\" must be an object of strings, found a number"),
        (r#"{"a":1}"#, "invalid_label: record [0]: the label \"a\" must be a string, found a number"),
        (
            r#"{"a":""}"#,
            "invalid_label: record [0]: a label has a key and a value without control characters, U+FF0E and U+FF04, \
             unlike \"a=\"",
        ),
        (r#"{},"labels":{}"#, "duplicate_key: record [0]: the key \"labels\" is duplicated"),
    ] {
        assert_json(
            &format!(r#"[{{"n":"a","v":1,"labels":{labels}}},{{"n":"a","v":2}}]"#),
            &[rejection, "a now value=2"],
        );
    }
    let only_labels = "missing_values: record [0]: there is no \"v\", no \"vb\" and no \"s\"";
    assert_json(r#"[{"bn":"a","labels":{"a":"b"}},{"v":1}]"#, &[only_labels, "a now value=1"]);
}

#[test]
fn a_name_has_its_rules() {
    assert_json(r#"[{"v":1}]"#, &["missing_device_id: record [0]: there is no \"bn\" and no \"n\""]);
    for name in ["/3/0", "a b", "ä"] {
        let rule = "a name is made of A-Z a-z 0-9 - : . / _ and starts with a letter or digit";
        let note = format!("invalid_device_id: record [0]: {rule}, unlike \"{name}\"");
        assert_json(&format!(r#"[{{"bn":"{name}","v":1}}]"#), &[&note]);
    }
}

#[test]
fn a_field_of_the_wrong_type_rejects_its_record() {
    for (fields, rejection) in [
        (r#""n":5,"v":1"#, "invalid_device_id: record [1]: \"n\" must be a string, found a number"),
        (r#""u":{},"v":1"#, "invalid_metadata: record [1]: \"u\" must be a string, found an object"),
        (r#""t":"1","v":1"#, "invalid_timestamp: record [1]: \"t\" must be a number, found a string"),
        (r#""v":true"#, "invalid_value: record [1]: \"v\" must be a number, found a boolean"),
        (r#""vb":1"#, "invalid_value: record [1]: \"vb\" must be a boolean, found a number"),
        (r#""s":[1]"#, "invalid_value: record [1]: \"s\" must be a number, found an array"),
        (r#""v":1,"v":1"#, "duplicate_key: record [1]: the key \"v\" is duplicated"),
        (r#""v":1,"bver":10,"bver":10"#, "duplicate_key: record [1]: the key \"bver\" is duplicated"),
    ] {
        let body = format!(r#"[{{"bn":"a","v":1}},{{{fields}}},{{"v":2}}]"#);
        assert_json(&body, &[rejection, "a now value=1", "a now value=2"]);
    }
}

#[test]
fn a_bad_base_field_rejects_the_records_that_need_it() {
    let it = "it needs a base field of an earlier record:";
    assert_json(
        r#"[ {"bn":"a/","n":"x","v":1}, {"bn":5}, {"n":"x","v":2}, {"bn":"b/","n":"x","v":3} ]"#,
        &[
            "invalid_device_id: record [1]: \"bn\" must be a string, found a number",
            &format!("invalid_device_id: record [2]: {it} \"bn\" must be a string, found a number"),
            "a now x=1",
            "b now x=3",
        ],
    );
    assert_json(
        r#"[ {"bn":"a/","bu":7,"bv":true}, {"n":"x","v":1}, {"n":"y","u":"V","vb":true}, {"n":"z","u":"V","v":1} ]"#,
        &[
            "invalid_metadata: record [0]: \"bu\" must be a string, found a number",
            &format!("invalid_metadata: record [1]: {it} \"bu\" must be a string, found a number"),
            &format!("invalid_value: record [3]: {it} \"bv\" must be a number, found a boolean"),
            r#"a now y=1 {"units":{"y":"V"}}"#,
        ],
    );
    assert_json(
        r#"[ {"bt":"x","bt":1,"n":"a","v":1}, {"n":"a","v":1}, {"bt":null,"bs":"y"}, {"n":"a","v":2} ]"#,
        &[
            "duplicate_key: record [0]: the key \"bt\" is duplicated",
            &format!("duplicate_key: record [1]: {it} the key \"bt\" is duplicated"),
            "invalid_timestamp: record [2]: \"bt\" must be a number, found null",
            &format!("invalid_value: record [3]: {it} \"bs\" must be a number, found a string"),
        ],
    );
    assert_json(
        r#"[ {"bn":"a/","n":"no","vs":"x"}, {"n":"x","v":2} ]"#,
        &["invalid_value: record [0]: only numbers and booleans can be stored, not \"vs\" or \"vd\"", "a now x=2"],
    );
}

#[test]
fn consecutive_records_of_one_device_and_time_are_one_reading() {
    assert_json(
        r#"[ {"bn":"a/","n":"x","v":1}, {"n":"y","t":0,"v":2}, {"n":"x","t":-1,"v":3}, {"n":"z","v":4},
             {"bn":"b/","n":"x","v":5}, {"bn":"a/","n":"x","v":6}, {"n":"x","v":7} ]"#,
        &["a now x=1 y=2", "a 1776693609000 x=3", "a now z=4", "b now x=5", "a now x=6", "a now x=7"],
    );
    let options = Options { max_metrics: 2, ..options() };
    let body = r#"[ {"bn":"a/","n":"x","v":1}, {"n":"y","v":2}, {"n":"z","v":3,"s":4}, {"n":"w","v":5} ]"#;
    assert_eq!(
        json_with(&options, body),
        Ok(["a now x=1 y=2", "a now z=3 z_sum=4", "a now w=5"].map(str::to_owned).to_vec())
    );
}

#[test]
fn a_record_that_the_sink_may_reject_affects_no_other() {
    let long = "m".repeat(129);
    assert_json(
        &format!(
            r#"[ {{"bn":"a/","n":"x","v":1}}, {{"n":"y","v":1e999}}, {{"n":"z","v":2}}, {{"n":"ts","v":3}},
                 {{"n":"{long}","v":4}}, {{"n":"w","v":5}} ]"#
        ),
        &["a now x=1", "a now y=inf", "a now z=2", "a now ts=3", &format!("a now {long}=4"), "a now w=5"],
    );
}

#[test]
fn units_that_exceed_the_limit_are_dropped() {
    let body = r#"[ {"bn":"a/","n":"x","u":"Cel","v":1}, {"bn":"b/","n":"x","u":"V","v":1} ]"#;
    let with = |max_metadata_bytes| json_with(&Options { max_metadata_bytes, ..options() }, body).unwrap();
    assert_eq!(with(21), [r#"a now x=1 {"units":{"x":"Cel"}}"#, r#"b now x=1 {"units":{"x":"V"}}"#]);
    assert_eq!(with(20), ["a now x=1", r#"b now x=1 {"units":{"x":"V"}}"#]);
    assert_eq!(with(0), ["a now x=1", "b now x=1"]);
    assert_json(r#"[{"n":"a/x","u":"\"\\","v":1}]"#, &[r#"a now x=1 {"units":{"x":"\"\\"}}"#]);
    let again = r#"[ {"n":"a/x","u":"Celsius","v":1}, {"n":"a/x","u":"K","v":2} ]"#;
    assert_json(again, &[r#"a now x=1 {"units":{"x":"K"}}"#, r#"a now x=2 {"units":{"x":"K"}}"#]);
}

#[test]
fn the_lengths_of_names_and_units_are_checked_first() {
    let too_long = |bytes| format!("a name, \"bn\" + \"n\", has at most 258 bytes, this has {bytes}");
    let it = "it needs a base field of an earlier record:";
    let (half, long, unit) = ("b".repeat(200), "b".repeat(300), "u".repeat(33));
    assert_json(
        &format!(r#"[ {{"bn":"{half}","n":"{half}","v":1}}, {{"n":"/x","v":2}} ]"#),
        &[
            &format!("invalid_device_id: record [0]: {}", too_long(400)),
            &format!("{half} now x=2"), // which the sink refuses
        ],
    );
    assert_json(
        &format!(r#"[ {{"bn":"{long}"}}, {{"v":1}}, {{"bn":"a","n":"{long}","v":1}} ]"#),
        &[
            &format!("invalid_device_id: record [0]: {}", too_long(300)),
            &format!("invalid_device_id: record [1]: {it} {}", too_long(300)),
            &format!("invalid_device_id: record [2]: {}", too_long(300)),
        ],
    );
    assert_json(
        &format!(r#"[ {{"n":"a","u":"{unit}","v":1}}, {{"n":"a","u":"\n","v":1}} ]"#),
        &[
            "invalid_metadata: record [0]: a unit has at most 32 bytes, this has 33",
            "invalid_metadata: record [1]: a unit has no control characters",
        ],
    );
}

#[test]
fn a_reading_has_each_metric_once() {
    for count in [7, 8, 9, 20, 200] {
        let record = |metric| format!(r#"{{"n":"m{metric}","v":1}}"#);
        let mut records: Vec<_> = (0..count).map(record).collect();
        records.push(record(count / 2));
        records.extend((0..count).filter(|&metric| metric != count / 2).map(record));
        let entries = json(format!(r#"[{{"bn":"a/"}},{}]"#, records.join(","))).unwrap();
        let values: Vec<_> = entries.iter().map(|entry| entry.matches('=').count()).collect();
        assert_eq!(values, [count, count], "{count}");
    }
}

#[test]
fn a_pack_for_newer_parsers_is_refused_whole() {
    let version = "\"bver\" must be a number of at most 10";
    for bver in ["11", "10.5", "\"10\"", "null"] {
        let body = format!(r#"[{{"n":"a","v":1}},{{"n":"b","bver":{bver},"v":1}}]"#);
        assert_refused(&body, "unsupported_senml", version);
    }
    assert_json(r#"[{"n":"a","bver":10,"v":1}]"#, &["a now value=1"]);
    assert_refused(
        r#"[{"n":"a","v":1},{"n":"b","v":1,"crc_":7}]"#,
        "unsupported_senml",
        "the field \"crc_\" must be supported, and is not",
    );
}

#[test]
fn a_body_that_is_not_a_pack_is_refused_whole() {
    for (body, detail) in [
        ("", "expected a value but found the end at byte 1"),
        ("{\"n\":\"a\",\"v\":1}", "a pack must be an array of objects, found an object"),
        ("[{\"n\":\"a\",\"v\":1},5]", "a record must be an object, found a number"),
        ("[{\"n\":\"a\",\"v\":1}", "expected ',' or ']' but found the end at byte 17"),
        ("[{\"n\":\"a\",\"v\":1}] x", "expected nothing after the value at byte 19"),
        ("[{\"n\":\"a\",\"v\":01}]", "a number has no leading zeros at byte 16"),
    ] {
        assert_refused(body, "invalid_senml", detail);
    }
}
