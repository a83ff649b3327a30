//! Compares each collection with the schema that the options ask for: type, options, indexes, expiry,
//! validator.

use std::time::Duration;

use bson::{Bson, Document, doc};

use super::super::collection::{EXPIRE_MAX, Kind, SHARD_INDEX, has_keys};
use super::super::decode::server_integer;
use super::expected::{Expected, ExpectedValidator};
use super::{ID_INDEX, Inspector, first_batch, number, shell};
use crate::common::finding::{Finding, Part, count, span};

const PRESENT: Part = Part::Collection;
const OPTIONS: Part = Part::CollectionOptions;
const INDEXES: Part = Part::CollectionIndexes;
const EXPIRY: Part = Part::CollectionExpiry;
const VALIDATOR: Part = Part::CollectionValidator;

/// The advice for whatever tidegauge corrects at its start.
const RESTART: &str = "restart tidegauge, which does it at each start";

/// The advice about an expiry of readings that is too long. A command would delete readings of hours that are
/// not rolled up yet.
const SHORTENED_LATER: &str =
    "tidegauge shortens it once closed hours are rolled up; if it stays, see its log, or restart it";

impl Inspector<'_> {
    /// Checks the collections, and returns those that exist with the right type.
    pub(super) async fn check_collections<'e>(&mut self, expected: &'e [Expected]) -> Vec<&'e Expected> {
        let names: Vec<&str> = expected.iter().map(Expected::name).collect();
        let list = doc! { "listCollections": 1, "filter": { "name": { "$in": names } } };
        let Some(listed) = self.list(PRESENT, None, list).await else { return Vec::new() };
        if listed.is_empty() {
            let database = self.commands.database.name();
            self.findings.push(Finding::note(
                PRESENT,
                format!("the database {database} has no collection of tidegauge yet: the first start creates them"),
            ));
            return Vec::new();
        }
        let mut present = Vec::new();
        for expected in expected {
            let found = listed.iter().find(|found| found.get_str("name").is_ok_and(|name| name == expected.name()));
            match found {
                None if !expected.is_of_devices => {}
                None => self.findings.push(missing(expected)),
                Some(found) if !is_of(found, expected.kind) => self.findings.push(wrong_type(expected, found)),
                Some(found) => {
                    self.check_collection(expected, found).await;
                    present.push(expected);
                }
            }
        }
        present
    }

    async fn check_collection(&mut self, expected: &Expected, found: &Document) {
        let options = found.get_document("options").cloned().unwrap_or_default();
        let before = self.findings.len();
        self.check_options(expected, &options).await;
        if let Some(validator) = &expected.validator {
            self.findings.extend(check_validator(expected, validator, &options));
        }
        self.check_indexes(expected, &options).await;
        if self.findings.len() == before {
            let (name, index) = (expected.name(), expected.index.0);
            let kept = expected.expiry.map_or_else(|| "forever".to_owned(), |age| format!("for {}", seconds(age)));
            self.findings.push(Finding::ok(
                PRESENT,
                format!("{name} has the index {index}, no other than tidegauge's, and is kept {kept}"),
            ));
        }
    }

    async fn check_options(&mut self, expected: &Expected, options: &Document) {
        let name = expected.name();
        let create_again =
            format!("stop tidegauge, rename the collection, and start tidegauge, which creates it: {}", rename(name));
        if options.get_bool("capped").unwrap_or(false) {
            let message = format!("{name} is capped: the server removes its oldest documents, whatever the retention");
            self.findings.push(Finding::error(OPTIONS, message, &*create_again));
        }
        if options.contains_key("collation") {
            let message = format!("{name} has a collation: the server may take different device IDs for the same");
            self.findings.push(Finding::error(OPTIONS, message, create_again));
        }
        if options.contains_key("clusteredIndex") && expected.kind == Kind::Plain {
            self.findings.push(Finding::note(OPTIONS, format!("{name} is clustered by its _id, which works")));
        }
        if let Some((fields, span)) = &expected.timeseries {
            let present = options.get_document("timeseries").cloned().unwrap_or_default();
            self.findings.extend(check_timeseries(name, &present, fields, span));
        }
        self.check_compressor(expected).await;
    }

    async fn check_compressor(&mut self, expected: &Expected) {
        let Some(stats) = self.ask(OPTIONS, None, doc! { "collStats": expected.name() }).await else { return };
        let created = stats.get_document("wiredTiger").ok().and_then(|engine| engine.get_str("creationString").ok());
        let compressor = created.and_then(|text| text.split_once("block_compressor=")?.1.split(',').next());
        let compressor = compressor.map(|name| if name.is_empty() { "none" } else { name });
        let (name, wanted) = (expected.name(), self.commands.compressor.name());
        if let Some(found) = compressor.filter(|found| *found != wanted) {
            let note = Finding::note(
                OPTIONS,
                format!("{name} is compressed with {found}, and mongodb.block_compressor is {wanted}"),
            );
            self.findings.push(note.with_mend("docs/mongodb.md (Compression) says how to convert a collection"));
        }
    }

    async fn check_indexes(&mut self, expected: &Expected, options: &Document) {
        let Some(indexes) = self.list(INDEXES, None, doc! { "listIndexes": expected.name() }).await else { return };
        let (wanted, keys) = &expected.index;
        let present = indexes.iter().find(|index| has_keys(index, keys));
        match (expected.kind, present) {
            (Kind::Plain, Some(index)) => {
                self.findings.extend(check_expiry(expected, index.get("expireAfterSeconds").and_then(server_integer)));
                self.findings.extend(limited_index(expected.name(), wanted, index));
            }
            (Kind::Plain, None) => self.findings.push(missing_index(expected)),
            (Kind::Timeseries, present) => {
                if present.is_none() {
                    self.findings.push(missing_index(expected));
                }
                self.findings
                    .extend(check_expiry(expected, options.get("expireAfterSeconds").and_then(server_integer)));
            }
        }
        let others: Vec<&Document> = indexes
            .iter()
            .filter(|index| !has_keys(index, keys))
            .filter(|index| ![ID_INDEX, SHARD_INDEX, wanted].contains(&name_of(index)))
            // servers from 6.3 on create this index for each time series
            .filter(|index| expected.kind == Kind::Plain || !has_keys(index, &doc! { "meta": 1, "ts": 1 }))
            .collect();
        if others.is_empty() {
            return;
        }
        let uses = self.uses_of_indexes(expected.name()).await;
        let findings = others.into_iter().map(|index| extra_index(expected, index, &uses));
        self.findings.extend(findings);
    }

    /// How often each index was used since the start of the server, by its name.
    async fn uses_of_indexes(&self, name: &str) -> Vec<(String, u64)> {
        let aggregate = doc! { "aggregate": name, "pipeline": [{ "$indexStats": {} }], "cursor": {} };
        let Ok(reply) = self.try_to_ask(None, aggregate).await else { return Vec::new() };
        let of = |index: &Document| {
            let ops = index.get_document("accesses").ok().and_then(|accesses| number(accesses, "ops"))?;
            Some((index.get_str("name").ok()?.to_owned(), ops))
        };
        first_batch(&reply).iter().filter_map(of).collect()
    }
}

