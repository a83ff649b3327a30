//! Inserts, updates and deletes: each statement is sent to the shard of its device.

use std::collections::BTreeMap;

use bson::{Array, Bson, Document, doc};
use futures_util::future::join_all;

use super::commands::{Command, Session, is_ok, number};
use super::record::Verb;
use super::{PRIMARY_SHARD, target};

const SHARD_KEY_NOT_FOUND: i32 = 61;
const IMMUTABLE_FIELD: i32 = 66;
const INVALID_OPTIONS: i32 = 72;

/// The reason why a statement is sent to no shard.
struct Refusal {
    code: i32,
    why: String,
}

/// Statements that go to the same shards, by their places in the command.
struct Batch {
    shards: Vec<usize>,
    places: Vec<usize>,
}

impl Session {
    /// Executes a write command whose statements are in the field `array`.
    pub(super) async fn write(&self, mut command: Command, array: &str) -> Document {
        let catalog = self.shared.catalog.read().await;
        let key = catalog.key_of(&command.namespace());
        let statements: Vec<Document> = match command.body.remove(array) {
            Some(Bson::Array(statements)) => statements.iter().filter_map(Bson::as_document).cloned().collect(),
            _ => Vec::new(),
        };
        let ordered = command.body.get_bool("ordered").unwrap_or(true);
        let mut merged = Merged::default();
        let mut batches: Vec<Batch> = Vec::new();
        for (place, statement) in statements.iter().enumerate() {
            let targeted = key.map_or(Ok(vec![PRIMARY_SHARD]), |key| target_of(&command.name, statement, key));
            let shards = targeted.as_ref().map_or_else(|_| Vec::new(), Clone::clone);
            let filter = statement.get_document("q").unwrap_or(statement).clone();
            self.shared.record.add(command.recorded(Verb::Write, key, filter, shards));
            match targeted {
                Ok(shards) => add(&mut batches, place, shards, ordered),
                Err(refusal) => {
                    merged.errors.insert(place, doc! { "code": refusal.code, "errmsg": refusal.why });
                    if ordered {
                        break;
                    }
                }
            }
        }
        if ordered {
            for batch in batches {
                self.send(&command, array, &statements, &batch, &mut merged).await;
                if merged.errors.keys().any(|place| *place <= *batch.places.last().expect("not empty")) {
                    merged.errors.retain(|place, _| *place <= *batch.places.last().expect("not empty"));
                    break;
                }
            }
        } else {
            let sent = join_all(batches.iter().map(|batch| async {
                let mut merged = Merged::default();
                self.send(&command, array, &statements, batch, &mut merged).await;
                merged
            }));
            sent.await.into_iter().for_each(|part| merged.add(part));
        }
        merged.into_reply(&command.name)
    }

    async fn send(&self, command: &Command, array: &str, statements: &[Document], batch: &Batch, merged: &mut Merged) {
        let mut body = command.body.clone();
        let chosen: Array = batch.places.iter().map(|&place| statements[place].clone().into()).collect();
        if body.contains_key("txnNumber") {
            // For a retryable write, the shard remembers the numbers of the statements in the client's
            // command.
            body.insert("stmtIds", batch.places.iter().map(|&place| place as i32).collect::<Vec<i32>>());
        }
        body.insert(array, chosen);
        let replies = join_all(batch.shards.iter().map(|&shard| self.shared.shards.call(shard, body.clone())));
        for reply in replies.await {
            merged.take(&reply, &batch.places);
        }
    }
}

