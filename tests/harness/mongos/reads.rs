//! Queries: sent to the shards that may have results, and merged if there are several.

use bson::{Bson, Document, doc};
use futures_util::future::join_all;

use super::commands::{Command, Session, number, refuse};
use super::cursors::drain;
use super::record::Verb;
use super::sort::sorted;
use super::{PRIMARY_SHARD, target};

const NOT_MERGEABLE: i32 = 115; // CommandNotSupported

/// The field in which the shards return the sort key.
const SORT_KEY: &str = "__sortKey";

/// The allowed fields of a query on several shards.
const FIND_FIELDS: [&str; 16] = [
    "find",
    "filter",
    "sort",
    "projection",
    "limit",
    "skip",
    "batchSize",
    "singleBatch",
    "readConcern",
    "maxTimeMS",
    "hint",
    "comment",
    "lsid",
    "$db",
    "$clusterTime",
    "$readPreference",
];

/// The stages that can run on the documents of all shards.
const STAGES: [&str; 10] =
    ["$match", "$project", "$set", "$addFields", "$unwind", "$group", "$sort", "$limit", "$skip", "$count"];

impl Session {
    pub(super) async fn find(&self, command: Command) -> Document {
        let catalog = self.shared.catalog.read().await;
        let key = catalog.key_of(&command.namespace());
        let filter = command.body.get_document("filter").cloned().unwrap_or_default();
        let shards = self.route(&command, key, filter);
        match shards[..] {
            [shard] => self.cursors.pin(shard, self.shared.shards.call(shard, command.body).await),
            _ => self.find_on(&shards, command).await.unwrap_or_else(|refused| refused),
        }
    }

    pub(super) async fn aggregate(&self, command: Command) -> Document {
        let catalog = self.shared.catalog.read().await;
        let key = catalog.key_of(&command.namespace());
        let pipeline = command.body.get_array("pipeline").cloned().unwrap_or_default();
        let first = pipeline.first().and_then(|stage| stage.as_document()?.get_document("$match").ok());
        let shards = self.route(&command, key, first.cloned().unwrap_or_default());
        match shards[..] {
            [shard] => self.cursors.pin(shard, self.shared.shards.call(shard, command.body).await),
            _ => self.aggregate_on(&shards, command, pipeline).await.unwrap_or_else(|refused| refused),
        }
    }

    fn route(&self, command: &Command, key: Option<&str>, filter: Document) -> Vec<usize> {
        let shards = key.map_or_else(|| vec![PRIMARY_SHARD], |key| target::shards_of(&filter, key));
        self.shared.record.add(command.recorded(Verb::Read, key, filter, shards.clone()));
        shards
    }

    async fn find_on(&self, shards: &[usize], command: Command) -> Result<Document, Document> {
        let mut body = command.body.clone();
        if let Some(odd) = body.keys().find(|field| !FIND_FIELDS.contains(&field.as_str())) {
            return Err(not_mergeable(odd));
        }
        let [skip, limit, size] = ["skip", "limit", "batchSize"].map(|field| body.remove(field));
        let (skip, limit) = (number(skip.as_ref()) as usize, number(limit.as_ref()) as usize);
        let single = body.remove("singleBatch").is_some_and(|single| single == Bson::Boolean(true));
        if limit > 0 {
            body.insert("limit", (skip + limit) as i64);
        }
        let sort = body.get_document("sort").cloned().unwrap_or_default();
        if !sort.is_empty() {
            let mut projection = body.get_document("projection").cloned().unwrap_or_default();
            projection.insert(SORT_KEY, doc! { "$meta": "sortKey" });
            body.insert("projection", projection);
        }
        let mut keyed = Vec::new();
        for found in join_all(shards.iter().map(|&shard| drain(&self.shared.shards, shard, body.clone()))).await {
            for mut document in found? {
                let key = match document.remove(SORT_KEY) {
                    Some(Bson::Array(key)) => key,
                    Some(value) => vec![value],          // a view, sorted by one field
                    None => fields_of(&document, &sort), // a time-series collection, sorted by its metadata
                };
                keyed.push((key, document));
            }
        }
        let documents = sorted(keyed, &sort).map_err(|why| refuse(NOT_MERGEABLE, "CommandNotSupported", &why))?;
        let limit = if limit > 0 { limit } else { usize::MAX };
        let documents = documents.into_iter().skip(skip).take(limit).collect();
        let size = if single { Some(i64::MAX) } else { size.as_ref().map(|size| number(Some(size))) };
        Ok(self.cursors.serve(command.namespace(), documents, size))
    }

    /// Runs a pipeline over several shards.
    ///
    /// The shards run the first `$match`, and one shard runs the rest on the documents that they found.
    async fn aggregate_on(
        &self,
        shards: &[usize],
        command: Command,
        mut pipeline: Vec<Bson>,
    ) -> Result<Document, Document> {
        for stage in pipeline.iter().filter_map(Bson::as_document) {
            if let Some(odd) = stage.keys().find(|stage| !STAGES.contains(&stage.as_str())) {
                return Err(not_mergeable(odd));
            }
        }
        let is_match = |stage: &Bson| stage.as_document().is_some_and(|stage| stage.contains_key("$match"));
        let found_by: Vec<Bson> =
            if pipeline.first().is_some_and(is_match) { vec![pipeline.remove(0)] } else { Vec::new() };
        let mut body = command.body.clone();
        body.insert("pipeline", found_by);
        body.insert("cursor", doc! {});
        let mut documents = Vec::new();
        for found in join_all(shards.iter().map(|&shard| drain(&self.shared.shards, shard, body.clone()))).await {
            documents.extend(found?);
        }
        if !pipeline.is_empty() && !documents.is_empty() {
            let literals: Vec<Document> = documents.into_iter().map(|document| doc! { "$literal": document }).collect();
            pipeline.insert(0, doc! { "$documents": literals }.into());
            let rest = doc! { "aggregate": 1, "pipeline": pipeline, "cursor": {}, "$db": &command.database };
            documents = drain(&self.shared.shards, PRIMARY_SHARD, rest).await?;
        }
        let size = command.body.get_document("cursor").ok().and_then(|cursor| cursor.get("batchSize"));
        Ok(self.cursors.serve(command.namespace(), documents, size.map(|size| number(Some(size)))))
    }
}

/// The sort key from the document's fields.
///
/// It is shorter than `sort` if the projection dropped some of them.
fn fields_of(document: &Document, sort: &Document) -> Vec<Bson> {
    sort.keys().map(|path| target::value_at(document, path)).filter(|value| *value != Bson::Null).collect()
}

fn not_mergeable(what: &str) -> Document {
    refuse(
        NOT_MERGEABLE,
        "CommandNotSupported",
        &format!("the mongos simulator cannot merge '{what}' over several shards"),
    )
}
