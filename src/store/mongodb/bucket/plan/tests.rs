//! Plans, applied to parts as the database would.

use super::super::super::metadata;
use super::*;
use crate::model::{Hour, Metric, reads};

fn plan(parts: &[Part], write: &BucketWrite, metadata: Option<&Map<String, Value>>, capacity: Capacity) -> Vec<Change> {
    super::plan(parts, write, metadata, capacity, BucketLayout::Readable)
}

fn cap(readings: u32) -> Capacity {
    Capacity::new(readings, 1 << 20)
}

fn write(offsets: &[u32], metric: &str, value: f64) -> BucketWrite {
    let samples = offsets.iter().map(|&offset| (Sample { value, offset, metric: 0 }, true));
    BucketWrite::new("d".into(), Hour(0), None, vec![metric.into()], samples)
}

/// Applies the changes to the parts, as the database would.
fn apply(parts: &mut Vec<Part>, changes: Vec<Change>) {
    for change in changes {
        match change.guard {
            None => parts.push(change.part),
            Some(rev) => {
                let stored = &mut parts[change.part.number as usize];
                assert_eq!(stored.rev, rev);
                *stored = change.part;
            }
        }
    }
}

fn counts(parts: &[Part]) -> Vec<(usize, bool)> {
    parts.iter().map(|part| (part.contents.reading_count(), part.full)).collect()
}

#[test]
fn instants_that_do_not_fit_get_new_parts_after_full_ones() {
    let mut parts = Vec::new();
    apply(&mut parts, plan(&[], &write(&(0..23).collect::<Vec<_>>(), "a", 1.0), None, cap(10)));
    assert_eq!(counts(&parts), [(10, true), (10, true), (3, false)]);
    let more = plan(&parts, &write(&(20..34).collect::<Vec<_>>(), "a", 1.0), None, cap(10));
    apply(&mut parts, more);
    assert_eq!(counts(&parts), [(10, true), (10, true), (10, true), (4, false)]);
    assert!(is_consistent(&parts));
}

#[test]
fn a_part_that_was_filled_exactly_is_marked_full_before_its_successor() {
    let mut parts = Vec::new();
    apply(&mut parts, plan(&[], &write(&[0, 1], "a", 1.0), None, cap(2)));
    assert_eq!(counts(&parts), [(2, false)]);
    let changes = plan(&parts, &write(&[2], "a", 1.0), None, cap(2));
    assert_eq!(changes.iter().map(|change| change.guard).collect::<Vec<_>>(), [Some(1), None]);
    apply(&mut parts, changes);
    assert_eq!(counts(&parts), [(2, true), (1, false)]);
}

#[test]
fn a_full_part_without_a_successor_gets_one() {
    let mut parts = Vec::new();
    let first = plan(&[], &write(&[0, 1, 2], "a", 1.0), None, cap(2));
    apply(&mut parts, first.into_iter().take(1).collect()); // and then the writer died
    assert_eq!(counts(&parts), [(2, true)]);
    assert!(is_consistent(&parts));
    let changes = plan(&parts, &write(&[0, 1, 2], "a", 1.0), None, cap(2));
    apply(&mut parts, changes);
    assert_eq!(counts(&parts), [(2, true), (1, false)]);
}

#[test]
fn a_raised_capacity_does_not_reopen_a_full_part() {
    let mut parts = Vec::new();
    apply(&mut parts, plan(&[], &write(&[10, 11, 12], "a", 1.0), None, cap(2)));
    let changes = plan(&parts, &write(&[1], "a", 1.0), None, cap(100));
    apply(&mut parts, changes);
    assert_eq!(counts(&parts), [(2, true), (2, false)]);
    assert_eq!(parts[1].last, 12, "though it has an older reading now");
}

#[test]
fn the_last_instant_never_falls_from_part_to_part() {
    let mut parts = Vec::new();
    apply(&mut parts, plan(&[], &write(&[50, 60], "a", 1.0), None, cap(2)));
    let late = plan(&parts, &write(&[1, 2, 3], "a", 1.0), None, cap(2));
    apply(&mut parts, late);
    assert_eq!(parts.iter().map(|part| part.last).collect::<Vec<_>>(), [60, 60, 60]);
}

