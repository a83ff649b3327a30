//! The statements of a query as a syntax tree, which the parser makes.

use std::collections::BTreeSet;

use strum::{Display, EnumString};

use super::regex::Pattern;

/// An operator between two expressions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `OR`
    Or,
    /// `AND`
    And,
    /// `=`
    Equal,
    /// `!=` or `<>`
    NotEqual,
    /// `=~`
    Matches,
    /// `!~`
    MatchesNot,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `|`
    BitOr,
    /// `^`
    BitXor,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Remainder,
    /// `&`
    BitAnd,
}

/// The cast after a name or a wildcard, such as `tag` in `host::tag`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Display, EnumString)]
#[strum(serialize_all = "lowercase", ascii_case_insensitive)]
pub enum Cast {
    /// `::field`
    Field,
    /// `::tag`
    Tag,
    /// `::float`
    Float,
    /// `::integer`
    Integer,
    /// `::unsigned`
    Unsigned,
    /// `::string`
    #[strum(serialize = "string")]
    Text,
    /// `::boolean`
    Boolean,
}

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// The name of a field, a tag, or a column of a subquery, with its cast.
    Name(String, Option<Cast>),
    /// A function call: the name in lower case, and the arguments.
    Call(String, Vec<Expr>),
    /// An operator other than `AND` and `OR`, with its two operands.
    Binary(Operator, Box<Expr>, Box<Expr>),
    /// Two or more operands joined by `AND` or by `OR`.
    Logic(Operator, Vec<Expr>),
    /// An expression in parentheses.
    Group(Box<Expr>),
    /// An integer.
    Integer(i64),
    /// A number with a point.
    Number(f64),
    /// A text in single quotes.
    Text(String),
    /// `true` or `false`.
    Boolean(bool),
    /// A duration, in nanoseconds.
    Duration(i64),
    /// A regular expression.
    Regex(Pattern),
    /// `*`, `*::field` or `*::tag`.
    Wildcard(Option<Cast>),
    /// `DISTINCT name`.
    Distinct(String),
}

/// One column of a `SELECT`.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// The expression.
    pub expr: Expr,
    /// The name after `AS`.
    pub alias: Option<String>,
}

/// The name of a measurement, or a pattern of names.
#[derive(Debug, Clone, PartialEq)]
pub enum MeasurementName {
    /// The measurement with this name.
    Name(String),
    /// All measurements whose names match.
    Regex(Pattern),
}

/// A measurement in `FROM`.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// The retention policy, if the query names one.
    pub retention_policy: Option<String>,
    /// The name of the measurement, or a pattern of names.
    pub name: MeasurementName,
}

/// A source of a `SELECT`.
#[derive(Debug, Clone, PartialEq)]
pub enum From {
    /// One measurement, or all that match a pattern.
    Measurement(Measurement),
    /// The rows of another `SELECT`.
    Subquery(Box<Select>),
}

/// `fill(...)`: the values of windows without points.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Fill {
    /// `fill(null)`
    #[default]
    Null,
    /// `fill(none)`: no row.
    None,
    /// `fill(previous)`
    Previous,
    /// `fill(linear)`
    Linear,
    /// `fill(0)`: this number.
    Number(f64),
}

/// `LIMIT`, `OFFSET`, `SLIMIT` and `SOFFSET`. 0: no limit, or nothing to skip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limit {
    /// `LIMIT`: the most rows of each series.
    pub rows: usize,
    /// `OFFSET`: the rows to skip in each series.
    pub skip_rows: usize,
    /// `SLIMIT`: the most series.
    pub series: usize,
    /// `SOFFSET`: the series to skip.
    pub skip_series: usize,
}

impl Limit {
    /// Returns the rows that `OFFSET` and `LIMIT` leave of a series.
    pub fn of_rows<T>(self, rows: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        rows.into_iter().skip(self.skip_rows).take(if self.rows == 0 { usize::MAX } else { self.rows })
    }
}

/// A `SELECT`.
#[derive(Debug, Clone, PartialEq)]
pub struct Select {
    /// The columns.
    pub columns: Vec<Column>,
    /// `FROM`
    pub from: Vec<From>,
    /// `WHERE`
    pub condition: Option<Expr>,
    /// `GROUP BY`
    pub dimensions: Vec<Expr>,
    /// `fill(...)`
    pub fill: Fill,
    /// `ORDER BY time DESC`
    pub is_descending: bool,
    /// `LIMIT`, `OFFSET`, `SLIMIT` and `SOFFSET`
    pub limit: Limit,
    /// `tz(...)`: the time zone of windows and times.
    pub zone: Option<jiff::tz::TimeZone>,
    /// Whether the statement has `INTO`. Then its answer is an error.
    pub has_into: bool,
}

/// The subject of a `SHOW`.
#[derive(Debug, Clone, PartialEq)]
pub enum Shown {
    /// `SHOW DATABASES`
    Databases,
    /// `SHOW RETENTION POLICIES`
    RetentionPolicies,
    /// `SHOW MEASUREMENTS`
    Measurements,
    /// `SHOW TAG KEYS`
    TagKeys,
    /// `SHOW TAG VALUES`, of the keys after `WITH KEY`.
    TagValues(Keys),
    /// `SHOW FIELD KEYS`
    FieldKeys,
    /// `SHOW SERIES`
    Series,
    /// `SHOW SERIES CARDINALITY`
    SeriesCardinality {
        /// Whether the statement has `EXACT`.
        is_exact: bool,
    },
    /// `SHOW MEASUREMENT CARDINALITY`
    MeasurementCardinality {
        /// Whether the statement has `EXACT`.
        is_exact: bool,
    },
    /// `SHOW TAG KEY CARDINALITY`
    TagKeyCardinality,
    /// `SHOW TAG VALUES CARDINALITY`
    TagValueCardinality(Keys),
    /// `SHOW FIELD KEY CARDINALITY`
    FieldKeyCardinality,
}

/// The keys of `SHOW TAG VALUES`.
#[derive(Debug, Clone, PartialEq)]
pub enum Keys {
    /// `WITH KEY = a` and `WITH KEY IN (a, b)`
    In(BTreeSet<String>),
    /// `WITH KEY != a`
    Not(String),
    /// `WITH KEY =~ /a/`
    Matching(Pattern),
    /// `WITH KEY !~ /a/`
    NotMatching(Pattern),
}

/// A `SHOW`.
#[derive(Debug, Clone, PartialEq)]
pub struct Show {
    /// The subject of the statement.
    pub shown: Shown,
    /// `FROM`, or `WITH MEASUREMENT`.
    pub from: Vec<Measurement>,
    /// `WHERE`
    pub condition: Option<Expr>,
    /// `LIMIT` and `OFFSET`
    pub limit: Limit,
}

/// A statement.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// `SELECT`
    Select(Box<Select>),
    /// `SHOW`
    Show(Box<Show>),
    /// `CREATE DATABASE`, which succeeds and does nothing.
    CreateDatabase,
    /// An unsupported statement, by its first words, such as `DROP MEASUREMENT`.
    Unsupported(String),
}
