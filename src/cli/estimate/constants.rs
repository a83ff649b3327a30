//! The measured figures, from `constants.toml`.

use serde::Deserialize;

use super::fleet::Layout;

/// The path of the figures in the source tree, which the output names.
pub(super) const FILE: &str = "src/cli/estimate/constants.toml";

/// The content of `constants.toml`.
///
/// It has the measured figures of tidegauge, of each store and of the disk.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Constants {
    /// The day of the newest measurement.
    pub(super) date: String,
    /// The machine of the measurements.
    pub(super) machine: String,
    pub(super) request: Request,
    pub(super) service: Service,
    pub(super) log_bytes_per: LogBytesPer,
    pub(super) mongod: Mongod,
    pub(super) readable: Stored,
    pub(super) packed: Stored,
    pub(super) timeseries: Stored,
    pub(super) sqlite: Stored,
    pub(super) disk: Disk,
    pub(super) node: Node,
}

/// The bytes of a request, as most devices send it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Request {
    /// The bytes of a reading of one metric.
    pub(super) bytes: f64,
    pub(super) bytes_per_further_value: f64,
    /// The bytes of the head of a request, and of its answer.
    pub(super) http_bytes: f64,
}

/// The cost of tidegauge.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Service {
    pub(super) cpu_us_per_request: f64,
    pub(super) cpu_us_per_reading: f64,
    pub(super) cpu_us_per_reading_and_tenfold_devices: f64,
    pub(super) cpu_us_per_further_value: f64,
    pub(super) cpu_us_per_bucket: f64,
    pub(super) base_bytes: f64,
    pub(super) bytes_per_known_device: f64,
    pub(super) bytes_per_connection: f64,
    pub(super) bytes_per_pending_bucket: f64,
    pub(super) bytes_per_pending_reading: f64,
    pub(super) bytes_per_pending_further_value: f64,
}

/// The bytes in the log for each request, metric of a request, reading and value.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogBytesPer {
    pub(super) request: f64,
    pub(super) metric_of_request: f64,
    pub(super) reading: f64,
    pub(super) value: f64,
}

/// Figures of mongod that do not depend on the layout.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mongod {
    pub(super) index_page_bytes: f64,
    pub(super) checkpoint_seconds: f64,
}

/// The cost of stored readings in one layout. A bucket is a device and an hour.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    pub(super) cpu_us_per_first_write: f64,
    pub(super) cpu_us_per_further_write: f64,
    pub(super) cpu_us_per_reading: f64,
    pub(super) cpu_us_per_value: f64,
    pub(super) disk_bytes_per_document: f64,
    pub(super) disk_bytes_per_metric_of_document: f64,
    pub(super) disk_bytes_per_reading: f64,
    pub(super) disk_bytes_per_value: f64,
    pub(super) index_bytes_per_document: f64,
    pub(super) oplog_bytes_per_document: f64,
    pub(super) oplog_bytes_per_metric_of_document: f64,
    pub(super) oplog_bytes_per_reading: f64,
    pub(super) oplog_bytes_per_value: f64,
    pub(super) journal_bytes_per_oplog_byte: f64,
    pub(super) rollup_bytes_per_day: f64,
    pub(super) rollup_bytes_per_metric_of_hour: f64,
    /// The bytes of an hour beside its rollups, once its readings have expired.
    pub(super) rollup_bytes_per_expired_hour: f64,
    pub(super) bytes_per_device: f64,
    pub(super) max_readings_per_document: f64,
}

/// The bytes that a disk writes for one sync, and for SQLite.
///
/// A disk writes whole pages.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Disk {
    pub(super) bytes_per_sync: f64,
    /// For the pages that all buckets of a transaction share.
    pub(super) sqlite_bytes_per_transaction: f64,
    /// For each write of a bucket.
    pub(super) sqlite_bytes_per_write: f64,
    /// For the first write of a bucket, which adds rows.
    pub(super) sqlite_bytes_per_bucket: f64,
}

/// The shares of a node's resources that an estimate plans with, by program.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub(super) cpu_share_of_service: f64,
    pub(super) cpu_share_of_store: f64,
    memory_share_of_service: f64,
    pub(super) memory_share_of_cache: f64,
    pub(super) disk_share_of_store: f64,
}

impl Node {
    /// The share of a node's memory that tidegauge may use.
    ///
    /// With SQLite, it includes the share for the cache of mongod.
    pub(super) fn memory_share_of_service(&self, layout: Layout) -> f64 {
        let of_cache = if layout == Layout::Sqlite { self.memory_share_of_cache } else { 0.0 };
        self.memory_share_of_service + of_cache
    }
}

impl Constants {
    /// The figures of this version.
    pub(super) fn measured() -> Result<Self, toml::de::Error> {
        toml::from_str(include_str!("constants.toml"))
    }

    /// The figures of a layout.
    pub(super) const fn of(&self, layout: Layout) -> &Stored {
        match layout {
            Layout::Readable => &self.readable,
            Layout::Packed => &self.packed,
            Layout::Timeseries => &self.timeseries,
            Layout::Sqlite => &self.sqlite,
        }
    }
}
