//! Dispatches the commands of a client.

use std::sync::Arc;

use bson::{Bson, Document, doc};

use super::cursors::Cursors;
use super::record::{Recorded, Verb};
use super::{PRIMARY_SHARD, Sharding, Shared, target};

const COMMAND_NOT_FOUND: i32 = 59;

/// The state of a client connection.
pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) cursors: Arc<Cursors>,
    pub(super) sharding: Sharding,
}

/// A command for a database.
pub(super) struct Command {
    pub(super) name: String,
    pub(super) database: String,
    /// The value of the first field if it is a text, which mostly is the collection.
    pub(super) collection: String,
    pub(super) body: Document,
}

impl Command {
    fn new(body: Document) -> Self {
        let (name, value) =
            body.iter().next().map_or((String::new(), &Bson::Null), |(name, value)| (name.clone(), value));
        let database = body.get_str("$db").unwrap_or("admin").to_owned();
        let collection = value.as_str().unwrap_or_default().to_owned();
        Self { name, database, collection, body }
    }

    pub(super) fn namespace(&self) -> String {
        format!("{}.{}", self.database, self.collection)
    }

    /// An entry for the record of statements.
    pub(super) fn recorded(&self, verb: Verb, key: Option<&str>, filter: Document, shards: Vec<usize>) -> Recorded {
        let (database, collection) = (self.database.clone(), self.collection.clone());
        Recorded { verb, database, collection, sharded: key.is_some(), filter, shards }
    }
}

impl Session {
    pub(super) async fn answer(&self, body: Document) -> Document {
        let command = Command::new(body);
        match command.name.as_str() {
            "hello" | "isMaster" | "ismaster" => self.hello(),
            "ping" | "endSessions" | "killSessions" => doc! { "ok": 1.0 },
            "buildInfo" | "create" => self.shared.shards.call(PRIMARY_SHARD, command.body).await,
            "listCollections" | "listIndexes" => {
                let reply = self.shared.shards.call(PRIMARY_SHARD, command.body).await;
                self.cursors.pin(PRIMARY_SHARD, reply)
            }
            "createIndexes" | "collMod" | "dropIndexes" => self.on_owners(command).await,
            "drop" | "dropDatabase" => self.drop(command).await,
            "shardCollection" => self.shard_collection(command).await,
            "insert" => self.write(command, "documents").await,
            "update" => self.write(command, "updates").await,
            "delete" => self.write(command, "deletes").await,
            "find" => self.find(command).await,
            "aggregate" => self.aggregate(command).await,
            "getMore" => self.cursors.next(&self.shared.shards, command.body).await,
            "killCursors" => self.cursors.kill(&self.shared.shards, command.body).await,
            other => {
                refuse(COMMAND_NOT_FOUND, "CommandNotFound", &format!("the mongos simulator has no command: '{other}'"))
            }
        }
    }

    fn hello(&self) -> Document {
        let mut reply = doc! { "helloOk": true, "isWritablePrimary": true, "ismaster": true, "msg": "isdbgrid" };
        reply.extend(self.shared.limits.clone());
        reply.extend(doc! { "localTime": bson::DateTime::now(), "logicalSessionTimeoutMinutes": 30, "ok": 1.0 });
        reply
    }

    /// Sends a command to all shards that hold the collection.
    async fn on_owners(&self, command: Command) -> Document {
        let catalog = self.shared.catalog.read().await;
        let sharded = catalog.key_of(&command.namespace()).is_some();
        let owners = if sharded { target::all() } else { vec![PRIMARY_SHARD] };
        self.on_each(&owners, &command.body).await
    }

    /// Sends a command to these shards and merges their answers; the first error wins.
    pub(super) async fn on_each(&self, shards: &[usize], body: &Document) -> Document {
        let (mut raw, mut failed) = (Document::new(), None);
        for &shard in shards {
            let reply = self.shared.shards.call(shard, body.clone()).await;
            if !is_ok(&reply) {
                failed.get_or_insert_with(|| reply.clone());
            }
            raw.insert(format!("shard{shard}"), reply);
        }
        let mut merged = failed.unwrap_or_else(|| doc! { "ok": 1.0 });
        merged.insert("raw", raw);
        merged
    }
}

pub(super) fn is_ok(reply: &Document) -> bool {
    number(reply.get("ok")) == 1
}

/// The value of a number of any type; 0 if it is not a number.
pub(super) fn number(value: Option<&Bson>) -> i64 {
    match value {
        Some(Bson::Int32(value)) => (*value).into(),
        Some(Bson::Int64(value)) => *value,
        Some(Bson::Double(value)) => *value as i64,
        _ => 0,
    }
}

/// The answer to a command that fails completely.
pub(super) fn refuse(code: i32, name: &str, why: &str) -> Document {
    doc! { "ok": 0.0, "code": code, "codeName": name, "errmsg": why }
}
