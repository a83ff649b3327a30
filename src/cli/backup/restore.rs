//! `tidegauge restore`: fills an empty data folder from a backup.
//!
//! A restore first writes a marker file into the data folder, and removes it last. No server starts in a
//! folder with the marker, so an interrupted restore is never mistaken for the data of a service.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use indicatif::HumanCount;
use tidegauge::config::{Config, StoreKind};
use tidegauge::disk::{expect_writable, make_folder, sync_folder};
use tidegauge::log::recovery;
use tidegauge::store::sqlite;

use super::super::data_dir::{self, DataDir};
use super::super::settings::ConfigArgs;
use super::super::{Usage, counted};
use super::manifest::{DATABASE, Manifest};

/// The flags of `tidegauge restore`.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The folder of the backup
    #[arg(long, value_name = "FOLDER")]
    from: PathBuf,
}

const HELP: &str = "\
The data folder must be empty or missing, and no service may use it. Run the command as the user of the service, with \
its configuration and environment. Every file is compared with its checksum; then the log and the database are \
checked. After an error, empty the data folder and run the command again: the service does not start with a part of a \
backup.

With MongoDB, restore the database with its own tools, before the service starts: docs/operations.md.";

/// Restores a backup, and prints what it has.
pub(crate) fn run(args: &RestoreArgs) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let manifest = Manifest::read(&args.from)?;
    manifest.expect_all(&args.from)?;
    check_store(&config, &manifest)?;
    let data = DataDir::lock(&config.server.data_dir)?;
    data.expect_empty()?;
    if manifest.store == StoreKind::Sqlite {
        expect_free(&config.sqlite_file())?; // before the first change, so that the command can be repeated
    }
    data.begin_restore()?;
    copy(&args.from, &manifest, &config)?;
    let log = recovery::inspect(&data_dir::log_dir(data.path())).map_err(data_dir::explain)?;
    if let Some(damage) = log.damage.first() {
        bail!("{} is damaged at byte {}: {}", damage.path.display(), damage.offset, damage.detail);
    }
    if manifest.store == StoreKind::Sqlite {
        sqlite::backup::check(&config.sqlite_file())?;
    }
    data.end_restore()?;
    let (files, begun_at) = (counted(manifest.files.len() as u64, "file"), &manifest.begun_at);
    let readings = HumanCount(log.segments.iter().map(|segment| segment.readings).sum());
    println!("{} has {files} of the backup that began at {begun_at}", config.server.data_dir.display());
    println!("the log has {readings} readings that the store may not have yet; the next start stores them");
    Ok(())
}

/// Refuses a backup whose store is not the one of the configuration.
fn check_store(config: &Config, manifest: &Manifest) -> anyhow::Result<()> {
    if manifest.store != config.store_kind() {
        let [backup, here] = [manifest.store, config.store_kind()].map(|kind| serde_json::json!(kind));
        return Err(Usage(format!(
            "the backup is of a service with store.kind = {backup}, and this configuration has {here}"
        ))
        .into());
    }
    let has_database = manifest.files.iter().any(|file| file.path == DATABASE);
    if has_database != (manifest.store == StoreKind::Sqlite) {
        bail!("backup.json is damaged: it lists {DATABASE} if, and only if, the store is SQLite");
    }
    Ok(())
}

/// Copies all files. When this returns, they survive a crash.
fn copy(from: &Path, manifest: &Manifest, config: &Config) -> anyhow::Result<()> {
    let log = data_dir::log_dir(&config.server.data_dir);
    make_folder(&log).with_context(|| format!("create {}", log.display()))?;
    let mut folders = vec![log];
    for file in &manifest.files {
        let Some(to) = file.destination(config) else {
            bail!("backup.json is damaged: a backup has no file {:?}", file.path);
        };
        file.copy(from, &to)?;
        folders.extend(to.parent().map(Path::to_owned));
    }
    folders.iter().try_for_each(|folder| sync_folder(folder)).context("sync the data folder")
}

/// Refuses to restore the database into a folder that is missing, or beside files of another one.
///
/// SQLite would take the write-ahead file of the other database for that of the restored one.
fn expect_free(database: &Path) -> anyhow::Result<()> {
    let files = sqlite::backup::files_of(database);
    let folder = files[0].parent().unwrap_or(Path::new(""));
    expect_writable(folder).context("write the folder of sqlite.file, which has to exist")?;
    match files.iter().find(|file| file.exists()) {
        Some(file) => bail!("{} exists; move it away, and restore again", file.display()),
        None => Ok(()),
    }
}
