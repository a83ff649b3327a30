//! The dead-letter file: readings that the store refuses for good.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde::Serialize;

use crate::common::clock::{Clock, rfc3339};
use crate::disk::{Folder, OpenMode, OsFolder};
use crate::model::{BucketWrite, Metric};

/// Appends refused buckets to a file, one JSON object a line, with the reason: `refusedAt` (RFC 3339),
/// `reason` (a stable word), `detail` (what the store said), and behind these the shape of the ingest API
/// (`deviceId`, `metadata`, `readings`), so that a line can be sent again as it is.
///
/// The file is opened for each line, under a lock ([`Self::lock`]), so that somebody else may take the file
/// away in between.
#[derive(Debug, Clone)]
pub struct DeadLetters {
    path: Arc<PathBuf>,
    max_bytes: u64,
    clock: Clock,
    /// One line at a time.
    turn: Arc<Mutex<()>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    refused_at: String,
    reason: &'a str,
    detail: &'a str,
    device_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a serde_json::value::RawValue>,
    readings: Vec<LineReading>,
}

#[derive(Serialize)]
struct LineReading {
    ts: i64,
    values: BTreeMap<Metric, f64>,
}

impl DeadLetters {
    /// The file is made when the first reading is refused, and grows to `max_bytes`.
    pub fn new(path: PathBuf, max_bytes: u64, clock: Clock) -> Self {
        Self { path: Arc::new(path), max_bytes, clock, turn: Arc::default() }
    }

    /// The size of the file, in bytes.
    pub fn bytes(&self) -> u64 {
        std::fs::metadata(&*self.path).map_or(0, |file| file.len())
    }

    /// The size at which the file is full.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The lock that is held while a line is added to the file at `path`, or the file is taken away. Waits
    /// for it.
    ///
    /// # Errors
    /// When the lock file, which lies beside the other, cannot be opened or locked.
    pub fn lock(path: &Path) -> std::io::Result<File> {
        let lock = File::options().write(true).create(true).truncate(false).open(path.with_extension("lock"))?;
        lock.lock()?;
        Ok(lock)
    }

    /// Appends a bucket. When this returns, the line survives a crash.
    pub(super) async fn append(
        &self,
        write: &Arc<BucketWrite>,
        reason: &'static str,
        detail: &str,
    ) -> std::io::Result<()> {
        let (this, write, detail) = (self.clone(), Arc::clone(write), detail.to_owned());
        let appended = tokio::task::spawn_blocking(move || this.append_now(&write, reason, &detail)).await;
        appended.unwrap_or_else(|error| Err(std::io::Error::other(error)))
    }

    fn append_now(&self, write: &BucketWrite, reason: &str, detail: &str) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(&line(write, reason, detail, self.clock.now_ms()))?;
        line.push(b'\n');
        let _turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _lock = Self::lock(&self.path)?;
        let (folder, name) = OsFolder::of_file(&self.path)?;
        add_lines(&folder, name, line, self.max_bytes)
    }

    /// Renames the file at `path` to `taken`, in the same folder, so that later lines go to a new file. False
    /// when there is no file at `path`.
    ///
    /// # Errors
    /// When the file cannot be locked or renamed.
    pub fn take(path: &Path, taken: &Path) -> std::io::Result<bool> {
        let _lock = Self::lock(path)?;
        let ((folder, name), (_, taken)) = (OsFolder::of_file(path)?, OsFolder::of_file(taken)?);
        take(&folder, name, taken)
    }

    /// Adds `lines` to the file at `path`, then deletes the file that [`Self::take`] renamed. A crash in
    /// between leaves both, and loses no line.
    ///
    /// # Errors
    /// When a file cannot be locked, written or deleted.
    pub fn put_back(path: &Path, taken: &Path, lines: &[String]) -> std::io::Result<()> {
        let _lock = Self::lock(path)?;
        let ((folder, name), (_, taken)) = (OsFolder::of_file(path)?, OsFolder::of_file(taken)?);
        put_back(&folder, name, taken, lines)
    }
}

fn take(folder: &dyn Folder, name: &str, taken: &str) -> std::io::Result<bool> {
    match folder.rename(name, taken) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        renamed => renamed?,
    }
    folder.sync()?; // before a new file gets the name
    Ok(true)
}

fn put_back(folder: &dyn Folder, name: &str, taken: &str, lines: &[String]) -> std::io::Result<()> {
    if !lines.is_empty() {
        add_lines(folder, name, (lines.join("\n") + "\n").into_bytes(), u64::MAX)?;
    }
    folder.remove(taken)?;
    folder.sync()
}

