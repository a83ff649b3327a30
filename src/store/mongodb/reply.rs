//! The replies of the server to write commands.
//!
//! A reply with `ok: 1` may still have `writeErrors` and a `writeConcernError`, and the driver leaves both of
//! a raw command unread.

use bson::{Bson, Document};

use super::decode::server_integer;
use super::errors;
use crate::store::{Cause, StoreError};

/// The reply to a write command that the server executed.
#[derive(Debug, PartialEq)]
pub(super) struct Reply {
    /// The number of documents that were matched, inserted or upserted.
    pub(super) n: i64,
    /// The errors of the statements that failed. All others succeeded.
    pub(super) errors: Vec<StatementError>,
}

/// Why a statement failed.
#[derive(Debug, PartialEq)]
pub(super) struct StatementError {
    /// The index of the statement in its command.
    pub(super) statement: usize,
    pub(super) code: i32,
    pub(super) message: String,
}

impl Reply {
    /// Whether each of this many statements either took effect on one document or failed.
    pub(super) fn accounts_for(&self, statements: usize) -> bool {
        self.n + self.errors.len() as i64 == statements as i64
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// When the writes may not be durable.
    pub(super) fn parse(reply: &Document) -> Result<Self, StoreError> {
        if let Ok(error) = reply.get_document("writeConcernError") {
            // One cause whatever the code: operators ask why writes are not replicated.
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

    /// Whether an upsert's filter did not match, and it could not insert either; see `bucket::statement`.
    pub(super) fn is_unmet(&self) -> bool {
        self.is_duplicate_key() || self.code == errors::IMMUTABLE_FIELD
    }

    pub(super) fn to_error(&self) -> StoreError {
        errors::of_code(self.code, &self.message)
    }
}

/// An integer of a reply, 0 if it is missing.
fn integer(reply: &Document, field: &str) -> i64 {
    reply.get(field).and_then(server_integer).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

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
