//! The queries and statements that tidegauge sends, each as one command.
//!
//! A test runs the store and compares what it sends with this table. The questions about the notes of the
//! instances are left out: that collection has a document for each instance. The table also lacks the
//! questions about the metadata that operators set, which find documents by `_id`, and those of the rebuild
//! of the device index, which reads whole collections.

use bson::{DateTime, Document, doc};

use super::super::collection::CREATED_AT;
use super::super::devices::ids_after;
use super::super::names;
use super::super::timeseries::QUERY_INDEX;
use crate::model::{Day, Hour};

/// A device and an hour for which the table is made.
#[derive(Debug, Clone)]
pub struct Example {
    pub(in super::super) device: String,
    pub(in super::super) hour: Hour,
}

/// A query or a statement that tidegauge sends.
#[derive(Debug, Clone)]
pub struct Question {
    /// The purpose of the query or statement, for people.
    pub(super) purpose: &'static str,
    pub(super) collection: String,
    /// The command: `find`, `aggregate`, `update` or `delete`.
    pub(super) command: Document,
    pub(super) access: Access,
}

/// The way by which the server has to find the documents of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// By the `_id`s.
    Ids,
    /// By the index of this name.
    Index(&'static str),
    /// By the time of the server's own buckets, which are sorted by it.
    Time,
}

impl Question {
    /// The command whose plan is asked for.
    ///
    /// Servers before 7.0 explain no deletion in a time series. For such a deletion, the command is a query
    /// with the same filter.
    pub(super) fn explained(&self) -> Document {
        let deletion = self.command.get_array("deletes").ok().and_then(|deletes| deletes.first()?.as_document());
        match deletion.and_then(|deletion| deletion.get_document("q").ok()) {
            Some(filter) if self.access != Access::Ids => doc! { "find": &self.collection, "filter": filter },
            _ => self.command.clone(),
        }
    }
}

/// Collects the questions about one collection.
struct Table<'a> {
    collection: &'a str,
    questions: Vec<Question>,
}

impl Table<'_> {
    fn find(&mut self, purpose: &'static str, access: Access, filter: Document, options: Document) {
        let mut command = doc! { "find": self.collection, "filter": filter };
        command.extend(options);
        self.add(purpose, access, command);
    }

    fn update(&mut self, purpose: &'static str, statement: Document) {
        self.add(purpose, Access::Ids, doc! { "update": self.collection, "updates": [statement] });
    }

    fn delete(&mut self, purpose: &'static str, access: Access, filter: Document) {
        self.add(purpose, access, doc! { "delete": self.collection, "deletes": [{ "q": filter, "limit": 0 }] });
    }

    fn add(&mut self, purpose: &'static str, access: Access, command: Document) {
        self.questions.push(Question { purpose, collection: self.collection.to_owned(), command, access });
    }
}

fn by_id() -> Document {
    doc! { "hint": { "_id": 1 } }
}

fn in_order(direction: i32) -> Document {
    doc! { "sort": { "_id": direction }, "hint": { "_id": 1 } }
}

