//! Sends statements that write one document each, many to a command.
//!
//! Write commands are sent raw, because servers before 8.0 have no bulk write for the driver to use. The
//! driver neither adds a write concern to a raw command, nor retries it, nor checks its reply: a reply with
//! `ok: 1` may still have `writeErrors` and a `writeConcernError`.

use std::collections::HashMap;
use std::time::Duration;

use bson::{Bson, Document, RawDocumentBuf};
use mongodb::ClientSession;

use super::command::Commands;
use super::decode::server_integer;
use super::encode::Encoder;
use super::errors::{self, within};
use super::insert_sessions::InsertSessions;
use crate::store::{Cause, StoreError};

/// The most bytes of a command's statements, if it has more than one.
///
/// The server takes 16 MiB and 100,000 statements. But the driver copies a command several times, and the
/// process gets memory of that size from the system anew for each copy. Commands of a megabyte save a fifth
/// of the CPU of the threads that flush.
const STATEMENTS_MAX_BYTES: usize = 1_000_000;

/// The most bytes of a command that a server takes: a document of 16 MiB, and 16 KiB around it.
///
/// A larger command is not sent. The driver refuses one of more than 48 MB without the code of a server, so
/// its error would look like one that passes.
const COMMAND_MAX_BYTES: usize = (16 << 20) + (16 << 10);

/// How much longer the client waits than the server, so that the server's own error, which has more detail,
/// arrives in time.
const ANSWER_GRACE: Duration = Duration::from_secs(1);

/// The command that the statements belong to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Verb<'a> {
    /// Each statement inserts a document whose `_id` must not exist yet.
    Insert,
    /// Each statement updates one document, or inserts it.
    Update,
    /// Each statement updates the documents that match its filter, and inserts none.
    UpdateMatching,
    /// Each statement deletes the documents that match its filter.
    DeleteMatching,
    /// Each statement inserts a document, which the server stores once more each time that it is sent. So a
    /// command is not repeated in parts, and it is sent in a session that can be fenced, if there is one.
    InsertMeasurements(Option<&'a InsertSessions>),
}

impl Verb<'_> {
    /// The name of the command, and of its array of statements.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Insert | Self::InsertMeasurements(_) => ("insert", "documents"),
            Self::Update | Self::UpdateMatching => ("update", "updates"),
            Self::DeleteMatching => ("delete", "deletes"),
        }
    }

    /// Whether a statement does nothing when it is sent again.
    const fn is_idempotent(self) -> bool {
        !matches!(self, Self::InsertMeasurements(_))
    }

    /// Whether each statement without an error has taken effect on one document.
    const fn is_of_one_document(self) -> bool {
        matches!(self, Self::Insert | Self::Update | Self::InsertMeasurements(_))
    }
}

/// The outcome of a statement.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The statement took effect, and is in the journals of a majority.
    ///
    /// A statement that selects documents by a filter was executed, whether or not it matched any.
    Done,
    /// The statement did nothing.
    ///
    /// If it is an insert, its document exists already. If it is an upsert, its filter did not match, and its
    /// document exists already or must not be inserted.
    Unmet,
    Failed(StoreError),
}

/// The reply to a write command that the server executed.
#[derive(Debug, PartialEq)]
pub(super) struct Reply {
    /// The number of documents that were matched, inserted or upserted.
    n: i64,
    /// The errors of the statements that failed. All other statements succeeded.
    pub(super) errors: Vec<StatementError>,
}

/// Why a statement failed.
#[derive(Debug, PartialEq)]
pub(super) struct StatementError {
    /// The index of the statement in its command.
    statement: usize,
    code: i32,
    message: String,
}

impl Commands {
    /// Sends the statement that `encode` writes for each of `items`, and calls `settle` with its outcome.
    /// Returns the number of documents that were matched, inserted, upserted or deleted.
    ///
    /// # Errors
    /// When no server is reachable: then `settle` was not called for the statements that were not sent, or
    /// whose outcome is unknown.
    pub(super) async fn write_all<T>(
        &self,
        verb: Verb<'_>,
        collection: &str,
        items: &[T],
        encode: impl Fn(&mut Encoder, &T),
        mut settle: impl FnMut(&T, Outcome),
    ) -> Result<u64, StoreError> {
        let (mut waiting, mut documents) = (vec![items], 0);
        while let Some(items) = waiting.pop().filter(|items| !items.is_empty()) {
            let concern = |command: &mut Encoder| self.write_concern(command);
            let (command, taken) = write_command(verb, collection, concern, items, &encode);
            let (sent, rest) = items.split_at(taken);
            if !rest.is_empty() {
                waiting.push(rest);
            }
            let bytes = command.as_bytes().len();
            let answer = match verb {
                _ if bytes > COMMAND_MAX_BYTES => {
                    let detail = format!("a command of {bytes} bytes, more than {COMMAND_MAX_BYTES}");
                    Err(StoreError::new(Cause::TooLarge, detail))
                }
                Verb::InsertMeasurements(Some(sessions)) => sessions.send(command).await,
                _ => self.send(command).await,
            };
            let error = match answer {
                Ok(reply) if reply.accounts_for(sent.len()) || !verb.is_of_one_document() => {
                    documents += u64::try_from(reply.n).unwrap_or(0);
                    settle_each(verb, &reply, sent, &mut settle);
                    continue;
                }
                Ok(reply) => {
                    let detail = format!("{} statements took effect, of {} that were sent", reply.n, sent.len());
                    StoreError::new(Cause::Other, detail)
                }
                Err(error) if error.is_permanent() && sent.len() > 1 && verb.is_idempotent() => {
                    let (first, second) = sent.split_at(sent.len() / 2); // to find the statement that is to blame
                    waiting.extend([second, first]);
                    continue;
                }
                Err(error) if error.cause.is_unreachable() => return Err(error),
                Err(error) => error,
            };
            for item in sent {
                settle(item, Outcome::Failed(error.clone()));
            }
        }
        Ok(documents)
    }

