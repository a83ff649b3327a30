//! Times in conditions, and the range of time that a condition allows.

use std::ops::Range;

use jiff::civil::{Date, date};
use jiff::tz::TimeZone;

use super::ast::{Expr, Operator};
use super::error::StatementError;

pub(super) const NS_PER_MS: i64 = 1_000_000;

/// The earliest instant, in Unix nanoseconds.
///
/// A range without a lower bound begins here.
pub(super) const MIN_NS: i64 = i64::MIN + 2;
/// The latest instant, in Unix nanoseconds.
///
/// A range without an upper bound ends here.
pub(super) const MAX_NS: i64 = i64::MAX - 1;

/// A range of instants, in Unix nanoseconds. Both bounds are included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TimeRange {
    pub(super) min: i64,
    pub(super) max: i64,
}

impl TimeRange {
    pub(super) const ALL: Self = Self { min: MIN_NS, max: MAX_NS };

    pub(super) fn intersect(self, other: Self) -> Self {
        Self { min: self.min.max(other.min), max: self.max.min(other.max) }
    }

    pub(super) const fn is_empty(self) -> bool {
        self.min > self.max
    }

    pub(super) const fn has_min(self) -> bool {
        self.min != MIN_NS
    }

    pub(super) const fn has_max(self) -> bool {
        self.max != MAX_NS
    }

    /// The whole milliseconds in the range, half-open.
    ///
    /// A side without a bound is `i64::MIN` or `i64::MAX`.
    pub(super) const fn to_ms(self) -> Range<i64> {
        let start = if self.has_min() { -(-self.min).div_euclid(NS_PER_MS) } else { i64::MIN };
        let end = if self.has_max() { self.max.div_euclid(NS_PER_MS) + 1 } else { i64::MAX };
        start..end
    }
}

/// Splits a condition into the rest without `time`, and a range of time.
///
/// All comparisons with `time` narrow the range, also those below an `OR`.
pub(super) fn split(
    condition: &Expr,
    now_ns: i64,
    zone: &TimeZone,
) -> Result<(Option<Expr>, TimeRange), StatementError> {
    let mut range = TimeRange::ALL;
    let rest = without_time(condition, &mut range, now_ns, zone)?;
    Ok((rest, range))
}

fn without_time(
    condition: &Expr,
    range: &mut TimeRange,
    now_ns: i64,
    zone: &TimeZone,
) -> Result<Option<Expr>, StatementError> {
    match condition {
        Expr::Logic(operator, operands) => {
            let mut kept = Vec::new();
            for operand in operands {
                kept.extend(without_time(operand, range, now_ns, zone)?);
            }
            Ok(if kept.len() > 1 { Some(Expr::Logic(*operator, kept)) } else { kept.pop() })
        }
        Expr::Group(inner) => Ok(without_time(inner, range, now_ns, zone)?.map(|inner| Expr::Group(Box::new(inner)))),
        Expr::Binary(operator, left, right) => {
            if is_time(left) {
                *range = range.intersect(compared(*operator, instant(right, now_ns, zone)?)?);
                Ok(None)
            } else if is_time(right) {
                *range = range.intersect(compared(mirrored(*operator), instant(left, now_ns, zone)?)?);
                Ok(None)
            } else {
                Ok(Some(condition.clone()))
            }
        }
        other => Ok(Some(other.clone())),
    }
}

fn is_time(expr: &Expr) -> bool {
    matches!(expr, Expr::Name(name, _) if name.eq_ignore_ascii_case("time"))
}

const fn mirrored(operator: Operator) -> Operator {
    match operator {
        Operator::Less => Operator::Greater,
        Operator::LessOrEqual => Operator::GreaterOrEqual,
        Operator::Greater => Operator::Less,
        Operator::GreaterOrEqual => Operator::LessOrEqual,
        other => other,
    }
}

