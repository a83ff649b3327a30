//! `tidegauge check --full`: looks at the file, and changes nothing.
//!
//! It may run beside the service. A check of the pages is one read transaction. While it runs, SQLite cannot
//! shorten the write-ahead file. So the check ends after some seconds unless all pages are asked for.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};

use super::error::SqliteError;
use super::file::{files_of, lock_of, target_of};
use super::schema::{APPLICATION_ID, CHECKPOINT_BYTES, VERSION, open_reader};
use crate::common::clock::Clock;
use crate::common::finding::{Finding, Part, count, size};
use crate::disk;
use crate::store::growth::{Growth, outlook};

const FILE: Part = Part::SqliteFile;
const INTEGRITY: Part = Part::SqliteIntegrity;
const SIZE: Part = Part::SqliteSize;
const GROWTH: Part = Part::SqliteGrowth;
const DISK: Part = Part::SqliteDisk;

/// The longest wait for the lock of the file.
const BUSY: Duration = Duration::from_secs(2);

/// The longest check of the pages, unless all are asked for.
const PAGES_TIME: Duration = Duration::from_secs(10);

/// The largest file whose pages are checked, unless all are asked for.
const PAGES_BYTES: u64 = 4 << 30;

/// The most mistakes in the pages that a finding names.
const MISTAKES_MAX: usize = 5;

/// The steps of SQLite's virtual machine between two looks at the time.
const STEPS_PER_LOOK: i32 = 10_000;

/// From this many free bytes on, if they are more than half of the file, a note says how to shrink the file.
const FREE_BYTES: u64 = 100 << 20;

/// The mend of a file that cannot be written or created.
const WRITABLE: &str = "run the check as the user of the service; that user has to own the files of sqlite.file and \
     their folder, which no start creates outside server.data_dir, and the disk must not be read-only";

/// A larger write-ahead file is a warning.
const WAL_MAX: u64 = 8 * CHECKPOINT_BYTES;
/// Less free space on the disk is an error.
const DISK_MIN: u64 = 4 * CHECKPOINT_BYTES;

/// The file, and how it is checked.
#[derive(Debug, Clone)]
pub struct SqliteCheck {
    /// The path of the database.
    pub file: PathBuf,
    /// The data folder, which the first start creates.
    pub data_dir: PathBuf,
    /// How long readings are kept; `None`: forever.
    pub retention: Option<Duration>,
    /// Whether all pages and indexes are checked, however long that takes.
    pub is_deep: bool,
    /// Whether the service has used a file, so that a missing one is an error.
    pub was_used: bool,
}

impl SqliteCheck {
    /// Looks at the file, and returns what was found.
    ///
    /// The call blocks the thread while it reads.
    #[must_use]
    pub fn run(&self, clock: &Clock) -> Vec<Finding> {
        match self.file.try_exists() {
            Ok(true) => {}
            Ok(false) if self.was_used => return vec![self.missing()],
            Ok(false) => return vec![self.to_come()],
            Err(error) => return vec![self.unreadable(&error)],
        }
        let mut findings: Vec<_> = self.unwritable().into_iter().collect();
        match open_reader(&self.file, BUSY) {
            Ok(mut connection) => self.look(&mut connection, clock, &mut findings),
            Err(error) => findings.push(self.unusable(&error)),
        }
        findings
    }

    fn missing(&self) -> Finding {
        Finding::error(
            FILE,
            format!("there is no file {} any more, and the service has used SQLite", self.file.display()),
            "if its volume is not mounted, or the file was moved, stop the service and put the file back; if \
             sqlite.file has changed on purpose, restart the service (docs/operations.md, Back up and restore)",
        )
    }

    /// The folder of the file, also if `sqlite.file` is a link to it.
    fn folder(&self) -> PathBuf {
        let file = target_of(&self.file);
        file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
    }

    /// Judges whether the first start can create the file.
    fn to_come(&self) -> Finding {
        let path = self.file.display();
        let [folder, data_dir] =
            [self.folder(), self.data_dir.clone()].map(|folder| std::path::absolute(&folder).unwrap_or(folder));
        // The start creates the data folder and the folders above it.
        let is_to_come = matches!(folder.try_exists(), Ok(false)) && data_dir.starts_with(&folder);
        match disk::expect_writable(&folder) {
            Err(error) if !is_to_come => Finding::error(
                FILE,
                format!("there is no file {path} yet, and the first start cannot create it: {error}"),
                WRITABLE,
            ),
            _ => Finding::note(FILE, format!("there is no file {path} yet: the first start creates it")),
        }
    }

    /// An error if the service cannot write the file, or another file beside it.
    fn unwritable(&self) -> Option<Finding> {
        let files = files_of(&self.file).into_iter().chain([lock_of(&self.file)]);
        let there = files.filter(|file| !matches!(file.try_exists(), Ok(false)));
        let mut places = std::iter::once(self.folder()).chain(there);
        let error = places.find_map(|place| disk::expect_writable(&place).err())?;
        Some(Finding::error(FILE, format!("{} cannot be written: {error}", self.file.display()), WRITABLE))
    }

