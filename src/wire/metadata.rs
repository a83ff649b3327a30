//! Metadata from names and texts, as the text of a JSON object.
//!
//! Names and texts have no control characters, so JSON needs escapes for quotes and backslashes only.

use crate::common::work;
use crate::model::{check_metadata_key, series::append_escaped};

/// Whether a name and a text may be a member of metadata.
///
/// A text with control characters may not.
pub(super) fn is_member(key: &str, value: &str) -> bool {
    work::count(key.len() + value.len());
    key.bytes().chain(value.bytes()).all(|byte| byte >= b' ') && check_metadata_key(key, 1).is_ok()
}

/// The length of the text of an object with these members.
///
/// 0 without members: that is no metadata.
pub(super) fn bytes<'a>(members: impl Iterator<Item = (&'a str, &'a str)>) -> usize {
    let bytes = members.map(|(key, value)| member_bytes(key, value)).sum::<usize>();
    if bytes == 0 { 0 } else { bytes + "{}".len() - ",".len() }
}

/// The length that this member adds to an object, comma included.
pub(super) fn member_bytes(key: &str, value: &str) -> usize {
    ",:".len() + string_bytes(key) + string_bytes(value)
}

/// Replaces the content of `json` by an object with these members.
///
/// Without members, `json` becomes empty.
pub(super) fn write<'a>(json: &mut String, members: impl Iterator<Item = (&'a str, &'a str)>) {
    json.clear();
    let mut members = members.peekable();
    if members.peek().is_some() {
        append(json, members);
    }
}

/// Appends an object with these members to `json`.
pub(super) fn append<'a>(json: &mut String, members: impl Iterator<Item = (&'a str, &'a str)>) {
    let start = json.len();
    json.push('{');
    for (key, value) in members {
        if json.len() > start + 1 {
            json.push(',');
        }
        append_string(json, key);
        json.push(':');
        append_string(json, value);
    }
    json.push('}');
    work::count(json.len() - start);
}

fn append_string(json: &mut String, text: &str) {
    json.push('"');
    append_escaped(json, text, is_escaped);
    json.push('"');
}

fn string_bytes(text: &str) -> usize {
    work::count(text.len());
    "\"\"".len() + text.len() + text.bytes().filter(|&byte| is_escaped(byte)).count()
}

const fn is_escaped(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_order_and_are_escaped() {
        let mut json = "before".to_owned();
        let members = [("zone", "Zone 4"), ("a\"b", "\\"), ("ä", "\\\"x\"")];
        let text = r#"{"zone":"Zone 4","a\"b":"\\","ä":"\\\"x\""}"#;
        write(&mut json, members.into_iter());
        assert_eq!((&*json, bytes(members.into_iter())), (text, text.len()));
        write(&mut json, std::iter::empty());
        assert_eq!((&*json, bytes(std::iter::empty())), ("", 0));
    }
}
