//! Sends inserts that can be fenced: after the fence they cannot take effect any more.
//!
//! Nothing keeps a measurement from being stored twice. So an insert without an answer may only be repeated
//! after a read of what it stored. But it might take effect after that read: a server that hung for a while
//! executes the commands that wait in its sockets. Therefore each insert carries the ID of a server session
//! and a transaction number, as retryable writes do. The server refuses a number that is lower than one it
//! has seen in that session, and executes one command of a session at a time. So a command with the next
//! number, which does nothing, is the fence: when it has been answered, the insert before it has taken effect
//! or never will.
//!
//! The driver sends the session's ID and leaves the numbers to this module. The driver must not use these
//! sessions for writes of its own, so they are kept here and never returned to it while the store exists. A
//! standalone server knows no transaction numbers; there, and on the shards of a cluster that the fence does
//! not reach, a late insert is possible.
//!
//! Source:
//! <https://github.com/mongodb/specifications/blob/master/source/retryable-writes/retryable-writes.md>.

use std::sync::{Mutex, PoisonError};

use bson::oid::ObjectId;
use bson::raw::cstr;
use bson::{RawDocumentBuf, doc};
use mongodb::ClientSession;

use super::command::Commands;
use super::encode::Encoder;
use super::errors::within;
use super::statements::{Reply, Verb, write_command};
use crate::store::{Cause, StoreError};

/// A session and the number of its last command.
struct InsertSession {
    driver_session: ClientSession,
    number: i64,
}

/// The sessions of one store for inserts that can be fenced.
pub(super) struct InsertSessions {
    commands: Commands,
    /// The plain collection in which a fence does nothing.
    collection: String,
    idle: Mutex<Vec<InsertSession>>,
    /// The sessions whose last command may still take effect. Locked while they are being fenced.
    unresolved: tokio::sync::Mutex<Vec<InsertSession>>,
}

impl std::fmt::Debug for InsertSessions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("InsertSessions").finish_non_exhaustive()
    }
}

impl InsertSessions {
    pub(super) fn new(commands: Commands, collection: String) -> Self {
        Self { commands, collection, idle: Mutex::default(), unresolved: tokio::sync::Mutex::default() }
    }

    /// Sends a write command that can be fenced.
    ///
    /// # Errors
    /// As [`Commands::send`] does.
    pub(super) async fn send(&self, command: RawDocumentBuf) -> Result<Reply, StoreError> {
        let mut session = self.idle_session().await?;
        let answer = self.send_next(&mut session, command).await;
        match &answer {
            Err(error) if error.cause.may_still_happen() => self.unresolved.lock().await.push(session),
            _ => self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session),
        }
        answer
    }

    /// Returns when no failed command that was sent before can take effect any more.
    ///
    /// # Errors
    /// When a fence fails.
    pub(super) async fn fence(&self) -> Result<(), StoreError> {
        let mut unresolved = self.unresolved.lock().await;
        while let Some(session) = unresolved.last_mut() {
            self.send_next(session, self.no_op()).await?;
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(unresolved.pop());
        }
        Ok(())
    }

    /// Returns the election that made the server the primary; `None` if it is no member of a replica set.
    ///
    /// # Errors
    /// When the server is not the primary, or does not answer.
    pub(super) async fn election(&self) -> Result<Option<ObjectId>, StoreError> {
        let hello = self.commands.run(doc! { "hello": 1 }).await?;
        match hello.get_object_id("electionId") {
            Ok(election) => Ok(Some(election)),
            Err(_) if hello.contains_key("setName") => Err(StoreError::new(Cause::NotPrimary, "there is no primary")),
            Err(_) => Ok(None),
        }
    }

    /// Returns when a majority has everything that the server had when it was the primary of `election`.
    ///
    /// # Errors
    /// When another server has been elected since. It may lack what a majority did not have.
    pub(super) async fn wait_for_majority(&self, election: Option<ObjectId>) -> Result<(), StoreError> {
        self.commands.send(self.no_op()).await?;
        if self.election().await? == election {
            return Ok(());
        }
        Err(StoreError::new(Cause::NotPrimary, "a primary was elected meanwhile, which may lack stored readings"))
    }

    /// Sends a command with the next number of a session.
    async fn send_next(&self, session: &mut InsertSession, mut command: RawDocumentBuf) -> Result<Reply, StoreError> {
        session.number += 1;
        command.append(cstr!("txnNumber"), session.number);
        self.commands.send_in(&mut session.driver_session, command).await
    }

    /// An update that matches nothing. It is a write all the same, and so waits for all writes before it.
    fn no_op(&self) -> RawDocumentBuf {
        let concern = |command: &mut Encoder| self.commands.write_concern(command);
        let encode = |statement: &mut Encoder, (): &()| {
            let nothing = doc! { "_id": "", "deviceId": "" };
            statement.elements_of(&doc! { "q": nothing, "u": { "$set": { "schemaVersion": 0 } } });
        };
        write_command(Verb::UpdateMatching, &self.collection, concern, &[()], encode).0
    }

    async fn idle_session(&self) -> Result<InsertSession, StoreError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(session) = idle {
            return Ok(session);
        }
        let driver_session = within(self.commands.timeout, self.commands.database.client().start_session()).await?;
        Ok(InsertSession { driver_session, number: 0 })
    }
}
