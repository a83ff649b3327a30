//! The tokens of a query.
//!
//! The lexer reads each character once and copies only quoted text with escapes. Whether `/` divides or opens
//! a regular expression depends on the grammar. So the parser asks for a regular expression with
//! [`Lexer::regex`].

use std::borrow::Cow;

/// A place in the text, as error messages count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    /// The line, from 1.
    pub(super) line: usize,
    /// The character in the line, from 1.
    pub(super) char: usize,
}

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The end of the text.
    Eof,
    /// A name, quoted or not.
    Name,
    /// A keyword. Its text is in capitals.
    Keyword,
    /// A text in single quotes.
    Text,
    /// A quoted text without its end.
    BadText,
    /// A quoted text with an unknown escape.
    BadEscape,
    /// Digits.
    Integer,
    /// Digits with a point.
    Number,
    /// Digits with units.
    Duration,
    /// A regular expression.
    Regex,
    /// A bound parameter, without its `$`.
    Parameter,
    /// An operator or a mark, such as `<=` or `,`.
    Mark,
    /// A character that begins no token, or a comment without an end.
    Illegal,
}

/// A token and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token<'q> {
    pub(super) kind: Kind,
    /// The text, without quotes and escapes.
    pub(super) text: Cow<'q, str>,
    pub(super) position: Position,
}

impl Token<'_> {
    /// Whether this is the keyword or mark `text`.
    pub(super) fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Keyword | Kind::Mark) && self.text == text
    }
}

/// The keywords, ascending. A name that is a keyword needs quotes.
#[rustfmt::skip]
const KEYWORDS: &[&str] = &[
    "ALL", "ALTER", "ANALYZE", "AND", "ANY", "AS", "ASC", "BEGIN", "BY", "CARDINALITY", "CONTINUOUS", "CREATE",
    "DATABASE", "DATABASES", "DEFAULT", "DELETE", "DESC", "DESTINATIONS", "DIAGNOSTICS", "DISTINCT", "DROP",
    "DURATION", "END", "EVERY", "EXACT", "EXPLAIN", "FALSE", "FIELD", "FOR", "FROM", "GRANT", "GRANTS", "GROUP",
    "GROUPS", "IN", "INF", "INSERT", "INTO", "KEY", "KEYS", "KILL", "LIMIT", "MEASUREMENT", "MEASUREMENTS", "NAME",
    "OFFSET", "ON", "OR", "ORDER", "PASSWORD", "POLICIES", "POLICY", "PRIVILEGES", "QUERIES", "QUERY", "READ",
    "REPLICATION", "RESAMPLE", "RETENTION", "REVOKE", "SELECT", "SERIES", "SET", "SHARD", "SHARDS", "SHOW", "SLIMIT",
    "SOFFSET", "STATS", "SUBSCRIPTION", "SUBSCRIPTIONS", "TAG", "TO", "TRUE", "USER", "USERS", "VALUES", "WHERE",
    "WITH", "WRITE",
];

/// The length of the longest keyword, in bytes.
const KEYWORD_MAX_BYTES: usize = 13;

/// Whether a name needs quotes.
///
/// It needs none if it consists of ASCII letters, digits and `_`, does not begin with a digit, and is no
/// keyword.
pub(super) fn needs_quotes(name: &str) -> bool {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    !is_plain || name.bytes().next().is_none_or(|byte| byte.is_ascii_digit()) || keyword(name).is_some()
}

fn keyword(word: &str) -> Option<&'static str> {
    if word.len() > KEYWORD_MAX_BYTES {
        return None;
    }
    let word = word.to_ascii_uppercase();
    KEYWORDS.binary_search(&&*word).ok().map(|at| KEYWORDS[at])
}

/// Reads tokens from a text. A clone is cheap, and remembers a place to return to.
#[derive(Debug, Clone)]
pub(super) struct Lexer<'q> {
    text: &'q str,
    at: usize,
    line: usize,
    char: usize,
}

impl<'q> Lexer<'q> {
    pub(super) fn new(text: &'q str) -> Self {
        Self { text, at: 0, line: 1, char: 1 }
    }

