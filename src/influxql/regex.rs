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
    /// The alternatives of a list with dots, ascending and without duplicates.
    Dotted(Arc<[Alternative]>),
    Regex(Regex),
}

/// The characters of a text. `None` is a dot, which stands for any character.
type Alternative = Vec<Option<char>>;

impl Pattern {
    /// Compiles an expression.
    ///
    /// A list of texts, such as `^(a|b)$`, may be longer than other expressions. Its texts may have dots.
    ///
    /// # Errors
    /// A message, if the expression is malformed or too large.
    pub fn new(text: &str) -> Result<Self, String> {
        if text.len() <= LIST_MAX_BYTES
            && let Some(mut list) = list_of(text)
        {
            list.sort_unstable();
            list.dedup();
            let texts = list.iter().map(|text| text.iter().copied().collect::<Option<String>>());
            let matcher = match texts.collect::<Option<Vec<String>>>() {
                Some(texts) => Matcher::List(texts.into()),
                None => Matcher::Dotted(list.into()),
            };
            return Ok(Self { text: text.into(), matcher });
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
            Matcher::Dotted(_) | Matcher::Regex(_) => None,
        }
    }

    /// Whether a part of `text` matches.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        match &self.matcher {
            Matcher::List(list) => list.binary_search_by(|known| known.as_str().cmp(text)).is_ok(),
            Matcher::Dotted(list) => one_matches(list, text),
            Matcher::Regex(regex) => regex.is_match(text),
        }
    }

    /// Returns the text with which each matching text begins: `live-` for `/^live-[0-9]/`.
    ///
    /// It is empty if they may begin with any text, or if the expression has alternatives.
    pub(super) fn start(&self) -> &str {
        const SPECIAL: &[char] = &['\\', '.', '*', '+', '?', '(', ')', '[', ']', '{', '}', '^', '$', '|'];
        let (Matcher::Regex(_), Some(rest)) = (&self.matcher, self.text.strip_prefix('^')) else { return "" };
        if rest.contains('|') {
            return "";
        }
        let start = &rest[..rest.find(SPECIAL).unwrap_or(rest.len())];
        // The text may lack a character that is repeated: `/^ab*/` and `/^ab+*/` match `a`.
        let is_repeated = rest[start.len()..].starts_with(['*', '+', '?', '{']);
        let repeated = start.chars().next_back().filter(|_| is_repeated).map_or(0, char::len_utf8);
        &start[..start.len() - repeated]
    }

    /// Whether `text` matches and is written out in the expression: `host` in `/^host$/`, but not in `/o/`.
    pub(super) fn names(&self, text: &str) -> bool {
        self.matches(text) && (matches!(self.matcher, Matcher::List(_)) || self.text.contains(text))
    }
}

/// Whether one alternative of an ascending list matches `text` as a whole.
///
/// Each step narrows the list to the alternatives that begin as the text does. So the work is at most in
/// proportion to the length of the list.
fn one_matches(list: &[Alternative], text: &str) -> bool {
    let mut open = vec![(list, 0, text.chars())];
    while let Some((alike, at, mut rest)) = open.pop() {
        let Some(next) = rest.next() else {
            if alike.first().is_some_and(|shortest| shortest.len() == at) {
                return true;
            }
            continue;
        };
        let dot = (next != '\n').then_some(None);
        for wanted in [Some(Some(next)), dot].into_iter().flatten() {
            let alike = &alike[alike.partition_point(|of| of.get(at) < Some(&wanted))..];
            let alike = &alike[..alike.partition_point(|of| of.get(at) == Some(&wanted))];
            if !alike.is_empty() {
                open.push((alike, at + 1, rest.clone()));
            }
        }
    }
    false
}

/// Returns the alternatives of a list such as `^(a|b)$`; `None`: the expression is none.
fn list_of(text: &str) -> Option<Vec<Alternative>> {
    let inner = text.strip_prefix('^')?.strip_suffix('$')?;
    let mut list = inner;
    while let Some(group) = list.strip_prefix('(').and_then(|list| list.strip_suffix(')')) {
        list = group.strip_prefix("?:").unwrap_or(group);
    }
    if list.len() < inner.len() { list.split('|').map(alternative).collect() } else { Some(vec![alternative(inner)?]) }
}

/// Returns the characters of an expression; `None`: it has operators other than dots.
///
/// A backslash before a punctuation mark is dropped.
fn alternative(text: &str) -> Option<Alternative> {
    let mut plain = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => plain.push(Some(chars.next().filter(char::is_ascii_punctuation)?)),
            '.' => plain.push(None),
            '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' | '|' => return None,
            other => plain.push(Some(other)),
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
        assert_eq!(literals(r"^(?:(a|b\.c))$"), Some(vec!["a".to_owned(), "b.c".to_owned()]));
        for other in ["S1", "^S1", "^a|b$", "^a.$", r"^\d$", "^(a|b)c$", "^(a)|(b)$", "^((a)|(b))$", "^[ab]$"] {
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
    fn a_list_with_dots_matches_as_its_expression_and_may_be_as_long() {
        let text = r"^(?:a.c|a\.cd|.b.|..|é.|abc|)$";
        let (list, regex) = (Pattern::new(text).unwrap(), Regex::new(text).unwrap());
        assert!(matches!(list.matcher, Matcher::Dotted(_)) && list.literals().is_none());
        for text in
            ["", "a", "ab", "é!", "éé", "é\n", "abc", "a.c", "axc", "a\nc", "a.cd", "abcd", "xbx", "ab\n", "xyz"]
        {
            assert_eq!(list.matches(text), regex.is_match(text), "{text:?}");
        }
        let addresses: Vec<String> = (0..2_000).map(|at| format!("127.0.0.1:{at:04}")).collect();
        let many = Pattern::new(&format!("^(?:{})$", addresses.join("|"))).unwrap();
        assert!(addresses.iter().all(|address| many.matches(address)));
        assert!(many.matches("127-0.0.1:1999") && !many.matches("127.0.0.1:2000"));
    }

    #[test]
    fn matching_texts_begin_with_the_plain_start_of_the_expression() {
        for (text, expected) in [
            ("^live-", "live-"),
            ("^live-.*$", "live-"),
            ("^live-[0-9]+", "live-"),
            (r"^a\.b", "a"),
            ("^ab*", "a"),
            ("^ab+*", "a"),
            ("^aé?", "a"),
            ("^ab{0,2}", "a"),
            ("^a(b|c)", ""),
            ("^a|b", ""),
            ("^a(?i)b", "a"),
            ("(?i)^a", ""),
            ("live-", ""),
            ("^a$", ""),
            ("^", ""),
        ] {
            assert_eq!(Pattern::new(text).unwrap().start(), expected, "{text}");
        }
        let texts = ["", "a", "A", "b", "ab", "aB", "a.b", "aé", "abb", "xa", "live-", "live-7", "LIVE-7"];
        for text in ["^ab*", "^ab+*", "^aé?", "^ab{0,2}", "^a(?i)b", "^live-.*$", r"^a\.b", "^[ab]"] {
            let pattern = Pattern::new(text).unwrap();
            let mut matching = texts.iter().filter(|text| pattern.matches(text));
            assert!(matching.all(|found| found.starts_with(pattern.start())), "{text}");
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
