//! Expressions: operators, operands, calls and casts.

use super::super::ast::{Cast, Expr, Operator};
use super::super::duration;
use super::super::error::ParseError;
use super::super::lexer::{Kind, Token};
use super::{DEPTH_MAX, LIST_MAX, Parser};

/// The kinds of operands, as error messages list them.
const OPERAND: &str = "identifier, string, number, bool";

/// The most operands of a chain of `AND` or `OR`.
const LOGIC_MAX: usize = 10_000;

/// The most operators of an expression, because its depth is that of recursions over it.
///
/// Each operand of `AND` or `OR` may have so many.
const OPERATORS_MAX: usize = 500;

impl Parser<'_> {
    /// Parses an expression.
    pub(super) fn expr(&mut self) -> Result<Expr, ParseError> {
        self.operators = 0;
        self.inner()
    }

    /// Parses an expression inside of another one.
    fn inner(&mut self) -> Result<Expr, ParseError> {
        self.deeper(|parser| parser.operation(1))
    }

    /// Parses an operation, by precedence climbing.
    ///
    /// All its operators bind at least as strongly as `weakest`. A chain of one logical operator, such as `a
    /// AND b AND c`, becomes one list.
    fn operation(&mut self, weakest: u8) -> Result<Expr, ParseError> {
        let before = self.operators;
        let mut left = self.operand()?;
        let mut chain = 0;
        loop {
            let Some((operator, strength)) = operator_of(self.peek()?) else { return Ok(left) };
            if strength < weakest {
                return Ok(left);
            }
            self.next()?;
            let (of_left, is_logic) = (self.operators, matches!(operator, Operator::And | Operator::Or));
            if is_logic {
                self.operators = before;
            }
            let right = match operator {
                Operator::Matches | Operator::MatchesNot => Expr::Regex(self.expect_regex()?),
                _ => self.deeper(|parser| parser.operation(strength + 1))?,
            };
            self.operators = if is_logic { self.operators.max(of_left) } else { self.operators + 1 };
            if self.operators > OPERATORS_MAX {
                return Err(ParseError::new(format!("an expression has at most {OPERATORS_MAX} operators")));
            }
            left = match (operator, left) {
                (Operator::And | Operator::Or, Expr::Logic(known, mut operands)) if known == operator => {
                    if operands.len() == LOGIC_MAX {
                        return Err(ParseError::new(format!("a condition has at most {LOGIC_MAX} operands")));
                    }
                    operands.push(right);
                    Expr::Logic(known, operands)
                }
                (Operator::And | Operator::Or, left) => Expr::Logic(operator, vec![left, right]),
                (operator, left) => {
                    chain += 1;
                    if chain > DEPTH_MAX {
                        return Err(ParseError::new(format!(
                            "an expression has at most {DEPTH_MAX} operators in a row"
                        )));
                    }
                    Expr::Binary(operator, Box::new(left), Box::new(right))
                }
            };
        }
    }

    fn operand(&mut self) -> Result<Expr, ParseError> {
        if let Some(pattern) = self.regex()? {
            return Ok(Expr::Regex(pattern));
        }
        let token = self.next()?;
        let unable = |what: &str| ParseError::at(&format!("unable to parse {what}"), token.position);
        match token.kind {
            Kind::Name => self.name_or_call(token),
            Kind::Text => Ok(Expr::Text(token.text.into_owned())),
            Kind::Integer => token.text.parse().map(Expr::Integer).map_err(|_| unable("integer")),
            Kind::Number => token.text.parse().map(Expr::Number).map_err(|_| unable("number")),
            Kind::Duration => {
                duration::parse(&token.text).map(Expr::Duration).ok_or_else(|| ParseError::new("invalid duration"))
            }
            Kind::Keyword if token.text == "TRUE" => Ok(Expr::Boolean(true)),
            Kind::Keyword if token.text == "FALSE" => Ok(Expr::Boolean(false)),
            Kind::Keyword if token.text == "DISTINCT" => self.distinct(),
            Kind::Mark if token.text == "*" => Ok(Expr::Wildcard(self.cast("field, tag")?)),
            Kind::Mark if token.text == "(" => {
                let inner = self.inner()?;
                self.expect(")")?;
                Ok(Expr::Group(Box::new(inner)))
            }
            Kind::Mark if token.text == "-" => self.negative(),
            _ => Err(ParseError::found(&token, OPERAND)),
        }
    }

    /// Parses the operand of a minus.
    ///
    /// Numbers and durations are negated; others are multiplied by -1.
    fn negative(&mut self) -> Result<Expr, ParseError> {
        let token = self.peek()?;
        if token.kind == Kind::Integer && token.text == "9223372036854775808" {
            self.next()?;
            return Ok(Expr::Integer(i64::MIN));
        }
        let is_operand =
            matches!(token.kind, Kind::Name | Kind::Integer | Kind::Number | Kind::Duration) || token.is("(");
        if !is_operand {
            return Err(ParseError::found(&token.clone(), "identifier, number, duration, ("));
        }
        match self.deeper(Self::operand)? {
            Expr::Integer(value) => Ok(Expr::Integer(value.wrapping_neg())),
            Expr::Number(value) => Ok(Expr::Number(-value)),
            Expr::Duration(value) => Ok(Expr::Duration(value.wrapping_neg())),
            other => Ok(Expr::Binary(Operator::Multiply, Box::new(Expr::Integer(-1)), Box::new(other))),
        }
    }

    fn name_or_call(&mut self, token: Token<'_>) -> Result<Expr, ParseError> {
        if self.peek()?.is("(") {
            self.next()?;
            return Ok(Expr::Call(token.text.to_ascii_lowercase(), self.arguments()?));
        }
        let mut name = token.text.into_owned();
        while self.take(".")? {
            name.push('.');
            name.push_str(&self.name()?);
        }
        let cast = self.cast("float, integer, unsigned, string, boolean, field, tag")?;
        Ok(Expr::Name(name, cast))
    }

    /// Parses the arguments of a call and the closing parenthesis.
    pub(super) fn arguments(&mut self) -> Result<Vec<Expr>, ParseError> {
        let mut arguments = Vec::new();
        if self.take(")")? {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.inner()?);
            if arguments.len() > LIST_MAX {
                return Err(ParseError::new(format!("a list has at most {LIST_MAX} items")));
            }
            if !self.take(",")? {
                self.expect(")")?;
                return Ok(arguments);
            }
        }
    }

    fn distinct(&mut self) -> Result<Expr, ParseError> {
        if self.take("(")? {
            return Ok(Expr::Call("distinct".to_owned(), self.arguments()?));
        }
        Ok(Expr::Distinct(self.name()?))
    }

    fn cast(&mut self, expected: &str) -> Result<Option<Cast>, ParseError> {
        if !self.take("::")? {
            return Ok(None);
        }
        let token = self.next()?;
        let is_allowed = |cast: &Cast| match cast {
            Cast::Field | Cast::Tag => token.kind == Kind::Keyword,
            _ => token.kind == Kind::Name && expected.starts_with("float"),
        };
        match token.text.parse::<Cast>().ok().filter(is_allowed) {
            Some(cast) => Ok(Some(cast)),
            None => Err(ParseError::found(&token, expected)),
        }
    }
}

/// The operator of a token, and its precedence: larger numbers bind more strongly.
fn operator_of(token: &Token<'_>) -> Option<(Operator, u8)> {
    if !matches!(token.kind, Kind::Keyword | Kind::Mark) {
        return None;
    }
    Some(match &*token.text {
        "OR" => (Operator::Or, 1),
        "AND" => (Operator::And, 2),
        "=" => (Operator::Equal, 3),
        "!=" => (Operator::NotEqual, 3),
        "=~" => (Operator::Matches, 3),
        "!~" => (Operator::MatchesNot, 3),
        "<" => (Operator::Less, 3),
        "<=" => (Operator::LessOrEqual, 3),
        ">" => (Operator::Greater, 3),
        ">=" => (Operator::GreaterOrEqual, 3),
        "+" => (Operator::Add, 4),
        "-" => (Operator::Subtract, 4),
        "|" => (Operator::BitOr, 4),
        "^" => (Operator::BitXor, 4),
        "*" => (Operator::Multiply, 5),
        "/" => (Operator::Divide, 5),
        "%" => (Operator::Remainder, 5),
        "&" => (Operator::BitAnd, 5),
        _ => return None,
    })
}
