//! Paths into JSON documents, such as `data.sensors[0].temp`.
//!
//! ```text
//! path  = ( key | index ) { "." key | index } [ ".*" ]   or   "*"
//! key   = 1 or more characters, none of . [ ] " * and no space, or a string in double quotes, as in JSON
//! index = "[" digits "]" | "[*]"
//! ```
//!
//! `a.b` is the key `b` of the object `a`. A key with a dot is quoted: `a."x.y"`. `a[0]` is the first element
//! of the array `a`, `a[*]` is each element, and `a.*` is everything below `a`.

use std::fmt;
use std::str::FromStr;

/// The longest path, in bytes.
const MAX_BYTES: usize = 256;

/// A path into a JSON document, with its original text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPath {
    text: String,
    steps: Vec<Step>,
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The value of this key in an object.
    Key(String),
    /// The element of an array with this index, from 0.
    Index(usize),
    /// Each element of an array: `[*]`.
    Each,
    /// All values below this place: `*`, which is always the last step.
    Any,
}

/// A text is not a path into JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a path into JSON: {problem} at byte {offset} of {text:?} (a path looks like a.b, a[0].b, a[*].b or a.*)")]
pub struct JsonPathError {
    problem: &'static str,
    offset: usize,
    text: String,
}

impl JsonPath {
    /// The steps of the path, at least one.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The path as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The key that is the last step. `None`: the last step is an index, `[*]` or `*`.
    #[must_use]
    pub fn last_key(&self) -> Option<&str> {
        match self.steps.last() {
            Some(Step::Key(key)) => Some(key),
            _ => None,
        }
    }

    /// Whether the path ends with `*`.
    #[must_use]
    pub fn has_any(&self) -> bool {
        self.steps.last() == Some(&Step::Any)
    }

    /// The steps before `[*]`. `None`: the path has no `[*]`.
    #[must_use]
    pub fn before_each(&self) -> Option<&[Step]> {
        let at = self.steps.iter().position(|step| *step == Step::Each)?;
        Some(&self.steps[..at])
    }
}

impl FromStr for JsonPath {
    type Err = JsonPathError;

    fn from_str(text: &str) -> Result<Self, JsonPathError> {
        let fail = |problem, offset| Err(JsonPathError { problem, offset, text: shortened(text) });
        if text.len() > MAX_BYTES {
            return fail("more than 256 bytes", MAX_BYTES);
        }
        let mut steps = Vec::new();
        let mut rest = text;
        loop {
            let offset = text.len() - rest.len();
            if steps.last() == Some(&Step::Any) {
                let text = text.to_owned();
                return if rest.is_empty() {
                    Ok(Self { text, steps })
                } else {
                    fail("* must be the last step", offset)
                };
            }
            if let Some(inner) = rest.strip_prefix('[') {
                let Some((index, behind)) = inner.split_once(']') else { return fail("[ without ]", offset) };
                steps.push(match index {
                    "*" if steps.contains(&Step::Each) => return fail("a second [*]", offset),
                    "*" => Step::Each,
                    _ if (1..=6).contains(&index.len()) && index.bytes().all(|byte| byte.is_ascii_digit()) => {
                        Step::Index(index.parse().unwrap_or_default())
                    }
                    _ => return fail("expected 1 to 6 digits or * in brackets", offset + 1),
                });
                rest = behind;
                continue;
            }
            let after_dot = rest.strip_prefix('.');
            rest = match (steps.is_empty(), after_dot) {
                (true, Some(_)) => return fail("expected a key", offset),
                (true, None) => rest,
                (false, Some(behind)) => behind,
                (false, None) if rest.is_empty() => return Ok(Self { text: text.to_owned(), steps }),
                (false, None) => return fail("expected '.' or '['", offset),
            };
            let offset = text.len() - rest.len();
            let (step, behind) = match rest.as_bytes().first() {
                Some(b'*') => (Step::Any, &rest[1..]),
                Some(b'"') => match quoted_key(rest) {
                    Some((key, behind)) => (Step::Key(key), behind),
                    None => return fail("expected a string in double quotes", offset),
                },
                _ => {
                    let end = rest.find(|c: char| !is_bare(c)).unwrap_or(rest.len());
                    if end == 0 {
                        return fail("expected a key", offset);
                    }
                    (Step::Key(rest[..end].to_owned()), &rest[end..])
                }
            };
            steps.push(step);
            rest = behind;
        }
    }
}

fn is_bare(c: char) -> bool {
    !matches!(c, '.' | '[' | ']' | '"' | '*') && !c.is_whitespace() && !c.is_control()
}

/// Splits `text` into the JSON string at its start and the rest.
fn quoted_key(text: &str) -> Option<(String, &str)> {
    let mut keys = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let key = keys.next()?.ok()?;
    Some((key, &text[keys.byte_offset()..]))
}

fn shortened(text: &str) -> String {
    text.char_indices().nth(64).map_or_else(|| text.to_owned(), |(end, _)| format!("{}...", &text[..end]))
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(text: &str) -> Vec<Step> {
        text.parse::<JsonPath>().expect(text).steps
    }

    fn key(key: &str) -> Step {
        Step::Key(key.to_owned())
    }

    #[test]
    fn a_path_has_keys_places_and_one_star_at_its_end() {
        assert_eq!(steps("a"), [key("a")]);
        assert_eq!(steps("switch:0.a-b_ä"), [key("switch:0"), key("a-b_ä")]);
        assert_eq!(steps("a[0][12].b"), [key("a"), Step::Index(0), Step::Index(12), key("b")]);
        assert_eq!(steps("[*].values.*"), [Step::Each, key("values"), Step::Any]);
        assert_eq!(steps("*"), [Step::Any]);
        assert_eq!(steps("[*].*"), [Step::Each, Step::Any]);
        assert_eq!(steps(r#"a."x.y \"z\" \u00e9"[3]"#), [key("a"), key("x.y \"z\" é"), Step::Index(3)]);
        assert_eq!(steps(r#""".a"#), [key(""), key("a")]);
    }

    #[test]
    fn a_text_that_is_no_path_is_refused_with_its_place() {
        for (text, place) in [
            ("", "expected a key at byte 0"),
            (".a", "expected a key at byte 0"),
            ("a.", "expected a key at byte 2"),
            ("a..b", "expected a key at byte 2"),
            ("a b", "expected '.' or '[' at byte 1"),
            ("a]", "expected '.' or '[' at byte 1"),
            ("a*", "expected '.' or '[' at byte 1"),
            ("a.*.b", "* must be the last step at byte 3"),
            ("a.*[0]", "* must be the last step at byte 3"),
            ("a[", "[ without ] at byte 1"),
            ("a[]", "expected 1 to 6 digits or * in brackets at byte 2"),
            ("a[-1]", "expected 1 to 6 digits or * in brackets at byte 2"),
            ("a[1234567]", "expected 1 to 6 digits or * in brackets at byte 2"),
            ("a[0]b", "expected '.' or '[' at byte 4"),
            ("a[*].b[*]", "a second [*] at byte 6"),
            ("a.\"b", "expected a string in double quotes at byte 2"),
            ("a.\"b\"c", "expected '.' or '[' at byte 5"),
            ("$.a b", "expected '.' or '[' at byte 3"),
        ] {
            let error = text.parse::<JsonPath>().expect_err(text).to_string();
            assert!(error.contains(place), "{text}: {error}");
        }
        assert!("a".repeat(257).parse::<JsonPath>().is_err());
        assert!("a".repeat(256).parse::<JsonPath>().is_ok());
    }
}
