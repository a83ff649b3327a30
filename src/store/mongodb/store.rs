//! The store of every layout: the connection, the schema, the rollups, the device index.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::RwLock;

use super::by_device::ByDevice;
use super::collection::Deployment;
use super::command::Commands;
use super::connect::MongodbOptions;
use super::devices::DeviceIndex;
use super::errors::CAUSES;
use super::layout::Layout;
use super::rollups::{HourRollup, Missing, RollupCollection, missing, missing_from};
use super::schema_state::{SchemaState, uuid_in};
use super::uri::UriError;
use crate::model::{BucketWrite, Contents, Day, Deletion, Hour, Keep, Metric, SeriesFilter};
use crate::store::{
    Cause, Deleted, Deletions, DeviceList, DeviceSet, DeviceSummary, EXPIRY_DELAY, FirstReadings, History, HourStats,
    Instances, OperatorMetadataStore, ReadingsQuery, RolledUp, Rollups, StatsNeeds, Store, StoreError, Written, any_of,
    recent_hours,
};

/// The most devices in one query for recent stats, and the most queries at once.
const DEVICES_PER_QUERY: usize = 500;
const QUERIES_AT_ONCE: usize = 2;

/// The number of recent hours that are read one by one. All later ones are read at once.
const HOURS_BY_HOUR: usize = 2;

/// The most devices whose last instants are read at the same time.
const LOOKED_UP_AT_ONCE: usize = 8;

/// Readings in a MongoDB collection of one layout, and their rollups in another collection.
#[derive(Debug)]
pub struct MongoStore<L> {
    pub(super) commands: Commands,
    pub(super) rollups: RollupCollection,
    pub(super) devices: DeviceIndex,
    schema_state: SchemaState,
    /// Writes and rollups share this lock. A deletion holds it alone.
    ///
    /// It does so while it changes the device index, because a write in progress relies on what it found in
    /// the index.
    pub(super) changes: RwLock<()>,
    pub(super) layout: L,
}

impl<L: Layout> MongoStore<L> {
    /// Makes the store without asking the server for anything, so that tidegauge starts while MongoDB is
    /// down.
    pub(super) async fn open(
        options: MongodbOptions,
        layout: impl FnOnce(&MongodbOptions, Commands) -> L,
    ) -> Result<Self, UriError> {
        let commands = Commands::connect(&options).await?;
        let layout = layout(&options, commands.clone());
        let mut names = layout.collection_names();
        names.extend([options.rollups_collection.clone(), options.devices_collection.clone()]);
        let of_rollups = Commands { unreadable: options.unreadable_rollups, ..commands.clone() };
        let of_devices = Commands { unreadable: options.unreadable_devices, ..commands.clone() };
        let retention = options.retention.zip(options.rollups_retention);
        let retention = retention
            .map(|(of_readings, of_rollups)| of_readings.saturating_add(layout.expiry_delay()).max(of_rollups));
        Ok(Self {
            schema_state: SchemaState::new(commands.managed(&options.rollups_collection), names),
            rollups: RollupCollection::new(
                of_rollups,
                &options.rollups_collection,
                options.rollups_retention,
                options.layout,
            ),
            devices: DeviceIndex::new(of_devices, &options.devices_collection, retention),
            changes: RwLock::default(),
            commands,
            layout,
        })
    }

    /// Creates the collections and their indexes, and changes what differs from the options, even if a
    /// collection was dropped just before. Every write does so until it has succeeded, and again when a ping
    /// has noticed a dropped collection.
    ///
    /// # Errors
    /// When the server does not answer or refuses.
    pub(super) async fn ensure_schema(&self) -> Result<(), StoreError> {
        self.deployment().await?;
        if !self.schema_state.is_unchanged().await? {
            self.deployment().await?;
        }
        Ok(())
    }

    /// Brings the schema into place if needed, and returns the kind of the server.
    async fn deployment(&self) -> Result<Deployment, StoreError> {
        let ensure = || async {
            let deployment = self.layout.ensure_schema(self.schema_state.ensured() > 0).await?;
            self.rollups.schema().ensure(deployment).await?;
            self.devices.ensure(deployment).await?;
            self.mark().await?;
            Ok(deployment)
        };
        // Each step waits for the server no longer than `timeout`. All of them together may take longer, and
        // must not start over each time when they do.
        Box::pin(self.schema_state.deployment(ensure)).await // large, and seldom run
    }

