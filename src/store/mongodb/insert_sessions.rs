//! Sends inserts so that one whose outcome is not known can be overtaken: it cannot take effect any more
//! afterwards.
//!
//! Nothing keeps a measurement from being stored twice, so a write that got no answer may only be repeated
//! after a look at what it did. But it might take effect after that look: a server that hung for a while
//! executes what waits in its sockets. Therefore each insert carries the id of a server session and a
//! transaction number, as retryable writes do. The server refuses a number that is lower than one it has seen
//! in that session, and takes one command of a session at a time. So a command with the next number, which
//! does nothing, ends all doubt: when it has been answered, the insert before it has taken effect or never
//! will.
//!
//! The driver sends the session's id and leaves the numbers to us; it must not use these sessions for writes
//! of its own, which is why they are kept here and never returned while the store lives. A standalone server
//! knows no transaction numbers; there, and for the shards of a cluster that the command which ends the doubt
//! does not reach, a late insert is possible.
//!
//! Source:
//! <https://github.com/mongodb/specifications/blob/master/source/retryable-writes/retryable-writes.md>.

use std::sync::{Mutex, PoisonError};

use mongodb::ClientSession;

use super::command::{Commands, Reply};
use super::encode::Encoder;
use super::errors::within;
use crate::store::WriteError;

/// A session and the number of its last command.
struct InsertSession {
    driver_session: ClientSession,
    number: i64,
}

/// Sessions for inserts.
pub(super) struct InsertSessions {
    commands: Commands,
    /// A plain collection to do nothing in.
    collection: String,
    idle: Mutex<Vec<InsertSession>>,
    /// Those of which the last command may still take effect. Locked while it is being found out.
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

    /// Sends the write command that `fill` writes. With `numbered`, it can be overtaken.
    ///
    /// # Errors
    /// As [`Commands::send`] does.
    pub(super) async fn send(&self, numbered: bool, fill: impl FnOnce(&mut Encoder)) -> Result<Reply, WriteError> {
        if !numbered {
            return self.commands.send(Encoder::build(fill)).await;
        }
        let mut session = self.idle_session().await?;
        session.number += 1;
        let command = Encoder::build(|command| {
            fill(command);
            command.int64("txnNumber", session.number);
        });
        let answer = self.commands.send_in(&mut session.driver_session, command).await;
        match &answer {
            Err(error) if error.cause.may_still_happen() => self.unresolved.lock().await.push(session),
            _ => self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session),
        }
        answer
    }

    /// Returns when nothing that was sent before, and failed, can take effect any more.
    ///
    /// # Errors
    /// When that cannot be found out now.
    pub(super) async fn resolve(&self) -> Result<(), WriteError> {
        let mut unresolved = self.unresolved.lock().await;
        while let Some(session) = unresolved.last_mut() {
            session.number += 1;
            self.fence(session).await?;
            let session = unresolved.pop().expect("the one that was just looked at");
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        }
        Ok(())
    }

    /// Returns when a majority has everything that the server had before.
    pub(super) async fn wait_for_majority(&self) -> Result<(), WriteError> {
        self.commands.send(Encoder::build(|command| self.do_nothing(command))).await.map(drop)
    }

    /// Sends the next number of a session with a command that does nothing.
    async fn fence(&self, session: &mut InsertSession) -> Result<(), WriteError> {
        let command = Encoder::build(|command| {
            self.do_nothing(command);
            command.int64("txnNumber", session.number);
        });
        self.commands.send_in(&mut session.driver_session, command).await.map(drop)
    }

    /// An update that finds nothing. It is a write all the same, and so waits for what was written before.
    fn do_nothing(&self, command: &mut Encoder) {
        command.string("update", &self.collection);
        command.array("updates", |statements| {
            statements.document(0, |statement| {
                statement.document("q", |filter| {
                    filter.string("_id", "");
                    filter.string("deviceId", "");
                });
                statement.document("u", |update| update.document("$set", |set| set.int32("schemaVersion", 0)));
            });
        });
        self.commands.write_concern(command);
    }

    async fn idle_session(&self) -> Result<InsertSession, WriteError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(session) = idle {
            return Ok(session);
        }
        let driver_session = within(self.commands.timeout, self.commands.database.client().start_session()).await?;
        Ok(InsertSession { driver_session, number: 0 })
    }
}
