//! `tidegauge check --full`: looks at the servers, the collections and the queries, and changes nothing.
//!
//! - `server`: version, topology, write concern, clocks, cache, oplog, disk;
//! - `expected` and `collections`: each collection against the schema that the options ask for, which is the
//!   one that a start makes (`plain_schema`, and `schema` of each layout);
//! - `questions` and `plans`: the queries of tidegauge in one table, and the plan of the server for each;
//! - `documents`: sizes and readings of a sample of the documents;
//! - `sharding`: the shards of each collection.
//!
//! Each look is a command of limited time, with a limited answer, on the primary. Only the sample reads
//! documents. A look that fails becomes a finding that says why, and the others go on.

mod collections;
mod documents;
mod expected;
mod plans;
pub(super) mod questions;
mod server;
mod sharding;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bson::{Document, doc};

pub(super) use self::expected::{Expected, ExpectedValidator};
pub(super) use self::questions::{Example, Question};
use super::collection::Deployment;
use super::command::{Commands, first_batch, no_change};
use super::decode::server_integer;
use super::errors::within;
use super::layout::Layout;
use super::store::MongoStore;
use crate::common::clock::Clock;
use crate::common::finding::{Finding, Part, Severity};
use crate::model::{Day, Hour};
use crate::store::device_index::REBUILD;
use crate::store::growth::{Growth, outlook};
use crate::store::{Cause, StoreError};

/// The longest wait for the answer to one command of the check.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Readings before this day of 1970 do not count as the oldest ones. A time series needs a scan to find them.
const FIRST_DAY: Day = Day(31);

/// The name of the index of `_id`s.
const ID_INDEX: &str = "_id_";

/// The database of the server's own commands.
const ADMIN: &str = "admin";

/// Asks the server, and keeps the findings.
#[derive(Debug)]
struct Inspector<'a> {
    commands: &'a Commands,
    deployment: Deployment,
    findings: Vec<Finding>,
}

impl<L: Layout> MongoStore<L> {
    /// Checks the server, the collections and the queries, and returns the findings.
    pub async fn check(&self, clock: &Clock) -> Vec<Finding> {
        let database = &self.commands.database;
        let hello = within(ANSWER_MAX, database.run_command(doc! { "hello": 1 })).await;
        let hello = match hello {
            Ok(hello) => hello,
            Err(error) => return vec![self.unreachable(&error)],
        };
        let deployment = Deployment::of(&hello);
        let mut inspector = Inspector { commands: &self.commands, deployment, findings: Vec::new() };
        inspector.check_server(&hello, clock).await;
        let expected = [
            self.layout.expected(),
            Expected::plain(self.rollups.schema()),
            Expected::plain(self.devices.schema()),
            Expected::notes(self.schema_of_notes()),
            Expected::operator_metadata(self.commands.managed(&self.operator_metadata_name())),
        ];
        let present = inspector.check_collections(&expected).await;
        if deployment != Deployment::Sharded || !present.is_empty() {
            inspector.check_writes(self.devices.name()).await; // a mongos may create a missing database for it
        }
        if !present.is_empty() {
            let example = self.example(&present, clock).await;
            let mut questions = self.layout.questions(&example);
            questions.extend(questions::of_rollups(self.rollups.name(), &example));
            questions.extend(questions::of_devices(self.devices.name(), &example));
            questions.retain(|question| present.iter().any(|expected| expected.name() == question.collection));
            inspector.check_plans(&questions).await;
            self.check_device_index(&mut inspector).await;
            inspector.check_documents(&present).await;
            self.check_growth(&mut inspector, clock).await;
        }
        if deployment == Deployment::Sharded {
            inspector.check_shards(&present).await;
        }
        inspector.findings
    }

    fn unreachable(&self, error: &StoreError) -> Finding {
        let why = self.commands.servers.why_unreachable(error.cause).unwrap_or_else(|| error.to_string());
        let mend = if error.cause == Cause::Auth {
            "correct the user or the password in mongodb.uri, or add to it the database in which the user was created, \
             as a rule authSource=admin; until then, readings wait in the log"
        } else {
            "start the server, or correct mongodb.uri, the name of its host and its port; until it answers, readings \
             wait in the log"
        };
        Finding::error(Part::ServerReach, format!("MongoDB does not answer: {why}"), mend)
    }

    /// Whether the device index has all devices.
    async fn check_device_index(&self, inspector: &mut Inspector<'_>) {
        const PART: Part = Part::DeviceIndex;
        let name = self.devices.name();
        let finding = match tokio::time::timeout(ANSWER_MAX, self.has_all_devices()).await {
            Ok(Ok(true)) => Finding::ok(PART, format!("{name} has all devices that are stored")),
            Ok(Ok(false)) => Finding::error(
                PART,
                format!("{name} lacks devices that are stored: lists are partial, and days are not rolled up"),
                format!("run: {REBUILD}"),
            ),
            Ok(Err(error)) => inspector.failed(PART, None, &error),
            Err(_) => Finding::skipped(PART, "the server did not answer in time"),
        };
        inspector.findings.push(finding);
    }