/// The shards of a statement of a command called `name`.
fn target_of(name: &str, statement: &Document, key: &str) -> Result<Vec<usize>, Refusal> {
    if name == "insert" {
        return Ok(vec![super::catalog::shard_of(&target::value_at(statement, key))]);
    }
    let filter = statement.get_document("q").cloned().unwrap_or_default();
    let is_multi = match name {
        "update" => statement.get_bool("multi").unwrap_or(false),
        _ => number(statement.get("limit")) == 0,
    };
    if let Ok(update) = statement.get_document("u")
        && changes_key(update, key)
    {
        let why = format!("the mongos simulator does not allow a change of the shard key {key}");
        return Err(Refusal { code: IMMUTABLE_FIELD, why });
    }
    if statement.get_bool("upsert").unwrap_or(false) && target::equality(&filter, key).is_none() {
        let why = "Failed to target upsert by query :: could not extract exact shard key".to_owned();
        return Err(Refusal { code: SHARD_KEY_NOT_FOUND, why });
    }
    let shards = target::shards_of(&filter, key);
    if shards.len() > 1 && !is_multi && target::equality(&filter, "_id").is_none() {
        let (code, why) = match name {
            "update" => (INVALID_OPTIONS, "A {multi:false} update on a sharded collection"),
            _ => (SHARD_KEY_NOT_FOUND, "A single delete on a sharded collection"),
        };
        return Err(Refusal {
            code,
            why: format!("{why} must contain an exact match on _id or contain the shard key"),
        });
    }
    Ok(shards)
}

fn changes_key(update: &Document, key: &str) -> bool {
    let touches = |operator: &str| update.get_document(operator).is_ok_and(|fields| fields.contains_key(key));
    ["$set", "$unset", "$inc", "$rename", "$min", "$max"].into_iter().any(touches)
}

/// Adds a statement to the batch for its shards, or to a new batch.
///
/// An ordered command may only add to the last batch.
fn add(batches: &mut Vec<Batch>, place: usize, shards: Vec<usize>, ordered: bool) {
    let from = if ordered { batches.len().saturating_sub(1) } else { 0 };
    match batches[from..].iter_mut().find(|batch| batch.shards == shards) {
        Some(batch) => batch.places.push(place),
        None => batches.push(Batch { shards, places: vec![place] }),
    }
}

/// The replies of the shards, merged into one reply to the client.
#[derive(Default)]
struct Merged {
    n: i64,
    modified: i64,
    upserted: Vec<Document>,
    errors: BTreeMap<usize, Document>,
    concern_error: Option<Document>,
    retried: Vec<i32>,
}

impl Merged {
    fn take(&mut self, reply: &Document, places: &[usize]) {
        if !is_ok(reply) {
            // A mongos reports the error of a shard's command for each of its statements.
            let error = doc! { "code": reply.get("code"), "errmsg": reply.get("errmsg") };
            self.errors.extend(places.iter().map(|&place| (place, error.clone())));
            return;
        }
        self.n += number(reply.get("n"));
        self.modified += number(reply.get("nModified"));
        let documents = |field: &str| reply.get_array(field).cloned().unwrap_or_default();
        for upserted in documents("upserted").iter().filter_map(Bson::as_document) {
            let mut upserted = upserted.clone();
            let place = places[number(upserted.get("index")) as usize];
            upserted.insert("index", place as i32);
            self.upserted.push(upserted);
        }
        for error in documents("writeErrors").iter().filter_map(Bson::as_document) {
            self.errors.insert(places[number(error.get("index")) as usize], error.clone());
        }
        if let Ok(error) = reply.get_document("writeConcernError") {
            self.concern_error.get_or_insert_with(|| error.clone());
        }
        self.retried.extend(documents("retriedStmtIds").iter().filter_map(Bson::as_i32));
    }

    fn add(&mut self, part: Self) {
        self.n += part.n;
        self.modified += part.modified;
        self.upserted.extend(part.upserted);
        self.errors.extend(part.errors);
        self.concern_error = self.concern_error.take().or(part.concern_error);
        self.retried.extend(part.retried);
    }

    fn into_reply(mut self, name: &str) -> Document {
        let mut reply = doc! { "n": self.n as i32 };
        if name == "update" {
            reply.insert("nModified", self.modified as i32);
        }
        if !self.upserted.is_empty() {
            self.upserted.sort_by_key(|upserted| number(upserted.get("index")));
            reply.insert("upserted", self.upserted);
        }
        let with_place = |(place, mut error): (usize, Document)| {
            error.insert("index", place as i32);
            error
        };
        let errors: Vec<Document> = self.errors.into_iter().map(with_place).collect();
        if !errors.is_empty() {
            reply.insert("writeErrors", errors);
        }
        reply.extend(self.concern_error.map(|error| ("writeConcernError".to_owned(), error.into())));
        if !self.retried.is_empty() {
            reply.insert("retriedStmtIds", self.retried);
        }
        reply.insert("ok", 1.0);
        reply
    }
}
