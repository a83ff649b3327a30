//! The write paths of `InfluxDB` 1, 2 and 3, for unchanged clients.
//!
//! Each version of the API has its own names for units of time and its own error bodies. Everything else is
//! the same as for all requests with readings. Databases, buckets, organisations, retention policies and
//! other parameters of `InfluxDB` are accepted and have no effect. `influxql` beside `write` answers queries.

mod errors;
mod ping;
mod write;

pub(in crate::http) use errors::{ErrorV1, ErrorV2, ErrorV3, Version, query_failed, set_error};
pub(in crate::http) use ping::{INFLUXDB_VERSION, describe_health, describe_ping, health, ping};
pub(in crate::http) use write::{describe as describe_write, write};
