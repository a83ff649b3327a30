//! The connections that read: a few, opened when they are needed, shared by all queries.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::error::SqliteError;
use super::{blocking, schema};

/// How many queries read at once; others wait for their turn.
const READERS: usize = 4;

/// Lends connections to queries.
pub(super) struct Readers {
    path: PathBuf,
    busy_timeout: Duration,
    turns: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(super) fn new(path: PathBuf, busy_timeout: Duration) -> Self {
        Self { path, busy_timeout, turns: Arc::new(Semaphore::new(READERS)), idle: Mutex::default() }
    }

    /// Runs `query` off the async threads. A query whose caller went away keeps its turn until it is done, so that
    /// there are never more than [`READERS`].
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        query: impl FnOnce(&mut Connection) -> Result<T, SqliteError> + Send + 'static,
    ) -> Result<T, SqliteError> {
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| SqliteError::Stopping)?;
        let readers = Arc::clone(self);
        blocking(move || {
            let _turn = turn;
            let idle = readers.idle().pop();
            let mut connection = match idle {
                Some(connection) => connection,
                None => schema::open_reader(&readers.path, readers.busy_timeout)?,
            };
            let answer = query(&mut connection)?; // a connection that failed is closed, not lent again
            readers.idle().push(connection);
            Ok(answer)
        })
        .await
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