#[test]
fn a_repetition_changes_nothing_and_a_new_value_only_the_part_that_has_it() {
    let mut parts = Vec::new();
    apply(&mut parts, plan(&[], &write(&[0, 1, 2], "a", 1.0), None, cap(2)));
    assert_eq!(plan(&parts, &write(&[0, 1, 2], "a", 1.0), None, cap(2)), []);
    let changes = plan(&parts, &write(&[2], "a", 9.0), None, cap(2));
    assert_eq!(changes.len(), 1);
    assert_eq!((changes[0].part.number, changes[0].guard, changes[0].new_keys.len()), (1, Some(1), 0));
    assert_eq!(changes[0].part.contents.value(2, "a"), Some(9.0));
}

#[test]
fn names_are_compared_once_for_each_part_and_not_for_each_value() {
    const METRICS: u32 = 50;
    let names: Vec<Metric> = (0..METRICS).map(|metric| format!("metric {metric}").as_str().into()).collect();
    let write = |instants: u32, value: f64| {
        let of = |offset: u32| (0..METRICS).map(move |metric| (Sample { value, offset, metric }, metric == 0));
        BucketWrite::new("d".into(), Hour(0), None, names.clone(), (0..instants).flat_map(of))
    };
    for layout in [BucketLayout::Readable, BucketLayout::Packed] {
        let reads_of = |instants: u32| {
            let mut parts = Vec::new();
            apply(&mut parts, super::plan(&[], &write(instants, 1.0), None, cap(10), layout));
            assert_eq!(parts.len(), instants as usize / 10);
            let resend = || super::plan(&parts, &write(instants, 1.0), None, cap(10), layout);
            let rewrite = || super::plan(&parts, &write(instants, 2.0), None, cap(10), layout);
            let ((same, same_reads), (changed, changed_reads)) = (reads::during(resend), reads::during(rewrite));
            assert_eq!((same.len(), changed.len()), (0, parts.len()));
            same_reads.max(changed_reads) / (parts.len() * METRICS as usize)
        };
        assert!(reads_of(20) < 30 && reads_of(200) < 30, "{} reads of each name", reads_of(200));
    }
}

#[test]
fn the_sign_of_a_zero_is_a_change() {
    let mut parts = Vec::new();
    apply(&mut parts, plan(&[], &write(&[0], "a", 0.0), None, cap(2)));
    let changes = plan(&parts, &write(&[0], "a", -0.0), None, cap(2));
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].part.contents.value(0, "a").map(f64::to_bits), Some((-0.0_f64).to_bits()));
}

#[test]
fn another_metric_joins_its_instant_even_in_a_full_part() {
    let mut parts = Vec::new();
    apply(&mut parts, plan(&[], &write(&[0, 1, 2], "a", 1.0), None, cap(2)));
    let changes = plan(&parts, &write(&[0], "b", 7.0), None, cap(2));
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].new_keys, [(0, 0)]);
    assert_eq!(changes[0].part.contents.reading_count(), 2);
    assert_eq!(changes[0].part.contents.value(0, "b"), Some(7.0));
}

