//! Buckets of older shapes: documents that other programs wrote after the guides to the bucket pattern.
//!
//! ```js
//! { _id: ObjectId("..."), deviceId: "S1", bucket: "2026-04-20-14",
//!   readings: [ { ts: ISODate("2026-04-20T14:00:10Z"), value: 22.4 }, ... ],
//!   readingCount: 360, stats: { min: 21.9, max: 22.6, sum: 8027.4 } }
//! { _id: 7, sensorId: 12345, hour: ISODate("2026-04-20T14:00:00Z"),
//!   readings: [ { minute: 0, temp: 22.4, hum: 40 }, ... ], count: 60 }
//! ```
//!
//! These are *version 0* of the documents: they have no `schemaVersion`. tidegauge itself has never written
//! this version: its first one was 1. The queries of the service skip them ([`crate::store`]).
//!
//! **Strict.** A document is understood as a whole or not at all (`shape`). A field without a known meaning,
//! a value of another type or an instant outside of the hour of its bucket is a [`Remark`] that says why, and
//! what to do. Derived fields (counts, stats) are compared with the readings,
//! and a difference is a remark too.
//!
//! **Pages.** The walk descends along the index of `_id`s, so each page takes the server the same work, and a
//! walk resumes at any `_id`. The `ObjectId`s that servers and drivers generate ascend with time: of
//! documents with these, the newest come first.
//!
//! **Removal.** A document is removed on the condition that it is still what was read, to the bit. So what a
//! program adds to it meanwhile is not lost.

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod instant;
mod metadata;
mod readings;
#[cfg(test)]
mod server_tests;
mod shape;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bson::{Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc, rawdoc};
use mongodb::Collection;

use self::instant::cut_off;
pub use self::shape::Shape;
use super::collection::Kind;
use super::command::{Commands, documents};
use super::connect::MongodbOptions;
use super::decode::{DecodeError, server_integer};
use super::encode::Encoder;
use super::statements::{Outcome, Verb};
use super::uri::UriError;
use crate::common::printable::printable;
use crate::model::{Contents, DeviceIdCase, Hour};
use crate::store::{Cause, StoreError};
use crate::wire;

/// The most documents of a page. A reply of the server has at most 16 MiB, so a page may have fewer.
const PAGE: i32 = 500;

/// The longest text of an `_id`, in characters.
const ID_MAX_CHARS: usize = 100;

/// The rules by which documents are understood.
#[derive(Debug, Clone)]
pub struct ShapeRules {
    /// Fields that are not read: `location`, or `readings.status` in each reading.
    pub ignored: BTreeSet<String>,
    /// Fields that are metadata of the device.
    pub metadata: BTreeSet<String>,
    /// Case handling of device IDs.
    pub device_id_case: DeviceIdCase,
    /// The limits of a reading and of metadata.
    pub limits: wire::Limits,
}

/// Something that people should know about a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// The part of the remark that is the same for all documents that it applies to.
    pub about: String,
    /// The part that is about this document only; may be empty.
    pub detail: String,
}

impl Remark {
    fn new(about: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { about: about.into(), detail: detail.into() }
    }
}

/// A bucket that was understood.
#[derive(Debug, Clone, PartialEq)]
pub struct OlderBucket {
    /// The stored ID of the device.
    pub device: Arc<str>,
    /// The metadata of the device: the text of a JSON object.
    pub metadata: Option<Arc<str>>,
    /// The readings by hour, ascending. It is one hour, unless the field with the hour is ignored.
    pub hours: Vec<(Hour, Contents)>,
    /// The shape of the document.
    pub shape: Shape,
    /// Differences between readings and derived fields, and repeated instants.
    pub findings: Vec<Remark>,
    /// The number of readings that were not understood, and a remark about the first.
    ///
    /// These readings are not in `hours`.
    pub rejected: Option<(u64, Remark)>,
}

/// The kind of a document, and its readings.
#[derive(Debug, Clone, PartialEq)]
pub enum OlderContent {
    /// A document of tidegauge itself.
    Own,
    /// A bucket of an older shape.
    Bucket(OlderBucket),
    /// A document that is not understood.
    Other(Remark),
}

