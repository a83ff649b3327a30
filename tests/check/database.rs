//! Databases in which something is broken. Each mend is applied, and the next check finds nothing.

use bson::{Binary, Document, doc, spec::BinarySubtype};
use serde_json::json;

use crate::check::{check, small, with_readings};
use crate::harness::{Database, Server, Setup, wait_until};

async fn run_all(database: &Database, commands: Vec<Document>) {
    let handle = database.handle().await;
    for command in commands {
        let done = handle.run_command(command.clone()).await;
        done.unwrap_or_else(|error| panic!("{command}: {error}"));
    }
}

/// Waits until a check finds nothing: a start brings the schema in order after it has begun to serve.
async fn is_mended(setup: &Setup, server: &Server) {
    let look = async || check(setup, &server.data_dir()).await.bad().is_empty().then_some(());
    wait_until("the mends have mended", look).await;
}

fn index(collection: &str, name: &str, keys: Document, options: Document) -> Document {
    let mut index = doc! { "name": name, "key": keys };
    index.extend(options);
    doc! { "createIndexes": collection, "indexes": [index] }
}

fn drop_index(collection: &str, name: &str) -> Document {
    doc! { "dropIndexes": collection, "index": name }
}

#[tokio::test]
async fn indexes_expiry_validators_and_documents_that_are_wrong_are_found_until_they_are_mended() {
    let database = Database::new();
    let setup = small(Setup::mongodb(&database));
    let mut server = with_readings(&setup).await;
    let expires = |seconds: i32| doc! { "keyPattern": { "createdAt": 1 }, "expireAfterSeconds": seconds };
    let huge = Binary { subtype: BinarySubtype::Generic, bytes: vec![7; 13 << 20] };
    let huge = doc! { "_id": "a/1999-01-01", "deviceId": "a", "foreign": huge };
    let body = json!({ "name": "Press 3" }).to_string();
    let request = server.request(reqwest::Method::PATCH, "/v1/devices/a/metadata");
    let named = server.send(request.header("content-type", "application/json").body(body)).await;
    assert_eq!(named.status, 200, "{}", named.text());
    wait_until("the metadata is stored", async || {
        let metadata = database.aggregate("buckets_metadata", Vec::new()).await;
        (!metadata.is_empty()).then_some(())
    })
    .await;
    let healthy = check(&setup, &server.data_dir()).await;
    assert!(healthy.bad().is_empty(), "{healthy:#?}");
    for found in [
        "buckets_metadata has the index _id_, no other than tidegauge's, and is kept forever",
        "of 1 documents of buckets_metadata, 1 were measured",
    ] {
        assert!(healthy.report.to_string().contains(found), "{found}: {healthy:#?}");
    }
    let notes = database.handle().await.collection::<Document>("buckets_instances");
    wait_until("the instance has its note", async || notes.find_one(doc! {}).await.expect("an answer")).await;
    run_all(
        &database,
        vec![
            doc! { "collMod": "buckets", "index": expires(60) },
            doc! { "collMod": "buckets", "validator": { "metadata": { "$exists": true } } },
            drop_index("rollups", "createdAt"),
            drop_index("buckets_instances", "seenAt"),
            index("devices", "early", doc! { "firstTs": 1 }, doc! { "expireAfterSeconds": 3_600 }),
            index("buckets_metadata", "old", doc! { "replacedAt": 1 }, doc! { "expireAfterSeconds": 3_600 }),
            index("rollups", "once", doc! { "day": 1, "deviceId": 1 }, doc! { "unique": true }),
            index("buckets", "mine", doc! { "metadata.floor": 1 }, doc! {}),
            doc! { "insert": "rollups", "documents": [huge] },
        ],
    )
    .await;
    let found = check(&setup, &server.data_dir()).await;
    let early = found.has("error", "collection-expiry", "documents of buckets expire after 60 s (60.0 seconds), and");
    assert!(early.contains("expireAfterSeconds: 7779600 } })"), "{early}");
    let validator = found.has("warning", "collection-validator", "buckets has a validator that is not tidegauge's");
    assert!(validator.contains("db.runCommand({ collMod: \"buckets\", validator: {} })"), "{validator}");
    let lacking = found.has("error", "collection-indexes", "rollups lacks the index createdAt");
    assert!(lacking.contains("db.getCollection(\"rollups\").createIndex({ \"createdAt\": 1 }, "), "{lacking}");
    found.has("error", "collection-indexes", "buckets_instances lacks the index seenAt");
    found.has("error", "collection-indexes", "the index early of devices");
    found.has("error", "collection-indexes", "the index old of buckets_metadata");
    found.has("error", "collection-indexes", "the index once of rollups");
    found.has("warning", "documents-size", "documents of rollups");
    assert!(found.report.to_string().contains("buckets has the index mine"), "{found:#?}");
    assert_eq!(found.bad().len(), 8, "{found:#?}");

    assert!(server.terminate().await.success());
    server.start_again().await;
    run_all(
        &database,
        vec![
            doc! { "collMod": "buckets", "validator": {} },
            drop_index("devices", "early"),
            index("buckets_instances", "seenAt", doc! { "seenAt": 1 }, doc! { "expireAfterSeconds": 2_592_000 }),
            drop_index("buckets_metadata", "old"),
            drop_index("rollups", "once"),
            doc! { "delete": "rollups", "deletes": [{ "q": { "_id": "a/1999-01-01" }, "limit": 1 }] },
        ],
    )
    .await;
    is_mended(&setup, &server).await;
}