    fn look(&self, connection: &mut Connection, clock: &Clock, findings: &mut Vec<Finding>) {
        let reading: &Connection = connection;
        let pragma = |name| reading.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        let header = pragma("application_id").and_then(|id| Ok((id, pragma("user_version")?)));
        match header {
            Ok((id, version)) => findings.push(self.claim(id, version)),
            Err(error) => {
                findings.push(self.unusable(&error.into()));
                return;
            }
        }
        let pages = (|| -> rusqlite::Result<[u64; 3]> {
            let page = pragma("page_size")?.max(0).cast_unsigned();
            let [all, free] =
                [pragma("page_count")?, pragma("freelist_count")?].map(|pages| pages.max(0).cast_unsigned());
            Ok([page, page * all, page * free])
        })();
        match pages {
            Ok([page, bytes, free]) => {
                findings.extend(self.sizes(page, bytes, free));
                findings.push(self.integrity(connection, bytes));
                findings.extend(self.growth(connection, bytes, clock));
            }
            Err(error) => findings.push(self.unusable(&error.into())),
        }
    }

    fn claim(&self, id: i64, version: i64) -> Finding {
        let path = self.file.display();
        if id != i64::from(APPLICATION_ID) {
            return Finding::error(
                FILE,
                format!("{path} belongs to another program"),
                "set sqlite.file to another path, or put the right file there",
            );
        }
        if version == i64::from(VERSION) {
            return Finding::ok(FILE, format!("{path} is of version {version}"));
        }
        Finding::error(
            FILE,
            format!("{path} is of version {version}, and this program knows version {VERSION}"),
            "install the tidegauge that wrote it",
        )
    }

    fn sizes(&self, page: u64, bytes: u64, free: u64) -> Vec<Finding> {
        let [_, wal, ..] = files_of(&self.file);
        let wal = std::fs::metadata(wal).map_or(0, |wal| wal.len());
        let message = format!(
            "{} in pages of {page} bytes, {} of them free, and {} in the write-ahead file",
            size(bytes),
            size(free),
            size(wal)
        );
        let mut findings = vec![if free >= FREE_BYTES && free > bytes / 2 {
            Finding::note(SIZE, message).with_mend(format!(
                "later readings use the free pages; to shrink the file, stop the service and run: sqlite3 {} VACUUM",
                self.file.display()
            ))
        } else {
            Finding::ok(SIZE, message)
        }];
        if wal > WAL_MAX {
            findings.push(Finding::warning(
                SIZE,
                format!("the write-ahead file has {}, and is cut at {} as a rule", size(wal), size(CHECKPOINT_BYTES)),
                "end other programs that read the file for long, such as a shell of sqlite3 with an open transaction",
            ));
        }
        let Ok(space) = disk::space(&self.folder()) else { return findings };
        if space.free < DISK_MIN {
            findings.push(Finding::error(
                DISK,
                format!("the disk of {} has {} free of {}", self.file.display(), size(space.free), size(space.total)),
                "remove other files from the disk, or enlarge it: meanwhile tidegauge stores few readings at a time, \
                 or none",
            ));
        }
        findings
    }

    fn integrity(&self, connection: &mut Connection, bytes: u64) -> Finding {
        if bytes > PAGES_BYTES && !self.is_deep {
            let why = format!("the file has {}, more than {}; --deep checks any size", size(bytes), size(PAGES_BYTES));
            return Finding::skipped(INTEGRITY, why);
        }
        let name = if self.is_deep { "integrity_check" } else { "quick_check" };
        match self.mistakes(connection, name) {
            Ok(mistakes) if mistakes.is_empty() => {
                Finding::ok(INTEGRITY, format!("PRAGMA {name} found no mistake in {}", size(bytes)))
            }
            Ok(mistakes) => self.corrupt(&mistakes.join("; ")),
            Err(rusqlite::Error::SqliteFailure(error, _)) if error.code == ErrorCode::OperationInterrupted => {
                let why = format!("the pages took longer than {} s; --deep checks all", PAGES_TIME.as_secs());
                Finding::skipped(INTEGRITY, why)
            }
            Err(error) => self.unusable(&error.into()),
        }
    }

    /// The first mistakes that a check of the pages reports.
    fn mistakes(&self, connection: &mut Connection, name: &str) -> rusqlite::Result<Vec<String>> {
        let give_up_at = (!self.is_deep).then(|| Instant::now() + PAGES_TIME);
        let is_late = move || give_up_at.is_some_and(|at| Instant::now() > at);
        connection.progress_handler(STEPS_PER_LOOK, Some(is_late))?;
        let sql = format!("PRAGMA {name}({MISTAKES_MAX})");
        let lines: Vec<String> =
            connection.prepare(&sql)?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        connection.progress_handler(0, None::<fn() -> bool>)?;
        Ok(lines.into_iter().filter(|line| line != "ok").map(|line| line.replace('\n', " ")).collect())
    }