/// Adds whole lines to a file of at most `max_bytes`, which is created if need be. When this returns, they
/// survive a crash. If a crash or a full disk has cut off the last line of the file, a line end goes before
/// the new lines.
fn add_lines(folder: &dyn Folder, name: &str, mut lines: Vec<u8>, max_bytes: u64) -> std::io::Result<()> {
    let file = folder.open(name, OpenMode::Create)?;
    let len = file.len()?;
    let mut last = *b"\n";
    file.fill(&mut last, len.saturating_sub(1))?;
    if last != *b"\n" {
        lines.insert(0, b'\n');
    }
    if len + lines.len() as u64 > max_bytes {
        let full = format!("{} has reached flush.max_dead_letter_bytes", folder.path_of(name).display());
        return Err(std::io::Error::new(ErrorKind::StorageFull, full));
    }
    if let Err(error) = file.write_all_at(&lines, len) {
        let _ = file.set_len(len); // or each retry would leave a piece of a line
        return Err(error);
    }
    file.sync()?;
    folder.sync() // always: a killed process may have created the file and not synced its name
}

fn line<'a>(write: &'a BucketWrite, reason: &'a str, detail: &'a str, now_ms: i64) -> Line<'a> {
    let contents = &write.contents;
    let readings = contents.readings().map(|reading| LineReading {
        ts: write.hour.instant_ms(reading.offset),
        values: reading.samples.iter().map(|sample| (contents.metric_of(sample).clone(), sample.value)).collect(),
    });
    Line {
        refused_at: rfc3339(now_ms),
        reason,
        detail,
        device_id: &write.device,
        metadata: write.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok()),
        readings: readings.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use super::*;
    use crate::disk::faulty::Disk;
    use crate::model::{Hour, Sample};
    use crate::wire::{Incoming, Rejection, Sink, json};

    /// What the API makes of a body, one text a reading.
    #[derive(Default)]
    struct Found(Vec<String>);

    impl Sink for Found {
        fn reading(&mut self, incoming: Incoming<'_>) {
            let Incoming { device, metadata, ts_ms, values, .. } = incoming;
            self.0.push(format!("{device} {} {} {values:?}", metadata.unwrap_or("-"), ts_ms.unwrap()));
        }

        fn reject(&mut self, rejection: Rejection) {
            panic!("{rejection:?}");
        }
    }

    fn dead_letters(path: PathBuf, max_bytes: u64) -> DeadLetters {
        DeadLetters::new(path, max_bytes, Clock::fixed(1_776_693_610_000))
    }

    fn refused(metadata: Option<&str>) -> Arc<BucketWrite> {
        let samples = [(10, 0, 1.5), (10, 1, -0.1), (3_599_999, 1, 1e300)];
        let arrived =
            samples.map(|(offset, metric, value)| (Sample { value, offset, metric }, metric == 0 || offset > 10));
        let metrics = vec!["temp".into(), "a \"b\" c".into()];
        BucketWrite::new("S1".into(), Hour::of(7_200_000), metadata.map(Into::into), metrics, arrived).into()
    }

    fn lines(path: &Path) -> Vec<String> {
        std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn a_line_can_be_sent_to_the_api_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead-letters.ndjson");
        let letters = dead_letters(path.clone(), 1 << 20);
        let detail = "document failed\nvalidation: \"floor\"";
        letters.append(&refused(Some(r#"{"floor": 2}"#)), "validation", detail).await.unwrap();
        letters.append(&refused(None), "too_large", "").await.unwrap();
        let lines = lines(&path);
        assert_eq!(lines.len(), 2);
        for (line, metadata) in lines.iter().zip([r#"{"floor": 2}"#, "-"]) {
            let mut found = Found::default();
            json::parse(line.as_bytes(), &mut found).unwrap();
            let expected = [
                format!(r#"S1 {metadata} 7200010 [("a \"b\" c", -0.1), ("temp", 1.5)]"#),
                format!(r#"S1 {metadata} 10799999 [("a \"b\" c", 1e300)]"#),
            ];
            assert_eq!(found.0, expected);
        }
        let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!((&line["reason"], &line["detail"]), (&"validation".into(), &detail.into()));
        assert_eq!(line["refusedAt"], "2026-04-20T14:00:10.000Z");
    }

    #[tokio::test]
    async fn lines_survive_a_reopening_and_a_line_that_was_cut_off_spoils_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead-letters.ndjson");
        dead_letters(path.clone(), 1 << 20).append(&refused(None), "one", "").await.unwrap();
        dead_letters(path.clone(), 1 << 20).append(&refused(None), "two", "").await.unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(br#"{"deviceId":"S"#).unwrap();
        let letters = dead_letters(path.clone(), 1 << 20);
        letters.append(&refused(None), "three", "").await.unwrap();
        letters.append(&refused(None), "four", "").await.unwrap();
        let found: Vec<Option<String>> = lines(&path)
            .iter()
            .map(|line| Some(serde_json::from_str::<serde_json::Value>(line).ok()?["reason"].as_str()?.to_owned()))
            .collect();
        assert_eq!(
            found,
            ["one", "two", "", "three", "four"].map(|reason| (!reason.is_empty()).then(|| reason.to_owned()))
        );
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_written_is_an_error_and_is_tried_again_at_the_next_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later").join("dead-letters.ndjson");
        let letters = dead_letters(path.clone(), 1 << 20);
        letters.append(&refused(None), "one", "").await.unwrap_err();
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        letters.append(&refused(None), "two", "").await.unwrap();
        assert_eq!(lines(&path).len(), 1);
    }

    #[tokio::test]
    async fn a_line_that_cannot_be_synced_was_not_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead-letters.ndjson");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap(); // takes what is written, and refuses to sync
        let refused = dead_letters(path, 1 << 20).append(&refused(None), "one", "").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    }

    #[tokio::test]
    async fn a_full_file_takes_no_more_until_it_is_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead-letters.ndjson");
        let letters = dead_letters(path.clone(), 600);
        letters.append(&refused(None), "one", "").await.unwrap();
        let error = loop {
            if let Err(error) = letters.append(&refused(None), "more", "").await {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        assert!(letters.bytes() <= 600);
        let before = lines(&path);
        std::fs::rename(&path, folder.path().join("taken")).unwrap();
        letters.append(&refused(None), "next", "").await.unwrap();
        assert_eq!((before.iter().all(|line| !line.contains("next")), lines(&path).len()), (true, 1));
    }

    /// The lines of a file on a faulty disk. The disk must be sound.
    fn lines_on(disk: &Disk, name: &str) -> Vec<String> {
        let mut bytes = Vec::new();
        if let Ok(file) = disk.open(name, OpenMode::Read) {
            file.read_from(0, &mut bytes).unwrap();
        }
        String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
    }

    /// Runs `work` on many disks, which lose power after each number of calls, and hands each disk and
    /// whether `work` succeeded to `check`.
    fn on_disks_that_lose_power(
        prepare: impl Fn(&Disk),
        work: impl Fn(&Disk) -> std::io::Result<()>,
        check: impl Fn(&Disk, bool),
    ) {
        for (seed, calls) in (0..100).flat_map(|seed| (0..20).map(move |calls| (seed, calls))) {
            let disk = Disk::new(seed);
            prepare(&disk);
            disk.cut_power_after(calls);
            let is_done = work(&disk).is_ok();
            disk.heal();
            disk.crash();
            check(&disk, is_done);
        }
    }

    #[test]
    fn a_power_cut_while_letters_are_put_back_loses_none() {
        let add = |disk: &Disk, name: &str, line: &str| add_lines(disk, name, format!("{line}\n").into(), 100);
        on_disks_that_lose_power(
            |disk| {
                add(disk, "taken", "kept").unwrap();
                add(disk, "taken", "sent").unwrap();
            },
            |disk| put_back(disk, "current", "taken", &["kept".to_owned()]),
            |disk, is_done| {
                let [current, taken] = ["current", "taken"].map(|name| lines_on(disk, name));
                assert!(!is_done || (taken.is_empty() && current == ["kept"]), "done: {current:?}, {taken:?}");
                assert!(current.contains(&"kept".to_owned()) || taken == ["kept", "sent"], "{current:?}, {taken:?}");
            },
        );
    }

    #[test]
    fn a_power_cut_while_letters_are_taken_loses_none() {
        let add = |disk: &Disk, line: &str| add_lines(disk, "current", format!("{line}\n").into(), 100);
        on_disks_that_lose_power(
            |disk| add(disk, "old").unwrap(),
            |disk| take(disk, "current", "taken").and_then(|_| add(disk, "new")),
            |disk, is_done| {
                let all = ["current", "taken"].map(|name| lines_on(disk, name)).concat();
                assert!(all.contains(&"old".to_owned()), "{all:?}");
                assert!(!is_done || all.contains(&"new".to_owned()), "{all:?}");
            },
        );
    }

    #[test]
    fn a_line_that_does_not_fit_on_the_disk_leaves_no_piece() {
        let disk = Disk::new(0);
        add_lines(&disk, "letters", b"one\n".to_vec(), 100).unwrap();
        disk.set_free_bytes(3);
        add_lines(&disk, "letters", b"two and more\n".to_vec(), 100).unwrap_err();
        disk.heal();
        add_lines(&disk, "letters", b"three\n".to_vec(), 100).unwrap();
        assert_eq!(lines_on(&disk, "letters"), ["one", "three"]);
    }
}
