//! Compares the stores: each reading of the old one is in the new one.
//!
//! The readings of the old store are folded anew, and compared with the stats that queries of the new store
//! get. An hour that differs is read from both stores. It may have more readings in the new store, or other
//! values, because devices have sent them since; it must lack none, and its stats must cover its readings.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use indicatif::HumanCount;
use tidegauge::common::clock::rfc3339;
use tidegauge::model::{Contents, Hour, Metric, SeriesFilter, Stats};
use tidegauge::store::{StatsNeeds, Store};

use super::expired;
use super::progress::Progress;
use super::stores::{Stores, patiently};
use super::walk::{Devices, END_MS, Slices};

/// The hours of devices that are compared at once, about.
const HOURS_AT_ONCE: usize = 2_000;

/// The hours that one query for stats may look at, for all of its devices.
const HOURS_PER_QUERY: usize = 50_000;

/// How often the stats of an hour are read until they cover its readings: the service may be rolling it up.
const ATTEMPTS: u32 = 10;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(500);

/// The number of differences that are listed one by one.
const LISTED: u64 = 20;

/// The outcome of a comparison.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    devices: u64,
    /// The hours of devices.
    hours: u64,
    readings: u64,
    values: u64,
    /// Hours of which the new store has other or more values.
    differing: u64,
    /// Values that the new store has changed since.
    changed: u64,
    /// Values that the new store lacks.
    missing: u64,
    /// Hours whose stats in the new store do not cover their readings.
    wrong_stats: u64,
    /// Rollups of expired readings that the new store lacks.
    missing_rollups: u64,
}

impl Report {
    /// Whether the new store has everything.
    pub(super) const fn is_complete(&self) -> bool {
        self.missing == 0 && self.wrong_stats == 0 && self.missing_rollups == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { devices, hours, readings, values, differing, changed, missing, wrong_stats, missing_rollups } = self;
        let [devices, hours, readings, values] = [devices, hours, readings, values].map(|count| HumanCount(*count));
        writeln!(
            f,
            "compared {devices} devices, {hours} device-hours, {readings} readings, {values} values, by count, \
             minimum, maximum and sum of each series"
        )?;
        writeln!(f, "{differing} device-hours have more or other values in the new store; {changed} values differ")?;
        write!(
            f,
            "missing in the new store: {missing} values, {missing_rollups} rollups of expired readings; wrong stats of \
             {wrong_stats} device-hours"
        )
    }
}

/// The stats of readings by hour and series.
type Folded = BTreeMap<Hour, HashMap<Metric, Stats>>;

/// Compares all readings of the old store, then the rollups of expired ones.
pub(super) async fn compare(stores: &Stores, progress: &mut Progress) -> anyhow::Result<Report> {
    let mut comparison = Comparison { stores, report: Report::default(), group: Group::default(), listed: 0 };
    let first_kept = stores.first_kept_hour();
    let mut devices = Devices::after(&*stores.from, None);
    while let Some(page) = devices.next_page().await? {
        for entry in page {
            let first = Hour::of(entry.first_ts_ms).max(first_kept);
            let mut slices = Slices::of(&*stores.from, &entry.device, first.start_ms()..END_MS);
            let mut folded = Folded::new();
            while let Some(slice) = slices.next().await? {
                let readings = slice.iter().map(|(_, contents)| contents.reading_count() as u64).sum();
                comparison.report.readings += readings;
                progress.add(0, readings);
                fold(&mut folded, slice);
                if folded.len() > HOURS_AT_ONCE {
                    let last = folded.pop_last(); // more of it may follow
                    comparison.add(&entry.device, std::mem::take(&mut folded), progress).await?;
                    folded.extend(last);
                }
            }
            comparison.add(&entry.device, folded, progress).await?;
            comparison.report.devices += 1;
            progress.add(1, 0);
        }
    }
    comparison.finish(progress).await
}

/// Adds the stats of a slice.
fn fold(folded: &mut Folded, slice: Vec<(Hour, Contents)>) {
    for (hour, contents) in slice {
        let of_hour = folded.entry(hour).or_default();
        for (metric, stats) in contents.stats(hour) {
            of_hour.entry(metric).and_modify(|known| known.merge(&stats)).or_insert(stats);
        }
    }
}

