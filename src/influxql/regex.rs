//! Regular expressions, which match in linear time.

use std::fmt;

use regex::{Regex, RegexBuilder};

/// The longest regular expression, in bytes.
const REGEX_MAX_BYTES: usize = 4096;

/// The most memory of a compiled regular expression, in bytes.
const COMPILED_MAX_BYTES: usize = 256 << 10;

/// The deepest nesting in a regular expression.
const NEST_MAX: u32 = 64;

/// A regular expression with its text.
#[derive(Debug, Clone)]
pub struct Pattern {
    regex: Regex,
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// A message, if the expression is malformed or too large.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() > REGEX_MAX_BYTES {
            return Err(format!(
                "a regular expression has at most {REGEX_MAX_BYTES} bytes, this one has {}",
                text.len()
            ));
        }
        let built = RegexBuilder::new(text)
            .size_limit(COMPILED_MAX_BYTES)
            .dfa_size_limit(COMPILED_MAX_BYTES)
            .nest_limit(NEST_MAX)
            .build();
        match built {
            Ok(regex) => Ok(Self { regex }),
            Err(error) => {
                let (reason, part) = reason(&error.to_string(), text);
                Err(format!("error parsing regexp: {reason}: `{part}`"))
            }
        }
    }

    /// The texts that match, if the expression is a list of texts such as `^(a|b)$`.
    #[must_use]
    pub fn literals(&self) -> Option<Vec<String>> {
        let inner = self.regex.as_str().strip_prefix('^')?.strip_suffix('$')?;
        let group = inner.strip_prefix('(').and_then(|inner| inner.strip_suffix(')'));
        let list = match group {
            Some(list) => list.strip_prefix("?:").unwrap_or(list).split('|').collect(),
            None => vec![inner],
        };
        list.into_iter().map(literal).collect()
    }

    /// Whether a part of `text` matches.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

/// Returns the only text that an expression matches; `None`: it has operators.
///
/// A backslash before a punctuation mark is dropped.
fn literal(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => plain.push(chars.next().filter(char::is_ascii_punctuation)?),
            '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' | '|' => return None,
            other => plain.push(other),
        }
    }
    Some(plain)
}

/// Returns why an expression is malformed, and the part that is wrong.
///
/// The reason is the last line of the message of the regex crate, translated to the words of RE2 if it is a
/// common one.
fn reason<'t>(message: &str, text: &'t str) -> (String, &'t str) {
    let line = message.lines().last().unwrap_or_default().trim_start_matches("error: ");
    match line {
        "unclosed group" => ("missing closing )".to_owned(), text),
        "unopened group" => ("unexpected )".to_owned(), text),
        "unclosed character class" => ("missing closing ]".to_owned(), text),
        "repetition operator missing expression" => {
            let operator = text.find(['*', '+', '?']).map_or(text, |at| &text[at..=at]);
            ("missing argument to repetition operator".to_owned(), operator)
        }
        other => (other.to_owned(), text),
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.regex.as_str() == other.regex.as_str()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.regex.as_str().replace('/', "\\/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literals(text: &str) -> Option<Vec<String>> {
        Pattern::new(text).unwrap().literals()
    }

    #[test]
    fn a_list_of_texts_is_recognized() {
        assert_eq!(literals("^S1$"), Some(vec!["S1".to_owned()]));
        assert_eq!(literals(r"^(a\.b|c d)$"), Some(vec!["a.b".to_owned(), "c d".to_owned()]));
        assert_eq!(literals("^(?:a|)$"), Some(vec!["a".to_owned(), String::new()]));
        for other in ["S1", "^S1", "^a|b$", "^a.$", r"^\d$", "^(a|b)c$", "^(a)|(b)$", "^[ab]$"] {
            assert_eq!(literals(other), None, "{other}");
        }
    }

    #[test]
    fn a_hostile_expression_is_refused_or_linear() {
        assert!(Pattern::new(&"(".repeat(REGEX_MAX_BYTES)).is_err());
        assert!(Pattern::new(&"a".repeat(REGEX_MAX_BYTES + 1)).is_err());
        assert!(Pattern::new("((a{1000}){1000}){1000}").is_err());
        let slow_elsewhere = Pattern::new("^(a+)+$").unwrap();
        assert!(!slow_elsewhere.matches(&("a".repeat(100_000) + "b")));
    }
}
