//! Damage to acknowledged records is found, and quarantine removes it.

use super::*;
use crate::log::Reader;
use crate::log::quarantine::set_aside;
use crate::log::recovery::inspect;

/// Writes and closes a log of twenty batches with `readings_of(id)` readings.
fn twenty_batches(dir: &Path, readings_of: impl Fn(u32) -> u32) -> Vec<Batch> {
    let batches: Vec<Batch> = (0..20).map(|id| batch(id, readings_of(id))).collect();
    let (log, _) = open(dir);
    for batch in &batches {
        append(&log, batch.clone()).unwrap();
    }
    log.cut(Position(0)).unwrap(); // saves the durable end
    batches
}

proptest! {
    #[test]
    fn a_damaged_log_refuses_to_open_and_quarantine_keeps_the_rest(
        place in any::<prop::sample::Index>(), flip in 1..=255u8
    ) {
        let dir = tempfile::tempdir().unwrap();
        let batches = twenty_batches(dir.path(), |id| id % 4 + 1);
        let bases = segment::list(&*folder(dir.path())).unwrap();
        let len_of = |&base: &Position| std::fs::metadata(segment_path(dir.path(), base)).unwrap().len() as usize;
        let lens: Vec<usize> = bases.iter().map(len_of).collect();
        let (mut at, mut offset) = (0, place.index(lens.iter().sum()));
        while offset >= lens[at] {
            offset -= lens[at];
            at += 1;
        }
        let path = segment_path(dir.path(), bases[at]);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[offset] ^= flip;
        std::fs::write(&path, bytes).unwrap();

        let found = inspect(dir.path());
        if offset / 8 == 1 && offset < 12 && found.is_err() {
            return Ok(()); // a flipped version field reads as a newer version, which is refused as well
        }
        let found = found.unwrap();
        if found.damage.is_empty() {
            // Only padding, and the reserved bytes that no checksum covers, may change unnoticed.
            let (log, recovery) = open(dir.path());
            prop_assert_eq!(read_all(&log, recovery.start), payloads(&batches));
            return Ok(());
        }
        let refused = matches!(Log::open(options(dir.path()), Instruments::default()), Err(LogError::Damaged { .. }));
        prop_assert!(refused, "opened a damaged log");
        prop_assert_eq!(&found.damage[0].path, &path);
        let first = &found.damage[0];
        prop_assert!((first.offset..first.offset + first.bytes).contains(&(offset as u64)));
        for damage in &found.damage {
            let copy = set_aside(damage, &dir.path().join("quarantine")).unwrap().expect("the damage has bytes");
            prop_assert_eq!(std::fs::metadata(copy).unwrap().len(), damage.bytes);
        }
        let (log, recovery) = open(dir.path());
        let left = read_all(&log, recovery.start);
        let lost: Vec<_> = payloads(&batches).into_iter().filter(|payload| !left.contains(payload)).collect();
        prop_assert_eq!(left.len() + lost.len(), batches.len());
        prop_assert!(lost.len() <= 1, "one flipped byte destroys at most one record");
    }
}

#[test]
fn the_place_of_a_damaged_header_is_named_once() {
    let dir = tempfile::tempdir().unwrap();
    twenty_batches(dir.path(), |_| 2);
    let bases = segment::list(&*folder(dir.path())).unwrap();
    let path = segment_path(dir.path(), bases[1]);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[16] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let refused = Log::open(options(dir.path()), Instruments::default()).map(drop).unwrap_err();
    let expected = format!("the log is damaged: {}, byte 0: the header's checksum is wrong", path.display());
    assert_eq!(refused.to_string(), expected);
}

