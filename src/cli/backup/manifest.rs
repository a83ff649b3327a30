//! `backup.json`: the files of a backup, each with its length and its checksum.
//!
//! ```json
//! {"version": 1, "program": "0.1.0 (3f1b446)", "begunAt": "2026-11-22T10:00:00.000Z", "store": "sqlite",
//!  "files": [{"path": "log/checkpoint", "bytes": 4124, "sha256": "9f86d0…"}]}
//! ```
//!
//! The file is written last, so a folder that has it has all files of the list.

use std::collections::HashSet;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tidegauge::common::regular_file::open_regular;
use tidegauge::common::version::Version1;
use tidegauge::config::{Config, StoreKind};
use tidegauge::disk::replace_file;
use tidegauge::flush::DeadLetters;
use tidegauge::store::sqlite;
use tidegauge::telemetry::VERSION;

use super::super::data_dir;

/// The folder of the log in a backup.
pub(super) const LOG: &str = "log";
/// The SQLite file in a backup.
pub(super) const DATABASE: &str = "tidegauge.sqlite";

/// The checkpoint in the folder of the log: each backup has one.
const CHECKPOINT: &str = "checkpoint";

/// The name of the list itself.
const NAME: &str = "backup.json";

/// The size limit of the list, which is enough for some hundred thousand files.
const MAX_BYTES: u64 = 32 << 20;

/// The list of the files of a backup.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Manifest {
    /// The version of the list and of the folder.
    version: Version1,
    /// The version of the program that made the backup.
    program: String,
    /// When the backup began.
    ///
    /// The backup has all readings that were acknowledged before this instant.
    pub(super) begun_at: String,
    /// The store of the service.
    pub(super) store: StoreKind,
    pub(super) files: Vec<ListedFile>,
}

/// A file of a backup.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListedFile {
    /// The path in the folder of the backup.
    pub(super) path: String,
    bytes: u64,
    sha256: String,
}

impl Manifest {
    /// The list of the files in the folder of a backup.
    pub(super) fn of(folder: &Path, begun_at: String, store: StoreKind) -> anyhow::Result<Self> {
        let files = paths_in(folder)?.into_iter().map(|path| ListedFile::of(folder, path));
        let files = files.collect::<anyhow::Result<_>>()?;
        Ok(Self { version: Version1, program: VERSION.to_owned(), begun_at, store, files })
    }

    /// Completes a backup. When this returns, the backup survives a crash.
    pub(super) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let path = folder.join(NAME);
        replace_file(&path, &serde_json::to_vec_pretty(self)?).with_context(|| format!("write {}", path.display()))
    }

    /// Reads the list of the backup in a folder.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(NAME);
        let file = match open_regular(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => bail!(
                "{} has no {NAME}: it is no backup, or the backup was interrupted; make another one",
                folder.display()
            ),
            opened => opened.with_context(|| format!("open {}", path.display()))?,
        };
        let mut text = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut text).with_context(|| format!("read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged or of another version", path.display()))
    }

    /// Refuses a list without the checkpoint, or without a file that the folder has.
    ///
    /// If both the list and the folder lack a segment, the log has a gap, which recovery finds.
    pub(super) fn expect_all(&self, folder: &Path) -> anyhow::Result<()> {
        let listed: HashSet<&str> = self.files.iter().map(|file| file.path.as_str()).collect();
        let mut expected = paths_in(folder)?;
        expected.push(format!("{LOG}/{CHECKPOINT}"));
        if let Some(path) = expected.iter().find(|path| !listed.contains(path.as_str())) {
            bail!("{} is damaged: it does not list the file {path} of the backup", folder.join(NAME).display());
        }
        Ok(())
    }

    /// The total length of the files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

impl ListedFile {
    fn of(folder: &Path, path: String) -> anyhow::Result<Self> {
        let summed =
            open_regular(&folder.join(&path)).and_then(|mut file| copy_and_sum(&mut file, &mut std::io::sink()));
        let (bytes, sha256) = summed.with_context(|| format!("read {}", folder.join(&path).display()))?;
        Ok(Self { path, bytes, sha256 })
    }

