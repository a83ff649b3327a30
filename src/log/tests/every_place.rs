//! Damage at every byte of every file: the log refuses to open, or loses no record that the checkpoint
//! covers; and quarantine removes exactly the damaged records.

use crate::disk::OpenMode;
use crate::log::Reader;
use crate::log::quarantine::{repair_checkpoint_in, set_aside_in};
use crate::log::record;
use crate::log::recovery::inspect_folder;

use super::*;

const CHECKPOINT: &str = "checkpoint";

/// The files of a log of three segments, and their records.
struct Files {
    /// The names and bytes. The checkpoint is the last.
    files: Vec<(String, Vec<u8>)>,
    /// The file of each record, the range from its first byte to the end of its payload, and the payload.
    records: Vec<(usize, std::ops::Range<usize>, Vec<u8>)>,
}

impl Files {
    /// A log that has saved its durable end, as it does about a second after the last append.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (log, _) = open(dir.path());
        for id in 0..8 {
            append(&log, batch(id, id % 3 + 1)).unwrap(); // three records to a segment
        }
        log.cut(Position(0)).unwrap();
        let bases = segment::list(&*folder(dir.path())).unwrap();
        let names = bases.iter().map(|&base| segment::name(base)).chain([CHECKPOINT.to_owned()]);
        let files: Vec<_> = names.map(|name| (name.clone(), std::fs::read(dir.path().join(name)).unwrap())).collect();
        let mut records = Vec::new();
        for (file, (&base, (_, bytes))) in bases.iter().zip(&files).enumerate() {
            let mut at = segment::Header::BYTES;
            while let Some((header, payload)) = record::decode(&bytes[at..], Position(base.0 + at as u64)) {
                records.push((file, at..at + record::Header::BYTES + payload.len(), payload.to_vec()));
                at += header.record_bytes();
            }
        }
        let in_last = records.iter().filter(|(file, ..)| *file == 2).count();
        assert_eq!(
            (files.len(), records.len(), in_last),
            (4, 8, 2),
            "a first, a middle and a last record of each kind"
        );
        Self { files, records }
    }

    fn disk(&self) -> Disk {
        let disk = Disk::new(0);
        self.files.iter().for_each(|(name, bytes)| put(&disk, name, bytes));
        disk
    }

    /// The payloads of the records that share no byte with a range of a file.
    fn outside(&self, file: usize, damaged: &std::ops::Range<usize>) -> Vec<Vec<u8>> {
        let is_hit = |record: &std::ops::Range<usize>| record.start < damaged.end && damaged.start < record.end;
        let kept = self.records.iter().filter(|(in_file, record, _)| *in_file != file || !is_hit(record));
        kept.map(|(.., payload)| payload.clone()).collect()
    }

    fn all(&self) -> Vec<Vec<u8>> {
        self.records.iter().map(|(.., payload)| payload.clone()).collect()
    }

    /// Opens a damaged log, after quarantine if it refuses to open, and compares its records with `kept`.
    fn check(&self, disk: &Disk, kept: &[Vec<u8>], what: &str) {
        match recover(disk) {
            Ok(_) => assert_eq!(read(disk), self.all(), "{what}: it opened without all records"),
            Err(LogError::Version { .. }) => {}
            Err(LogError::Damaged { .. } | LogError::BadCheckpoint { .. }) => {
                let aside = Disk::new(0);
                if let Err(LogError::BadCheckpoint { .. }) = inspect_folder(disk) {
                    repair_checkpoint_in(disk, &aside).unwrap();
                }
                for damage in inspect_folder(disk).unwrap().damage {
                    set_aside_in(disk, &damage, &aside).unwrap();
                }
                assert_eq!(read(disk), kept, "{what}: after quarantine");
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

fn put(disk: &Disk, name: &str, bytes: &[u8]) {
    disk.open(name, OpenMode::Truncate).unwrap().write_all_at(bytes, 0).unwrap();
}

fn read(disk: &Disk) -> Vec<Vec<u8>> {
    let (recovery, _) = recover(disk).unwrap();
    let mut reader = Reader::new(Arc::new(disk.clone()), recovery.start);
    std::iter::from_fn(|| reader.next(recovery.end).unwrap().map(|record| record.payload.to_vec())).collect()
}

#[test]
fn a_flipped_bit_costs_at_most_its_record() {
    let log = Files::new();
    for (file, (name, whole)) in log.files.iter().enumerate() {
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            let disk = log.disk();
            put(&disk, name, &bytes);
            log.check(&disk, &log.outside(file, &(at..at + 1)), &format!("bit flipped in byte {at} of {name}"));
        }
    }
}

#[test]
fn a_segment_zeroed_from_any_byte_on_is_damage() {
    let log = Files::new();
    for (file, (name, whole)) in log.files.iter().enumerate().take(3) {
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at..].fill(0);
            let disk = log.disk();
            put(&disk, name, &bytes);
            // A checksum or a payload may already end with zeros.
            let changed = bytes.iter().zip(whole).position(|(now, before)| now != before).unwrap_or(whole.len());
            log.check(&disk, &log.outside(file, &(changed..whole.len())), &format!("{name} zeroed from byte {at} on"));
        }
    }
}

#[test]
fn a_file_cut_off_at_any_byte_is_damage_or_costs_nothing() {
    let log = Files::new();
    for (file, (name, whole)) in log.files.iter().enumerate() {
        for kept in 0..whole.len() {
            let disk = log.disk();
            disk.open(name, OpenMode::Write).unwrap().set_len(kept as u64).unwrap();
            let damaged = kept - kept % record::ALIGNMENT..whole.len(); // a record without its padding is not whole
            log.check(&disk, &log.outside(file, &damaged), &format!("{name} cut off at byte {kept}"));
        }
    }
}

#[test]
fn deleted_files_are_damage_or_cost_nothing() {
    let log = Files::new();
    for deleted in [&[0][..], &[1], &[2], &[1, 2], &[0, 1, 2], &[0, 1], &[3]] {
        let disk = log.disk();
        for &file in deleted {
            disk.remove(&log.files[file].0).unwrap();
        }
        let kept = log.records.iter().filter(|(file, ..)| !deleted.contains(file));
        let kept: Vec<Vec<u8>> = kept.map(|(.., payload)| payload.clone()).collect();
        log.check(&disk, &kept, &format!("deleted: {deleted:?}"));
    }
}