/// Devices whose stats are compared with one query.
#[derive(Default)]
struct Group {
    devices: Vec<(Arc<str>, Folded)>,
    /// The first and the last hour of all of them.
    span: Option<(Hour, Hour)>,
    hours: usize,
}

impl Group {
    fn span_with(&self, folded: &Folded) -> Option<(Hour, Hour)> {
        let ((first, _), (last, _)) = (folded.first_key_value()?, folded.last_key_value()?);
        Some(self.span.map_or((*first, *last), |(from, to)| (from.min(*first), to.max(*last))))
    }
}

struct Comparison<'a> {
    stores: &'a Stores,
    report: Report,
    group: Group,
    /// The differences that were listed.
    listed: u64,
}

impl Comparison<'_> {
    /// Adds the hours of a device, and compares a full group.
    async fn add(&mut self, device: &Arc<str>, folded: Folded, progress: &Progress) -> anyhow::Result<()> {
        let Some((first, last)) = self.group.span_with(&folded) else { return Ok(()) };
        let hours = (last.0 - first.0 + 1) as usize;
        let is_known = self.group.devices.last().is_some_and(|(known, _)| known == device);
        if is_known || hours.saturating_mul(self.group.devices.len()) > HOURS_PER_QUERY {
            self.compare_group(progress).await?;
        }
        self.group.span = self.group.span_with(&folded);
        self.group.hours += folded.len();
        self.group.devices.push((Arc::clone(device), folded));
        if self.group.hours >= HOURS_AT_ONCE { self.compare_group(progress).await } else { Ok(()) }
    }

    async fn finish(mut self, progress: &mut Progress) -> anyhow::Result<Report> {
        self.compare_group(progress).await?;
        progress.begin("comparing the rollups of expired readings");
        self.report.missing_rollups = expired::count_missing(self.stores, progress).await?;
        Ok(self.report)
    }

    async fn compare_group(&mut self, progress: &Progress) -> anyhow::Result<()> {
        let Group { devices, span, .. } = std::mem::take(&mut self.group);
        let Some((first, last)) = span else { return Ok(()) };
        let ids: Vec<Arc<str>> = devices.iter().map(|(device, _)| Arc::clone(device)).collect();
        let stats = stats_of(&*self.stores.to, &ids, first..Hour(last.0 + 1)).await?;
        for ((device, folded), mut stats) in devices.into_iter().zip(stats) {
            for (hour, old) in folded {
                self.report.hours += 1;
                self.report.values += old.values().map(|stats| stats.count).sum::<u64>();
                if !stats.remove(&hour).is_some_and(|new| agree(&old, &new)) {
                    self.compare_hour(&device, hour, &old, progress).await?;
                }
            }
        }
        Ok(())
    }

    /// Compares the readings of an hour one by one, and its stats with its readings.
    async fn compare_hour(
        &mut self,
        device: &Arc<str>,
        hour: Hour,
        old: &HashMap<Metric, Stats>,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let [from, to] = [&self.stores.from, &self.stores.to];
        let [from, to] = [contents_of(&**from, device, hour).await?, contents_of(&**to, device, hour).await?];
        if hour < self.stores.first_kept_hour() {
            return Ok(()); // it expires in the new store
        }
        self.report.differing += 1;
        let stored = to.values_for(from.metrics());
        let missing = from.samples().iter().filter(|sample| stored.of(sample).is_none()).count() as u64;
        let differ = from.samples().iter().filter(|sample| !stored.has(sample)).count() as u64;
        self.report.missing += missing;
        self.report.changed += differ - missing;
        let has_stats = missing > 0 || self.has_stats(device, hour, old, differ > missing).await?;
        self.report.wrong_stats += u64::from(!has_stats);
        let trouble = if missing > 0 { format!("{missing} values are missing") } else { "its stats are wrong".into() };
        if (missing > 0 || !has_stats) && self.listed < LISTED {
            self.listed += 1;
            progress.note(&format!("{device}, hour of {}: {trouble}", rfc3339(hour.start_ms())));
        }
        Ok(())
    }

    /// Whether the stats of an hour cover the readings of the old store. Those of other values may differ.
    async fn has_stats(
        &self,
        device: &Arc<str>,
        hour: Hour,
        old: &HashMap<Metric, Stats>,
        is_changed: bool,
    ) -> anyhow::Result<bool> {
        for _ in 0..ATTEMPTS {
            let mut found = stats_of(&*self.stores.to, std::slice::from_ref(device), hour..Hour(hour.0 + 1)).await?;
            let new = found.pop().and_then(|mut of_device| of_device.remove(&hour)).unwrap_or_default();
            let covers = |(metric, old): (&Metric, &Stats)| {
                new.get(metric).is_some_and(|new| {
                    new.count > old.count || (new.count == old.count && (is_changed || agrees(old, new)))
                })
            };
            if old.iter().all(covers) {
                return Ok(true);
            }
            tokio::time::sleep(BETWEEN_ATTEMPTS).await;
        }
        Ok(false)
    }
}

