//! The latest values of a device.
//!
//! The device index has the last day of each series. The series may have ended before this day, because the
//! store may refuse or delete readings after the index has counted them.
//!
//! Most series have their last reading in the newest hour of the device. For each other series, the stats of
//! its last day tell the hour of its last reading. Each of these hours is read once. If a series has no
//! readings on its last day, the store searches the days before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::metadata::in_effect;
use super::{Answer, Missing, Queries, QueryError};
use crate::access::DeviceScope;
use crate::model::{Contents, Day, Hour, Keep, Metric, SeriesFilter, ValueLimits};
use crate::pending::PendingHour;
use crate::store::{DeviceMetadata, HourSamples, StatsNeeds, Store, StoreError};

/// The most days that are read for the silent series of one device.
///
/// A series is silent if it has no reading in the newest hours.
pub(super) const MAX_DAYS: usize = 32;

/// The latest values of a device.
#[derive(Debug, Default)]
pub struct Latest {
    /// The latest value of each metric, with its instant in Unix milliseconds.
    pub values: BTreeMap<Metric, (i64, f64)>,
    /// Whether further metrics may have values, which `values` lacks.
    pub has_more: bool,
    /// The metadata in effect: that of the device, with the keys of operators over it.
    pub metadata: Option<DeviceMetadata>,
}

impl Queries {
    /// Returns the latest value of each wanted series of a device. `None`: it has no readings.
    ///
    /// # Errors
    /// If the device is outside of the scope, the store does not answer, or the query takes too long.
    pub async fn latest(
        &self,
        scope: &DeviceScope,
        device: &str,
        series: &SeriesFilter,
    ) -> Result<Answer<Option<Latest>>, QueryError> {
        let deadline = self.deadline();
        let device = &*scope.to_stored_id(device)?;
        let lagging = self.catch_up().await;
        let pending = self.latest_pending(deadline, vec![device.into()]).await?.remove(0);
        let stored = latest_stored(&*self.store, device, series, !pending.values.is_empty());
        let (stored, partial) = match self.ask(deadline, stored).await {
            Ok(stored) => stored,
            Err(_) if !pending.values.is_empty() => (None, Some(Missing::Stored)),
            Err(error) => return Err(error),
        };
        if stored.is_none() && pending.values.is_empty() {
            return Ok(Answer { body: None, lagging, partial });
        }
        let mut latest = stored.unwrap_or_default();
        latest.complete(pending, self.store.keeps(), series);
        match self.operator_metadata(deadline, &[device.into()]).await {
            Ok(operator) => {
                let operator = operator.into_values().next().unwrap_or_default();
                latest.metadata = in_effect(latest.metadata.as_ref(), &operator);
            }
            Err(_) if partial == Some(Missing::Stored) => {}
            Err(error) => return Err(error),
        }
        Ok(Answer { body: Some(latest), lagging, partial })
    }

    /// Returns the last pending value of each metric of each device.
    ///
    /// It reads an hour only for metrics without a value in later hours: a device that sends a week of
    /// history has many pending hours.
    pub(super) async fn latest_pending(
        &self,
        deadline: Instant,
        devices: Vec<Arc<str>>,
    ) -> Result<Vec<Latest>, QueryError> {
        let of = |hours: &[PendingHour]| {
            let mut latest = Latest::default();
            for hour in hours.iter().rev() {
                if hour.metrics().iter().any(|metric| !latest.values.contains_key(metric)) {
                    let mut samples = HourSamples::last_of_each_metric(hour.hour);
                    samples.extend(&hour.contents());
                    latest.add_hour(hour.hour, &samples.finish().0);
                }
                let metadata = hour.metadata().map(|text| DeviceMetadata { hour: hour.hour, text: Arc::clone(text) });
                latest.metadata = DeviceMetadata::newest(latest.metadata.take(), metadata);
            }
            latest
        };
        Ok(self.of_pending(deadline, devices, Hour::ALL, false, of).await?.0)
    }
}

/// Returns the last stored values of the wanted series of a device. Other series of its newest hour may be
/// among them. `None`: the device has no readings, neither stored nor pending ones. The second value says
/// whether the device index may lack series.
///
/// If the device has only pending ones (`is_pending`), the result has its metadata, and no values.
async fn latest_stored(
    store: &dyn Store,
    device: &str,
    series: &SeriesFilter,
    is_pending: bool,
) -> Result<(Option<Latest>, Option<Missing>), StoreError> {
    let mut latest = Latest::default();
    let newest = store.last_hour(device).await?;
    match newest {
        Some(newest) => latest.add_hour(newest, &store.latest(device, newest).await?),
        None if is_pending => {}
        None => return Ok((None, None)),
    }
    let mut known = store.entries_of(&[device.into()]).await?;
    let missing = known.is_incomplete.then_some(Missing::Devices);
    let Some(known) = known.devices.pop() else { return Ok((Some(latest), missing)) };
    latest.metadata = known.metadata;
    if newest.is_none() {
        return Ok((Some(latest), missing)); // its stored readings have expired
    }
    let mut silent: BTreeMap<Day, BTreeSet<Metric>> = BTreeMap::new();
    for of_device in known.series {
        if series.matches(&of_device.metric) && !latest.values.contains_key(&of_device.metric) {
            silent.entry(of_device.last_day).or_default().insert(of_device.metric);
        }
    }
    let first = Hour::of(known.first_ts_ms);
    for _ in 0..MAX_DAYS {
        let Some((day, mut metrics)) = silent.pop_last() else { break };
        latest.add_day(store, device, day, &mut metrics).await?;
        let before = first..day.hours().start;
        if !metrics.is_empty()
            && let Some(hour) = store.last_hour_with(device, &metrics, before).await?
        {
            silent.entry(Day::of(hour)).or_default().extend(metrics);
        }
    }
    latest.has_more = known.has_more_series || !silent.is_empty();
    Ok((Some(latest), missing))
}

