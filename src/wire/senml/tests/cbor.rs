//! The rules that apply to CBOR only.

use super::{bytes, cbor};

#[track_caller]
fn assert_cbor(hex: &str, entries: &[&str]) {
    assert_eq!(cbor(bytes(hex)), Ok(entries.iter().map(ToString::to_string).collect()), "{hex}");
}

#[track_caller]
fn assert_value(hex: &str, value: &str) {
    assert_cbor(&format!("81 a2 00 61 61 02 {hex}"), &[&format!("a now value={value}")]);
}

#[test]
fn lengths_may_be_definite_or_not() {
    assert_cbor("9f bf 00 61 61 02 01 ff a2 00 61 62 02 02 ff", &["a now value=1", "b now value=2"]);
    assert_cbor("81 a2 00 7f 61 61 60 62 2f 78 ff 02 01", &["a now x=1"]);
    assert_cbor("80", &[]);
    assert_cbor("9f ff", &[]);
}

#[test]
fn a_number_has_many_forms() {
    for (hex, value) in [
        ("17", "23"),
        ("18 18", "24"),
        ("19 ffff", "65535"),
        ("1a ffffffff", "4294967295"),
        ("1b ffffffffffffffff", "18446744073709552000"),
        ("20", "-1"),
        ("38 ff", "-256"),
        ("3b ffffffffffffffff", "-18446744073709552000"),
        ("f9 3e00", "1.5"),
        ("f9 0001", "0.00000005960464477539063"),
        ("fa 41bb3333", "23.399999618530273"),
        ("fb 403719999999999a", "23.1"),
        ("f9 7c00", "inf"),
        ("f9 7e00", "NaN"),
        ("c4 82 20 18 e7", "23.1"),
        ("c4 82 01 20", "-10"),
        ("c4 82 21 c2 42 6ab3", "273.15"),
        ("c4 82 1b 7fffffffffffffff 01", "inf"),
        ("c4 82 3b 7fffffffffffffff 01", "0"),
    ] {
        assert_value(hex, value);
    }
}

#[test]
fn what_is_no_number_is_named() {
    for (hex, found) in [
        ("61 31", "a string"),
        ("f5", "a boolean"),
        ("f7", "a simple value"),
        ("f8 ff", "a simple value"),
        ("41 00", "bytes"),
        ("5f 41 00 ff", "bytes"),
        ("82 01 9f 02 ff", "an array"),
        ("bf 01 a1 02 03 ff", "an object"),
        ("c1 01", "a tagged value"),
        ("c4 01", "a tagged value"),
        ("c4 83 01 02 03", "a tagged value"),
        ("c4 82 f9 3e00 01", "a tagged value"),
    ] {
        let rejection = format!("invalid_value: record [0]: \"v\" must be a number, found {found}");
        assert_cbor(&format!("82 a2 00 61 61 02 {hex} a2 00 61 62 02 01"), &[&rejection, "b now value=1"]);
    }
}

#[test]
fn labels_may_be_texts_and_unknown_ones_are_ignored() {
    assert_cbor("81 a2 61 6e 61 61 61 76 05", &["a now value=5"]);
    assert_cbor(
        "81 a8 00 61 61 02 01 07 18 3c 18 63 80 38 63 80 63 666f6f a1 01 02 f6 01 1b ffffffffffffffff 01",
        &[
            "ignored UnknownKey 99",
            "ignored UnknownKey -100",
            "ignored UnknownKey foo",
            "ignored UnknownKey a label that is neither a text nor a number",
            "ignored UnknownKey 18446744073709551615",
            "a now value=1",
        ],
    );
    assert_cbor("81 a3 00 61 61 02 01 61 76 01", &["duplicate_key: record [0]: the key \"v\" is duplicated"]);
    assert_cbor(
        "81 a2 00 61 61 08 43 010203",
        &["invalid_value: record [0]: only numbers and booleans can be stored, not \"vs\" or \"vd\""],
    );
}

#[track_caller]
fn refusal(hex: &str) -> (&'static str, String) {
    cbor(bytes(hex)).expect_err(hex)
}

