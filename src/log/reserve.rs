//! The reserve: space that the log leaves free on its disk, so that the store on the same disk can still
//! write, and the log be cut behind what is stored.
//!
//! The free space is asked for about once a second, and by the writer when it has written a quarter of what
//! was to spare.

use std::time::{Duration, Instant};

use super::fullness::FullnessChange;
use crate::disk::Space;

/// How long no write may have failed before the disk counts as having space again, where the free space says
/// nothing: under a quota, or when files have run out.
const QUIET: Duration = Duration::from_secs(10);

/// The bounds of [`Reserve::margin`].
const MARGIN_BYTES: std::ops::RangeInclusive<u64> = 256 << 10..=16 << 20;

/// How much of its disk the log leaves free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinFree {
    /// So many bytes. With 0 the log takes all there is.
    Bytes(u64),
    /// What the store needs for its next writes, but at most half of the disk.
    ForStore(u64),
}

/// What is known of the space on the disk of the log.
#[derive(Debug)]
pub(super) struct Reserve {
    min_free: MinFree,
    /// The space when it was last asked for.
    space: Space,
    /// Bytes that the log has written since.
    written: u64,
    /// The reserve was touched, and the space beyond it has not reached the margin since.
    low: bool,
    /// A write failed in spite of the reserve.
    failed: Option<Failed>,
}

#[derive(Debug)]
struct Failed {
    at: Instant,
    /// The free space at that time.
    free: u64,
}

impl Reserve {
    pub(super) const fn new(min_free: MinFree) -> Self {
        Self { min_free, space: Space { free: 0, total: 0 }, written: 0, low: false, failed: None }
    }

    /// Whether appends are refused without a try.
    pub(super) const fn is_low(&self) -> bool {
        self.low
    }

    /// Whether appends are refused, or failed when they were tried last.
    pub(super) const fn is_refusing(&self) -> bool {
        self.low || self.failed.is_some()
    }

    /// Whether the free space has to be asked for before so many bytes are written.
    pub(super) fn must_look(&self, bytes: u64) -> bool {
        self.bytes() > 0 && self.written.saturating_add(bytes) > self.space.free.saturating_sub(self.bytes()) / 4
            || self.space.total == 0
    }

    /// Takes note of the space that there is now.
    pub(super) fn looked(&mut self, space: Space, now: Instant) -> Option<FullnessChange> {
        let was_refusing = self.is_refusing();
        (self.space, self.written) = (space, 0);
        let has_margin = self.spare() >= self.margin();
        self.low = if self.low { !has_margin } else { space.free < self.bytes() };
        let margin = self.margin();
        self.failed.take_if(|failed| {
            has_margin && (space.free >= failed.free.saturating_add(margin) || now - failed.at >= QUIET)
        });
        match (was_refusing, self.is_refusing()) {
            (false, true) => Some(self.low_change()),
            (true, false) => Some(FullnessChange::DiskHasSpace(space.free)),
            _ => None,
        }
    }

