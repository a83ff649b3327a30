//! The store of every layout: the connection, the schema, the rollups, the list of devices.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::try_join;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::by_device::ByDevice;
use super::collection::Deployment;
use super::command::Commands;
use super::connect::MongodbOptions;
use super::errors::CAUSES;
use super::layout::Layout;
use super::rollups::{Day, RollupCollection, missing};
use super::schema_state::SchemaState;
use super::seek::{MAX_CONCURRENT_SUMMARIES, Seek};
use super::uri::UriError;
use crate::model::{BucketWrite, Contents, Hour, Keep, SeriesFilter};
use crate::store::{
    Cause, DeviceSummary, FirstReadings, HourStats, ReadingsQuery, Rollups, Store, StoreError, WriteError, Written,
};

/// Readings in a MongoDB collection of one layout, and their rollups in another collection.
#[derive(Debug)]
pub struct MongoStore<L> {
    pub(super) commands: Commands,
    pub(super) rollups: RollupCollection,
    schema_state: SchemaState,
    layout: L,
}

impl<L: Layout> MongoStore<L> {
    /// Makes the store without asking the server for anything, so that tidegauge starts while MongoDB is
    /// down.
    pub(super) async fn open(
        options: MongodbOptions,
        layout: impl FnOnce(&MongodbOptions, Commands) -> L,
    ) -> Result<Self, UriError> {
        let (database, servers) = options.database().await?;
        let commands = Commands {
            database,
            servers,
            timeout: options.timeout,
            query_timeout: options.query_timeout,
            unreadable: options.unreadable_readings.clone(),
        };
        let layout = layout(&options, commands.clone());
        let mut names = layout.collection_names();
        names.push(options.rollups_collection.clone());
        let of_rollups = Commands { unreadable: options.unreadable_rollups, ..commands.clone() };
        Ok(Self {
            schema_state: SchemaState::new(commands.managed(&options.rollups_collection), names),
            rollups: RollupCollection::new(of_rollups, &options.rollups_collection, options.rollups_retention),
            commands,
            layout,
        })
    }

    /// Creates the collections and their indexes, and changes what differs from the options. Every write does
    /// this first, until it has succeeded once, and again when a collection was dropped; a call at the start
    /// only reports trouble earlier.
    ///
    /// # Errors
    /// When the server does not answer or refuses.
    pub async fn ensure_schema(&self) -> Result<(), StoreError> {
        self.deployment().await.map(drop)
    }

    /// The kind of the server, once the schema is in place.
    async fn deployment(&self) -> Result<Deployment, StoreError> {
        let ensure = || async {
            let deployment = self.layout.ensure_schema(self.schema_state.was_ensured()).await?;
            self.rollups.ensure(deployment).await?;
            Ok(deployment)
        };
        // Each step waits for the server no longer than `timeout`. All of them together may take longer, and
        // must not start over each time when they do.
        self.schema_state.deployment(ensure).await
    }

    /// Takes back successful outcomes if the collections are not the ones whose schema was ensured.
    async fn confirm(&self, outcomes: &mut [Result<Written, WriteError>]) {
        if outcomes.iter().all(Result::is_err) {
            return;
        }
        let error = match self.schema_state.is_unchanged().await {
            Ok(true) => return,
            Ok(false) => StoreError::new(Cause::Schema, "a collection was dropped or replaced during the write"),
            Err(error) => error,
        };
        outcomes.iter_mut().filter(|outcome| outcome.is_ok()).for_each(|outcome| *outcome = Err(error.clone().into()));
    }

