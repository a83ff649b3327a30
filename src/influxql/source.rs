//! The data as the language needs it: a catalogue of series, readings, and stats of hours.
//!
//! The language knows measurements, fields and tags. [`super::mapping`] translates them to metrics, devices
//! and labels. All instants are Unix milliseconds, all ranges half-open.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::error::StatementError;
use super::regex::Pattern;

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

/// Other names of a tag. A statement may use them for the tag where a series has no tag of that name. Lists
/// of tags and wildcards show only the tag's own name.
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

/// Which measurements a `FROM` means.
#[derive(Debug, Clone, Default)]
pub struct Measurements {
    /// The names of some.
    pub names: BTreeSet<String>,
    /// Expressions that the names of others match.
    pub patterns: Vec<Pattern>,
    /// Whether all are meant.
    pub all: bool,
}

impl Measurements {
    /// Whether only the source knows their names.
    #[must_use]
    pub const fn has_unknown(&self) -> bool {
        self.all || !self.patterns.is_empty()
    }

    /// Whether a measurement is among them.
    #[must_use]
    pub fn contain(&self, name: &str) -> bool {
        self.all || self.names.contains(name) || self.patterns.iter().any(|pattern| pattern.matches(name))
    }
}

/// Which series a `SELECT` or a `SHOW` needs.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The measurements.
    pub measurements: Measurements,
    /// The tags that a series must have.
    pub tags: Vec<WantedTag>,
    /// Names that include those of all fields that matter. `None`: any field matters.
    pub fields: Option<BTreeSet<String>>,
    /// The instants that matter, half-open, in Unix milliseconds.
    pub range_ms: Range<i64>,
    /// Whether the fields and the tags of all series matter, whatever the wanted tags. Statements with
    /// wildcards need them.
    pub needs_schema: bool,
}

/// The series of one measurement.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The series, ascending by tags: at least those that are wanted.
    pub series: Vec<Series>,
    /// The fields of all its series, if they are needed.
    pub fields: BTreeSet<Arc<str>>,
    /// The keys of the tags of all its series, if they are needed.
    pub tags: BTreeSet<Arc<str>>,
}

/// Which values of which series of one measurement a statement needs.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The series, as the source has listed them.
    pub series: &'a [&'a Series],
    /// The names of the fields.
    pub fields: &'a [&'a str],
    /// The instants, half-open and not empty, in Unix milliseconds. A side without a bound is the least or
    /// largest `i64`.
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
    /// The place of the request among those of the reading.
    pub request: usize,
    /// The place of the series in the request.
    pub series: usize,
    /// The instant, in Unix milliseconds.
    pub ts_ms: i64,
    /// The values, each with the place of its field in the request. At least one, and each field once.
    pub values: &'a [(usize, f64)],
}

/// Data that a source has read.
#[derive(Debug, Clone, Copy)]
pub enum Read<'a> {
    /// A row of a request.
    Row(Row<'a>),
    /// The stats of an hour of a request.
    Hour(HourStats),
    /// The number of values or stats that no request shows.
    Others(usize),
}

/// The stats of one field of one series in one UTC hour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HourStats {
    /// The place of the request among those of the reading.
    pub request: usize,
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
    /// None.
    End,
}

/// Receives what is read, or fails, which ends the reading.
pub type Reader<'r> = dyn FnMut(Read<'_>) -> Result<Next, StatementError> + 'r;

/// The data that statements ask for.
///
/// A statement lists its series once and then reads the values of all its requests at once, so that a source
/// reads nothing twice. An implementation reads in pages, so that no answer of it grows with the range, and
/// ends a reading with an error at its deadline and at its limits.
pub trait Source {
    /// Returns for each of `wanted` the measurements with wanted series, by name. If the schema is needed,
    /// also the measurements with other series only.
    ///
    /// # Errors
    /// If the data cannot be read, or there are too many series.
    fn series(&mut self, wanted: &[Wanted]) -> Result<Vec<BTreeMap<Arc<str>, Found>>, StatementError>;

    /// Checks whether the statement may go on. Long work that reads nothing calls this now and then.
    ///
    /// # Errors
    /// If the deadline has passed, or the client has disconnected.
    fn check(&self) -> Result<(), StatementError>;

    /// Returns a range that has all instants of a request that may have rows.
    fn span_ms(&self, request: &Request<'_>) -> Range<i64>;

    /// Passes the rows of the requests that have a value, ascending by time within each series. The series
    /// may alternate.
    ///
    /// # Errors
    /// If the data cannot be read, or the reader fails.
    fn readings(&mut self, requests: &[Request<'_>], reader: &mut Reader<'_>) -> Result<(), StatementError>;

    /// Passes the stats of the hours of the requests. Each range begins and ends with an hour. The reader
    /// wants all of them.
    ///
    /// # Errors
    /// If the data cannot be read, or the reader fails.
    fn hours(&mut self, requests: &[Request<'_>], reader: &mut Reader<'_>) -> Result<(), StatementError>;
}
