//! `SELECT` and its clauses.

use super::super::ast::{Column, Expr, Fill, From, Limit, Measurement, MeasurementName, Select};
use super::super::error::ParseError;
use super::super::lexer::{Kind, needs_quotes};
use super::super::zone;
use super::Parser;

/// The most parts in the name of a measurement: database, retention policy, name.
const NAME_PARTS_MAX: usize = 3;

impl Parser<'_> {
    /// Parses a `SELECT` after its keyword.
    pub(super) fn select(&mut self) -> Result<Select, ParseError> {
        self.deeper(Self::select_clauses)
    }

    fn select_clauses(&mut self) -> Result<Select, ParseError> {
        let columns = self.list(Self::column)?;
        let has_into = self.take("INTO")?;
        if has_into {
            self.target()?;
        }
        self.expect("FROM")?;
        let from = self.list(Self::source)?;
        let condition = self.condition()?;
        let dimensions = self.dimensions()?;
        let fill = self.fill()?;
        let is_descending = self.order()?;
        let limit = self.limit()?;
        let zone = match self.call_named("tz")?.as_deref() {
            None => None,
            Some([Expr::Text(name)]) => {
                let unknown = || ParseError::new(format!("unable to find time zone {name}"));
                Some(zone::find(name).ok_or_else(unknown)?)
            }
            Some([_]) => return Err(ParseError::new("expected string argument in tz()")),
            Some(_) => return Err(ParseError::new("tz requires exactly one argument")),
        };
        Ok(Select { columns, from, condition, dimensions, fill, is_descending, limit, zone, has_into })
    }

    fn column(&mut self) -> Result<Column, ParseError> {
        let expr = self.expr()?;
        let alias = if self.take("AS")? { Some(self.name()?) } else { None };
        Ok(Column { expr, alias })
    }

    fn target(&mut self) -> Result<(), ParseError> {
        self.name()?;
        while self.take(".")? {
            if self.take(":")? {
                self.expect("MEASUREMENT")?;
            } else if !self.peek()?.is(".") {
                self.name()?;
            }
        }
        Ok(())
    }

    fn source(&mut self) -> Result<From, ParseError> {
        if self.take("(")? {
            self.expect("SELECT")?;
            let select = self.select()?;
            self.expect(")")?;
            return Ok(From::Subquery(Box::new(select)));
        }
        Ok(From::Measurement(self.measurement()?))
    }

    /// Parses `name`, `policy.name`, `database.policy.name` or `database..name`.
    ///
    /// The database has no meaning.
    pub(super) fn measurement(&mut self) -> Result<Measurement, ParseError> {
        let mut parts = Vec::new();
        let name = loop {
            if let Some(pattern) = self.regex()? {
                break MeasurementName::Regex(pattern);
            }
            if !parts.is_empty() && self.peek()?.is(".") {
                parts.push(String::new());
            } else {
                parts.push(self.name()?);
            }
            if !self.take(".")? {
                match parts.pop() {
                    Some(name) if parts.len() < NAME_PARTS_MAX => break MeasurementName::Name(name),
                    last => return Err(too_many_parts(&parts, &last.unwrap_or_default())),
                }
            }
        };
        let retention_policy = parts.pop().filter(|part| !part.is_empty());
        Ok(Measurement { retention_policy, name })
    }

    /// Parses `FROM` and its measurements, if `FROM` is next.
    pub(super) fn measurements_after_from(&mut self) -> Result<Vec<Measurement>, ParseError> {
        if self.take("FROM")? { self.list(Self::measurement) } else { Ok(Vec::new()) }
    }

    /// Parses `WHERE` and its condition, if `WHERE` is next.
    pub(super) fn condition(&mut self) -> Result<Option<Expr>, ParseError> {
        if self.take("WHERE")? { self.expr().map(Some) } else { Ok(None) }
    }

    fn dimensions(&mut self) -> Result<Vec<Expr>, ParseError> {
        if !self.take("GROUP")? {
            return Ok(Vec::new());
        }
        self.expect("BY")?;
        self.list(Self::expr)
    }

    fn fill(&mut self) -> Result<Fill, ParseError> {
        let Some(arguments) = self.call_named("fill")? else { return Ok(Fill::Null) };
        let [argument] = &*arguments else {
            return Err(ParseError::new("fill requires an argument, e.g.: 0, null, none, previous, linear"));
        };
        match argument {
            Expr::Name(name, _) if name == "null" => Ok(Fill::Null),
            Expr::Name(name, _) if name == "none" => Ok(Fill::None),
            Expr::Name(name, _) if name == "previous" => Ok(Fill::Previous),
            Expr::Name(name, _) if name == "linear" => Ok(Fill::Linear),
            Expr::Integer(value) => Ok(Fill::Number(*value as f64)),
            Expr::Number(value) => Ok(Fill::Number(*value)),
            _ => Err(ParseError::new("expected number argument in fill()")),
        }
    }

    /// Parses a call of `function`, such as `fill(0)`, if it is next.
    ///
    /// Returns the arguments.
    fn call_named(&mut self, function: &str) -> Result<Option<Vec<Expr>>, ParseError> {
        let token = self.peek()?;
        if token.kind != Kind::Name || !token.text.eq_ignore_ascii_case(function) {
            return Ok(None);
        }
        self.next()?;
        self.expect("(")?;
        self.arguments().map(Some)
    }

    /// Parses `ORDER BY time`, and returns whether the order is descending.
    pub(super) fn order(&mut self) -> Result<bool, ParseError> {
        const ONLY_TIME: &str = "only ORDER BY time supported at this time";
        if !self.take("ORDER")? {
            return Ok(false);
        }
        self.expect("BY")?;
        let token = self.next()?;
        let is_descending = match token.kind {
            Kind::Keyword if token.text == "DESC" => true,
            Kind::Keyword if token.text == "ASC" => false,
            Kind::Name if token.text == "time" => {
                let is_descending = self.take("DESC")?;
                if !is_descending {
                    self.take("ASC")?;
                }
                is_descending
            }
            Kind::Name => return Err(ParseError::new(ONLY_TIME)),
            _ => return Err(ParseError::found(&token, "identifier, ASC, DESC")),
        };
        if self.peek()?.is(",") {
            return Err(ParseError::new(ONLY_TIME));
        }
        Ok(is_descending)
    }

    /// Parses `LIMIT`, `OFFSET`, `SLIMIT` and `SOFFSET`, in this order.
    pub(super) fn limit(&mut self) -> Result<Limit, ParseError> {
        Ok(Limit {
            rows: self.integer_after("LIMIT")?,
            skip_rows: self.integer_after("OFFSET")?,
            series: self.integer_after("SLIMIT")?,
            skip_series: self.integer_after("SOFFSET")?,
        })
    }
}

fn too_many_parts(parts: &[String], last: &str) -> ParseError {
    let quoted: Vec<_> = parts.iter().map(|part| format!("\"{part}\"")).collect();
    let last = if needs_quotes(last) { format!("\"{last}\"") } else { last.to_owned() };
    ParseError::new(format!("too many segments in {}.{last} at line 1, char 1", quoted.join(".")))
}
