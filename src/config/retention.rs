//! `[retention]`: how long readings are kept.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::check::within;
use super::{ConfigError, Period, UnitError};

/// How long readings are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// How long readings are kept. A period from 1h to 24855d (the longest that a TTL index of MongoDB takes).
    pub readings: Keep,
}

/// How long something is kept: `"forever"`, or a period such as `"90d"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Nothing is deleted.
    Forever,
    /// What is older than this is deleted.
    For(Period),
}

impl Default for Retention {
    fn default() -> Self {
        Self { readings: Keep::For(Period::days(90)) }
    }
}

impl Retention {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        match self.readings {
            Keep::Forever => Ok(()),
            Keep::For(period) => within("retention.readings", period, Period::hours(1), Period::days(24_855)),
        }
    }
}

impl Keep {
    /// The period, unless nothing is ever deleted.
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

impl Serialize for Keep {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
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
}
