//! Pages and removals on a real server.

use bson::oid::ObjectId;

use super::tests::{at, rules};
use super::*;
use crate::store::mongodb::tests::Scratch;

/// The `_id`s of a walk from the end, page by page.
async fn walk(older: &OlderCollection) -> (Vec<DocumentId>, usize) {
    let (mut ids, mut own, mut before) = (Vec::new(), 0, None::<DocumentId>);
    loop {
        let page = older.page(before.as_ref()).await.unwrap();
        let Some(last) = page.last() else { return (ids, own) };
        before = Some(DocumentId::from_text(&last.id.to_text()).unwrap());
        own += page.iter().filter(|document| document.content == OlderContent::Own).count();
        ids.extend(page.into_iter().map(|document| document.id));
    }
}

#[tokio::test]
async fn pages_descend_over_ids_of_all_types_and_pass_over_documents_of_tidegauge() {
    let scratch = Scratch::new().await;
    let older = OlderCollection::connect(&scratch.options(), "mixed", rules()).await.unwrap();
    assert_eq!(older.count().await.unwrap(), None);
    let mut ids: Vec<Bson> = (0..700).map(Bson::Int32).collect();
    ids.extend((0..300).map(|at| Bson::String(format!("S1/{at:04}"))));
    ids.push(doc! { "device": "a", "hour": at(0) }.into());
    ids.extend((0..300).map(|_| Bson::ObjectId(ObjectId::new())));
    ids.extend([Bson::Boolean(true), at(0).into()]);
    let own = |id: &Bson| matches!(id, Bson::String(_));
    let document = |id: &Bson| {
        let readings = vec![Bson::Int32(1); 10];
        if own(id) {
            doc! { "_id": id, "schemaVersion": 3, "part": 0, "rev": 1_i64, "readings": readings }
        } else {
            doc! { "_id": id, "schemaVersion": 3, "readings": readings }
        }
    };
    let documents: Vec<Document> = ids.iter().rev().map(document).collect();
    scratch.run(doc! { "insert": "mixed", "documents": documents }).await;
    assert_eq!(older.count().await.unwrap(), Some(ids.len() as u64));
    let (found, of_tidegauge) = walk(&older).await;
    let expected: Vec<DocumentId> = ids.into_iter().rev().map(DocumentId).collect();
    assert!(found == expected, "in the order of the types, each once");
    assert_eq!(of_tidegauge, 300);
    // Each page begins at its place in the index.
    let stages = page(Some(&DocumentId(Bson::Int32(350))));
    let aggregate = doc! { "aggregate": "mixed", "pipeline": stages, "cursor": {}, "hint": { "_id": 1 } };
    let explain = doc! { "explain": aggregate, "verbosity": "executionStats" };
    let plan = scratch.run(explain).await.to_string();
    let keys = plan.split("\"totalKeysExamined\": ").nth(1).and_then(|rest| rest.split([',', ' ', '}']).next());
    assert!(keys.and_then(|keys| keys.parse().ok()).is_some_and(|keys: u32| keys <= 351), "{keys:?} {plan}");
}

#[tokio::test]
async fn a_document_that_was_changed_meanwhile_is_not_removed() {
    let scratch = Scratch::new().await;
    let older = OlderCollection::connect(&scratch.options(), "old", rules()).await.unwrap();
    let document = |id: Bson| {
        doc! { "_id": id, "deviceId": "a", "bucket": "2026-04-20-14", "$x": 1, "n": f64::NAN,
        "readings": [{ "ts": at(10), "value": 1 }] }
    };
    let ids = [Bson::Int32(1), "two".into(), doc! { "a": 3 }.into(), ObjectId::new().into()];
    scratch.run(doc! { "insert": "old", "documents": ids.iter().cloned().map(document).collect::<Vec<_>>() }).await;
    let page = older.page(None).await.unwrap();
    let push = doc! { "q": { "_id": "two" }, "u": { "$push": { "readings": { "ts": at(20), "value": 2 } } } };
    scratch.run(doc! { "update": "old", "updates": [push] }).await;
    let left = older.remove(&page.iter().collect::<Vec<_>>()).await.unwrap();
    assert_eq!(left, [DocumentId("two".into())]);
    let again = older.page(None).await.unwrap();
    assert_eq!(again.iter().map(|document| &document.id).collect::<Vec<_>>(), [&left[0]]);
    assert_eq!(older.remove(&again.iter().collect::<Vec<_>>()).await.unwrap(), []);
    assert_eq!(older.count().await.unwrap(), Some(0));
}

#[tokio::test]
async fn a_time_series_is_no_collection_of_older_shapes() {
    let scratch = Scratch::new().await;
    scratch.run(doc! { "create": "series", "timeseries": { "timeField": "ts" } }).await;
    let older = OlderCollection::connect(&scratch.options(), "series", rules()).await.unwrap();
    let error = older.count().await.unwrap_err();
    assert!(error.detail.contains("series is a timeseries, whose documents"), "{error}");
}

#[tokio::test]
async fn an_id_that_is_not_readable_is_located_and_a_view_is_no_source() {
    let scratch = Scratch::new().await;
    let older = OlderCollection::connect(&scratch.options(), "old", rules()).await.unwrap();
    let mut broken = RawDocumentBuf::try_from(&doc! { "_id": "aXb" }).unwrap().into_bytes();
    let at = broken.iter().position(|byte| *byte == b'X').unwrap();
    broken[at] = 0xff;
    let broken = RawDocumentBuf::from_bytes(broken).unwrap();
    let insert = rawdoc! { "insert": "old", "documents": [broken, { "_id": "b" }] };
    older.commands.database.run_raw_command(insert).await.unwrap();
    let error = older.page(None).await.unwrap_err();
    assert!(error.detail.contains("the one after \"b\" has an _id that is not readable"), "{error}");
    assert_eq!(error.cause, Cause::UnreadableDocument);

    scratch.run(doc! { "create": "view", "viewOn": "old", "pipeline": [] }).await;
    let view = OlderCollection::connect(&scratch.options(), "view", rules()).await.unwrap();
    let error = view.count().await.unwrap_err();
    assert!(error.cause == Cause::Schema && error.detail.starts_with("view is a view, whose documents"), "{error}");
}
