//! The write paths of `InfluxDB` 1, 2 and 3, which accept line protocol from unchanged clients.
//!
//! Each version of the API has its own names for units of time and its own error bodies. Everything else is
//! the same as for all requests with readings. Databases, buckets, organisations, retention policies and
//! other parameters of `InfluxDB` are accepted and have no effect.
//!
//! Queries in the languages of `InfluxDB` are not supported. `/query` answers only the `CREATE DATABASE` that
//! some clients send first.

mod answer;
mod hello;
mod write;

pub(super) use answer::Version;
pub(super) use hello::{health, ping, query};
pub(super) use write::write;
