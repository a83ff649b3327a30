//! Measures the work and the cost of a service and its mongod in spans of time.
//!
//! Times are by the fast clock of the programs (`clock.rs`); CPU time is real.

use bson::doc;
use tokio::task::JoinHandle;

use super::clock::Clock;
use super::{HOUR_MS, MINUTE_MS};
use crate::metrics::Exposition;
use crate::systems::Server;

/// How often the metrics of the service are read.
const TICK_MS: u64 = 5 * MINUTE_MS;

const MIB: f64 = 1_048_576.0;

/// The figures of a span of time, such as an hour.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub(crate) struct Span {
    /// The time of day at which the span began: `23:00`.
    pub(crate) name: String,
    pub(crate) seconds: f64,
    /// The number of accepted readings.
    pub(crate) readings: u64,
    /// The number of rejected or refused readings.
    pub(crate) rejected: u64,
    /// CPU seconds of the service, and of mongod.
    pub(crate) cpu_seconds: [f64; 2],
    /// The number of write commands to the store.
    pub(crate) commands: u64,
    /// The number of buckets in these commands.
    pub(crate) buckets: u64,
    /// The number of documents that TTL indexes of mongod deleted. 0 with SQLite.
    pub(crate) expired: u64,
    /// The largest memory at any tick: of the service, and of mongod.
    pub(crate) resident_mib: [f64; 2],
    /// The largest size of the log at any tick.
    pub(crate) log_mib: f64,
    /// The size of the store at the end of the span.
    pub(crate) store_mib: f64,
    /// The sum of the times for which readings waited until they were stored.
    ///
    /// It is the average number of pending readings at the ticks, times the length of the span.
    pub(crate) waited_seconds: f64,
    /// The largest age of the oldest pending reading at any tick.
    pub(crate) longest_wait_seconds: f64,
}

impl Span {
    /// The average time for which a reading waits until it is stored (Little's law).
    pub(crate) fn wait_seconds(&self) -> f64 {
        if self.readings == 0 { 0.0 } else { self.waited_seconds / self.readings as f64 }
    }
}

/// Counts since the start of the service, which only grow.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    readings: u64,
    rejected: u64,
    commands: u64,
    buckets: u64,
    expired: u64,
    cpu_seconds: [f64; 2],
}

/// Measures a server in one span after the other.
pub(crate) struct Watch<'a> {
    server: &'a Server,
    mongodb: Option<mongodb::Client>,
    before: Counts,
    /// When the next span begins, in Unix milliseconds.
    from_ms: u64,
}

impl<'a> Watch<'a> {
    /// Starts to measure a server. The first span begins at `from_ms`.
    pub(crate) async fn new(server: &'a Server, from_ms: u64) -> anyhow::Result<Self> {
        let mongodb = match &server.mongodb {
            Some(uri) => Some(mongodb::Client::with_uri_str(uri).await?),
            None => None,
        };
        let mut watch = Self { server, mongodb, before: Counts::default(), from_ms };
        watch.before = watch.counts(&Exposition::of(&server.address).await?).await?;
        Ok(watch)
    }

    /// CPU seconds per second since the start: of the service, and of mongod.
    ///
    /// `lasted_ms` is the time since the start. The counts of the first span begin here.
    pub(crate) async fn rest(&mut self, lasted_ms: u64) -> anyhow::Result<[f64; 2]> {
        let before = self.before.cpu_seconds;
        let exposition = Exposition::of(&self.server.address).await?;
        self.before = self.counts(&exposition).await?;
        let seconds = lasted_ms as f64 / 1_000.0;
        Ok([0, 1].map(|at| (self.before.cpu_seconds[at] - before[at]) / seconds))
    }

    /// Measures a span until `end_ms`.
    ///
    /// It ends early if the sender ends more than a minute before: then sending has failed.
    pub(crate) async fn until<T>(
        &mut self,
        clock: &Clock,
        end_ms: u64,
        sender: &JoinHandle<anyhow::Result<T>>,
    ) -> anyhow::Result<Span> {
        let is_over = |at_ms, _: &Gauges| at_ms >= end_ms || (sender.is_finished() && at_ms + MINUTE_MS < end_ms);
        self.span(clock, is_over).await
    }

