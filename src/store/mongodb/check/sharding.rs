//! Checks the shards of each collection through a mongos.
//!
//! It was never run against a real mongos: no package registry has one.

use bson::{Bson, Document, doc};

use super::super::collection::reshard;
use super::expected::Expected;
use super::{ADMIN, Inspector};
use crate::common::finding::{Finding, Part, count};

const SHARDING: Part = Part::CollectionSharding;
const SHARDS: Part = Part::CollectionShards;

/// A shard with more than this many times the mean of the documents is a warning, if the collection has at
/// least this many documents.
const UNEVEN_FACTOR: f64 = 2.0;
const UNEVEN_MIN: i64 = 10_000;

/// The batch size of the commands, of whose answers only the first batch is read.
///
/// It is greater than the number of namespaces that a command asks for.
const BATCH: i32 = 1_000;

impl Inspector<'_> {
    pub(super) async fn check_shards(&mut self, present: &[&Expected]) {
        let database = self.commands.database.name().to_owned();
        let namespaces: Vec<[String; 2]> =
            present.iter().map(|expected| namespaces_of(&database, expected.name())).collect();
        let all: Vec<String> = namespaces.concat();
        let Some(listed) = self.list(SHARDING, Some("config"), find_entries(&all)).await else { return };
        for (expected, namespaces) in present.iter().zip(&namespaces).filter(|(expected, _)| expected.is_of_devices) {
            let is_own = |id: &str| namespaces.iter().any(|namespace| namespace == id);
            let entry = listed.iter().find(|entry| entry.get_str("_id").is_ok_and(is_own));
            self.findings.push(shard_key(&namespaces[0], expected.device_field, entry));
        }
        let Some(found) = self.list(SHARDS, Some(ADMIN), find_distribution(&all)).await else { return };
        for entry in &found {
            self.findings.push(distribution(entry.get_str("ns").unwrap_or_default(), entry));
        }
    }
}

/// The namespaces under which servers may list a collection.
///
/// Servers up to 8 list a time series under the name of the collection of its buckets.
fn namespaces_of(database: &str, name: &str) -> [String; 2] {
    [format!("{database}.{name}"), format!("{database}.system.buckets.{name}")]
}

/// The command that finds the entries of these namespaces in `config.collections`.
fn find_entries(namespaces: &[String]) -> Document {
    let filter = doc! { "_id": { "$in": namespaces.to_vec() } };
    doc! { "find": "collections", "filter": filter, "batchSize": BATCH, "singleBatch": true }
}

/// The command that finds how many documents of these namespaces each shard has.
fn find_distribution(namespaces: &[String]) -> Document {
    let of_these = doc! { "$match": { "ns": { "$in": namespaces.to_vec() } } };
    let pipeline = vec![doc! { "$shardedDataDistribution": {} }, of_these];
    doc! { "aggregate": 1, "pipeline": pipeline, "cursor": { "batchSize": BATCH } }
}

fn shard_key(namespace: &str, device_field: &str, entry: Option<&Document>) -> Finding {
    let key = entry.filter(|entry| !entry.get_bool("unsplittable").unwrap_or(false));
    let key = key.and_then(|entry| entry.get_document("key").ok());
    let is_right = |key: &Document| key.len() == 1 && key.get_str(device_field).is_ok_and(|how| how == "hashed");
    match key {
        Some(key) if is_right(key) => Finding::ok(SHARDING, format!("{namespace} is sharded by {key}")),
        Some(key) => Finding::error(
            SHARDING,
            format!(
                "{namespace} is sharded by {key}: if tidegauge may shard collections, it stores nothing, and readings \
                 wait in the log"
            ),
            reshard(namespace, device_field),
        ),
        None => Finding::warning(
            SHARDING,
            format!("{namespace} is not sharded: one shard has all of it"),
            format!(
                "grant the user enableSharding on it and restart tidegauge, or run in mongosh: \
                 sh.shardCollection({namespace:?}, {{ {device_field:?}: \"hashed\" }})"
            ),
        ),
    }
}

