//! How the store reaches its database.

use std::time::Duration;

use mongodb::options::ClientOptions;
use mongodb::{Client, Database};

use crate::store::StoreError;

/// The longest wait for a TCP connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Where the buckets are, and how they are kept. No `Debug`: the URI may hold a password.
#[derive(Clone)]
pub struct MongodbOptions {
    /// The connection string.
    pub uri: String,
    /// The database.
    pub database: String,
    /// The collection of the buckets.
    pub collection: String,
    /// The collection of the rollups.
    pub rollups_collection: String,
    /// The longest wait for any answer of the server.
    pub timeout: Duration,
    /// How many readings a document holds before the bucket gets another one, at least 1. Instances that write to one
    /// database may disagree on it.
    pub max_readings_per_document: u32,
    /// How long readings are kept after their hour ended; `None` keeps them forever.
    pub retention: Option<Duration>,
    /// How long rollups are kept after their day ended; `None` keeps them forever.
    pub rollups_retention: Option<Duration>,
    /// Whether the server checks each document against a `$jsonSchema` of its envelope.
    pub validate: bool,
    /// The most connections to one server, monitoring aside.
    pub max_connections: u32,
}

impl MongodbOptions {
    /// The database, without asking the server for anything, so that tidegauge starts while MongoDB is down. (A
    /// `mongodb+srv` URI is resolved here, which takes a name server.)
    ///
    /// # Errors
    /// When the URI is not one.
    pub(super) async fn database(&self) -> Result<Database, StoreError> {
        let in_uri = |error: mongodb::error::Error| StoreError(format!("the MongoDB URI: {error}"));
        let mut client = ClientOptions::parse(&self.uri).await.map_err(in_uri)?;
        client.selection_criteria = None; // the primary, whatever the URI prefers
        client.app_name.get_or_insert_with(|| "tidegauge".into());
        client.max_pool_size = Some(self.max_connections);
        client.server_selection_timeout = Some(self.timeout);
        client.connect_timeout = Some(self.timeout.min(CONNECT_MAX));
        Ok(Client::with_options(client).map_err(in_uri)?.database(&self.database))
    }
}