    /// Writes buckets once the device index has what they need.
    async fn write_noted(
        &self,
        writes: &[Arc<BucketWrite>],
        deployment: Deployment,
    ) -> Vec<Result<Written, StoreError>> {
        let failed = self.devices.note(writes).await;
        if failed.iter().all(Option::is_none) {
            return self.layout.write(writes, deployment).await;
        }
        let noted = writes.iter().zip(&failed).filter(|(_, failed)| failed.is_none());
        let noted: Vec<Arc<BucketWrite>> = noted.map(|(write, _)| Arc::clone(write)).collect();
        let mut outcomes = self.layout.write(&noted, deployment).await.into_iter();
        let mut outcome = || outcomes.next().expect("an outcome for each write");
        failed.into_iter().map(|failed| failed.map_or_else(&mut outcome, Err)).collect()
    }

    /// Notes in the device index that refused buckets, which its entries cover, are not stored. If that fails
    /// for a bucket, its outcome becomes that error, so that the bucket is written again.
    async fn note_refused(&self, writes: &[Arc<BucketWrite>], outcomes: &mut [Result<Written, StoreError>]) {
        let is_refused = |outcome: &Result<_, StoreError>| outcome.as_ref().is_err_and(StoreError::is_permanent);
        let refused: Vec<usize> = (0..writes.len()).filter(|at| is_refused(&outcomes[*at])).collect();
        if refused.is_empty() {
            return;
        }
        let buckets: Vec<Arc<BucketWrite>> = refused.iter().map(|at| Arc::clone(&writes[*at])).collect();
        for (at, failed) in refused.into_iter().zip(self.devices.note_refused(&buckets).await) {
            if let Some(error) = failed.filter(|error| !error.is_permanent()) {
                outcomes[at] = Err(error);
            }
        }
    }

    /// Derives the rollups of hours that may have a rollup already. Stats of expired readings stay, except
    /// those that `deletion` selects: it has just removed these values from the readings.
    pub(super) async fn derive_again(
        &self,
        buckets: &[(Arc<str>, Hour)],
        deletion: Option<&Deletion>,
    ) -> Result<Vec<HourRollup>, StoreError> {
        // The rollups are read first, so the readings are at least as new, unless some have expired.
        let mut stored = self.rollups.stored(buckets).await?;
        let derived = self.layout.derive(buckets).await?;
        let with_expired = |derived: HourRollup| match stored.remove(&(Arc::clone(&derived.device), derived.stats.hour))
        {
            Some(stored) => derived.with_expired(stored, deletion),
            None => derived,
        };
        Ok(derived.into_iter().map(with_expired).collect())
    }

    /// The stats of these devices in one recent hour.
    async fn near_stats(&self, devices: &[Arc<str>], hour: Hour) -> Result<Vec<Vec<HourStats>>, StoreError> {
        let mut found = ByDevice::new(devices, vec![Vec::new(); devices.len()]);
        self.layout.add_recent_stats(devices, hour, &mut found).await?;
        Ok(found.sorted())
    }

    /// The exact last instant of a device, from its readings if it has any, else from its rollups, else from
    /// its entry in the device index.
    async fn last_ts_ms(&self, entry: &DeviceSummary) -> Result<i64, StoreError> {
        let noted = Day::of(Hour::of(entry.last_ts_ms));
        let last_ts_ms = match self.layout.last_ts_ms(&entry.device, Some(noted)).await? {
            None => self.rollups.last_ts_ms(&entry.device).await?,
            known => known,
        };
        Ok(last_ts_ms.unwrap_or(entry.last_ts_ms))
    }

    /// Takes back successful outcomes if a collection was dropped or replaced during the write, or the schema
    /// was ensured again: `ensured` is how often it was ensured before. The readings may be in a plain
    /// collection that the server has created, and their devices in an index that is gone.
    async fn confirm(&self, outcomes: &mut [Result<Written, StoreError>], ensured: u64) {
        if outcomes.iter().all(Result::is_err) {
            return;
        }
        let error = match self.schema_state.is_unchanged().await {
            Ok(true) if self.schema_state.ensured() == ensured => return,
            Ok(_) => StoreError::new(Cause::Schema, "a collection was dropped or replaced during the write"),
            Err(error) => error,
        };
        outcomes.iter_mut().filter(|outcome| outcome.is_ok()).for_each(|outcome| *outcome = Err(error.clone()));
    }
}

