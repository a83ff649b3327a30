//! The pool of reading connections: a few, opened on demand, shared by all queries.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::Semaphore;

use super::error::SqliteError;
use super::file::DatabaseFile;
use super::{blocking, read, schema};

/// The number of queries that read at once. Others wait.
const READERS: usize = 4;

/// The steps of SQLite's virtual machine between two checks for a dropped caller: a few rows.
const STEPS_PER_CHECK: i32 = 100;

/// A pool that lends connections to queries.
pub(super) struct Readers {
    pub(super) path: PathBuf,
    file: Arc<DatabaseFile>,
    busy_timeout: Duration,
    turns: Arc<Semaphore>,
    /// The turn of a ping, which must not wait for long queries: the store would seem to be away.
    ping_turn: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(super) fn new(path: PathBuf, file: Arc<DatabaseFile>, busy_timeout: Duration) -> Self {
        let [turns, ping_turn] = [READERS, 1].map(|permits| Arc::new(Semaphore::new(permits)));
        Self { path, file, busy_timeout, turns, ping_turn, idle: Mutex::default() }
    }

    /// Runs `query` on a blocking thread, and interrupts it if its caller is dropped. It keeps its permit
    /// until it ends, so that at most [`READERS`] run at once.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        query: impl FnOnce(&mut Connection) -> Result<T, SqliteError> + Send + 'static,
    ) -> Result<T, SqliteError> {
        self.read_in(&self.turns, query).await
    }

    /// Reads from the database, while any number of queries run.
    pub(super) async fn ping(self: &Arc<Self>) -> Result<(), SqliteError> {
        self.read_in(&self.ping_turn, |connection| read::ping(connection)).await
    }

    async fn read_in<T: Send + 'static>(
        self: &Arc<Self>,
        turns: &Arc<Semaphore>,
        query: impl FnOnce(&mut Connection) -> Result<T, SqliteError> + Send + 'static,
    ) -> Result<T, SqliteError> {
        let turn = Arc::clone(turns).acquire_owned().await.map_err(|_| SqliteError::Stopping)?;
        let readers = Arc::clone(self);
        // Dropped when the caller has its answer or stops waiting.
        let waiting = Arc::new(());
        let caller = Arc::downgrade(&waiting);
        blocking(move || {
            let _turn = turn;
            readers.file.check()?; // a new connection could open another file
            let idle = readers.idle().pop();
            let mut connection = match idle {
                Some(connection) => connection,
                None => schema::open_reader(&readers.path, readers.busy_timeout)?,
            };
            connection.progress_handler(STEPS_PER_CHECK, Some(move || caller.strong_count() == 0))?;
            let answer = query(&mut connection)?; // after an error the connection is closed, not reused
            connection.progress_handler(0, None::<fn() -> bool>)?;
            readers.idle().push(connection);
            Ok(answer)
        })
        .await
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const NEVER_ENDS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n";

    fn readers_in(folder: &Path) -> (Connection, Arc<Readers>) {
        let path = folder.join("db");
        let writer = schema::open_writer(&path, Duration::from_secs(5)).unwrap();
        let file = Arc::new(DatabaseFile::of(&path).unwrap());
        (writer, Arc::new(Readers::new(path, file, Duration::from_secs(5))))
    }

    #[tokio::test]
    async fn a_ping_does_not_wait_for_queries() {
        let folder = tempfile::tempdir().unwrap();
        let (_writer, readers) = readers_in(folder.path());
        let _all_turns = readers.turns.acquire_many(READERS as u32).await.unwrap();
        readers.ping().await.unwrap();
    }

    #[tokio::test]
    async fn a_query_of_a_dropped_caller_is_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let (_writer, readers) = readers_in(folder.path());
        for _ in 0..2 * READERS {
            let (begun, has_begun) = tokio::sync::oneshot::channel();
            let endless = readers.read(move |connection| {
                begun.send(()).expect("the test waits");
                Ok(connection.query_row(NEVER_ENDS, [], |row| row.get::<_, i64>(0))?)
            });
            tokio::select! {
                ended = endless => panic!("it ended with {ended:?}"),
                begun = has_begun => begun.unwrap(),
            }
        }
        let all = u32::try_from(READERS).unwrap();
        drop(readers.turns.acquire_many(all).await.unwrap()); // waits forever if a query still runs
    }
}
