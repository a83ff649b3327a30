//! The dead-letter file: readings that the store refuses permanently.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::common::clock::{Clock, rfc3339};
use crate::common::regular_file::{open_regular, open_regular_with};
use crate::disk::{Folder, OsFolder, is_disk_full, named};
use crate::model::{BucketWrite, Contents, Deletion};

use self::file::Change;
use self::line::{lines_of, without};

mod file;
mod line;

pub use file::{MAX_LINE_BYTES, NumberedLine, NumberedLines};
pub use line::{Letter, READINGS_PER_LINE, divide_readings};

/// Appends refused buckets to a file, as JSON objects, one a line.
///
/// A line begins with the reason: `refusedAt` (RFC 3339), `reason` (a stable word) and `detail` (the store's
/// message). `replaces` has the stored values that the readings were to replace, by instant and series: a
/// retry replaces no others, because the store accepted them later. The fields of the ingest API follow
/// (`deviceId`, `metadata`, `readings`), so that the line can be sent again unchanged.
///
/// The file is opened for each line, under a lock ([`Self::lock`]), so that another process may take the file
/// away in between.
#[derive(Debug, Clone)]
pub struct DeadLetters {
    path: Arc<PathBuf>,
    max_bytes: u64,
    clock: Clock,
    /// Serializes the appends of this process.
    turn: Arc<Mutex<()>>,
    /// The letters of readings that are stored here too.
    copies: Option<Arc<Self>>,
    /// Whether a follower deletes in the copies too, in the order of the log.
    has_follower: bool,
    /// Held while [`Self::delete_followed`] runs.
    followed: Arc<tokio::sync::Mutex<()>>,
}

impl DeadLetters {
    /// Appends to the file at `path`.
    ///
    /// The first refused reading creates it. It has at most `max_bytes`, together with the file that an
    /// interrupted retry has left.
    pub fn new(path: PathBuf, max_bytes: u64, clock: Clock) -> Self {
        let (path, turn, followed) = (Arc::new(path), Arc::default(), Arc::default());
        Self { path, max_bytes, clock, turn, copies: None, has_follower: false, followed }
    }

    /// Has deletions remove their readings from `copies` too, the letters of readings that are stored here.
    ///
    /// Readings in `copies` are not counted, because the stored ones are. With a follower of the log, which
    /// adds to `copies`, they are removed when a deletion is accepted.
    #[must_use]
    pub fn with_copies(self, copies: Self, has_follower: bool) -> Self {
        Self { copies: Some(copies.into()), has_follower, ..self }
    }

    /// The size of the letters, in bytes; see [`Self::bytes_at`].
    pub fn bytes(&self) -> u64 {
        Self::bytes_at(&self.path)
    }

    /// The size of the letters in the file at `path`, in bytes.
    ///
    /// The file that a retry has taken counts too, until the retry has ended well.
    #[must_use]
    pub fn bytes_at(path: &Path) -> u64 {
        let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
        bytes(path) + bytes(&Self::taken_path(path))
    }

