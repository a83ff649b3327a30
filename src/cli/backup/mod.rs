//! `tidegauge backup` and `tidegauge restore`: copy the data of a service, and back.
//!
//! A backup reads the files of a service that may be running and does not notice. It first takes snapshots of
//! the log, of the dead letters and of the SQLite file, in this order. A reading that was acknowledged before
//! the backup began is in one of these snapshots: the log removes a segment only after the store or the dead
//! letters have its readings. A reading that is in two snapshots is stored once after the restore. Copying
//! the snapshots may take long, and happens last.
//!
//! A retry of dead letters moves readings from the letters to the log. If it ended between these two
//! snapshots, neither would have its readings. So the letters are locked until both are taken.
//!
//! A deletion between the snapshots needs care: the log would still have the deleted readings, and the
//! restore would store them again. In that rare case the backup takes all snapshots again.
//!
//! ```text
//! backup.json                    the list of the other files with their checksums, written last
//! log/                           the checkpoint, the segments, and the position of forwarding
//! dead-letters.ndjson            if there are dead letters; also those of forwarding, and those that a
//!                                retry has taken
//! tidegauge.sqlite               with the store sqlite
//! ```
//!
//! A folder without `backup.json` is not a backup, and `restore` refuses it. So an interrupted backup is
//! never mistaken for a complete one.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use indicatif::HumanBytes;
use tidegauge::common::clock::{Clock, rfc3339};
use tidegauge::common::regular_file::open_regular;
use tidegauge::config::{Config, StoreKind};
use tidegauge::disk::make_folder;
use tidegauge::flush::DeadLetters;
use tidegauge::log;
use tidegauge::store::sqlite;

use self::manifest::{DATABASE, LOG, Manifest, letters, name_of};
use super::known_store::KnownStore;
use super::settings::ConfigArgs;
use super::{Usage, counted, data_dir};

mod manifest;
mod restore;

pub(super) use restore::{RestoreArgs, run as restore};

/// The most attempts to take all snapshots without a deletion between them.
const ATTEMPTS: usize = 100;

/// The flags of `tidegauge backup`.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub(super) struct BackupArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The folder of the backup, which is created; it must be empty if it exists
    #[arg(long, value_name = "FOLDER")]
    to: PathBuf,
}

const HELP: &str = "\
The service may be running. Run the command as its user, with its configuration and environment. The backup has every \
reading that the service acknowledged before the command began: the log, the dead letters and, with the store sqlite, \
the database. With MongoDB, copy the database afterwards with its own tools: docs/operations.md.

A folder with the file backup.json is a whole backup. Without it, the command was interrupted: remove the folder.";

/// Backs up the data folder, and prints the size of the backup.
pub(super) fn run(args: &BackupArgs) -> anyhow::Result<()> {
    let config = args.config.load()?;
    data_dir::expect_folder(&config.server.data_dir)?;
    if config.store_kind() == StoreKind::Sqlite {
        expect_database(&config.sqlite_file())?;
    }
    refuse_other_store(&config)?;
    prepare(&args.to)?;
    let begun_at = rfc3339(Clock::system().now_ms());
    Snapshots::take(&config)?.copy_to(&args.to)?;
    let manifest = Manifest::of(&args.to, begun_at, config.store_kind())?;
    manifest.write(&args.to)?;
    let (files, bytes) = (counted(manifest.files.len() as u64, "file"), HumanBytes(manifest.bytes()));
    println!("{} is a backup: {files}, {bytes}", args.to.display());
    if config.store_kind().is_mongodb() {
        println!("It has the log, and not what MongoDB has: copy the database now, with mongodump or a snapshot");
    }
    Ok(())
}

/// Refuses an SQLite file that does not exist, or that this user may not see.
fn expect_database(file: &Path) -> anyhow::Result<()> {
    match file.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Usage(format!(
            "there is no SQLite file {}; with MongoDB, run this command with the configuration and the environment of \
             the service",
            file.display()
        ))
        .into()),
        Err(error) => {
            bail!("cannot look for {}: {error}; run this command as the user of the service", file.display())
        }
    }
}

/// Refuses a configuration with another store than the service uses.
///
/// The backup would lack the readings in the store of the service.
fn refuse_other_store(config: &Config) -> anyhow::Result<()> {
    let file = data_dir::known_store(&config.server.data_dir);
    let known = KnownStore::load(&file).with_context(|| format!("read {}", file.display()))?;
    let Some(why) = known.and_then(|known| known.objection(config)) else { return Ok(()) };
    Err(Usage(format!(
        "{why} ({}); run this command with the configuration and the environment of the service",
        file.display()
    ))
    .into())
}

/// Creates the folder of a backup. A folder with files is refused.
fn prepare(to: &Path) -> anyhow::Result<()> {
    make_folder(to).with_context(|| format!("create the folder {}", to.display()))?;
    if std::fs::read_dir(to).with_context(|| format!("read the folder {}", to.display()))?.next().is_some() {
        return Err(Usage(format!("{} is not empty; a backup needs a folder of its own", to.display())).into());
    }
    Ok(())
}

/// The parts of a data folder at almost the same moment, not copied yet.
struct Snapshots {
    log: log::backup::Snapshot,
    /// Each dead-letter file: its name, and a reader of the bytes of that moment.
    letters: Vec<(String, std::io::Take<File>)>,
    database: Option<sqlite::backup::Snapshot>,
}

