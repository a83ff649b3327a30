//! Readings, rejections and ignored parts of payloads, by hook.

mod random;

use super::*;
use crate::wire::recording_sink::RecordingSink;

/// The hook with these keys in TOML.
pub(super) fn hook(keys: &str) -> Hook {
    Hook::new(&webhook(keys))
}

fn webhook(keys: &str) -> Webhook {
    let keys = if keys.contains("path = ") { keys.to_owned() } else { format!("path = \"/h/{{deviceId}}\"\n{keys}") };
    toml::from_str(&keys).unwrap_or_else(|error| panic!("{keys}: {error}"))
}

fn found(keys: &str, body: &str) -> Vec<String> {
    let mut sink = RecordingSink::default();
    let parsed = parse(body.as_bytes(), &hook(keys), &Address::of(Some("d")), &mut sink);
    parsed.map_or_else(|error| vec![error.to_string()], |()| sink.0)
}

#[test]
fn everything_below_a_star_is_a_metric_with_its_dotted_path() {
    let body = r#"{"a":{"t":1.5,"ok":true,"no":false,"x":null,"s":"ON",
        "deep":{"er":{"v":-2},"w":3},"list":[1,{"y":2}]},"b":7}"#;
    assert_eq!(
        found("metrics = \"a.*\"", body),
        ["ignored String s", "ignored Array list", "d now t=1.5 ok=1 no=0 deep.er.v=-2 deep.w=3"]
    );
    assert_eq!(found("metrics = \"a.deep.*\"", body), ["d now er.v=-2 w=3"]);
    assert_eq!(found("metrics = \"a.*\"\nignore = [\"deep\", \"ok\", \"s\"]", body)[1], "d now t=1.5 no=0");
}

#[test]
fn a_value_of_several_stars_is_that_of_the_first() {
    let body = r#"{"values":{"t":1},"u":2}"#;
    assert_eq!(found("metrics = [\"values.*\", \"*\"]", body), ["d now t=1 u=2"]);
    assert_eq!(found("metrics = [\"*\", \"values.*\"]", body), ["d now values.t=1 u=2"]);
}

