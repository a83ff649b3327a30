//! A source in memory, from line protocol, for tests and fuzzing.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::{
    Aliases, HourReader, HourStats, Next, Request, Row, RowReader, Series, Source, StatementError, Wanted, WantedTag,
};

type Tags = Vec<(Arc<str>, Arc<str>)>;
type Fields = BTreeMap<Arc<str>, BTreeMap<i64, f64>>;

const MS_PER_HOUR: i64 = 3_600_000;

/// Points in memory, and what was read of them.
#[derive(Default)]
pub(super) struct Data {
    /// By measurement, series and field.
    points: BTreeMap<String, BTreeMap<Tags, Fields>>,
    /// The number of rows that were read.
    pub(super) rows: usize,
    /// The number of hours of stats that were read.
    pub(super) hours: usize,
    /// Whether stats are refused.
    pub(super) has_no_hours: bool,
    /// How often the work asked whether it may go on.
    pub(super) checks: Cell<usize>,
    /// The tags that were wanted.
    pub(super) wanted: Vec<WantedTag>,
    /// Other names of a tag.
    pub(super) aliases: Arc<Aliases>,
}

/// Memory without a limit.
#[derive(Debug)]
pub(super) struct NoLimit;

impl super::Memory for NoLimit {
    fn grow(&self, _bytes: usize) -> Result<(), StatementError> {
        Ok(())
    }
}

impl Data {
    /// Reads lines of the line protocol, with times in nanoseconds.
    pub(super) fn new(lines: &str) -> Self {
        let mut data = Self::default();
        for line in lines.lines() {
            let [key, fields, time] = &*split(line, ' ') else { panic!("{line}") };
            let mut key = split(key, ',').into_iter();
            let measurement = plain(&key.next().expect("a measurement"));
            let mut tags: Tags = key.map(|tag| pair(&tag)).collect();
            tags.sort_unstable();
            let ts_ms = time.parse::<i64>().expect("a time") / 1_000_000;
            let series = data.points.entry(measurement).or_default().entry(tags).or_default();
            for field in split(fields, ',') {
                let (name, value) = pair(&field);
                series.entry(name).or_default().insert(ts_ms, value.parse().expect("a number"));
            }
        }
        data
    }

    /// The number of series of all measurements.
    pub(super) fn size(&self) -> usize {
        self.points.values().map(BTreeMap::len).sum()
    }

    fn rows_of(&self, request: &Request<'_>, series: usize) -> BTreeMap<i64, Vec<Option<f64>>> {
        let mut rows = BTreeMap::new();
        let fields = self.points[request.measurement].values().nth(request.series[series].key).expect("a known key");
        for (place, field) in request.fields.iter().enumerate() {
            let points = fields.get(*field).into_iter().flat_map(|points| points.range(request.range_ms.clone()));
            for (ts_ms, value) in points {
                let row: &mut Vec<_> = rows.entry(*ts_ms).or_insert_with(|| vec![None; request.fields.len()]);
                row[place] = Some(*value);
            }
        }
        while request.newest.is_some_and(|newest| rows.len() > newest) {
            rows.pop_first();
        }
        rows
    }
}

/// Splits at a character that no backslash precedes.
fn split(text: &str, at: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut is_escaped = false;
    for char in text.chars() {
        match parts.last_mut() {
            Some(part) if char != at || is_escaped => part.push(char),
            _ => parts.push(String::new()),
        }
        is_escaped = char == '\\' && !is_escaped;
    }
    parts
}

fn pair(text: &str) -> (Arc<str>, Arc<str>) {
    let [key, value] = &*split(text, '=') else { panic!("{text}") };
    (plain(key).into(), plain(value).into())
}

fn plain(text: &str) -> String {
    text.replace("\\,", ",").replace("\\ ", " ").replace("\\=", "=")
}

impl Source for Data {
    fn measurements(&mut self) -> Result<Vec<String>, StatementError> {
        Ok(self.points.keys().cloned().collect())
    }

    fn schema(&mut self, measurement: &str, wanted: &Wanted<'_>) -> Result<(Vec<String>, Vec<String>), StatementError> {
        let all = self.series(measurement, &Wanted { tags: Vec::new(), ..wanted.clone() })?;
        let fields: BTreeSet<_> = all.iter().flat_map(|one| one.fields.iter().map(ToString::to_string)).collect();
        let tags: BTreeSet<_> = all.iter().flat_map(|one| one.tags.iter().map(|(key, _)| key.to_string())).collect();
        Ok((fields.into_iter().collect(), tags.into_iter().collect()))
    }

    fn series(&mut self, measurement: &str, wanted: &Wanted<'_>) -> Result<Vec<Series>, StatementError> {
        let wanted = &wanted.tags;
        self.wanted.clone_from(wanted);
        let Some(series) = self.points.get(measurement) else { return Ok(Vec::new()) };
        let all = series.iter().enumerate().map(|(key, (tags, fields))| {
            let fields = fields.keys().cloned().collect();
            Series { key, tags: tags.clone(), fields, aliases: Arc::clone(&self.aliases) }
        });
        let is_wanted = |one: &Series| wanted.iter().all(|wanted| wanted.values.contains(one.tag(&wanted.key)));
        Ok(all.filter(is_wanted).collect())
    }

    fn check(&self) -> Result<(), StatementError> {
        self.checks.set(self.checks.get() + 1);
        Ok(())
    }

    fn span_ms(&self, request: &Request<'_>) -> Range<i64> {
        let mut span: Option<Range<i64>> = None;
        for series in 0..request.series.len() {
            for ts_ms in self.rows_of(request, series).into_keys() {
                let known = span.get_or_insert(ts_ms..ts_ms + 1);
                *known = known.start.min(ts_ms)..known.end.max(ts_ms + 1);
            }
        }
        span.unwrap_or(0..0)
    }

    fn readings(&mut self, request: &Request<'_>, reader: &mut RowReader<'_>) -> Result<(), StatementError> {
        assert!(!request.range_ms.is_empty());
        for series in 0..request.series.len() {
            for (ts_ms, values) in self.rows_of(request, series) {
                self.rows += 1;
                if reader(Row { series, ts_ms, values: &values })? == Next::Series {
                    break;
                }
            }
        }
        Ok(())
    }

    fn hours(&mut self, request: &Request<'_>, reader: &mut HourReader<'_>) -> Result<(), StatementError> {
        assert!(!request.range_ms.is_empty());
        if self.has_no_hours {
            return Err("no stats are expected to be read".into());
        }
        for series in 0..request.series.len() {
            let mut hours: BTreeMap<(i64, usize), HourStats> = BTreeMap::new();
            for (ts_ms, values) in self.rows_of(request, series) {
                let start_ms = ts_ms.div_euclid(MS_PER_HOUR) * MS_PER_HOUR;
                for (field, value) in values.iter().enumerate() {
                    let Some(value) = *value else { continue };
                    let only = (ts_ms, value);
                    let (min, max, sum, first, last) = (value, value, value, only, only);
                    let of_value = HourStats { series, field, start_ms, count: 1, min, max, sum, first, last };
                    let known = hours.entry((start_ms, field)).and_modify(|known| {
                        known.count += 1;
                        known.min = known.min.min(value);
                        known.max = known.max.max(value);
                        known.sum += value;
                        known.last = only;
                    });
                    known.or_insert(of_value);
                }
            }
            for stats in hours.into_values() {
                let end_ms = stats.start_ms + MS_PER_HOUR;
                assert!(request.range_ms.start <= stats.start_ms && end_ms <= request.range_ms.end);
                self.hours += 1;
                reader(stats)?;
            }
        }
        Ok(())
    }
}
