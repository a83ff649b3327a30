//! tidegauge: ingestion of IoT time series.
//!
//! Devices send readings. tidegauge makes them durable in a log on disk before it answers, collects them in
//! memory by device and hour, and writes each of these buckets to a store. Dashboards query hourly rollups,
//! and operators read metrics.
//!
//! ```text
//!  HTTP ─┐
//!  UDP  ─┤                                             ┌─> store: sqlite
//!  MQTT ─┴> wire ──> ingest ──> log ══ ack             │          mongodb
//!           bytes     names,    append,                │
//!           to        limits,   fsync    in order      │
//!           readings  clock       └───────> pending ─> flush
//!                                           buckets    due by size, age, memory
//!  queries <── merge <── pending ∪ store               └─> cut the log
//! ```
//!
//! Data flows one way. The log is the queue: the feeder reads it in order into pending, whether a reading
//! arrived a millisecond ago or before a crash. A slow store therefore means bigger batches, then a longer
//! log, and only a full log refuses readings.
//!
//! The rooms, from the ground up; each may use those before it:
//!
//! - [`common`]: small tools, such as the wall clock.
//! - [`model`]: devices, hours, stats, the contents of a bucket. Pure.
//! - [`codec`]: readings as compressed columns of bytes. Pure.
//! - [`config`]: the configuration, one file per section.
//! - [`limits`]: rate limits and concurrency limits. Pure.
//! - [`access`]: tokens, keys and certificates, and what they allow. Pure.
//! - [`wire`]: formats, which turn bytes into readings. Pure.
//! - [`telemetry`]: the table of metrics, and log lines.
//! - [`disk`]: durable changes to files, and a faulty disk for tests.
//! - [`tls`]: TLS of the servers, and the names in client certificates.
//! - [`log`]: the write-ahead log.
//! - [`pending`]: buckets in memory, and when they are due. Pure.
//! - [`store`]: the stores, and what each of them promises.
//! - [`flush`]: feeds pending from the log, and the store from pending.
//! - [`client`]: requests to another tidegauge.
//! - [`forward`]: sends what the log accepts to another server too.
//! - [`query`]: merges pending and stored readings.
//! - [`influxql`]: the query language of InfluxDB 1, from text to answer. Pure.
//! - [`ingest`]: admission, the only way into the log.
//! - [`udp`]: the sockets for datagrams.
//! - [`mqtt`]: the clients of MQTT brokers, and the server for MQTT devices.
//! - [`http`]: the HTTP API.

pub mod access;
#[cfg(any(test, feature = "bench"))]
#[doc(hidden)]
pub mod bench;
pub mod client;
pub mod codec;
pub mod common;
pub mod config;
pub mod disk;
pub mod flush;
pub mod forward;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod http;
pub mod influxql;
pub mod ingest;
pub mod limits;
pub mod log;
pub mod model;
pub mod mqtt;
pub mod pending;
pub mod query;
pub mod store;
pub mod telemetry;
pub mod tls;
pub mod udp;
pub mod wire;
