//! Computes an estimate from a fleet and the measured figures. Pure.
//!
//! A bucket is a device and an hour in which it sends. Each figure is a sum over requests, readings, values
//! and buckets, with a measured constant for each. The service and the log are sized for the peak. The store
//! is sized for the mean rate, because the log absorbs peaks.

use serde::Serialize;
use tidegauge::config::{Config, Period};

use super::constants::{Constants, Stored};
use super::fleet::{Fleet, Layout};
use super::settings::{MAX_CONNECTIONS, Settings, with_room};

const HOUR: f64 = 3_600.0;
const DAY: f64 = 86_400.0;

/// The outage of the store for which the log is sized.
const OUTAGE_SECONDS: f64 = HOUR;

/// The needs of a fleet.
///
/// The fields have the names of the JSON, which end with the unit.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Estimate {
    pub(super) readings_per_second: Rate,
    pub(super) requests_per_second: Rate,
    /// The bodies of requests.
    pub(super) network_bytes_per_second: Rate,
    /// The heads of requests, and the answers.
    pub(super) http_bytes_per_second: Rate,
    /// The connections that senders keep open.
    pub(super) connections: f64,
    pub(super) new_connections_per_second: Rate,
    /// The size of all readings that are kept, as they were sent.
    pub(super) sent_bytes: f64,
    pub(super) readings: f64,
    pub(super) readings_per_document: f64,
    pub(super) documents_per_day: f64,
    pub(super) documents: f64,
    pub(super) rollup_documents: f64,
    pub(super) storage_bytes: f64,
    pub(super) storage_bytes_per_reading: f64,
    pub(super) index_bytes: f64,
    pub(super) rollup_bytes: f64,
    /// The pages of the index of `_id`s that an hour of writes touches.
    ///
    /// Each device has pages of its own.
    pub(super) hot_index_bytes: f64,
    /// The reads of these index pages if no page is in the cache.
    pub(super) index_reads_per_second: f64,
    /// The data that the store works with.
    ///
    /// These are the documents that it still changes, and the data that it has not written to its disk yet.
    pub(super) working_set_bytes: f64,
    pub(super) oplog_bytes_per_second: f64,
    pub(super) oplog_bytes_per_day: f64,
    pub(super) journal_bytes_per_second: f64,
    /// The writes of the log and of an embedded store, in whole pages.
    ///
    /// They wear a flash disk.
    pub(super) disk_written_bytes_per_day: f64,
    pub(super) log_bytes_per_second: Rate,
    /// The size of the log after an outage of an hour.
    ///
    /// It includes the readings that gather for a flush.
    pub(super) log_bytes: Rate,
    pub(super) service_memory_bytes: Rate,
    /// The memory while pending is full, as in an outage of the store.
    pub(super) service_memory_full_bytes: f64,
    /// The memory of one instance at its limits.
    ///
    /// Pending is full, and request bodies and queries take all that they may.
    pub(super) instance_memory_max_bytes: f64,
    #[serde(flatten)]
    pub(super) settings: Settings,
    pub(super) service_cores: Rate,
    pub(super) store_cores: f64,
    pub(super) instances: f64,
    /// 0 with the embedded store: each instance has a store of its own.
    pub(super) shards: f64,
    pub(super) is_one_node_enough: bool,
    /// The resource of one node that runs out first.
    pub(super) first_limit: &'static str,
    /// The need of this resource, divided by what one node offers to an estimate.
    ///
    /// Above 1, one node is not enough.
    pub(super) first_limit_use: f64,
}

/// The memory of the service, in two parts.
struct Memory {
    /// Pending readings.
    pending: Rate,
    other: f64,
    /// The factor that makes the default limits fit into a node; 1 for a large node.
    share_of_limits: f64,
}

/// A figure at the mean load and at the peak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Rate {
    pub(super) average: f64,
    pub(super) peak: f64,
}

/// The fleet in numbers.
pub(super) struct Load {
    pub(super) devices: f64,
    metrics: f64,
    /// Readings a second.
    rate: Rate,
    /// Buckets an hour, which is the number of devices that send in an hour.
    buckets_per_hour: f64,
    readings_per_bucket: f64,
    /// How often a bucket is written.
    writes: f64,
    /// The number of documents of a bucket.
    documents: f64,
    retention_hours: f64,
    bytes_per_reading: f64,
    /// Connections that are open at once, at the peak.
    pub(super) connections: f64,
    /// Connections that are opened in a second.
    new_connections: Rate,
}

fn seconds(period: Period) -> f64 {
    period.as_duration().as_secs_f64()
}

impl Rate {
    fn map(self, of: impl Fn(f64) -> f64) -> Self {
        Self { average: of(self.average), peak: of(self.peak) }
    }
}

