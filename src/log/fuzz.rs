//! Invariants fuzzed on the files of a log.

use std::sync::Arc;

use super::checkpoint::{Checkpoint, CheckpointFile};
use super::quarantine::set_aside_in;
use super::recovery::{Damage, inspect_folder, recover};
use super::{LogError, Position, Reader, record, segment, slots};
use crate::disk::faulty::Disk;
use crate::disk::{Folder, OpenMode};

/// Larger damage is not set aside here, because the copy would take that much memory.
const MAX_DAMAGE_BYTES: u64 = 1 << 20;

/// How often damage is set aside at most: a cut before the next segment may uncover other damage.
const MAX_PASSES: usize = 8;

/// The files of a log: `checkpoint:u8 [28 bytes] (len:u16 segment)*`. If the first byte is odd, one slot of a
/// checkpoint follows. If the next bit of it is set, the checksums of the segments are corrected, so that the
/// code behind them runs. If the bit after that is set, the last segment is in a recycled file: behind its
/// bytes are those that the segment before had there, as if they were old records.
pub fn log(bytes: &[u8]) {
    let Some((&flags, mut bytes)) = bytes.split_first() else { return };
    let disk = Disk::new(0);
    if flags & 1 != 0
        && let Some((checkpoint, rest)) = bytes.split_at_checked(28)
    {
        let mut file = [0; 4_124];
        file[..28].copy_from_slice(checkpoint);
        put(&disk, "checkpoint", &file);
        bytes = rest;
    }
    let (mut next, mut before) = (0, Vec::new());
    while let Some((len, rest)) = bytes.split_first_chunk::<2>() {
        let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
        let (segment, rest) = rest.split_at(len);
        bytes = rest;
        let base = segment.get(16..24).map_or(next, |base| u64::from_le_bytes(base.try_into().expect("eight bytes")));
        let mut segment = segment.to_vec();
        if flags & 2 != 0 {
            correct_checksums(&mut segment, base);
        }
        if flags & 4 != 0 && rest.is_empty() {
            segment.extend_from_slice(before.get(len..).unwrap_or_default()); // only the newest has room
        }
        put(&disk, &segment::name(Position(base)), &segment);
        before = segment;
        next = base.saturating_add(len as u64);
    }
    match inspect_folder(&disk) {
        Ok(found) if found.damage.is_empty() => check_good(&disk),
        Ok(found) => {
            let refused = recover(&disk);
            assert!(matches!(refused, Err(LogError::Damaged { .. })), "damage does not open: {refused:?}");
            let bases = segment::list(&disk).expect("the disk is sound");
            // If two files overlap in their headers, one is no segment, and an operator has to remove it.
            let are_apart = bases.windows(2).all(|pair| pair[1].0 - pair[0].0 >= segment::Header::BYTES as u64);
            let (aside, mut left) = (Disk::new(0), found.damage);
            for _ in 0..MAX_PASSES {
                if !are_apart || !left.iter().all(can_be_set_aside) {
                    return;
                }
                for damage in &left {
                    set_aside_in(&disk, damage, &aside).expect("the disk is sound");
                }
                left = inspect_folder(&disk).expect("the disk is sound").damage;
                if left.is_empty() {
                    return check_good(&disk);
                }
            }
            panic!("set aside {MAX_PASSES} times, and still there: {left:?}");
        }
        Err(LogError::BadCheckpoint { .. } | LogError::Version { .. }) => {}
        Err(error) => panic!("the disk has no fault, but: {error}"),
    }
}

/// Whether the damage is small enough to copy, and large enough for a filler record. The log itself never
/// leaves a smaller gap.
fn can_be_set_aside(damage: &Damage) -> bool {
    let header = segment::Header::BYTES as u64;
    let filler = (damage.offset + damage.bytes).saturating_sub(damage.offset.max(header));
    damage.bytes <= MAX_DAMAGE_BYTES && (damage.overlaps_next || filler == 0 || filler >= record::Header::BYTES as u64)
}

/// An undamaged log opens, and its reader returns records with right checksums.
fn check_good(disk: &Disk) {
    let (recovery, _) = recover(disk).expect("not damaged");
    let mut reader = Reader::new(Arc::new(disk.clone()), recovery.start);
    let mut readings = 0;
    while let Some(found) = reader.next(recovery.end).expect("not damaged") {
        assert!(found.next <= recovery.end, "read beyond the end");
        let base = *recovery.bases.iter().rfind(|base| **base <= found.position).expect("in a segment");
        let file = disk.open(&segment::name(base), OpenMode::Read).expect("there");
        let mut bytes = vec![0; (found.next.0 - found.position.0) as usize];
        file.fill(&mut bytes, found.position.0 - base.0).expect("sound");
        let (header, on_disk) = record::decode(&bytes, found.position).expect("the checksum is right");
        assert_eq!(on_disk, found.payload, "the payload is that on disk");
        readings += u64::from(header.readings);
    }
    assert_eq!((readings, reader.position()), (recovery.readings, recovery.end));
    let (again, _) = recover(disk).expect("opened before");
    assert_eq!((again.start, again.end, again.readings), (recovery.start, recovery.end, readings));
    assert_eq!(again.torn, None, "the torn tail was cut off");
}

/// The file of a checkpoint.
pub fn checkpoint(bytes: &[u8]) {
    let disk = Disk::new(0);
    put(&disk, "checkpoint", bytes);
    if let Ok(found) = slots::load::<Checkpoint>(&disk) {
        let (mut file, _) = CheckpointFile::open(&disk).expect("the disk is sound").expect("it is there");
        assert_eq!(slots::load::<Checkpoint>(&disk).expect("it was good"), found);
        let end = Position(Position::MAX);
        let last = Checkpoint { position: end, durable: end };
        file.save(last).expect("the disk is sound");
        assert_eq!(slots::load::<Checkpoint>(&disk).expect("it is good"), Some(last));
    }
}

fn put(disk: &Disk, name: &str, bytes: &[u8]) {
    disk.open(name, OpenMode::Truncate).expect("sound").write_all_at(bytes, 0).expect("sound");
}

/// Corrects the checksums of a segment, up to the first gap between its records.
fn correct_checksums(segment: &mut [u8], base: u64) {
    const HEADER: usize = segment::Header::BYTES;
    let Some(header) = segment.get_mut(..HEADER) else { return };
    header.copy_from_slice(&segment::Header::encode(Position(base), 0));
    let mut at = HEADER;
    while let Some(header) = segment.get(at..).and_then(record::Header::decode) {
        let position = Position(base.wrapping_add(at as u64));
        let (start, end) = (at + record::Header::BYTES, at + header.record_bytes());
        let Some(payload) = segment.get(start..start + header.len as usize) else { return };
        let mut right = Vec::new();
        record::encode(&mut right, position, header.durable, header.kind, header.readings, payload);
        let Some(there) = segment.get_mut(at..end) else { return };
        there.copy_from_slice(&right);
        at = end;
    }
}
