//! The steps that rollups may have.

use std::fmt;
use std::str::FromStr;

use crate::model::MS_PER_HOUR;

/// The milliseconds of a minute.
const MS_PER_MINUTE: i64 = 60_000;
/// The milliseconds of a day in UTC.
pub(super) const MS_PER_DAY: i64 = 24 * MS_PER_HOUR;

/// The mean length of a month in the Gregorian calendar, in milliseconds.
const MS_PER_MONTH: i64 = 2_629_746_000;

/// The milliseconds of a February.
const SHORTEST_MONTH_MS: i64 = 28 * MS_PER_DAY;

/// A step of rollups: a length of time by the local clock or calendar. A step of less than a day divides an
/// hour or a day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub(super) unit: Unit,
    /// The offset: how much later each step begins by the local clock.
    pub(super) offset_ms: i64,
}

/// The length of a step without its offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Minutes(u8),
    Hours(u8),
    Day,
    Week,
    Months(u8),
}

/// All steps, ascending.
const STEPS: [(&str, Unit); 23] = [
    ("1m", Unit::Minutes(1)),
    ("2m", Unit::Minutes(2)),
    ("3m", Unit::Minutes(3)),
    ("4m", Unit::Minutes(4)),
    ("5m", Unit::Minutes(5)),
    ("6m", Unit::Minutes(6)),
    ("10m", Unit::Minutes(10)),
    ("12m", Unit::Minutes(12)),
    ("15m", Unit::Minutes(15)),
    ("20m", Unit::Minutes(20)),
    ("30m", Unit::Minutes(30)),
    ("1h", Unit::Hours(1)),
    ("2h", Unit::Hours(2)),
    ("3h", Unit::Hours(3)),
    ("4h", Unit::Hours(4)),
    ("6h", Unit::Hours(6)),
    ("8h", Unit::Hours(8)),
    ("12h", Unit::Hours(12)),
    ("1d", Unit::Day),
    ("1w", Unit::Week),
    ("1mo", Unit::Months(1)),
    ("3mo", Unit::Months(3)),
    ("1y", Unit::Months(12)),
];

/// The units that a text may have, with their usual milliseconds.
const UNITS: [(&str, i64); 8] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", MS_PER_MINUTE),
    ("h", MS_PER_HOUR),
    ("d", MS_PER_DAY),
    ("w", 7 * MS_PER_DAY),
    ("mo", MS_PER_MONTH),
    ("y", 12 * MS_PER_MONTH),
];

/// Why a text is no [`Step`], and which steps there are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The text is a length of time, but rollups have no such step.
    #[error("is no step of rollups; the nearest are {0}")]
    NoStep(String),
    /// The text is no length of time.
    #[error("expected one of {}", STEPS.map(|(text, _)| text).join(", "))]
    NoLength,
}

/// Why a step cannot have an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OffsetError {
    /// The offset is not below the step.
    #[error("must be less than the step, {0}")]
    Step(Step),
    /// The offset is not below the shortest month.
    #[error("must be less than 28 days, the shortest month")]
    Month,
    /// The offset is no number of minutes.
    #[error("must be whole minutes")]
    Minutes,
}

impl FromStr for Step {
    type Err = StepError;

    fn from_str(text: &str) -> Result<Self, StepError> {
        let text = if text == "24h" { "1d" } else { text };
        if let Some((_, unit)) = STEPS.iter().find(|(name, _)| *name == text) {
            return Ok(Self::of(*unit));
        }
        let digits = text.find(|letter: char| !letter.is_ascii_digit()).ok_or(StepError::NoLength)?;
        let (number, unit) = text.split_at(digits);
        let number: i64 = number.parse().map_err(|_| StepError::NoLength)?;
        let (_, ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or(StepError::NoLength)?;
        let ms = ms.saturating_mul(number);
        let longer = STEPS.partition_point(|(_, unit)| unit.usual_ms() < ms);
        let near = STEPS.iter().skip(longer.saturating_sub(1)).take(if longer == 0 { 1 } else { 2 });
        Err(StepError::NoStep(near.map(|(text, _)| *text).collect::<Vec<_>>().join(" and ")))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = STEPS.iter().find(|(_, unit)| *unit == self.unit).map_or("", |(text, _)| *text);
        f.write_str(text)
    }
}

impl Step {
    /// The texts of all steps, ascending.
    pub fn names() -> impl Iterator<Item = &'static str> {
        STEPS.iter().map(|(name, _)| *name)
    }

    /// One hour.
    pub const HOUR: Self = Self::of(Unit::Hours(1));

    const fn of(unit: Unit) -> Self {
        Self { unit, offset_ms: 0 }
    }