/// The questions about the collection of the buckets.
pub(in super::super) fn of_buckets(collection: &str, Example { device, hour }: &Example) -> Vec<Question> {
    let mut table = Table { collection, questions: Vec::new() };
    let (ids, next) = (names::ids_of_hours(device, &(*hour..Hour(hour.0 + 1))), Hour(hour.0 + 1));
    let of_hour = doc! { "_id": &ids, "deviceId": device };
    let id = names::document_id(device, *hour, 0);
    let span = doc! {
        "_id": &ids, "deviceId": device, "firstTs": { "$lt": DateTime::from_millis(next.start_ms()) },
        "lastTs": { "$gte": DateTime::from_millis(hour.start_ms()) },
    };
    let ids_in = doc! { "_id": { "$in": [&id] }, "deviceId": device };
    table.find("the stats of hours", Access::Ids, doc! { "$or": [&of_hour] }, by_id());
    table.find("the stats of recent hours, and which others are stored", Access::Ids, ids_in.clone(), by_id());
    table.find("readings", Access::Ids, span.clone(), in_order(1));
    let mut other_parts = span;
    other_parts.insert("part", doc! { "$nin": [0] });
    table.find("readings of further parts of an hour", Access::Ids, other_parts, by_id());
    table.find("latest values, and what a deletion touches", Access::Ids, of_hour.clone(), by_id());
    table.find("the newest document, and metadata", Access::Ids, of_hour.clone(), in_order(-1));
    table.find("the oldest document", Access::Ids, of_hour.clone(), in_order(1));
    let mut of_series = of_hour.clone();
    of_series.insert("$or", [doc! { "stats.lux": { "$exists": true } }]);
    table.find("the newest document with a series", Access::Ids, of_series, in_order(-1));
    let mut parts = of_hour;
    parts.insert("part", doc! { "$gte": 0 });
    table.find("the parts of a bucket, to merge late readings", Access::Ids, parts, by_id());
    let derive = doc! { "$or": [{ "_id": ids }], "deviceId": device };
    table.find("the hours of a day, to roll them up", Access::Ids, derive, by_id());
    let since = doc! { CREATED_AT: { "$gte": DateTime::from_millis(hour.start_ms()) } };
    let first = doc! { "sort": { CREATED_AT: 1 }, "limit": 1 };
    table.find("the next hour to roll up", Access::Index(CREATED_AT), since.clone(), first);
    let mut active = since;
    active.insert("lastTs", doc! { "$gte": DateTime::from_millis(hour.start_ms()) });
    table.find("the devices that are not silent", Access::Index(CREATED_AT), active, doc! {});
    let append = doc! {
        "_id": &id, "deviceId": device, "schemaVersion": 1, "lastTs": { "$lt": DateTime::from_millis(0) },
        "readingCount": { "$lte": 1 }, "bytes": { "$lte": 1 }, "full": { "$exists": false },
    };
    let set = doc! { "$set": { "lastTs": DateTime::from_millis(0) } };
    table.update("an append to a bucket", doc! { "q": append, "u": &set, "upsert": true });
    table.update("a bucket with late readings", doc! { "q": { "_id": &id, "deviceId": device, "rev": 1 }, "u": &set });
    table.update("a deletion of whole hours", doc! { "q": ids_in, "u": set, "multi": true });
    table.questions
}

/// The questions about the collection of the rollups.
pub(in super::super) fn of_rollups(collection: &str, Example { device, hour }: &Example) -> Vec<Question> {
    let mut table = Table { collection, questions: Vec::new() };
    let day = Day::of(*hour).hours();
    let of_days = doc! { "_id": names::ids_of_days(device, &day), "deviceId": device };
    let id = names::day_id(device, hour.0.div_euclid(24));
    table.find("the rollups of devices", Access::Ids, doc! { "$or": [&of_days] }, by_id());
    table.find("the first day of a device, and a deletion", Access::Ids, of_days.clone(), in_order(1));
    table.find("the last day of a device", Access::Ids, of_days.clone(), in_order(-1));
    let of_day = doc! { "_id": { "$in": [&id] }, "deviceId": device };
    table.find("the rollups of a day, to bring them up to date", Access::Ids, of_day, by_id());
    let put = doc! { "q": { "_id": id, "deviceId": device }, "u": [{ "$set": { "rev": 1 } }], "upsert": true };
    table.update("the rollup of an hour", put);
    table.delete("the deletion of a device", Access::Ids, of_days);
    table.questions
}

