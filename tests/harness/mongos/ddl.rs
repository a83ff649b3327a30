//! Drops and shards collections.

use bson::{Bson, Document, doc};

use super::catalog::shard_of;
use super::commands::{Command, Session, is_ok, refuse};
use super::cursors::drain;
use super::record::Verb;
use super::{PRIMARY_SHARD, SHARDS, Sharding, target};

/// The allowed fields of `shardCollection`.
///
/// `numInitialChunks` is missing, because later servers do not have it.
const SHARD_FIELDS: [&str; 7] = ["shardCollection", "key", "unique", "lsid", "$db", "$clusterTime", "writeConcern"];

/// The number of documents that are moved in one insert.
const MOVED_AT_ONCE: usize = 1_000;

impl Session {
    pub(super) async fn drop(&self, command: Command) -> Document {
        let mut catalog = self.shared.catalog.write().await;
        let reply = self.on_each(&target::all(), &command.body).await;
        if command.name == "dropDatabase" {
            catalog.forget_database(&command.database);
        } else {
            catalog.sharded.remove(&command.namespace());
        }
        reply
    }

    /// Shards a collection, and at once moves the documents of other shards there.
    pub(super) async fn shard_collection(&self, command: Command) -> Document {
        self.try_to_shard(command).await.unwrap_or_else(|refused| refused)
    }

    async fn try_to_shard(&self, mut command: Command) -> Result<Document, Document> {
        let namespace = command.collection.clone();
        if self.sharding == Sharding::Forbidden {
            let why = format!("not authorized on admin to execute command {{ shardCollection: \"{namespace}\" }}");
            return Err(refuse(13, "Unauthorized", &why));
        }
        let key = key_in(&command)?;
        let (database, collection) = namespace.split_once('.').unwrap_or_default();
        (command.database, command.collection) = (database.to_owned(), collection.to_owned());
        self.shared.record.add(command.recorded(Verb::Shard, Some(&key), doc! { &key: "hashed" }, target::all()));

        let mut catalog = self.shared.catalog.write().await;
        let done = doc! { "collectionsharded": &namespace, "ok": 1.0 };
        match catalog.key_of(&namespace) {
            Some(present) if present == key => return Ok(done),
            Some(_) => {
                return Err(refuse(23, "AlreadyInitialized", &format!("sharding already enabled for {namespace}")));
            }
            None => {}
        }
        self.ensure_index(&command, &key).await?;
        self.copy_collection(&command).await?;
        self.move_documents(&command, &key).await?;
        catalog.sharded.insert(namespace, key);
        Ok(done)
    }

    /// Creates the index of the shard key. A collection with documents must already have it.
    async fn ensure_index(&self, command: &Command, key: &str) -> Result<(), Document> {
        let indexes = self.indexes(command).await.unwrap_or_default();
        let starts_with_key = |index: &Document| {
            let keys = index.get_document("key").ok()?;
            (keys.iter().next()? == (&key.to_owned(), &Bson::from("hashed"))).then_some(())
        };
        if indexes.iter().any(|index| starts_with_key(index).is_some()) {
            return Ok(());
        }
        let one = doc! { "find": &command.collection, "limit": 1, "$db": &command.database };
        if !self.drain(PRIMARY_SHARD, one).await?.is_empty() {
            let why = "Please create an index that starts with the proposed shard key before sharding the collection";
            return Err(refuse(72, "InvalidOptions", why));
        }
        let index = doc! { "key": { key: "hashed" }, "name": format!("{key}_hashed") };
        self.call(
            PRIMARY_SHARD,
            doc! { "createIndexes": &command.collection, "indexes": [index], "$db": &command.database },
        )
        .await
    }

