//! The readings of a document: `{ ts, value }`, or `{ minute, temp, ... }` of the hour of the bucket.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use bson::{RawBsonRef, RawDocument};

use super::Remark;
use super::instant::{instant_of, kind_of, number_of, shown, text_of, whole_of};
use crate::common::clock::rfc3339;
use crate::model::{Contents, Hour, HourOffset, MetricTable, Sample, series};

/// The names of the field with the instant of a reading.
pub(super) const INSTANTS: [&str; 3] = ["ts", "timestamp", "time"];

/// The names of the field with the value of a reading.
///
/// They apply if the document names the metric.
const VALUES: [&str; 2] = ["value", "val"];

/// Names that could be a part of the time beside `minute`.
const PARTS_OF_TIME: [&str; 7] = ["hour", "sec", "seconds", "ms", "millis", "milliseconds", "offset"];

/// The readings of a document, and what was not understood.
#[derive(Debug)]
pub(super) struct Readings {
    /// The readings by hour, ascending.
    pub(super) hours: Vec<(Hour, Contents)>,
    /// The name of the field with the time, in the first reading that was understood.
    ///
    /// `none` if no reading was understood.
    pub(super) clock: &'static str,
    /// The number of items in the array of readings.
    pub(super) items: u64,
    /// The number of readings that are not understood, and a remark about the first.
    pub(super) rejected: Option<(u64, Remark)>,
    /// The values that another value of the same instant and metric replaces.
    pub(super) replaced: u64,
}

/// Reads the readings of an array.
#[derive(Debug)]
pub(super) struct Reader<'r> {
    /// The name of the array of readings.
    pub(super) array: &'static str,
    /// Paths of fields that are not read.
    pub(super) ignored: &'r BTreeSet<String>,
    /// The hour of the bucket and the field that has it, unless that is ignored.
    pub(super) hour: Option<(&'static str, Hour)>,
    /// The metric of the field `value`, if the document names one.
    pub(super) metric: Option<&'r str>,
    /// The most metrics of a reading.
    pub(super) max_metrics: usize,
}

/// The samples of an hour.
#[derive(Debug, Default)]
struct OfHour {
    metrics: MetricTable,
    samples: Vec<Sample>,
}