    /// The path to restore the file to. `None`: no backup has a file of this path.
    pub(super) fn destination(&self, config: &Config) -> Option<PathBuf> {
        let data_dir = &config.server.data_dir;
        match self.path.as_str() {
            // The file to which a link leads: `copy` makes no file in the place of a link.
            DATABASE => sqlite::backup::files_of(&config.sqlite_file()).into_iter().next(),
            path if !path.contains('/') => {
                letters(data_dir).into_iter().flatten().find(|file| name_of(file).as_deref() == Some(path))
            }
            path => {
                let name = path.strip_prefix(LOG)?.strip_prefix('/')?;
                is_of_log(name).then(|| data_dir::log_dir(data_dir).join(name))
            }
        }
    }

    /// Copies the file from a backup to the new file `to`.
    ///
    /// The copy is compared with the list: its length and its checksum. When this returns, its bytes survive
    /// a crash.
    pub(super) fn copy(&self, folder: &Path, to: &Path) -> anyhow::Result<()> {
        let from = folder.join(&self.path);
        let mut file = open_regular(&from).with_context(|| format!("open {}", from.display()))?;
        let copied = File::create_new(to).and_then(|mut copy| {
            let summed = copy_and_sum(&mut file, &mut copy)?;
            copy.sync_all()?;
            Ok(summed)
        });
        let (bytes, sha256) = copied.with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
        if bytes != self.bytes {
            bail!("{} is damaged: it has {bytes} bytes, and had {} when the backup ended", from.display(), self.bytes);
        }
        if sha256 != self.sha256 {
            bail!("{} is damaged: its SHA-256 is not that of the list in {NAME}", from.display());
        }
        Ok(())
    }
}

/// The dead-letter files in a data folder: of the store, then of forwarding.
///
/// Each pair has the current file and the file that a retry has taken. A backup keeps their names.
pub(super) fn letters(data_dir: &Path) -> [[PathBuf; 2]; 2] {
    let current = [data_dir::dead_letters(data_dir), data_dir::forward_dead_letters(data_dir)];
    current.map(|current| {
        let taken = DeadLetters::taken_path(&current);
        [current, taken]
    })
}

/// The file name of a path, if it is UTF-8.
pub(super) fn name_of(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

/// The paths of the files in a folder that belong to a backup.
fn paths_in(folder: &Path) -> anyhow::Result<Vec<String>> {
    let of_log = names_in(&folder.join(LOG))?.into_iter().filter(|name| is_of_log(name));
    let mut paths: Vec<_> = of_log.map(|name| format!("{LOG}/{name}")).collect();
    paths.extend(letters(folder).into_iter().flatten().filter_map(|path| name_of(&path)));
    paths.push(DATABASE.to_owned());
    paths.retain(|path| folder.join(path).exists());
    Ok(paths)
}

/// Whether a name is that of a log file: a segment, `checkpoint` or `follower`.
fn is_of_log(name: &str) -> bool {
    let is_position = |digits: &str| digits.len() == 20 && digits.bytes().all(|digit| digit.is_ascii_digit());
    name.strip_suffix(".log").is_some_and(is_position) || [CHECKPOINT, "follower"].contains(&name)
}

/// The names of the files in a folder, in order.
fn names_in(folder: &Path) -> anyhow::Result<Vec<String>> {
    let names = std::fs::read_dir(folder).and_then(|entries| {
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<std::io::Result<Vec<_>>>()
    });
    let mut names = names.with_context(|| format!("read the folder {}", folder.display()))?;
    names.sort();
    Ok(names)
}

/// Copies bytes, and returns their number and their SHA-256 in hexadecimal digits.
fn copy_and_sum(from: &mut File, to: &mut impl Write) -> std::io::Result<(u64, String)> {
    let (mut chunk, mut sum, mut bytes) = (vec![0; 1 << 20], Sha256::new(), 0);
    loop {
        let have = match from.read(&mut chunk) {
            Ok(0) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            read => read?,
        };
        sum.update(&chunk[..have]);
        to.write_all(&chunk[..have])?;
        bytes += have as u64;
    }
    let digits = sum.finalize().into_iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    Ok((bytes, digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()))
}