    /// Reads the next token, after spaces and comments.
    pub(super) fn token(&mut self) -> Token<'q> {
        if let Some(illegal) = self.skip_spaces() {
            return illegal;
        }
        let position = self.position();
        let Some(first) = self.peek() else {
            return Token {
                kind: Kind::Eof,
                text: "EOF".into(),
                position: Position { char: position.char + 1, ..position },
            };
        };
        match first {
            '"' | '\'' => self.quoted(first),
            '$' => self.parameter(),
            'a'..='z' | 'A'..='Z' | '_' => {
                let word = self.take_while(|char| char.is_ascii_alphanumeric() || char == '_');
                match keyword(word) {
                    Some(keyword) => Token { kind: Kind::Keyword, text: keyword.into(), position },
                    None => Token { kind: Kind::Name, text: word.into(), position },
                }
            }
            '0'..='9' => self.number(),
            '.' if self.rest()[1..].starts_with(|char: char| char.is_ascii_digit()) => self.number(),
            _ => self.mark(first),
        }
    }

    /// Reads a regular expression, if `/` is next. Otherwise it reads nothing.
    pub(super) fn regex(&mut self) -> Option<Token<'q>> {
        let before = self.clone();
        self.take_while(char::is_whitespace);
        if self.peek() != Some('/') {
            *self = before;
            return None;
        }
        let position = self.position_of_quoted();
        self.advance();
        let mut text = String::new();
        while let Some(char) = self.advance() {
            match (char, self.peek()) {
                ('/', _) => return Some(Token { kind: Kind::Regex, text: text.into(), position }),
                ('\\', Some('/')) => {
                    self.advance();
                    text.push('/');
                }
                ('\\', Some(next)) => {
                    self.advance();
                    text.extend(['\\', next]);
                }
                ('\n', _) => break,
                _ => text.push(char),
            }
        }
        Some(Token { kind: Kind::BadText, text: "".into(), position })
    }

    fn position(&self) -> Position {
        Position { line: self.line, char: self.char }
    }

    /// Returns the position that errors name for a quoted text.
    ///
    /// It is one character before the opening quote.
    fn position_of_quoted(&self) -> Position {
        Position { line: self.line, char: self.char - 1 }
    }

    fn rest(&self) -> &'q str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn advance(&mut self) -> Option<char> {
        let char = self.peek()?;
        self.at += char.len_utf8();
        if char == '\n' {
            self.line += 1;
            self.char = 1;
        } else {
            self.char += 1;
        }
        Some(char)
    }

    fn take_while(&mut self, is_wanted: impl Fn(char) -> bool) -> &'q str {
        let start = self.at;
        while self.peek().is_some_and(&is_wanted) {
            self.advance();
        }
        &self.text[start..self.at]
    }

    /// Skips spaces and comments. Returns a token for a comment that does not end.
    fn skip_spaces(&mut self) -> Option<Token<'q>> {
        loop {
            self.take_while(char::is_whitespace);
            let position = self.position();
            if self.rest().starts_with("--") {
                self.take_while(|char| char != '\n');
            } else if self.rest().starts_with("/*") {
                let Some(end) = self.rest()[2..].find("*/") else {
                    self.take_while(|_| true);
                    return Some(Token { kind: Kind::Illegal, text: "ILLEGAL".into(), position });
                };
                let end = self.at + 2 + end + 2;
                while self.at < end {
                    self.advance();
                }
            } else {
                return None;
            }
        }
    }

    /// Reads a text in quotes.
    ///
    /// The escapes are `\n` for a line end, `\\`, `\"` and `\'`.
    fn quoted(&mut self, quote: char) -> Token<'q> {
        let position = self.position_of_quoted();
        self.advance();
        let start = self.at;
        let mut unescaped: Option<String> = None;
        loop {
            let before = self.at;
            match self.advance() {
                Some(char) if char == quote => {
                    let kind = if quote == '"' { Kind::Name } else { Kind::Text };
                    let text = unescaped.map_or(Cow::Borrowed(&self.text[start..before]), Cow::Owned);
                    return Token { kind, text, position };
                }
                None | Some('\n') => {
                    let text = unescaped.map_or(Cow::Borrowed(&self.text[start..before]), Cow::Owned);
                    return Token { kind: Kind::BadText, text, position };
                }
                Some('\\') => {
                    let unescaped = unescaped.get_or_insert_with(|| self.text[start..before].to_owned());
                    let at = self.position();
                    match self.advance() {
                        Some('n') => unescaped.push('\n'),
                        Some(char @ ('\\' | '"' | '\'')) => unescaped.push(char),
                        other => {
                            let text = format!("\\{}", other.map_or(String::new(), String::from)).into();
                            return Token { kind: Kind::BadEscape, text, position: at };
                        }
                    }
                }
                Some(char) => {
                    if let Some(unescaped) = &mut unescaped {
                        unescaped.push(char);
                    }
                }
            }
        }
    }

    fn parameter(&mut self) -> Token<'q> {
        let position = self.position();
        self.advance();
        if self.peek() == Some('"') {
            let quoted = self.quoted('"');
            return match quoted.kind {
                Kind::Name => Token { kind: Kind::Parameter, position, ..quoted },
                _ => quoted,
            };
        }
        let name = self.take_while(|char| char.is_ascii_alphanumeric() || char == '_');
        Token { kind: Kind::Parameter, text: name.into(), position }
    }

    /// Reads digits, digits with a point, or digits with units such as `1h30m`.
    fn number(&mut self) -> Token<'q> {
        let position = self.position();
        let start = self.at;
        self.take_while(|char| char.is_ascii_digit());
        let kind = if self.peek() == Some('.') {
            self.advance();
            self.take_while(|char| char.is_ascii_digit());
            Kind::Number
        } else if self.peek().is_some_and(is_unit) {
            self.take_while(|char| char.is_ascii_digit() || is_unit(char));
            Kind::Duration
        } else {
            Kind::Integer
        };
        Token { kind, text: self.text[start..self.at].into(), position }
    }

    fn mark(&mut self, first: char) -> Token<'q> {
        const MARKS: &[&str] = &[
            "::", "=~", "!~", "!=", "<>", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "%", "&", "|", "^", "(", ")",
            ",", ";", ":", ".",
        ];
        let position = self.position();
        let Some(mark) = MARKS.iter().find(|mark| self.rest().starts_with(**mark)) else {
            self.advance();
            return Token { kind: Kind::Illegal, text: String::from(first).into(), position };
        };
        for _ in 0..mark.len() {
            self.advance();
        }
        let text = if *mark == "<>" { "!=" } else { mark };
        Token { kind: Kind::Mark, text: text.into(), position }
    }
}