fn is_of(found: &Document, kind: Kind) -> bool {
    found.get_str("type").is_ok_and(|name| name == kind.name())
}

fn missing(expected: &Expected) -> Finding {
    Finding::warning(
        PRESENT,
        format!("{} does not exist, though other collections of tidegauge do", expected.name()),
        "start tidegauge: it creates the collection, also while it runs; if it was dropped, its data is lost unless it \
         can be derived (docs/mongodb.md, Dropped or replaced collections)",
    )
}

fn wrong_type(expected: &Expected, found: &Document) -> Finding {
    let (name, wanted) = (expected.name(), expected.kind.name());
    let found = found.get_str("type").unwrap_or("unknown");
    Finding::error(
        PRESENT,
        format!("{name} has the type {found}, and tidegauge needs the type {wanted}: it writes nothing"),
        format!(
            "choose another name for it in [mongodb] of the configuration, or stop tidegauge and move the collection \
             away: {}",
            if found == Kind::Plain.name() { rename(name) } else { format!("{}.drop()", shell(name)) }
        ),
    )
}

fn rename(name: &str) -> String {
    format!("{}.renameCollection({:?})", shell(name), format!("{name}_before"))
}

fn check_timeseries(name: &str, present: &Document, fields: &Document, span: &Document) -> Option<Finding> {
    let is_same = |field: &str| match (present.get(field), fields.get(field)) {
        (Some(found), Some(wanted)) => {
            found.as_str() == wanted.as_str() && server_integer(found) == server_integer(wanted)
        }
        (found, wanted) => found.is_none() && wanted.is_none(),
    };
    if !is_same("timeField") || !is_same("metaField") {
        return Some(Finding::error(
            OPTIONS,
            format!("{name} is a time series of other fields: {present}; tidegauge needs timeField ts, metaField meta"),
            "set mongodb.timeseries.collection to another name",
        ));
    }
    if span.keys().all(|field| is_same(field)) {
        return None;
    }
    let message = format!("the buckets of {name} have another span than [mongodb.timeseries] asks for: {present}");
    Some(Finding::warning(
        OPTIONS,
        message,
        format!("{RESTART}, if the new span is longer; MongoDB never makes it shorter: then configure the present one"),
    ))
}

