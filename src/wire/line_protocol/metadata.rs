//! Tags as the text of a JSON object.

/// Writes a JSON object of strings into `json`, replacing what was there. No tags are no metadata.
pub(super) fn write<'j, 'a>(json: &'j mut String, tags: impl Iterator<Item = (&'a str, &'a str)>) -> Option<&'j str> {
    json.clear();
    for (key, value) in tags {
        json.push(if json.is_empty() { '{' } else { ',' });
        write_string(json, key);
        json.push(':');
        write_string(json, value);
    }
    if json.is_empty() {
        return None;
    }
    json.push('}');
    Some(json)
}

/// The names of a line have no control characters, so quotes and backslashes are all that JSON wants escaped.
fn write_string(json: &mut String, mut text: &str) {
    json.push('"');
    while let Some(at) = text.bytes().position(|byte| matches!(byte, b'"' | b'\\')) {
        json.push_str(&text[..at]);
        json.push('\\');
        json.push_str(&text[at..=at]);
        text = &text[at + 1..];
    }
    json.push_str(text);
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_keep_their_order_and_are_escaped() {
        let mut json = "before".to_owned();
        let tags = [("zone", "Zone 4"), ("a\"b", "\\"), ("ä", "\\\"x\"")];
        assert_eq!(write(&mut json, tags.into_iter()), Some(r#"{"zone":"Zone 4","a\"b":"\\","ä":"\\\"x\""}"#));
        assert_eq!(write(&mut json, std::iter::empty()), None);
    }
}