    /// Whether no letter is left for a deletion: also none in the file of a retry, and none in the copies.
    pub(super) fn is_empty(&self) -> bool {
        let is_empty = |path: &Path| match std::fs::metadata(path) {
            Ok(file) => file.len() == 0,
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        let are_empty = is_empty(&self.path) && is_empty(&Self::taken_path(&self.path));
        are_empty && self.copies.as_deref().is_none_or(Self::is_empty)
    }

    /// The size at which the file is full.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Locks the file at `path` for a change: a line is added, or the file is taken away. Waits for the lock.
    ///
    /// # Errors
    /// When the lock file, which is in the same folder, cannot be opened or locked. The error names it.
    pub fn lock(path: &Path) -> std::io::Result<File> {
        let path = path.with_extension("lock");
        let lock = open_regular_with(&path, File::options().write(true).create(true).truncate(false));
        let lock = lock.map_err(named(&path))?;
        lock.lock().map_err(named(&path))?;
        Ok(lock)
    }

    /// Appends a bucket, and the stored values that it was to replace.
    ///
    /// When this returns, its lines survive a crash.
    pub(super) async fn append(
        &self,
        write: &Arc<BucketWrite>,
        replaced: &Arc<Contents>,
        reason: &'static str,
        detail: &str,
    ) -> std::io::Result<()> {
        let (this, write, replaced, detail) =
            (self.clone(), Arc::clone(write), Arc::clone(replaced), detail.to_owned());
        blocking(move || {
            let lines = lines_of(&write, &replaced, reason, &detail, this.clock.now_ms())?;
            this.append_lines(lines.into_iter().map(Ok))
        })
        .await
    }

    /// Appends letters. When this returns, they survive a crash.
    ///
    /// # Errors
    /// When the file cannot be written or is full. Some of the letters may be in the file nevertheless.
    pub async fn append_letters(&self, letters: Vec<Letter>) -> std::io::Result<()> {
        let this = self.clone();
        blocking(move || {
            let refused_at = rfc3339(this.clock.now_ms());
            this.append_lines(letters.iter().map(|letter| letter.line(&refused_at).map_err(Into::into)))
        })
        .await
    }

    /// Removes the readings that a deletion selects, and returns their number.
    ///
    /// When this returns, they do not come back after a crash.
    ///
    /// The file that a running retry has taken stays as it is: the retry sends its readings after the
    /// deletion.
    ///
    /// # Errors
    /// When a file cannot be locked, read or written.
    pub async fn delete(&self, deletion: &Deletion) -> std::io::Result<u64> {
        let (this, deletion) = (self.clone(), deletion.clone());
        blocking(move || {
            let delete = |folder: &OsFolder, name: &str| delete_of(folder, name, &deletion);
            if let Some(copies) = this.copies.as_ref().filter(|_| !this.has_follower) {
                copies.each_file(delete)?;
            }
            this.each_file(delete)
        })
        .await
    }

    /// Removes the readings that a deletion selects from the letters of a follower.
    ///
    /// This is for a deletion that was just accepted: later the file may have letters of readings that follow
    /// the deletion. So it waits for no other one. If it does nothing, the follower removes them when it
    /// reaches the deletion.
    pub(super) async fn delete_followed(&self, deletion: &Deletion) {
        let Some(copies) = self.copies.as_ref().filter(|_| self.has_follower) else { return };
        let Ok(_alone) = self.followed.try_lock() else { return };
        if let Err(error) = copies.delete(deletion).await {
            tracing::warn!(%error, "cannot remove deleted readings from the dead letters of forwarding yet");
        }
    }

    /// Counts the readings that [`Self::delete`] would remove.
    ///
    /// # Errors
    /// When a file cannot be locked or read.
    pub async fn count(&self, deletion: &Deletion) -> std::io::Result<u64> {
        let (this, deletion) = (self.clone(), deletion.clone());
        blocking(move || this.each_file(|folder, name| count_of(folder, name, &deletion))).await
    }

    /// Adds up what `of` returns for the file, and for the file of a retry that no process holds.
    fn each_file(&self, of: impl Fn(&OsFolder, &str) -> std::io::Result<u64>) -> std::io::Result<u64> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = Self::taken_path(&self.path);
        if !self.path.try_exists()? && !taken.try_exists()? {
            return Ok(0);
        }
        let _lock = Self::lock(&self.path)?;
        let of = |path: &Path| {
            let (folder, name) = OsFolder::of_file(path)?;
            if path.try_exists()? { of(&folder, name) } else { Ok(0) }
        };
        let of_file = of(&self.path)?;
        match self.left_by_retry()? {
            Some(_locked) => Ok(of_file + of(&taken)?),
            None => Ok(of_file),
        }
    }

