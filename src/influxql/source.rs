//! The data that statements read: a catalogue of series, readings, and stats of hours.
//!
//! InfluxQL knows measurements, fields and tags. [`super::mapping`] says which metrics, devices and labels
//! they are. All instants are Unix milliseconds, all ranges half-open.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::error::StatementError;
use super::plan::TagFilter;
use super::regex::Pattern;

/// A series of a measurement: its tags and its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// The number by which the source knows the series.
    pub key: usize,
    /// Tags, ascending by key. No value is empty.
    pub tags: Vec<(Arc<str>, Arc<str>)>,
    /// The names of the fields, ascending.
    pub fields: Vec<Arc<str>>,
    /// Other names of one tag of the series.
    pub aliases: Arc<Aliases>,
}

/// Other names (aliases) of a tag.
///
/// A statement may use an alias where a series has no tag of that name, also in a pattern with the alias in
/// its text. Lists of tags, wildcards and other patterns show only the tag's own name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Aliases {
    /// The key of the tag.
    pub key: String,
    /// The other names.
    pub others: Vec<String>,
}

impl Aliases {
    /// The key of the tag, if `name` is another name of it.
    pub(super) fn key_of(&self, name: &str) -> Option<&str> {
        self.others.iter().any(|other| other == name).then_some(&*self.key)
    }

    /// The other names that a pattern means; none if it matches the tag's own name.
    pub(super) fn named_by<'a>(&'a self, pattern: &'a Pattern) -> impl Iterator<Item = &'a String> {
        let is_own = pattern.matches(&self.key);
        self.others.iter().filter(move |other| !is_own && pattern.names(other))
    }
}

impl Series {
    /// The value of a tag; empty if the series does not have it.
    #[must_use]
    pub fn tag(&self, key: &str) -> &str {
        let own = |key: &str| self.tags.binary_search_by(|(known, _)| (**known).cmp(key)).ok();
        let found = own(key).or_else(|| own(self.aliases.key_of(key)?));
        found.map_or("", |at| &self.tags[at].1)
    }

    /// The index of a field in [`Self::fields`].
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
    /// The values that the tag may have. A series with another value is not needed.
    pub values: BTreeSet<String>,
}

/// The measurements that a `FROM` means.
#[derive(Debug, Clone, Default)]
pub struct Measurements {
    /// Names of measurements.
    pub names: BTreeSet<String>,
    /// Patterns. They mean all measurements whose names match one.
    pub patterns: Vec<Pattern>,
    /// Whether all measurements are meant.
    pub all: bool,
}

impl Measurements {
    /// Whether some of the names are unknown until the source lists its measurements.
    #[must_use]
    pub const fn has_unknown(&self) -> bool {
        self.all || !self.patterns.is_empty()
    }

    /// Whether the measurement `name` is among these measurements.
    #[must_use]
    pub fn contain(&self, name: &str) -> bool {
        self.all || self.names.contains(name) || self.patterns.iter().any(|pattern| pattern.matches(name))
    }
}

/// The series that a `SELECT` or a `SHOW` needs.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The measurements.
    pub measurements: Measurements,
    /// The tags that a series must have, each with one of the wanted values.
    pub tags: Vec<WantedTag>,
    /// The condition on all tags. `None`: a series with any tags is needed.
    pub filter: Option<TagFilter>,
    /// The names that the statement uses; `None`: it may use any field.
    ///
    /// They are names of fields, and perhaps of tags.
    pub fields: Option<BTreeSet<String>>,
    /// The instants that matter, half-open, in Unix milliseconds.
    pub range_ms: Range<i64>,
    /// The range in which a needed series has rows, half-open, in Unix milliseconds.
    ///
    /// `None`: series without rows are needed too.
    pub within_ms: Option<Range<i64>>,
    /// Whether the statement needs all names of fields and tags.
    ///
    /// These include names that occur only in series without the wanted tags. Wildcards need them.
    pub needs_schema: bool,
}

impl Wanted {
    /// Whether a series is needed whose rows are all in `span_ms`.
    #[must_use]
    pub fn needs(&self, series: &Series, span_ms: &Range<i64>) -> bool {
        let is_within = |within: &Range<i64>| within.start < span_ms.end && span_ms.start < within.end;
        self.within_ms.as_ref().is_none_or(is_within)
            && self.tags.iter().all(|wanted| wanted.values.contains(series.tag(&wanted.key)))
            && self.filter.as_ref().is_none_or(|filter| filter.may_hold(series))
    }
}

/// The series of one measurement.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The series, ascending by tags. All wanted ones are among them.
    pub series: Vec<Series>,
    /// The fields of all series of the measurement, if the schema is needed.
    pub fields: BTreeSet<Arc<str>>,
    /// The tag keys of all series of the measurement, if the schema is needed.
    pub tags: BTreeSet<Arc<str>>,
}