#[tokio::test]
async fn a_query_that_reads_a_whole_collection_and_a_dropped_collection_are_found() {
    let database = Database::new();
    let setup = small(Setup::mongodb(&database)).set("mongodb.validate", true);
    let mut server = with_readings(&setup).await;
    assert!(server.terminate().await.success());
    run_all(
        &database,
        vec![
            drop_index("buckets", "createdAt"),
            doc! { "collMod": "buckets", "validator": {} },
            doc! { "drop": "devices" },
        ],
    )
    .await;
    let found = check(&setup, &server.data_dir()).await;
    found.has("error", "query-plan", "the query for the next hour to roll up on buckets reads the whole collection");
    found.has("error", "collection-indexes", "buckets lacks the index createdAt");
    found.has("warning", "collection-validator", "buckets has no validator, and mongodb.validate is true");
    found.has("warning", "collection", "devices does not exist");
    found.has("error", "device-index", "devices lacks devices that are stored");
    server.start_again().await;
    server.check(&["--rebuild-device-index"]).await;
    is_mended(&setup, &server).await;
}

#[tokio::test]
async fn a_database_that_is_not_the_one_of_the_service_is_found() {
    let (own, others) = (Database::new(), [Database::new(), Database::new()]);
    let mut server = with_readings(&small(Setup::mongodb(&own))).await;
    let data = server.data_dir();
    let record = data.join("store.json");
    let noted = || std::fs::read_to_string(&record).is_ok_and(|known| known.contains("\"id\":\"mongodb buckets "));
    wait_until("the service notes its database", async || noted().then_some(())).await;
    let _other = with_readings(&small(Setup::mongodb(&others[0]))).await;
    for other in &others {
        let found = check(&small(Setup::mongodb(other)), &data).await;
        let name = format!("mongodb {}.buckets at ", other.name);
        let mend = found.has("warning", "store-record", &name);
        assert!(mend.contains("the configuration and the environment of the service"), "{mend}");
    }
    assert!(server.terminate().await.success());
    is_mended(&small(Setup::mongodb(&own)), &server).await;
}

#[tokio::test]
async fn a_time_series_in_the_place_of_documents_and_a_capped_collection_are_found() {
    let database = Database::new();
    let setup = small(Setup::mongodb(&database));
    run_all(
        &database,
        vec![
            doc! { "create": "buckets", "timeseries": { "timeField": "ts", "metaField": "meta" } },
            doc! { "create": "rollups", "capped": true, "size": 1 << 20 },
            doc! { "create": "devices", "collation": { "locale": "en", "strength": 2 } },
        ],
    )
    .await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let found = check(&setup, folder.path()).await;
    let moved =
        found.has("error", "collection", "buckets has the type timeseries, and tidegauge needs the type collection");
    assert!(moved.contains("db.getCollection(\"buckets\").drop()"), "{moved}");
    let rename = found.has("error", "collection-options", "rollups is capped");
    assert!(rename.contains("db.getCollection(\"rollups\").renameCollection(\"rollups_before\")"), "{rename}");
    found.has("error", "collection-options", "devices has a collation");
}

#[tokio::test]
async fn a_time_series_without_its_index_with_a_wrong_expiry_or_of_other_fields_is_found() {
    let database = Database::new();
    let setup = small(Setup::timeseries(&database));
    let mut server = with_readings(&setup).await;
    run_all(
        &database,
        vec![
            drop_index("readings", "deviceId_ts"),
            doc! { "collMod": "readings", "expireAfterSeconds": "off" },
            doc! { "create": "others", "timeseries": { "timeField": "t", "metaField": "m" } },
        ],
    )
    .await;
    let found = check(&setup, &server.data_dir()).await;
    found.has("error", "collection-indexes", "readings lacks the index deviceId_ts");
    let late =
        found.has("warning", "collection-expiry", "documents of readings expire never, and by the retention after");
    assert!(late.contains("once closed hours are rolled up") && !late.contains("collMod"), "{late}");
    found.has("warning", "query-plan", "the query for readings on readings uses");
    let timeseries: toml::Table = toml::from_str("collection = \"others\"").expect("TOML");
    let others = check(&setup.clone().set("mongodb.timeseries", timeseries), &server.data_dir()).await;
    others.has("error", "collection-options", "others is a time series of other fields");

    assert!(server.terminate().await.success());
    server.start_again().await;
    is_mended(&setup, &server).await;
}
