//! The view `<collection>_unpacked`: the readings of packed documents, one by one.
//!
//! It is a convenience for people. The server unpacks columns with a stage that its vendor uses but does not
//! document (`$_unpackBucket`), so a later version may not have it. tidegauge itself never reads the view,
//! and starts without it.
//!
//! The stage turns conditions on readings into conditions on fields that only the server's own buckets have,
//! and would find nothing. It does not do so for computed fields. The view computes `ts` and `values`, so
//! conditions on them apply to unpacked readings. Conditions on `meta._id` and `meta.deviceId` apply to
//! documents, before these are unpacked.

use bson::{Document, doc};

use super::super::super::collection::ManagedCollection;
use super::super::document::SCHEMA_VERSION;
use super::TIME;

/// The field in which the stage puts the `_id`, the device and its metadata.
///
/// No series has such a name.
const OF_DOCUMENT: &str = "{meta}";

/// Creates the view if the server can unpack. Otherwise it logs one line.
pub(in super::super) async fn ensure(collection: &ManagedCollection) {
    let view = format!("{}_unpacked", collection.name);
    match collection.ensure_view(&view, stages()).await {
        Ok(true) => tracing::info!(view, "created a view of the packed readings"),
        Ok(false) => {}
        Err(error) => tracing::info!(view, %error, "there is no view of the packed readings: use the API to read them"),
    }
}

/// The stages of the view.
fn stages() -> Vec<Document> {
    vec![
        doc! { "$match": { "schemaVersion": SCHEMA_VERSION, "control": { "$exists": true } } },
        doc! { "$set": { "meta": { "_id": "$_id", "deviceId": "$deviceId", "metadata": "$metadata" } } },
        doc! { "$_unpackBucket": { "timeField": TIME, "metaField": OF_DOCUMENT } },
        doc! { "$project": {
            "_id": 0, "meta": format!("${OF_DOCUMENT}"), TIME: { "$add": [format!("${TIME}"), 0] }, "values": "$$ROOT",
        } },
        doc! { "$unset": [format!("values.{TIME}"), format!("values.{OF_DOCUMENT}")] },
    ]
}