#[test]
fn a_pack_for_newer_parsers_is_refused_whole() {
    assert_eq!(
        refusal("81 a3 20 0b 00 61 61 02 01"),
        ("unsupported_senml", "\"bver\" must be a number of at most 10".to_owned())
    );
    assert_eq!(
        refusal("81 a3 00 61 61 02 01 62 785f 01"),
        ("unsupported_senml", "the field \"x_\" must be supported, and is not".to_owned())
    );
}

#[test]
fn a_body_that_is_not_a_pack_is_refused_whole() {
    for hex in [
        "",
        "01",
        "a2 00 61 61 02 01",
        "81 01",
        "81 a2 00 61 61 02",
        "81 a2 00 61 61 02 01 00",
        "82 a2 00 61 61 02 01",
        "9f a2 00 61 61 02 01",
        "81 a1 00 61 ff",
        "81 a1 00 7f 01 ff",
        "81 a1 02 ff",
        "81 a1 18 63 81 ff",
        "81 bf 02 ff",
        "81 a1 02 1c",
        "81 a1 02 fc",
        "ff",
    ] {
        assert_eq!(refusal(hex).0, "invalid_senml", "{hex}");
    }
    assert_eq!(refusal("80 80").1, "expected nothing after the pack at byte 2");
    assert_eq!(refusal("81 80").1, "a record must be a map, found array");
}

#[test]
fn a_huge_declared_length_is_the_end_of_the_body() {
    for hex in [
        "9b ffffffffffffffff",
        "81 bb ffffffffffffffff",
        "81 a1 00 7b ffffffffffffffff 61",
        "81 a1 08 5b ffffffffffffffff 61",
        "81 a1 18 63 9b ffffffffffffffff 01",
        "81 a1 18 63 bb ffffffffffffffff 01",
    ] {
        assert_eq!(refusal(hex).0, "invalid_senml", "{hex}");
    }
}

#[test]
fn null_is_no_value() {
    let none = "missing_values: record [0]: there is no \"v\", no \"vb\" and no \"s\"";
    assert_cbor("82 a2 00 61 61 02 f6 a2 00 61 62 02 01", &[none, "b now value=1"]);
}

#[test]
fn labels_of_a_series_are_a_map_of_texts() {
    let labels = "66 6c6162656c73";
    assert_cbor(&format!("81 a3 00 61 61 02 01 {labels} a2 61 62 61 31 61 61 61 32"), &["a now value{a=2,b=1}=1"]);
    assert_cbor(&format!("81 a3 00 61 61 02 01 {labels} bf 7f 61 62 ff 61 31 61 63 f6 ff"), &["a now value{b=1}=1"]);
    assert_cbor(&format!("81 a3 00 61 61 02 01 {labels} f6"), &["a now value=1"]);
    for (map, rejection) in [
        ("01", "\"labels\" must be an object of strings, found a number"),
        ("a1 61 61 01", "the label \"a\" must be a string, found a number"),
        ("a1 01 61 61", "the label \"\" must be a string, found a number as its key"),
    ] {
        let rejection = format!("invalid_label: record [0]: {rejection}");
        assert_cbor(&format!("81 a3 00 61 61 02 01 {labels} {map}"), &[&rejection]);
    }
    assert_eq!(refusal(&format!("81 a3 00 61 61 02 01 {labels} bb ffffffffffffffff 61 61 61 61")).0, "invalid_senml");
}

#[test]
fn nesting_is_limited() {
    for nest in ["81", "9f", "c1", "a1 01", "bf 01"] {
        let (code, detail) = refusal(&format!("81 a1 18 63 {}", nest.repeat(100_000)));
        assert_eq!(code, "invalid_senml");
        assert!(detail.starts_with("more than 64 levels of nesting at byte "), "{detail}");
    }
    assert_cbor(
        &format!("81 a3 00 61 61 02 01 18 63 {} 80", "81".repeat(63)),
        &["ignored UnknownKey 99", "a now value=1"],
    );
}
