//! The filter of log lines: `telemetry.log_level`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::text::read_text;

/// A filter of log lines: a level, or directives such as `tidegauge::flush=debug`.
///
/// Levels are `off`, `error`, `warn`, `info`, `debug` and `trace`. Directives are separated by commas. Each
/// is a level, or a module with its level. In `warn,tidegauge::flush=debug`, all other modules have the level
/// `warn`; without the `warn`, they have `info`. So an operator who asks for more lines of one module keeps
/// the lines of the others.
///
/// The target `audit` has at least `info`, unless a directive names it, or the level of all others is `off`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(String);

const EXPECTED: &str = "off, error, warn, info, debug, trace, or directives such as \"tidegauge::flush=debug\"";

/// The level of modules that no directive names.
const DEFAULT: LevelFilter = LevelFilter::INFO;

/// The target of the lines about what clients delete and set.
const AUDIT: &str = "audit";

impl LogFilter {
    /// The filter in the form that a `tracing` subscriber needs.
    #[must_use]
    pub fn to_filter(&self) -> Targets {
        let filter: Targets = self.0.parse().unwrap_or_default(); // valid: `from_str` has parsed it
        let others = filter.default_level().unwrap_or(DEFAULT);
        let is_decided = others == LevelFilter::OFF || filter.iter().any(|(target, _)| target == AUDIT);
        let filter = if is_decided { filter } else { filter.with_target(AUDIT, others.max(LevelFilter::INFO)) };
        filter.with_default(others)
    }
}

impl Default for LogFilter {
    fn default() -> Self {
        Self(DEFAULT.to_string())
    }
}

/// A text is not a filter of log lines, because of this part between two commas.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("found {0:?}, expected {EXPECTED}")]
pub struct LogFilterError(String);

impl FromStr for LogFilter {
    type Err = LogFilterError;

    fn from_str(text: &str) -> Result<Self, LogFilterError> {
        match text.split(',').find(|part| !is_directive(part)) {
            Some(part) => Err(LogFilterError(part.to_owned())),
            None => Ok(Self(text.to_owned())),
        }
    }
}

/// Whether a part is a level, or a module with its level.
///
/// `Targets` reads a part without a level as the name of a module. So it accepts a typo such as `wran`, which
/// would have no effect.
fn is_directive(part: &str) -> bool {
    let (module, level) = part.split_once('=').unzip();
    let level = level.unwrap_or(part);
    let is_level = !level.is_empty() && level.parse::<LevelFilter>().is_ok();
    let is_module = |module: &str| !module.is_empty() && !module.contains(char::is_whitespace);
    is_level && module.is_none_or(is_module) && part.parse::<Targets>().is_ok()
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for LogFilter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = read_text(deserializer, EXPECTED)?;
        let wrong = |LogFilterError(part)| de::Error::invalid_value(de::Unexpected::Str(&part), &EXPECTED);
        text.parse().map_err(wrong)
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
    fn audit_lines_stay_unless_a_directive_names_them_or_all_others_are_off() {
        for (text, most) in [
            ("error", Some(Level::INFO)),
            ("warn,tidegauge::flush=debug", Some(Level::INFO)),
            ("tidegauge=off", Some(Level::INFO)),
            ("debug", Some(Level::DEBUG)),
            ("off", None),
            ("off,tidegauge=debug", None),
            ("audit=off", None),
            ("info,audit=error", Some(Level::ERROR)),
            ("off,audit=info", Some(Level::INFO)),
        ] {
            let filter = text.parse::<LogFilter>().unwrap().to_filter();
            let levels = [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
            assert_eq!(levels.into_iter().find(|level| filter.would_enable(AUDIT, level)), most, "{text}");
        }
    }

    #[test]
    fn a_filter_is_a_level_or_directives_and_not_a_typo() {
        for good in ["info", "off", "TRACE", "warn,tidegauge::flush=debug", "tidegauge=trace"] {
            assert_eq!(good.parse::<LogFilter>().map(|filter| filter.to_string()), Ok(good.to_owned()));
        }
        for (bad, part) in [
            ("", ""),
            ("inof", "inof"),
            ("info,tidegauge=loud", "tidegauge=loud"),
            ("wran,tidegauge::flush=debug", "wran"),
            ("tidegauge::flush=debug,in_fo", "in_fo"),
            ("info,tidegauge::flush:debug", "tidegauge::flush:debug"),
            ("info, tidegauge=debug", " tidegauge=debug"),
            ("info,=debug", "=debug"),
            ("info,tidegauge=", "tidegauge="),
            ("info,", ""),
        ] {
            assert_eq!(bad.parse::<LogFilter>(), Err(LogFilterError(part.to_owned())), "{bad}");
            let error = LogFilter::deserialize(de::value::StrDeserializer::<de::value::Error>::new(bad)).unwrap_err();
            assert!(error.to_string().starts_with(&format!("invalid value: string {part:?}, expected off")), "{error}");
        }
    }
}