/// The values of one measurement that a statement needs.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The series, as the source has listed them.
    pub series: &'a [&'a Series],
    /// The names of the fields.
    pub fields: &'a [&'a str],
    /// The range of instants, half-open and not empty, in Unix milliseconds.
    ///
    /// A side without a bound is `i64::MIN` or `i64::MAX`.
    pub range_ms: Range<i64>,
    /// `Some(10)`: only the last 10 rows of each series matter.
    ///
    /// A source may pass all rows.
    pub newest: Option<usize>,
    /// Whether the request is for the ends of a range whose hours are read as stats.
    ///
    /// The ends of the range from 10:20 to 14:30 are 10:20 to 11:00 and 14:00 to 14:30. If readings of these
    /// hours have expired, the source fails. Otherwise the answer would mix stats of expired readings with
    /// ends that lack them.
    pub is_beside_stats: bool,
    /// Whether the first and the last value of each hour is needed.
    pub needs_ends: bool,
}

/// Values of one series at one instant.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The index of the request in the call of [`Source::readings`].
    pub request: usize,
    /// The index of the series in the request.
    pub series: usize,
    /// The instant, in Unix milliseconds.
    pub ts_ms: i64,
    /// The values, each with the index of its field in the request.
    ///
    /// There is at least one, and each field occurs at most once.
    pub values: &'a [(usize, f64)],
}

/// Data that a source passes to a [`Reader`].
#[derive(Debug, Clone, Copy)]
pub enum Read<'a> {
    /// A row of a request.
    Row(Row<'a>),
    /// The stats of an hour of a request.
    Hour(HourStats),
    /// The number of other values or stats that the source has read.
    ///
    /// They belong to no request, but they count against the limit of points.
    Others(usize),
}

/// The stats of one field of one series in one UTC hour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HourStats {
    /// The index of the request in the call of [`Source::hours`].
    pub request: usize,
    /// The index of the series in the request.
    pub series: usize,
    /// The index of the field in the request.
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
    /// The instant and the value of the first reading.
    ///
    /// Both are arbitrary unless [`Request::needs_ends`] is set.
    pub first: (i64, f64),
    /// The instant and the value of the last reading.
    ///
    /// Both are arbitrary unless [`Request::needs_ends`] is set.
    pub last: (i64, f64),
}

/// The row that a reader wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next row.
    Row,
    /// The first row of the next series.
    ///
    /// A source may still pass rows of the same series.
    Series,
    /// No more rows.
    End,
}

/// Receives the data that a source reads. An error ends the call of the source.
pub type Reader<'r> = dyn FnMut(Read<'_>) -> Result<Next, StatementError> + 'r;

/// The data that statements ask for.
///
/// A statement lists its series once and then reads the values of all its requests at once, so that a source
/// reads nothing twice. A lone `min` or `max` then reads the hour of its value. An implementation reads page
/// by page, so that the memory of a page does not grow with the range. It fails at its deadline and at its
/// limits.
pub trait Source {
    /// Finds the wanted series.
    ///
    /// The result has an element for each of `wanted`: the measurements that have wanted series, by name. If
    /// the schema is needed, it also has measurements without wanted series.
    ///
    /// # Errors
    /// If the data cannot be read, or there are too many series.
    fn series(&mut self, wanted: &[Wanted]) -> Result<Vec<BTreeMap<Arc<str>, Found>>, StatementError>;

    /// Checks whether the statement may go on.
    ///
    /// Long work that reads nothing calls this now and then.
    ///
    /// # Errors
    /// If the deadline has passed, or the client has disconnected.
    fn check(&self) -> Result<(), StatementError>;

    /// Returns a range that includes all rows and hours of a request.
    fn span_ms(&self, request: &Request<'_>) -> Range<i64>;

    /// Passes the rows of the requests to `reader`, ascending by time in each series.
    ///
    /// Each row has a value. Rows of several series may alternate.
    ///
    /// # Errors
    /// If the data cannot be read, or the reader fails.
    fn readings(&mut self, requests: &[Request<'_>], reader: &mut Reader<'_>) -> Result<(), StatementError>;

    /// Passes the stats of all hours of the requests to `reader`.
    ///
    /// The range of each request consists of whole hours. Only an error of `reader` ends the call early: the
    /// returned [`Next`] has no effect.
    ///
    /// # Errors
    /// If the data cannot be read, or the reader fails.
    fn hours(&mut self, requests: &[Request<'_>], reader: &mut Reader<'_>) -> Result<(), StatementError>;
}
