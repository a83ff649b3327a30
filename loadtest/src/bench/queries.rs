//! Measures the speed of queries, alone and while readings arrive.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::ensure;

use super::history::{BATCH, CONNECTIONS, DAY_MS, DEVICES};
use super::loads::workload;
use super::{Bench, Section};
use crate::format::Format;
use crate::http::{self, Sending, Until};
use crate::latency::Latency;
use crate::systems::{Environment, Server};
use crate::target::Target;
use crate::{now_ms, query};

/// The longest time for which a query is repeated.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How often queries of one device, of all devices and of latest values run.
const OF_ONE: u64 = 200;
const OF_ALL: u64 = 20;
const OF_LATEST: u64 = 100;

/// The number of devices in the fleet, and the days of history of 50 of them.
const FLEET: u64 = 100_000;
const DAYS: u64 = 7;

/// The readings per second that arrive while queries are measured.
const BESIDE: f64 = 50_000.0;

/// A function that returns the path of a query for hourly rollups.
///
/// Its arguments are the system, the devices, and the start and end in Unix milliseconds. `None`: the system
/// has no such query.
type Path = fn(Target, &[u64], u64, u64) -> Option<String>;

/// The queries of stored days.
pub(super) struct Queries<'a> {
    pub(super) server: &'a Server,
    pub(super) target: Target,
    pub(super) first_ms: u64,
    pub(super) days: u64,
}

impl Queries<'_> {
    async fn ask(&self, paths: Vec<Option<String>>, requests: u64) -> anyhow::Result<Option<Latency>> {
        let Some(paths) = paths.into_iter().collect::<Option<Vec<_>>>() else { return Ok(None) };
        Ok(Some(query::ask(&self.server.address, &paths, requests, TIMEOUT).await?.0))
    }

    fn last_ms(&self) -> u64 {
        self.first_ms + self.days * DAY_MS
    }

    /// Sends queries of one device each, in turn for all devices.
    async fn of_one(&self, path: Path) -> anyhow::Result<Option<Latency>> {
        let path = |device| path(self.target, &[device], self.first_ms, self.last_ms());
        self.ask((0..DEVICES).map(path).collect(), OF_ONE).await
    }

    /// Sends queries of all devices at once.
    async fn of_all(&self, path: Path) -> anyhow::Result<Option<Latency>> {
        let devices: Vec<u64> = (0..DEVICES).collect();
        self.ask(vec![path(self.target, &devices, self.first_ms, self.last_ms())], OF_ALL).await
    }
}

impl Bench<'_> {
    /// Measures queries of the history.
    ///
    /// Only tidegauge has two query languages. For the other systems, the rows named `InfluxQL` repeat the
    /// figure of their own language.
    pub(super) async fn queries(&mut self, queries: &Queries<'_>) -> anyhow::Result<()> {
        let path = Target::rollup_path;
        let (Some(one), Some(all)) = (queries.of_one(path).await?, queries.of_all(path).await?) else { return Ok(()) };
        let days = queries.days;
        self.add_latency(&format!("one device, {days} days"), &one);
        self.add_latency(&format!("{DEVICES} devices, {days} days"), &all);
        let influxql = queries.of_one(Target::influxql_path).await?.unwrap_or(one);
        self.add(Section::Query, &format!("one device, {days} days, InfluxQL, p50"), influxql.p50);
        let influxql = queries.of_all(Target::influxql_path).await?.unwrap_or(all);
        self.add(Section::Query, &format!("{DEVICES} devices, {days} days, InfluxQL, p50"), influxql.p50);
        Ok(())
    }

    /// Measures queries of a large fleet, alone and while readings arrive.
    ///
    /// Only tidegauge is measured: latest values of a thousand devices, and rollups of one device.
    pub(super) async fn queries_of_a_fleet(&mut self) -> anyhow::Result<()> {
        let target = self.system.target();
        let pages = (0..FLEET / 1_000).map(|nth| target.latest_path(nth)).collect::<Option<Vec<_>>>();
        let Some(pages) = pages else { return Ok(()) };
        let config = [("flush.max_age", "2s"), ("limits.new_devices_per_minute", "0")];
        let server = Server::start(self.system, &self.args.programs, &Environment::of_config(config)).await?;
        let first_ms = now_ms()? - 20 * DAY_MS;
        self.fill_history(&server, first_ms, DAYS).await?;
        let messages = FLEET / CONNECTIONS / BATCH;
        self.fill(&server, Format::Lines, workload(FLEET, 1_000, BATCH, now_ms()? - DAY_MS), messages).await?;
        server.settle().await?;

        let queries = Queries { server: &server, target, first_ms, days: DAYS };
        self.ask_fleet(&queries, &pages, "").await?;
        let sending = Sending {
            address: server.address.clone(),
            target,
            format: Format::Lines,
            workload: workload(FLEET, 2_000, BATCH, now_ms()?),
            connections: CONNECTIONS,
            rate: Some(BESIDE),
            until: Until::Seconds(f64::INFINITY),
        };
        let sender = tokio::spawn(http::send(sending, Arc::new(AtomicU64::new(0))));
        self.ask_fleet(&queries, &pages, &format!(", beside {BESIDE} readings a second")).await?;
        ensure!(!sender.is_finished(), "the readings beside the queries were refused");
        sender.abort();
        Ok(())
    }

    async fn ask_fleet(&mut self, queries: &Queries<'_>, pages: &[String], when: &str) -> anyhow::Result<()> {
        let latest = query::ask(&queries.server.address, pages, OF_LATEST, TIMEOUT).await?.0;
        self.add_latency(&format!("latest values of 1,000 of {FLEET} devices{when}"), &latest);
        if let Some(one) = queries.of_one(Target::rollup_path).await? {
            self.add_latency(&format!("one device, {DAYS} days{when}"), &one);
        }
        Ok(())
    }

    fn add_latency(&mut self, question: &str, latency: &Latency) {
        self.add(Section::Query, &format!("{question}, p50"), latency.p50);
        self.add(Section::Query, &format!("{question}, p99"), latency.p99);
    }
}