    /// Returns the step with an offset by the local clock.
    ///
    /// Shifts of eight hours that begin at 6:00 have an offset of six hours.
    ///
    /// # Errors
    /// If the offset is negative, not below the step or the shortest month, or no number of minutes.
    pub const fn beginning_later(self, offset_ms: i64) -> Result<Self, OffsetError> {
        match self.unit {
            Unit::Months(_) if offset_ms >= SHORTEST_MONTH_MS => Err(OffsetError::Month),
            _ if offset_ms >= self.usual_ms() || offset_ms < 0 => Err(OffsetError::Step(self)),
            _ if offset_ms % MS_PER_MINUTE != 0 => Err(OffsetError::Minutes),
            unit => Ok(Self { unit, offset_ms }),
        }
    }

    /// Returns the usual length of the step, in milliseconds. It ignores changes of the local clock, and
    /// months have their mean length.
    pub(super) const fn usual_ms(self) -> i64 {
        self.unit.usual_ms()
    }

    /// Returns the length of the default range, in milliseconds.
    ///
    /// It has 60 steps of minutes, 30 steps of a day, or 24 steps of hours, weeks or months.
    pub(super) const fn default_range_ms(self) -> i64 {
        let steps = match self.unit {
            Unit::Minutes(_) => 60,
            Unit::Day => 30,
            Unit::Hours(_) | Unit::Week | Unit::Months(_) => 24,
        };
        steps * self.usual_ms()
    }

    /// Returns the shortest step with which a range has at most `max` points.
    ///
    /// With this step, the range has `points` points. `None`: no step is long enough.
    pub(super) fn with_fewer_points(self, points: usize, max: usize) -> Option<Self> {
        let fits = |step: &Self| points as f64 * self.usual_ms() as f64 <= max as f64 * step.usual_ms() as f64;
        STEPS.iter().map(|(_, unit)| Self::of(*unit)).find(fits)
    }
}

impl Unit {
    pub(super) const fn usual_ms(self) -> i64 {
        match self {
            Self::Minutes(minutes) => minutes as i64 * MS_PER_MINUTE,
            Self::Hours(hours) => hours as i64 * MS_PER_HOUR,
            Self::Day => MS_PER_DAY,
            Self::Week => 7 * MS_PER_DAY,
            Self::Months(months) => months as i64 * MS_PER_MONTH,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_its_text_and_they_ascend() {
        for (text, unit) in STEPS {
            assert_eq!(text.parse(), Ok(Step::of(unit)));
            assert_eq!(Step::of(unit).to_string(), text);
        }
        assert!(STEPS.is_sorted_by(|(_, a), (_, b)| a.usual_ms() < b.usual_ms()));
        assert_eq!("24h".parse(), Ok(Step::of(Unit::Day)));
    }

    #[test]
    fn another_length_is_refused_with_the_nearest_steps() {
        for (text, near) in [
            ("7m", "6m and 10m"),
            ("60m", "30m and 1h"),
            ("5h", "4h and 6h"),
            ("36h", "1d and 1w"),
            ("30s", "1m"),
            ("0h", "1m"),
            ("2mo", "1mo and 3mo"),
            ("99999999999999y", "1y"),
        ] {
            let refused = text.parse::<Step>().expect_err(text);
            assert_eq!(refused, StepError::NoStep(near.to_owned()), "{text}");
        }
        for text in ["", "5", "h", "banana", "-1h", "1.5h", "1 h", "99999999999999999999h", "1H", "１h"] {
            assert_eq!(text.parse::<Step>(), Err(StepError::NoLength), "{text}");
        }
    }

    #[test]
    fn an_offset_is_below_its_step() {
        let later = |step: &str, offset_ms| step.parse::<Step>().unwrap().beginning_later(offset_ms);
        let (hour, day) = (MS_PER_HOUR, MS_PER_DAY);
        for (step, below) in
            [("15m", hour / 4), ("1h", hour), ("8h", 8 * hour), ("1d", day), ("1w", 7 * day), ("1mo", 28 * day)]
        {
            assert_eq!(later(step, 0), step.parse().map_err(|_| OffsetError::Minutes));
            assert_eq!(later(step, below - MS_PER_MINUTE).expect(step).to_string(), step);
            assert!(later(step, below).is_err() && later(step, -hour).is_err() && later(step, 1).is_err(), "{step}");
        }
        assert_eq!(later("8h", 22 * hour).expect_err("too long").to_string(), "must be less than the step, 8h");
        assert_eq!(later("1y", 28 * day), Err(OffsetError::Month));
        assert_eq!(later("8h", 30_000), Err(OffsetError::Minutes));
    }

    #[test]
    fn a_longer_step_makes_fewer_points() {
        assert_eq!(Step::of(Unit::Minutes(1)).with_fewer_points(129_600, 100_000), Some(Step::of(Unit::Minutes(2))));
        assert_eq!(Step::HOUR.with_fewer_points(usize::MAX, 1), None);
    }
}
