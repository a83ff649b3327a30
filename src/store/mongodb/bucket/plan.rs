//! Plans the slow path: given the parts of a bucket and a flush, which parts to write back and which to add.
//! Pure.
//!
//! - A value whose identity is stored replaces the value in the part that has it.
//! - A metric that is new to a stored instant joins it if that part has room.
//! - In the readable layout, new instants are added to the last part while it has room, then to new parts. A
//!   part that gets a successor is marked full first.
//! - In the packed layout, a new instant that is not later than the `last` of every part is added to the
//!   first part that is neither before it nor full. A part without room for it is marked full first. Later
//!   instants go to new parts.
//! - A part of the other layout is converted and marked full.
//! - The mark is never removed, whatever the capacity becomes.
//! - A part without changes is not written.

use serde_json::{Map, Value};

use super::capacity::{Capacity, Keys, Size};
use super::document::Part;
use crate::config::BucketLayout;
use crate::model::{BucketWrite, Contents, HourOffset, MetricTable, Sample};

/// A document to write.
#[derive(Debug, PartialEq)]
pub(super) struct Change {
    /// The new contents of the document, its next `rev` included.
    pub(super) part: Part,
    /// The `rev` that the document must still have; `None` for a document that must not exist yet.
    pub(super) guard: Option<i64>,
    /// The keys ([`Sample::key`]) of the write's samples in this part whose identities are new.
    pub(super) new_keys: Vec<(HourOffset, u32)>,
}

/// Whether the parts, ascending, can be planned on.
///
/// Documents are read one after the other while others write. So a part may have been read before it got a
/// successor, and new instants may have been added to it since. Every part but the last must be full, because
/// nothing new is added to a full part, or packed: then nothing is added to it that is later than its `last`,
/// and whatever else may have been added has changed its `rev`.
pub(super) fn is_consistent(parts: &[Part]) -> bool {
    parts.iter().rev().skip(1).all(|part| part.full || part.layout == BucketLayout::Packed)
}

/// A part, and what a write changes in it.
struct Draft<'a> {
    before: &'a Part,
    full: bool,
    last: HourOffset,
    /// The new metadata, if the write brings some.
    metadata: Option<&'a Map<String, Value>>,
    size: Size,
    added: Vec<Sample>,
}

/// The changes that merge `write` into `parts`, in the order in which they must be made.
pub(super) fn plan(
    parts: &[Part],
    write: &BucketWrite,
    metadata: Option<&Map<String, Value>>,
    capacity: Capacity,
    layout: BucketLayout,
) -> Vec<Change> {
    let mut drafts: Vec<Draft<'_>> = parts.iter().map(|part| Draft::of(part, layout)).collect();
    let mut fresh = Vec::new();
    let keys = Keys::of(&write.contents);
    for (&sample, home) in write.contents.samples().iter().zip(find_homes(parts, &write.contents)) {
        match part_for(&mut drafts, home, &sample, &keys, capacity) {
            Some(at) => drafts[at].added.push(sample),
            None => fresh.push(sample),
        }
    }
    let instants: Vec<&[Sample]> = fresh.chunk_by(|a, b| a.offset == b.offset).collect();
    let overflow = match layout {
        BucketLayout::Readable => add_to_last(&mut drafts, &instants, &keys, capacity),
        BucketLayout::Packed => add_to_open(&mut drafts, &instants, &keys, capacity),
    };
    move_last_instants(&mut drafts);
    if let Some(last) = drafts.last_mut()
        && overflow.is_empty()
    {
        last.metadata = metadata;
    }
    let mut inserted = insertions(drafts.last(), write, metadata, chunks(&overflow, &keys, capacity), layout);
    for change in &mut inserted {
        change.part.take_layout(layout);
    }
    drafts.into_iter().filter_map(|draft| draft.into_change(write, layout)).chain(inserted).collect()
}

impl<'a> Draft<'a> {
    fn of(part: &'a Part, layout: BucketLayout) -> Self {
        Self {
            before: part,
            full: part.full || part.layout != layout,
            last: part.last,
            metadata: None,
            size: Size::of(&part.contents),
            added: Vec::new(),
        }
    }