async fn contents_of(store: &dyn Store, device: &str, hour: Hour) -> anyhow::Result<Contents> {
    let mut found = patiently(async || store.contents(device, hour..Hour(hour.0 + 1)).await).await?;
    Ok(found.pop().map(|(_, contents)| contents).unwrap_or_default())
}

async fn stats_of(store: &dyn Store, devices: &[Arc<str>], hours: Range<Hour>) -> anyhow::Result<Vec<Folded>> {
    let all = &SeriesFilter::ALL;
    let found = patiently(async || store.hour_stats(devices, hours.clone(), all, StatsNeeds::Numbers).await).await?;
    let of_device = |hours: Vec<tidegauge::store::HourStats>| {
        hours.into_iter().map(|of| (of.hour, of.stats.into_iter().collect())).collect()
    };
    Ok(found.into_iter().map(of_device).collect())
}

/// Whether the stats of all series are the same.
fn agree(old: &HashMap<Metric, Stats>, new: &HashMap<Metric, Stats>) -> bool {
    old.len() == new.len() && old.iter().all(|(metric, old)| new.get(metric).is_some_and(|new| agrees(old, new)))
}

/// Whether stats are of the same values. Sums may differ by what the order of their additions rounds.
fn agrees(old: &Stats, new: &Stats) -> bool {
    let largest = old.min.abs().max(old.max.abs());
    let rounded = (old.count as f64).powi(2) * largest * f64::EPSILON;
    let is_same_sum = old.sum.total_cmp(&new.sum).is_eq() || (old.sum - new.sum).abs() <= rounded;
    (old.count, old.min, old.max) == (new.count, new.min, new.max) && is_same_sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_of_other_values_do_not_agree() {
        let of = |values: &[f64]| {
            let mut stats = Stats::of(0, values[0]);
            values[1..].iter().for_each(|value| stats.merge(&Stats::of(1, *value)));
            stats
        };
        assert!(agrees(&of(&[0.1, 0.2, 0.3]), &of(&[0.3, 0.1, 0.2])), "in another order");
        assert!(agrees(&of(&[f64::MAX, f64::MAX]), &of(&[f64::MAX, f64::MAX])));
        for other in [&[0.1, 0.2][..], &[0.1, 0.2, 0.3, 0.3], &[0.1, 0.25, 0.3], &[0.1, 0.2, 0.4], &[0.05, 0.2, 0.3]] {
            assert!(!agrees(&of(&[0.1, 0.2, 0.3]), &of(other)), "{other:?}");
        }
    }

    #[test]
    fn a_report_is_complete_if_nothing_is_missing() {
        let good = Report { changed: 1, differing: 2, ..Report::default() };
        assert!(good.is_complete());
        for report in [
            Report { missing: 1, ..Report::default() },
            Report { wrong_stats: 1, ..Report::default() },
            Report { missing_rollups: 1, ..Report::default() },
        ] {
            assert!(!report.is_complete(), "{report}");
        }
    }
}
