//! Regular expressions, which match in linear time.

use std::fmt;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};

/// The longest regular expression that is no list of texts, in bytes.
const REGEX_MAX_BYTES: usize = 4096;

/// The longest list of texts, in bytes. It takes about as much memory as a compiled regular expression.
const LIST_MAX_BYTES: usize = 32 << 10;

/// The most memory of a compiled regular expression, in bytes.
const COMPILED_MAX_BYTES: usize = 256 << 10;

/// The deepest nesting in a regular expression.
const NEST_MAX: u32 = 64;

/// A regular expression with its text.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: Arc<str>,
    matcher: Matcher,
}

#[derive(Debug, Clone)]
enum Matcher {
    /// The texts of a list, ascending and without duplicates. Only they match, as a whole.
    List(Arc<[String]>),
    Regex(Regex),
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// A list of texts, such as `^(a|b)$`, may be longer than other expressions.
    ///
    /// # Errors
    /// A message, if the expression is malformed or too large.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() <= LIST_MAX_BYTES
            && let Some(mut list) = list_of(text)
        {
            list.sort_unstable();
            list.dedup();
            return Ok(Self { text: text.into(), matcher: Matcher::List(list.into()) });
        }
        if text.len() > REGEX_MAX_BYTES {
            return Err(format!(
                "a regular expression has at most {REGEX_MAX_BYTES} bytes, or {LIST_MAX_BYTES} if it is a list such \
                 as ^(a|b)$; this one has {}",
                text.len()
            ));
        }
        let built = RegexBuilder::new(text)
            .size_limit(COMPILED_MAX_BYTES)
            .dfa_size_limit(COMPILED_MAX_BYTES)
            .nest_limit(NEST_MAX)
            .build();
        match built {
            Ok(regex) => Ok(Self { text: text.into(), matcher: Matcher::Regex(regex) }),
            Err(error) => {
                let (reason, part) = reason(&error.to_string(), text);
                Err(format!("error parsing regexp: {reason}: `{part}`"))
            }
        }
    }

    /// The texts that match, if the expression is a list of texts.
    #[must_use]
    pub fn literals(&self) -> Option<Vec<String>> {
        match &self.matcher {
            Matcher::List(list) => Some(list.to_vec()),
            Matcher::Regex(_) => None,
        }
    }

    /// Whether a part of `text` matches.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        match &self.matcher {
            Matcher::List(list) => list.binary_search_by(|known| known.as_str().cmp(text)).is_ok(),
            Matcher::Regex(regex) => regex.is_match(text),
        }
    }
}

/// Returns the texts of a list such as `^(a|b)$`; `None`: the expression is none.
fn list_of(text: &str) -> Option<Vec<String>> {
    let inner = text.strip_prefix('^')?.strip_suffix('$')?;
    let group = inner.strip_prefix('(').and_then(|inner| inner.strip_suffix(')'));
    match group {
        Some(list) => list.strip_prefix("?:").unwrap_or(list).split('|').map(literal).collect(),
        None => Some(vec![literal(inner)?]),
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
        self.text == other.text
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.text.replace('/', "\\/"))
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
        assert_eq!(literals("^(?:b||b|a)$"), Some(vec![String::new(), "a".to_owned(), "b".to_owned()]));
        for other in ["S1", "^S1", "^a|b$", "^a.$", r"^\d$", "^(a|b)c$", "^(a)|(b)$", "^[ab]$"] {
            assert_eq!(literals(other), None, "{other}");
        }
    }

    #[test]
    fn a_list_of_texts_may_be_longer_than_other_expressions() {
        let ids: Vec<String> = (0..300).map(|at| format!("greenhouse.{at:04}")).collect();
        let list = Pattern::new(&format!("^({})$", ids.join("|").replace('.', r"\."))).unwrap();
        assert!(list.text.len() > REGEX_MAX_BYTES);
        for (text, expected) in [
            ("greenhouse.0000", true),
            ("greenhouse.0299", true),
            ("greenhouse.0300", false),
            ("greenhouse-0001", false),
            ("greenhouse.00012", false),
            ("a greenhouse.0001", false),
            ("", false),
        ] {
            assert_eq!(list.matches(text), expected, "{text}");
        }
        assert_eq!(list.literals(), Some(ids));
        let longest = format!("^{}$", "a".repeat(LIST_MAX_BYTES - 2));
        assert!(Pattern::new(&longest).is_ok());
        let error = Pattern::new(&longest.replacen('a', "aa", 1)).unwrap_err();
        assert!(error.contains("4096 bytes, or 32768 if it is a list such as ^(a|b)$; this one has 32769"), "{error}");
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
