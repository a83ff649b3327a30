//! The errors of a query.

use super::lexer::{Position, Token};

/// A query that does not follow the grammar, or exceeds a limit of the parser.
///
/// The whole request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("error parsing query: {0}")]
pub struct ParseError(String);

impl ParseError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    pub(super) fn at(message: &str, Position { line, char }: Position) -> Self {
        Self(format!("{message} at line {line}, char {char}"))
    }

    pub(super) fn found(token: &Token<'_>, expected: &str) -> Self {
        Self::at(&format!("found {}, expected {expected}", token.text), token.position)
    }
}

/// Why a statement cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StatementError(String);

impl StatementError {
    /// The error of the statements after one that failed: they are not executed.
    #[must_use]
    pub fn not_executed() -> Self {
        Self("not executed".to_owned())
    }

    /// An error with this text.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl<M: Into<String>> From<M> for StatementError {
    fn from(message: M) -> Self {
        Self::new(message)
    }
}