    /// Sends one statement. Returns the number of documents that were matched, inserted, upserted or deleted.
    pub(super) async fn write_one(
        &self,
        verb: Verb<'_>,
        collection: &str,
        encode: impl Fn(&mut Encoder),
    ) -> Result<u64, StoreError> {
        let mut failed = Ok(());
        let settle = |(): &(), outcome| {
            if let Outcome::Failed(error) = outcome {
                failed = Err(error);
            }
        };
        let documents = self.write_all(verb, collection, &[()], |statement, ()| encode(statement), settle).await?;
        failed.map(|()| documents)
    }

    /// Sends one statement, with the fields of `statement`; see [`Self::write_one`].
    pub(super) async fn write_document(
        &self,
        verb: Verb<'_>,
        collection: &str,
        statement: &Document,
    ) -> Result<u64, StoreError> {
        self.write_one(verb, collection, |fields| fields.elements_of(statement)).await
    }

    /// Sends a write command.
    ///
    /// # Errors
    /// When the command failed as a whole, or its writes may not be durable. In either case it may have done
    /// everything, something or nothing.
    pub(super) async fn send(&self, command: RawDocumentBuf) -> Result<Reply, StoreError> {
        let reply = within(self.timeout + ANSWER_GRACE, self.database.run_raw_command(command)).await?;
        Reply::parse(&reply)
    }

    /// Sends a write command in a session. The caller numbers the commands of the session.
    pub(super) async fn send_in(
        &self,
        session: &mut ClientSession,
        command: RawDocumentBuf,
    ) -> Result<Reply, StoreError> {
        let call = self.database.run_raw_command(command).session(session);
        Reply::parse(&within(self.timeout + ANSWER_GRACE, call).await?)
    }

    /// Writes the field `writeConcern`: the server answers when a majority of the members have the write in
    /// their journals.
    pub(super) fn write_concern(&self, command: &mut Encoder) {
        let timeout_ms = i32::try_from(self.timeout.as_millis()).unwrap_or(i32::MAX);
        command.document("writeConcern", |concern| {
            concern.string("w", "majority");
            concern.boolean("j", true);
            concern.int32("wtimeout", timeout_ms);
        });
    }
}

/// Builds a command of the first items, as many as fit into one command, but at least one item. Returns the
/// command and the number of its items. `concern` writes the field `writeConcern`.
pub(super) fn write_command<T>(
    verb: Verb<'_>,
    collection: &str,
    concern: impl Fn(&mut Encoder),
    items: &[T],
    encode: impl Fn(&mut Encoder, &T),
) -> (RawDocumentBuf, usize) {
    let mut taken = 0;
    let (name, statements) = verb.names();
    let command = Encoder::build(|command| {
        command.string(name, collection);
        command.boolean("ordered", false);
        concern(command);
        command.array(statements, |statements| {
            for item in items {
                let before = statements.len();
                statements.document(taken, |statement| encode(statement, item));
                if statements.len() > STATEMENTS_MAX_BYTES && taken > 0 {
                    statements.truncate(before);
                    break;
                }
                taken += 1;
            }
        });
    });
    (command, taken)
}

impl Reply {
    /// Whether each of this many statements either took effect on one document or failed.
    fn accounts_for(&self, statements: usize) -> bool {
        self.n + self.errors.len() as i64 == statements as i64
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// When the writes may not be durable.
    fn parse(reply: &Document) -> Result<Self, StoreError> {
        if let Ok(error) = reply.get_document("writeConcernError") {
            // All codes have one cause here: operators ask why writes are not replicated.
            let detail = errors::of_code(integer(error, "code") as i32, error.get_str("errmsg").unwrap_or_default());
            return Err(StoreError::new(Cause::WriteConcern, detail.with_cause()));
        }
        let errors = reply.get_array("writeErrors").map(Vec::as_slice).unwrap_or_default();
        let errors = errors.iter().filter_map(Bson::as_document).map(StatementError::parse).collect();
        Ok(Self { n: integer(reply, "n"), errors })
    }
}

impl StatementError {
    fn parse(error: &Document) -> Self {
        let mut message = error.get_str("errmsg").unwrap_or_default().to_owned();
        if let Some(info) = error.get("errInfo") {
            message = format!("{message}: {info}");
        }
        Self { statement: integer(error, "index") as usize, code: integer(error, "code") as i32, message }
    }

