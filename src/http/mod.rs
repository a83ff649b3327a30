//! The HTTP API.
//!
//! Routes stand in one list (`router`), each with what it asks of who comes (`auth`); a handler turns a
//! request into a call of a room below and its answer into JSON; every error is an RFC 9457 problem with a
//! stable code, made in one place (`problem`). The paths of InfluxDB (`influx`) dress these problems as their
//! clients expect. Only this room knows axum and serves TLS, and nothing below it knows HTTP.
//!
//! Promises:
//! - Everything is bounded: connections, the time for a head and for a body, the size of a body before and
//!   after decompression, and the bytes of all bodies together.
//! - At a limit the answer is 429 or 503 with `Retry-After`, and the service goes on. After that time the
//!   same request is taken, as far as it is up to the one who sends it.
//! - What a browser sends for a page of another site is refused (`browser`).
//! - Nobody gets to a handler, and no byte of a body is read, before they are let in. No answer shows a
//!   token, a version to somebody without one, or a device that is out of reach.
//! - Where the listener speaks TLS (`tls`), it speaks nothing else.
//! - On shutdown, requests under way are answered and no new ones are taken.

use std::sync::Arc;
use std::time::Duration;

use crate::access::Gate;
use crate::common::clock::Clock;
use crate::flush::Pipeline;
use crate::ingest::Ingest;
use crate::log::Log;
use crate::query::Queries;
use crate::telemetry::{Exposition, Metrics, RefusalLog};
use crate::wire::senml::NameSplit;

mod admission;
mod auth;
mod body;
mod browser;
mod budget;
mod device;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod headers;
mod influx;
mod ingest;
mod intake;
mod linger;
mod operate;
mod params;
mod problem;
mod query;
mod router;
mod server;
mod tls;
mod turned_away;
mod unread;

pub use admission::Admission;
pub use browser::Hosts;
pub use budget::Budget;
pub use server::{listen, serve};
pub use tls::{Tls, TlsError};
pub use turned_away::connections_within;

/// What the HTTP edge obeys.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The most open connections.
    pub max_connections: usize,
    /// The most bytes of a body, before and after decompression.
    pub max_body_bytes: usize,
    /// How long the head of a request may take.
    pub header_timeout: Duration,
    /// How long the body of a request may take.
    pub body_timeout: Duration,
    /// The most readings in a page.
    pub max_readings: usize,
    /// The readings in a page when no limit is asked for.
    pub default_readings: usize,
    /// The most devices in a page.
    pub max_devices: usize,
    /// The most values in an answer.
    pub max_points: usize,
}

/// What formats leave open.
#[derive(Debug, Clone)]
pub struct Formats {
    /// The tags that may name the device in line protocol, the first choice first.
    pub device_tags: Vec<String>,
    /// How names become device and metric in `SenML`.
    pub senml_names: NameSplit,
}

/// What the handlers need.
pub struct App {
    /// Who may do what.
    pub gate: Arc<Gate>,
    /// Under which names the server answers.
    pub hosts: Hosts,
    /// The way into the log.
    pub ingest: Ingest,
    /// The way to answers.
    pub queries: Queries,
    /// Where pending readings stand.
    pub pipeline: Arc<Pipeline>,
    /// How full the log is.
    pub log: Arc<Log>,
    /// The most bytes that the log may take.
    pub log_max_bytes: u64,
    /// The most memory that pending may take, in bytes.
    pub pending_max_bytes: u64,
    /// The wall clock.
    pub clock: Clock,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The log lines about what is refused.
    pub refusals: Arc<RefusalLog>,
    /// How metrics are exported.
    pub exposition: Exposition,
    /// The bytes of bodies that may be in memory.
    pub budget: Budget,
    /// The queries that may run at once, and their memory.
    pub admission: Admission,
    /// The limits.
    pub limits: Limits,
    /// What formats leave open.
    pub formats: Formats,
}