    /// The summary of a device, from its readings if it has any, else from its rollups. `None`: it has just
    /// expired.
    async fn summary(&self, first: Option<L::First>, day: Option<Day>) -> Result<Option<DeviceSummary>, StoreError> {
        let of_readings = match first {
            Some(first) => self.layout.summary(first).await?,
            None => None,
        };
        match (of_readings, day) {
            (Some(summary), None) => Ok(Some(summary)),
            (Some(summary), Some(day)) => {
                let first_ts_ms = summary.first_ts_ms.min(day.first_ts_ms);
                Ok(Some(DeviceSummary { first_ts_ms, ..summary }))
            }
            (None, Some(day)) => self.rollups.summary(day).await,
            (None, None) => Ok(None),
        }
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

    async fn write(&self, writes: &[Arc<BucketWrite>]) -> Vec<Result<Written, WriteError>> {
        let mut outcomes = match self.deployment().await {
            Ok(deployment) => self.layout.write(writes, deployment).await,
            Err(error) => vec![Err(error.into()); writes.len()],
        };
        if L::CONFIRMS_WRITES {
            self.confirm(&mut outcomes).await;
        }
        outcomes.into_iter().map(|outcome| outcome.map_err(|error| self.commands.servers.explain(error))).collect()
    }

    /// From the rollups where they hold the hour, else from the readings.
    async fn hour_stats(
        &self,
        devices: &[Arc<str>],
        hours: Range<Hour>,
        series: &SeriesFilter,
    ) -> Result<Vec<Vec<HourStats>>, StoreError> {
        let rolled_up = self.rollups.read(devices, &hours, series).await?;
        let missing = missing(devices, &hours, &rolled_up);
        if missing.is_empty() {
            return Ok(rolled_up);
        }
        let mut by_device = ByDevice::new(devices, rolled_up);
        self.layout.add_hour_stats(&missing, series, &mut by_device).await?;
        Ok(by_device.sorted())
    }

    async fn readings(&self, query: &ReadingsQuery) -> Result<FirstReadings, StoreError> {
        self.layout.readings(query).await
    }

    async fn latest(&self, device: &str, hour: Hour) -> Result<Contents, StoreError> {
        self.layout.latest(device, hour).await
    }

    async fn last_hour(&self, device: &str) -> Result<Option<Hour>, StoreError> {
        self.layout.last_hour(device).await
    }

    /// Each device costs one seek in the readings and one in the rollups, which run at the same time. The
    /// seeks of a device begin after those of the device before. Several summaries are read at the same time.
    async fn devices(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<DeviceSummary>, StoreError> {
        let (mut seek, mut found) = (Seek::new(prefix, after), Vec::new());
        while found.len() < limit {
            let (first, day) =
                try_join(self.layout.first_of(seek.rest()), Box::pin(self.rollups.first_day(seek.rest()))).await?;
            let device_of_first = first.as_ref().map(L::device_of);
            let Some(next) = Seek::next(device_of_first, day.as_ref().map(|day| day.device.as_str())) else { break };
            seek.advance(&next);
            found.push((first.filter(|first| L::device_of(first) == next), day.filter(|day| day.device == next)));
        }
        let summaries: Vec<_> = found.into_iter().map(|(first, day)| self.summary(first, day)).collect();
        let summaries = stream::iter(summaries).buffered(MAX_CONCURRENT_SUMMARIES);
        let summaries: Vec<Option<DeviceSummary>> = summaries.try_collect().await?;
        Ok(summaries.into_iter().flatten().collect())
    }

    fn metadata_stays(&self) -> bool {
        L::METADATA_STAYS
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.commands.ping_during(self.schema_state.is_unchanged()).await
    }

    async fn bytes(&self) -> Result<u64, StoreError> {
        self.commands.database_bytes().await
    }

    fn rollups(&self) -> Option<&dyn Rollups> {
        Some(self)
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
        self.deployment().await?;
        if !self.schema_state.is_unchanged().await? {
            self.deployment().await?;
        }
        let readings = self.schema_state.uuid_of(&self.layout.collection_names()).await?;
        let rollups = self.schema_state.uuid_of(&[self.rollups.name().to_owned()]).await?;
        Ok(format!("{} {readings} rollups {rollups}", L::IDENTITY))
    }

    async fn next_hour(&self, from: Hour) -> Result<Option<Hour>, StoreError> {
        self.layout.next_hour(from).await
    }

    async fn roll_up_hour(&self, hour: Hour) -> Result<u64, WriteError> {
        self.deployment().await?;
        self.layout.roll_up_hour(hour, &self.rollups).await
    }

    async fn roll_up(&self, buckets: &[(Arc<str>, Hour)]) -> Vec<Result<(), WriteError>> {
        let derived = match self.deployment().await {
            Ok(_) => self.layout.derive(buckets).await,
            Err(error) => Err(error),
        };
        match derived {
            Ok(rollups) => self.rollups.put_derived(buckets, rollups).await,
            Err(error) => vec![Err(error.into()); buckets.len()],
        }
    }
}
