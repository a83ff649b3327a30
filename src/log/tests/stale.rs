//! Old records behind the end of the log, in a recycled file. None of them is ever read, and recovery tells a
//! torn tail from damage as it does without them.

use crate::disk::OpenMode;
use crate::log::Reader;
use crate::log::quarantine::set_aside_in;
use crate::log::record::{self, encode};
use crate::log::recovery::inspect_folder;
use crate::log::spares::is_spare;

use super::*;

const HEADER: usize = Header::BYTES;

/// The positions of the two generations of the file.
const OLD: Position = Position(4_096);
const NEW: Position = Position(1 << 20);

/// The batches of a segment: the same ones in both generations, and a deletion among them.
fn batches() -> Vec<Batch> {
    let mut batches: Vec<Batch> = (0..6).map(|id| batch(id % 2, 2)).collect();
    let deletion = Deletion { device: "device-0".into(), range_ms: None, series: SeriesFilter::ALL };
    let begun = BegunDeletion { id: 1, by: "me".into(), deletion: Arc::new(deletion), from: None };
    batches.insert(3, DeletionRecord::Begun(begun).to_batch());
    batches
}

/// A segment of these batches, each written and synced alone, and the offsets at which its records end.
fn segment_of(base: Position, batches: &[Batch], old_until: u64) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut ends) = (Header::encode(base, old_until).to_vec(), vec![HEADER]);
    for batch in batches {
        let position = Position(base.0 + bytes.len() as u64);
        encode(&mut bytes, position, position, batch.kind(), batch.readings(), batch.payload());
        ends.push(bytes.len());
    }
    (bytes, ends)
}

/// The recycled file of a segment: the bytes of the new segment, and behind them those of the old segment
/// with the batches `old`.
fn file_of(new: &[u8], old: &[Batch]) -> Vec<u8> {
    let (mut bytes, _) = segment_of(OLD, old, 0);
    bytes.resize(full() as usize, 0);
    bytes[..new.len()].copy_from_slice(new);
    bytes
}

/// A disk with this file of a segment.
fn disk_with(file: &[u8]) -> Disk {
    let disk = Disk::new(0);
    disk.open(&segment::name(NEW), OpenMode::Create).unwrap().write_all_at(file, 0).unwrap();
    CheckpointFile::create(&disk, Checkpoint { position: NEW, durable: NEW }).unwrap();
    disk
}

fn recycled(new: &[u8]) -> Disk {
    disk_with(&file_of(new, &batches()))
}

fn read(disk: &Disk) -> Vec<Vec<u8>> {
    let (recovery, _) = recover(disk).unwrap();
    let mut reader = Reader::new(Arc::new(disk.clone()), recovery.start);
    std::iter::from_fn(|| reader.next(recovery.end).unwrap().map(|record| record.payload.to_vec())).collect()
}

/// The length of the file of both generations.
fn full() -> u64 {
    segment_of(OLD, &batches(), 0).0.len() as u64 + 64
}

#[test]
fn the_log_ends_before_old_records_wherever_a_write_was_torn() {
    let batches = batches();
    let (new, ends) = segment_of(NEW, &batches, full());
    let mut others = batches.clone();
    others.rotate_left(1);
    // The old records have the same batches as the new ones at the same places, or other batches.
    for old in [&batches, &others] {
        for count in 0..=batches.len() {
            let (end, next) = (ends[count], ends.get(count + 1).copied().unwrap_or(ends[count]));
            for written in end..=next {
                let file = file_of(&new[..written], old);
                let disk = disk_with(&file);
                let found = inspect_folder(&disk).unwrap();
                assert_eq!(found.damage, [], "{count} records and {written} bytes");
                // If the old file has the same payload here, the new header alone makes the record whole.
                let payload = batches.get(count).map_or(0, |batch| record::Header::BYTES + batch.payload().len());
                let is_whole = payload > 0 && file[end..end + payload] == new[end..end + payload];
                let whole = payloads(&batches[..count + usize::from(is_whole)]);
                assert_eq!(read(&disk), whole, "{count} records and {written} bytes");
                assert_eq!(read(&disk), whole, "opened again");
                if written < end + 16 || is_whole {
                    assert_eq!(found.torn, None, "{count} records and {written} bytes");
                } else if written >= end + record::Header::BYTES {
                    assert_eq!(found.torn.map(|torn| torn.offset), Some(end as u64), "{written} bytes");
                }
            }
        }
    }
}

