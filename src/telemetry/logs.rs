//! Log lines: their format, their filter, and their output to stderr.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value};
use tracing::Dispatch;
use tracing::dispatcher::{SetGlobalDefaultError, set_global_default};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;

use crate::common::clock::{Clock, rfc3339};
use crate::config::{LogFilter, LogFormat, Telemetry};

/// Whether the log lines of this process are JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// The filter of the log lines of this process.
static FILTER: OnceLock<Filter> = OnceLock::new();

/// The handle by which the filter of log lines is replaced.
type Filter = reload::Handle<Targets, Registry>;

/// Starts to write the log lines of this process to stderr.
///
/// # Errors
/// When it is called a second time.
pub fn init(config: &Telemetry) -> Result<(), SetGlobalDefaultError> {
    if config.log_format == LogFormat::Json {
        expect_json();
    }
    let (dispatch, filter) = dispatch(config, std::io::stderr, std::io::stderr().is_terminal());
    set_global_default(dispatch)?;
    let _ = FILTER.set(filter); // the line above succeeds once
    Ok(())
}

/// Replaces the filter of the log lines of this process.
///
/// # Errors
/// When [`init`] was not called.
pub fn set_level(level: &LogFilter) -> Result<(), NoLogError> {
    let filter = FILTER.get().ok_or(NoLogError)?;
    filter.reload(level.to_filter()).map_err(|_| NoLogError)
}

/// The process writes no log lines, so their filter cannot be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the process writes no log lines")]
pub struct NoLogError;

/// Makes [`json_line`] write JSON before [`init`] is called.
///
/// A command needs this for errors about the configuration itself.
pub fn expect_json() {
    IS_JSON.store(true, Ordering::Relaxed);
}

/// A JSON log line for a message of a command; `None` if log lines are text.
#[must_use]
pub fn json_line(level: &str, message: &str, fields: &[(&str, &str)]) -> Option<String> {
    if !IS_JSON.load(Ordering::Relaxed) {
        return None;
    }
    let now = rfc3339(Clock::system().now_ms());
    let all = [("timestamp", now.as_str()), ("level", level), ("message", message)].into_iter();
    let line: Map<String, Value> =
        all.chain(fields.iter().copied()).map(|(name, value)| (name.to_owned(), value.into())).collect();
    Some(Value::Object(line).to_string())
}

fn dispatch<W>(config: &Telemetry, writer: W, colors: bool) -> (Dispatch, Filter)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(config.log_level.to_filter());
    let filtered = Registry::default().with(filter);
    let lines = fmt::layer().with_writer(writer);
    let dispatch = match config.log_format {
        LogFormat::Text => filtered.with(lines.with_ansi(colors)).into(),
        LogFormat::Json => filtered.with(lines.json().flatten_event(true)).into(),
    };
    (dispatch, handle)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("not poisoned").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The log lines of an event at level info and one at level debug.
    fn written(log_format: LogFormat, log_level: &str) -> String {
        let lines = Lines::default();
        let config = Telemetry { log_format, log_level: log_level.parse().expect("a level") };
        let writer = lines.clone();
        let (dispatch, _filter) = dispatch(&config, move || writer.clone(), false);
        tracing::dispatcher::with_default(&dispatch, || {
            tracing::info!(port = 8080, "listening");
            tracing::debug!("detail");
        });
        let bytes = lines.0.lock().expect("not poisoned").clone();
        String::from_utf8(bytes).expect("log lines are text")
    }

    #[test]
    fn text_lines_have_level_message_and_fields() {
        let text = written(LogFormat::Text, "info");
        assert!(text.contains(" INFO ") && text.ends_with("listening port=8080\n"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn json_lines_are_objects_with_the_fields_of_the_event() {
        let text = written(LogFormat::Json, "info");
        let line: serde_json::Value = serde_json::from_str(&text).expect("one JSON object");
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["message"], "listening");
        assert_eq!(line["port"], 8080);
    }

    #[test]
    fn the_level_decides_which_lines_are_written() {
        assert_eq!(written(LogFormat::Text, "warn"), "");
        assert_eq!(written(LogFormat::Text, "off,tidegauge=debug").lines().count(), 2);
    }
}