/// The `_id` of a document, of any type.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentId(Bson);

impl DocumentId {
    fn of(document: &RawDocument) -> Result<Self, DecodeError> {
        let id = document.get("_id")?.ok_or_else(|| DecodeError("a document without _id".into()))?;
        Ok(Self(Bson::try_from(id)?))
    }

    /// A text from which [`Self::from_text`] makes the `_id` again, with its type.
    #[must_use]
    pub fn to_text(&self) -> String {
        let document = RawDocumentBuf::try_from(&doc! { "_id": &self.0 });
        BASE64_STANDARD.encode(document.expect("it comes from a document").as_bytes())
    }

    /// The `_id` in a text of [`Self::to_text`].
    ///
    /// # Errors
    /// When the text is another one.
    pub fn from_text(text: &str) -> Result<Self, StoreError> {
        let bytes = BASE64_STANDARD.decode(text).map_err(|error| DecodeError(error.to_string()))?;
        Ok(Self::of(RawDocument::from_bytes(&bytes).map_err(DecodeError::from)?)?)
    }
}

/// The `_id` as in mongosh, cut off if it is long.
impl fmt::Display for DocumentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&cut_off(&printable(&self.0.to_string()), ID_MAX_CHARS))
    }
}

/// A document of the collection, and what was understood of it.
#[derive(Debug, Clone)]
pub struct OlderDocument {
    /// The `_id` of the document.
    pub id: DocumentId,
    /// The kind of the document, and its readings.
    pub content: OlderContent,
    raw: RawDocumentBuf,
}

/// A collection with documents of older shapes.
#[derive(Debug)]
pub struct OlderCollection {
    documents: Collection<RawDocumentBuf>,
    commands: Commands,
    name: String,
    rules: ShapeRules,
}

impl OlderCollection {
    /// Makes the connection without asking the server for anything. `options` name the database.
    ///
    /// # Errors
    /// When the URI is invalid.
    pub async fn connect(options: &MongodbOptions, name: &str, rules: ShapeRules) -> Result<Self, UriError> {
        let commands = Commands::connect(options).await?;
        Ok(Self { documents: commands.durable(name), commands, name: name.to_owned(), rules })
    }

    /// About how many documents there are; `None` if there is no such collection.
    ///
    /// # Errors
    /// When the server does not answer or refuses, or when it is a view or a time series.
    pub async fn count(&self) -> Result<Option<u64>, StoreError> {
        let managed = self.commands.managed(&self.name);
        let Some(found) = managed.list(doc! { "name": &self.name }).await?.pop() else { return Ok(None) };
        let kind = found.get_str("type").unwrap_or_default();
        if kind != Kind::Plain.name() {
            let name = &self.name;
            let why = format!("{name} is a {kind}, whose documents cannot be migrated: import its readings as files");
            return Err(StoreError::new(Cause::Schema, why));
        }
        let reply = self.commands.run(doc! { "count": &self.name }).await?;
        Ok(Some(reply.get("n").and_then(server_integer).and_then(|count| u64::try_from(count).ok()).unwrap_or(0)))
    }

    /// Returns the next documents in the descending order of their `_id`s, from the one before `before` on.
    /// An empty page means that no document is left. The documents of tidegauge itself are without their
    /// readings.
    ///
    /// # Errors
    /// When the server does not answer or refuses.
    pub async fn page(&self, before: Option<&DocumentId>) -> Result<Vec<OlderDocument>, StoreError> {
        let Some(batch) = self.commands.first_results(&self.documents, page(before)).await? else {
            return Ok(Vec::new());
        };
        let mut found: Vec<OlderDocument> = Vec::new();
        for document in documents(&batch)? {
            let document = document?;
            let content = if is_own(document) {
                OlderContent::Own
            } else {
                match shape::understand(document, &self.rules) {
                    Ok(bucket) => OlderContent::Bucket(bucket),
                    Err(why) => OlderContent::Other(why),
                }
            };
            let id = DocumentId::of(document)
                .map_err(|error| unreadable_id(found.last().map(|last| &last.id).or(before), &error))?;
            found.push(OlderDocument { id, content, raw: document.to_owned() });
            tokio::task::yield_now().await;
        }
        Ok(found)
    }

