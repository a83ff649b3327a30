//! A copy of the log for a backup, made while another process writes the log.
//!
//! A [`Snapshot`] holds the checkpoint, the position of the follower, and the open files of all segments. It
//! reads the checkpoint first: all readings before it are stored by then. A cut may remove a segment before
//! the snapshot opens it. Then the snapshot is taken again. A segment that is open stays readable without a
//! name, because the log recycles no file that a reader holds.
//!
//! The copy of the newest segment ends behind its last whole record. If the writer was writing a group there,
//! the copy may have a torn tail, in which nothing was acknowledged. So the copy is recovered like a log
//! after a crash: that cuts off the tail, and saves the end of the log in the checkpoint. With this end, a
//! later opening of the copy notices any missing segment, also the last one.
//!
//! **With a store.** A backup takes the snapshot of the log first, and then that of the store. So both
//! together have each reading that was acknowledged before. Readings that both have are stored once. A
//! deletion between the two snapshots would be undone in part: the store's snapshot lacks the readings, but
//! the log's copy has the readings and lacks the deletion. So the backup asks
//! [`Snapshot::has_later_deletion`], and starts again if there is one.

use std::io::ErrorKind;
use std::path::Path;

use super::checkpoint::{Checkpoint, CheckpointFile};
use super::follower::{self, Followed};
use super::record::Kind;
use super::segment::{self, Header};
use super::slots::{self, SlotFile};
use super::window::{Window, copy};
use super::{LogError, Position, recovery};
use crate::disk::{Folder, OpenFile, OpenMode, OsFolder};

/// The most attempts at a snapshot.
///
/// A cut that removes a segment meanwhile makes an attempt fail.
const ATTEMPTS: usize = 100;

/// The state of a log at one moment, from which a copy is made.
#[derive(Debug)]
pub struct Snapshot {
    folder: OsFolder,
    checkpoint: Checkpoint,
    followed: Option<Followed>,
    segments: Vec<OpenSegment>,
}

#[derive(Debug)]
struct OpenSegment {
    base: Position,
    file: Box<dyn OpenFile>,
    /// The length of the file when the snapshot was taken; for the newest segment, up to its last record.
    bytes: u64,
}

impl OpenSegment {
    const fn end(&self) -> Position {
        Position(self.base.0 + self.bytes)
    }

    /// Sets `bytes` to the end of the last whole record.
    ///
    /// The end is at or behind the durable end of the log.
    fn leave_out_room(&mut self, folder: &OsFolder, durable: Position) -> Result<(), LogError> {
        let path = folder.path_of(&segment::name(self.base));
        let known = durable.0.saturating_sub(self.base.0);
        let segment =
            recovery::OpenSegment { path: &path, base: self.base, file: &*self.file, bytes: self.bytes, next: None };
        self.bytes = recovery::end_of_records(&segment, known)?;
        Ok(())
    }