    /// Takes so many bytes of the space for a write, unless that would touch the reserve.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), Option<FullnessChange>> {
        if self.bytes() == 0 || bytes <= self.spare() {
            self.written += bytes;
            return Ok(());
        }
        // If there is the margin, only this write is too large.
        let begins = self.spare() < self.margin() && !self.is_refusing();
        self.low |= self.spare() < self.margin();
        Err(begins.then(|| self.low_change()))
    }

    /// Notes that a write failed for `why`. Returns `why` if that is a change.
    pub(super) fn failed(&mut self, why: FullnessChange, free: u64, now: Instant) -> Option<FullnessChange> {
        let begins = !self.is_refusing();
        self.failed = Some(Failed { at: now, free });
        begins.then_some(why)
    }

    /// How much is to be left free.
    fn bytes(&self) -> u64 {
        match self.min_free {
            MinFree::Bytes(bytes) => bytes,
            MinFree::ForStore(bytes) => bytes.min(self.space.total / 2),
        }
    }

    /// What the log may still write.
    fn spare(&self) -> u64 {
        self.space.free.saturating_sub(self.bytes()).saturating_sub(self.written)
    }

    /// How much has to be to spare before readings are taken again, so that this does not change with each
    /// write.
    fn margin(&self) -> u64 {
        (self.bytes() / 16).clamp(*MARGIN_BYTES.start(), *MARGIN_BYTES.end())
    }

    fn low_change(&self) -> FullnessChange {
        FullnessChange::DiskLow { free: self.space.free, min_free: self.bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn space(free: u64) -> Space {
        Space { free: free * MIB, total: 100 * MIB }
    }

    #[test]
    fn the_reserve_is_left_and_readings_are_taken_again_with_a_margin() {
        let (mut reserve, now) = (Reserve::new(MinFree::Bytes(40 * MIB)), Instant::now());
        assert!(reserve.must_look(1), "nothing is known yet");
        assert_eq!(reserve.looked(space(50), now), None);
        assert!(!reserve.must_look(2 * MIB) && reserve.must_look(3 * MIB));
        assert_eq!((reserve.take(9 * MIB), reserve.must_look(1)), (Ok(()), true));
        let low = FullnessChange::DiskLow { free: 50 * MIB, min_free: 40 * MIB };
        assert_eq!((reserve.take(2 * MIB), reserve.is_low()), (Err(Some(low)), true));
        assert_eq!((reserve.take(2 * MIB), reserve.looked(space(41), now)), (Err(None), None));
        assert_eq!((reserve.looked(space(42), now), reserve.is_refusing()), (None, true), "the margin is 2.5 MiB");
        assert_eq!(
            (reserve.looked(space(43), now), reserve.is_refusing()),
            (Some(FullnessChange::DiskHasSpace(43 * MIB)), false)
        );
        assert_eq!((reserve.looked(space(41), now), reserve.is_low()), (None, false), "that is more than the reserve");
        let low = FullnessChange::DiskLow { free: 39 * MIB, min_free: 40 * MIB };
        assert_eq!((reserve.looked(space(39), now), reserve.is_low()), (Some(low), true), "others write too");
    }

    #[test]
    fn one_write_that_is_too_large_does_not_close_the_log() {
        let (mut reserve, now) = (Reserve::new(MinFree::Bytes(40 * MIB)), Instant::now());
        reserve.looked(space(60), now);
        assert_eq!((reserve.take(30 * MIB), reserve.is_refusing(), reserve.take(MIB)), (Err(None), false, Ok(())));
    }

    #[test]
    fn the_reserve_for_the_store_is_at_most_half_of_the_disk_and_grows_with_it() {
        let (mut reserve, now) = (Reserve::new(MinFree::ForStore(80 * MIB)), Instant::now());
        reserve.looked(space(100), now);
        assert_eq!(reserve.bytes(), 50 * MIB);
        reserve.looked(Space { free: 300 * MIB, total: 400 * MIB }, now);
        assert_eq!(reserve.bytes(), 80 * MIB);
    }

    #[test]
    fn without_a_reserve_the_log_takes_all_there_is() {
        let (mut reserve, now) = (Reserve::new(MinFree::Bytes(0)), Instant::now());
        reserve.looked(space(0), now);
        assert_eq!((reserve.take(MIB), reserve.must_look(MIB), reserve.is_refusing()), (Ok(()), false, false));
    }

    #[test]
    fn a_failed_write_is_reported_once_until_space_or_time_heals_it() {
        let (mut reserve, now) = (Reserve::new(MinFree::Bytes(0)), Instant::now());
        let why = || FullnessChange::DiskFull("no space".to_owned());
        assert_eq!((reserve.failed(why(), 0, now), reserve.failed(why(), 0, now)), (Some(why()), None));
        assert_eq!((reserve.looked(space(0), now + QUIET), reserve.is_refusing()), (None, true));
        assert_eq!(
            (reserve.looked(space(1), now), reserve.is_refusing()),
            (Some(FullnessChange::DiskHasSpace(MIB)), false)
        );
        // Under a quota there is space, and writes fail all the same.
        assert_eq!(reserve.failed(why(), 50 * MIB, now), Some(why()));
        assert_eq!((reserve.looked(space(50), now), reserve.is_low(), reserve.is_refusing()), (None, false, true));
        assert_eq!(reserve.looked(space(50), now + QUIET), Some(FullnessChange::DiskHasSpace(50 * MIB)));
    }
}