    /// Opens and locks the file that an interrupted retry has left.
    ///
    /// `None`: there is none, or a running retry holds it. The caller holds [`Self::lock`], so that no retry
    /// begins meanwhile.
    fn left_by_retry(&self) -> std::io::Result<Option<File>> {
        let file = match open_regular(&Self::taken_path(&self.path)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The path of the file that a retry of the file at `path` takes away.
    #[must_use]
    pub fn taken_path(path: &Path) -> PathBuf {
        path.with_extension("retrying.ndjson")
    }

    fn append_lines(&self, lines: impl IntoIterator<Item = std::io::Result<Vec<u8>>>) -> std::io::Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let _lock = Self::lock(&self.path)?;
        let (folder, name) = OsFolder::of_file(&self.path)?;
        // The file of a running retry does not count: the retry may wait for space in the log, which the
        // refused readings take until they are in a dead-letter file.
        let left = self.left_by_retry()?.map_or(Ok(0), |file| file.metadata().map(|file| file.len()))?;
        file::add_lines(&folder, name, lines, self.max_bytes, left)
    }

    /// Renames the file at `path` to `taken`, in the same folder, so that later lines go to a new file.
    /// Returns the renamed file, locked.
    ///
    /// If an interrupted retry has left `taken`, this adds the lines of the file at `path` to it. So the
    /// lines of earlier refusals stay in front of those of later refusals. `None`: neither file exists. Then
    /// this creates no lock file either.
    ///
    /// # Errors
    /// When a file cannot be locked, renamed or opened. `WouldBlock`: another process holds `taken`.
    pub fn take(path: &Path, taken: &Path) -> std::io::Result<Option<File>> {
        if !path.try_exists()? && !taken.try_exists()? {
            return Ok(None);
        }
        let _lock = Self::lock(path)?;
        let ((folder, name), (_, taken_name)) = (OsFolder::of_file(path)?, OsFolder::of_file(taken)?);
        if !file::take(&folder, name, taken_name)? {
            return Ok(None);
        }
        let file = open_regular(taken)?;
        file.try_lock()?;
        file::gather(&folder, name, taken_name)?;
        Ok(Some(file))
    }

    /// Appends the lines at the byte ranges `kept` of `taken` to the file at `path`, then deletes `taken`. A
    /// crash in between leaves both files, and loses no line.
    ///
    /// # Errors
    /// When a file cannot be locked, read, written or deleted.
    pub fn put_back(path: &Path, taken: &Path, kept: &[Range<u64>]) -> std::io::Result<()> {
        let _lock = Self::lock(path)?;
        let ((folder, name), (_, taken)) = (OsFolder::of_file(path)?, OsFolder::of_file(taken)?);
        file::put_back(&folder, name, taken, kept)
    }
}

/// Runs work on a blocking thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

/// Counts the readings of one file that a deletion selects.
fn count_of(folder: &OsFolder, name: &str, deletion: &Deletion) -> std::io::Result<u64> {
    let mut count = 0;
    file::each_line(folder, name, |line| count += without(line, deletion).1)?;
    Ok(count)
}

/// Removes from one file what a deletion selects, and returns the number of readings.
///
/// Most deletions select nothing. They only read the file, which may be larger than the free disk space. A
/// deletion of whole lines then removes them in place. One of a part of a line has to wait for space.
fn delete_of(folder: &dyn Folder, name: &str, deletion: &Deletion) -> std::io::Result<u64> {
    let (mut deleted, mut freed, mut has_parts) = (0, 0, false);
    file::each_line(folder, name, |line| {
        let (left, count) = without(line, deletion);
        deleted += count;
        freed += match left {
            Change::Keep => 0,
            Change::Remove => line.len(),
            Change::Replace(with) => {
                has_parts = true;
                line.len().saturating_sub(with.len())
            }
        };
    })?;
    if deleted == 0 && freed == 0 {
        folder.sync()?; // an attempt before may have renamed the file and not synced its name
        return Ok(0);
    }
    let change = |line: &[u8]| without(line, deletion).0;
    match file::rewrite(folder, name, &format!("{name}.new"), freed as u64, change) {
        Err(error) if is_disk_full(&error) && !has_parts => file::blank(folder, name, change)?,
        rewritten => rewritten?,
    }
    Ok(deleted)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use super::*;
    use crate::disk::OpenMode;
    use crate::disk::faulty::Disk;
    use crate::model::{Hour, Metric, Sample};
    use crate::wire::readings_only::ReadingsOnly;
    use crate::wire::{Incoming, json};

    fn dead_letters(path: PathBuf, max_bytes: u64) -> DeadLetters {
        DeadLetters::new(path, max_bytes, Clock::fixed(1_776_693_610_000))
    }

    /// Dead letters in a new folder, and their file.
    fn in_a_folder(max_bytes: u64) -> (tempfile::TempDir, PathBuf, DeadLetters) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead-letters.ndjson");
        let letters = dead_letters(path.clone(), max_bytes);
        (folder, path, letters)
    }

