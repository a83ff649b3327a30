//! The detection of readings that overwrite others of the same request.
//!
//! If two values of one request have the same device, instant and series, the store keeps one of them
//! ([`Keep`]). Senders rarely mean that. If it keeps the last value, a reading that replaces another value of
//! its request is counted, and the answer names the first of these readings. If it keeps the first value,
//! each other value overwrites nothing: it counts as ignored
//! ([`Ignored::LaterValue`](crate::wire::Ignored::LaterValue)).
//!
//! Each reading has a key here: a hash of its device and its instant. The values of two readings are compared
//! only if their keys are equal. The keys have 64 bits and depend on a random seed, so readings with equal
//! keys are taken for readings of the same device and instant.

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use crate::access::DeviceScope;
use crate::log::Batch;
use crate::log::batch::{BatchView, Step};
use crate::model::Keep;

/// The most overwriting readings that an answer names.
const MAX_NAMED: usize = 10;

/// An odd number whose bits look random: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The readings of a request that overwrite other readings of the same request.
///
/// With [`Keep::First`], both fields are of the later values instead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overwritten {
    /// The number of readings that replaced at least one other value of the request.
    pub readings: u32,
    /// One replaced value of each of these readings, for the first ten readings.
    pub first: Vec<OverwrittenValue>,
}

/// A value that a later reading of the same request replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverwrittenValue {
    /// The client ID of the device.
    pub device: Box<str>,
    /// The instant, in Unix milliseconds.
    pub ts_ms: i64,
    /// The text of the series.
    pub metric: Box<str>,
}

/// Finds overwritten values by the keys of the readings of a request or batch.
#[derive(Debug, Default)]
pub(super) struct OverwriteCheck {
    /// One key for each accepted reading, never 0.
    keys: Vec<u64>,
    /// A number that differs between datagrams, so that they do not overwrite each other's readings.
    salt: u64,
}

impl OverwriteCheck {
    /// Starts the next datagram of a batch.
    pub(super) const fn start_datagram(&mut self) {
        self.salt = self.salt.wrapping_add(1 << 48);
    }

    /// Notes an accepted reading. `device` is a hash of the device ID.
    #[inline]
    pub(super) fn note(&mut self, device: u64, ts_ms: i64) {
        let instant = ts_ms.cast_unsigned().wrapping_add(self.salt).wrapping_mul(SPREAD);
        self.keys.push((device ^ instant) | 1);
    }

    /// Finds the overwritten values. `batch` has exactly the readings that were noted.
    ///
    /// With [`Keep::First`], it finds and counts each value that differs from the first instead.
    pub(super) fn end(self, batch: &Batch, scope: &DeviceScope, keep: Keep) -> Overwritten {
        let shared = self.shared_keys();
        if shared.is_empty() { Overwritten::default() } else { self.compare(&shared, batch, scope, keep) }
    }

    /// The keys that several readings have.
    fn shared_keys(&self) -> HashSet<u64, RandomState> {
        let mut shared = HashSet::default();
        if self.keys.len() < 2 {
            return shared;
        }
        let slots = (2 * self.keys.len()).next_power_of_two();
        let (mut table, shift) = (vec![0; slots], 64 - slots.trailing_zeros());
        for &key in &self.keys {
            let mut slot = (key.wrapping_mul(SPREAD) >> shift) as usize;
            loop {
                match table[slot] {
                    0 => {
                        table[slot] = key;
                        break;
                    }
                    found if found == key => {
                        shared.insert(key);
                        break;
                    }
                    _ => slot = (slot + 1) % slots,
                }
            }
        }
        shared
    }

    /// Compares the values of the readings that share a key.
    #[cold]
    fn compare(
        &self,
        shared: &HashSet<u64, RandomState>,
        batch: &Batch,
        scope: &DeviceScope,
        keep: Keep,
    ) -> Overwritten {
        let mut found = Overwritten::default();
        let Ok(BatchView { names, steps }) = BatchView::new(batch.payload()) else { return found };
        let mut known: HashMap<(u64, u16), u64, RandomState> = HashMap::default();
        let mut keys = self.keys.iter();
        let mut device = "";
        for step in steps.flatten() {
            match step {
                Step::Group { device: of_group, .. } => device = of_group.as_str(),
                Step::Reading { ts_ms, values } => {
                    let Some(key) = keys.next() else { break };
                    if !shared.contains(key) {
                        continue;
                    }
                    let mut is_found = false;
                    for (name, value) in values {
                        let kept = known.entry((*key, name)).or_insert(value.to_bits());
                        if *kept == value.to_bits() {
                            continue;
                        }
                        if keep == Keep::First || !is_found {
                            let metric = names[usize::from(name)].text;
                            found.add(scope.to_client_id(device).unwrap_or(device), ts_ms, metric);
                        }
                        is_found = true;
                        if keep == Keep::Last {
                            *kept = value.to_bits();
                        }
                    }
                }
            }
        }
        found
    }
}

