//! The packed layout: the readings of a document are columns, which the server's own time-series collections
//! use as well (`BSONColumn`, [`crate::codec::bson_column`]).
//!
//! ```js
//! { _id: "LIGHT-FL02-ZONE4/2026-04-20T14",   // + "/1", "/2" for further parts
//!   // deviceId, bucket, part, rev, createdAt, metadata, readingCount, firstTs, lastTs, stats: as in
//!   // readable documents
//!   schemaVersion: 1,
//!   control: { version: 2, min: { ts: firstTs }, max: { ts: ISODate(...) }, count: 360 },
//!   data: { ts: BinData(7, ...), lux: BinData(7, ...) } }
//! ```
//!
//! **Writes** (`known_parts`). A flush is one insert: the next part of its bucket. An instance knows the last
//! part of the buckets that it has written, and that part's `lastTs`. If all readings of a flush are later,
//! it inserts them with the next number. If it knows nothing of a bucket, it inserts part 0. An insert whose
//! `_id` exists does nothing and returns 11000. If that was part 0, the instance looks up the last part (of
//! many buckets at once, as after a start), and inserts the next one. Else the flush takes the slow path.
//!
//! **Why this stores each identity once.** (1) The `lastTs` of a stored part never changes, and no reading of
//! that part or of a part before it is later. A reading that is later than every part is only ever stored by
//! the insert of a new part. So if the insert of part n + 1 succeeds, no reading later than the `lastTs` of
//! part n was stored before, and there is no duplicate, whatever other instances have done to parts 0 to n.
//! (2) A late reading belongs into one part: of the parts whose `lastTs` is not before it, the first one that
//! is not marked `full` (`plan`). Parts are changed on the condition that their `rev` is unchanged, and the
//! mark is never removed. If two writers of one late reading change the same part, the slower one starts
//! over. If one of them has read that part as full, then either the other one had added the reading before
//! the mark, and this writer has read it; or the mark has changed the `rev`, and the other one starts over.
//!
//! The stats of a bucket are those of its parts, added up. A sum that is beyond the range of a double in
//! between stays infinite.
//!
//! Parts are never joined: MongoDB cannot remove one document and change another at once without a
//! transaction, which a standalone server does not have. Parts are few if a flush has most of an hour
//! (`flush.max_age`).
//!
//! **Mixed collections.** Each document says which layout it has, and reads take both. The slow path converts
//! the documents of the other layout that it reads, and marks them full. Both layouts add nothing to a full
//! part, and give a new part the next number, so that only one of two instances can insert it.
//!
//! **Sparse readings**, most of which lack most of the metrics, would need more work for the missing values
//! than for the others. A document with more than [`CELLS_MAX`] instants times metrics is therefore written
//! in the readable layout, by the slow path, and marked full.
//!
//! **A person who deletes documents** of an hour that is still written to should delete all parts, and
//! restart tidegauge: an instance that knows a part inserts the next one, whether or not the part is still
//! there.

mod columns;
#[cfg(test)]
mod interleaving_tests;
mod known_parts;
pub(super) mod view;

pub(super) use self::columns::{Columns, encode_columns, is_dense};
pub(super) use self::known_parts::{KnownParts, PART_MAX};

/// The most instants times metrics of a packed document.
const CELLS_MAX: usize = 1 << 19;

/// The most instants of a packed document: the highest `mongodb.max_readings_per_document`.
const INSTANTS_MAX: usize = 100_000;

/// The name of the column of the instants. No metric has this name.
const TIME: &str = "ts";