/// The time of a reading: an instant, with the name of its field, or a minute of the hour of the bucket.
#[derive(Clone, Copy)]
enum Clock {
    Instant(&'static str, i64),
    Minute(i64),
}

/// Why a reading is not understood: a text that is the same for all readings with this fault, and the detail
/// of this reading.
type Why = (String, String);

impl Reader<'_> {
    /// Reads all items of the array.
    pub(super) fn read<'a>(&self, items: impl Iterator<Item = Result<RawBsonRef<'a>, String>>) -> Readings {
        let mut hours: BTreeMap<Hour, OfHour> = BTreeMap::new();
        let (mut clock, mut count, mut rejected, mut values) = (None, 0, None::<(u64, Remark)>, Vec::new());
        for item in items {
            let read = match item {
                Ok(item) => self.read_item(item, &mut values, &mut hours),
                Err(error) => Err(("an item of the readings is no BSON".to_owned(), error)),
            };
            match read {
                Ok(name) => clock = clock.or(Some(name)),
                Err((about, detail)) => {
                    let remark = || Remark::new(about, format!("{}[{count}] {detail}", self.array));
                    rejected.get_or_insert_with(|| (0, remark())).0 += 1;
                }
            }
            count += 1;
        }
        let mut replaced = 0;
        let hours = hours.into_iter().map(|(hour, of_hour)| (hour, of_hour.contents(&mut replaced))).collect();
        Readings { hours, clock: clock.unwrap_or("none"), items: count, rejected, replaced }
    }

    /// Reads an item of the array, and returns the name of the field that has its time.
    fn read_item<'a>(
        &self,
        item: RawBsonRef<'a>,
        values: &mut Vec<(&'a str, f64)>,
        hours: &mut BTreeMap<Hour, OfHour>,
    ) -> Result<&'static str, Why> {
        let RawBsonRef::Document(reading) = item else {
            return Err(("a reading is no document".to_owned(), format!("is {}", kind_of(item))));
        };
        values.clear();
        let (mut clock, mut second) = (None, None);
        for element in reading {
            let (key, value) = element.map_err(|error| ("a reading is no BSON".to_owned(), error.to_string()))?;
            let key = key.as_str();
            if self.is_ignored(key) {
                continue;
            }
            let not_understood = |why: String| {
                let path = format!("{}.{}", self.array, shown(key));
                (format!("{path} is not understood (--ignore {path} skips it)"), format!("{} {why}", shown(key)))
            };
            if let Some(name) = INSTANTS.into_iter().find(|name| *name == key) {
                let instant = instant_of(value).map_err(not_understood)?;
                set_clock(&mut clock, Clock::Instant(name, instant))?;
            } else if key == "minute" {
                set_clock(&mut clock, Clock::Minute(whole_of(value, 0..60).map_err(not_understood)?))?;
            } else if key == "second" {
                second = Some(whole_of(value, 0..60).map_err(not_understood)?);
            } else if let ("values", RawBsonRef::Document(all)) = (key, value) {
                self.add_all(all, values).map_err(not_understood)?;
            } else {
                self.add(key, value, values).map_err(not_understood)?;
            }
        }
        let missing = || ("a reading has no time: ts, timestamp, time or minute".to_owned(), "has none".to_owned());
        let (name, ts_ms) = self.instant(clock.ok_or_else(missing)?, second, values)?;
        if values.is_empty() {
            return Err(("a reading has no value".to_owned(), "has none".to_owned()));
        }
        let of_hour = hours.entry(Hour::of(ts_ms)).or_default();
        for (key, value) in &*values {
            of_hour.push(self.metric_of(key), *value, Hour::offset_of(ts_ms));
        }
        Ok(name)
    }

    /// The name of the field that has the time of a reading, and its instant in Unix milliseconds.
    fn instant(&self, clock: Clock, second: Option<i64>, values: &[(&str, f64)]) -> Result<(&'static str, i64), Why> {
        match clock {
            Clock::Instant(..) if second.is_some() => Err(several_times()),
            Clock::Minute(minute) => {
                let no_hour = || ("a minute without the hour of a bucket".to_owned(), format!("has minute {minute}"));
                let (_, hour) = self.hour.ok_or_else(no_hour)?;
                if let Some((name, _)) = values.iter().find(|(name, _)| PARTS_OF_TIME.contains(name)) {
                    let path = format!("{}.{name}", self.array);
                    let about = format!("{path} may be a part of the time (--ignore {path} skips it)");
                    return Err((about, format!("has {name} beside minute")));
                }
                Ok(("minute", hour.start_ms() + minute * 60_000 + second.unwrap_or(0) * 1_000))
            }
            Clock::Instant(name, ts_ms) => match self.hour {
                Some((field, hour)) if Hour::of(ts_ms) != hour => Err((
                    format!("a reading is outside of the hour of its bucket (--ignore {field}: {name} alone counts)"),
                    format!("has {name} {}, and {field} is {}", rfc3339(ts_ms), text_of(hour)),
                )),
                _ => Ok((name, ts_ms)),
            },
        }
    }

    fn is_ignored(&self, key: &str) -> bool {
        let is_it = |path: &String| path.strip_prefix(self.array).and_then(|rest| rest.strip_prefix('.')) == Some(key);
        self.ignored.iter().any(is_it)
    }

    /// Adds the fields of the sub-document `values`.
    fn add_all<'a>(&self, all: &'a RawDocument, values: &mut Vec<(&'a str, f64)>) -> Result<(), String> {
        for element in all {
            let (key, value) = element.map_err(|error| error.to_string())?;
            self.add(key.as_str(), value, values)?;
        }
        Ok(())
    }

    fn add<'a>(&self, key: &'a str, value: RawBsonRef<'_>, values: &mut Vec<(&'a str, f64)>) -> Result<(), String> {
        let Some(number) = number_of(value)? else { return Ok(()) };
        if values.len() >= self.max_metrics {
            return Err(format!("is one of more than {} metrics", self.max_metrics));
        }
        if !series::is_usual(key) {
            series::canonical(key).map_err(|error| format!("is no metric: {error}"))?;
        }
        values.push((key, number));
        Ok(())
    }

    /// The metric that a field of a reading stands for.
    fn metric_of<'k>(&'k self, key: &'k str) -> &'k str {
        self.metric.filter(|_| VALUES.contains(&key)).unwrap_or(key)
    }
}

impl OfHour {
    fn push(&mut self, name: &str, value: f64, offset: HourOffset) {
        let metric = self.metrics.find(name).unwrap_or_else(|| {
            let canonical = series::canonical(name).unwrap_or(Cow::Borrowed(name)); // it is valid
            self.metrics.place_of(&canonical)
        });
        self.samples.push(Sample { value, offset, metric });
    }

    /// The readings, each identity once.
    ///
    /// Adds to `replaced` the number of values that a later value of the same identity replaces, if the two
    /// differ.
    fn contents(self, replaced: &mut u64) -> Contents {
        let Self { metrics, samples } = self;
        let is_unique = samples.is_sorted_by(|a, b| a.key() < b.key());
        let all = if is_unique { Vec::new() } else { samples.clone() };
        let contents = Contents::new(metrics.into_metrics(), samples);
        let kept = contents.values_for(contents.metrics());
        *replaced += all.iter().filter(|sample| !kept.has(sample)).count() as u64;
        contents
    }
}

fn set_clock(clock: &mut Option<Clock>, found: Clock) -> Result<(), Why> {
    if clock.replace(found).is_some() { Err(several_times()) } else { Ok(()) }
}

fn several_times() -> Why {
    let about = "a reading has several times (--ignore readings.FIELD skips one)".to_owned();
    (about, "has more than one of ts, timestamp, time, minute".to_owned())
}