impl Load {
    fn of(fleet: &Fleet, constants: &Constants) -> Self {
        let (stored, request) = (constants.of(fleet.layout()), &constants.request);
        let (devices, per_hour) = (fleet.devices as f64, HOUR / seconds(fleet.interval));
        let average = devices * per_hour / HOUR;
        let readings_per_bucket = per_hour.max(1.0);
        let writes = (HOUR / seconds(fleet.max_age)).ceil().clamp(1.0, readings_per_bucket.ceil());
        let in_documents = (readings_per_bucket / stored.max_readings_per_document).ceil().max(1.0);
        let metrics = f64::from(fleet.metrics);
        let rate = Rate { average, peak: average * fleet.peak };
        // A sender whose next request follows within http.header_timeout sends it on the same connection.
        let requests = rate.map(|rate| rate / f64::from(fleet.batch));
        let senders = (devices / f64::from(fleet.batch)).max(1.0);
        let idle = seconds(Config::default().http.header_timeout);
        let is_kept = |requests: f64| requests * idle >= senders;
        let derived = request.bytes + (metrics - 1.0) * request.bytes_per_further_value;
        Self {
            devices,
            metrics,
            rate,
            bytes_per_reading: fleet.bytes.map_or(derived, f64::from),
            connections: senders.min(requests.peak * idle).max(1.0),
            new_connections: requests.map(|requests| if is_kept(requests) { 0.0 } else { requests }),
            buckets_per_hour: devices * per_hour.min(1.0),
            readings_per_bucket,
            writes,
            documents: if fleet.layout() == Layout::Packed { in_documents.max(writes) } else { in_documents },
            retention_hours: seconds(fleet.retention) / HOUR,
        }
    }

    /// Adds up constants over a bucket.
    ///
    /// Each constant counts once for each document, metric of a document, reading or value.
    fn per_bucket(&self, document: f64, metric: f64, reading: f64, value: f64) -> f64 {
        self.documents * (document + metric * self.metrics)
            + self.readings_per_bucket * (reading + value * self.metrics)
    }

    /// How many buckets SQLite writes in one transaction.
    ///
    /// The buckets of one request are due together. The flush adds those that are due within `flush.gather`.
    /// After the end of an hour it writes more together, which the estimate leaves out.
    fn writes_per_transaction(&self, fleet: &Fleet) -> f64 {
        let flush = Config::default().flush;
        let gather = seconds(flush.gather).min(seconds(fleet.max_age) / 10.0);
        let due = f64::from(fleet.batch) + self.rate.average * gather;
        due.min(self.devices).min(flush.max_buckets_per_write as f64)
    }

    /// How many writes of a bucket change a document that an earlier write has made.
    fn appends(&self, layout: Layout) -> f64 {
        if layout == Layout::Readable { self.writes - 1.0 } else { 0.0 }
    }
}

impl Estimate {
    pub(super) fn of(fleet: &Fleet, constants: &Constants) -> Self {
        let stored = constants.of(fleet.layout());
        let load = Load::of(fleet, constants);
        let mut estimate = Self::of_load(fleet, &load, constants);
        estimate.add_storage(fleet, &load, stored);
        estimate.add_writing(fleet, &load, stored, constants);
        let memory = estimate.add_service(fleet, &load, constants);
        estimate.add_nodes(fleet, constants);
        estimate.add_settings(&load, &memory);
        estimate
    }

    fn of_load(fleet: &Fleet, load: &Load, constants: &Constants) -> Self {
        let readings = load.rate.average * seconds(fleet.retention);
        let buckets = load.buckets_per_hour * load.retention_hours;
        let requests = load.rate.map(|rate| rate / f64::from(fleet.batch));
        Self {
            readings_per_second: load.rate,
            requests_per_second: requests,
            network_bytes_per_second: load.rate.map(|rate| rate * load.bytes_per_reading),
            http_bytes_per_second: requests.map(|requests| requests * constants.request.http_bytes),
            connections: load.connections,
            new_connections_per_second: load.new_connections,
            sent_bytes: readings * load.bytes_per_reading,
            readings,
            readings_per_document: load.readings_per_bucket / load.documents,
            documents_per_day: load.buckets_per_hour * 24.0 * load.documents,
            documents: buckets * load.documents,
            ..Self::default()
        }
    }

