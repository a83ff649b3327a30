//! The filter of log lines: `telemetry.log_level`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};
use tracing_subscriber::filter::{LevelFilter, Targets};

/// A filter of log lines: a level, or directives such as `tidegauge::flush=debug`.
///
/// Levels are `off`, `error`, `warn`, `info`, `debug` and `trace`. Directives are separated by commas and
/// have the syntax of [`Targets`]. In `warn,tidegauge::flush=debug`, all other modules have the level `warn`;
/// without the `warn`, they have `info`. So an operator who asks for more lines of one module keeps the lines
/// of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(String);

const EXPECTED: &str = "off, error, warn, info, debug, trace, or directives such as \"tidegauge::flush=debug\"";

/// The level of modules that no directive names.
const DEFAULT: LevelFilter = LevelFilter::INFO;

impl LogFilter {
    /// The filter in the form that a `tracing` subscriber needs.
    #[must_use]
    pub fn to_filter(&self) -> Targets {
        let filter: Targets = self.0.parse().unwrap_or_default(); // valid: `from_str` has parsed it
        if filter.default_level().is_some() { filter } else { filter.with_default(DEFAULT) }
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self(DEFAULT.to_string())
    }
}

/// A text is not a filter of log lines.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {EXPECTED}")]
pub struct LogFilterError;

impl FromStr for LogFilter {
    type Err = LogFilterError;

    fn from_str(text: &str) -> Result<Self, LogFilterError> {
        // `Targets` reads a single word that is no level as the name of a module. So it accepts a typo such
        // as `wran`, which would have no effect.
        let is_word = text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let is_level = !text.is_empty() && text.parse::<LevelFilter>().is_ok();
        let good = is_level || (!is_word && text.parse::<Targets>().is_ok());
        if good { Ok(Self(text.to_owned())) } else { Err(LogFilterError) }
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for LogFilter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| de::Error::invalid_value(de::Unexpected::Str(&text), &EXPECTED))
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn modules_without_a_directive_have_the_level_of_all_or_info() {
        for (text, others, flush) in [
            ("tidegauge::flush=debug", Level::INFO, Some(Level::DEBUG)),
            ("warn,tidegauge::flush=debug", Level::WARN, Some(Level::DEBUG)),
            ("tidegauge::flush=off,error", Level::ERROR, None),
            ("debug", Level::DEBUG, Some(Level::DEBUG)),
        ] {
            let filter = text.parse::<LogFilter>().unwrap().to_filter();
            let most = |target: &str| {
                let levels = [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
                levels.into_iter().find(|level| filter.would_enable(target, level))
            };
            assert_eq!((most("tidegauge::http"), most("tidegauge::flush")), (Some(others), flush), "{text}");
        }
        let off = "off,tidegauge::flush=debug".parse::<LogFilter>().unwrap().to_filter();
        assert!(!off.would_enable("tidegauge::http", &Level::ERROR), "unless all others are off");
    }

    #[test]
    fn a_filter_is_a_level_or_directives_and_not_a_typo() {
        for good in ["info", "off", "TRACE", "warn,tidegauge::flush=debug", "tidegauge=trace"] {
            assert_eq!(good.parse::<LogFilter>().map(|filter| filter.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "inof", "info,tidegauge=loud"] {
            assert_eq!(bad.parse::<LogFilter>(), Err(LogFilterError), "{bad}");
        }
    }
}