/// The questions about the collection of the device index.
pub(in super::super) fn of_devices(collection: &str, Example { device, .. }: &Example) -> Vec<Question> {
    let mut table = Table { collection, questions: Vec::new() };
    let of_device = doc! { "_id": device, "deviceId": device };
    let page = doc! { "_id": ids_after(device, None) };
    table.find("a page of devices", Access::Ids, page.clone(), doc! { "sort": { "_id": 1 } });
    table.find("the devices to roll up", Access::Ids, page.clone(), in_order(1));
    table.find("the IDs of all devices", Access::Ids, page, by_id());
    table.find("some devices, by ID", Access::Ids, of_device.clone(), doc! {});
    let mark = doc! { "_id": { "index": 1 }, "deviceId": "(index)" };
    table.find("the mark of the index", Access::Ids, mark, doc! {});
    let set = doc! { "$max": { "lastTs": DateTime::from_millis(0) } };
    table.update("an entry of a device", doc! { "q": &of_device, "u": &set, "upsert": true });
    let several = doc! { "_id": { "$in": [device] } };
    let mut with_metadata = several.clone();
    with_metadata.insert("metadataHour", DateTime::from_millis(0));
    for filter in [several, with_metadata] {
        table.update("the entries of several devices", doc! { "q": filter, "u": &set, "multi": true });
    }
    table.delete("the deletion of a device", Access::Ids, of_device);
    table.questions
}

/// The questions about a time series.
pub(in super::super) fn of_measurements(collection: &str, Example { device, hour }: &Example) -> Vec<Question> {
    let mut table = Table { collection, questions: Vec::new() };
    let by_device = Access::Index(QUERY_INDEX);
    let [from, to] = [*hour, Hour(hour.0 + 1)].map(|hour| DateTime::from_millis(hour.start_ms()));
    let of_hour = doc! { "meta.deviceId": device, "ts": { "$gte": from, "$lt": to } };
    let of_device = doc! { "meta.deviceId": device };
    table.find("readings", by_device, of_hour.clone(), doc! { "sort": { "ts": 1 } });
    let any_time = doc! { "meta.deviceId": device, "$nor": [{ "ts": { "$lt": from } }, { "ts": { "$gte": to } }] };
    table.find("readings from before 1970 to after 2038", by_device, any_time, doc! { "sort": { "ts": 1 } });
    table.find("latest values", by_device, of_hour.clone(), doc! {});
    let mut of_series = of_hour.clone();
    of_series.insert("$or", [doc! { "lux": { "$gte": f64::NEG_INFINITY } }]);
    table.find("the newest measurement with a series", by_device, of_series, doc! { "sort": { "ts": -1 }, "limit": 1 });
    for (purpose, direction) in [("the oldest measurement", 1), ("the newest measurement, and metadata", -1)] {
        table.find(purpose, by_device, of_device.clone(), doc! { "sort": { "ts": direction }, "limit": 1 });
    }
    table.find("whether devices have measurements", by_device, of_device.clone(), doc! { "limit": 1 });
    let first = doc! { "sort": { "ts": 1 }, "limit": 1 };
    let since = doc! { "ts": { "$gte": from } };
    table.find("the next hour to roll up", Access::Time, since.clone(), first);
    let active = [doc! { "$match": since }, doc! { "$group": { "_id": "$meta.deviceId" } }].to_vec();
    let aggregate = doc! { "aggregate": collection, "pipeline": active, "cursor": {} };
    table.add("the devices that are not silent", Access::Time, aggregate);
    let set_device = doc! { "$set": { "meta": "$meta.deviceId" } };
    let fold = [doc! { "$match": &of_hour }, doc! { "$sort": { "meta.deviceId": 1, "ts": 1 } }, set_device.clone()];
    let gather = [doc! { "$match": of_hour }, set_device];
    for (purpose, pipeline) in
        [("the stats of hours", fold.to_vec()), ("stored readings, to store late ones once", gather.to_vec())]
    {
        table.add(purpose, by_device, doc! { "aggregate": collection, "pipeline": pipeline, "cursor": {} });
    }
    table.delete("the deletion of a device", by_device, of_device);
    table.questions
}
