//! How the store reaches its database.

use std::time::Duration;

use bson::RawDocumentBuf;
use mongodb::Client;
use mongodb::options::{ClientOptions, CollectionOptions, ReadConcern};
use tokio::sync::OnceCell;

use super::MongodbStore;
use super::command::Commands;
use super::schema::Schema;
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
    /// The longest wait for any answer of the server.
    pub timeout: Duration,
    /// How many readings a document holds before the bucket gets another one, at least 1. Instances that write to one
    /// database may disagree on it.
    pub max_readings_per_document: u32,
    /// How long readings are kept after their hour ended; `None` keeps them forever.
    pub retention: Option<Duration>,
    /// Whether the server checks each document against a `$jsonSchema` of its envelope.
    pub validate: bool,
    /// The most connections to one server, monitoring aside.
    pub max_connections: u32,
}

impl MongodbStore {
    /// Makes the store without asking the server for anything, so that tidegauge starts while MongoDB is down. (A
    /// `mongodb+srv` URI is resolved here, which takes a name server.)
    ///
    /// # Errors
    /// When the URI is not one.
    pub async fn connect(options: MongodbOptions) -> Result<Self, StoreError> {
        let in_uri = |error: mongodb::error::Error| StoreError(format!("the MongoDB URI: {error}"));
        let mut client = ClientOptions::parse(&options.uri).await.map_err(in_uri)?;
        client.selection_criteria = None; // the primary, whatever the URI prefers
        client.app_name.get_or_insert_with(|| "tidegauge".into());
        client.max_pool_size = Some(options.max_connections);
        client.server_selection_timeout = Some(options.timeout);
        client.connect_timeout = Some(options.timeout.min(CONNECT_MAX));
        let database = Client::with_options(client).map_err(in_uri)?.database(&options.database);
        // What a majority acknowledged is on every primary, and pending is dropped only then: local reads of the
        // primary show each reading that is not pending any more.
        let reading = CollectionOptions::builder().read_concern(ReadConcern::local()).build();
        Ok(Self {
            documents: database.collection_with_options::<RawDocumentBuf>(&options.collection, reading),
            commands: Commands { database: database.clone(), timeout: options.timeout },
            schema: Schema {
                database,
                collection: options.collection.clone(),
                retention: options.retention,
                validate: options.validate,
                timeout: options.timeout,
            },
            collection: options.collection,
            capacity: options.max_readings_per_document.max(1) as usize,
            deployment: OnceCell::new(),
        })
    }
}
