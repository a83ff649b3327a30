//! Compares the two stores: each reading of the old store must be in the new store.
//!
//! The comparison computes stats from the readings of the old store, and compares them with the stats that
//! queries of the new store get. If the stats of an hour differ, it reads the hour from both stores. In the
//! new store, the hour may have more readings or other values, because devices have sent them since. It must
//! not lack a reading, and its stats must cover its readings.

use std::fmt;
use std::sync::Arc;

use indicatif::HumanCount;
use tidegauge::common::clock::rfc3339;
use tidegauge::model::{Contents, Hour};

use super::super::target::{Folded, HourCheck, Progress, agrees, contents_of, stats_of};
use super::stores::Stores;
use super::walk::{Devices, END_MS, Slices};
use super::{described, expired};

/// About how many device-hours are compared at once.
const HOURS_AT_ONCE: usize = 2_000;

/// The most device-hours that one query for stats may cover.
const HOURS_PER_QUERY: usize = 50_000;

/// The number of differences that are listed one by one.
const LISTED: u64 = 20;

/// The outcome of a comparison.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    devices: u64,
    /// The number of compared device-hours.
    hours: u64,
    readings: u64,
    values: u64,
    /// Hours with more or other values in the new store.
    differing: u64,
    /// Values that differ, because the new store has received others since.
    changed: u64,
    /// Values that the new store lacks.
    missing: u64,
    /// Hours whose stats in the new store do not cover their readings.
    wrong_stats: u64,
    /// Rollups of expired readings that the new store lacks.
    missing_rollups: u64,
    /// Devices of which the new store lacks metadata that operators have set.
    missing_metadata: u64,
}

impl Report {
    /// Whether the new store has everything.
    pub(super) const fn is_complete(&self) -> bool {
        self.missing == 0 && self.wrong_stats == 0 && self.missing_rollups == 0 && self.missing_metadata == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { devices, hours, readings, values, differing, changed, missing, .. } = self;
        let Self { wrong_stats, missing_rollups, missing_metadata, .. } = self;
        let [devices, hours, readings, values] = [devices, hours, readings, values].map(|count| HumanCount(*count));
        writeln!(
            f,
            "compared {devices} devices, {hours} device-hours, {readings} readings, {values} values, by count, \
             minimum, maximum and sum of each series"
        )?;
        writeln!(f, "{differing} device-hours have more or other values in the new store; {changed} values differ")?;
        write!(
            f,
            "missing in the new store: {missing} values, {missing_rollups} rollups of expired readings, metadata of \
             {missing_metadata} devices; wrong stats of {wrong_stats} device-hours"
        )
    }
}

/// Compares all readings of the old store, then the rollups of expired ones.
pub(super) async fn compare(stores: &Stores, progress: &mut Progress) -> anyhow::Result<Report> {
    let (report, group) = (Report::default(), Group::default());
    let mut comparison = Comparison { stores, report, group, listed: 0 };
    let first_kept = stores.to.first_kept_hour();
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
                    let last = folded.pop_last(); // the next slice may have more of this hour
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
    /// The earliest and the latest hour of all its devices.
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
        self.report.missing_metadata = described::count_missing(self.stores).await?;
        Ok(self.report)
    }

    async fn compare_group(&mut self, progress: &Progress) -> anyhow::Result<()> {
        let Group { devices, span, .. } = std::mem::take(&mut self.group);
        let Some((first, last)) = span else { return Ok(()) };
        let ids: Vec<Arc<str>> = devices.iter().map(|(device, _)| Arc::clone(device)).collect();
        let stats = stats_of(&*self.stores.to.store, &ids, first..Hour(last.0 + 1)).await?;
        for ((device, folded), mut stats) in devices.into_iter().zip(stats) {
            for (hour, old) in folded {
                self.report.hours += 1;
                self.report.values += old.values().map(|stats| stats.count).sum::<u64>();
                if !stats.remove(&hour).is_some_and(|new| agrees(&old, &new)) {
                    self.compare_hour(&device, hour, progress).await?;
                }
            }
        }
        Ok(())
    }

    /// Compares the readings of an hour one by one, and its stats with its readings.
    async fn compare_hour(&mut self, device: &Arc<str>, hour: Hour, progress: &Progress) -> anyhow::Result<()> {
        let expected = contents_of(&*self.stores.from, device, hour).await?;
        let check = self.stores.to.check_hour(device, hour, &expected).await?;
        if hour < self.stores.to.first_kept_hour() {
            return Ok(()); // the new store has expired this hour meanwhile
        }
        let HourCheck { missing, differing, has_stats } = check;
        self.report.differing += 1;
        self.report.missing += missing;
        self.report.changed += differing;
        self.report.wrong_stats += u64::from(!has_stats);
        let trouble = if missing > 0 { format!("{missing} values are missing") } else { "its stats are wrong".into() };
        if (missing > 0 || !has_stats) && self.listed < LISTED {
            self.listed += 1;
            progress.note(&format!("{device}, hour of {}: {trouble}", rfc3339(hour.start_ms())));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
