//! Writes expressions as text, for error messages and column names, and tags.

use std::fmt;
use std::sync::Arc;

use super::ast::{Expr, Operator};
use super::duration;
use super::lexer::needs_quotes;
use crate::model::series::append_escaped;

impl Operator {
    /// The operator as it is written in a query.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Or => "OR",
            Self::And => "AND",
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Matches => "=~",
            Self::MatchesNot => "!~",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Add => "+",
            Self::Subtract => "-",
            Self::BitOr => "|",
            Self::BitXor => "^",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
            Self::BitAnd => "&",
        }
    }
}

impl Expr {
    /// The kind of the expression, as the error messages of InfluxDB name it.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Name(..) => "*influxql.VarRef",
            Self::Call(..) => "*influxql.Call",
            Self::Binary(..) | Self::Logic(..) => "*influxql.BinaryExpr",
            Self::Group(_) => "*influxql.ParenExpr",
            Self::Integer(_) => "*influxql.IntegerLiteral",
            Self::Number(_) => "*influxql.NumberLiteral",
            Self::Text(_) => "*influxql.StringLiteral",
            Self::Boolean(_) => "*influxql.BooleanLiteral",
            Self::Duration(_) => "*influxql.DurationLiteral",
            Self::Regex(_) => "*influxql.RegexLiteral",
            Self::Wildcard(_) => "*influxql.Wildcard",
            Self::Distinct(_) => "*influxql.Distinct",
        }
    }

    /// The name of a column without an alias: its field or function, such as `mean`.
    ///
    /// An operation has the names of its operands: `a_b` for `a + b`.
    pub(super) fn column_name(&self) -> String {
        match self {
            Self::Name(name, _) | Self::Call(name, _) => name.clone(),
            Self::Distinct(_) => "distinct".to_owned(),
            Self::Group(inner) => inner.column_name(),
            Self::Binary(_, left, right) => {
                let names = [left.column_name(), right.column_name()];
                names.iter().filter(|name| !name.is_empty()).cloned().collect::<Vec<_>>().join("_")
            }
            _ => String::new(),
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name, cast) => {
                if needs_quotes(name) {
                    write!(f, "\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))?;
                } else {
                    f.write_str(name)?;
                }
                cast.map_or(Ok(()), |cast| write!(f, "::{cast}"))
            }
            Self::Call(name, arguments) => {
                write!(f, "{name}(")?;
                for (at, argument) in arguments.iter().enumerate() {
                    write!(f, "{}{argument}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str(")")
            }
            Self::Binary(operator, left, right) => write!(f, "{left} {} {right}", operator.text()),
            Self::Logic(operator, operands) => {
                for (at, operand) in operands.iter().enumerate() {
                    if at > 0 {
                        write!(f, " {} ", operator.text())?;
                    }
                    write!(f, "{operand}")?;
                }
                Ok(())
            }
            Self::Group(inner) => write!(f, "({inner})"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value:.3}"),
            Self::Text(text) => write!(f, "'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
            Self::Boolean(value) => write!(f, "{value}"),
            Self::Duration(ns) => f.write_str(&duration::format(*ns)),
            Self::Regex(pattern) => write!(f, "{pattern}"),
            Self::Wildcard(None) => f.write_str("*"),
            Self::Wildcard(Some(cast)) => write!(f, "*::{cast}"),
            Self::Distinct(name) => write!(f, "DISTINCT {name}"),
        }
    }
}

/// Tags as line protocol writes them: `key=value,key=value`.
pub(super) fn tags_text(tags: &[(Arc<str>, Arc<str>)]) -> String {
    let part = |text: &str| escaped(text, b", =");
    tags.iter().map(|(key, value)| format!("{}={}", part(key), part(value))).collect::<Vec<_>>().join(",")
}

/// Puts a backslash before each special character. `special` are ASCII characters.
pub(super) fn escaped(text: &str, special: &[u8]) -> String {
    let mut escaped = String::with_capacity(text.len());
    append_escaped(&mut escaped, text, |byte| special.contains(&byte));
    escaped
}
