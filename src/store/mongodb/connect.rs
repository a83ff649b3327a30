//! The options of the store, and the connection to its database.

use std::time::Duration;

use metrics::Counter;
use mongodb::Client;

use super::command::Commands;
use super::servers::Servers;
use super::uri::{self, UriError};
use crate::config::{BlockCompressor, BucketLayout, MongodbUri};
use crate::store::UnreadableDocuments;

/// The longest wait for a TCP connection, and for the answer to a heartbeat, unless the URI says otherwise
/// (`connectTimeoutMS`).
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The database and the collections of the store, and their limits.
#[derive(Debug, Clone)]
pub struct MongodbOptions {
    /// The connection string of the servers.
    pub uri: MongodbUri,
    /// The name of the database.
    pub database: String,
    /// The name of the collection of the buckets.
    pub collection: String,
    /// The name of the collection of the rollups.
    pub rollups_collection: String,
    /// The name of the collection of the device index.
    pub devices_collection: String,
    /// The longest wait for an answer of the server.
    pub timeout: Duration,
    /// How long the server may work on one query.
    pub query_timeout: Duration,
    /// The layout of the documents that are written.
    pub layout: BucketLayout,
    /// The most readings of a document, at least 1. A bucket with more gets another document. Instances that
    /// write to one database may have different limits.
    pub max_readings_per_document: u32,
    /// The largest size of a document, in bytes of BSON. A larger bucket gets another document; one reading
    /// may exceed the limit.
    pub max_document_bytes: usize,
    /// Counts the buckets that could not be appended to and had to be read, merged and written back.
    pub slow_writes: Counter,
    /// Counts the documents with readings that reads skip.
    pub unreadable_readings: UnreadableDocuments,
    /// Counts the documents with rollups that reads skip.
    pub unreadable_rollups: UnreadableDocuments,
    /// Counts the documents of devices that reads skip.
    pub unreadable_devices: UnreadableDocuments,
    /// How long readings are kept after the end of their hour; `None` keeps them forever.
    pub retention: Option<Duration>,
    /// How long rollups are kept after the end of their day; `None` keeps them forever.
    pub rollups_retention: Option<Duration>,
    /// How the server compresses the collections that the store creates.
    pub block_compressor: BlockCompressor,
    /// Whether the server checks each document, except its readings, against a `$jsonSchema`.
    pub validate: bool,
    /// The most connections to one server, monitoring aside.
    pub max_connections: u32,
}

impl Commands {
    /// Makes the connection without asking a server for anything, so that tidegauge starts while MongoDB is
    /// down. (A `mongodb+srv` URI is resolved here, which needs a name server.)
    ///
    /// # Errors
    /// When the URI is invalid.
    pub(super) async fn connect(options: &MongodbOptions) -> Result<Self, UriError> {
        let mut client = uri::resolve(&options.uri).await?;
        let servers = Servers::new(client.repl_set_name.clone());
        client.sdam_event_handler = Some(servers.listener());
        client.selection_criteria = None; // the primary, whatever the URI prefers
        client.app_name.get_or_insert_with(|| "tidegauge".into());
        client.max_pool_size = Some(options.max_connections);
        client.server_selection_timeout = Some(options.timeout);
        client.connect_timeout.get_or_insert(options.timeout.min(CONNECT_MAX));
        let client = Client::with_options(client).map_err(|error| uri::unusable(&options.uri, &error))?;
        Ok(Self {
            database: client.database(&options.database),
            servers,
            timeout: options.timeout,
            query_timeout: options.query_timeout,
            compressor: options.block_compressor,
            unreadable: options.unreadable_readings.clone(),
        })
    }
}