#[test]
fn old_records_do_not_come_back_when_new_ones_end_where_they_begin() {
    let batches = batches();
    let (new, ends) = segment_of(NEW, &batches, full());
    for count in 0..batches.len() {
        // A torn record, and behind it records of this segment that were written and never acknowledged.
        let mut unacknowledged = new.clone();
        unacknowledged[ends[count] + 9] ^= 1;
        let at = Position(NEW.0 + ends[count] as u64);
        for (batch, &start) in batches.iter().zip(&ends).skip(count + 1) {
            let position = Position(NEW.0 + start as u64);
            let mut record = Vec::new();
            encode(&mut record, position, at, batch.kind(), batch.readings(), batch.payload());
            unacknowledged[start..start + record.len()].copy_from_slice(&record);
        }
        for disk in [recycled(&new[..ends[count]]), recycled(&unacknowledged)] {
            let (recovery, saved) = recover(&disk).unwrap();
            assert_eq!(recovery.end, at);
            let folder: Arc<dyn Folder> = Arc::new(disk.clone());
            let spares = Arc::new(Spares::new(Arc::clone(&folder), 1 << 20, 0));
            let mut appender = Appender::resume(folder, Arc::new(saved), spares, 1 << 20, &recovery).unwrap();
            appender.write(batches[count..=count].iter()).unwrap(); // it ends where the next record of the file begins
            appender.sync().unwrap();
            assert_eq!(read(&disk), payloads(&batches[..=count]));
        }
    }
}

#[test]
fn damage_before_old_records_is_found_and_costs_its_record() {
    let batches = batches();
    let (new, ends) = segment_of(NEW, &batches, full());
    let count = batches.len() - 1;
    for victim in 0..count {
        for at in (ends[victim]..ends[victim + 1]).step_by(5) {
            let mut bytes = new[..ends[count]].to_vec();
            bytes[at] ^= 0x10;
            let disk = recycled(&bytes);
            let end = Position(NEW.0 + ends[count] as u64);
            disk.remove(Checkpoint::NAME).unwrap();
            CheckpointFile::create(&disk, Checkpoint { position: NEW, durable: end }).unwrap();
            let damage = inspect_folder(&disk).unwrap().damage;
            if damage.is_empty() {
                assert_eq!(read(&disk), payloads(&batches[..count]), "byte {at} is padding");
                continue;
            }
            let range = (damage[0].offset as usize, damage[0].bytes as usize);
            assert_eq!((damage.len(), range), (1, (ends[victim], ends[victim + 1] - ends[victim])), "byte {at}");
            set_aside_in(&disk, &damage[0], &Disk::new(0)).unwrap();
            let mut left = batches[..count].to_vec();
            left.remove(victim);
            assert_eq!(read(&disk), payloads(&left), "byte {at}");
        }
    }
}

#[test]
fn a_spare_of_another_log_at_the_same_positions_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    for id in 0..3 {
        append(&log, batch(id, 2)).unwrap();
    }
    let first = segment_path(dir.path(), Position(0));
    let other = dir.path().join("spare-1.new");
    std::fs::copy(&first, &other).unwrap();
    assert!(is_spare("spare-1.new") && !is_spare("segment.new"));
    drop(log);
    std::fs::remove_file(first).unwrap();
    std::fs::remove_file(dir.path().join(Checkpoint::NAME)).unwrap();
    let found = recovery::inspect(dir.path()).unwrap();
    assert_eq!(found.stale, std::slice::from_ref(&other));
    let (log, recovery) = open(dir.path());
    assert!(!other.exists());
    assert_eq!((recovery.end, read_all(&log, recovery.start).len()), (Position(HEADER as u64), 0));
}

