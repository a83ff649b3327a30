//! The harness of the integration tests: the real binary, a real mongod, and waiting with deadlines.

mod broker;
mod client;
mod clock;
mod connection;
mod database;
pub(crate) mod disk;
mod influxd;
mod metrics;
mod model;
pub(crate) mod mongod;
mod process;
mod prometheus;
mod server;
mod setup;
mod wait;

pub(crate) use broker::{Broker, mqtt_js, publish, publisher};
pub(crate) use client::client;
pub(crate) use clock::{Clock, after_noon_s, now_ms};
pub(crate) use connection::Connection;
pub(crate) use database::Database;
pub(crate) use influxd::Influxd;
pub(crate) use metrics::Metrics;
pub(crate) use model::{Model, Values};
pub(crate) use mongod::replica_set::ReplicaSet;
pub(crate) use mongod::{Mongod, free_port};
pub(crate) use process::{Finished, Killed, binary, fetched, run, run_with};
pub(crate) use prometheus::{Prometheus, Samples};
pub(crate) use server::{Answer, Server, encoded};
pub(crate) use setup::{Setup, in_stores, key_of, secret_of};
pub(crate) use wait::{wait_for, wait_until};