    /// Removes documents that are still as they were read, durably. Returns those that are not: a program has
    /// changed them meanwhile, or they are so large that the comparison does not fit into a command.
    ///
    /// # Errors
    /// When the server does not answer or refuses. Some may be removed then.
    pub async fn remove(&self, documents: &[&OlderDocument]) -> Result<Vec<DocumentId>, StoreError> {
        if documents.is_empty() {
            return Ok(Vec::new());
        }
        let mut failed = Ok(());
        let settle = |_: &&OlderDocument, outcome| {
            if let Outcome::Failed(error) = outcome
                && !error.is_permanent()
            {
                failed = Err(error);
            }
        };
        let encode = |statement: &mut Encoder, document: &&OlderDocument| encode_removal(statement, document);
        self.commands.write_all(Verb::DeleteMatching, &self.name, documents, encode, settle).await?;
        failed?;
        let ids: Vec<Bson> = documents.iter().map(|document| document.id.0.clone()).collect();
        let (mut left, filter) = (Vec::new(), doc! { "_id": { "$in": ids } });
        let find = self.documents.find(filter).projection(doc! { "_id": 1 });
        let visit = |document: &RawDocument| {
            left.push(DocumentId::of(document)?);
            Ok(())
        };
        self.commands.all_documents(find, visit).await?;
        Ok(left)
    }
}

/// The stages that return a page. Of the documents of tidegauge, they return only what [`is_own`] needs.
///
/// `$expr` compares with an `_id` of any type, and uses the index, like `$lt` with an `_id` of one type.
fn page(before: Option<&DocumentId>) -> Vec<Document> {
    let mut stages = Vec::new();
    if let Some(DocumentId(before)) = before {
        stages.push(doc! { "$match": { "$expr": { "$lt": ["$_id", { "$literal": before }] } } });
    }
    let numbers = ["$schemaVersion", "$part", "$rev"].map(|field| doc! { "$isNumber": field });
    let is_own = doc! { "$and": [{ "$and": numbers.to_vec() }, { "$gte": ["$schemaVersion", 1] }] };
    let own = doc! { "_id": "$_id", "schemaVersion": "$schemaVersion", "part": "$part", "rev": "$rev" };
    stages.extend([
        doc! { "$sort": { "_id": -1 } },
        doc! { "$limit": PAGE },
        doc! { "$replaceWith": { "$cond": [is_own, own, "$$ROOT"] } },
    ]);
    stages
}

/// Whether tidegauge has written a document.
fn is_own(document: &RawDocument) -> bool {
    let number = |field: &str| match document.get(field) {
        Ok(Some(RawBsonRef::Int32(value))) => Some(i64::from(value)),
        Ok(Some(RawBsonRef::Int64(value))) => Some(value),
        _ => None,
    };
    number("schemaVersion").is_some_and(|version| version >= 1) && number("part").and(number("rev")).is_some()
}

/// Writes the statement that removes a document if it is still the same.
fn encode_removal(statement: &mut Encoder, document: &OlderDocument) {
    let id = document.raw.get("_id").ok().flatten().unwrap_or(RawBsonRef::Null);
    let same = rawdoc! { "$eq": ["$$ROOT", { "$literal": document.raw.clone() }] };
    let filter = rawdoc! { "_id": { "$eq": id }, "$expr": same };
    statement.raw_document("q", &filter);
    statement.int32("limit", 0);
}

/// The error of a document whose `_id` is not readable: the walk cannot go on from it, and nothing names it.
fn unreadable_id(before: Option<&DocumentId>, error: &DecodeError) -> StoreError {
    let place = before.map_or_else(|| "the first document".to_owned(), |last| format!("the one after {last}"));
    let why = format!("in the descending order of _ids, {place} has an _id that is not readable, replace it: {error}");
    StoreError::new(Cause::UnreadableDocument, why)
}