impl Overwritten {
    fn add(&mut self, device: &str, ts_ms: i64, metric: &str) {
        self.readings += 1;
        if self.first.len() < MAX_NAMED {
            self.first.push(OverwrittenValue { device: device.into(), ts_ms, metric: metric.into() });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::hash::BuildHasher;

    use proptest::prelude::*;

    use super::*;
    use crate::log::BatchBuilder;

    /// A device, an instant and values.
    type Reading = (u8, i64, BTreeMap<u8, i8>);

    fn any_reading() -> impl Strategy<Value = Reading> {
        (0u8..3, 0i64..3, prop::collection::btree_map(0u8..4, 0i8..2, 1..4))
    }

    /// The devices, instants and metrics of values that differ from those that are kept so far.
    ///
    /// If the last values are kept, of each reading the first of them only.
    fn found(keep: Keep, readings: &[Reading]) -> Vec<(String, i64, String)> {
        let (mut check, mut batch) = (OverwriteCheck::default(), BatchBuilder::default());
        let hasher = RandomState::default();
        for (device, ts_ms, values) in readings {
            let names: Vec<_> = values.iter().map(|(name, value)| (name.to_string(), f64::from(*value))).collect();
            let device = device.to_string();
            batch.push(&device, None, *ts_ms, names.iter().map(|(name, value)| (&**name, *value))).unwrap();
            check.note(hasher.hash_one(device), *ts_ms);
        }
        let found = check.end(&batch.finish(), DeviceScope::all(), keep);
        assert_eq!(found.first.len(), (found.readings as usize).min(MAX_NAMED));
        found.first.into_iter().map(|value| (value.device.into(), value.ts_ms, value.metric.into())).collect()
    }

    proptest! {
        #[test]
        fn a_value_counts_when_a_map_of_all_values_has_another_one(
            keep in prop_oneof![Just(Keep::First), Just(Keep::Last)],
            readings in prop::collection::vec(any_reading(), 0..30),
        ) {
            let (mut known, mut expected) = (BTreeMap::<(u8, i64, u8), i8>::new(), Vec::new());
            for (device, ts_ms, values) in &readings {
                let others = values.iter().filter(|(name, value)| {
                    let identity = (*device, *ts_ms, **name);
                    let earlier = known.get(&identity).copied();
                    if earlier.is_none() || keep == Keep::Last {
                        known.insert(identity, **value);
                    }
                    earlier.is_some_and(|earlier| earlier != **value)
                });
                let others = others.map(|(name, _)| (device.to_string(), *ts_ms, name.to_string()));
                let others: Vec<_> = others.collect(); // all, because the filter also notes the values
                expected.extend(others.into_iter().take(if keep == Keep::First { usize::MAX } else { 1 }));
            }
            expected.truncate(MAX_NAMED);
            prop_assert_eq!(found(keep, &readings), expected);
        }
    }

    #[test]
    fn each_later_value_of_a_reading_counts_if_the_first_values_stay() {
        let readings = [0, 1].map(|value| (0, 0, BTreeMap::from([(0, value), (1, value)])));
        let metrics = |keep| found(keep, &readings).into_iter().map(|(.., metric)| metric).collect::<Vec<_>>();
        assert_eq!(metrics(Keep::First), ["0", "1"]);
        assert_eq!(metrics(Keep::Last), ["0"]);
    }

    #[test]
    fn the_readings_of_another_datagram_are_not_overwritten() {
        let (mut check, mut batch) = (OverwriteCheck::default(), BatchBuilder::default());
        for value in [1.0, 2.0] {
            batch.push("d", None, 5, [("m", value)].into_iter()).unwrap();
            check.start_datagram();
            check.note(7, 5);
        }
        assert_eq!(check.end(&batch.finish(), DeviceScope::all(), Keep::Last), Overwritten::default());
    }
}