    fn add_storage(&mut self, fleet: &Fleet, load: &Load, stored: &Stored) {
        let buckets = load.buckets_per_hour * load.retention_hours;
        let of_bucket = load.per_bucket(
            stored.disk_bytes_per_document,
            stored.disk_bytes_per_metric_of_document,
            stored.disk_bytes_per_reading,
            stored.disk_bytes_per_value,
        );
        let hours_of_rollups = seconds(fleet.retention.max(fleet.rollups_retention)) / HOUR;
        let active_days = load.devices * (DAY / seconds(fleet.interval)).min(1.0) * hours_of_rollups / 24.0;
        let active_hours = load.buckets_per_hour * hours_of_rollups;
        // SQLite keeps the row of a bucket until its rollups expire. The row says that readings have expired,
        // so that a late one does not replace their rollups, and the expiry of rollups finds them by it.
        let expired_hours = load.buckets_per_hour * (hours_of_rollups - load.retention_hours);
        self.rollup_documents = active_days;
        self.rollup_bytes = active_days * stored.rollup_bytes_per_day
            + active_hours * load.metrics * stored.rollup_bytes_per_metric_of_hour
            + expired_hours * stored.rollup_bytes_per_expired_hour;
        self.index_bytes = self.documents * stored.index_bytes_per_document;
        let of_readings = buckets * of_bucket + self.index_bytes;
        self.storage_bytes = of_readings + self.rollup_bytes + load.devices * stored.bytes_per_device;
        self.storage_bytes_per_reading = of_readings / self.readings;
    }

    /// Adds the work of the store for writes, and the cache that writes need.
    fn add_writing(&mut self, fleet: &Fleet, load: &Load, stored: &Stored, constants: &Constants) {
        let buckets_per_second = load.buckets_per_hour / HOUR;
        let appends = load.appends(fleet.layout());
        let writes = if fleet.layout() == Layout::Packed { load.writes } else { 1.0 };
        self.store_cores = buckets_per_second / 1e6
            * (stored.cpu_us_per_first_write * writes
                + stored.cpu_us_per_further_write * appends
                + (stored.cpu_us_per_reading + stored.cpu_us_per_value * load.metrics) * load.readings_per_bucket);
        if fleet.layout() == Layout::Sqlite {
            return;
        }
        let of_bucket = load.per_bucket(
            stored.oplog_bytes_per_document,
            stored.oplog_bytes_per_metric_of_document,
            stored.oplog_bytes_per_reading,
            stored.oplog_bytes_per_value,
        );
        let of_appends = appends * load.metrics * stored.oplog_bytes_per_metric_of_document;
        self.oplog_bytes_per_second = buckets_per_second * (of_bucket + of_appends);
        self.oplog_bytes_per_day = self.oplog_bytes_per_second * DAY;
        self.journal_bytes_per_second = self.oplog_bytes_per_second * stored.journal_bytes_per_oplog_byte;
        self.hot_index_bytes = self.index_bytes.min(load.buckets_per_hour * constants.mongod.index_page_bytes);
        self.index_reads_per_second = buckets_per_second * load.writes;
        let open = if appends > 0.0 { load.buckets_per_hour * of_bucket } else { 0.0 };
        let until_checkpoint = self.oplog_bytes_per_second * constants.mongod.checkpoint_seconds;
        self.working_set_bytes = open + until_checkpoint;
    }

    fn add_service(&mut self, fleet: &Fleet, load: &Load, constants: &Constants) -> Memory {
        let (service, log) = (&constants.service, &constants.log_bytes_per);
        let per_request = 1.0 / f64::from(fleet.batch);
        let log_per_reading =
            per_request * (log.request + log.metric_of_request * load.metrics) + log.reading + log.value * load.metrics;
        self.log_bytes_per_second = load.rate.map(|rate| rate * log_per_reading);
        let of_syncs = self.requests_per_second.average * constants.disk.bytes_per_sync;
        self.disk_written_bytes_per_day = (of_syncs + self.log_bytes_per_second.average) * DAY;
        if fleet.layout() == Layout::Sqlite {
            let (disk, writes) = (&constants.disk, load.writes);
            let of_bucket = disk.sqlite_bytes_per_bucket
                + disk.sqlite_bytes_per_write * writes
                + disk.sqlite_bytes_per_transaction * writes / load.writes_per_transaction(fleet);
            self.disk_written_bytes_per_day += load.buckets_per_hour * 24.0 * of_bucket;
        }
        let waiting = seconds(fleet.max_age) + OUTAGE_SECONDS;
        self.log_bytes = self.log_bytes_per_second.map(|rate| rate * waiting);

        let gathered = seconds(fleet.max_age).min(HOUR) / seconds(fleet.interval);
        let open_buckets = load.devices * gathered.min(1.0);
        let of_reading =
            service.bytes_per_pending_reading + (load.metrics - 1.0) * service.bytes_per_pending_further_value;
        let pending =
            |factor: f64| open_buckets * (service.bytes_per_pending_bucket + (gathered * factor).max(1.0) * of_reading);
        let memory = Memory {
            pending: Rate { average: pending(1.0), peak: pending(fleet.peak) },
            other: service.base_bytes
                + load.devices * service.bytes_per_known_device
                + load.connections * service.bytes_per_connection,
            share_of_limits: 1.0,
        };
        let memory = Memory { share_of_limits: memory.share_of_limits_in(fleet, constants), ..memory };
        self.service_memory_bytes = memory.pending.map(|pending| pending + memory.other);
        self.service_memory_full_bytes = memory.other + memory.full(1.0);

        let tenfolds = (load.devices / 1_000.0).log10().max(0.0);
        let cpu_us = service.cpu_us_per_reading
            + service.cpu_us_per_reading_and_tenfold_devices * tenfolds
            + service.cpu_us_per_further_value * (load.metrics - 1.0)
            + service.cpu_us_per_request * per_request;
        let of_buckets = load.buckets_per_hour / HOUR * load.writes * service.cpu_us_per_bucket / 1e6;
        self.service_cores = load.rate.map(|rate| rate * cpu_us / 1e6 + of_buckets);
        if fleet.layout() == Layout::Sqlite {
            self.service_cores = self.service_cores.map(|cores| cores + self.store_cores);
            self.store_cores = 0.0;
        }
        memory
    }

