//! Makes text of other programs safe to show on a terminal.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes control characters, except for line ends and tabs.
///
/// With control characters, a text could change what the terminal shows elsewhere.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_control = |char: char| char.is_control() && !matches!(char, '\n' | '\t');
    if !text.contains(is_control) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        if is_control(char) {
            let _ = write!(escaped, "{}", char.escape_default()); // a String takes any text
        } else {
            escaped.push(char);
        }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_text_is_kept() {
        assert_eq!(printable("a\u{1b}[31m\r\nü\u{9b}\0"), "a\\u{1b}[31m\\r\nü\\u{9b}\\u{0}");
        assert!(matches!(printable("Größe\n"), Cow::Borrowed(_)));
    }
}
