//! Metrics: the rule for their names, and tables of them.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use foldhash::fast::FixedState;
use serde::{Serialize, Serializer};

/// The longest metric name without labels, in bytes.
pub const METRIC_MAX_BYTES: usize = 128;

/// The most metrics of a reading, as long as `ingest.max_metrics_per_reading` has its default.
///
/// An instant may have more, because its readings may have arrived one by one. Files and dead letters, which
/// are sent again, then have several readings of it.
pub const METRICS_PER_READING: usize = 256;

/// A metric with its labels, as the canonical text of its [series](super::series). Cheap to clone.
///
/// A metric of line protocol also knows its measurement. Equality, order and hash depend on the text only.
#[derive(Clone)]
pub struct Metric {
    text: Arc<str>,
    measurement_bytes: u8,
}

impl Metric {
    /// Makes a metric whose first `measurement_bytes` bytes are its measurement: 3 for `cpu_idle`. 0 is no
    /// measurement.
    #[must_use]
    pub fn of_measurement(text: &str, measurement_bytes: u8) -> Self {
        Self { text: text.into(), measurement_bytes }
    }

    /// The measurement of line protocol that the metric came from; `None` if the metric has no measurement,
    /// or if its field was `value`.
    #[must_use]
    pub fn measurement(&self) -> Option<&str> {
        let measurement = self.text.get(..self.measurement_bytes.into())?;
        (!measurement.is_empty()).then_some(measurement)
    }
}

impl From<&str> for Metric {
    fn from(text: &str) -> Self {
        Self::of_measurement(text, 0)
    }
}

impl From<String> for Metric {
    fn from(text: String) -> Self {
        Self { text: text.into(), measurement_bytes: 0 }
    }
}

impl Deref for Metric {
    type Target = str;

    fn deref(&self) -> &str {
        #[cfg(test)]
        reads::count();
        &self.text
    }
}

/// Counts how often names are read: that is the work of comparing and hashing them.
#[cfg(test)]
pub mod reads {
    use std::cell::Cell;

    thread_local! {
        static DONE: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        DONE.set(DONE.get() + 1);
    }

    /// Does `work`, and returns how often it has read a name.
    pub fn during<T>(work: impl FnOnce() -> T) -> (T, usize) {
        let before = DONE.get();
        let done = work();
        (done, DONE.get() - before)
    }
}

impl Borrow<str> for Metric {
    fn borrow(&self) -> &str {
        self
    }
}

impl PartialEq for Metric {
    fn eq(&self, other: &Self) -> bool {
        #[cfg(test)]
        reads::count();
        self.text == other.text
    }
}

impl Eq for Metric {}

impl PartialOrd for Metric {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Metric {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}

impl Hash for Metric {
    fn hash<H: Hasher>(&self, state: &mut H) {
        #[cfg(test)]
        reads::count();
        self.text.hash(state);
    }
}

impl fmt::Debug for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

/// A table of metrics that finds the place of a metric by its name.
///
/// Successive lookups tend to follow the order of the table. So a lookup first tries the place after the
/// place that the last lookup found.
#[derive(Debug, Default, Clone)]
pub struct MetricTable {
    metrics: Vec<Metric>,
    places: HashMap<Metric, u32, FixedState>,
    next: usize,
}

impl MetricTable {
    /// A table of these metrics. If a metric is repeated, its first place counts.
    #[must_use]
    pub fn new(metrics: Vec<Metric>) -> Self {
        let mut places = HashMap::with_capacity_and_hasher(metrics.len(), FixedState::default());
        for (place, metric) in (0..).zip(&metrics) {
            places.entry(metric.clone()).or_insert(place);
        }
        Self { metrics, places, next: 0 }
    }

    /// The place of a metric; `None` if the table does not have it.
    pub fn find(&mut self, name: &str) -> Option<u32> {
        if self.metrics.get(self.next).is_none_or(|metric| **metric != *name) {
            self.next = *self.places.get(name)? as usize;
        }
        let place = self.next as u32;
        self.next = if self.next + 1 < self.metrics.len() { self.next + 1 } else { 0 };
        Some(place)
    }

    /// The place of a metric, which is added if the table does not have it.
    ///
    /// # Panics
    /// At 2^32 metrics, which no memory holds.
    pub fn place_of(&mut self, name: &str) -> u32 {
        self.find(name).unwrap_or_else(|| {
            let place = u32::try_from(self.metrics.len()).expect("no memory holds 2^32 metrics");
            let metric = Metric::from(name);
            self.metrics.push(metric.clone());
            self.places.insert(metric, place);
            self.next = 0;
            place
        })
    }