#[test]
fn a_missing_segment_is_damage_and_quarantine_fills_the_hole() {
    for missing in [0, 2] {
        let dir = tempfile::tempdir().unwrap();
        let batches = twenty_batches(dir.path(), |_| 2);
        let bases = segment::list(&*folder(dir.path())).unwrap();
        std::fs::remove_file(segment_path(dir.path(), bases[missing])).unwrap();
        assert!(Log::open(options(dir.path()), Instruments::default()).is_err(), "segment {missing} is missing");
        for damage in inspect(dir.path()).unwrap().damage {
            set_aside(&damage, &dir.path().join("quarantine")).unwrap();
        }
        let (log, recovery) = open(dir.path());
        let left = read_all(&log, recovery.start);
        assert!(left.len() > 10 && left.len() < 20, "{} records are left", left.len());
        assert!(left.iter().all(|payload| payloads(&batches).contains(payload)));
    }
}

#[test]
fn quarantine_keeps_the_rest_of_a_segment_without_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let batches = twenty_batches(dir.path(), |_| 2);
    let bases = segment::list(&*folder(dir.path())).unwrap();
    for base in [bases[1], bases[bases.len() - 1]] {
        let path = segment_path(dir.path(), base);
        let whole = std::fs::read(&path).unwrap();
        for kept in (0..whole.len()).step_by(5) {
            std::fs::write(&path, &whole[..kept]).unwrap();
            let found = inspect(dir.path()).unwrap().damage;
            assert!(!found.is_empty(), "{kept} of {} bytes at {base} are not missed", whole.len());
            for damage in found {
                set_aside(&damage, &dir.path().join("quarantine")).unwrap();
            }
            assert_eq!(inspect(dir.path()).unwrap().damage, [], "{kept} of {} bytes at {base}", whole.len());
            let (recovery, _) = recover(&*folder(dir.path())).unwrap();
            let mut reader = Reader::new(folder(dir.path()), recovery.start);
            let left: Vec<Vec<u8>> =
                std::iter::from_fn(|| reader.next(recovery.end).unwrap().map(|record| record.payload.to_vec()))
                    .collect();
            assert!(left.len() >= 16 && left.iter().all(|payload| payloads(&batches).contains(payload)));
        }
        std::fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn a_segment_that_overlaps_the_next_is_damage_and_is_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let batches = twenty_batches(dir.path(), |_| 2);
    let path = segment_path(dir.path(), Position(0));
    let mut bytes = std::fs::read(&path).unwrap();
    let len = bytes.len() as u64;
    bytes.extend_from_slice(&[7; 24]);
    std::fs::write(&path, bytes).unwrap();
    let found = inspect(dir.path()).unwrap().damage;
    assert_eq!((found.len(), found[0].offset, found[0].bytes), (1, len, 24));
    assert!(Log::open(options(dir.path()), Instruments::default()).is_err());
    set_aside(&found[0], &dir.path().join("quarantine")).unwrap();
    let (log, recovery) = open(dir.path());
    assert_eq!(read_all(&log, recovery.start), payloads(&batches));
}

#[test]
fn a_segment_that_ends_before_the_checkpoint_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let end = {
        let (log, _) =
            Log::open(Options { segment_bytes: 1 << 20, ..options(dir.path()) }, Instruments::default()).unwrap();
        for id in 0..5 {
            append(&log, batch(id, 2)).unwrap();
        }
        log.cut(log.usage().readable).unwrap();
        append(&log, batch(5, 2)).unwrap();
        log.cut(Position(0)).unwrap(); // saves the durable end
        log.usage().readable
    };
    let path = segment_path(dir.path(), Position(0));
    std::fs::File::options().write(true).open(&path).unwrap().set_len(40).unwrap();
    let found = inspect(dir.path()).unwrap().damage;
    assert!(!found.is_empty());
    for damage in &found {
        set_aside(damage, &dir.path().join("quarantine")).unwrap();
    }
    let (log, recovery) = open(dir.path());
    assert_eq!((recovery.end, recovery.readings), (end, 0));
    append(&log, batch(6, 2)).unwrap();
    assert_eq!(read_all(&log, recovery.start), payloads(&[batch(6, 2)]));
}
