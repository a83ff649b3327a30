//! A source in memory, from line protocol, for tests and fuzzing.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{
    Aliases, Found, HourStats, Next, Read, Reader, Request, Row, Series, Source, StatementError, Wanted, WantedTag,
};

type Tags = Vec<(Arc<str>, Arc<str>)>;
type Fields = BTreeMap<Arc<str>, BTreeMap<i64, f64>>;

/// By instant, the values, each with the index of its field.
type Rows = BTreeMap<i64, Vec<(usize, f64)>>;

const MS_PER_HOUR: i64 = 3_600_000;

/// Points in memory, and counts of what statements have read.
#[derive(Default)]
pub(super) struct Data {
    /// The points of each series, by measurement and tags.
    ///
    /// The key of a series is its index in this list.
    points: Vec<((Arc<str>, Tags), Fields)>,
    /// The number of rows that were read.
    pub(super) rows: usize,
    /// The number of hours of stats that were read.
    pub(super) hours: usize,
    /// Whether stats are refused.
    pub(super) has_no_hours: bool,
    /// Whether series that statements do not need are left out.
    pub(super) leaves_out_others: bool,
    /// The number of series that were listed.
    pub(super) listed: usize,
    /// How often a statement has called [`Source::check`].
    pub(super) checks: Cell<usize>,
    /// The wanted tags of the last statement.
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
        let mut points: BTreeMap<(Arc<str>, Tags), Fields> = BTreeMap::new();
        for line in lines.lines() {
            let [key, fields, time] = &*split(line, ' ') else { panic!("{line}") };
            let mut key = split(key, ',').into_iter();
            let measurement = plain(&key.next().expect("a measurement")).into();
            let mut tags: Tags = key.map(|tag| pair(&tag)).collect();
            tags.sort_unstable();
            let ts_ms = time.parse::<i64>().expect("a time") / 1_000_000;
            let series = points.entry((measurement, tags)).or_default();
            for field in split(fields, ',') {
                let (name, value) = pair(&field);
                series.entry(name).or_default().insert(ts_ms, value.parse().expect("a number"));
            }
        }
        Self { points: points.into_iter().collect(), ..Self::default() }
    }

    /// The number of series of all measurements.
    pub(super) const fn size(&self) -> usize {
        self.points.len()
    }

    /// The range of all points of a series.
    fn span_of(&self, key: usize) -> Range<i64> {
        let times = || self.points[key].1.values().flat_map(BTreeMap::keys);
        times().min().map_or(0..0, |first| *first..times().max().unwrap_or(first) + 1)
    }

    fn rows_of(&self, request: &Request<'_>, series: usize) -> Rows {
        let mut rows = Rows::new();
        let (_, fields) = &self.points[request.series[series].key];
        for (place, field) in request.fields.iter().enumerate() {
            let points = fields.get(*field).into_iter().flat_map(|points| points.range(request.range_ms.clone()));
            for (ts_ms, value) in points {
                rows.entry(*ts_ms).or_default().push((place, *value));
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
    if !text.contains('\\') {
        return text.split(at).map(str::to_owned).collect();
    }
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
    fn series(&mut self, wanted: &[Wanted]) -> Result<Vec<BTreeMap<Arc<str>, Found>>, StatementError> {
        self.wanted = wanted.iter().flat_map(|wanted| wanted.tags.clone()).collect();
        let of_wanted = |wanted: &Wanted| {
            let mut found: BTreeMap<Arc<str>, Found> = BTreeMap::new();
            for (key, ((measurement, tags), fields)) in self.points.iter().enumerate() {
                if !wanted.measurements.contain(measurement) {
                    continue;
                }
                let fields: Vec<_> = fields.keys().cloned().collect();
                let series = Series { key, tags: tags.clone(), fields, aliases: Arc::clone(&self.aliases) };
                let has_all = wanted.tags.iter().all(|wanted| wanted.values.contains(series.tag(&wanted.key)));
                let is_listed =
                    if self.leaves_out_others { wanted.needs(&series, &self.span_of(key)) } else { has_all };
                if !is_listed && !wanted.needs_schema {
                    continue;
                }
                let of_measurement = found.entry(Arc::clone(measurement)).or_default();
                if wanted.needs_schema {
                    of_measurement.fields.extend(series.fields.iter().cloned());
                    of_measurement.tags.extend(tags.iter().map(|(key, _)| Arc::clone(key)));
                }
                if is_listed {
                    of_measurement.series.push(series);
                }
            }
            found
        };
        let found: Vec<_> = wanted.iter().map(of_wanted).collect();
        self.listed += found.iter().flat_map(BTreeMap::values).map(|found| found.series.len()).sum::<usize>();
        Ok(found)
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

    fn readings(&mut self, requests: &[Request<'_>], reader: &mut Reader<'_>) -> Result<(), StatementError> {
        for (at, request) in requests.iter().enumerate() {
            assert!(!request.range_ms.is_empty());
            for series in 0..request.series.len() {
                for (ts_ms, values) in self.rows_of(request, series) {
                    self.rows += 1;
                    match reader(Read::Row(Row { request: at, series, ts_ms, values: &values }))? {
                        Next::Row => {}
                        Next::Series => break,
                        Next::End => return Ok(()),
                    }
                }
            }
        }
        Ok(())
    }

    fn hours(&mut self, requests: &[Request<'_>], reader: &mut Reader<'_>) -> Result<(), StatementError> {
        if self.has_no_hours {
            return Err("no stats are expected to be read".into());
        }
        for (at, request) in requests.iter().enumerate() {
            assert!(!request.range_ms.is_empty());
            for series in 0..request.series.len() {
                for stats in stats_of(self.rows_of(request, series)) {
                    let end_ms = stats.start_ms + MS_PER_HOUR;
                    assert!(request.range_ms.start <= stats.start_ms && end_ms <= request.range_ms.end);
                    self.hours += 1;
                    reader(Read::Hour(HourStats { request: at, series, ..stats }))?;
                }
            }
        }
        Ok(())
    }
}

/// The stats of the hours of a series.
fn stats_of(rows: Rows) -> impl Iterator<Item = HourStats> {
    let mut hours: BTreeMap<(i64, usize), HourStats> = BTreeMap::new();
    for (ts_ms, values) in rows {
        let start_ms = ts_ms.div_euclid(MS_PER_HOUR) * MS_PER_HOUR;
        for (field, value) in values {
            let (only, min, max, sum) = ((ts_ms, value), value, value, value);
            let of_value =
                HourStats { request: 0, series: 0, field, start_ms, count: 1, min, max, sum, first: only, last: only };
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
    hours.into_values()
}