    /// The first device of the index, and its last hour.
    ///
    /// Without a device, it is an invented ID and the current hour.
    async fn example(&self, present: &[&Expected], clock: &Clock) -> Example {
        let mut device = None;
        if present.iter().any(|expected| expected.name() == self.devices.name()) {
            let first = self.devices.list("", None, 1);
            let found = tokio::time::timeout(ANSWER_MAX, first).await.ok().and_then(Result::ok);
            device = found.and_then(|list| list.devices.into_iter().next());
        }
        device.map_or_else(
            || Example { device: "example".to_owned(), hour: Hour::of(clock.now_ms()) },
            |found| Example { device: found.device.to_string(), hour: Hour::of(found.last_ts_ms) },
        )
    }

    /// Estimates the size of the database when the first readings expire.
    ///
    /// The estimate needs the index by time. It is left out when the index is missing.
    async fn check_growth(&self, inspector: &mut Inspector<'_>, clock: &Clock) {
        const PART: Part = Part::ServerGrowth;
        if inspector.findings.iter().any(|found| found.part == plans::PART && found.severity == Severity::Error) {
            inspector.findings.push(Finding::skipped(PART, "the oldest reading is found by an index that is missing"));
            return;
        }
        let Some(stats) = inspector.ask(PART, None, doc! { "dbStats": 1 }).await else { return };
        let (Some(bytes), Some(total), Some(used)) =
            (number(&stats, "totalSize"), number(&stats, "fsTotalSize"), number(&stats, "fsUsedSize"))
        else {
            return;
        };
        let retention = self.layout.expected().expiry;
        let now = Hour::of(clock.now_ms());
        let from = retention.map_or(FIRST_DAY, |kept| {
            Day::of(Hour::of(clock.now_ms().saturating_sub(i64::try_from(kept.as_millis()).unwrap_or(i64::MAX))))
        });
        let oldest = tokio::time::timeout(ANSWER_MAX, self.layout.next_hour(from.hours().start)).await;
        let Ok(Ok(Some(oldest))) = oldest else { return };
        let hours = u64::try_from(now.0.saturating_sub(oldest.0)).unwrap_or(0);
        let growth =
            Growth { bytes, covered: Duration::from_secs(hours * 3_600), retention, free: total.saturating_sub(used) };
        inspector.findings.push(outlook(PART, "the database", &growth));
    }
}

impl Inspector<'_> {
    /// Checks that the user may write.
    ///
    /// A server that refuses it is within reach, so this is not [`Part::ServerReach`].
    async fn check_writes(&mut self, collection: &str) {
        let mut write = no_change(collection);
        write.insert("writeConcern", doc! { "w": 1 }); // without a wait for a majority, which may be lost
        self.ask(Part::Collection, None, write).await;
    }

    /// Runs a command in the database, or in another one. A failure becomes a finding of `part`.
    async fn ask(&mut self, part: Part, database: Option<&str>, command: Document) -> Option<Document> {
        match self.try_to_ask(database, command).await {
            Ok(reply) => Some(reply),
            Err(error) => {
                let finding = self.failed(part, database, &error);
                self.findings.push(finding);
                None
            }
        }
    }

    async fn try_to_ask(&self, database: Option<&str>, mut command: Document) -> Result<Document, StoreError> {
        let own = &self.commands.database;
        command.insert("maxTimeMS", ANSWER_MAX.as_millis() as i64);
        let other = database.map(|name| own.client().database(name));
        within(ANSWER_MAX + Duration::from_secs(1), other.as_ref().unwrap_or(own).run_command(command)).await
    }

    /// The documents of the first batch of a cursor.
    async fn list(&mut self, part: Part, database: Option<&str>, command: Document) -> Option<Vec<Document>> {
        self.ask(part, database, command).await.map(|reply| first_batch(&reply))
    }

    /// The finding about a look that failed. If privileges are missing, it says what to grant.
    ///
    /// The service needs those on its own database, and no others.
    fn failed(&self, part: Part, database: Option<&str>, error: &StoreError) -> Finding {
        if error.cause != Cause::Forbidden {
            return Finding::skipped(part, error);
        }
        if database.is_none() {
            let found = format!("MongoDB refuses a command of tidegauge: {error}");
            return Finding::error(part, found, self.commands.grant());
        }
        Finding::skipped(part, error).with_mend(
            "grant the user of mongodb.uri the role clusterMonitor on admin, for this check only: the service does \
             not need it",
        )
    }
}

/// The integer in a field of a reply; `None` if it is missing or negative.
fn number(reply: &Document, field: &str) -> Option<u64> {
    reply.get(field).and_then(server_integer).and_then(|number| u64::try_from(number).ok())
}

/// The name of a collection in a command of mongosh.
fn shell(collection: &str) -> String {
    format!("db.getCollection({collection:?})")
}
