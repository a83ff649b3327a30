//! One reading: its `ts`, `value` and `values`.

use std::borrow::Cow;

use super::{
    SyntaxError,
    lexer::{Kind, Lexer},
    problem::{Parsed, duplicate_key, fill, not_an_object, quoted, rejection, repeated},
};
use crate::wire::{Code, Limits, Rejection, timestamp::parse_rfc3339};

/// The fields of a reading that were read so far. Readings share the buffer `values`.
#[derive(Debug)]
pub(super) struct Reading<'b> {
    limits: Limits,
    ts_ms: Option<Parsed<Option<i64>>>,
    /// The first values, up to the limit of a reading.
    values: Vec<(Cow<'b, str>, f64)>,
    /// The number of values beyond the limit.
    surplus: usize,
    has_value_key: bool,
    has_values_key: bool,
    /// The first problem among the values.
    problem: Option<Rejection>,
}

impl<'b> Reading<'b> {
    pub(super) const fn new(limits: Limits) -> Self {
        Self {
            limits,
            ts_ms: None,
            values: Vec::new(),
            surplus: 0,
            has_value_key: false,
            has_values_key: false,
            problem: None,
        }
    }

    /// Parses an element of `readings`. Returns its kind if it is not an object.
    pub(super) fn read(&mut self, lexer: &mut Lexer<'b>) -> Result<Parsed<()>, SyntaxError> {
        let kind = lexer.kind()?;
        if kind != Kind::Object {
            lexer.skip()?;
            return Ok(Err(not_an_object(kind)));
        }
        self.clear();
        lexer.open()?;
        while let Some(key) = lexer.key()? {
            if !self.read_field(&key, lexer)? {
                lexer.skip()?;
            }
        }
        Ok(Ok(()))
    }

    /// Clears all fields.
    pub(super) fn clear(&mut self) {
        self.values.clear();
        *self = Self { values: std::mem::take(&mut self.values), ..Self::new(self.limits) };
    }

    /// Reads the value of `key` if it is a key of readings; otherwise leaves it unread and returns false.
    pub(super) fn read_field(&mut self, key: &str, lexer: &mut Lexer<'b>) -> Result<bool, SyntaxError> {
        match key {
            "ts" => fill(&mut self.ts_ms, key, read_ts(lexer)?),
            "value" => {
                self.once(key, |reading| &mut reading.has_value_key);
                self.read_value(Cow::Borrowed("value"), lexer)?;
            }
            "values" => {
                self.once(key, |reading| &mut reading.has_values_key);
                self.read_values(lexer)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether there is a `value` or `values`, valid or not.
    pub(super) const fn has_values(&self) -> bool {
        self.has_value_key || self.has_values_key
    }

    /// The instant in Unix milliseconds, or `default` if the reading has none.
    pub(super) fn ts_ms(&self, default: &Parsed<Option<i64>>) -> Parsed<Option<i64>> {
        match &self.ts_ms {
            None | Some(Ok(None)) => default.clone(),
            Some(found) => found.clone(),
        }
    }

    /// The values: at least one, and each metric once.
    pub(super) fn values(&self) -> Parsed<&[(Cow<'b, str>, f64)]> {
        if let Some(problem) = &self.problem {
            return Err(problem.clone());
        }
        self.limits.check_metrics(self.values.len() + self.surplus)?;
        if self.values.is_empty() {
            let detail =
                if self.has_values_key { "\"values\" is empty" } else { "there is no \"value\" and no \"values\"" };
            return Err(rejection(Code::MissingValues, detail));
        }
        match repeated(self.values.iter().map(|(metric, _)| &**metric)) {
            Some(metric) => Err(duplicate_key(metric)),
            None => Ok(&self.values),
        }
    }

    fn once(&mut self, key: &str, seen: impl Fn(&mut Self) -> &mut bool) {
        if std::mem::replace(seen(self), true) {
            self.problem.get_or_insert_with(|| duplicate_key(key));
        }
    }

    fn read_values(&mut self, lexer: &mut Lexer<'b>) -> Result<(), SyntaxError> {
        let kind = lexer.kind()?;
        if kind != Kind::Object {
            lexer.skip()?;
            let detail = || format!("\"values\" must be an object of metrics and numbers, found {kind}");
            self.problem.get_or_insert_with(|| rejection(Code::InvalidValue, detail()));
            return Ok(());
        }
        lexer.open()?;
        while let Some(metric) = lexer.key()? {
            self.read_value(metric, lexer)?;
        }
        Ok(())
    }

    fn read_value(&mut self, metric: Cow<'b, str>, lexer: &mut Lexer<'b>) -> Result<(), SyntaxError> {
        let kind = lexer.kind()?;
        if kind == Kind::Number {
            let number = lexer.number()?.parse().expect("every JSON number is one to Rust");
            if self.values.len() < self.limits.max_metrics {
                self.values.push((metric, number));
            } else {
                self.surplus += 1;
            }
        } else {
            lexer.skip()?;
            let detail = || format!("the value of {} must be a number, found {kind}", quoted(&metric));
            self.problem.get_or_insert_with(|| rejection(Code::InvalidValue, detail()));
        }
        Ok(())
    }
}

fn read_ts(lexer: &mut Lexer<'_>) -> Result<Parsed<Option<i64>>, SyntaxError> {
    let invalid = |detail: String| rejection(Code::InvalidTimestamp, detail);
    Ok(match lexer.kind()? {
        Kind::String => parse_rfc3339(&lexer.string()?).map(Some).map_err(|error| invalid(error.to_string())),
        Kind::Number => unix_ms(lexer.number()?)
            .map(Some)
            .ok_or_else(|| invalid("a \"ts\" that is a number must be whole Unix milliseconds".to_owned())),
        Kind::Null => {
            lexer.skip()?;
            Ok(None)
        }
        kind => {
            lexer.skip()?;
            Err(invalid(format!("\"ts\" must be an RFC 3339 string or Unix milliseconds, found {kind}")))
        }
    })
}

/// The largest time that may be written as a float, 2^53: up to there a float holds every millisecond.
fn unix_ms(number: &str) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    number.parse().ok().or_else(|| {
        let float: f64 = number.parse().ok()?;
        (float.fract() == 0.0 && float.abs() <= EXACT).then_some(float as i64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_milliseconds_are_whole_in_every_notation() {
        for (number, ms) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("-1", Some(-1)),
            ("1776693610000", Some(1_776_693_610_000)),
            ("1776693610000.0", Some(1_776_693_610_000)),
            ("1.77669361e12", Some(1_776_693_610_000)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("1776693610000.5", None),
            ("1e-3", None),
            ("1e300", None),
            ("1e999", None),
        ] {
            assert_eq!(unix_ms(number), ms, "{number}");
        }
    }
}