/// Appends to a log until its newest file has the size of a segment.
fn append_until_it_has_room(log: &Log, dir: &Path, segment_bytes: u64) -> u32 {
    for id in 0.. {
        append(log, batch(id, 2)).unwrap();
        let newest = segment_path(dir, *segment::list(&*folder(dir)).unwrap().last().unwrap());
        if std::fs::metadata(newest).unwrap().len() == segment_bytes {
            return id + 1;
        }
        assert!(id < 1_000_000, "no segment was begun in a spare");
        std::thread::yield_now();
    }
    unreachable!()
}

#[test]
fn a_log_that_syncs_often_goes_on_in_a_spare_and_ends_without_room() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::of_test(dir.path());
    let (log, recovery) = Log::open(options.clone(), Instruments::default()).unwrap();
    log.check_disk();
    let count = append_until_it_has_room(&log, dir.path(), options.segment_bytes);
    assert_eq!(read_all(&log, recovery.start).len(), count as usize);
    let end = log.usage().readable;
    drop(log);
    let extent = recovery::extent(dir.path()).unwrap().unwrap();
    assert_eq!((extent.start, extent.end), (Position(0), end));
    let lens = std::fs::read_dir(dir.path()).unwrap().map(|file| {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        assert!(!is_spare(&name), "an orderly stop removes spares");
        if name.strip_suffix(".log").is_some() { file.metadata().unwrap().len() } else { 0 }
    });
    assert_eq!(lens.sum::<u64>(), end.0);
    let (_, recovery) = Log::open(options, Instruments::default()).unwrap();
    assert_eq!((recovery.end, recovery.torn), (end, None));
}

#[test]
fn a_backup_of_a_log_with_room_has_only_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let copied = dir.path().join("copy");
    let options = Options::of_test(dir.path());
    let (log, _) = Log::open(options.clone(), Instruments::default()).unwrap();
    let count = append_until_it_has_room(&log, dir.path(), options.segment_bytes);
    Snapshot::take(dir.path()).unwrap().copy_to(&copied).unwrap();
    let bases = segment::list(&*folder(&copied)).unwrap();
    let lens = bases.iter().map(|&base| std::fs::metadata(segment_path(&copied, base)).unwrap().len());
    assert_eq!(lens.sum::<u64>(), log.usage().readable.0);
    let (copy, recovery) = Log::open(Options { dir: copied, ..options }, Instruments::default()).unwrap();
    assert_eq!(read_all(&copy, recovery.start).len(), count as usize);
}

#[test]
fn a_segment_that_a_reader_holds_is_not_recycled() {
    for is_held in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let folder: Arc<dyn Folder> = folder(dir.path());
        let spares = Spares::new(Arc::clone(&folder), 100, 1_000);
        spares.fit(0, 1 << 40);
        let name = segment::name(Position(0));
        std::fs::write(dir.path().join(&name), [7; 120]).unwrap();
        let reader = is_held.then(|| OsFolder::new(dir.path()).open(&name, OpenMode::Hold).unwrap());
        assert!(!spares.recycle(Position(0), 99).unwrap(), "it is too short");
        assert!(spares.recycle(Position(0), 120).unwrap());
        spares.work();
        assert_eq!((spares.is_ready(), folder.names().unwrap().len()), (!is_held, usize::from(!is_held)));
        if let Some(reader) = reader {
            let mut bytes = [0; 200];
            assert_eq!((reader.fill(&mut bytes, 0).unwrap(), bytes[119]), (120, 7), "its bytes stay readable");
        }
    }
}
