//! Random payloads and paths, against the values that `serde_json` finds.

use std::fmt::Write;

use proptest::prelude::*;
use serde_json::Value;

use super::super::*;
use super::hook;
use crate::wire::recording_sink::RecordingSink;

/// Few keys, so that paths often lead somewhere.
fn any_key() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[abc]", 1 => Just("x.y".to_owned()), 1 => Just("é\"\\".to_owned()), 1 => Just("{".to_owned())]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        1 => Just(Value::Null),
        2 => any::<bool>().prop_map(Value::from),
        4 => (-1000i32..1000).prop_map(|number| Value::from(f64::from(number) / 4.0)),
        2 => (0u32..1000).prop_map(Value::from),
        2 => "[a-c{\"]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            3 => prop::collection::vec((any_key(), inner), 0..5).prop_map(|members| members.into_iter().collect()),
        ]
    })
}

/// A step of a path: a key, or the place of an element.
#[derive(Debug, Clone)]
enum OracleStep {
    Key(String),
    Index(usize),
}

fn any_path() -> impl Strategy<Value = Vec<OracleStep>> {
    let step = prop_oneof![4 => any_key().prop_map(OracleStep::Key), 1 => (0usize..3).prop_map(OracleStep::Index)];
    prop::collection::vec(step, 1..4)
}

fn written(path: &[OracleStep]) -> String {
    let mut text = String::new();
    for step in path {
        match step {
            OracleStep::Key(key) => {
                text += if text.is_empty() { "" } else { "." };
                text += &Value::from(key.as_str()).to_string();
            }
            OracleStep::Index(index) => write!(text, "[{index}]").unwrap(),
        }
    }
    text
}

fn selected<'v>(value: &'v Value, path: &[OracleStep]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, step| match step {
        OracleStep::Key(key) => value.as_object()?.get(key),
        OracleStep::Index(index) => value.as_array()?.get(*index),
    })
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_bool().map(|is_true| f64::from(u8::from(is_true))))
}

/// The numbers below a value, by their dotted paths, and the counts of texts and arrays.
fn below(value: &Value, prefix: &str, found: &mut Vec<(String, f64)>, ignored: &mut usize) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let name = format!("{prefix}{key}");
        match value {
            Value::Object(_) => below(value, &format!("{name}."), found, ignored),
            Value::Array(_) | Value::String(_) => *ignored += 1,
            other => found.extend(number(other).map(|number| (name, number))),
        }
    }
}

/// The keys of a hook as TOML.
fn toml_of(keys: &[(&str, toml::Value)]) -> String {
    let table: toml::Table = keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    toml::to_string(&table).unwrap()
}

fn entries(keys: &str, payload: &Value) -> Vec<String> {
    let mut sink = RecordingSink::default();
    parse(payload.to_string().as_bytes(), &hook(keys), &Address::of(Some("d")), &mut sink).unwrap();
    sink.0
}

/// The entry of a reading of device `d` without a time.
fn reading(values: &[(String, f64)]) -> String {
    let values: Vec<_> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("d now {}", values.join(" "))
}

/// Whether an entry has exactly these `values`, in any order.
fn is_reading(entry: &str, values: &[(String, f64)]) -> bool {
    let sorted = |text: &str| {
        let mut words: Vec<_> = text.split(' ').map(str::to_owned).collect();
        words.sort();
        words
    };
    sorted(entry) == sorted(&reading(values))
}