    /// The metrics of the table, by place.
    #[must_use]
    pub fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// The metrics of the table, by place, without a copy.
    #[must_use]
    pub fn into_metrics(self) -> Vec<Metric> {
        self.metrics
    }
}

/// Why a text is not a metric name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MetricNameError {
    /// The name has no characters.
    #[error("a metric name must not be empty")]
    Empty,
    /// The name is longer than [`METRIC_MAX_BYTES`].
    #[error("a metric name has at most {METRIC_MAX_BYTES} bytes, this one has {0}")]
    TooLong(usize),
    /// The name holds a control character, at this byte offset.
    #[error("a metric name has no control characters, there is one at byte {}", .0 + 1)]
    Control(usize),
    /// The name is `ts`, which is the reading's time.
    #[error("\"ts\" is the time of a reading and cannot name a metric")]
    Reserved,
    /// The name holds U+FF0E or U+FF04, which stand for `.` and `$` in stored documents.
    #[error("a metric name has no U+FF0E or U+FF04: stored documents use them for '.' and '$'")]
    Escape,
    /// The name holds `{` or `}`, which enclose labels, at this byte offset.
    #[error("a metric name has no '{{' and no '}}', which enclose labels; there is one at byte {}", .0 + 1)]
    Brace(usize),
}

/// Whether stored documents have this character in place of `.` or `$`.
pub(super) const fn is_stored_escape(character: char) -> bool {
    matches!(character, '\u{FF0E}' | '\u{FF04}')
}

/// Whether `name` has only the ASCII characters from `!` to `z`, which every metric name may have.
///
/// This is the cheap check for usual names. It fails for a text with labels, because `{` comes after `z`.
#[inline]
fn is_usual(name: &str) -> bool {
    name.bytes().all(|byte| matches!(byte, b'!'..=b'z'))
}

/// Whether `name` is certainly a metric name without labels. It does not recognize names with rare
/// characters, which [`check_metric_name`] checks.
#[inline]
#[must_use]
pub fn is_usual_metric_name(name: &str) -> bool {
    (1..=METRIC_MAX_BYTES).contains(&name.len()) && is_usual(name) && name != "ts"
}

/// Checks that `name` can name a metric.
///
/// It has 1 to [`METRIC_MAX_BYTES`] bytes of UTF-8, and is not `ts`. It has no control characters, no braces,
/// and neither U+FF0E nor U+FF04, which stand for `.` and `$` in stored documents.
///
/// # Errors
/// The part of the rule that `name` breaks.
pub fn check_metric_name(name: &str) -> Result<(), MetricNameError> {
    if name.is_empty() {
        return Err(MetricNameError::Empty);
    }
    if name.len() > METRIC_MAX_BYTES {
        return Err(MetricNameError::TooLong(name.len()));
    }
    if name == "ts" {
        return Err(MetricNameError::Reserved);
    }
    if is_usual(name) {
        return Ok(()); // decided without decoding
    }
    for (at, character) in name.char_indices() {
        if character.is_control() {
            return Err(MetricNameError::Control(at));
        }
        if is_stored_escape(character) {
            return Err(MetricNameError::Escape);
        }
        if matches!(character, '{' | '}') {
            return Err(MetricNameError::Brace(at));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_finds_metrics_in_any_order() {
        let names = |table: &MetricTable| table.metrics().iter().map(ToString::to_string).collect::<Vec<_>>();
        let mut table = MetricTable::new(["b", "a"].map(Metric::from).to_vec());
        assert_eq!(["a", "b", "a", "c", "b"].map(|name| table.find(name)), [Some(1), Some(0), Some(1), None, Some(0)]);
        assert_eq!(["c", "a", "c", "d", "b"].map(|name| table.place_of(name)), [2, 1, 2, 3, 0]);
        assert_eq!(names(&table), ["b", "a", "c", "d"]);
        assert_eq!(MetricTable::default().find("a"), None);
    }

    #[test]
    fn a_name_is_printable_and_not_ts() {
        for good in ["temp", "value", "Temp °C", "a.b", "$load", "_x", "0"] {
            assert_eq!(check_metric_name(good), Ok(()), "{good}");
        }
        assert_eq!(check_metric_name(""), Err(MetricNameError::Empty));
        assert_eq!(check_metric_name("ts"), Err(MetricNameError::Reserved));
        assert_eq!(check_metric_name(&"m".repeat(129)), Err(MetricNameError::TooLong(129)));
        assert_eq!(check_metric_name("a\0"), Err(MetricNameError::Control(1)));
        assert_eq!(check_metric_name("a\u{85}"), Err(MetricNameError::Control(1)));
        assert_eq!(check_metric_name("a\u{FF0E}b"), Err(MetricNameError::Escape));
        assert_eq!(check_metric_name("a{b"), Err(MetricNameError::Brace(1)));
    }
}