    /// Creates the collection and its indexes on the other shards.
    async fn copy_collection(&self, command: &Command) -> Result<(), Document> {
        let (database, collection) = (&command.database, &command.collection);
        let list = doc! { "listCollections": 1, "filter": { "name": collection }, "$db": database };
        let found = self.drain(PRIMARY_SHARD, list).await?;
        let mut create = doc! { "create": collection };
        create.extend(found.first().and_then(|found| found.get_document("options").ok()).cloned().unwrap_or_default());
        if let Ok(timeseries) = create.get_document_mut("timeseries")
            && timeseries.contains_key("granularity")
        {
            timeseries.remove("bucketMaxSpanSeconds"); // the granularity implies it, and 6.0 accepts only one of them
        }
        create.insert("$db", database);
        let mut indexes = self.indexes(command).await?;
        indexes.retain(|index| index.get_str("name").is_ok_and(|name| name != "_id_"));
        for shard in 1..SHARDS {
            self.shared.shards.call(shard, doc! { "drop": collection, "$db": database }).await;
            self.call(shard, create.clone()).await?;
            self.call(shard, doc! { "createIndexes": collection, "indexes": &indexes, "$db": database }).await?;
        }
        Ok(())
    }

    /// Moves the documents that belong to other shards.
    ///
    /// It moves those with one value of the key after the other.
    async fn move_documents(&self, command: &Command, key: &str) -> Result<(), Document> {
        let (database, collection) = (&command.database, &command.collection);
        let by_key = doc! { "$group": { "_id": format!("${key}") } };
        let group = doc! { "aggregate": collection, "pipeline": [by_key], "cursor": {}, "$db": database };
        for group in self.drain(PRIMARY_SHARD, group).await? {
            let value = group.get("_id").cloned().unwrap_or(Bson::Null);
            let shard = shard_of(&value);
            if shard == PRIMARY_SHARD {
                continue;
            }
            let filter = doc! { key: value };
            let documents =
                self.drain(PRIMARY_SHARD, doc! { "find": collection, "filter": &filter, "$db": database }).await?;
            for documents in documents.chunks(MOVED_AT_ONCE) {
                self.call(shard, doc! { "insert": collection, "documents": documents.to_vec(), "$db": database })
                    .await?;
            }
            let delete = doc! { "q": filter, "limit": 0 };
            self.call(PRIMARY_SHARD, doc! { "delete": collection, "deletes": [delete], "$db": database }).await?;
        }
        Ok(())
    }

    async fn indexes(&self, command: &Command) -> Result<Vec<Document>, Document> {
        let list = doc! { "listIndexes": &command.collection, "$db": &command.database };
        self.drain(PRIMARY_SHARD, list).await
    }

    async fn drain(&self, shard: usize, command: Document) -> Result<Vec<Document>, Document> {
        drain(&self.shared.shards, shard, command).await
    }

    async fn call(&self, shard: usize, command: Document) -> Result<(), Document> {
        let reply = self.shared.shards.call(shard, command).await;
        if is_ok(&reply) && !reply.contains_key("writeErrors") { Ok(()) } else { Err(reply) }
    }
}

/// The shard key of a well-formed command.
fn key_in(command: &Command) -> Result<String, Document> {
    if command.database != "admin" {
        return Err(refuse(13, "Unauthorized", "shardCollection may only be run against the admin database."));
    }
    if !command.collection.contains('.') {
        return Err(refuse(73, "InvalidNamespace", "shardCollection takes database.collection"));
    }
    if let Some(odd) = command.body.keys().find(|field| !SHARD_FIELDS.contains(&field.as_str())) {
        return Err(refuse(
            40415,
            "Location40415",
            &format!("BSON field 'shardCollection.{odd}' is an unknown field."),
        ));
    }
    let key = command.body.get_document("key").cloned().unwrap_or_default();
    match key.iter().collect::<Vec<_>>()[..] {
        [(field, kind)] if *kind == Bson::from("hashed") => Ok(field.clone()),
        _ => Err(refuse(2, "BadValue", &format!("the mongos simulator shards by one hashed field, not by {key}"))),
    }
}