/// Judges an entry of `$shardedDataDistribution`.
fn distribution(namespace: &str, entry: &Document) -> Finding {
    let shards: Vec<(&str, i64)> = entry
        .get_array("shards")
        .into_iter()
        .flatten()
        .filter_map(Bson::as_document)
        .map(|shard| {
            let documents = shard.get("numOwnedDocuments").and_then(super::server_integer).unwrap_or(0);
            (shard.get_str("shardName").unwrap_or("?"), documents.max(0))
        })
        .collect();
    let all: i64 = shards.iter().map(|(_, documents)| documents).sum();
    let mean = all as f64 / shards.len().max(1) as f64;
    let text: Vec<String> =
        shards.iter().map(|(name, documents)| format!("{name} {}", count(documents.cast_unsigned()))).collect();
    let message = format!("documents of {namespace} by shard: {}", text.join(", "));
    let is_uneven = shards.iter().any(|(_, documents)| *documents as f64 > UNEVEN_FACTOR * mean);
    if is_uneven && all >= UNEVEN_MIN {
        return Finding::warning(
            SHARDS,
            format!("{message}: one has more than twice the mean"),
            "see whether the balancer runs: sh.status() and sh.startBalancer() in mongosh",
        );
    }
    Finding::ok(SHARDS, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::finding::Severity;
    use crate::store::mongodb::tests::Scratch;

    #[test]
    fn a_collection_is_sharded_by_its_hashed_device() {
        let entry = |key: Document| doc! { "_id": "t.buckets", "key": key };
        let severity = |entry: Option<&Document>| shard_key("t.buckets", "deviceId", entry).severity;
        assert_eq!(severity(Some(&entry(doc! { "deviceId": "hashed" }))), Severity::Ok);
        for other in [doc! { "bucket": 1 }, doc! { "deviceId": 1 }] {
            assert_eq!(severity(Some(&entry(other))), Severity::Error, "each start fails to shard it");
        }
        assert_eq!(severity(None), Severity::Warning);
    }

    #[tokio::test]
    async fn the_collections_of_a_database_of_any_name_are_found_among_many() {
        let scratch = Scratch::new().await;
        let ids = (0..150).flat_map(|n| ["a+b", "aab"].map(|database| format!("{database}.another-{n}")));
        let own = ["a+b.buckets", "a+b.system.buckets.readings"];
        let ids = ids.chain(["aab.buckets", own[0], own[1]].map(str::to_owned));
        let documents: Vec<Document> = ids.map(|id| doc! { "_id": id }).collect();
        scratch.run(doc! { "insert": "collections", "documents": documents }).await;
        let namespaces: Vec<String> = ["buckets", "readings"].map(|name| namespaces_of("a+b", name)).concat();
        let found = scratch.all(find_entries(&namespaces)).await;
        let mut found: Vec<&str> = found.iter().map(|entry| entry.get_str("_id").unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, own);
        let many: Vec<String> = (0..150).map(|n| format!("a+b.another-{n}")).collect();
        assert_eq!(scratch.all(find_entries(&many)).await.len(), many.len(), "more than a batch has by default");
    }

    #[test]
    fn the_distribution_is_asked_for_by_whole_namespaces_in_one_batch() {
        let command = find_distribution(&namespaces_of("a+b", "readings"));
        let names = doc! { "$in": ["a+b.readings", "a+b.system.buckets.readings"] };
        let stages = [doc! { "$shardedDataDistribution": {} }, doc! { "$match": { "ns": names } }];
        let cursor = doc! { "batchSize": BATCH };
        assert_eq!(command, doc! { "aggregate": 1, "pipeline": stages.to_vec(), "cursor": cursor });
    }

    #[test]
    fn uneven_shards_are_a_warning() {
        let entry = |documents: [i64; 3]| {
            let shards: Vec<Document> =
                documents.iter().map(|n| doc! { "shardName": "s", "numOwnedDocuments": *n }).collect();
            distribution("t.buckets", &doc! { "shards": shards }).severity
        };
        assert_eq!(entry([9_000, 10_000, 11_000]), Severity::Ok);
        assert_eq!(entry([0, 2_000, 28_000]), Severity::Warning);
        assert_eq!(entry([0, 0, 30]), Severity::Ok, "too few to tell");
    }
}