impl Snapshots {
    fn take(config: &Config) -> anyhow::Result<Self> {
        for _ in 0..ATTEMPTS {
            let data_dir = &config.server.data_dir;
            let locks = letters(data_dir).iter().map(lock_of).collect::<anyhow::Result<Vec<_>>>()?;
            let log = log::backup::Snapshot::take(&data_dir::log_dir(data_dir)).map_err(data_dir::explain)?;
            let letters = open_letters(data_dir, locks)?;
            let is_sqlite = config.store_kind() == StoreKind::Sqlite;
            let database = is_sqlite.then(|| sqlite::backup::Snapshot::take(&config.sqlite_file())).transpose()?;
            if !log.has_later_deletion()? {
                return Ok(Self { log, letters, database });
            }
        }
        bail!(
            "readings were deleted while the backup began, {ATTEMPTS} times; run it again when there is less to delete"
        )
    }

    fn copy_to(self, to: &Path) -> anyhow::Result<()> {
        self.log.copy_to(&to.join(LOG)).map_err(data_dir::explain).context("copy the log")?;
        for (name, mut letters) in self.letters {
            let copied = File::create_new(to.join(&name)).and_then(|mut copy| {
                std::io::copy(&mut letters, &mut copy)?;
                copy.sync_all()
            });
            copied.with_context(|| format!("copy {name}"))?;
        }
        self.database.map_or(Ok(()), |database| Ok(database.copy_to(&to.join(DATABASE))?))
    }
}

/// Locks a dead-letter file against all processes that change it.
///
/// `None`: neither it nor the file of a retry exists. Then the backup creates no lock file.
fn lock_of(files: &[PathBuf; 2]) -> anyhow::Result<Option<File>> {
    let lock = || {
        let are_there = files[0].try_exists()? || files[1].try_exists()?;
        are_there.then(|| DeadLetters::lock(&files[0])).transpose()
    };
    lock().with_context(|| format!("lock {}", files[0].display()))
}

/// Opens the dead-letter files, and then unlocks them.
///
/// Later changes append a line, replace or remove a whole file, or remove lines in place that a deletion
/// selects. So all other lines of this moment stay readable. Of a line that is removed during the copy, the
/// copy may have a part; the deletion removes all readings of that line.
fn open_letters(data_dir: &Path, locks: Vec<Option<File>>) -> anyhow::Result<Vec<(String, std::io::Take<File>)>> {
    let mut opened = Vec::new();
    for (files, lock) in letters(data_dir).into_iter().zip(locks) {
        let lock = match lock {
            None => lock_of(&files)?, // there may be letters by now
            held => held,
        };
        let Some(_lock) = lock else { continue };
        for path in files {
            let file = match open_regular(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                file => file.with_context(|| format!("open {}", path.display()))?,
            };
            let bytes = file.metadata()?.len();
            opened.extend(name_of(&path).map(|name| (name, file.take(bytes))));
        }
    }
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::TempDir;
    use tidegauge::config::{Server, Store};
    use tidegauge::log::{BatchBuilder, Instruments, Log, MinFree, Options, Sync, recovery};

    use super::*;

    /// The backup waits for the lock of one letter file, while the retry of the other one ends.
    #[test]
    fn what_a_retry_has_sent_during_a_backup_is_in_its_log_or_in_its_letters() {
        for earlier in (0..100_u64).step_by(5) {
            let place = TempDir::new().unwrap();
            let [data_dir, backup] = ["data", "backup"].map(|name| place.path().join(name));
            for folder in [&data_dir, &backup] {
                std::fs::create_dir(folder).unwrap();
            }
            let options = Options {
                dir: data_dir::log_dir(&data_dir),
                sync: Sync::Always,
                group_window: Duration::ZERO,
                segment_bytes: 1 << 20,
                max_bytes: 1 << 22,
                min_free: MinFree::Bytes(0),
            };
            let (log, _) = Log::open(options, Instruments::default()).unwrap();
            let append = || {
                let mut batch = BatchBuilder::default();
                batch.push_of(None, "device", None, 0, 0, [("m", 1.0)].into_iter()).unwrap();
                log.append(batch.finish()).unwrap().wait().unwrap();
            };
            let [of_store, of_forwarding] = letters(&data_dir);
            for files in [&of_store, &of_forwarding] {
                std::fs::write(&files[0], "{}\n").unwrap();
            }
            let server = Server { data_dir, ..Server::default() };
            let config = Config { server, store: Store { kind: Some(StoreKind::Mongodb) }, ..Config::default() };

            let locked = DeadLetters::lock(&of_store[0]).unwrap();
            let [current, taken] = &of_forwarding;
            let held = DeadLetters::take(current, taken).unwrap();
            std::thread::scope(|scope| {
                let backup = scope.spawn(|| Snapshots::take(&config).unwrap().copy_to(&backup).unwrap());
                (0..earlier).for_each(|_| append()); // meanwhile the backup begins
                append();
                DeadLetters::put_back(current, taken, &[]).unwrap();
                drop((held, locked));
                backup.join().unwrap();
            });
            let segments = recovery::inspect(&backup.join(LOG)).unwrap().segments;
            let readings: u64 = segments.iter().map(|segment| segment.readings).sum();
            let has_letter = of_forwarding.iter().any(|path| backup.join(name_of(path).unwrap()).exists());
            assert!(readings == earlier + 1 || has_letter, "{readings} of {} readings", earlier + 1);
        }
    }
}
