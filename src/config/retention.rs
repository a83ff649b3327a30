//! `[retention]`: the ages at which readings and rollups are deleted.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, de};

use super::check::{not_below, within};
use super::text::read_text;
use super::{ConfigError, Period, UnitError};

/// The ages at which readings and rollups are deleted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// The age at which readings are deleted: 1h to 24855d, or forever.
    ///
    /// In a native time series at least 2h.
    pub readings: Keep,
    /// The age at which rollups are deleted. At least `readings`.
    ///
    /// `None`: five years, or `readings` if that is longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollups: Option<Keep>,
}

/// The default retention of rollups: five years.
const ROLLUPS: Keep = Keep::For(Period::days(1_830));

/// How long data is kept: `"forever"`, or a period such as `"90d"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keep {
    /// Data is deleted at this age.
    For(Period),
    /// Data is never deleted.
    Forever,
}

impl Default for Retention {
    fn default() -> Self {
        Self { readings: Keep::For(Period::days(90)), rollups: None }
    }
}

impl Retention {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        check("retention.readings", self.readings)?;
        check("retention.rollups", self.rollups())?;
        not_below("retention.rollups", self.rollups(), "retention.readings", self.readings)
    }

    /// Checks that a time series keeps readings until their hour is rolled up.
    ///
    /// MongoDB deletes each measurement at its own age, so those at the beginning of an hour expire before
    /// the hour is rolled up, if the retention is short. The other stores have no such limit: bucket
    /// documents are kept for another hour, and SQLite rolls up an hour with each write.
    pub(super) fn check_for_timeseries(&self) -> Result<(), ConfigError> {
        let (readings, min) = (self.readings, Period::hours(2));
        if readings < Keep::For(min) {
            let problem = format!(
                "is {readings}, must be at least {min} with store.kind = \"mongodb-timeseries\": MongoDB deletes each \
                 measurement by its own time, and an hour is rolled up 20 minutes after its end"
            );
            return Err(ConfigError::invalid("retention.readings", problem));
        }
        Ok(())
    }

    /// The retention of rollups: the configured one, or the default.
    #[must_use]
    pub fn rollups(&self) -> Keep {
        self.rollups.unwrap_or_else(|| self.readings.max(ROLLUPS))
    }
}

fn check(key: &'static str, keep: Keep) -> Result<(), ConfigError> {
    match keep {
        Keep::Forever => Ok(()),
        Keep::For(period) => within(key, period, Period::hours(1), Period::MAX),
    }
}

impl Keep {
    /// The period; `None` for forever.
    #[must_use]
    pub const fn period(self) -> Option<Period> {
        match self {
            Self::Forever => None,
            Self::For(period) => Some(period),
        }
    }
}

impl FromStr for Keep {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        if text == "forever" { Ok(Self::Forever) } else { text.parse().map(Self::For) }
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forever => f.write_str("forever"),
            Self::For(period) => period.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = read_text(deserializer, "a duration such as \"90d\" or \"1y\", or \"forever\"")?;
        text.parse().map_err(|error| de::Error::custom(format_args!("`{text}`: {error}, or \"forever\"")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_is_forever_or_a_period() {
        for keep in [Keep::Forever, Keep::For(Period::days(90)), Keep::For(Period::minutes(90))] {
            assert_eq!(keep.to_string().parse(), Ok(keep));
        }
        assert!("always".parse::<Keep>().is_err());
    }

    #[test]
    fn measurements_are_kept_until_their_hours_are_rolled_up() {
        let of = |readings| Retention { readings, rollups: None };
        for enough in [Keep::For(Period::hours(2)), Keep::Forever] {
            assert!(of(enough).check_for_timeseries().is_ok());
        }
        let message = of(Keep::For(Period::hours(1))).check_for_timeseries().unwrap_err().to_string();
        assert!(message.contains("is 1h, must be at least 2h"), "{message}");
    }

    #[test]
    fn rollups_are_kept_five_years_or_as_long_as_readings() {
        let of = |readings, rollups| Retention { readings, rollups };
        let [month, year, century] = [30, 365, 24_855].map(|days| Keep::For(Period::days(days)));
        assert_eq!(of(month, None).rollups(), Keep::For(Period::days(1_830)));
        assert_eq!(of(century, None).rollups(), century);
        assert_eq!(of(Keep::Forever, None).rollups(), Keep::Forever);
        assert!(of(month, Some(month)).check().is_ok() && of(month, Some(Keep::Forever)).check().is_ok());
        for shorter in [of(year, Some(month)), of(Keep::Forever, Some(century))] {
            let message = shorter.check().unwrap_err().to_string();
            assert!(
                message.contains("retention.rollups") && message.contains("at least retention.readings"),
                "{message}"
            );
        }
    }
}
