//! The devices of a query that are read and converted together, with one request to the store.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tokio::time::Instant;

use super::fold::{fold_hours, fold_parts};
use super::merge::{MetricsOfHour, merge, repeated};
use super::parts::Part;
use super::plan::Plan;
use super::read::{self, Hours, ReadBudget};
use super::{Queries, QueryError, Rollups};
use crate::model::{Contents, Hour};
use crate::store::{HourStats, Store, StoreError};

/// The most hours in one request to the store for readings that are merged.
const HOURS_PER_FETCH: usize = 48;

/// The devices of a query that one request to the store reads.
pub(super) struct Group {
    pub(super) queries: Queries,
    pub(super) deadline: Instant,
    pub(super) devices: Vec<Arc<str>>,
    /// The index of the first of these devices among all devices of the query.
    pub(super) first: usize,
    pub(super) plan: Arc<Plan>,
    pub(super) budget: Arc<ReadBudget>,
}

/// The converted rollups of a group.
pub(super) struct Converted<T> {
    /// The results up to the first device that exceeds a limit.
    pub(super) devices: Vec<Result<T, QueryError>>,
    /// Whether some of the readings are pending.
    pub(super) is_pending: bool,
    /// The error of the store. `Some`: the stored readings are missing.
    pub(super) failed: Option<QueryError>,
}

impl Group {
    /// Reads and converts the devices, up to the first one that exceeds a limit.
    pub(super) async fn converted<T>(
        self,
        convert: Arc<impl Fn(usize, Rollups) -> Result<T, QueryError>>,
    ) -> Result<Converted<T>, QueryError> {
        let Self { queries, deadline, devices, first, plan, .. } = &self;
        let pending = queries.pending(devices, plan.hours.clone()).await?;
        let is_pending = pending.iter().any(|hours| !hours.is_empty());
        let stored = queries.store.hour_stats(devices, plan.hours.clone(), &plan.series, plan.columns.needs());
        let (stored, failed) = match queries.ask(*deadline, stored).await {
            Ok(stored) => (stored, None),
            Err(error) => (vec![Vec::new(); devices.len()], Some(error)),
        };
        let mut converted = Vec::with_capacity(devices.len());
        for (at, ((device, stored), pending)) in devices.iter().zip(stored).zip(pending).enumerate() {
            let of_device = match self.rollups_of(device, stored, pending).await {
                Err(error) if !error.is_limit() => return Err(error),
                of_device => of_device.and_then(|rollups| convert(first + at, rollups)),
            };
            let is_last = of_device.is_err();
            converted.push(of_device);
            if is_last {
                break;
            }
            tokio::task::yield_now().await;
        }
        Ok(Converted { devices: converted, is_pending, failed })
    }

    /// Returns the rollups of one device.
    async fn rollups_of(
        &self,
        device: &Arc<str>,
        stored: Vec<HourStats>,
        pending: Vec<(Hour, Contents)>,
    ) -> Result<Rollups, QueryError> {
        let Self { queries, deadline, plan, budget, .. } = self;
        if !plan.reads {
            return Ok(fold_hours(self.merged(device, stored, pending).await?, &plan.grid));
        }
        let hours = Hours::of(plan, stored, pending);
        let mut parts = read::read(queries, *deadline, plan, budget, device, &hours).await?;
        parts.extend(self.merged(device, hours.stored, hours.pending).await?.into_iter().map(part_of));
        parts.sort_by_key(|part| part.ts_ms);
        Ok(fold_parts(parts, &plan.grid, plan.counts_increase()))
    }

    /// Returns the stats of the hours of a device, stored and pending ones merged.
    async fn merged(
        &self,
        device: &str,
        stored: Vec<HourStats>,
        pending: Vec<(Hour, Contents)>,
    ) -> Result<Vec<MetricsOfHour>, QueryError> {
        let Self { queries, deadline, plan, .. } = self;
        let repeated = match &repeated(&stored, &pending)[..] {
            [] => BTreeMap::new(),
            hours => queries.ask(*deadline, fetch(&*queries.store, device, hours)).await?,
        };
        Ok(merge(stored, repeated, pending, &plan.series))
    }
}

/// Converts an hour to a part. Its growth follows from its stats.
pub(super) fn part_of((hour, stats): MetricsOfHour) -> Part {
    Part { ts_ms: hour.start_ms(), stats, growth: Vec::new() }
}

/// Fetches the stored readings of these hours. An hour whose readings have expired is empty.
async fn fetch(store: &dyn Store, device: &str, hours: &[Hour]) -> Result<BTreeMap<Hour, Contents>, StoreError> {
    let mut fetched: BTreeMap<Hour, Contents> = hours.iter().map(|hour| (*hour, Contents::default())).collect();
    for run in hours.chunk_by(|a, b| a.0 + 1 == b.0).flat_map(|run| run.chunks(HOURS_PER_FETCH)) {
        let range = Range { start: run[0], end: Hour(run[run.len() - 1].0 + 1) };
        fetched.extend(store.contents(device, range).await?);
    }
    Ok(fetched)
}
