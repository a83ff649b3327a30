//! tidegauge: IoT time-series ingestion.
pub mod config;
pub mod flush;
pub mod http;
pub mod ingest;
pub mod log;
pub mod model;
pub mod pending;
pub mod query;
pub mod store;
pub mod telemetry;
pub mod wire;