    /// Measures a span until all readings are stored, but at least until `from_ms`.
    ///
    /// All closed days must be rolled up too.
    ///
    /// # Errors
    /// If readings are pending, or days are not rolled up, at `limit_ms`.
    pub(crate) async fn until_stored(&mut self, clock: &Clock, from_ms: u64, limit_ms: u64) -> anyhow::Result<Span> {
        let is_over = |at_ms, gauges: &Gauges| at_ms >= limit_ms || (at_ms >= from_ms && gauges.is_all_done());
        let span = self.span(clock, is_over).await?;
        anyhow::ensure!(
            self.from_ms < limit_ms,
            "readings are pending, or a day is not rolled up, {} hours after the last reading",
            (limit_ms - from_ms).div_ceil(HOUR_MS)
        );
        Ok(span)
    }

    /// Measures a span of one tick.
    pub(crate) async fn next_tick(&mut self, clock: &Clock) -> anyhow::Result<Span> {
        self.span(clock, |_, _| true).await
    }

    async fn span(&mut self, clock: &Clock, is_over: impl Fn(u64, &Gauges) -> bool) -> anyhow::Result<Span> {
        let mut span = Span { name: time_of_day(self.from_ms)?, ..Span::default() };
        let (mut at_ms, mut pending, mut ticks) = (self.from_ms, 0.0, 0.0);
        let exposition = loop {
            at_ms += TICK_MS;
            tokio::time::sleep(clock.until(at_ms)?).await;
            let exposition = Exposition::of(&self.server.address).await?;
            let gauges = Gauges::of(&exposition);
            for (at, process) in self.server.processes.iter().enumerate() {
                span.resident_mib[at] = span.resident_mib[at].max(process.usage()?.resident_mib);
            }
            span.log_mib = span.log_mib.max(gauges.log_mib);
            span.longest_wait_seconds = span.longest_wait_seconds.max(gauges.oldest_seconds);
            pending += gauges.pending;
            ticks += 1.0;
            if is_over(at_ms, &gauges) {
                break exposition;
            }
        };
        let counts = self.counts(&exposition).await?;
        let before = std::mem::replace(&mut self.before, counts);
        span.seconds = (at_ms - self.from_ms) as f64 / 1_000.0;
        self.from_ms = at_ms;
        span.readings = counts.readings - before.readings;
        span.rejected = counts.rejected - before.rejected;
        span.commands = counts.commands - before.commands;
        span.buckets = counts.buckets - before.buckets;
        span.expired = counts.expired - before.expired;
        span.cpu_seconds = [0, 1].map(|at| counts.cpu_seconds[at] - before.cpu_seconds[at]);
        span.store_mib = exposition.sum("tidegauge_store_bytes") / MIB;
        span.waited_seconds = pending / ticks * span.seconds;
        Ok(span)
    }

    async fn counts(&self, exposition: &Exposition) -> anyhow::Result<Counts> {
        let mut cpu_seconds = [0.0; 2];
        for (at, process) in self.server.processes.iter().enumerate() {
            cpu_seconds[at] = process.usage()?.cpu_seconds;
        }
        let count = |name: &str| exposition.sum(&format!("tidegauge_{name}")) as u64;
        Ok(Counts {
            readings: count("readings_accepted_total"),
            rejected: count("readings_rejected_total"),
            commands: count("flush_seconds_count"),
            buckets: count("flush_readings_per_bucket_count"),
            expired: self.expired().await?,
            cpu_seconds,
        })
    }

    /// The number of documents that TTL indexes of mongod have deleted.
    async fn expired(&self) -> anyhow::Result<u64> {
        let Some(mongodb) = &self.mongodb else { return Ok(0) };
        let status = mongodb.database("admin").run_command(doc! { "serverStatus": 1 }).await?;
        Ok(u64::try_from(status.get_document("metrics")?.get_document("ttl")?.get_i64("deletedDocuments")?)?)
    }
}

/// Metrics of the service that go up and down.
struct Gauges {
    pending: f64,
    oldest_seconds: f64,
    log_mib: f64,
    rollup_lag_seconds: f64,
}

impl Gauges {
    fn is_all_done(&self) -> bool {
        self.pending == 0.0 && self.rollup_lag_seconds == 0.0
    }

    fn of(exposition: &Exposition) -> Self {
        let gauge = |name: &str| exposition.sum(&format!("tidegauge_{name}"));
        Self {
            pending: gauge("readings_pending"),
            oldest_seconds: gauge("oldest_pending_seconds"),
            log_mib: gauge("log_bytes") / MIB,
            rollup_lag_seconds: gauge("rollup_lag_seconds"),
        }
    }
}

/// The time of day of an instant in Unix milliseconds, as `HH:MM` in UTC.
fn time_of_day(ms: u64) -> anyhow::Result<String> {
    let instant = jiff::Timestamp::from_millisecond(i64::try_from(ms)?)?.to_zoned(jiff::tz::TimeZone::UTC);
    Ok(instant.strftime("%H:%M").to_string())
}
