//! Copies the rollups of readings that have expired, or that the new store does not keep.

use std::sync::Arc;

use tidegauge::model::{Day, Hour, SeriesFilter};
use tidegauge::store::{DeviceSummary, HourStats, StatsNeeds, StoreError};

use super::super::target::{Progress, patiently};
use super::stores::Stores;
use super::walk::Devices;

/// The devices whose stats are compared at once.
const DEVICES_AT_ONCE: usize = 16;

/// The hours whose stats are compared at once.
const HOURS_AT_ONCE: i32 = 31 * 24;

/// Copies the rollups into the new store, and returns their number.
pub(super) async fn copy(stores: &Stores, progress: &mut Progress) -> anyhow::Result<u64> {
    each(stores, progress, async |entry: &DeviceSummary, hours: &[HourStats]| {
        patiently(async || {
            let added = stores.to.store.add_expired(entry, hours).await;
            added.map_err(|error| StoreError::new(error.cause, error.detail))
        })
        .await
    })
    .await
}

/// Counts the rollups that the new store lacks.
pub(super) async fn count_missing(stores: &Stores, progress: &mut Progress) -> anyhow::Result<u64> {
    each(stores, progress, async |_: &DeviceSummary, _: &[HourStats]| Ok(())).await
}

/// Finds the rollups that the new store lacks and cannot derive from readings.
///
/// Calls `found` with each device and the hours of these rollups, and returns the number of hours.
async fn each(
    stores: &Stores,
    progress: &mut Progress,
    found: impl AsyncFn(&DeviceSummary, &[HourStats]) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let mut devices = Devices::after(&*stores.from, None);
    let mut count = 0;
    while let Some(page) = devices.next_page().await? {
        for some in page.chunks(DEVICES_AT_ONCE) {
            let day_of = |ts_ms| Day::of(Hour::of(ts_ms)).hours();
            let end = some.iter().map(|entry| day_of(entry.last_ts_ms).end).max().unwrap_or(Hour(0));
            let start = some.iter().map(|entry| day_of(entry.first_ts_ms).start).min().unwrap_or(end);
            let mut next = start.max(stores.to.first_kept_rollup());
            while next < end {
                let until = Hour(next.0.saturating_add(HOURS_AT_ONCE).min(end.0));
                for (entry, hours) in some.iter().zip(lacking(stores, some, next..until).await?) {
                    let expired = expired(stores, entry, hours).await?;
                    if !expired.is_empty() {
                        found(entry, &expired).await?;
                        count += expired.len() as u64;
                    }
                }
                next = until;
            }
            progress.add(some.len() as u64, 0);
        }
    }
    Ok(count)
}

/// For each device, the hours whose stats the new store lacks, wholly or in part.
///
/// The stats of such an hour in the old store count more values of a metric than those in the new store.
async fn lacking(
    stores: &Stores,
    devices: &[DeviceSummary],
    hours: std::ops::Range<Hour>,
) -> anyhow::Result<Vec<Vec<HourStats>>> {
    let ids: Vec<Arc<str>> = devices.iter().map(|entry| Arc::clone(&entry.device)).collect();
    let all = &SeriesFilter::ALL;
    let old = patiently(async || stores.from.hour_stats(&ids, hours.clone(), all, StatsNeeds::All).await).await?;
    let (to, numbers) = (&stores.to.store, StatsNeeds::Numbers);
    let new = patiently(async || to.hour_stats(&ids, hours.clone(), all, numbers).await).await?;
    let lacking = |(mut old, new): (Vec<HourStats>, Vec<HourStats>)| {
        old.retain(|old| {
            let at = new.binary_search_by_key(&old.hour, |new| new.hour);
            !at.is_ok_and(|at| covers(&new[at], old))
        });
        old
    };
    Ok(old.into_iter().zip(new).map(lacking).collect())
}

/// Whether `these` stats count at least as many values of each metric as `others`.
fn covers(these: &HourStats, others: &HourStats) -> bool {
    others
        .stats
        .iter()
        .all(|(metric, other)| these.stats.iter().any(|(known, these)| known == metric && these.count >= other.count))
}

/// The hours whose stats the new store cannot derive from readings.
async fn expired(stores: &Stores, entry: &DeviceSummary, hours: Vec<HourStats>) -> anyhow::Result<Vec<HourStats>> {
    let first_kept = stores.to.first_kept_hour();
    let mut expired = Vec::new();
    for of_hour in hours {
        let HourStats { hour, last_ts_ms, .. } = of_hour;
        let readings = patiently(async || stores.from.contents(&entry.device, hour..Hour(hour.0 + 1)).await).await?;
        let of_readings = readings.first().map(|(_, contents)| contents.stats(hour)).unwrap_or_default();
        let of_readings = HourStats { hour, last_ts_ms, stats: of_readings };
        if hour < first_kept || !covers(&of_readings, &of_hour) {
            expired.push(of_hour);
        }
    }
    Ok(expired)
}