#[async_trait]
impl<L: Layout> Store for MongoStore<L> {
    fn name(&self) -> &'static str {
        L::NAME
    }

    fn keeps(&self) -> Keep {
        L::KEEPS
    }

    fn causes(&self) -> &'static [Cause] {
        CAUSES
    }

    async fn write(&self, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, StoreError>> {
        let _shared = self.changes.read().await;
        let mut outcomes = match self.deployment().await {
            Ok(deployment) => {
                let ensured = self.schema_state.ensured();
                let mut outcomes = self.write_noted(writes, deployment).await;
                self.confirm(&mut outcomes, ensured).await;
                outcomes
            }
            Err(error) => vec![Err(error); writes.len()],
        };
        self.note_refused(writes, &mut outcomes).await;
        outcomes.into_iter().map(|outcome| outcome.map_err(|error| self.commands.explain(error))).collect()
    }

    /// Reads the rollups, and for the hours that have none, the readings.
    async fn hour_stats(
        &self,
        devices: &[Arc<str>],
        hours: Range<Hour>,
        series: &SeriesFilter,
        needs: StatsNeeds,
    ) -> Result<Vec<Vec<HourStats>>, StoreError> {
        let rolled_up = self.rollups.read(devices, &hours, series, needs).await?;
        let missing = missing(devices, &hours, &rolled_up);
        if missing.is_empty() {
            return Ok(rolled_up);
        }
        let mut by_device = ByDevice::new(devices, rolled_up);
        self.layout.add_hour_stats(&missing, series, &mut by_device).await?;
        Ok(by_device.sorted())
    }

    /// Reads the rollups, and the readings of later hours without a rollup.
    ///
    /// If the rollups of a device have its series `a` until 3:00, and `b` until 5:00, the later hours are
    /// those after 3:00. If they lack a series, it reads all hours without a rollup.
    async fn last_stats(
        &self,
        devices: &[Arc<str>],
        of: &[&BTreeSet<Metric>],
        hours: Range<Hour>,
    ) -> Result<Vec<Vec<HourStats>>, StoreError> {
        let series = any_of(of);
        let rolled_up = self.rollups.read(devices, &hours, &series, StatsNeeds::All).await?;
        let last_with = |found: &[HourStats], metric: &Metric| {
            let has = |hour: &&HourStats| hour.stats.iter().any(|(of, _)| of == metric);
            found.iter().rfind(has).map(|hour| hour.hour)
        };
        // The earliest of the last hours of the series. A series without an hour comes first, because `None`
        // is the least.
        let from = |at: usize| of[at].iter().map(|metric| last_with(&rolled_up[at], metric)).min().flatten();
        let missing = missing_from(devices, |at| from(at).unwrap_or(hours.start), hours.end, &rolled_up);
        let mut by_device = ByDevice::new(devices, rolled_up);
        self.layout.add_hour_stats(&missing, &series, &mut by_device).await?;
        Ok(by_device.sorted())
    }

    /// Reads hour by hour.
    ///
    /// As a rule it reads one hour, and a single seek says that no device has readings of later hours.
    async fn recent_stats(&self, devices: &[Arc<str>], hours: Range<Hour>) -> Result<Vec<Vec<HourStats>>, StoreError> {
        let mut found = ByDevice::new(devices, vec![Vec::new(); devices.len()]);
        let mut rest = hours;
        for _ in 0..HOURS_BY_HOUR {
            if devices.is_empty() || rest.is_empty() {
                return Ok(found.sorted());
            }
            let hour = rest.start;
            rest.start = Hour(hour.0 + 1);
            let parts: Vec<_> = devices.chunks(DEVICES_PER_QUERY).map(|some| self.near_stats(some, hour)).collect();
            let stats = stream::iter(parts).buffered(QUERIES_AT_ONCE).try_collect::<Vec<_>>();
            let later = async { if rest.is_empty() { Ok(None) } else { self.layout.next_hour(rest.start).await } };
            let (later, stats) = try_join(later, stats).await?;
            found.add(stats.into_iter().flatten());
            rest.start = later.unwrap_or(rest.end);
        }
        if !rest.is_empty() {
            let later = Missing { devices: devices.to_vec(), runs: vec![rest] };
            self.layout.add_hour_stats(&[later], &SeriesFilter::ALL, &mut found).await?;
        }
        Ok(found.sorted())
    }

    async fn readings(&self, query: &ReadingsQuery) -> Result<FirstReadings, StoreError> {
        self.layout.readings(query).await
    }

    async fn latest(&self, device: &str, hour: Hour) -> Result<Contents, StoreError> {
        self.layout.latest(device, hour).await
    }

    async fn last_hour(&self, device: &str) -> Result<Option<Hour>, StoreError> {
        let (entry, is_complete) = Box::pin(self.in_index(self.devices.one(device))).await?;
        let noted = entry.map(|entry| Day::of(Hour::of(entry.last_ts_ms)));
        if noted.is_none() && is_complete {
            return Ok(None);
        }
        self.layout.last_hour(device, noted).await
    }

    /// Searches the readings, and if these have none, the rollups: the oldest readings expire first.
    async fn last_hour_with(
        &self,
        device: &str,
        series: &BTreeSet<Metric>,
        hours: Range<Hour>,
    ) -> Result<Option<Hour>, StoreError> {
        if series.is_empty() || hours.is_empty() {
            return Ok(None);
        }
        match self.layout.last_hour_with(device, series, &hours).await? {
            None => self.rollups.last_hour_with(device, series, &hours).await,
            found => Ok(found),
        }
    }

    async fn entries(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<DeviceList, StoreError> {
        let (list, is_complete) = Box::pin(self.in_index(self.devices.list(prefix, after, limit))).await?;
        Ok(DeviceList { is_incomplete: !is_complete, ..list })
    }

    async fn entries_of(&self, devices: &[Arc<str>]) -> Result<DeviceList, StoreError> {
        let names: Vec<&str> = devices.iter().map(|device| &**device).collect();
        let (found, is_complete) = Box::pin(self.in_index(self.devices.some(&names))).await?;
        Ok(DeviceList { devices: found.into_values().collect(), is_cut: false, is_incomplete: !is_complete })
    }

    /// The stats of the hours around `now` have the last instants of most devices. The newest documents of
    /// the others are read device by device.
    async fn last_instants(&self, entries: &[DeviceSummary], now: Hour) -> Result<Vec<i64>, StoreError> {
        let mut instants: Vec<Option<i64>> = vec![None; entries.len()];
        for hours in recent_hours(now).into_iter().filter(|_| L::STATS_ARE_STORED) {
            let from = Day::of(hours.start);
            let is_recent = |at: &usize| instants[*at].is_none() && Day::of(Hour::of(entries[*at].last_ts_ms)) >= from;
            let recent: Vec<usize> = (0..entries.len()).filter(is_recent).collect();
            let devices: Vec<_> = recent.iter().map(|at| Arc::clone(&entries[*at].device)).collect();
            for (at, hours) in recent.into_iter().zip(self.recent_stats(&devices, hours).await?) {
                instants[at] = hours.iter().map(|hour| hour.last_ts_ms).max();
            }
        }
        let exact = entries.iter().zip(instants).map(|(entry, known)| async move {
            match known {
                Some(known) => Ok(known),
                None => self.last_ts_ms(entry).await,
            }
        });
        stream::iter(exact.collect::<Vec<_>>()).buffered(LOOKED_UP_AT_ONCE).try_collect().await
    }

    async fn count_silent(&self, since_ms: i64, mut active: DeviceSet) -> Result<u64, StoreError> {
        self.layout.add_active(since_ms, &mut active).await?;
        let mut silent = 0;
        let count = self.devices.each_id(|device| silent += u64::from(!active.contains(device)));
        Box::pin(self.in_whole_index(count)).await?;
        Ok(silent)
    }

    async fn rebuild_device_index(&self) -> Result<u64, StoreError> {
        self.ensure_schema().await?;
        self.rebuild().await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.commands.ping_during(self.schema_state.is_unchanged()).await
    }

    async fn takes_writes(&self) -> Result<(), StoreError> {
        self.commands.await_writes(self.devices.name()).await
    }

    async fn bytes(&self) -> Result<u64, StoreError> {
        self.commands.database_bytes().await
    }

    /// The ID is that of [`Rollups::identity`]. Nothing counts the writes of all instances.
    async fn history(&self) -> Result<Option<History>, StoreError> {
        let listed = self.schema_state.list().await?;
        let readings = uuid_in(&listed, &self.layout.collection_names());
        let rollups = uuid_in(&listed, &[self.rollups.name().to_owned()]);
        Ok(readings.zip(rollups).map(|(readings, rollups)| {
            let id = format!("{} {readings} rollups {rollups}", L::IDENTITY);
            History { id, writes: 0 }
        }))
    }

    /// The hours may have readings here, which the rollups then cover too. More may be written meanwhile, so
    /// the hours are derived again at the end.
    async fn add_expired(&self, device: &DeviceSummary, hours: &[HourStats]) -> Result<(), StoreError> {
        let Some(summary) = device.of_stats(hours) else { return Ok(()) };
        let _shared = self.changes.read().await;
        self.deployment().await?;
        self.devices.add(&[summary]).await?;
        let buckets: Vec<_> = hours.iter().map(|of| (Arc::clone(&device.device), of.hour)).collect();
        let mut known = self.rollups.stored(&buckets).await?;
        let of_bucket = |rollup: HourRollup| ((Arc::clone(&rollup.device), rollup.stats.hour), rollup);
        known.extend(self.derive_again(&buckets, None).await?.into_iter().map(of_bucket));
        let with_moved = |(bucket, moved): (&(Arc<str>, Hour), &HourStats)| {
            let new = || HourRollup {
                device: Arc::clone(&device.device),
                rev: 0,
                first_ts_ms: moved.first_ts_ms(),
                stats: HourStats { stats: Vec::new(), ..*moved },
                may_lack_deleted: false,
            };
            known.remove(bucket).unwrap_or_else(new).with_moved(moved)
        };
        let rollups: Vec<HourRollup> = buckets.iter().zip(hours).map(with_moved).collect();
        for outcome in self.rollups.put_all(&rollups).await {
            outcome?;
        }
        let derived = self.derive_again(&buckets, None).await?;
        self.rollups.put_derived(&buckets, derived).await.into_iter().collect()
    }

    fn deletions(&self) -> &dyn Deletions {
        self
    }

    fn operator_metadata(&self) -> &dyn OperatorMetadataStore {
        self
    }

    fn instances(&self) -> Option<&dyn Instances> {
        Some(self)
    }

    fn rollups(&self) -> Option<&dyn Rollups> {
        Some(self)
    }

    fn expiry_delay(&self) -> Duration {
        EXPIRY_DELAY.saturating_add(self.layout.expiry_delay())
    }

    /// Does nothing: the server expires readings.
    async fn expire_readings(&self, _oldest_ms: i64) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Does nothing: the TTL index expires rollups on the server.
    async fn expire_rollups(&self, _oldest_ms: i64) -> Result<u64, StoreError> {
        Ok(0)
    }
}

#[async_trait]
impl<L: Layout> Rollups for MongoStore<L> {
    async fn identity(&self) -> Result<String, StoreError> {
        self.ensure_schema().await?;
        let missing = || StoreError::new(Cause::Schema, "the server lists no UUID for a collection of this store");
        Ok(self.history().await?.ok_or_else(missing)?.id)
    }

    async fn next_hour(&self, from: Hour) -> Result<Option<Hour>, StoreError> {
        self.layout.next_hour(from).await
    }

    async fn is_ready(&self) -> Result<bool, StoreError> {
        self.deployment().await?;
        self.has_all_devices().await
    }

    async fn roll_up_devices(&self, hours: Range<Hour>, after: Option<&str>) -> Result<RolledUp, StoreError> {
        self.deployment().await?;
        let _shared = self.changes.read().await;
        let step = self.devices.step(&hours, after, L::HOURS_PER_STEP);
        let step = Box::pin(self.in_whole_index(step)).await?;
        let hours_of = |device: &Arc<str>| {
            let device = Arc::clone(device);
            (hours.start.0..hours.end.0).map(move |hour| (Arc::clone(&device), Hour(hour)))
        };
        let buckets: Vec<(Arc<str>, Hour)> = step.devices.iter().flat_map(hours_of).collect();
        let derived = self.layout.derive(&buckets).await?;
        let found = derived.len() as u64;
        let (written, refused) = self.rollups.bring_up_to_date(&hours, derived).await?;
        Ok(RolledUp { found, written, refused, last: step.last })
    }

    async fn shorten_expiry(&self) -> Result<(), StoreError> {
        self.deployment().await?;
        self.layout.shorten_expiry().await
    }

    async fn roll_up(&self, buckets: &[(Arc<str>, Hour)]) -> Vec<Result<(), StoreError>> {
        let _shared = self.changes.read().await;
        let derived = match self.deployment().await {
            Ok(_) => self.derive_again(buckets, None).await,
            Err(error) => Err(error),
        };
        match derived {
            Ok(rollups) => self.rollups.put_derived(buckets, rollups).await,
            Err(error) => vec![Err(error); buckets.len()],
        }
    }
}

#[async_trait]
impl<L: Layout> Deletions for MongoStore<L> {
    fn refusal(&self, deletion: &Deletion) -> Option<&'static str> {
        L::DELETES_DEVICES_ONLY.filter(|_| !deletion.is_of_device())
    }

    async fn delete(&self, deletion: &Deletion, unanswered: &BTreeSet<Hour>) -> Result<Deleted, StoreError> {
        let deleted = match self.deployment().await {
            Ok(deployment) => self.delete_all(deletion, unanswered, deployment).await,
            Err(error) => Err(error),
        };
        deleted.map_err(|error| self.commands.explain(error))
    }
}