fn is_unit(char: char) -> bool {
    char.is_ascii_alphabetic() || char == 'µ'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<(Kind, String)> {
        let mut lexer = Lexer::new(text);
        std::iter::from_fn(|| Some(lexer.token()).filter(|token| token.kind != Kind::Eof))
            .map(|token| (token.kind, token.text.into_owned()))
            .collect()
    }

    #[test]
    fn keywords_are_sorted_and_none_is_longer_than_the_longest() {
        assert!(KEYWORDS.is_sorted());
        assert_eq!(KEYWORDS.iter().map(|word| word.len()).max(), Some(KEYWORD_MAX_BYTES));
    }

    #[test]
    fn a_text_is_split_into_names_keywords_numbers_and_marks() {
        use Kind::{Duration, Integer, Keyword, Mark, Name, Number, Parameter, Text};
        let found = tokens("select \"a \\\" b\" x_1 4 4. .5 1h30m 5µ 'it\\'s' <> >= $p -- end\n /* in */ ::");
        let expected = [
            (Keyword, "SELECT"),
            (Name, "a \" b"),
            (Name, "x_1"),
            (Integer, "4"),
            (Number, "4."),
            (Number, ".5"),
            (Duration, "1h30m"),
            (Duration, "5µ"),
            (Text, "it's"),
            (Mark, "!="),
            (Mark, ">="),
            (Parameter, "p"),
            (Mark, "::"),
        ];
        assert_eq!(found, expected.map(|(kind, text)| (kind, text.to_owned())));
    }

    #[test]
    fn a_regular_expression_keeps_its_escapes_except_that_of_the_slash() {
        let mut lexer = Lexer::new(r"  /a\/b\.c/ x");
        assert_eq!(lexer.regex().unwrap().text, r"a/b\.c");
        assert_eq!(lexer.regex(), None);
        assert_eq!(lexer.token().text, "x");
    }
}
