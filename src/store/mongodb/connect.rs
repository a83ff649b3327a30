//! How the store reaches its database.

use std::time::Duration;

use metrics::Counter;
use mongodb::{Client, Database};

use super::servers::Servers;
use super::uri::{self, UriError};
use crate::config::MongodbUri;
use crate::store::UnreadableDocuments;

/// The longest wait for a TCP connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Where the buckets are, and how they are kept.
#[derive(Debug, Clone)]
pub struct MongodbOptions {
    /// The connection string.
    pub uri: MongodbUri,
    /// The database.
    pub database: String,
    /// The collection of the buckets.
    pub collection: String,
    /// The collection of the rollups.
    pub rollups_collection: String,
    /// The longest wait for any answer of the server.
    pub timeout: Duration,
    /// How long the server may work on one query.
    pub query_timeout: Duration,
    /// How many readings a document holds before the bucket gets another one, at least 1. Instances that
    /// write to one database may disagree on it.
    pub max_readings_per_document: u32,
    /// How large a document gets, in bytes of BSON, before the bucket gets another one; one reading may
    /// exceed it.
    pub max_document_bytes: usize,
    /// Counts the buckets that could not be appended to and had to be read, merged and written back.
    pub slow_writes: Counter,
    /// Counts the documents with readings that reads skip.
    pub unreadable_readings: UnreadableDocuments,
    /// The same of the rollups.
    pub unreadable_rollups: UnreadableDocuments,
    /// How long readings are kept after their hour ended; `None` keeps them forever.
    pub retention: Option<Duration>,
    /// How long rollups are kept after their day ended; `None` keeps them forever.
    pub rollups_retention: Option<Duration>,
    /// Whether the server checks each document against a `$jsonSchema` of its envelope.
    pub validate: bool,
    /// The most connections to one server, monitoring aside.
    pub max_connections: u32,
}

/// How measurements are kept.
#[derive(Debug, Clone)]
pub struct TimeseriesOptions {
    /// The collection of the measurements.
    pub collection: String,
    /// How much time the server puts into one of its buckets.
    pub span: TimeseriesSpan,
    /// Of how many devices it is remembered up to where readings are stored, at least 1.
    pub max_known_devices: usize,
}

/// How much time the server puts into one of its own buckets of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeseriesSpan {
    /// One of the server's classes.
    Granularity(Granularity),
    /// At most so much, which is also what its start is rounded to (`bucketMaxSpanSeconds`, servers from 6.3
    /// on).
    Max(Duration),
}

/// The server's classes of time series: readings that are mostly seconds, minutes or hours apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    /// Buckets of an hour.
    Seconds,
    /// Buckets of a day.
    Minutes,
    /// Buckets of 30 days.
    Hours,
}

impl MongodbOptions {
    /// The database, without asking the server for anything, so that tidegauge starts while MongoDB is down.
    /// (A `mongodb+srv` URI is resolved here, which takes a name server.)
    ///
    /// # Errors
    /// When the URI is not one.
    pub(super) async fn database(&self) -> Result<(Database, Servers), UriError> {
        let mut client = uri::resolve(&self.uri).await?;
        let servers = Servers::new(client.repl_set_name.clone());
        client.sdam_event_handler = Some(servers.listener());
        client.selection_criteria = None; // the primary, whatever the URI prefers
        client.app_name.get_or_insert_with(|| "tidegauge".into());
        client.max_pool_size = Some(self.max_connections);
        client.server_selection_timeout = Some(self.timeout);
        client.connect_timeout = Some(self.timeout.min(CONNECT_MAX));
        let client = Client::with_options(client).map_err(|error| uri::unusable(&self.uri, &error))?;
        Ok((client.database(&self.database), servers))
    }
}