proptest! {
    #[test]
    fn a_path_selects_what_serde_json_finds_there(payload in any_json(), path in any_path()) {
        let text = written(&path);
        let keys = toml_of(&[("metrics", toml::Table::from_iter([("m".to_owned(), text.clone().into())]).into())]);
        let found = entries(&keys, &payload);
        let at = selected(&payload, &path);
        let expected = match at {
            None | Some(Value::Null) => format!("missing_values: there is no number and no boolean at {text}"),
            Some(other) => number(other).map_or_else(
                || {
                    let kind = match other {
                        Value::String(_) => "a string",
                        Value::Array(_) => "an array",
                        _ => "an object",
                    };
                    format!("invalid_value: \"m\" must be a number or a boolean, found {kind}")
                },
                |number| reading(&[("m".to_owned(), number)]),
            ),
        };
        prop_assert_eq!(found, [expected]);
    }

    #[test]
    fn a_star_selects_the_numbers_below(payload in any_json(), path in prop::option::of(any_path())) {
        let path = path.unwrap_or_default();
        let text = if path.is_empty() { "*".to_owned() } else { format!("{}.*", written(&path)) };
        let mut found = entries(&toml_of(&[("metrics", text.clone().into())]), &payload);
        let (mut values, mut ignored) = (Vec::new(), 0);
        if let Some(at) = selected(&payload, &path) {
            below(at, "", &mut values, &mut ignored);
        }
        let last = found.pop().unwrap();
        let mut names: Vec<_> = values.iter().map(|(name, _)| name).collect();
        names.sort();
        if values.is_empty() {
            prop_assert_eq!(last, format!("missing_values: there is no number and no boolean at {text}"));
        } else if names.windows(2).any(|pair| pair[0] == pair[1]) {
            prop_assert!(last.starts_with("duplicate_key: "), "{}", last); // "x.y" and x with y
        } else {
            prop_assert!(is_reading(&last, &values), "{} is not {:?}", last, values);
            prop_assert_eq!(found.len(), ignored);
        }
    }

    #[test]
    fn each_element_is_what_it_would_be_alone(elements in prop::collection::vec(any_json(), 1..5), path in any_path()) {
        let text = written(&path);
        let separator = if text.starts_with('[') { "" } else { "." };
        let of_array = toml_of(&[("metrics", format!("list[*]{separator}{text}.*").into())]);
        let alone = toml_of(&[("metrics", format!("{text}.*").into())]);
        let together = entries(&of_array, &serde_json::json!({ "list": elements }));
        let separate: Vec<_> = elements.iter().flat_map(|element| entries(&alone, element)).collect();
        let as_alone: Vec<_> = together.iter().map(|entry| entry.replace(&format!("list[*]{separator}"), "")).collect();
        prop_assert_eq!(as_alone, separate);
    }

    #[test]
    fn device_label_and_metadata_are_what_serde_json_finds(
        payload in any_json(), device in any_path(), label in any_path(), metadata in any_path(),
    ) {
        let payload = serde_json::json!({ "p": payload, "v": 1 });
        let below_p = |path: &[OracleStep]| [&[OracleStep::Key("p".to_owned())], path].concat();
        let [device, label, metadata] = [device, label, metadata].map(|path| below_p(&path));
        let named = |name: &str, path: &[OracleStep]| {
            toml::Value::from(toml::Table::from_iter([(name.to_owned(), written(path).into())]))
        };
        let keys = toml_of(&[
            ("path", "/h".into()), ("metrics", "v".into()), ("device", written(&device).into()),
            ("labels", named("l", &label)), ("metadata", named("m", &metadata)),
        ]);
        let mut sink = RecordingSink::default();
        parse(payload.to_string().as_bytes(), &hook(&keys), &Address::of(None), &mut sink).unwrap();
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
            _ => None,
        };
        let found = sink.0.concat();
        match selected(&payload, &device) {
            None | Some(Value::Null) => prop_assert!(found.starts_with("missing_device_id"), "{}", found),
            Some(id) if id.is_string() || id.is_u64() => {
                let label_at = selected(&payload, &label).filter(|value| !value.is_null() && **value != "");
                let label_text = label_at.map(text);
                if label_text == Some(None) {
                    prop_assert!(found.starts_with("invalid_label"), "{}", found);
                    return Ok(());
                }
                let label_text = label_text.flatten().map_or(String::new(), |text| {
                    let escaped = text.replace('\\', r"\\").replace('{', r"\{");
                    format!("{{l={escaped}}}")
                });
                let metadata = selected(&payload, &metadata).filter(|value| !value.is_null());
                if metadata.is_some_and(|value| has_empty_key_or_is_deep(value, 1)) {
                    return Ok(());
                }
                let metadata = metadata.map_or(String::new(), |value| format!(" {{\"m\":{value}}}"));
                prop_assert_eq!(found, format!("{} now v{label_text}=1{metadata}", text(id).unwrap()));
            }
            Some(_) => prop_assert!(found.starts_with("invalid_device_id"), "{}", found),
        }
    }

    #[test]
    fn no_bytes_panic(body in prop::collection::vec(any::<u8>(), 0..200), near in "[\\[\\]{}:,\"a-c0-9 .]{0,60}") {
        let mut sink = RecordingSink::default();
        for keys in ["metrics = \"*\"", "metrics = [\"[*].a.*\", \"[*].*\"]\ntime = \"b\"", "metrics = \"a[1].b\""] {
            let _ = parse(&body, &hook(keys), &Address::of(Some("d")), &mut sink);
            let _ = parse(near.as_bytes(), &hook(keys), &Address::of(Some("d")), &mut sink);
        }
    }
}

/// Whether metadata is rejected. Other tests check the reasons.
fn has_empty_key_or_is_deep(value: &Value, depth: usize) -> bool {
    depth > 6
        || match value {
            Value::Object(members) => {
                members.iter().any(|(key, value)| key.is_empty() || has_empty_key_or_is_deep(value, depth + 1))
            }
            Value::Array(elements) => elements.iter().any(|value| has_empty_key_or_is_deep(value, depth + 1)),
            _ => false,
        }
}
