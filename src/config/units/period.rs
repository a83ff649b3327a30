//! Lengths of time, such as `"1h30m"`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use super::{UnitError, number_and_unit};
use crate::config::text::read_text;

/// A length of time in whole milliseconds, at most [`Period::MAX`].
///
/// The configuration writes numbers with units: `"1h30m"`. The units are ms, s, m, h, d, w (7 days) and y
/// (365 days), each at most once and larger units first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period {
    ms: u64,
}

const PERIOD_EXPECTED: UnitError = UnitError(
    "a duration such as \"100ms\", \"60s\", \"1h30m\", \"90d\", \"2w\" or \"1y\" (whole numbers, larger units first; a \
     year is 365d), at most 24855d",
);

/// The units of a period with their lengths in milliseconds, larger units first.
const PERIOD_UNITS: [(u64, &str); 7] = [
    (365 * 86_400_000, "y"),
    (7 * 86_400_000, "w"),
    (86_400_000, "d"),
    (3_600_000, "h"),
    (60_000, "m"),
    (1_000, "s"),
    (1, "ms"),
];

/// How many units at the start of the list `Display` does not write: y and w.
///
/// A year of 365 days is not a calendar year, so a printed period has days instead.
const READ_ONLY_UNITS: usize = 2;

impl Period {
    /// The longest period: 24,855 days (68 years), as for a TTL index of MongoDB.
    pub const MAX: Self = Self::days(24_855);

    /// A period in milliseconds.
    #[must_use]
    pub const fn millis(count: u64) -> Self {
        Self { ms: count }
    }

    /// A period in seconds.
    #[must_use]
    pub const fn secs(count: u64) -> Self {
        Self::millis(count * 1_000)
    }

    /// A period in minutes.
    #[must_use]
    pub const fn minutes(count: u64) -> Self {
        Self::secs(count * 60)
    }

    /// A period in hours.
    #[must_use]
    pub const fn hours(count: u64) -> Self {
        Self::minutes(count * 60)
    }

    /// A period in days of 24 hours.
    #[must_use]
    pub const fn days(count: u64) -> Self {
        Self::hours(count * 24)
    }

    /// The period in milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.ms
    }

    /// The period as a `Duration`.
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.ms)
    }
}

impl FromStr for Period {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let mut total_ms: u64 = 0;
        let mut units = PERIOD_UNITS.iter();
        let mut rest = text;
        loop {
            let (count, unit, after) = number_and_unit(rest).ok_or(PERIOD_EXPECTED)?;
            // `units` continues after the found unit, so no unit can be repeated or out of order
            let (ms_per_unit, _) = units.find(|(_, name)| *name == unit).ok_or(PERIOD_EXPECTED)?;
            let ms = count.checked_mul(*ms_per_unit).and_then(|ms| ms.checked_add(total_ms));
            total_ms = ms.filter(|&ms| ms <= Self::MAX.ms).ok_or(PERIOD_EXPECTED)?;
            if after.is_empty() {
                return Ok(Self { ms: total_ms });
            }
            rest = after;
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ms == 0 {
            return f.write_str("0s");
        }
        let mut rest_ms = self.ms;
        for &(ms_per_unit, unit) in &PERIOD_UNITS[READ_ONLY_UNITS..] {
            if rest_ms >= ms_per_unit {
                write!(f, "{}{unit}", rest_ms / ms_per_unit)?;
                rest_ms %= ms_per_unit;
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = read_text(deserializer, PERIOD_EXPECTED.0)?;
        text.parse().map_err(|_| de::Error::invalid_value(de::Unexpected::Str(&text), &PERIOD_EXPECTED.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_period_takes_units_from_large_to_small() {
        for (text, ms) in [
            ("100ms", 100),
            ("60s", 60_000),
            ("10m", 600_000),
            ("1h", 3_600_000),
            ("90d", 7_776_000_000),
            ("1h30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("0s", 0),
            ("2w", 14 * 86_400_000),
            ("1y", 365 * 86_400_000),
            ("1y2w3d", 382 * 86_400_000),
            ("68y35d", Period::MAX.ms),
        ] {
            assert_eq!(text.parse(), Ok(Period::millis(ms)), "{text}");
        }
        assert_eq!(Period::minutes(90).as_duration(), Duration::from_secs(5400));
    }

    #[test]
    fn a_period_without_a_unit_out_of_order_or_too_long_is_refused() {
        for text in [
            "",
            "60",
            "s",
            "1.5h",
            "-1s",
            "30m1h",
            "1s1s",
            "1h 30m",
            "1d1w",
            "1h30",
            "24856d",
            "69y",
            "99999999999999999999s",
        ] {
            assert_eq!(text.parse::<Period>(), Err(PERIOD_EXPECTED), "{text}");
        }
    }

    proptest! {
        #[test]
        fn periods_survive_being_written_and_read(ms in 0..=Period::MAX.ms) {
            prop_assert_eq!(Period::millis(ms).to_string().parse(), Ok(Period::millis(ms)));
        }
    }
}
