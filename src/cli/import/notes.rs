//! How far an import is, for its repetition.

use std::path::PathBuf;
use std::slice;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::super::Usage;
use super::super::target::ProgressFile;
use super::batch::Batch;
use super::source;

/// The time between two saves.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// The line up to which the server has answered for all, in this file and those before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) file: String,
    pub(super) line: u64,
}

/// Notes how far an import is.
pub(super) struct Notes {
    file: ProgressFile,
    last: Option<Place>,
    saved: Option<Instant>,
}

impl Notes {
    /// Notes in the file at `path` of an import of these files to the server with this URL. The sizes of the
    /// files tell whether they are still the same.
    pub(super) fn new(path: PathBuf, files: &[PathBuf], url: &str) -> anyhow::Result<Self> {
        let mut named = Vec::new();
        for file in files {
            let Some(bytes) = source::total_bytes(slice::from_ref(file))? else {
                return Err(Usage("--progress is for files, not for standard input".to_owned()).into());
            };
            named.push(format!("{} of {bytes} bytes", file.display()));
        }
        let file = ProgressFile::new(path, &[named.join(", "), url.to_owned()]);
        Ok(Self { file, last: None, saved: None })
    }

    /// The place at which the import continues; `None`: at the beginning.
    pub(super) fn place(&self) -> anyhow::Result<Option<Place>> {
        self.file.load()
    }

    /// Notes that the server has answered for a batch, and all before it.
    pub(super) fn note(&mut self, batch: &Batch) -> anyhow::Result<()> {
        let line = batch.lines.last().copied().unwrap_or_default();
        let is_new_file = self.last.as_ref().is_none_or(|last| *last.file != *batch.file);
        let last = self.last.insert(Place { file: batch.file.to_string(), line });
        if is_new_file || self.saved.is_none_or(|saved| saved.elapsed() > SAVE_INTERVAL) {
            self.file.save(last)?;
            self.saved = Some(Instant::now());
        }
        Ok(())
    }

    /// Saves the place of an import that has failed, or removes that of one that is complete.
    pub(super) fn end(&self, is_complete: bool) -> anyhow::Result<()> {
        match &self.last {
            _ if is_complete => self.file.remove(),
            Some(last) => self.file.save(last),
            None => Ok(()),
        }
    }
}
