//! Plans the slow path: given the parts of a bucket and a flush, which parts to write back and which to add.
//! Pure.
//!
//! - A value whose identity is stored replaces the value in the part that has it.
//! - A metric that is new to a stored instant joins it if that part has room.
//! - In the readable layout, new instants are added to the last part while it has room, then to new parts. A
//!   part that gets a successor is marked full first.
//! - In the packed layout, a new instant that is later than the `last` of every part goes to a new part. Any
//!   other new instant is added to the first part that is not full and whose `last` is not before it. If this
//!   part has no room, it is marked full, and the next such part is taken.
//! - A part of the other layout is converted and marked full.
//! - The mark is never removed, whatever the capacity becomes.
//! - Metadata goes to the last part that has readings, not to one that a deletion has emptied.
//! - A part without changes is not written.

use serde_json::{Map, Value};

use super::capacity::{Capacity, Keys, Size};
use super::document::Part;
use crate::config::BucketLayout;
use crate::model::{BucketWrite, Contents, HourOffset, Keep, MetricTable, Sample};

#[cfg(test)]
mod tests;

/// A change of one document of the bucket, or a new document.
#[derive(Debug, PartialEq)]
pub(super) struct Change {
    /// The new contents of the document, its next `rev` included.
    pub(super) part: Part,
    /// The `rev` that the document must still have; `None` for a document that must not exist yet.
    pub(super) guard: Option<i64>,
    /// The keys ([`Sample::key`]) of the write's samples in this part whose identities are new.
    pub(super) new_keys: Vec<(HourOffset, u32)>,
}

/// Whether a plan can rely on parts (ascending) that were read one after the other.
///
/// Others write meanwhile. So a part may have been read before it got a successor, and new instants may have
/// been added to it since. Every part but the last must therefore be full or packed. Nothing new is added to
/// a full part. To a packed part nothing is added that is later than its `last`, and any other addition
/// changes its `rev`.
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
    let keeps_first = write.contents.keep() == Keep::First;
    for (&sample, home) in write.contents.samples().iter().zip(find_homes(parts, &write.contents)) {
        if keeps_first && home.value.is_some() {
            continue;
        }
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
    if let Some(last) = drafts.iter_mut().rfind(|draft| draft.has_readings())
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

    /// Whether the part has readings after the write.
    fn has_readings(&self) -> bool {
        !self.before.contents.is_empty() || !self.added.is_empty()
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

/// Where the identity and the instant of a sample of the write are stored, as indices of parts.
#[derive(Debug, Clone, Copy, Default)]
struct Home {
    /// The first part with a value of its identity.
    value: Option<usize>,
    /// The first part with any value of its instant.
    instant: Option<usize>,
}

/// Finds the parts that have the identity and the instant of each sample. The work is linear in the stored
/// values within the span of the write. Names are compared once for each part.
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

/// The part that has the identity of a sample, or that has its instant and room for one more value.
fn part_for(drafts: &mut [Draft<'_>], home: Home, sample: &Sample, keys: &Keys, capacity: Capacity) -> Option<usize> {
    if home.value.is_some() {
        return home.value;
    }
    let size = &mut drafts[home.instant?].size;
    let with_it = Size { bytes: size.bytes + keys.joining_bytes(sample), ..*size };
    capacity.has_bytes_for(with_it).then(|| *size = with_it)?;
    home.instant
}

/// Adds new instants to the last part while it has room, and returns the rest.
///
/// If instants are left, the part is marked full.
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
/// Every writer finds the same part for an instant: the first part that does not end before the instant and
/// is not full.
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

/// Raises the last instant of each part to which samples were added. It is never lower than in the parts
/// before.
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

/// The new parts for `chunks` of instants. They follow `before`, the last part.
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
        let metadata = metadata.cloned();
        let part = Part { number, layout, rev: 1, full, deleted_from: false, last, metadata, contents };
        Change { part, guard: None, new_keys }
    };
    chunks.into_iter().enumerate().map(insert).collect()
}
