//! The pending hours of one device.

use std::collections::BTreeMap;

use super::HourSlot;
use crate::model::Hour;

/// The most hours in a list.
///
/// An insertion or a removal moves the others, under the lock of pending.
const FEW: usize = 32;

/// The hours of a device, ascending.
///
/// There is nearly always one hour; an import may have thousands. Finding, inserting and removing an hour
/// takes logarithmic time, whatever a device sends.
#[expect(clippy::box_collection, reason = "a device fills a cache line, and a map by itself would not fit")]
#[derive(Debug)]
pub(super) enum Hours {
    One(HourSlot),
    Few(Vec<HourSlot>),
    Many(Box<BTreeMap<Hour, HourSlot>>),
}

impl Hours {
    pub(super) const EMPTY: Self = Self::Few(Vec::new());

    pub(super) fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    pub(super) fn first(&self) -> Option<&HourSlot> {
        match self {
            Self::One(slot) => Some(slot),
            Self::Few(slots) => slots.first(),
            Self::Many(slots) => slots.first_key_value().map(|(_, slot)| slot),
        }
    }

    pub(super) fn last(&self) -> Option<&HourSlot> {
        match self {
            Self::One(slot) => Some(slot),
            Self::Few(slots) => slots.last(),
            Self::Many(slots) => slots.last_key_value().map(|(_, slot)| slot),
        }
    }

    #[inline]
    pub(super) fn find(&self, hour: Hour) -> Option<&HourSlot> {
        match self {
            Self::One(slot) => Some(slot).filter(|slot| slot.hour == hour),
            Self::Few(slots) => place_of(slots, hour).ok().map(|at| &slots[at]),
            Self::Many(slots) => slots.get(&hour),
        }
    }

    #[inline]
    pub(super) fn find_mut(&mut self, hour: Hour) -> Option<&mut HourSlot> {
        match self {
            Self::One(slot) => Some(slot).filter(|slot| slot.hour == hour),
            Self::Few(slots) => place_of(slots, hour).ok().map(|at| &mut slots[at]),
            Self::Many(slots) => slots.get_mut(&hour),
        }
    }

    /// The hours from `hour` on, ascending.
    pub(super) fn from(&self, hour: Hour) -> impl Iterator<Item = &HourSlot> {
        let (few, many) = match self {
            Self::One(slot) => (std::slice::from_ref(slot), None),
            Self::Few(slots) => (&slots[..], None),
            Self::Many(slots) => (&[][..], Some(slots.range(hour..))),
        };
        let few = &few[few.partition_point(|slot| slot.hour < hour)..];
        few.iter().chain(many.into_iter().flatten().map(|(_, slot)| slot))
    }

    /// Adds an hour that is not there yet.
    #[cold]
    pub(super) fn insert(&mut self, slot: HourSlot) {
        match self {
            Self::Few(slots) if slots.is_empty() => *self = Self::One(slot),
            Self::One(only) => {
                let mut slots = vec![*only, slot];
                slots.sort_unstable_by_key(|slot| slot.hour);
                *self = Self::Few(slots);
            }
            Self::Few(slots) if slots.len() == FEW => {
                let all = std::mem::take(slots).into_iter().chain([slot]);
                *self = Self::Many(Box::new(all.map(|slot| (slot.hour, slot)).collect()));
            }
            Self::Few(slots) => {
                if let Err(at) = place_of(slots, slot.hour) {
                    slots.insert(at, slot);
                }
            }
            Self::Many(slots) => _ = slots.insert(slot.hour, slot),
        }
    }

    pub(super) fn remove(&mut self, hour: Hour) {
        match self {
            Self::One(slot) if slot.hour == hour => *self = Self::EMPTY,
            Self::One(_) => {}
            Self::Few(slots) => {
                if let Ok(at) = place_of(slots, hour) {
                    slots.remove(at);
                }
            }
            Self::Many(slots) => _ = slots.remove(&hour),
        }
    }
}

#[inline]
fn place_of(slots: &[HourSlot], hour: Hour) -> Result<usize, usize> {
    slots.binary_search_by_key(&hour, |slot| slot.hour)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn slot(hour: i32) -> HourSlot {
        HourSlot { hour: Hour(hour), open: None, in_flight: None }
    }

    fn numbers<'a>(slots: impl IntoIterator<Item = &'a HourSlot>) -> Vec<i32> {
        slots.into_iter().map(|slot| slot.hour.0).collect()
    }

    proptest! {
        #[test]
        fn hours_are_those_of_a_set(steps in prop::collection::vec((any::<bool>(), -50..50i32), 1..300)) {
            let (mut hours, mut model) = (Hours::EMPTY, BTreeSet::new());
            for (inserts, hour) in steps {
                if !inserts {
                    model.remove(&hour);
                    hours.remove(Hour(hour));
                } else if model.insert(hour) {
                    hours.insert(slot(hour));
                }
                prop_assert_eq!(hours.is_empty(), model.is_empty());
                prop_assert_eq!(hours.first().map(|slot| slot.hour.0), model.first().copied());
                prop_assert_eq!(hours.last().map(|slot| slot.hour.0), model.last().copied());
                prop_assert_eq!(numbers(hours.from(Hour(hour))), model.range(hour..).copied().collect::<Vec<_>>());
                prop_assert_eq!(hours.find(Hour(hour)).is_some(), model.contains(&hour));
                prop_assert_eq!(hours.find_mut(Hour(hour)).is_some(), model.contains(&hour));
                prop_assert!(!matches!(&hours, Hours::Few(slots) if slots.len() > FEW));
            }
        }
    }

    /// The slots that a list moves for each hour, from the newest hour to the oldest and back.
    #[test]
    fn a_hundred_thousand_hours_move_few_slots_each() {
        let mut hours = Hours::EMPTY;
        let mut moved = 0;
        let of_list = |hours: &Hours| if let Hours::Few(slots) = hours { slots.len() } else { 1 };
        for hour in (0..100_000).rev() {
            moved += of_list(&hours);
            hours.insert(slot(hour));
        }
        for hour in 0..100_000 {
            moved += of_list(&hours);
            hours.remove(Hour(hour));
        }
        assert!(hours.is_empty());
        assert!(moved <= 200_000 + 2 * FEW * FEW, "{moved} slots moved");
    }
}