fn compared(operator: Operator, at: i64) -> Result<TimeRange, StatementError> {
    let all = TimeRange::ALL;
    let at = at.clamp(MIN_NS + 1, MAX_NS - 1);
    Ok(match operator {
        Operator::Equal => TimeRange { min: at, max: at },
        Operator::Less => TimeRange { max: at - 1, ..all },
        Operator::LessOrEqual => TimeRange { max: at, ..all },
        Operator::Greater => TimeRange { min: at + 1, ..all },
        Operator::GreaterOrEqual => TimeRange { min: at, ..all },
        other => return Err(format!("invalid time comparison operator: {}", other.text()).into()),
    })
}

/// Returns the instant that an expression means, in Unix nanoseconds.
fn instant(expr: &Expr, now_ns: i64, zone: &TimeZone) -> Result<i64, StatementError> {
    evaluated(expr, now_ns, zone).ok_or_else(|| match expr {
        Expr::Text(text) if begins_with_date(text) => why_no_time(text).into(),
        _ => format!("invalid operation: time and {} are not compatible", expr.kind()).into(),
    })
}

/// Whether a text begins as times do, such as `2026-03-28`.
fn begins_with_date(text: &str) -> bool {
    let is_part = |(at, byte): (usize, u8)| if at == 4 || at == 7 { byte == b'-' } else { byte.is_ascii_digit() };
    text.get(..10).is_some_and(|start| start.bytes().enumerate().all(is_part))
}

/// Says why a text that begins with a date is no time.
fn why_no_time(text: &str) -> String {
    const FIRST: Date = date(1677, 9, 21);
    const LAST: Date = date(2262, 4, 11);
    let start = &text[..10];
    let beyond = |how: &str| format!("time {start} {how} time literal: times are between {FIRST} and {LAST}");
    match start.parse::<Date>() {
        Ok(day) if day <= FIRST => beyond("underflows"),
        Ok(day) if day >= LAST => beyond("overflows"),
        _ => "invalid timestamp string: a time is 2026-03-28, 2026-03-28 01:02:03.5 or RFC 3339 with an offset, such \
              as 2026-03-28T01:02:03Z"
            .to_owned(),
    }
}

fn evaluated(expr: &Expr, now_ns: i64, zone: &TimeZone) -> Option<i64> {
    match expr {
        Expr::Integer(ns) | Expr::Duration(ns) => Some(*ns),
        Expr::Number(ns) => Some(*ns as i64),
        Expr::Text(text) => parse(text, zone),
        Expr::Group(inner) => evaluated(inner, now_ns, zone),
        Expr::Call(name, arguments) if name == "now" && arguments.is_empty() => Some(now_ns),
        Expr::Binary(operator, left, right) => {
            let (left, right) = (evaluated(left, now_ns, zone)?, evaluated(right, now_ns, zone)?);
            match operator {
                Operator::Add => Some(left.saturating_add(right)),
                Operator::Subtract => Some(left.saturating_sub(right)),
                Operator::Multiply => Some(left.saturating_mul(right)),
                Operator::Divide => left.checked_div(right),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Parses a time, and returns it in Unix nanoseconds.
///
/// The text is RFC 3339, or `2026-03-28 01:02:03.5` or `2026-03-28` in the local time of `zone`.
pub(super) fn parse(text: &str, zone: &TimeZone) -> Option<i64> {
    let is_plain = text.is_ascii() && text.len() >= "2026-03-28".len() && text.as_bytes()[4] == b'-';
    if !is_plain {
        return None;
    }
    if text.contains(['T', 't']) && !text[10..].contains(' ') {
        return i64::try_from(text.parse::<jiff::Timestamp>().ok()?.as_nanosecond()).ok();
    }
    let local = match text.split_once(' ') {
        Some((date, time)) => date.parse::<Date>().ok()?.to_datetime(time.parse().ok()?),
        None => text.parse::<Date>().ok()?.to_datetime(jiff::civil::Time::midnight()),
    };
    let timestamp = zone.to_ambiguous_timestamp(local).compatible().ok()?;
    i64::try_from(timestamp.as_nanosecond()).ok()
}