    fn growth(&self, connection: &Connection, bytes: u64, clock: &Clock) -> Option<Finding> {
        let oldest = "SELECT min(hour) FROM buckets WHERE readings_state <> 1"; // one seek in its index
        let oldest_ms: i64 = connection.query_row(oldest, [], |row| row.get::<_, Option<i64>>(0)).ok()??;
        let covered = Duration::from_millis(u64::try_from(clock.now_ms().saturating_sub(oldest_ms)).unwrap_or(0));
        let space = disk::space(&self.folder()).ok()?;
        let growth = Growth { bytes, covered, retention: self.retention, free: space.free };
        Some(outlook(GROWTH, "the file", &growth))
    }

    fn corrupt(&self, mistakes: &str) -> Finding {
        let path = self.file.display();
        Finding::error(
            INTEGRITY,
            format!("{path} is damaged: {mistakes} ({} named at most)", count(MISTAKES_MAX as u64)),
            format!(
                "stop the service, copy the file, and restore the last backup (docs/operations.md, Back up and \
                 restore); or save what is readable: sqlite3 {path} .recover | sqlite3 recovered.sqlite"
            ),
        )
    }

    fn unusable(&self, error: &SqliteError) -> Finding {
        let is_corrupt = |error: &rusqlite::Error| {
            matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
        };
        match error {
            SqliteError::Sqlite(error) if is_corrupt(error) => self.corrupt(&error.to_string()),
            error => self.unreadable(error),
        }
    }

    fn unreadable(&self, error: &dyn Display) -> Finding {
        Finding::error(
            FILE,
            format!("{} cannot be read: {error}", self.file.display()),
            "run the check as the user of the service: sudo -u tidegauge tidegauge check --full",
        )
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::SqliteStore;
    use super::*;
    use crate::common::finding::Severity;

    fn found(file: &Path, is_deep: bool) -> Vec<Finding> {
        found_with(file, Path::new("data"), is_deep)
    }

    fn found_with(file: &Path, data_dir: &Path, is_deep: bool) -> Vec<Finding> {
        let (file, data_dir) = (file.to_owned(), data_dir.to_owned());
        let check = SqliteCheck { file, data_dir, retention: None, is_deep, was_used: false };
        check.run(&Clock::fixed(0)).into_iter().filter(|finding| finding.severity > Severity::Note).collect()
    }

    #[test]
    fn a_good_file_has_no_warnings_while_it_is_open_and_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("db");
        assert_eq!(found(&file, false), []);
        let store = SqliteStore::open(&file).unwrap();
        assert_eq!(found(&file, false), []);
        drop(store);
        assert_eq!(found(&file, true), []);
    }

    #[test]
    fn a_file_that_the_first_start_cannot_create_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        for file in ["db", "data/db", "data/folder/db"] {
            assert_eq!(found_with(&place.path().join(file), &place.path().join("data/folder"), false), []);
        }
        std::os::unix::fs::symlink("other/db", place.path().join("link")).unwrap();
        for file in ["other/db", "link"] {
            let findings = found_with(&place.path().join(file), &place.path().join("data/folder"), false);
            assert!(findings.len() == 1 && findings[0].severity == Severity::Error, "{findings:?}");
            assert!(findings[0].found.contains("the first start cannot create it: /"), "{findings:?}");
        }
    }

    #[test]
    fn a_lock_file_that_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let [file, lock] = ["db", "db-lock"].map(|name| folder.path().join(name));
        drop(SqliteStore::open(&file).unwrap());
        std::os::unix::fs::symlink(&lock, &lock).unwrap(); // not even root can open it
        let findings = found(&file, false);
        assert!(findings.len() == 1 && findings[0].severity == Severity::Error, "{findings:?}");
        assert!(findings[0].found.contains("db-lock: "), "{findings:?}");
    }

    #[test]
    fn a_damaged_page_a_foreign_file_and_a_newer_one_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let prepared = |name: &str, sql: &str| {
            let file = folder.path().join(name);
            drop(SqliteStore::open(&file).unwrap());
            Connection::open(&file).unwrap().execute_batch(sql).unwrap();
            file
        };
        let rows = "INSERT INTO devices WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
            SELECT 'device-' || i, NULL, NULL, 1, 1, 0 FROM n; PRAGMA wal_checkpoint(TRUNCATE)";
        let damaged = prepared("damaged", rows);
        let bytes = std::fs::metadata(&damaged).unwrap().len();
        let open = std::fs::File::options().write(true).open(&damaged).unwrap();
        open.write_all_at(&[0xA5; 4096], bytes / 4096 / 2 * 4096).unwrap();
        for (file, part, text) in [
            (damaged, INTEGRITY, "is damaged"),
            (prepared("foreign", "PRAGMA application_id = 7"), FILE, "belongs to another program"),
            (prepared("newer", "PRAGMA user_version = 99"), FILE, "is of version 99"),
        ] {
            let findings = found(&file, false);
            assert!(findings[0].part == part && findings[0].found.contains(text), "{findings:?}");
            assert!(findings[0].severity == Severity::Error && findings[0].mend.is_some(), "{findings:?}");
        }
        let no_database = folder.path().join("text");
        std::fs::write(&no_database, "no database at all, but longer than a header".repeat(99)).unwrap();
        let findings = found(&no_database, false);
        assert!(findings[0].found.contains("not a database"), "{findings:?}");
    }
}
