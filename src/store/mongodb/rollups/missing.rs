//! Finds the hours that have no rollup. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::model::Hour;
use crate::store::HourStats;

/// Hours without a rollup, and the devices that lack these rollups.
///
/// Most devices lack the rollups of the same hours: those of the current day.
#[derive(Debug, PartialEq)]
pub struct Missing {
    pub(in super::super) devices: Vec<Arc<str>>,
    /// The hours as runs: ascending, none empty, none adjacent.
    pub(in super::super) runs: Vec<Range<Hour>>,
}

/// Finds the hours in `hours` that have no rollup. `found` has the rollups of each device, ascending.
pub(in super::super) fn missing(devices: &[Arc<str>], hours: &Range<Hour>, found: &[Vec<HourStats>]) -> Vec<Missing> {
    missing_from(devices, |_| hours.start, hours.end, found)
}

/// Finds the hours before `end` that have no rollup, as [`missing`] does. For the device at index i, they
/// begin at `from(i)`.
pub(in super::super) fn missing_from(
    devices: &[Arc<str>],
    from: impl Fn(usize) -> Hour,
    end: Hour,
    found: &[Vec<HourStats>],
) -> Vec<Missing> {
    by_runs(devices.iter().zip(found).enumerate().map(|(at, (device, found))| {
        let start = from(at);
        (device, gaps(&(start..end), &found[found.partition_point(|stats| stats.hour < start)..]))
    }))
}

/// Groups the hours of buckets as [`missing`] does.
pub(in super::super) fn grouped(buckets: &[(Arc<str>, Hour)]) -> Vec<Missing> {
    let mut devices: BTreeMap<&Arc<str>, BTreeSet<Hour>> = BTreeMap::new();
    for (device, hour) in buckets {
        devices.entry(device).or_default().insert(*hour);
    }
    by_runs(devices.into_iter().map(|(device, hours)| (device, runs(hours))))
}

/// Groups devices that have the same runs of hours.
fn by_runs<'a>(devices: impl Iterator<Item = (&'a Arc<str>, Vec<(Hour, Hour)>)>) -> Vec<Missing> {
    let mut groups: BTreeMap<Vec<(Hour, Hour)>, Vec<Arc<str>>> = BTreeMap::new();
    for (device, runs) in devices.filter(|(_, runs)| !runs.is_empty()) {
        groups.entry(runs).or_default().push(Arc::clone(device));
    }
    let group = |(runs, devices): (Vec<(Hour, Hour)>, _)| Missing {
        devices,
        runs: runs.into_iter().map(|(start, end)| start..end).collect(),
    };
    groups.into_iter().map(group).collect()
}

fn gaps(hours: &Range<Hour>, found: &[HourStats]) -> Vec<(Hour, Hour)> {
    let mut gaps = Vec::new();
    let mut next = hours.start;
    for hour in found.iter().map(|stats| stats.hour).chain([hours.end]) {
        if next < hour {
            gaps.push((next, hour));
        }
        next = Hour(hour.0.saturating_add(1));
    }
    gaps
}

/// The runs of some hours, ascending.
fn runs(hours: impl IntoIterator<Item = Hour>) -> Vec<(Hour, Hour)> {
    let mut runs: Vec<(Hour, Hour)> = Vec::new();
    for hour in hours {
        let next = Hour(hour.0 + 1);
        match runs.last_mut().filter(|(_, end)| *end == hour) {
            Some((_, end)) => *end = next,
            None => runs.push((hour, next)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_lack_the_same_hours_are_grouped() {
        let found = |hours: &[i32]| -> Vec<HourStats> {
            hours.iter().map(|&hour| HourStats { hour: Hour(hour), last_ts_ms: 0, stats: Vec::new() }).collect()
        };
        let devices = ["a", "b", "c", "d", "e"].map(Arc::from);
        let all = [found(&[2, 3, 4]), found(&[]), found(&[2, 3, 4, 5, 6]), found(&[2, 3, 4]), found(&[3, 4, 6])];
        let run = |from, to| Hour(from)..Hour(to);
        let of = |at: &[usize], runs: &[Range<Hour>]| Missing {
            devices: at.iter().map(|&at| Arc::clone(&devices[at])).collect(),
            runs: runs.to_vec(),
        };
        let expected = [of(&[4], &[run(2, 3), run(5, 6)]), of(&[1], &[run(2, 7)]), of(&[0, 3], &[run(5, 7)])];
        assert_eq!(missing(&devices, &run(2, 7), &all), expected);
    }

    #[test]
    fn buckets_are_grouped_by_the_hours_of_their_devices() {
        let bucket = |(device, hour): (&str, i32)| (Arc::from(device), Hour(hour));
        let buckets: Vec<_> =
            [("a", 3), ("b", 1), ("a", 1), ("c", 7), ("b", 3), ("a", 2), ("c", 7)].into_iter().map(bucket).collect();
        let of = |device: &str, runs: &[Range<Hour>]| Missing { devices: vec![device.into()], runs: runs.to_vec() };
        let run = |from, to| Hour(from)..Hour(to);
        let expected = [of("b", &[run(1, 2), run(3, 4)]), of("a", &[run(1, 4)]), of("c", &[run(7, 8)])];
        assert_eq!(grouped(&buckets), expected);
        assert_eq!(grouped(&[]), []);
    }
}