/// Advises to run a command in mongosh, or to restart tidegauge if a start does the same.
fn or_run(expected: &Expected, command: &str) -> String {
    let instead = if expected.is_of_devices { format!("{RESTART}, or ") } else { String::new() };
    format!("{instead}run in mongosh: {command}")
}

/// Compares the seconds after which the server expires documents with those that the retention asks for.
fn check_expiry(expected: &Expected, found: Option<i64>) -> Option<Finding> {
    let (name, field) = (expected.name(), expected.index.0);
    let wanted = expected.expiry.map(|age| age.min(EXPIRE_MAX).as_secs().cast_signed());
    let command = match (expected.kind, wanted) {
        (Kind::Timeseries, wanted) => {
            let value = wanted.map_or_else(|| "\"off\"".to_owned(), |seconds| seconds.to_string());
            format!("db.runCommand({{ collMod: {name:?}, expireAfterSeconds: {value} }})")
        }
        (Kind::Plain, Some(seconds)) => format!(
            "db.runCommand({{ collMod: {name:?}, index: {{ keyPattern: {{ {field}: 1 }}, \
             expireAfterSeconds: {seconds} }} }})"
        ),
        (Kind::Plain, None) => format!("{}.dropIndex({field:?})", shell(name)),
    };
    let mend = or_run(expected, &command);
    let text =
        |seconds: Option<i64>| seconds.map_or_else(|| "never".to_owned(), |age| format!("after {}", seconds_text(age)));
    if found == wanted {
        return None;
    }
    let message = format!("documents of {name} expire {}, and by the retention {}", text(found), text(wanted));
    let is_early = found.is_some_and(|found| wanted.is_none_or(|wanted| found < wanted));
    Some(if is_early {
        Finding::error(EXPIRY, format!("{message}: the server deletes too early"), mend)
    } else {
        let mend = if expected.is_of_readings { SHORTENED_LATER.to_owned() } else { mend };
        Finding::warning(EXPIRY, format!("{message}: the server deletes too late"), mend)
    })
}

fn seconds(age: Duration) -> String {
    seconds_text(age.as_secs().cast_signed())
}

fn seconds_text(seconds: i64) -> String {
    let length = Duration::from_secs(seconds.max(0).cast_unsigned());
    format!("{} s ({})", count(length.as_secs()), span(length))
}

/// The finding about an index by time that lacks documents, or that queries cannot use.
fn limited_index(name: &str, field: &str, index: &Document) -> Option<Finding> {
    let option = ["partialFilterExpression", "sparse", "hidden"]
        .into_iter()
        .find(|option| !matches!(index.get(option), None | Some(Bson::Boolean(false))))?;
    let index_name = name_of(index);
    let (effect, mend) = if option == "hidden" {
        let command =
            format!("db.runCommand({{ collMod: {name:?}, index: {{ name: {index_name:?}, hidden: false }} }})");
        ("no query can use it", format!("run in mongosh: {command}"))
    } else {
        ("queries and expiry miss documents", format!("{}.dropIndex({index_name:?}), then {RESTART}", shell(name)))
    };
    Some(Finding::error(
        INDEXES,
        format!("the index {field} of {name} has the option {option}, so that {effect}"),
        mend,
    ))
}