    /// The change of the part; `None` if it stays as it is.
    fn into_change(self, write: &BucketWrite, layout: BucketLayout) -> Option<Change> {
        let Self { before, full, last, metadata, added, .. } = self;
        let stored = before.contents.values_for(write.contents.metrics());
        let is_changed = added.iter().any(|sample| !stored.has(sample))
            || (full, last) != (before.full, before.last)
            || metadata.is_some_and(|metadata| before.metadata.as_ref() != Some(metadata));
        if !is_changed && (before.layout == layout || !before.suits(layout)) {
            return None;
        }
        let new_keys = added.iter().filter(|sample| stored.of(sample).is_none()).map(Sample::key).collect();
        let mut part = Part {
            rev: before.rev + 1,
            full,
            last,
            metadata: metadata.or(before.metadata.as_ref()).cloned(),
            contents: if added.is_empty() {
                before.contents.clone()
            } else {
                before.contents.merge(&Contents::new(write.contents.metrics().to_vec(), added))
            },
            ..*before
        };
        part.take_layout(layout);
        Some(Change { part, guard: Some(before.rev), new_keys })
    }
}

/// The parts that have a sample of the write, or others of its instant: the first of each.
#[derive(Debug, Clone, Copy, Default)]
struct Home {
    value: Option<usize>,
    instant: Option<usize>,
}

/// Finds the home of each sample. The work is linear in the stored values of the write's span, and names are
/// compared once for each part.
fn find_homes(parts: &[Part], contents: &Contents) -> Vec<Home> {
    let samples = contents.samples();
    let mut homes = vec![Home::default(); samples.len()];
    let Some((first, last)) = contents.span() else { return homes };
    let mut metrics = MetricTable::new(contents.metrics().to_vec());
    for (number, part) in parts.iter().enumerate() {
        let stored = part.contents.samples();
        let begin = stored.partition_point(|sample| sample.offset < first);
        let end = stored.partition_point(|sample| sample.offset <= last);
        if begin == end {
            continue;
        }
        let places: Vec<Option<u32>> = part.contents.metrics().iter().map(|metric| metrics.find(metric)).collect();
        let mut rest = 0; // the samples before it are earlier than the next stored reading
        for reading in stored[begin..end].chunk_by(|a, b| a.offset == b.offset) {
            let offset = reading[0].offset;
            rest += samples[rest..].partition_point(|sample| sample.offset < offset);
            let count = samples[rest..].partition_point(|sample| sample.offset == offset);
            let (samples, homes) = (&samples[rest..rest + count], &mut homes[rest..rest + count]);
            if homes.first().is_some_and(|home| home.instant.is_none()) {
                for home in &mut *homes {
                    home.instant = Some(number);
                }
            }
            for metric in reading.iter().filter_map(|sample| places[sample.metric as usize]) {
                if let Ok(at) = samples.binary_search_by_key(&metric, |sample| sample.metric) {
                    homes[at].value.get_or_insert(number);
                }
            }
        }
    }
    homes
}

/// Adds new instants to the last part while it has room, and returns the others. If there are others, the
/// part is full.
fn add_to_last<'a>(
    drafts: &mut [Draft<'_>],
    instants: &[&'a [Sample]],
    keys: &Keys,
    capacity: Capacity,
) -> Vec<&'a [Sample]> {
    let Some(last) = drafts.last_mut() else { return instants.to_vec() };
    let taken = if last.full { 0 } else { count_fitting(instants, last.size, keys, capacity) };
    let (fitting, overflow) = instants.split_at(taken);
    last.added.extend(fitting.iter().copied().flatten());
    last.full |= !overflow.is_empty();
    overflow.to_vec()
}

