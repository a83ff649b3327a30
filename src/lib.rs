//! tidegauge: IoT time-series ingestion.
//!
//! Devices send readings; tidegauge makes them durable in a log on disk before it answers, batches them in
//! memory by device and hour, and writes each device-hour into a store. Dashboards ask for hourly rollups,
//! operators for metrics.
//!
//! ```text
//!  HTTP ─┐                                             ┌─> store: sqlite
//!  UDP  ─┴> wire ──> ingest ──> log ══ ack             │          mongodb
//!           bytes     names,    append,                │
//!           to        limits,   fsync    in order      │
//!           readings  clock       └───────> pending ─> flush
//!                                           buckets    due by size, age, memory
//!  queries <── merge <── pending ∪ store               └─> cut the log
//! ```
//!
//! Data flows one way. The log is the queue: pending is fed from it in order, whether a reading came a
//! millisecond ago or before a crash. A slow store therefore means bigger batches, then a longer log, and
//! only at the log's limit does the edge refuse.
//!
//! The rooms, from the ground up; each may use those before it:
//!
//! - [`common`]: small tools, such as the wall clock.
//! - [`model`]: devices, hours, stats, the contents of a bucket. Pure.
//! - [`codec`]: readings as compressed columns of bytes. Pure.
//! - [`config`]: one file per section.
//! - [`limits`]: rates and shares. Pure.
//! - [`access`]: tokens, and what they allow. Pure.
//! - [`wire`]: formats, bytes to readings. Pure.
//! - [`telemetry`]: the table of metrics, log lines.
//! - [`disk`]: durable changes to files, and a faulty disk for tests.
//! - [`log`]: the write-ahead log.
//! - [`pending`]: buckets in memory, and when they are due. Pure.
//! - [`store`]: where buckets live, and what every store promises.
//! - [`flush`]: from the log over pending to the store.
//! - [`query`]: pending and stored as one.
//! - [`ingest`]: the one way into the log.
//! - [`udp`]: the way in for datagrams.
//! - [`http`]: the API.

pub mod access;
#[cfg(any(test, feature = "bench"))]
#[doc(hidden)]
pub mod bench;
pub mod codec;
pub mod common;
pub mod config;
pub mod disk;
pub mod flush;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod http;
pub mod ingest;
pub mod limits;
pub mod log;
pub mod model;
pub mod pending;
pub mod query;
pub mod store;
pub mod telemetry;
pub mod udp;
pub mod wire;
