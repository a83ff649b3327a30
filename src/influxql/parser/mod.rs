//! The parser: text to statements, by recursive descent.
//!
//! The grammar is that of the public InfluxQL specification, and errors have the texts of InfluxDB 1. The
//! depth of recursion is limited, so no query overflows the stack. No token is read more than twice.

mod expr;
mod select;
mod show;

use super::ast::Statement;
use super::error::ParseError;
use super::lexer::{Kind, Lexer, Token};
use super::params::Parameters;
use super::regex::Pattern;

/// The longest query, in bytes.
pub const QUERY_MAX_BYTES: usize = 256 << 10;

/// The longest name in a query, in bytes.
///
/// Each chunk of an answer repeats the names of its columns and tags.
pub(super) const NAME_MAX_BYTES: usize = 512;

/// The most statements in a query.
pub(super) const STATEMENTS_MAX: usize = 256;

/// The deepest nesting of parentheses, calls, subqueries and chains of operators.
const DEPTH_MAX: usize = 64;

/// The most regular expressions in a query, because each takes memory.
const REGEX_MAX: usize = 100;

/// The most columns, measurements or dimensions in a list.
const LIST_MAX: usize = 1_000;

/// Parses the statements of a query.
///
/// # Errors
/// The first violation of the grammar, or the limit that the query exceeds.
pub fn parse(query: &str, parameters: &Parameters) -> Result<Vec<Statement>, ParseError> {
    let query = query.trim();
    if query.len() > QUERY_MAX_BYTES {
        return Err(ParseError::new(format!(
            "a query has at most {QUERY_MAX_BYTES} bytes, this one has {}",
            query.len()
        )));
    }
    let mut parser = Parser::new(query, parameters);
    let mut statements = Vec::new();
    loop {
        while parser.take(";")? {}
        if parser.peek()?.kind == Kind::Eof {
            return Ok(statements);
        }
        if statements.len() == STATEMENTS_MAX {
            return Err(ParseError::new(format!("a query has at most {STATEMENTS_MAX} statements")));
        }
        statements.push(parser.statement()?);
        let next = parser.peek()?;
        if next.kind != Kind::Eof && !next.is(";") {
            return Err(ParseError::found(&next.clone(), ";"));
        }
    }
}

struct Parser<'q> {
    lexer: Lexer<'q>,
    parameters: &'q Parameters,
    /// The next token, if it was read ahead, and the lexer as it was before the token.
    peeked: Option<(Lexer<'q>, Token<'q>)>,
    depth: usize,
    /// The number of regular expressions so far.
    regexes: usize,
    /// The bytes of the bound values so far, each as often as the query names it.
    bound_bytes: usize,
    /// The number of operators of the expression so far.
    ///
    /// Among the operands of `AND` or `OR`, only the one with the most operators counts.
    operators: usize,
}

impl<'q> Parser<'q> {
    fn new(query: &'q str, parameters: &'q Parameters) -> Self {
        Self { lexer: Lexer::new(query), parameters, peeked: None, depth: 0, regexes: 0, bound_bytes: 0, operators: 0 }
    }