    fn refused(metadata: Option<&str>) -> Arc<BucketWrite> {
        let samples = [(10, 0, 1.5), (10, 1, -0.1), (3_599_999, 1, 1e300)];
        let arrived =
            samples.map(|(offset, metric, value)| (Sample { value, offset, metric }, metric == 0 || offset > 10));
        let metrics = vec!["temp".into(), r#"a{b="c",p=\\}"#.into()];
        BucketWrite::new("S1".into(), Hour::of(7_200_000), metadata.map(Into::into), metrics, arrived).into()
    }

    fn lines(path: &Path) -> Vec<String> {
        std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn a_deletion_leaves_its_readings_neither_here_nor_in_a_file_that_no_retry_holds() {
        let (_folder, path, letters) = in_a_folder(1 << 20);
        let taken = DeadLetters::taken_path(&path);
        let append = async || {
            letters.append(&refused(Some(r#"{"floor": 2}"#)), &Arc::default(), "validation", "why").await.unwrap();
        };
        append().await;
        let before = lines(&path).remove(0);
        let held = DeadLetters::take(&path, &taken).unwrap();
        append().await;
        let of = |range_ms, names: &[&str]| {
            let series = crate::model::SeriesFilter::new(names.iter().copied(), []).unwrap();
            Deletion { device: "S1".into(), range_ms, series }
        };
        assert_eq!(letters.delete(&of(None, &["nothing"])).await.unwrap(), 0);
        assert_eq!(letters.delete(&of(Some(0..7_200_011), &["temp"])).await.unwrap(), 1);
        let without_temp = before.replace(r#","temp":1.5"#, "");
        assert_eq!((lines(&path), lines(&taken)), (vec![without_temp], vec![before.clone()]), "a retry runs");
        drop(held);
        assert_eq!(letters.delete(&of(Some(7_200_011..i64::MAX), &[])).await.unwrap(), 2);
        assert_eq!((lines(&path).len(), lines(&taken).len()), (1, 1));
        let other = Deletion::of_device("S10".into());
        assert_eq!(letters.delete(&other).await.unwrap(), 0);
        assert_eq!(letters.delete(&Deletion::of_device("S1".into())).await.unwrap(), 2);
        assert_eq!((lines(&path).len(), lines(&taken).len()), (0, 0));
    }

    #[test]
    fn without_disk_space_whole_lines_are_removed_in_place_and_a_part_of_one_waits() {
        let disk = Disk::new(0);
        let text = || {
            let file = disk.open("letters", OpenMode::Read).unwrap();
            let mut bytes = vec![0; file.len().unwrap() as usize];
            file.fill(&mut bytes, 0).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        let line = |device: &str| {
            let readings = r#"[{"ts":1,"values":{"t":1.0}},{"ts":2,"values":{"t":1.0}}]"#;
            let head = r#""refusedAt":"2026-04-20T14:00:10.000Z","reason":"validation","detail":"""#;
            format!("{{{head},\"deviceId\":\"{device}\",\"readings\":{readings}}}\n")
        };
        let before = ["a", "b", "a"].map(line).concat();
        (&disk as &dyn Folder).replace("letters", before.as_bytes()).unwrap();
        disk.set_free_bytes(9);
        let part = Deletion { device: "a".into(), range_ms: Some(0..2), series: crate::model::SeriesFilter::ALL };
        assert_eq!(delete_of(&disk, "letters", &part).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(text(), before);
        assert_eq!(delete_of(&disk, "letters", &Deletion::of_device("a".into())).unwrap(), 4);
        assert_eq!(text(), format!("{}\n{}", " ".repeat(line("a").len() - 1), line("b")));
        disk.heal();
        assert_eq!(delete_of(&disk, "letters", &Deletion::of_device("c".into())).unwrap(), 0);
        assert_eq!(text(), line("b"), "what was removed takes no more space");
        disk.set_full_error(ErrorKind::QuotaExceeded);
        disk.fill_for(0, 1);
        assert_eq!(delete_of(&disk, "letters", &Deletion::of_device("b".into())).unwrap(), 2);
        assert_eq!(text(), "");
    }

    #[tokio::test]
    async fn a_line_can_be_sent_to_the_api_as_it_is() {
        let (_folder, path, letters) = in_a_folder(1 << 20);
        let detail = "document failed\nvalidation: \"floor\"";
        letters.append(&refused(Some("{\"floor\":\r\n2}")), &Arc::default(), "validation", detail).await.unwrap();
        letters.append(&refused(None), &Arc::default(), "too_large", "").await.unwrap();
        let lines = lines(&path);
        assert_eq!(lines.len(), 2);
        for (line, metadata) in lines.iter().zip([r#"{"floor":  2}"#, "-"]) {
            let mut found = Vec::new();
            let mut sink = ReadingsOnly(|Incoming { device, metadata, ts_ms, values, .. }: Incoming<'_>| {
                found.push(format!("{device} {} {} {values:?}", metadata.unwrap_or("-"), ts_ms.unwrap()));
            });
            json::parse(line.as_bytes(), &json::Options::default(), &mut sink).unwrap();
            let labelled = format!("{:?}", r#"a{b="c",p=\\}"#);
            let expected = [
                format!(r#"S1 {metadata} 7200010 [({labelled}, -0.1), ("temp", 1.5)]"#),
                format!("S1 {metadata} 10799999 [({labelled}, 1e300)]"),
            ];
            assert_eq!(found, expected);
        }
        let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!((&line["reason"], &line["detail"]), (&"validation".into(), &detail.into()));
        assert_eq!(line["refusedAt"], "2026-04-20T14:00:10.000Z");
    }

    #[tokio::test]
    async fn a_line_has_where_the_measurement_of_a_metric_ends() {
        let (_folder, path, letters) = in_a_folder(1 << 20);
        let of_measurements = [("cpu_idle", 3), ("cpu_x", 0), ("disk_free", 4), ("mem_free", 3)];
        let metrics = of_measurements.map(|(name, bytes)| Metric::of_measurement(name, bytes)).to_vec();
        let arrived = (0..4).map(|metric| (Sample { value: 1.0, offset: 10, metric }, metric == 0));
        let bucket = Arc::new(BucketWrite::new("S1".into(), Hour(0), None, metrics, arrived));
        letters.append(&bucket, &Arc::default(), "validation", "").await.unwrap();
        let series = crate::model::SeriesFilter::new(["mem_free"], []).unwrap();
        assert_eq!(letters.delete(&Deletion { device: "S1".into(), range_ms: None, series }).await.unwrap(), 1);
        let mut found = Vec::new();
        let mut sink = ReadingsOnly(|Incoming { values, measurement_bytes, .. }: Incoming<'_>| {
            found.push(format!("{measurement_bytes} {values:?}"));
        });
        json::parse(lines(&path)[0].as_bytes(), &json::Options::default(), &mut sink).unwrap();
        assert_eq!(found, [r#"0 [("cpu_x", 1.0)]"#, r#"3 [("cpu_idle", 1.0)]"#, r#"4 [("disk_free", 1.0)]"#]);
        let all = Deletion::of_device("S1".into());
        assert_eq!((letters.count(&all).await.unwrap(), letters.delete(&all).await.unwrap()), (1, 1), "one instant");
    }

    #[tokio::test]
    async fn an_instant_of_more_metrics_than_a_reading_has_becomes_several_readings() {
        let (_folder, path, letters) = in_a_folder(1 << 20);
        let metrics: Vec<Metric> = (0..600).map(|nth| format!("m{nth}").into()).collect();
        let arrived = (0..600).map(|metric| (Sample { value: 1.0, offset: 10, metric }, metric == 0));
        let bucket = Arc::new(BucketWrite::new("S1".into(), Hour(0), None, metrics, arrived));
        letters.append(&bucket, &Arc::default(), "validation", "").await.unwrap();
        let mut found = Vec::new();
        let mut sink = ReadingsOnly(|Incoming { ts_ms, values, .. }: Incoming<'_>| found.push((ts_ms, values.len())));
        json::parse(lines(&path)[0].as_bytes(), &json::Options::default(), &mut sink).unwrap();
        assert_eq!(found, [(Some(10), 256), (Some(10), 256), (Some(10), 88)]);
        assert_eq!(letters.count(&Deletion::of_device("S1".into())).await.unwrap(), 1, "one instant");
    }

    #[tokio::test]
    async fn a_large_bucket_becomes_several_lines_each_with_what_it_was_to_replace() {
        let (_folder, path, letters) = in_a_folder(1 << 30);
        let sample = |offset: u32, value: f64| Sample { value, offset, metric: 0 };
        let bucket = |count: u32, name: &str| {
            let arrived = (0..count).map(|offset| (sample(offset, 1.0), true));
            Arc::new(BucketWrite::new("S1".into(), Hour(0), None, vec![name.into()], arrived))
        };
        let replaced = Contents::new(vec!["t".into()], vec![sample(999, 2.0), sample(1_000, 3.0)]);
        letters.append(&bucket(2_500, "t"), &replaced.into(), "validation", "").await.unwrap();
        let lines_of = |path| -> Vec<serde_json::Value> {
            lines(path).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let found = lines_of(&path);
        let readings = |line: &serde_json::Value| line["readings"].as_array().unwrap().len();
        assert_eq!(found.iter().map(readings).collect::<Vec<_>>(), [1_000, 1_000, 500]);
        let replaces: Vec<_> = found.iter().map(|line| line["replaces"].clone()).collect();
        assert_eq!(replaces[0], serde_json::json!({"999": {"t": 2.0}}));
        assert_eq!(replaces[1], serde_json::json!({"1000": {"t": 3.0}}));
        assert!(replaces[2].is_null());

        let range_ms = Some(999..1_001);
        let deletion = Deletion { device: "S1".into(), range_ms, series: crate::model::SeriesFilter::ALL };
        assert_eq!(letters.delete(&deletion).await.unwrap(), 2);
        assert!(lines_of(&path).iter().all(|line| line["replaces"].is_null()));

        std::fs::remove_file(&path).unwrap();
        letters.append(&bucket(1_000, &"x".repeat(4_000)), &Arc::default(), "validation", "").await.unwrap();
        assert!(lines(&path).iter().all(|line| line.len() < 1 << 20), "{:?}", lines(&path).len());
    }

    #[tokio::test]
    async fn a_line_that_was_cut_off_damages_no_other_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead-letters.ndjson");
        dead_letters(path.clone(), 1 << 20).append(&refused(None), &Arc::default(), "one", "").await.unwrap();
        dead_letters(path.clone(), 1 << 20).append(&refused(None), &Arc::default(), "two", "").await.unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(br#"{"deviceId":"S"#).unwrap();
        let letters = dead_letters(path.clone(), 1 << 20);
        letters.append(&refused(None), &Arc::default(), "three", "").await.unwrap();
        letters.append(&refused(None), &Arc::default(), "four", "").await.unwrap();
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
    async fn a_failed_append_is_an_error_and_the_next_one_tries_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later").join("dead-letters.ndjson");
        let letters = dead_letters(path.clone(), 1 << 20);
        letters.append(&refused(None), &Arc::default(), "one", "").await.unwrap_err();
        std::fs::create_dir(path.parent().unwrap()).unwrap();
        letters.append(&refused(None), &Arc::default(), "two", "").await.unwrap();
        assert_eq!(lines(&path).len(), 1);
    }

    #[tokio::test]
    async fn a_line_that_cannot_be_synced_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dead-letters.ndjson");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap(); // accepts writes, and fails to sync
        let refused = dead_letters(path, 1 << 20).append(&refused(None), &Arc::default(), "one", "").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    }

    #[tokio::test]
    async fn the_file_that_cannot_be_opened_is_named() {
        for name in ["dead-letters.lock", "dead-letters.ndjson"] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join(name)).unwrap();
            let letters = dead_letters(folder.path().join("dead-letters.ndjson"), 1 << 20);
            let refused = letters.append(&refused(None), &Arc::default(), "one", "").await.unwrap_err();
            assert!(refused.to_string().contains(&format!("{name}: this is a folder")), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_full_file_accepts_no_line_until_a_retry_takes_it_and_only_while_the_retry_runs() {
        let (_folder, path, letters) = in_a_folder(600);
        letters.append(&refused(None), &Arc::default(), "one", "").await.unwrap();
        let error = loop {
            if let Err(error) = letters.append(&refused(None), &Arc::default(), "more", "").await {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        let (full, before) = (letters.bytes(), lines(&path));
        assert!(full <= 600);
        let held = DeadLetters::take(&path, &DeadLetters::taken_path(&path)).unwrap();
        assert_eq!(letters.bytes(), full);
        letters.append(&refused(None), &Arc::default(), "next", "").await.unwrap();
        assert_eq!((before.iter().all(|line| !line.contains("next")), lines(&path).len()), (true, 1));
        drop(held); // the retry is interrupted
        let error = letters.append(&refused(None), &Arc::default(), "last", "").await.unwrap_err();
        let left = format!("(600 bytes, {full} of them left by a retry)");
        assert!(error.kind() == ErrorKind::StorageFull && error.to_string().ends_with(&left), "{error}");
        assert!(letters.bytes() > full);
    }

    #[test]
    fn a_file_that_one_retry_holds_is_refused_to_another() {
        let folder = tempfile::tempdir().unwrap();
        let [path, taken] = ["current", "taken"].map(|name| folder.path().join(name));
        assert!(DeadLetters::take(&path, &taken).unwrap().is_none());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the service could not open a lock of root");
        std::fs::write(&path, "one\n").unwrap();
        let first = DeadLetters::take(&path, &taken).unwrap();
        std::fs::write(&path, "two\n").unwrap(); // refused meanwhile
        let refused = DeadLetters::take(&path, &taken).unwrap_err();
        assert_eq!((refused.kind(), first.is_some()), (ErrorKind::WouldBlock, true));
        drop(first);
        assert!(DeadLetters::take(&path, &taken).unwrap().is_some());
        assert_eq!((lines(&taken), path.exists()), (vec!["one".to_owned(), "two".to_owned()], false));
    }
}