#[test]
fn a_value_that_another_path_has_taken_is_no_metric() {
    let keys = "path = \"/h\"\ndevice = \"id\"\ntime = \"t\"\nlabels = \"l\"\nmetadata = \"m\"\n\
        metrics = [\"*\", { speed = \"v.x\" }]\nwhen = \"w\"";
    let body = r#"{"id":7,"t":5,"l":9,"m":{"z":1},"v":{"x":3,"y":4},"w":6}"#;
    assert_eq!(found(keys, body), [r#"7 5 speed{l=9}=3 v.y{l=9}=4 w{l=9}=6 {"m":{"z":1}}"#]);
}

#[test]
fn a_path_leads_through_keys_and_places() {
    let body = r#"{"rx":[{"rssi":-35},{"rssi":-40,"g.w":{"snr":5}}],"switch:0":{"apower":1}}"#;
    let keys = r#"metrics = ["rx[0].rssi", { second = 'rx[1]."g.w".snr' }, "switch:0.apower", "rx[2].none"]"#;
    assert_eq!(found(keys, body), ["d now rssi=-35 second=5 apower=1"]);
}

#[test]
fn a_value_of_a_wrong_kind_costs_itself() {
    let body = r#"{"a":"x","b":[1],"c":{"y":1},"d":4,"e":null}"#;
    let rejected =
        |name: &str, kind: &str| format!("value invalid_value: \"{name}\" must be a number or a boolean, found {kind}");
    let expected =
        [rejected("a", "a string"), rejected("b", "an array"), rejected("c", "an object"), "d now d=4".into()];
    assert_eq!(found(r#"metrics = ["a", "b", "c", "d", "e"]"#, body), expected);
    let alone = found("metrics = \"a\"", body);
    assert_eq!(alone, ["invalid_value: \"a\" must be a number or a boolean, found a string"]);
    let long = format!("{{\"t\":1,\"o\":{{\"{}\":2}}}}", "é".repeat(64));
    let found = found("metrics = \"*\"", &long);
    assert!(found[0].starts_with("value invalid_metric_name: a metric name has at most 128 bytes"), "{found:?}");
    assert!(found[0].len() < 300 && found[1] == "d now t=1", "{found:?}");
}

#[test]
fn constants_precede_metadata_of_the_payload_and_the_table_names_the_device() {
    let keys = "path = \"/h\"\ndevice = \"id\"\ndevice_prefix = \"p-\"\nmetrics = \"t\"\nmetadata = [\"hall\", \"b\"]\n\
        constants = { hall = \"2\", units = { t = \"°C\" }, n = 1.5, ok = true }\n\
        device_ids = { 0x01 = \"Küche \\\"1\\\"\", 7 = \"p-7\", a = \"b\", b = \"c\" }";
    let metadata = r#"{"hall":"2","n":1.5,"ok":true,"units":{"t":"°C"}}"#;
    for (id, device) in
        [("\"0x01\"", "Küche \"1\""), ("7", "p-7"), ("\"a\"", "b"), ("\"0X01\"", "p-0X01"), ("\"c\"", "p-c")]
    {
        let body = format!(r#"{{"id":{id},"t":1,"hall":9}}"#);
        assert_eq!(found(keys, &body), [format!("{device} now t=1 {metadata}")]);
    }
    let with_b = found(keys, r#"{"b":[2],"t":1,"id":"x"}"#);
    assert!(with_b[0].ends_with(r#","b":[2]}"#), "{with_b:?}");
}

#[test]
fn each_element_behind_the_brackets_is_a_reading() {
    let keys = "path = \"/h\"\ndevice = \"id\"\nmetrics = \"list[*].v.*\"\ntime = \"list[*].t\"\nlabels = \"zone\"\n\
        metadata = \"info\"";
    let body = r#"{"list":[{"t":1,"v":{"x":1}},{"v":{"x":2},"t":2},{"t":3},7],"info":"é","zone":"a","id":"d"}"#;
    assert_eq!(
        found(keys, body),
        [
            r#"d 1 x{zone=a}=1 {"info":"é"}"#,
            r#"d 2 x{zone=a}=2 {"info":"é"}"#,
            "missing_values: there is no number and no boolean at list[*].v.*",
            "missing_values: there is no number and no boolean at list[*].v.*",
        ]
    );
    assert_eq!(found(keys, r#"{"id":"d"}"#), ["missing_values: there is no list[*].v.*"]);
    assert_eq!(found(keys, r#"{"id":"d","list":null}"#), ["missing_values: there is no list[*].v.*"]);
    assert_eq!(found(keys, r#"{"list":[],"id":"d"}"#), ["ignored Event event"]);
    assert_eq!(found(keys, r#"{"list":[],"list":[]}"#), ["duplicate_key: list[*].v.* is duplicated"]);
    assert_eq!(found(keys, r#"{"list":{"v":{"x":5}},"id":"d"}"#), ["d now x=5"], "an only element");
    let of_elements = "path = \"/h\"\ndevice = \"[*].id\"\nmetadata = \"[*].m\"\nmetrics = \"[*].*\"";
    let body = r#"[{"id":"a","m":1,"x":1},{"id":"b","x":2},{"x":3}]"#;
    assert_eq!(
        found(of_elements, body)[..2],
        [r#"a now x=1 {"m":1}"#, "b now x=2"],
        "each element has a device and metadata of its own"
    );
}

#[test]
fn the_array_may_have_places_too() {
    let keys = "path = \"/h\"\ndevice = \"a[0].id\"\nmetrics = \"a[*].v\"";
    assert_eq!(found(keys, r#"{"a":[{"id":"x","v":1},{"v":2}]}"#), ["x now v=1", "x now v=2"]);
}

#[test]
fn the_device_is_a_text_or_a_whole_number() {
    let keys = "path = \"/h\"\ndevice = \"id\"\nmetrics = \"v\"\ndevice_prefix = \"p-\"";
    assert_eq!(found(keys, r#"{"id":"a\u0062","v":1}"#), ["p-ab now v=1"]);
    assert_eq!(found(keys, r#"{"v":1,"id":42}"#), ["p-42 now v=1"]);
    let long = "x".repeat(129);
    assert_eq!(found(keys, &format!(r#"{{"v":1,"id":"{long}"}}"#)), [format!("{long} now v=1")], "for admission");
    for (id, problem) in [
        ("1.5", "invalid_device_id: the device must be a text or a whole number, found a number"),
        ("-1", "invalid_device_id: the device must be a text or a whole number, found a number"),
        ("true", "invalid_device_id: the device must be a text or a whole number, found true"),
        ("{}", "invalid_device_id: the device must be a text or a whole number, found an object"),
        (r#""a","id":"b""#, "duplicate_key: the key \"device\" is duplicated"),
    ] {
        assert_eq!(found(keys, &format!(r#"{{"v":1,"id":{id}}}"#)), [problem]);
    }
    let mut sink = RecordingSink::default();
    for keys in [keys, "metrics = \"v\"", "path = \"/h\"\ndevice = \"?dev\"\nmetrics = \"v\""] {
        parse(br#"{"id":null,"v":1}"#, &hook(keys), &Address::of(None), &mut sink).unwrap();
    }
    assert_eq!(
        sink.0,
        [
            "missing_device_id: there is no id in the payload",
            "missing_device_id: there is no segment {deviceId} in the path",
            "missing_device_id: there is no parameter dev in the query string",
        ]
    );
}

#[test]
fn the_time_is_a_text_or_a_number_in_its_unit() {
    let keys = "metrics = \"v\"\ntime = \"t\"\ntime_unit = \"s\"";
    let of = |time: &str| found(keys, &format!(r#"{{"v":1,"t":{time}}}"#)).remove(0);
    assert_eq!(of("1631186545.04"), "d 1631186545040 v=1");
    assert_eq!(of("\"1631186545\""), "d 1631186545000 v=1");
    assert_eq!(of("\"2020-02-12T15:15:46.014773143Z\""), "d 1581520546014 v=1");
    assert_eq!(of("null"), "d now v=1");
    assert_eq!(found(keys, r#"{"v":1}"#), ["d now v=1"]);
    for time in ["true", "[]", "\"soon\"", "1e400", "\"2018-06-09T16:29:19\""] {
        assert!(of(time).starts_with("invalid_timestamp: "), "{time}: {}", of(time));
    }
}

#[test]
fn labels_are_texts_numbers_or_booleans() {
    let keys = "metrics = \"*\"\nlabels = [\"l.port\", { mode = \"l.m\" }, \"l.none\"]";
    assert_eq!(
        found(keys, r#"{"x":1,"l":{"port":2,"m":"a,b","none":"","on":true},"y":{"z":2}}"#),
        [r"d now x{mode=a\,b,port=2}=1 l.on{mode=a\,b,port=2}=1 y.z{mode=a\,b,port=2}=2"]
    );
    let object = found(keys, r#"{"x":1,"l":{"port":{}}}"#);
    assert_eq!(object, ["invalid_label: the label \"port\" must be a text, a number or a boolean, found an object"]);
    assert!(found(keys, r#"{"x":1,"l":{"port":"\n"}}"#)[0].starts_with("invalid_label: "));
}

#[test]
fn metadata_is_an_object_of_what_is_at_its_paths() {
    let keys = "metrics = \"v\"\nmetadata = [\"info.tags\", { \"na me\" = \"info.n\" }]";
    assert_eq!(
        found(keys, r#"{"info":{"n":"x\"y","tags":{"a": [1,  2]}},"v":1}"#),
        [r#"d now v=1 {"tags":{"a": [1,  2]},"na me":"x\"y"}"#]
    );
    assert_eq!(found(keys, r#"{"info":{"n":null},"v":1}"#), ["d now v=1"]);
    for (tags, code) in [("1e400", "invalid_metadata"), (r#"{"a":1,"a":2}"#, "duplicate_key")] {
        let found = found(keys, &format!(r#"{{"info":{{"tags":{tags}}},"v":1}}"#));
        assert!(found[0].starts_with(code), "{found:?}");
    }
}

#[test]
fn a_payload_that_meets_no_condition_is_ignored() {
    let keys = "metrics = \"*\"\nwhen = [\"up\", { method = \"Notify\" }]";
    assert_eq!(found(keys, r#"{"x":1,"join":{}}"#), ["ignored Event event"]);
    assert_eq!(found(keys, r#"{"x":1,"up":null,"method":"other"}"#), ["ignored Event event"]);
    assert_eq!(found(keys, r#"{"x":1,"up":{}}"#), ["d now x=1"]);
    assert_eq!(found(keys, r#"{"x":1,"method":"Notify"}"#), ["ignored String method", "d now x=1"]);
    assert_eq!(found(keys, r#"{"up":{}}"#), ["missing_values: there is no number and no boolean at *"]);
    let keys = "metrics = \"[*].v\"\nwhen = \"[*].up\"";
    assert_eq!(found(keys, r#"[{"v":1,"up":1},{"v":2}]"#), ["d now v=1", "ignored Event event"]);
    let keys = "metrics = \"a[*].v\"\nwhen = \"up\"";
    assert_eq!(found(keys, r#"{"a":[{"v":1},{"v":2}]}"#), ["ignored Event event"]);
    assert_eq!(found(keys, r#"{"a":[{"v":1},{"v":2}],"up":1}"#), ["d now v=1", "d now v=2"]);
}

#[test]
fn no_key_that_is_read_and_no_metric_may_occur_twice() {
    let twice = |key: &str| [format!("duplicate_key: the key \"{key}\" is duplicated")];
    for (keys, body, key) in [
        ("metrics = \"a.*\"", r#"{"a":{"x":1},"a":{"y":2}}"#, "a"),
        ("metrics = \"a.*\"", r#"{"a":{"x":1},"\u0061":{}}"#, "a"),
        ("metrics = \"a.*\"", r#"{"a":null,"a":{"y":2}}"#, "a"),
        ("metrics = \"a.b.*\"", r#"{"a":{"b":{"x":1},"b":{"y":2}}}"#, "b"),
        ("metrics = \"*\"", r#"{"a":{"b":{"x":1},"b":{"y":2}},"c":3}"#, "b"),
        ("metrics = \"*\"", r#"{"x":1,"s":"a","s":"b"}"#, "s"),
        ("metrics = \"a.x\"", r#"{"a":{"x":1},"a":{"y":2}}"#, "a"),
        ("metrics = \"v\"\nwhen = \"up\"", r#"{"v":1,"up":1,"up":2}"#, "up"),
        ("metrics = \"a[0].*\"", r#"{"a":[{"x":1,"t":"","t":""}]}"#, "t"),
    ] {
        assert_eq!(found(keys, body), twice(key), "{keys}: {body}");
    }
    let keys = "metrics = \"l[*].v.*\"\nlabels = \"z\"";
    let body = r#"{"z":"1","l":[{"v":{"x":1}},{"v":{"x":2},"v":{}},{"v":{"x":3}}]}"#;
    assert_eq!(found(keys, body), ["d now x{z=1}=1", &*twice("v")[0], "d now x{z=1}=3"], "that element alone");
    let keys = "metrics = \"l[*].*\"\ntime = \"of.t\"";
    let body = r#"{"of":{"t":1},"l":[{"x":1},{"x":2}],"of":{}}"#;
    assert_eq!(found(keys, body), [twice("of"), twice("of")].concat(), "all elements");
    let keys = "metrics = \"a.*\"\nignore = [\"i\"]";
    assert_eq!(found(keys, r#"{"b":1,"b":2,"a":{"x":1,"i":1,"i":2}}"#), ["d now x=1"], "keys that are not read");
    let twice = ["duplicate_key: the metric \"x\" is duplicated"];
    assert_eq!(found("metrics = \"a.*\"", r#"{"a":{"x":1,"x":2}}"#), twice);
    assert_eq!(
        found("metrics = \"*\"", r#"{"a":{"b":1},"a.b":2}"#),
        ["duplicate_key: the metric \"a.b\" is duplicated"]
    );
    assert_eq!(found("metrics = [\"a.x\", \"b.*\"]", r#"{"a":{"x":1},"b":{"x":2}}"#), twice);
}

#[test]
fn a_payload_that_is_not_json_leaves_nothing() {
    for body in ["", "{", r#"{"a":1}x"#, r#"[{"v":1},"#, "\u{FEFF}"] {
        let mut sink = RecordingSink::default();
        for keys in ["metrics = \"*\"", "metrics = \"[*].*\""] {
            assert!(parse(body.as_bytes(), &hook(keys), &Address::of(Some("d")), &mut sink).is_err(), "{body}");
        }
        assert_eq!(sink.0, [""; 0]);
    }
    for body in ["1", "null", "\"x\"", "[]"] {
        let missing = ["missing_values: there is no number and no boolean at *"];
        assert_eq!(found("metrics = \"*\"", body), missing, "{body}");
    }
}
