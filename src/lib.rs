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
//!           readings  clock       ├───────> forward ─> another server
//!                                 └───────> pending ─> flush
//!                                           buckets    due by size, age, end of hour, memory
//!  queries <── merge <── pending ∪ store               └─> cut the log
//! ```
//!
//! Data flows one way. The log is the queue: the feeder reads it in order into pending, whether a reading
//! arrived a millisecond ago or before a crash. If the store is slow, batches become larger, then the log
//! grows, and only a full log refuses readings.
//!
//! The rooms, which are the modules below, from the lowest layer up. Each room may use those before it.
//! "Pure" means without input or output:
//!
//! - [`common`]: small tools that every room may use, such as the wall clock.
//! - [`model`]: devices, hours, stats, the contents of a bucket. Pure.
//! - [`codec`]: readings as compressed columns of bytes. Pure.
//! - [`config`]: the configuration: keys, defaults and checks.
//! - [`limits`]: rate limits and concurrency limits. Pure.
//! - [`access`]: tokens, keys and certificates, and what they allow. Pure.
//! - [`wire`]: the parsers of all formats, which turn bytes into readings. Pure.
//! - [`telemetry`]: the table of metrics, and log lines.
//! - [`disk`]: changes to files that survive a crash, and a faulty disk for tests.
//! - [`tls`]: TLS of the servers for HTTP and MQTT, and the names in client certificates.
//! - [`log`]: the write-ahead log.
//! - [`pending`]: buckets in memory, and when they are due. Pure.
//! - [`store`]: the stores, and what each of them promises.
//! - [`flush`]: moves readings from the log to pending, and from pending to the store.
//! - [`client`]: requests to another tidegauge.
//! - [`forward`]: sends everything that the log accepts to another server too.
//! - [`query`]: merges pending and stored readings.
//! - [`influxql`]: the query language of InfluxDB 1, from text to answer. Pure.
//! - [`ingest`]: the check of readings, and their only way into the log.
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
