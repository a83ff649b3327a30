//! NDJSON, also in bodies of type `application/json`.

use super::*;

#[test]
fn lines_stand_for_themselves() {
    let body = b"{\"deviceId\":\"S\",\"value\":1}\r\n\n  \t\n{\"deviceId\":\"S\",\"value\":}\n\
        [{\"deviceId\":\"S\",\"value\":2},{\"value\":3}]\n[{\"deviceId\":\"S\",\"value\":4},]\n\
        {\"deviceId\":\"\xFF\",\"value\":5}\n{\"deviceId\":\"S\",\"value\":6} {}\n{\"deviceId\":\"S\",\"value\":7}";
    assert_eq!(
        entries_of_lines(body),
        [
            "line 1",
            "S now value=1",
            "line 4",
            "invalid_json: expected a value at byte 25 of the line",
            "line 5",
            "S now value=2",
            "missing_device_id: there is no \"deviceId\"",
            "line 6",
            "invalid_json: expected a value at byte 29 of the line",
            "line 7",
            "invalid_json: the text is not valid UTF-8 at byte 14 of the line",
            "line 8",
            "invalid_json: expected nothing after the value at byte 28 of the line",
            "line 9",
            "S now value=7",
        ]
    );
    assert_eq!(entries_of_lines("\n \n"), [""; 0]);
}

#[test]
fn an_object_with_values_on_later_lines_is_the_first_line() {
    let first = r#"{"deviceId":"S","value":1}"#;
    let body =
        format!("\n{first} \r\n\n{{\"deviceId\":\"S\",\"value\":}}\n[{first},{{}}]\n{{\"deviceId\":\"S\",\"v\":3}}\n");
    assert_eq!(
        entries(body),
        [
            "line 2",
            "S now value=1",
            "line 4",
            "invalid_json: expected a value at byte 25 of the line",
            "line 5",
            "S now value=1",
            "missing_device_id: there is no \"deviceId\"",
            "line 6",
            "unknown_key: unknown key \"v\" at byte 17 of the line; did you mean \"value\"?",
        ]
    );
    assert_eq!(entries(format!("\u{FEFF}{first}\n{first}")), ["line 1", "S now value=1", "line 2", "S now value=1"]);
    assert_eq!(entries(format!("{first}\n\n \n")), ["S now value=1"]);
}

#[test]
fn only_whole_lines_are_ndjson() {
    let nothing = "expected nothing after the value";
    let lines = "expected nothing after the value, or a value on each line, which is NDJSON,";
    for (body, error) in [
        ("{\"deviceId\":\n\"S\"}\n{}", format!("{lines} at byte 19")),
        ("{\"deviceId\":\"S\"}{}\n", format!("{lines} at byte 17")),
        ("{\"deviceId\":\"S\"}\n1", format!("{nothing} at byte 18")),
        ("{\"deviceId\":\"S\"}\n,{}", format!("{nothing} at byte 18")),
        ("[]\n[]", format!("{nothing} at byte 4")),
        ("{\"deviceId\":}\n{}", "expected a value at byte 13".to_owned()),
    ] {
        assert_eq!(syntax_error(body), error, "{body}");
    }
}
