//! Random packs: the same in JSON and in CBOR. Random bytes: never a panic.

use proptest::prelude::*;
use serde_json::{Value, json as value};

use super::{cbor, json};

/// A field: its label in JSON, in CBOR if that is a number, and its value.
type Made = (&'static str, Option<i64>, Value);

fn any_number() -> impl Strategy<Value = Value> {
    prop_oneof![
        (-300i64..300).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e4..1e4).prop_map(Value::from),
        (1.6e9..1.9e9).prop_map(Value::from),
        any::<f64>().prop_filter("JSON has no others", |number| number.is_finite()).prop_map(Value::from),
    ]
}

fn any_text() -> impl Strategy<Value = Value> {
    let name =
        prop::sample::select(vec!["", "a", "a/", "urn:dev:ow:1:", "temp", "b:c", "ts", "Cel", "%RH", "-", "ä b"]);
    prop_oneof![name.prop_map(Value::from), any::<String>().prop_map(Value::from)]
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any_number(),
        any_text(),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
        Just(value!([1, [true], "x"])),
        Just(value!({"n": "inner", "x_": []})),
    ]
}

fn any_field() -> impl Strategy<Value = Made> {
    let texts = vec![("bn", -2), ("bu", -4), ("n", 0), ("u", 1), ("vs", 3), ("vd", 8)];
    let numbers = vec![("bt", -3), ("bv", -5), ("bs", -6), ("v", 2), ("v", 2), ("v", 2), ("s", 5), ("t", 6), ("ut", 7)];
    let all = [texts.clone(), numbers.clone(), vec![("vb", 4)]].concat();
    let known = |((label, number), value)| (label, Some(number), value);
    prop_oneof![
        20 => (prop::sample::select(texts), any_text()).prop_map(known),
        40 => (prop::sample::select(numbers), any_number()).prop_map(known),
        5 => any::<bool>().prop_map(|value| ("vb", Some(4), Value::from(value))),
        5 => (prop::sample::select(all), any_value()).prop_map(known),
        2 => any_value().prop_map(|value| ("x", None, value)),
        1 => Just(("bver", Some(-1), value!(10))),
        1 => prop::sample::select(vec![("bver", Some(-1), value!(11)), ("x_", None, value!(1))]),
    ]
}

fn in_json(pack: &[Vec<Made>]) -> String {
    let object = |record: &Vec<Made>| {
        let fields: Vec<_> = record.iter().map(|(label, _, value)| format!("\"{label}\":{value}")).collect();
        format!("{{{}}}", fields.join(","))
    };
    format!("[{}]", pack.iter().map(object).collect::<Vec<_>>().join(","))
}

fn in_cbor(pack: &[Vec<Made>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    head(&mut bytes, 4, pack.len() as u64);
    for record in pack {
        head(&mut bytes, 5, record.len() as u64);
        for (label, number, value) in record {
            write(&mut bytes, &number.map_or_else(|| Value::from(*label), Value::from));
            write(&mut bytes, value);
        }
    }
    bytes
}

/// Writes a major type with its argument, in the shortest form.
fn head(bytes: &mut Vec<u8>, major: u8, argument: u64) {
    let (info, length) = match argument {
        0..24 => (argument as u8, 0),
        24..0x100 => (24, 1),
        0x100..0x1_0000 => (25, 2),
        0x1_0000..0x1_0000_0000 => (26, 4),
        _ => (27, 8),
    };
    bytes.push(major << 5 | info);
    bytes.extend_from_slice(&argument.to_be_bytes()[8 - length..]);
}

fn write(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => bytes.push(0xF6),
        Value::Bool(boolean) => bytes.push(0xF4 + u8::from(*boolean)),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(unsigned), _) => head(bytes, 0, unsigned),
            (None, Some(negative)) => head(bytes, 1, !negative as u64),
            (None, None) => {
                bytes.push(0xFB);
                bytes.extend_from_slice(&number.as_f64().unwrap().to_be_bytes());
            }
        },
        Value::String(text) => {
            head(bytes, 3, text.len() as u64);
            bytes.extend_from_slice(text.as_bytes());
        }
        Value::Array(elements) => {
            head(bytes, 4, elements.len() as u64);
            for element in elements {
                write(bytes, element);
            }
        }
        Value::Object(entries) => {
            head(bytes, 5, entries.len() as u64);
            for (key, value) in entries {
                write(bytes, &Value::from(key.as_str()));
                write(bytes, value);
            }
        }
    }
}

proptest! {
    #[test]
    fn a_pack_means_the_same_in_json_and_in_cbor(
        pack in prop::collection::vec(prop::collection::vec(any_field(), 0..6), 0..8),
    ) {
        prop_assert_eq!(json(in_json(&pack)), cbor(in_cbor(&pack)));
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = (json(&bytes), cbor(&bytes));
    }

    #[test]
    fn no_broken_pack_panics(
        pack in prop::collection::vec(prop::collection::vec(any_field(), 0..6), 1..4),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        for mut bytes in [in_json(&pack).into_bytes(), in_cbor(&pack)] {
            for (place, byte) in &changes {
                let place = place.index(bytes.len());
                bytes[place] = *byte;
            }
            let _ = (json(&bytes), cbor(&bytes));
        }
    }
}
