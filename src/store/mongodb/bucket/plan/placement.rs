//! The choice of a part for instants that no part has.

use super::super::capacity::{Capacity, Keys, Size};
use super::Draft;
use crate::model::Sample;

/// Adds new instants to the last part while it has room, and returns the others. If there are others, the
/// part is full.
pub(super) fn add_to_last<'a>(
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
pub(super) fn add_to_open<'a>(
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
pub(super) fn chunks<'a>(mut instants: &'a [&'a [Sample]], keys: &Keys, capacity: Capacity) -> Vec<&'a [&'a [Sample]]> {
    let mut chunks = Vec::new();
    while !instants.is_empty() {
        let count = count_fitting(instants, Size::default(), keys, capacity).max(1);
        let (chunk, rest) = instants.split_at(count);
        chunks.push(chunk);
        instants = rest;
    }
    chunks
}