impl Latest {
    /// Returns the limits of values from the metadata of the device.
    #[must_use]
    pub fn limits(&self) -> ValueLimits {
        self.metadata.as_ref().map(|metadata| ValueLimits::of_metadata(&metadata.text)).unwrap_or_default()
    }

    /// Whether a value is beyond its limits.
    pub(super) fn is_beyond_limits(&self) -> bool {
        let limits = self.limits();
        self.values.iter().any(|(metric, (_, value))| limits.beyond(metric, *value).is_some())
    }

    /// Adds the last stored values of `metrics` on a day.
    ///
    /// Removes from `metrics` those with stats of that day, so that no earlier day is searched for them. If
    /// the readings behind the stats have expired, all earlier readings have expired too.
    async fn add_day(
        &mut self,
        store: &dyn Store,
        device: &str,
        day: Day,
        metrics: &mut BTreeSet<Metric>,
    ) -> Result<(), StoreError> {
        let wanted = SeriesFilter::new(metrics.iter().map(|metric| &**metric), []).unwrap_or_default();
        let stats = store.hour_stats(&[device.into()], day.hours(), &wanted, StatsNeeds::Numbers).await?;
        let mut last_hours: BTreeMap<&Metric, Hour> = BTreeMap::new();
        for hour in stats.iter().flatten() {
            let of_hour = hour.stats.iter().map(|(metric, _)| metric).filter(|metric| metrics.contains(*metric));
            last_hours.extend(of_hour.map(|metric| (metric, hour.hour))); // ascending by hour
        }
        for hour in last_hours.values().copied().collect::<BTreeSet<_>>() {
            // A series that the index lacks may have a later value in an hour that is not read.
            let contents = store.latest(device, hour).await?;
            self.add_hour(hour, &contents.filter(|metric, _| metrics.contains(metric)));
        }
        metrics.retain(|metric| !last_hours.contains_key(metric));
        Ok(())
    }

    /// Adds the last value of each metric in an hour.
    pub(super) fn add_hour(&mut self, hour: Hour, contents: &Contents) {
        for sample in contents.samples() {
            let value = (hour.instant_ms(sample.offset), sample.value);
            self.add(contents.metric_of(sample).clone(), value, Keep::Last);
        }
    }

    /// Adds pending values and metadata, and drops unwanted series.
    pub(super) fn complete(&mut self, pending: Self, keep: Keep, series: &SeriesFilter) {
        self.metadata = DeviceMetadata::newest(self.metadata.take(), pending.metadata);
        for (metric, value) in pending.values {
            self.add(metric, value, keep);
        }
        self.values.retain(|metric, _| series.matches(metric));
    }

    /// Adds a value. `keep` says which of two values at the same instant stays.
    pub(super) fn add(&mut self, metric: Metric, value: (i64, f64), keep: Keep) {
        let known = self.values.entry(metric).or_insert(value);
        if value.0 > known.0 || (value.0 == known.0 && keep == Keep::Last) {
            *known = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BucketWrite, Sample};
    use crate::store::sqlite::SqliteStore;

    #[tokio::test]
    async fn a_series_that_is_not_looked_for_gets_no_value_of_an_earlier_hour() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("db")).unwrap();
        let write = |hour: i32, metrics: Vec<Metric>| {
            let sample = |metric: u32| (Sample { value: 1.0, offset: 5, metric }, metric == 0);
            let samples = (0..).take(metrics.len()).map(sample);
            Arc::new(BucketWrite::new("d".into(), Hour(hour), None, metrics, samples))
        };
        let writes = [write(1, vec!["a".into(), "other".into()]), write(2, vec!["other".into()])];
        for outcome in store.write(&writes).await {
            outcome.unwrap();
        }
        let (mut latest, mut metrics) = (Latest::default(), BTreeSet::from([Metric::from("a")]));
        latest.add_day(&store, "d", Day::of(Hour(1)), &mut metrics).await.unwrap();
        assert!(metrics.is_empty(), "it is found");
        assert_eq!(latest.values, BTreeMap::from([(Metric::from("a"), (Hour(1).instant_ms(5), 1.0))]));
    }
}
