//! Bodies of JSON, of line protocol and of webhooks that stretch one thing each.

use super::{Case, Format};

/// A body of about `bytes`: `start`, then numbered items separated by `between`, then `end`.
pub(super) fn fill(bytes: usize, start: &str, between: &str, end: &str, item: impl Fn(usize) -> String) -> Vec<u8> {
    let mut body = start.to_owned();
    let mut number = 0;
    while body.len() + end.len() < bytes {
        if number > 0 {
            body += between;
        }
        body += &item(number);
        number += 1;
    }
    (body + end).into_bytes()
}

fn case(format: Format, name: &'static str, body: impl Fn(usize) -> Vec<u8> + 'static) -> Case {
    Case { name, format, body: Box::new(body) }
}

/// A case whose body is filled with items: `start`, items separated by `between`, `end`.
fn filled(
    format: Format,
    name: &'static str,
    [start, between, end]: [&'static str; 3],
    item: impl Fn(usize) -> String + 'static,
) -> Case {
    case(format, name, move |bytes| fill(bytes, start, between, end, &item))
}

/// The texts around and between the items of a body: `{"deviceId":"d","readings":[...]}` and others.
const IN_READINGS: [&str; 3] = [r#"{"deviceId":"d","readings":["#, ",", "]}"];
const IN_VALUES: [&str; 3] = [r#"{"deviceId":"d","values":{"#, ",", "}}"];
const IN_METADATA: [&str; 3] = [r#"{"deviceId":"d","value":1,"metadata":{"#, ",", "}}"];
const IN_ARRAY: [&str; 3] = ["[", ",", "]"];

pub(super) fn json() -> Vec<Case> {
    let of = Format::Json;
    let long_number = |bytes: usize| "9".repeat(bytes);
    vec![
        filled(of, "readings of one device", IN_READINGS, |_| r#"{"value":1}"#.to_owned()),
        filled(of, "readings without values", IN_READINGS, |_| "{}".to_owned()),
        filled(of, "readings that are none", IN_READINGS, |_| "1".to_owned()),
        filled(of, "elements that are none", IN_ARRAY, |_| "1".to_owned()),
        filled(of, "devices without values", IN_ARRAY, |_| "{}".to_owned()),
        filled(of, "devices that alternate", IN_ARRAY, |at| format!(r#"{{"deviceId":"{}","value":1}}"#, at % 2)),
        filled(of, "different devices", IN_ARRAY, |at| format!(r#"{{"deviceId":"{at}","readings":[{{"value":1}}]}}"#)),
        case(of, "a long device id with many readings", |bytes| {
            let start = format!(r#"{{"deviceId":"{}","readings":["#, "D".repeat(bytes / 2));
            fill(bytes, &start, ",", "]}", |_| r#"{"value":1}"#.to_owned())
        }),
        case(of, "a device id in capitals with many readings", |bytes| {
            let start = format!(r#"{{"deviceId":"{}","readings":["#, "D".repeat(128));
            fill(bytes, &start, ",", "]}", |_| r#"{"value":1}"#.to_owned())
        }),
        case(of, "a long device id of escapes with many readings", |bytes| {
            let start = format!(r#"{{"deviceId":"{}","readings":["#, r"\u0041".repeat(bytes / 12));
            fill(bytes, &start, ",", "]}", |_| r#"{"value":1}"#.to_owned())
        }),
        case(of, "depth", |bytes| "[".repeat(bytes).into_bytes()),
        filled(of, "depth again and again", IN_ARRAY, |_| "[".repeat(62) + &"]".repeat(62)),
        filled(of, "metrics of one reading", IN_VALUES, |at| format!(r#""{at}":1"#)),
        filled(of, "one metric again and again", IN_VALUES, |_| r#""":1"#.to_owned()),
        case(of, "long metrics", |bytes| {
            let name = "m".repeat(bytes / 16 - 10);
            fill(bytes - name.len(), IN_VALUES[0], ",", "}}", |at| format!(r#""{name}{at}":1"#))
        }),
        filled(of, "different metrics", IN_READINGS, |at| format!(r#"{{"values":{{"{at}":1}}}}"#)),
        filled(of, "metrics of escapes", IN_VALUES, |at| format!(r#""\u0041{at}":1"#)),
        filled(of, "readings with an unknown key", IN_READINGS, |_| r#"{"x":1}"#.to_owned()),
        filled(of, "readings with a key that is nearly known", IN_READINGS, |_| r#"{"timestmp":1}"#.to_owned()),
        case(of, "an unknown key beside many readings", |bytes| {
            let start = format!(r#"{{"deviceId":"d","{}":1,"readings":["#, "k".repeat(bytes / 4));
            fill(bytes, &start, ",", "]}", |_| "{}".to_owned())
        }),
        case(of, "a nearly known key beside many readings", |bytes| {
            fill(bytes, r#"{"device_Id":"d","readings":["#, ",", "]}", |_| "{}".to_owned())
        }),
        filled(of, "bad values of one reading", IN_VALUES, |_| r#""":[]"#.to_owned()),
        filled(of, "values that are not finite", IN_VALUES, |_| r#""":NaN"#.to_owned()),
        filled(of, "readings with a bad value", IN_READINGS, |_| r#"{"values":{"a":1,"":[]}}"#.to_owned()),
        filled(of, "null again and again", IN_VALUES, |_| r#""":null"#.to_owned()),
        filled(of, "readings of other devices", IN_READINGS, |at| format!(r#"{{"deviceId":"{at}","value":1}}"#)),
        filled(of, "lines", ["", "\n", ""], |at| format!(r#"{{"deviceId":"{at}","value":1}}"#)),
        filled(of, "unknown keys", ["{", ",", "}"], |at| format!(r#""{at}":[1,{{"x":null}}]"#)),
        filled(of, "a known key again and again", ["{", ",", "}"], |_| r#""deviceId":"d""#.to_owned()),
        filled(of, "readings again and again", ["{", ",", "}"], |_| r#""readings":[{}]"#.to_owned()),
        case(of, "a long value", move |bytes| {
            format!(r#"{{"deviceId":"d","value":{}}}"#, long_number(bytes)).into_bytes()
        }),
        case(of, "a long time", move |bytes| {
            format!(r#"{{"deviceId":"d","value":1,"ts":{}}}"#, long_number(bytes)).into_bytes()
        }),
        case(of, "a long time of text", move |bytes| {
            format!(r#"{{"deviceId":"d","value":1,"ts":"{}"}}"#, long_number(bytes)).into_bytes()
        }),
        filled(of, "space", [r#"[{"deviceId":"d","value":1}"#, "", "]"], |_| " \n\t".to_owned()),
        case(of, "space in a reading", |bytes| {
            format!(r#"{{"deviceId":"d",{}"value":1}}"#, " ".repeat(bytes)).into_bytes()
        }),
    ]
}

pub(super) fn json_metadata() -> Vec<Case> {
    let of = Format::Json;
    vec![
        case(of, "much metadata with many readings", |bytes| {
            let metadata = "m".repeat(4_000);
            let start = format!(r#"{{"deviceId":"d","metadata":{{"k":"{metadata}"}},"readings":["#);
            fill(bytes, &start, ",", "]}", |_| r#"{"value":1}"#.to_owned())
        }),
        case(of, "too much metadata with many readings", |bytes| {
            let start = format!(r#"{{"deviceId":"d","metadata":{{"k":"{}"}},"readings":["#, "m".repeat(bytes / 2));
            fill(bytes, &start, ",", "]}", |_| r#"{"value":1}"#.to_owned())
        }),
        filled(of, "keys of metadata", IN_METADATA, |at| format!(r#""{at}":1"#)),
        filled(of, "one key of metadata again and again", IN_METADATA, |_| r#""":1"#.to_owned()),
        filled(of, "escapes in metadata", IN_METADATA, |_| r#""\u0041":"\n""#.to_owned()),
        filled(of, "numbers in metadata", IN_METADATA, |at| format!(r#""{at}":1e{at}"#)),
        filled(of, "deep metadata", IN_METADATA, |at| format!(r#""{at}":{}"#, "[".repeat(30) + &"]".repeat(30))),
        case(of, "a number in metadata", |bytes| {
            format!(r#"{{"deviceId":"d","value":1,"metadata":{{"x":{}}}}}"#, "9".repeat(bytes)).into_bytes()
        }),
        case(of, "readings with metadata of a long device id of escapes", |bytes| {
            let start = format!(r#"{{"deviceId":"{}","readings":["#, r"\u0041".repeat(bytes / 12));
            fill(bytes, &start, ",", "]}", |_| r#"{"meta":{},"value":1}"#.to_owned())
        }),
        filled(of, "readings with metadata", IN_READINGS, |at| format!(r#"{{"meta":{{"k":"{at}"}},"value":1}}"#)),
    ]
}

/// The members of `labels`: this many keys, each with a value of this length.
fn labels(count: usize, value_bytes: usize) -> String {
    let value = "v".repeat(value_bytes);
    (0..count).map(|key| format!(r#""{key}":"{value}""#)).collect::<Vec<_>>().join(",")
}

pub(super) fn labelled() -> Vec<Case> {
    let of = Format::JsonWithLabels;
    vec![
        case(of, "many labels with many readings", |bytes| {
            let start = format!(r#"{{"deviceId":"d","labels":{{{}}},"readings":["#, labels(32, 4));
            fill(bytes, &start, ",", "]}", |_| r#"{"value":1}"#.to_owned())
        }),
        case(of, "a long label with many metrics", |bytes| {
            let start = format!(r#"{{"deviceId":"d","labels":{{{}}},"readings":["#, labels(1, 490));
            fill(bytes, &start, ",", "]}", |at| format!(r#"{{"values":{{"{at}":1}}}}"#))
        }),
        case(of, "a label of escapes with many readings", |bytes| {
            let start = format!(r#"{{"deviceId":"d","labels":{{"k":"{}"}},"readings":["#, r"\u007B".repeat(240));
            fill(bytes, &start, ",", "]}", |_| r#"{"value":1}"#.to_owned())
        }),
        case(of, "too long labels with many readings", |bytes| {
            let start = format!(r#"{{"deviceId":"d","labels":{{{}}},"readings":["#, labels(1, bytes / 2));
            fill(bytes, &start, ",", "]}", |_| r#"{"value":1}"#.to_owned())
        }),
        case(of, "labels of one reading", |bytes| {
            let start = r#"{"deviceId":"d","value":1,"labels":{"#;
            fill(bytes, start, ",", "}}", |at| format!(r#""{at}":"v""#))
        }),
        filled(of, "readings with labels", IN_READINGS, |at| {
            format!(r#"{{"labels":{{{}}},"value":1}}"#, labels(1 + at % 32, 1))
        }),
        case(of, "a long unit and metric with many readings", |bytes| {
            let (unit, metric) = ("u".repeat(380), "m".repeat(128));
            let start = format!(r#"{{"deviceId":"d","unit":"{unit}","metric":"{metric}","readings":["#);
            fill(bytes, &start, ",", "]}", |_| r#"{"value":1}"#.to_owned())
        }),
        case(of, "a long metric of escapes with many readings", |bytes| {
            let start = format!(r#"{{"deviceId":"d","metric":"{}","readings":["#, r"\u006d".repeat(bytes / 12));
            fill(bytes, &start, ",", "]}", |_| r#"{"value":1}"#.to_owned())
        }),
    ]
}

pub(super) fn flat() -> Vec<Case> {
    let of = Format::FlatJson;
    let in_object = [r#"{"deviceId":"d","#, ",", "}"];
    vec![
        filled(of, "metrics", in_object, |at| format!(r#""{at}":1"#)),
        filled(of, "one metric again and again", in_object, |_| r#""":1"#.to_owned()),
        filled(of, "texts", in_object, |_| r#""":"""#.to_owned()),
        filled(of, "lists", in_object, |_| r#""":[]"#.to_owned()),
        filled(of, "empty objects", in_object, |_| r#""":{}"#.to_owned()),
        filled(of, "depth again and again", in_object, |_| r#""":{"#.repeat(60) + &"}".repeat(60)),
        filled(of, "paths of 8 levels", in_object, |_| r#""":{"#.repeat(8) + r#""":1"# + &"}".repeat(8)),
        case(of, "a long path with many metrics", |bytes| {
            let start = format!(r#"{{"deviceId":"d","{}":{{"#, "p".repeat(124));
            fill(bytes, &start, ",", "}}", |at| format!(r#""{}":1"#, at % 1_000))
        }),
        case(of, "a path that is too long with many metrics", |bytes| {
            let start = format!(r#"{{"deviceId":"d","{}":{{"#, "p".repeat(bytes / 2));
            fill(bytes, &start, ",", "}}", |_| r#""":1"#.to_owned())
        }),
        case(of, "a long path with many texts", |bytes| {
            let start = format!(r#"{{"deviceId":"d","{}":{{"#, "p".repeat(124));
            fill(bytes, &start, ",", "}}", |_| r#""":"""#.to_owned())
        }),
        filled(of, "readings with a long path", IN_READINGS, |_| {
            format!(r#"{{"{}":{{{}}}}}"#, "p".repeat(120), vec![r#""":1"#; 200].join(","))
        }),
    ]
}

pub(super) fn lines() -> Vec<Case> {
    let of = Format::Lines;
    let line = |at| format!(r#"{{"deviceId":"{at}","value":1}}"#);
    vec![
        filled(of, "devices", ["", "\n", ""], line),
        filled(of, "devices in arrays", ["", "\n", ""], move |at| format!("[{},{}]", line(at), line(at + 1))),
        filled(of, "empty lines", ["", "\n", ""], |_| String::new() + "\n"),
        filled(of, "blank lines", ["", "\n", ""], |_| " \t\r".to_owned()),
        filled(of, "broken lines", ["", "\n", ""], |_| "a".to_owned()),
        filled(of, "broken arrays", ["", "\n", ""], move |at| format!("[{},", line(at))),
        filled(of, "one line of an array", ["[", ",", "]"], line),
        filled(of, "one broken line", ["[", ",", ""], line),
        filled(of, "metadata on each line", ["", "\n", ""], |at| {
            format!(r#"{{"deviceId":"{}","value":1,"metadata":{{"k":"{at}"}}}}"#, at % 2)
        }),
        filled(of, "bytes that are no text", ["", "\n", ""], |_| "{\"deviceId\":\"\u{80}".to_owned()),
    ]
}

pub(super) fn line_protocol() -> Vec<Case> {
    let of = Format::LineProtocol;
    let in_lines = ["", "\n", ""];
    vec![
        case(of, "a long measurement with many fields", |bytes| {
            let start = format!("{},host=a ", "m".repeat(bytes / 2));
            fill(bytes, &start, ",", "", |at| format!("f{at}=1"))
        }),
        case(of, "a long measurement of escapes with many fields", |bytes| {
            let start = format!("{},host=a ", r"\,".repeat(bytes / 4));
            fill(bytes, &start, ",", "", |at| format!("f{at}=1"))
        }),
        case(of, "long measurements with 200 fields", |bytes| {
            let fields: Vec<_> = (0..200).map(|at| format!("{at}=1")).collect();
            let line = format!("{},host=a {}", "m".repeat(4_000), fields.join(","));
            fill(bytes, "", "\n", "", |_| line.clone())
        }),
        case(of, "measurements of 120 bytes with different fields", |bytes| {
            fill(bytes, "", "\n", "", |line| {
                let fields: Vec<_> = (0..200).map(|at| format!("{}=1", line * 200 + at)).collect();
                format!("{},host=a {}", "m".repeat(120), fields.join(","))
            })
        }),
        case(of, "long labels with 200 fields", |bytes| {
            let fields: Vec<_> = (0..200).map(|at| format!("{at}=1")).collect();
            let line = format!("m,host=a,k={} {}", "v".repeat(490), fields.join(","));
            fill(bytes, "", "\n", "", |_| line.clone())
        }),
        case(of, "long labels with different fields", |bytes| {
            fill(bytes, "", "\n", "", |line| {
                let fields: Vec<_> = (0..200).map(|at| format!("{}=1", line * 200 + at)).collect();
                format!("m,host=a,k={} {}", "v".repeat(490), fields.join(","))
            })
        }),
        filled(of, "32 labels", in_lines, |at| {
            let tags: Vec<_> = (0..32).map(|tag| format!(",{}=v", 99 - tag)).collect();
            format!("m,host={at}{} value=1", tags.concat())
        }),
        filled(of, "labels beyond ASCII", in_lines, |at| format!("m,host=a,k=\u{e4}\\ {{{at}}} value=1")),
        filled(of, "strings", ["m,host=a ", ",", ""], |at| format!("{at}=\"\"")),
        filled(of, "lines of a string", in_lines, |at| format!("m,host={at} s=\"\",v=1")),
        filled(of, "bad values", ["m,host=a v=1", "", ""], |_| ",a=b".to_owned()),
        filled(of, "lines with a bad value", in_lines, |at| format!("m,host={at} v=1,a=b")),
        filled(of, "braces in names", ["m,host=a v=1", "", ""], |at| format!(",{{{at}=1")),
        filled(of, "devices that alternate", in_lines, |at| format!("m,host={} value=1", at % 2)),
        filled(of, "different devices with tags", in_lines, |at| format!("m,host={at},k=v value=1")),
        filled(of, "tags", ["m,host=a", "", " value=1"], |at| format!(",{at}=v")),
        filled(of, "one tag again and again", ["m,host=a", "", " value=1"], |_| ",k=v".to_owned()),
        filled(of, "devices again and again", ["m", "", " value=1"], |_| ",host=a".to_owned()),
        case(of, "a long tag", |bytes| format!("m,host=a,k={} value=1", "v".repeat(bytes)).into_bytes()),
        case(of, "a long device", |bytes| format!("m,host={} value=1", "D".repeat(bytes)).into_bytes()),
        case(of, "tags of quotes", |bytes| {
            fill(bytes, "", "\n", "", |_| format!("m,host=a,k={} value=1", "\"".repeat(1_000)))
        }),
        filled(of, "tags of escapes", ["m,host=a", "", " value=1"], |at| format!(r",\,{at}=\ \=")),
        filled(of, "fields", ["m,host=a ", ",", ""], |at| format!("{at}=1")),
        filled(of, "one field again and again", ["m,host=a ", ",", ""], |_| "f=1".to_owned()),
        case(of, "one field again and again on each line", |bytes| {
            let fields = vec!["f=1"; 256].join(",");
            fill(bytes, "", "\n", "", |_| format!("m,host=a {fields}"))
        }),
        filled(of, "fields of escapes", ["m,host=a ", ",", ""], |at| format!(r"\ {at}=1")),
        case(of, "a long value", |bytes| format!("m,host=a value={}", "9".repeat(bytes)).into_bytes()),
        case(of, "a long time", |bytes| format!("m,host=a value=1 {}", "9".repeat(bytes)).into_bytes()),
        case(of, "a long string", |bytes| format!("m,host=a s=\"{}\"", "\\\"\n".repeat(bytes / 3)).into_bytes()),
        filled(of, "strings of several lines", in_lines, |_| "m,host=a s=\"a\nb\",value=1".to_owned()),
        filled(of, "strings that are not closed", in_lines, |_| "m,host=a s=\"a".to_owned()),
        filled(of, "strings that are not closed, with escapes", in_lines, |_| "m,host=a s=\"\\\"".to_owned()),
        filled(of, "quotes that mean nothing", in_lines, |_| "\"\"".to_owned()),
        filled(of, "fields of strings", ["m,host=a ", ",", ""], |at| format!("f{at}=\"s\"")),
        filled(of, "spaces", ["m,host=a ", "", "value=1"], |_| " ".to_owned()),
        filled(of, "empty lines", ["", "", ""], |_| "\n".to_owned()),
        filled(of, "comments", in_lines, |_| "#".to_owned()),
        filled(of, "broken lines", in_lines, |_| "a".to_owned()),
        filled(of, "lines without a device", in_lines, |_| "m f=1".to_owned()),
    ]
}

/// A payload of a webhook: a member that all elements share, then many elements.
fn elements_after(bytes: usize, shared: &str) -> Vec<u8> {
    let start = format!(r#"{{"id":"d",{shared},"list":["#);
    fill(bytes, &start, ",", "]}", |at| format!(r#"{{"x":{}}}"#, at % 10))
}

pub(super) fn webhook_metadata() -> Vec<Case> {
    let of = Format::Webhook;
    vec![
        case(of, "much metadata with many elements", |bytes| {
            elements_after(bytes, &format!(r#""info":"{}""#, "m".repeat(4_000)))
        }),
        case(of, "too much metadata with many elements", |bytes| {
            elements_after(bytes, &format!(r#""info":"{}""#, "m".repeat(bytes / 2)))
        }),
    ]
}

pub(super) fn webhook() -> Vec<Case> {
    const IN_LIST: [&str; 3] = [r#"{"id":"d","list":["#, ",", "]}"];
    const IN_ELEMENT: [&str; 3] = [r#"{"id":"d","list":[{"#, ",", "}]}"];
    let of = Format::Webhook;
    vec![
        filled(of, "elements with a value", IN_LIST, |_| r#"{"x":1}"#.to_owned()),
        filled(of, "elements with times", IN_LIST, |at| format!(r#"{{"t":{at},"v":{{"x":1}}}}"#)),
        filled(of, "elements without a value", IN_LIST, |_| "{}".to_owned()),
        filled(of, "elements that are none", IN_LIST, |_| "1".to_owned()),
        filled(of, "elements with labels", IN_LIST, |at| format!(r#"{{"x":1,"l":"{at}"}}"#)),
        filled(of, "elements with different metrics", IN_LIST, |at| format!(r#"{{"{at}":1}}"#)),
        case(of, "a long label with many elements", |bytes| {
            elements_after(bytes, &format!(r#""zone":"{}""#, "z".repeat(480)))
        }),
        case(of, "a label of escapes with many elements", |bytes| {
            elements_after(bytes, &format!(r#""zone":"{}""#, "{".repeat(240)))
        }),
        case(of, "a label that is too long with many elements", |bytes| {
            elements_after(bytes, &format!(r#""zone":"{}""#, "z".repeat(bytes / 2)))
        }),
        case(of, "a long device with many elements", |bytes| {
            let start = format!(r#"{{"id":"{}","list":["#, "D".repeat(bytes / 2));
            fill(bytes, &start, ",", "]}", |_| r#"{"x":1}"#.to_owned())
        }),
        filled(of, "metrics of one element", IN_ELEMENT, |at| format!(r#""{at}":1"#)),
        filled(of, "one metric again and again", IN_ELEMENT, |_| r#""":1"#.to_owned()),
        filled(of, "metrics of escapes", IN_ELEMENT, |at| format!(r#""\u0041{at}":1"#)),
        filled(of, "texts", IN_ELEMENT, |at| format!(r#""{at}":"""#)),
        filled(of, "arrays", IN_ELEMENT, |at| format!(r#""{at}":[1,{{"x":1}}]"#)),
        filled(of, "ignored keys", IN_ELEMENT, |_| r#""none":1"#.to_owned()),
        case(of, "metrics below a long key", |bytes| {
            let start = format!(r#"{{"id":"d","list":[{{"{}":{{"#, "k".repeat(bytes / 2));
            fill(bytes, &start, ",", "}}]}", |at| format!(r#""{at}":1"#))
        }),
        filled(of, "elements below long keys", IN_LIST, |_| format!(r#"{{"{}":{{"x":1}}}}"#, "k".repeat(126))),
        case(of, "metrics below deep keys", |bytes| {
            let keys: String = (0..60).map(|_| r#"{"a":"#).collect();
            fill(bytes, &format!(r#"{{"id":"d","list":[{keys}{{"#), ",", "]}", |at| format!(r#""{at}":1"#))
        }),
        filled(of, "deep keys again and again", IN_LIST, |_| r#"{"a":"#.repeat(61) + "1" + &"}".repeat(61)),
        case(of, "depth", |bytes| br#"{"list":"#.iter().copied().chain(std::iter::repeat_n(b'[', bytes)).collect()),
        filled(of, "the list again and again", ["{", ",", "}"], |_| r#""list":[{"x":1}]"#.to_owned()),
        filled(of, "the device again and again", ["{", ",", "}"], |_| r#""id":"d""#.to_owned()),
        filled(of, "unknown keys", ["{", ",", "}"], |at| format!(r#""{at}":[1,{{"x":null}}]"#)),
        case(of, "a long value", |bytes| format!(r#"{{"id":"d","list":{{"x":{}}}}}"#, "9".repeat(bytes)).into_bytes()),
        case(of, "a long time", |bytes| {
            format!(r#"{{"id":"d","list":{{"x":1,"t":"{}"}}}}"#, "9".repeat(bytes)).into_bytes()
        }),
    ]
}
