//! A MongoDB database per test.

use bson::{Document, doc};
use mongodb::Client;

use super::mongod::{self, Mongod, blocking};

/// A database with a random name. Dropping this drops the database.
#[derive(Debug)]
pub(crate) struct Database {
    /// The URI of the server, without a database name.
    pub(crate) uri: String,
    /// The name of the database.
    pub(crate) name: String,
    shared: bool,
}

impl Database {
    /// A database on the server that all tests share.
    pub(crate) fn new() -> Self {
        Self::named(mongod::uri(), true)
    }

    /// A database on the test's own server.
    pub(crate) fn on(mongod: &Mongod) -> Self {
        Self::at(mongod.uri())
    }

    /// A database on the test's own servers.
    pub(crate) fn at(uri: &str) -> Self {
        Self::named(uri, false)
    }

    fn named(uri: &str, shared: bool) -> Self {
        let name = format!("tidegauge_test_{:016x}", rand::random::<u64>());
        Self { uri: uri.to_owned(), name, shared }
    }

    /// The driver's handle of the database.
    pub(crate) async fn handle(&self) -> mongodb::Database {
        let client = Client::with_uri_str(&self.uri).await.expect("a MongoDB URI");
        client.database(&self.name)
    }

    /// The results of an aggregation over a collection.
    pub(crate) async fn aggregate(&self, collection: &str, pipeline: Vec<Document>) -> Vec<Document> {
        let collection = self.handle().await.collection::<Document>(collection);
        let mut cursor = collection.aggregate(pipeline).await.expect("the aggregation runs");
        let mut documents = Vec::new();
        while cursor.advance().await.expect("the next batch") {
            documents.push(cursor.deserialize_current().expect("a document"));
        }
        documents
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.shared && !std::thread::panicking() {
            blocking(async { self.handle().await.drop().await }).expect("the database can be dropped");
        }
    }
}

#[tokio::test]
async fn a_database_acknowledges_majority_writes() {
    let database = Database::new();
    let things = database.handle().await.collection("things");
    things.insert_one(doc! { "_id": 1 }).await.expect("an acknowledged write");
    assert_eq!(database.aggregate("things", vec![doc! { "$match": {} }]).await, [doc! { "_id": 1 }]);
}