    fn peek(&mut self) -> Result<&Token<'q>, ParseError> {
        let peeked = match self.peeked.take() {
            Some(peeked) => peeked,
            None => (self.lexer.clone(), self.read()?),
        };
        Ok(&self.peeked.insert(peeked).1)
    }

    fn next(&mut self) -> Result<Token<'q>, ParseError> {
        match self.peeked.take() {
            Some((_, token)) => Ok(token),
            None => self.read(),
        }
    }

    fn read(&mut self) -> Result<Token<'q>, ParseError> {
        let token = self.lexer.token();
        let token = self.bind(token)?;
        if token.kind == Kind::Name && token.text.len() > NAME_MAX_BYTES {
            let found = token.text.len();
            let message = format!("a name has at most {NAME_MAX_BYTES} bytes, this one has {found},");
            return Err(ParseError::at(&message, token.position));
        }
        Ok(token)
    }

    /// Replaces a bound parameter with its value.
    ///
    /// A query may name one often, and each time its value takes memory.
    fn bind(&mut self, token: Token<'q>) -> Result<Token<'q>, ParseError> {
        if token.kind != Kind::Parameter {
            return Ok(token);
        }
        if token.text.is_empty() {
            return Err(ParseError::new("empty bound parameter"));
        }
        let missing = |why: &str| ParseError::new(format!("missing parameter: {why}"));
        match self.parameters.get(&token.text) {
            Some(Ok((kind, text))) => {
                self.bound_bytes += text.len();
                if self.bound_bytes > QUERY_MAX_BYTES {
                    let message = format!("the bound parameters of a query have at most {QUERY_MAX_BYTES} bytes");
                    return Err(ParseError::new(message));
                }
                Ok(Token { kind: *kind, text: text.into(), position: token.position })
            }
            Some(Err(why)) => Err(missing(why)),
            None => Err(missing(&token.text)),
        }
    }

    /// Takes the next token if it is the keyword or mark `text`.
    ///
    /// Returns whether it has taken the token.
    fn take(&mut self, text: &str) -> Result<bool, ParseError> {
        let is_it = self.peek()?.is(text);
        if is_it {
            self.peeked = None;
        }
        Ok(is_it)
    }

    fn expect(&mut self, text: &str) -> Result<(), ParseError> {
        let token = self.next()?;
        if token.is(text) { Ok(()) } else { Err(ParseError::found(&token, text)) }
    }

    fn name(&mut self) -> Result<String, ParseError> {
        let token = self.next()?;
        if token.kind == Kind::Name {
            Ok(token.text.into_owned())
        } else {
            Err(ParseError::found(&token, "identifier"))
        }
    }

    /// Takes a regular expression, if one is next.
    fn regex(&mut self) -> Result<Option<Pattern>, ParseError> {
        let token = match self.peeked.take() {
            Some((_, token)) if token.kind == Kind::Regex => Some(token),
            Some((before, token)) => {
                let mut lexer = before.clone();
                let regex = lexer.regex();
                if regex.is_some() {
                    self.lexer = lexer;
                } else {
                    self.peeked = Some((before, token));
                }
                regex
            }
            None => match self.lexer.regex() {
                Some(token) => Some(token),
                None => match self.peek()?.kind {
                    Kind::Regex => Some(self.next()?),
                    _ => None,
                },
            },
        };
        match token {
            None => Ok(None),
            Some(token) if token.kind == Kind::BadText => Err(ParseError::at("bad regex: ", token.position)),
            Some(_) if self.regexes == REGEX_MAX => {
                Err(ParseError::new(format!("a query has at most {REGEX_MAX} regular expressions")))
            }
            Some(token) => {
                self.regexes += 1;
                match Pattern::new(&token.text) {
                    Ok(pattern) => Ok(Some(pattern)),
                    Err(why) => Err(ParseError::at(&why, token.position)),
                }
            }
        }
    }

    fn expect_regex(&mut self) -> Result<Pattern, ParseError> {
        match self.regex()? {
            Some(pattern) => Ok(pattern),
            None => Err(ParseError::found(&self.next()?, "regex")),
        }
    }

    /// Takes `keyword` and the integer after it, such as `LIMIT 10`.
    ///
    /// Returns 0 if the keyword is not next, and `usize::MAX` if the integer is too large.
    fn integer_after(&mut self, keyword: &str) -> Result<usize, ParseError> {
        if !self.take(keyword)? {
            return Ok(0);
        }
        let token = self.next()?;
        if token.kind != Kind::Integer {
            return Err(ParseError::found(&token, "integer"));
        }
        if token.text.starts_with('-') {
            // The lexer reads no sign, so the integer is a bound parameter.
            return Err(ParseError::at(&format!("{keyword} must be >= 0"), token.position));
        }
        Ok(token.text.parse().unwrap_or(usize::MAX))
    }

    /// Runs `parse` one level of nesting deeper, unless that exceeds [`DEPTH_MAX`].
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T, ParseError>) -> Result<T, ParseError> {
        if self.depth == DEPTH_MAX {
            return Err(ParseError::new(format!("a query has at most {DEPTH_MAX} levels of nesting")));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Parses one or more items with commas between them.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Result<T, ParseError>) -> Result<Vec<T>, ParseError> {
        let mut items = vec![item(self)?];
        while self.take(",")? {
            if items.len() == LIST_MAX {
                return Err(ParseError::new(format!("a list has at most {LIST_MAX} items")));
            }
            items.push(item(self)?);
        }
        Ok(items)
    }
}
