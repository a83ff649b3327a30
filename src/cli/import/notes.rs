//! Notes in a file how far an import is, so that a repetition can continue there.

use std::path::{Path, PathBuf};
use std::slice;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::super::Usage;
use super::super::target::ProgressFile;
use super::batch::{Batch, Done};
use super::follow::Mark;
use super::progress::Progress;
use super::send::Sender;
use super::source;

/// The least time between two saves within a file.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// The advice if the notes are of other files, or the files have changed.
const ADVICE: &str = "repeat that import if its files are as they were, or remove the file to begin again, which \
                      stores no reading with a time twice; --follow reads a file that grows";

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
    /// Whether programs append to the files of the import.
    do_grow: bool,
    /// The ID of the store to which the lines up to the place were sent.
    store: Option<String>,
    /// Whether `store` is the store of the server, by its last answer.
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
        let file = ProgressFile::new(path, &[named.join(", "), url.to_owned()]).with_advice(ADVICE);
        Ok(Self { file, shown, do_grow, store: None, is_confirmed: false, last: None, saved: None })
    }

    /// The place at which the import continues; `None`: at the beginning.
    pub(super) fn place(&mut self) -> anyhow::Result<Option<Place>> {
        let place: Option<Place> = self.file.load()?;
        self.store = place.as_ref().and_then(|place| place.store.clone());
        Ok(place)
    }

    /// Saves that nothing of a growing file was read.
    ///
    /// The file may be rotated before the server answers for its first lines. Without this place, the next
    /// start would not look for it.
    pub(super) fn begin(&self, file: &Path) -> anyhow::Result<()> {
        let shown = file.display().to_string();
        let mark = Mark::unread(file).with_context(|| shown.clone())?;
        let done = Done { line: 0, mark: Some(mark), header: None, rejected: (0, 0) };
        self.file.save(&Place { file: shown, done, rejected: (0, 0), store: None })
    }

    /// Whether [`Self::note`] saves the place that a batch reaches.
    ///
    /// It does if the batch is of another file, or the last save is long ago.
    pub(super) fn is_due(&self, batch: &Batch) -> bool {
        self.last.as_ref().is_none_or(|last| *last.file != *batch.file)
            || self.saved.is_none_or(|saved| saved.elapsed() > SAVE_INTERVAL)
    }

    /// Asks the server for the ID of its store.
    ///
    /// Ask again before each save: the server may have lost the store since, and be empty.
    ///
    /// If files grow, the import goes on in another store, and a line says so: else later rows would be
    /// missing in it too, until an operator begins again.
    ///
    /// # Errors
    /// If the lines up to the place were sent to another store, and the files do not grow.
    pub(super) async fn confirm_store(&mut self, sender: &Sender, progress: &Progress) -> anyhow::Result<()> {
        let Ok(told) = sender.store_id().await else { return Ok(()) };
        self.is_confirmed = false;
        let Some(found) = told else { return Ok(()) };
        if self.store.as_ref().is_some_and(|noted| *noted != found) {
            let shown = &self.shown;
            if !self.do_grow {
                let why = format!("{shown} is of another store than that of the server: remove it to begin again");
                return Err(Usage(why).into());
            }
            progress.note(&format!("{shown}: the server has another store now, which may lack the lines sent before"));
        }
        (self.store, self.is_confirmed) = (Some(found), true);
        Ok(())
    }

    /// Notes that the server has answered for a batch, and all before it.
    ///
    /// `rejected` is the number of readings, and of values, that were rejected.
    pub(super) fn note(&mut self, batch: &Batch, rejected: (u64, u64)) -> anyhow::Result<()> {
        let Some(done) = batch.done.clone() else { return Ok(()) };
        let is_due = self.is_due(batch);
        self.last = Some(Place { file: batch.file.to_string(), done, rejected, store: self.store.clone() });
        if is_due { self.save() } else { Ok(()) }
    }

    /// Saves the last place, unless the lines up to it may be in two stores.
    fn save(&mut self) -> anyhow::Result<()> {
        let is_of_one_store = self.is_confirmed || self.store.is_none();
        if let Some(last) = self.last.as_ref().filter(|_| is_of_one_store) {
            self.file.save(last)?;
            self.saved = Some(Instant::now());
        }
        Ok(())
    }

    /// Removes the notes of a complete import, or saves the place of any other.
    ///
    /// An import is complete only if the server has still the same store.
    pub(super) async fn end(&mut self, is_complete: bool, sender: &Sender, progress: &Progress) -> anyhow::Result<()> {
        if !is_complete {
            return self.save();
        }
        self.confirm_store(sender, progress).await?;
        if self.store.is_some() && !self.is_confirmed {
            bail!("the server has not told whether it has the store of {}: repeat the command", self.shown);
        }
        self.file.remove()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tidegauge::client::{Client, Options, READINGS};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_place_is_saved_and_an_import_complete_only_while_the_server_has_the_same_store() {
        let answer = Arc::new(Mutex::new(""));
        let tell = |text: &'static str| *answer.lock().unwrap() = text;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let told = Arc::clone(&answer);
        let app = axum::Router::new().fallback(move || {
            let told = *told.lock().unwrap();
            async move { told }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        let sender = Sender::new(Client::new(Options::new(&url)).unwrap(), READINGS, Duration::from_secs(60));
        let progress = Progress::start(None, false, false);

        let folder = tempfile::tempdir().unwrap();
        let [file, noted] = ["a.csv", "noted"].map(|name| folder.path().join(name));
        std::fs::write(&file, "ts,v\n1,1\n").unwrap();
        let mut notes = Notes::new(noted.clone(), &[file], false, &url).unwrap();
        let done = Done { line: 2, mark: None, header: None, rejected: (0, 0) };
        let batch = |file: &str| {
            let (body, lines, done) = ("".into(), vec![2], Some(done.clone()));
            Batch { file: file.into(), body, lines, done, readings: None }
        };
        let [same, other, none] = [r#"{"storeId":"a"}"#, r#"{"storeId":"b"}"#, "{}"];
        tell(same);
        notes.confirm_store(&sender, &progress).await.unwrap();
        notes.note(&batch("a.csv"), (0, 0)).unwrap();
        let saved = std::fs::read(&noted).unwrap();
        tell(none);
        notes.confirm_store(&sender, &progress).await.unwrap();
        notes.note(&batch("b.csv"), (0, 0)).unwrap();
        for (told, said) in [(none, "has not told whether it has the store"), (other, "is of another store")] {
            tell(told);
            let refused = notes.end(true, &sender, &progress).await.unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
            notes.end(false, &sender, &progress).await.unwrap();
            assert_eq!(std::fs::read(&noted).unwrap(), saved, "lines after this place may be in another store");
        }
        tell(same);
        notes.end(true, &sender, &progress).await.unwrap();
        assert!(!noted.exists());
    }

    #[test]
    fn a_growing_file_has_a_place_before_its_first_batch() {
        let folder = tempfile::tempdir().unwrap();
        let [file, noted] = ["a.csv", "noted"].map(|name| folder.path().join(name));
        let notes = || Notes::new(noted.clone(), slice::from_ref(&file), true, "http://h").unwrap();
        std::fs::write(&file, "ts,v\n").unwrap();
        notes().begin(&file).unwrap();
        let place = notes().place().unwrap().unwrap();
        assert_eq!(place.file, file.display().to_string());
        assert_eq!((place.done.line, place.done.mark), (0, Some(Mark::unread(&file).unwrap())));
    }

    #[test]
    fn a_file_with_other_content_of_the_same_size_is_not_continued() {
        let folder = tempfile::tempdir().unwrap();
        let [file, noted] = ["a.csv", "noted"].map(|name| folder.path().join(name));
        let notes = || Notes::new(noted.clone(), slice::from_ref(&file), false, "http://h").unwrap();
        std::fs::write(&file, "ts,v\n1,1\n").unwrap();
        let done = Done { line: 2, mark: None, header: Some("ts,v\n".into()), rejected: (0, 0) };
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
        let refused = notes().place().unwrap_err().to_string();
        assert!(refused.contains("is of a copy from") && refused.ends_with(ADVICE), "{refused}");
    }
}