    /// Compares the needs with one node, and counts nodes.
    fn add_nodes(&mut self, fleet: &Fleet, constants: &Constants) {
        let node = &constants.node;
        let of = fleet.node();
        let (cores, memory, disk) = (f64::from(of.cores), of.memory.0 as f64, of.disk.0 as f64);
        let memory_of_service = memory * node.memory_share_of_service(fleet.layout());
        let of_service = [
            ("processor of tidegauge, at the peak", self.service_cores.peak / (cores * node.cpu_share_of_service)),
            ("memory of tidegauge, with pending full", self.service_memory_full_bytes / memory_of_service),
            ("connections of tidegauge", with_room(self.connections) / MAX_CONNECTIONS),
        ];
        let of_store = [
            ("processor of mongod", self.store_cores / (cores * node.cpu_share_of_store)),
            ("memory for the cache of mongod", self.working_set_bytes / (memory * node.memory_share_of_cache)),
            ("disk of the store", self.storage_bytes / (disk * node.disk_share_of_store)),
        ];
        let most = |uses: &[(&'static str, f64)]| uses.iter().map(|(_, share)| *share).fold(0.0, f64::max);
        let needed = |uses: &[(&'static str, f64)]| most(uses).ceil().max(1.0);
        let all = [&of_service[..], &of_store[..]].concat();
        let first = all.iter().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are some");
        (self.first_limit, self.first_limit_use) = *first;
        self.is_one_node_enough = self.first_limit_use <= 1.0;
        if fleet.layout() == Layout::Sqlite {
            self.instances = needed(&all);
        } else {
            (self.instances, self.shards) = (needed(&of_service), needed(&of_store));
        }
    }

    /// Adds the settings of each instance, and the memory that it needs with them.
    fn add_settings(&mut self, load: &Load, memory: &Memory) {
        let Config { http, query, .. } = Config::default();
        self.settings =
            Settings::of(load, self.instances, self.log_bytes.peak, memory.pending.peak, memory.share_of_limits);
        self.service_memory_full_bytes = memory.other + memory.full(self.instances);
        let in_flight = (http.max_bytes_in_flight.0 + query.max_bytes_in_flight.0) as f64 * memory.share_of_limits;
        self.instance_memory_max_bytes = self.service_memory_full_bytes / self.instances + in_flight;
    }
}

impl Memory {
    /// The memory of pending when it is full, summed over this number of instances.
    ///
    /// The limit of each instance is a share of the default (`share_of_limits`), or more if the readings of
    /// the peak need more.
    fn full(&self, instances: f64) -> f64 {
        let limit = Config::default().pending.max_bytes.0 as f64 * self.share_of_limits;
        with_room(self.pending.peak).max(instances * limit)
    }

    /// The factor that makes the default limits fit into the memory of one node.
    ///
    /// It is computed for the case that all limits are reached at once, and is 1 in a large node.
    fn share_of_limits_in(&self, fleet: &Fleet, constants: &Constants) -> f64 {
        let Config { http, query, pending, .. } = Config::default();
        let limits = (pending.max_bytes.0 + http.max_bytes_in_flight.0 + query.max_bytes_in_flight.0) as f64;
        let memory = fleet.node().memory.0 as f64;
        let room = memory * constants.node.memory_share_of_service(fleet.layout()) - self.other;
        let is_small = self.other + limits > memory && room > 0.0;
        if is_small { (room / limits).min(1.0) } else { 1.0 }
    }
}
