//! Puts JSON text on one line, for NDJSON.

use std::borrow::Cow;

/// Replaces the line ends in JSON text by spaces.
///
/// In JSON, a line end can only be white space between two tokens.
#[must_use]
pub fn on_one_line(json: &str) -> Cow<'_, str> {
    const ENDS: [char; 2] = ['\n', '\r'];
    if json.contains(ENDS) { json.replace(ENDS, " ").into() } else { json.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_several_lines_becomes_one() {
        let metadata = on_one_line("{\r\n  \"floor\": 2,\n  \"a\": \"\\n\"}");
        assert_eq!(metadata, "{    \"floor\": 2,   \"a\": \"\\n\"}");
    }
}
