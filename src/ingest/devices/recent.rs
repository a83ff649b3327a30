//! What was let in lately, so that the next of its kind needs no look at its device.

use std::sync::atomic::{AtomicU32, Ordering};

/// The devices that were let in this hour with the same metrics, as far as they are remembered: one number
/// each, in a table that is small enough for the caches of the processor where the devices themselves are
/// not.
///
/// Each place holds the one that came last. Of four billion that are not remembered one is taken for one that
/// is, which lets in a reading too many at worst.
#[derive(Debug)]
pub(super) struct Recent(Box<[AtomicU32]>);

/// A device, the metrics of its reading, and the hour, as one number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind(u64);

impl Kind {
    pub(super) const fn of(id: u64, shape: u64, hour: u32) -> Self {
        let mixed = (id ^ shape.rotate_left(32)).wrapping_add(hour as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(mixed ^ (mixed >> 32))
    }

    const fn mark(self) -> u32 {
        (self.0 >> 32) as u32 | 1 // no place that is empty
    }
}

impl Recent {
    /// With a place for each of `devices`.
    pub(super) fn new(devices: usize) -> Self {
        Self((0..devices.next_power_of_two()).map(|_| AtomicU32::new(0)).collect())
    }

    pub(super) fn has(&self, kind: Kind) -> bool {
        self.place(kind).load(Ordering::Relaxed) == kind.mark()
    }

    pub(super) fn note(&self, kind: Kind) {
        self.place(kind).store(kind.mark(), Ordering::Relaxed);
    }

    fn place(&self, kind: Kind) -> &AtomicU32 {
        &self.0[kind.0 as usize & (self.0.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_its_device_metrics_and_hour() {
        let recent = Recent::new(1_000);
        let kind = Kind::of(1, 2, 3);
        assert!(!recent.has(kind));
        recent.note(kind);
        assert!(recent.has(kind));
        for other in [Kind::of(2, 2, 3), Kind::of(1, 3, 3), Kind::of(1, 2, 4), Kind::of(2, 1, 3)] {
            assert!(!recent.has(other), "{other:?}");
        }
    }

    #[test]
    fn most_are_remembered_while_there_are_as_many_places() {
        let recent = Recent::new(1 << 16);
        let kinds: Vec<Kind> =
            (0..1 << 14).map(|id: u64| Kind::of(id.wrapping_mul(0xd134_2543_de82_ef95), 7, 1)).collect();
        for &kind in &kinds {
            recent.note(kind);
        }
        let remembered = kinds.iter().filter(|&&kind| recent.has(kind)).count();
        assert!(remembered > kinds.len() * 8 / 10, "{remembered}");
    }
}