    /// Whether there is a deletion that ends after `end` among the records from the offset `at` on.
    ///
    /// The search stops at the first bytes that are no good record, because the writer is writing there.
    fn has_deletion_after(&self, end: Position, mut at: u64) -> std::io::Result<bool> {
        let mut window = Window::new(&*self.file, self.bytes);
        while let Some((header, _)) = window.record(at, Position(self.base.0 + at))? {
            at += header.record_bytes() as u64;
            if header.kind == Kind::Deletion && self.base.0 + at > end.0 {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Snapshot {
    /// Takes a snapshot of the log in `dir`.
    ///
    /// It has all records that were acknowledged before the call.
    ///
    /// # Errors
    /// When `dir` has no log, or a file cannot be read.
    pub fn take(dir: &Path) -> Result<Self, LogError> {
        let folder = OsFolder::new(dir);
        for _ in 0..ATTEMPTS {
            let checkpoint = slots::load::<Checkpoint>(&folder)?.unwrap_or_default();
            let followed = follower::load(&folder)?; // first, so that the position is not beyond the segments
            let mut segments = open_all(&folder)?;
            if segments.first().is_some_and(|oldest| oldest.base <= checkpoint.position) {
                if let Some(newest) = segments.last_mut() {
                    newest.leave_out_room(&folder, checkpoint.durable)?;
                }
                return Ok(Self { folder, checkpoint, followed, segments });
            }
        }
        let missing = std::io::Error::new(ErrorKind::NotFound, "no segment has the position of the checkpoint");
        Err(LogError::io("read", dir)(missing))
    }

    /// Whether a deletion has entered the log since the snapshot, or was being written then.
    ///
    /// Also true if a cut has removed the snapshot's newest segment since, because its later records are
    /// unknown.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn has_later_deletion(&self) -> Result<bool, LogError> {
        let Some(newest) = self.segments.last() else { return Ok(true) };
        let since: Vec<_> = open_all(&self.folder)?.into_iter().filter(|segment| segment.base >= newest.base).collect();
        if since.first().is_none_or(|first| first.base != newest.base) {
            return Ok(true); // a cut has removed it already, so the records in it are unknown
        }
        for segment in &since {
            let path = self.folder.path_of(&segment::name(segment.base));
            // The durable end of the checkpoint is the end of a record.
            let known = self.checkpoint.durable.0.saturating_sub(segment.base.0).max(Header::BYTES as u64);
            if segment.has_deletion_after(newest.end(), known).map_err(LogError::io("read", &path))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Copies the log to the folder `to`, which has no log.
    ///
    /// When this returns, the copy survives a crash.
    ///
    /// # Errors
    /// When a file cannot be read or written, or the log is damaged.
    pub fn copy_to(&self, to: &Path) -> Result<(), LogError> {
        let target = OsFolder::new(to);
        target.make().map_err(LogError::io("create", to))?;
        for segment in &self.segments {
            let name = segment::name(segment.base);
            let (from, to) = (self.folder.path_of(&name), target.path_of(&name));
            let file = target.open(&name, OpenMode::Truncate).map_err(LogError::io("create", &to))?;
            copy((&*segment.file, &from), 0..segment.bytes, (&*file, &to), 0)?;
            file.sync().map_err(LogError::io("sync", &to))?;
        }
        if let Some(followed) = self.followed {
            SlotFile::create(&target, followed)?;
        }
        CheckpointFile::create(&target, self.checkpoint)?; // syncs the folder
        recovery::recover(&target).map(drop)
    }
}

/// Opens all segments, oldest first.
///
/// If a cut removes a segment meanwhile, that segment and all before it are left out.
fn open_all(folder: &OsFolder) -> Result<Vec<OpenSegment>, LogError> {
    let mut segments = Vec::new();
    for base in segment::list(folder)? {
        let name = segment::name(base);
        let file = match folder.open(&name, OpenMode::Hold) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                segments.clear();
                continue;
            }
            opened => opened.map_err(LogError::io("open", &folder.path_of(&name)))?,
        };
        let bytes = file.len().map_err(LogError::io("read", &folder.path_of(&name)))?;
        segments.push(OpenSegment { base, file, bytes });
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use tempfile::TempDir;

    use super::super::batch::{BatchView, Step};
    use super::super::tests::{append, batch, open, read_all};
    use super::super::{BegunDeletion, DeletionRecord, recovery};
    use super::*;
    use crate::model::{Deletion, SeriesFilter};

    fn delete(log: &super::super::Log) {
        let deletion = Deletion { device: "d".into(), range_ms: None, series: SeriesFilter::ALL };
        let begun = BegunDeletion { id: 1, by: "me".into(), deletion: Arc::new(deletion), from: None };
        append(log, DeletionRecord::Begun(begun).to_batch()).unwrap();
    }

    /// The number of a batch of this test.
    fn number_of(payload: &[u8]) -> u32 {
        let first = BatchView::new(payload).unwrap().steps.next().unwrap().unwrap();
        let Step::Group { device, .. } = first else { panic!("{first:?}") };
        device.as_str().strip_prefix("device-").unwrap().parse().unwrap()
    }

    #[test]
    fn the_copy_of_a_log_that_is_written_and_cut_has_all_records_from_its_checkpoint() {
        let place = TempDir::new().unwrap();
        let dir = place.path().join("log");
        let (log, _) = open(&dir);
        append(&log, batch(0, 1)).unwrap();
        // The last record that is acknowledged, and the last one that a cut may have removed.
        let (acknowledged, cut, stopped) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (log, acknowledged, cut, stopped) = (&log, &acknowledged, &cut, &stopped);
            scope.spawn(move || {
                for id in 1..100_000 {
                    append(log, batch(id, 1)).unwrap();
                    acknowledged.store(id, Ordering::SeqCst);
                    if id % 40 == 0 {
                        cut.store(id, Ordering::SeqCst);
                        log.cut(log.usage().readable).unwrap();
                    }
                    if stopped.load(Ordering::SeqCst) {
                        break;
                    }
                }
            });
            for round in 0..30 {
                let before = acknowledged.load(Ordering::SeqCst);
                let snapshot = Snapshot::take(&dir).unwrap();
                let stored = cut.load(Ordering::SeqCst);
                let copied = place.path().join(format!("copy-{round}"));
                snapshot.copy_to(&copied).unwrap();
                assert_eq!(recovery::inspect(&copied).unwrap().damage, []);
                let (copy, found) = open(&copied);
                let copied: Vec<u32> = read_all(&copy, found.start).iter().map(|payload| number_of(payload)).collect();
                assert!(copied.windows(2).all(|pair| pair[1] == pair[0] + 1), "{copied:?}");
                assert!(copied.first().is_none_or(|&first| first <= stored + 1), "{stored}: {copied:?}");
                assert!(copied.last().copied().unwrap_or(stored) >= before, "{before}, {stored}: {copied:?}");
            }
            stopped.store(true, Ordering::SeqCst);
        });
    }

    #[test]
    fn a_deletion_after_the_snapshot_is_noticed_also_in_a_later_segment() {
        for batches in [0, 1, 30] {
            let place = TempDir::new().unwrap();
            let (log, _) = open(place.path());
            append(&log, batch(0, 1)).unwrap();
            delete(&log);
            let before = Snapshot::take(place.path()).unwrap();
            (0..batches).for_each(|id| append(&log, batch(id, 1)).unwrap());
            assert!(!before.has_later_deletion().unwrap(), "{batches}");
            delete(&log);
            assert!(before.has_later_deletion().unwrap(), "{batches}");
            assert!(!Snapshot::take(place.path()).unwrap().has_later_deletion().unwrap());
        }
    }

    #[test]
    fn a_segment_that_a_cut_removed_may_have_had_a_deletion() {
        let place = TempDir::new().unwrap();
        let (log, _) = open(place.path());
        append(&log, batch(0, 1)).unwrap();
        let before = Snapshot::take(place.path()).unwrap();
        (0..30).for_each(|id| append(&log, batch(id, 1)).unwrap());
        log.cut(log.usage().readable).unwrap();
        assert!(before.has_later_deletion().unwrap());
        let copied = place.path().join("copy");
        before.copy_to(&copied).unwrap();
        let (copy, found) = open(&copied);
        assert_eq!((read_all(&copy, found.start).len(), found.readings), (1, 1));
    }

    #[test]
    fn a_segment_that_a_copy_has_lost_is_noticed_also_the_last_one() {
        let place = TempDir::new().unwrap();
        let (dir, copied) = (place.path().join("log"), place.path().join("copy"));
        let (log, _) = open(&dir);
        append(&log, batch(0, 1)).unwrap();
        let early = Snapshot::take(&dir).unwrap();
        (1..30).for_each(|id| append(&log, batch(id, 1)).unwrap());
        // The snapshot is as if the log had got all segments but the first after the checkpoint was read.
        let snapshot = Snapshot { checkpoint: early.checkpoint, ..Snapshot::take(&dir).unwrap() };
        snapshot.copy_to(&copied).unwrap();
        let bases = segment::list(&OsFolder::new(&copied)).unwrap();
        assert!(bases.len() > 3, "{bases:?}");
        let damage = || recovery::inspect(&copied).unwrap().damage;
        for base in bases {
            let path = copied.join(segment::name(base));
            let bytes = std::fs::read(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            assert_ne!(damage(), [], "{base}");
            std::fs::write(&path, bytes).unwrap();
        }
        assert_eq!(damage(), []);
    }

    #[test]
    fn a_damaged_position_of_the_follower_is_copied_as_the_oldest_record() {
        let place = TempDir::new().unwrap();
        let copied = place.path().join("copy");
        let (log, _) = open(place.path());
        (0..30).for_each(|id| append(&log, batch(id, 1)).unwrap());
        std::fs::write(place.path().join("follower"), [0; 4124]).unwrap();
        Snapshot::take(place.path()).unwrap().copy_to(&copied).unwrap();
        let (copy, found) = open(&copied);
        let followed = copy.follow(Followed { position: found.end, as_of_ms: 7 }).unwrap();
        assert_eq!(read_all(&copy, followed.position).len(), 30);
    }

    #[test]
    fn a_folder_without_a_log_is_refused() {
        let place = TempDir::new().unwrap();
        Snapshot::take(&place.path().join("none")).unwrap_err();
        let refused = Snapshot::take(place.path()).unwrap_err().to_string();
        assert!(refused.contains("no segment has the position of the checkpoint"), "{refused}");
    }
}