fn missing_index(expected: &Expected) -> Finding {
    let (name, (index, keys)) = (expected.name(), &expected.index);
    let (loss, options) = match expected.kind {
        Kind::Plain => {
            let expiry = expected.expiry.map(|age| format!(", expireAfterSeconds: {}", age.min(EXPIRE_MAX).as_secs()));
            ("nothing expires, and the search for the next hour reads all documents", expiry.unwrap_or_default())
        }
        Kind::Timeseries => ("queries of a device read the readings of all devices", String::new()),
    };
    Finding::error(
        INDEXES,
        format!("{name} lacks the index {index} on {keys}: {loss}"),
        or_run(expected, &format!("{}.createIndex({keys}, {{ name: {index:?}{options} }})", shell(name))),
    )
}

/// Judges an index that tidegauge has not created.
fn extra_index(expected: &Expected, index: &Document, uses: &[(String, u64)]) -> Finding {
    let (name, index_name) = (expected.name(), name_of(index));
    let keys = index.get_document("key").map(Document::to_string).unwrap_or_default();
    let drop_it = format!("{}.dropIndex({index_name:?})", shell(name));
    if let Some(seconds) = index.get("expireAfterSeconds").and_then(server_integer) {
        let message = format!("the index {index_name} of {name} on {keys} deletes documents after {seconds} s too");
        return Finding::error(INDEXES, message, drop_it);
    }
    if matches!(index.get("unique"), Some(Bson::Boolean(true))) {
        let message =
            format!("the index {index_name} of {name} on {keys} is unique: the server refuses readings by it");
        return Finding::error(INDEXES, message, drop_it);
    }
    let used = uses.iter().find(|(used, _)| used == index_name).map(|(_, uses)| *uses);
    let used = used.map_or_else(String::new, |uses| format!(", used {} times since the server started", count(uses)));
    let message = format!("{name} has the index {index_name} on {keys}, which no query of tidegauge needs{used}");
    let mend = format!("if no query of yours needs it: {drop_it}");
    Finding::note(INDEXES, message).with_mend(mend)
}

fn check_validator(expected: &Expected, validator: &ExpectedValidator, options: &Document) -> Option<Finding> {
    let name = expected.name();
    let found = options.get_document("validator").ok().filter(|found| !found.is_empty());
    let wanted = validator.is_wanted.then_some(&validator.own);
    if found == wanted {
        return None;
    }
    let remove = format!("db.runCommand({{ collMod: {name:?}, validator: {{}} }})");
    Some(match (found, wanted) {
        (Some(found), None) if *found != validator.own => Finding::warning(
            VALIDATOR,
            format!("{name} has a validator that is not tidegauge's: documents that it refuses become dead letters"),
            format!("remove it if it is not yours: {remove}; or set mongodb.validate = true and restart tidegauge"),
        ),
        (Some(_), None) => Finding::warning(
            VALIDATOR,
            format!("{name} has a validator of tidegauge, and mongodb.validate is false"),
            format!("{RESTART}, or run in mongosh: {remove}"),
        ),
        (Some(_), Some(_)) => Finding::warning(
            VALIDATOR,
            format!("{name} has another validator than this version of tidegauge: it may refuse documents"),
            RESTART,
        ),
        (None, _) => {
            Finding::warning(VALIDATOR, format!("{name} has no validator, and mongodb.validate is true"), RESTART)
        }
    })
}

fn name_of(index: &Document) -> &str {
    index.get_str("name").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_lacks_documents_is_made_again_and_a_hidden_one_is_shown() {
        let mend = |options: Document| {
            let mut index = doc! { "name": "by_age", "key": { "createdAt": 1 } };
            index.extend(options);
            limited_index("buckets", "createdAt", &index).and_then(|found| found.mend)
        };
        let again = format!("db.getCollection(\"buckets\").dropIndex(\"by_age\"), then {RESTART}");
        let show =
            "run in mongosh: db.runCommand({ collMod: \"buckets\", index: { name: \"by_age\", hidden: false } })";
        assert_eq!(mend(doc! { "partialFilterExpression": { "n": 1 } }), Some(again.clone()));
        assert_eq!(mend(doc! { "sparse": true, "hidden": true }), Some(again));
        assert_eq!(mend(doc! { "sparse": false, "hidden": true }).as_deref(), Some(show));
        assert_eq!(mend(doc! { "sparse": false, "hidden": false }), None);
    }
}