/// Adds new instants to parts that have not ended before them, and returns those that need new parts.
///
/// Every writer finds the same part for an instant: of the parts that are neither before it nor full,
/// the first one.
fn add_to_open<'a>(
    drafts: &mut [Draft<'_>],
    instants: &[&'a [Sample]],
    keys: &Keys,
    capacity: Capacity,
) -> Vec<&'a [Sample]> {
    let mut overflow = Vec::new();
    for &samples in instants {
        let mut home = drafts.partition_point(|draft| draft.last < samples[0].offset);
        while let Some(draft) = drafts.get_mut(home) {
            let with_them = draft.size + keys.reading(samples);
            let with_stats = Size { bytes: with_them.bytes + keys.stats_bytes(), ..with_them };
            if !draft.full && capacity.fits(with_stats) {
                draft.size = with_them;
                break;
            }
            draft.full = true;
            home += 1;
        }
        match drafts.get_mut(home) {
            Some(draft) => draft.added.extend(samples),
            None => overflow.push(samples),
        }
    }
    overflow
}

/// The part with the identity of a sample, or with its instant and room for one more value.
fn part_for(drafts: &mut [Draft<'_>], home: Home, sample: &Sample, keys: &Keys, capacity: Capacity) -> Option<usize> {
    if home.value.is_some() {
        return home.value;
    }
    let size = &mut drafts[home.instant?].size;
    let with_it = Size { bytes: size.bytes + keys.joining_bytes(sample), ..*size };
    capacity.has_bytes_for(with_it).then(|| *size = with_it)?;
    home.instant
}

/// The number of instants that fit into a part of this size.
fn count_fitting(instants: &[&[Sample]], mut size: Size, keys: &Keys, capacity: Capacity) -> usize {
    size.bytes += keys.stats_bytes();
    let fits = |samples: &&&[Sample]| {
        size = size + keys.reading(samples);
        capacity.fits(size)
    };
    instants.iter().take_while(fits).count()
}

/// Splits instants into chunks that fit into one part each. A chunk has at least one instant.
fn chunks<'a>(mut instants: &'a [&'a [Sample]], keys: &Keys, capacity: Capacity) -> Vec<&'a [&'a [Sample]]> {
    let mut chunks = Vec::new();
    while !instants.is_empty() {
        let count = count_fitting(instants, Size::default(), keys, capacity).max(1);
        let (chunk, rest) = instants.split_at(count);
        chunks.push(chunk);
        instants = rest;
    }
    chunks
}

/// Moves the last instant of each part to which samples were added. It never falls from part to part.
fn move_last_instants(drafts: &mut [Draft<'_>]) {
    let mut last = 0;
    for draft in drafts {
        if let Some(added) = draft.added.iter().map(|sample| sample.offset).max() {
            let stored = draft.before.contents.span().map_or(0, |(_, last)| last);
            draft.last = draft.last.max(last).max(stored).max(added);
        }
        last = last.max(draft.last);
    }
}

/// The new parts after `before` for `chunks` of instants.
fn insertions(
    before: Option<&Draft<'_>>,
    write: &BucketWrite,
    metadata: Option<&Map<String, Value>>,
    chunks: Vec<&[&[Sample]]>,
    layout: BucketLayout,
) -> Vec<Change> {
    let metadata = metadata.or(before.and_then(|draft| draft.before.metadata.as_ref()));
    let mut last = before.map_or(0, |draft| draft.last);
    let first_number = before.map_or(0, |draft| draft.before.number + 1);
    let count = chunks.len();
    let insert = |(at, chunk): (usize, &[&[Sample]])| {
        let contents = Contents::new(write.contents.metrics().to_vec(), chunk.concat());
        last = last.max(contents.span().map_or(0, |(_, last)| last));
        let new_keys = contents.samples().iter().map(Sample::key).collect();
        let number = first_number + at as i32;
        let full = layout == BucketLayout::Readable && at + 1 < count;
        let part = Part { number, layout, rev: 1, full, last, metadata: metadata.cloned(), contents };
        Change { part, guard: None, new_keys }
    };
    chunks.into_iter().enumerate().map(insert).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::metadata;
    use super::*;
    use crate::model::{Hour, Metric, reads};

    fn plan(
        parts: &[Part],
        write: &BucketWrite,
        metadata: Option<&Map<String, Value>>,
        capacity: Capacity,
    ) -> Vec<Change> {
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
}