#[test]
fn metadata_is_written_to_the_part_that_is_last_afterwards() {
    let old = metadata::parse(r#"{"floor":1}"#).unwrap();
    let new = metadata::parse(r#"{"floor":2}"#).unwrap();
    let mut parts = Vec::new();
    apply(&mut parts, plan(&[], &write(&[0, 1, 2], "a", 1.0), Some(&old), cap(2)));
    assert!(parts.iter().all(|part| part.metadata.as_ref() == Some(&old)));
    let changes = plan(&parts, &write(&[0], "a", 1.0), Some(&new), cap(2));
    apply(&mut parts, changes);
    assert_eq!((parts[0].metadata.as_ref(), parts[1].metadata.as_ref()), (Some(&old), Some(&new)));
    let changes = plan(&parts, &write(&[5, 6], "a", 1.0), None, cap(2));
    apply(&mut parts, changes);
    assert_eq!(parts[2].metadata.as_ref(), Some(&new), "a part inherits it");
}

#[test]
fn metadata_is_not_written_to_a_part_that_a_deletion_has_emptied() {
    let metadata = metadata::parse(r#"{"floor":2}"#).unwrap();
    for layout in [BucketLayout::Readable, BucketLayout::Packed] {
        let mut parts = Vec::new();
        apply(&mut parts, super::plan(&[], &write(&[0, 1, 2], "a", 1.0), None, cap(2), layout));
        let contents = Contents::default();
        let emptied = Part { layout: BucketLayout::Readable, full: true, contents, ..parts.remove(1) };
        parts.push(emptied.clone());
        let resend = |parts: &[Part]| super::plan(parts, &write(&[0], "a", 1.0), Some(&metadata), cap(2), layout);
        let changes = resend(&parts);
        apply(&mut parts, changes);
        assert_eq!((parts[0].metadata.as_ref(), &parts[1]), (Some(&metadata), &emptied), "{layout:?}");
        assert_eq!(resend(&parts), []);
    }
}

#[test]
fn parts_seen_at_different_times_are_noticed() {
    let mut parts = Vec::new();
    apply(&mut parts, plan(&[], &write(&[0, 1, 2], "a", 1.0), None, cap(2)));
    assert!(is_consistent(&parts));
    assert!(is_consistent(&[]));
    parts[0].full = false;
    assert!(!is_consistent(&parts));
}

#[test]
fn packed_parts_keep_their_range_of_time() {
    let plan = |parts: &[Part], offsets: &[u32], capacity| {
        super::plan(parts, &write(offsets, "a", 1.0), None, cap(capacity), BucketLayout::Packed)
    };
    let state = |parts: &[Part]| -> Vec<_> {
        parts.iter().map(|part| (part.contents.reading_count(), part.last, part.full)).collect()
    };
    let mut parts = Vec::new();
    apply(&mut parts, plan(&[], &[10, 20], 3));
    let changes = plan(&parts, &[30, 40], 3);
    apply(&mut parts, changes);
    assert_eq!(state(&parts), [(2, 20, false), (2, 40, false)], "a later flush is another part");
    let changes = plan(&parts, &[35, 15, 50], 3);
    apply(&mut parts, changes);
    assert_eq!(state(&parts), [(3, 20, false), (3, 40, false), (1, 50, false)], "each reading has its part");
    let changes = plan(&parts, &[16], 3);
    apply(&mut parts, changes);
    assert_eq!(state(&parts), [(3, 20, true), (3, 40, true), (2, 50, false)], "the next part with room");
    let changes = plan(&parts, &[1, 2, 60], 3);
    apply(&mut parts, changes);
    assert_eq!(state(&parts), [(3, 20, true), (3, 40, true), (3, 50, true), (2, 60, false)]);
    assert!(is_consistent(&parts));
    assert_eq!(plan(&parts, &[1, 16, 35, 60], 3), []);
}

#[test]
fn parts_of_the_other_layout_are_converted_and_full() {
    let (readable, packed) = (BucketLayout::Readable, BucketLayout::Packed);
    let state = |parts: &[Part]| -> Vec<_> { parts.iter().map(|part| (part.layout, part.full)).collect() };
    let mut parts = Vec::new();
    apply(&mut parts, super::plan(&[], &write(&[10], "a", 1.0), None, cap(9), readable));
    let changes = super::plan(&parts, &write(&[5, 20], "a", 1.0), None, cap(9), packed);
    apply(&mut parts, changes);
    assert_eq!(state(&parts), [(packed, true), (packed, false)]);
    assert_eq!(parts[1].contents.reading_count(), 2, "even a late reading is not added to the first part");
    let changes = super::plan(&parts, &write(&[20], "a", 1.0), None, cap(9), readable);
    apply(&mut parts, changes);
    assert_eq!(state(&parts), [(readable, true), (readable, true)], "by a resent reading");
    let changes = super::plan(&parts, &write(&[30], "a", 1.0), None, cap(9), readable);
    apply(&mut parts, changes);
    assert_eq!(state(&parts), [(readable, true), (readable, true), (readable, false)]);
}
