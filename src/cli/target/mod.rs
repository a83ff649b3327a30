//! The store that `move` and `migrate` write, like one more instance of the service.
//!
//! A service may use the store meanwhile. So a writer obeys the rules of instances ([`tidegauge::store`]):
//! it writes in any order, and after each write it rolls up the closed hours itself.

use std::fmt;
use std::sync::Arc;

use tidegauge::common::clock::{Clock, rfc3339};
use tidegauge::config::{self, Config, MongodbUri, StoreKind};
use tidegauge::flush::{BucketOutcome, Writer};
use tidegauge::model::{Arrivals, BucketWrite, Contents, Hour, Keep, Metric};
use tidegauge::store::{Store, StoreError};
use tidegauge::telemetry::Metrics;

pub(super) use self::attended::attended;
pub(super) use self::hours::{Folded, HourCheck, OfSeries, agrees, contents_of, stats_of};
use self::patience::Patience;
pub(super) use self::patience::patiently;
pub(super) use self::progress::{Progress, ProgressFile};
use super::counted;
use super::serve::{newest_closed_hour, open_store};

mod attended;
mod hours;
mod patience;
mod progress;

/// The store that is written.
pub(super) struct Target {
    pub(super) store: Arc<dyn Store>,
    config: Config,
    clock: Clock,
    writer: Writer,
}

/// The outcome of a write.
#[derive(Default)]
pub(super) struct Outcome {
    /// The readings that the store did not have.
    pub(super) stored: u64,
    /// The readings that the store refuses for good.
    pub(super) refused: Vec<Refused>,
    /// The buckets whose metadata the store refuses, and why.
    pub(super) without_metadata: Vec<(Arc<str>, Hour, StoreError)>,
}

/// Readings that the store refuses for good.
pub(super) struct Refused {
    pub(super) device: Arc<str>,
    pub(super) hour: Hour,
    pub(super) readings: u64,
    pub(super) error: StoreError,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, hour, readings, error } = self;
        let readings = counted(*readings, "reading");
        write!(f, "{readings} of {device} in the hour of {}: {}", rfc3339(hour.start_ms()), error.with_cause())
    }
}

impl Target {
    /// Opens the store of a configuration.
    pub(super) async fn open(config: Config) -> anyhow::Result<Self> {
        let (metrics, _) = Metrics::new();
        let store = open_store(&config, &metrics).await?;
        let writer = Writer::new(Arc::clone(&store), metrics.into());
        Ok(Self { store, config, clock: Clock::system(), writer })
    }

    /// How many batches may be written at the same time.
    ///
    /// SQLite executes one write after the other, so several batches would keep the service waiting.
    pub(super) fn writers(&self) -> usize {
        if self.config.store_kind() == StoreKind::Sqlite { 1 } else { 4 }
    }

    /// The first hour whose readings the store surely still has.
    ///
    /// It is an hour later than the retention says, so that no hour expires while it is compared.
    pub(super) fn first_kept_hour(&self) -> Hour {
        first_kept(self.config.retention.readings, 1, &self.clock)
    }

    /// The first hour whose rollup the store surely still has.
    ///
    /// It is 25 hours later than the retention says: rollups expire by whole days, and one hour is left for
    /// the comparison.
    pub(super) fn first_kept_rollup(&self) -> Hour {
        first_kept(self.config.retention.rollups(), 25, &self.clock)
    }

    /// Writes different buckets, and rolls up those of closed hours.
    ///
    /// Waits for a store that is away.
    pub(super) async fn write(&self, writes: Vec<Arc<BucketWrite>>) -> anyhow::Result<Outcome> {
        let (mut outcome, mut patience) = (Outcome::default(), Patience::default());
        let mut writes = self.writer.begin(writes);
        while let Some(done) = writes.next(&mut patience).await? {
            let newest_closed = newest_closed_hour(&self.config, &self.clock); // after the write, as in the service
            let closed = done.iter().filter(|of| of.write.hour <= newest_closed);
            let hours = closed.map(|of| (Arc::clone(&of.write.device), of.write.hour)).collect();
            self.writer.roll_up(hours, &mut patience).await?;
            for of in done {
                outcome.add(of);
            }
        }
        Ok(outcome)
    }
}

impl Outcome {
    fn add(&mut self, BucketOutcome { write, stored, refused, refused_metadata }: BucketOutcome) {
        let (device, hour) = (&write.device, write.hour);
        self.stored += stored;
        self.without_metadata.extend(refused_metadata.map(|error| (Arc::clone(device), hour, error)));
        self.refused.extend(refused.map(|(refused, error)| {
            let readings = u64::from(refused.accepted);
            Refused { device: Arc::clone(device), hour, readings, error }
        }));
    }
}

/// The first hour that a retention keeps, plus `more_hours`.
///
/// With the additional hours, the hour does not expire while it is compared.
pub(super) fn first_kept(retention: config::Keep, more_hours: i32, clock: &Clock) -> Hour {
    let Some(kept) = retention.period() else { return Hour(i32::MIN) };
    let kept_ms = i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
    Hour(Hour::of(clock.now_ms().saturating_sub(kept_ms)).0 + more_hours)
}

/// A write of readings that are already stored elsewhere.
///
/// If this store has another value of a reading, that value stays. `metrics` are the metrics of `contents`,
/// in the same order.
pub(super) fn write_of(
    device: Arc<str>,
    hour: Hour,
    metadata: Option<Arc<str>>,
    metrics: Vec<Metric>,
    contents: &Contents,
) -> BucketWrite {
    let mut arrivals = Arrivals::with_capacity(contents.samples().len());
    let mut last = None;
    for sample in contents.samples() {
        arrivals.push(*sample, last != Some(sample.offset));
        last = Some(sample.offset);
    }
    BucketWrite::keeping(Keep::First, device, hour, metadata, metrics, arrivals)
}

/// The name that tells a store from others, without secrets.
pub(super) fn name_of(config: &Config) -> String {
    let of_mongodb = |kind: &str, collection: &str| format!("{kind} {}", name_of_collection(config, collection));
    match config.store_kind() {
        StoreKind::Sqlite => {
            let file = config.sqlite_file();
            format!("sqlite {}", std::fs::canonicalize(&file).unwrap_or(file).display())
        }
        StoreKind::Mongodb => of_mongodb("mongodb", &config.mongodb.collection),
        StoreKind::MongodbTimeseries => of_mongodb("mongodb-timeseries", &config.mongodb.timeseries.collection),
    }
}

/// The name of a collection of the database, without secrets.
pub(super) fn name_of_collection(config: &Config, collection: &str) -> String {
    let servers = config.mongodb.uri.as_ref().map_or("", servers_of);
    format!("{}.{collection} at {servers}", config.mongodb.database())
}

/// The servers that a connection string names.
pub(super) fn servers_of(uri: &MongodbUri) -> &str {
    let text = uri.expose();
    let text = text.split_once("://").map_or(text, |(_, rest)| rest);
    let text = text.split(['/', '?']).next().unwrap_or_default();
    text.rsplit_once('@').map_or(text, |(_, servers)| servers)
}
