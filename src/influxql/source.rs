//! The data as the language needs it: a catalogue of series, readings, and stats of hours.
//!
//! The language knows measurements, fields and tags. [`super::mapping`] translates them to metrics, devices
//! and labels. All instants are Unix milliseconds, all ranges half-open.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::error::StatementError;

/// A series: the tags that tell it apart, and its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// The source's own key of the series.
    pub key: usize,
    /// Tags, ascending by key. No value is empty.
    pub tags: Vec<(Arc<str>, Arc<str>)>,
    /// The names of the fields, ascending.
    pub fields: Vec<Arc<str>>,
    /// Other names of one of the tags.
    pub aliases: Arc<Aliases>,
}

/// Other names of a tag. Statements may name the tag so where a series has no tag of this name. Lists of tags
/// and wildcards show its own name only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Aliases {
    /// The key of the tag.
    pub key: String,
    /// The other names.
    pub others: Vec<String>,
}

impl Series {
    /// The value of a tag; empty if the series does not have it.
    #[must_use]
    pub fn tag(&self, key: &str) -> &str {
        let own = |key: &str| self.tags.binary_search_by(|(known, _)| (**known).cmp(key)).ok();
        let is_alias = || self.aliases.others.iter().any(|other| other == key);
        let found = own(key).or_else(|| if is_alias() { own(&self.aliases.key) } else { None });
        found.map_or("", |at| &self.tags[at].1)
    }

    /// The place of a field among the fields.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<usize> {
        self.fields.binary_search_by(|known| (**known).cmp(name)).ok()
    }
}

/// A tag key and the values that it may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedTag {
    /// The key of the tag.
    pub key: String,
    /// Its values; a series with another value is not needed.
    pub values: BTreeSet<String>,
}

/// Which series of a measurement a statement needs.
#[derive(Debug, Clone)]
pub struct Wanted<'a> {
    /// The tags that a series must have.
    pub tags: Vec<WantedTag>,
    /// Names, among them those of all fields that matter. `None`: any field matters.
    pub fields: Option<BTreeSet<&'a str>>,
    /// The instants that matter, half-open, in Unix milliseconds.
    pub range_ms: Range<i64>,
}

/// Which values of which series a statement needs.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The measurement.
    pub measurement: &'a str,
    /// The series, as the source has listed them.
    pub series: &'a [&'a Series],
    /// The names of the fields.
    pub fields: &'a [&'a str],
    /// The instants, half-open, in Unix milliseconds. A side without a bound is the least or largest `i64`.
    pub range_ms: Range<i64>,
    /// `Some`: only this many rows at the end of each series matter. A source may pass all.
    pub newest: Option<usize>,
    /// Whether the rows are those of parts of hours beside the stats of whole ones. A source fails if some of
    /// them have expired: the stats of the other hours may have no readings either.
    pub is_beside_stats: bool,
    /// Whether the first and the last value of each hour is needed.
    pub needs_ends: bool,
}

/// Values of one series at one instant.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The place of the series in the request.
    pub series: usize,
    /// The instant, in Unix milliseconds.
    pub ts_ms: i64,
    /// The values, in the order of the fields of the request.
    pub values: &'a [Option<f64>],
}

/// The stats of one field of one series in one UTC hour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HourStats {
    /// The place of the series in the request.
    pub series: usize,
    /// The place of the field in the request.
    pub field: usize,
    /// The start of the hour, in Unix milliseconds.
    pub start_ms: i64,
    /// The number of values, at least 1.
    pub count: u64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
    /// The sum of the values.
    pub sum: f64,
    /// The instant of the first value, and the value. Any, if the request does not need the ends.
    pub first: (i64, f64),
    /// The instant of the last value, and the value. Any, if the request does not need the ends.
    pub last: (i64, f64),
}

/// The next row that a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next row.
    Row,
    /// The first row of the next series. A source may still pass rows of this one.
    Series,
}

/// Receives rows, or fails, which ends the reading.
pub type RowReader<'r> = dyn FnMut(Row<'_>) -> Result<Next, StatementError> + 'r;

/// Receives stats of hours, or fails, which ends the reading.
pub type HourReader<'r> = dyn FnMut(HourStats) -> Result<(), StatementError> + 'r;

/// The data that statements ask for.
///
/// An implementation reads in pages, so that no answer of it grows with the range, and ends a reading with an
/// error at its deadline and at its limits.
pub trait Source {
    /// The names of all measurements, ascending.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn measurements(&mut self) -> Result<Vec<String>, StatementError>;

    /// The fields and the tags that any series of a measurement has, whatever the wanted tags. Statements
    /// with wildcards need them.
    ///
    /// # Errors
    /// If the data cannot be read.
    fn schema(&mut self, measurement: &str, wanted: &Wanted<'_>) -> Result<(Vec<String>, Vec<String>), StatementError>;

    /// The series of a measurement, ascending by tags: at least those that are wanted.
    ///
    /// # Errors
    /// If the data cannot be read, or there are too many series.
    fn series(&mut self, measurement: &str, wanted: &Wanted<'_>) -> Result<Vec<Series>, StatementError>;

    /// Checks whether the statement may go on. Long work without reading asks now and then.
    ///
    /// # Errors
    /// At the deadline, and when the client is gone.
    fn check(&self) -> Result<(), StatementError>;

    /// Returns a range that has all instants of a request that may have rows.
    fn span_ms(&self, request: &Request<'_>) -> Range<i64>;

    /// Passes the rows of a request that have a value, ascending by time within each series. The series may
    /// alternate.
    ///
    /// # Errors
    /// If the data cannot be read, or the reader fails.
    fn readings(&mut self, request: &Request<'_>, reader: &mut RowReader<'_>) -> Result<(), StatementError>;

    /// Passes the stats of the hours of a request, ascending by time within each series and field. The range
    /// begins and ends with an hour.
    ///
    /// # Errors
    /// If the data cannot be read, or the reader fails.
    fn hours(&mut self, request: &Request<'_>, reader: &mut HourReader<'_>) -> Result<(), StatementError>;
}