    /// Whether the document that the statement should insert exists already.
    pub(super) fn is_duplicate_key(&self) -> bool {
        self.code == errors::DUPLICATE_KEY
    }

    /// Whether an upsert's filter did not match, and it could not insert either; see `bucket::fast`.
    fn is_unmet(&self) -> bool {
        self.is_duplicate_key() || self.code == errors::IMMUTABLE_FIELD
    }

    fn to_error(&self) -> StoreError {
        errors::of_code(self.code, &self.message)
    }
}

/// An integer of a reply, 0 if it is missing.
fn integer(reply: &Document, field: &str) -> i64 {
    reply.get(field).and_then(server_integer).unwrap_or(0)
}

/// Derives the outcomes of a command's statements from its reply. Every statement without an error has
/// matched or inserted its document.
fn settle_each<T>(verb: Verb<'_>, reply: &Reply, sent: &[T], settle: &mut impl FnMut(&T, Outcome)) {
    let errors: HashMap<usize, &StatementError> = reply.errors.iter().map(|error| (error.statement, error)).collect();
    for (statement, item) in sent.iter().enumerate() {
        let outcome = match errors.get(&statement) {
            None => Outcome::Done,
            Some(error) if error.is_unmet() && verb.is_idempotent() => Outcome::Unmet,
            Some(error) => Outcome::Failed(error.to_error()),
        };
        settle(item, outcome);
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    /// How many statements each command takes when the nth has a string of that many bytes.
    fn taken_by_each_command(bytes: &[usize]) -> Vec<usize> {
        let mut rest = bytes;
        let mut sizes = Vec::new();
        while !rest.is_empty() {
            let encode = |statement: &mut Encoder, &bytes: &usize| statement.string("s", &"x".repeat(bytes));
            let (command, taken) = write_command(Verb::Update, "c", |_| {}, rest, encode);
            assert!(taken == 1 || command.as_bytes().len() < STATEMENTS_MAX_BYTES + 1_000);
            sizes.push(taken);
            rest = &rest[taken..];
        }
        sizes
    }

    #[test]
    fn commands_are_split_by_bytes_and_hold_at_least_one_statement() {
        assert_eq!(taken_by_each_command(&[450_000, 450_000, 450_000, 1]), [2, 2]);
        assert_eq!(taken_by_each_command(&[16_000_000, 1]), [1, 1]);
    }

    #[test]
    fn a_failed_statement_is_the_one_that_its_index_names() {
        let duplicate = || StatementError { statement: 1, code: 11000, message: "E11000".to_owned() };
        for (verb, is_unmet) in [(Verb::Insert, true), (Verb::InsertMeasurements(None), false)] {
            let reply = Reply { n: 2, errors: vec![duplicate()] };
            let mut outcomes = Vec::new();
            settle_each(verb, &reply, &["a", "b", "c"], &mut |item: &&str, outcome| outcomes.push((*item, outcome)));
            let [("a", Outcome::Done), ("b", second), ("c", Outcome::Done)] = &outcomes[..] else {
                panic!("{outcomes:?}")
            };
            assert_eq!(matches!(second, Outcome::Unmet), is_unmet, "{second:?}");
        }
    }

    #[test]
    fn errors_inside_an_ok_reply_are_found() {
        let reply = doc! { "ok": 1.0, "n": 3, "writeErrors": [
            { "index": 1, "code": 11000, "errmsg": "E11000", "keyPattern": { "_id": 1 } },
            { "index": 4, "code": 121, "errmsg": "Document failed validation", "errInfo": { "why": "x" } },
        ] };
        let reply = Reply::parse(&reply).unwrap();
        assert_eq!((reply.n, reply.errors.len()), (3, 2));
        assert!(reply.accounts_for(5) && !reply.accounts_for(6));
        assert!(reply.errors[0].is_duplicate_key());
        assert_eq!((reply.errors[1].statement, reply.errors[1].code), (4, 121));
        assert!(reply.errors[1].message.contains("why"));
    }

    #[test]
    fn a_write_concern_error_makes_the_whole_command_transient() {
        let reply = doc! { "ok": 1.0, "n": 1, "writeConcernError": { "code": 64, "errmsg": "waiting timed out" } };
        assert_eq!(Reply::parse(&reply).unwrap_err().cause, Cause::WriteConcern);
    }
}
