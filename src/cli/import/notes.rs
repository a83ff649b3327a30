//! Notes in a file how far an import is, so that a repetition can continue there.

use std::path::PathBuf;
use std::slice;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::super::Usage;
use super::super::target::ProgressFile;
use super::batch::{Batch, Done};
use super::send::Sender;
use super::source;

/// The least time between two saves within a file.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// The file and the line that an import has reached.
///
/// The server has answered for all lines up to there, and for all earlier files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) file: String,
    #[serde(flatten)]
    pub(super) done: Done,
    /// How many readings, and how many values, were rejected up to there.
    #[serde(default)]
    pub(super) rejected: (u64, u64),
    /// The ID of the server's store, if the server has told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store: Option<String>,
}

/// The notes of an import.
pub(super) struct Notes {
    file: ProgressFile,
    /// The path of the file, for messages.
    shown: String,
    /// The ID of the store to which the lines up to the place were sent.
    store: Option<String>,
    /// Whether the server has told that `store` is its store.
    is_confirmed: bool,
    last: Option<Place>,
    saved: Option<Instant>,
}

impl Notes {
    /// The notes of an import of `files` to the server at `url`, kept at `path`.
    ///
    /// A repetition must have the same URL and files. A file is the same if its size and the time of its last
    /// change are. If the files grow (`do_grow`), only their names are compared.
    pub(super) fn new(path: PathBuf, files: &[PathBuf], do_grow: bool, url: &str) -> anyhow::Result<Self> {
        let mut named = Vec::new();
        for file in files {
            if do_grow {
                named.push(format!("{} and what is appended to it", file.display()));
                continue;
            }
            let Some(bytes) = source::total_bytes(slice::from_ref(file))? else {
                return Err(Usage("--progress is for files, not for standard input".to_owned()).into());
            };
            let changed = std::fs::metadata(file).and_then(|file| file.modified());
            let changed = jiff::Timestamp::try_from(changed.with_context(|| file.display().to_string())?)?;
            named.push(format!("{} of {bytes} bytes, changed at {changed}", file.display()));
        }
        let shown = path.display().to_string();
        let file = ProgressFile::new(path, &[named.join(", "), url.to_owned()]);
        Ok(Self { file, shown, store: None, is_confirmed: false, last: None, saved: None })
    }

    /// The place at which the import continues; `None`: at the beginning.
    pub(super) fn place(&mut self) -> anyhow::Result<Option<Place>> {
        let place: Option<Place> = self.file.load()?;
        self.store = place.as_ref().and_then(|place| place.store.clone());
        Ok(place)
    }

    /// Whether the next [`Self::note`] saves the place, because the last save is long ago.
    pub(super) fn is_due(&self) -> bool {
        self.saved.is_none_or(|saved| saved.elapsed() > SAVE_INTERVAL)
    }

    /// Asks the server for the ID of its store, unless it has told it already.
    ///
    /// # Errors
    /// If the lines up to the place were sent to another store.
    pub(super) async fn confirm_store(&mut self, sender: &Sender) -> anyhow::Result<()> {
        if self.is_confirmed {
            return Ok(());
        }
        let Some(found) = sender.store_id().await else { return Ok(()) };
        if self.store.as_ref().is_some_and(|noted| *noted != found) {
            let why = format!("{} is of another store than that of the server: remove it to begin again", self.shown);
            return Err(Usage(why).into());
        }
        (self.store, self.is_confirmed) = (Some(found), true);
        Ok(())
    }

    /// Notes that the server has answered for a batch, and all before it.
    ///
    /// `rejected` is the number of readings, and of values, that were rejected.
    pub(super) fn note(&mut self, batch: &Batch, rejected: (u64, u64)) -> anyhow::Result<()> {
        let Some(done) = batch.done.clone() else { return Ok(()) };
        let is_new_file = self.last.as_ref().is_none_or(|last| *last.file != *batch.file);
        let is_due = is_new_file || self.is_due();
        let last = self.last.insert(Place { file: batch.file.to_string(), done, rejected, store: self.store.clone() });
        if is_due {
            self.file.save(last)?;
            self.saved = Some(Instant::now());
        }
        Ok(())
    }

    /// Removes the notes of a complete import, or saves the place of any other.
    ///
    /// An import that was continued is complete only if the server has still the same store.
    pub(super) async fn end(&mut self, is_complete: bool, sender: &Sender) -> anyhow::Result<()> {
        if is_complete {
            self.confirm_store(sender).await?;
            if self.store.is_some() && !self.is_confirmed {
                bail!("the server has not told whether it has the store of {}: repeat the command", self.shown);
            }
        }
        match &self.last {
            _ if is_complete => self.file.remove(),
            Some(last) => self.file.save(last),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_other_content_of_the_same_size_is_not_continued() {
        let folder = tempfile::tempdir().unwrap();
        let [file, noted] = ["a.csv", "noted"].map(|name| folder.path().join(name));
        let notes = || Notes::new(noted.clone(), slice::from_ref(&file), false, "http://h").unwrap();
        std::fs::write(&file, "ts,v\n1,1\n").unwrap();
        let done = Done { line: 2, mark: None, header: Some("ts,v\n".into()), rejected: 0 };
        let (body, lines, reached) = ("".into(), vec![2], Some(done.clone()));
        let batch = Batch { file: "a.csv".into(), body, lines, done: reached, readings: None };
        notes().note(&batch, (3, 4)).unwrap();
        assert_eq!(
            notes().place().unwrap(),
            Some(Place { file: "a.csv".to_owned(), done, rejected: (3, 4), store: None })
        );
        std::fs::write(&file, "ts,v\n2,2\n").unwrap();
        let later = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(later).unwrap();
        assert!(notes().place().unwrap_err().to_string().contains("is of a copy from"));
    }
}
