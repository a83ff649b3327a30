//! The reserve: space that the log leaves free on its disk.
//!
//! A store on the same disk can then still write, and the log can be cut behind the stored readings. The log
//! checks the free space about once a second, and when the writer has used a quarter of the space above the
//! reserve.

use std::time::{Duration, Instant};

use super::fullness::FullnessChange;
use crate::disk::Space;

/// After this time without a failed write, the log tries to write again.
///
/// The free space may say nothing about the failure: a quota may be used up, or the process may have no file
/// descriptors.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The bounds of [`Reserve::margin`].
const MARGIN_BYTES: std::ops::RangeInclusive<u64> = 256 << 10..=16 << 20;

/// How much of its disk the log leaves free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinFree {
    /// This many bytes. With 0 the log uses the whole disk.
    Bytes(u64),
    /// The bytes that the store needs for its next writes, but at most half of the disk.
    ForStore(u64),
}

/// The state of the space on the disk of the log.
#[derive(Debug)]
pub(super) struct Reserve {
    min_free: MinFree,
    /// The space at the last check.
    space: Space,
    /// Bytes that the log has written since the last check.
    written: u64,
    /// The log refuses appends, because the disk has too little free space.
    ///
    /// This begins when a write would touch the reserve, or when a check finds less free space than the
    /// reserve. It ends when a check finds at least [`Self::margin`] above the reserve.
    low: bool,
    /// The last write that failed despite the reserve, until the log tries again.
    failed: Option<Failed>,
}

#[derive(Debug)]
struct Failed {
    at: Instant,
    /// The free space when the write failed.
    free: u64,
}

impl Reserve {
    pub(super) const fn new(min_free: MinFree) -> Self {
        Self { min_free, space: Space { free: 0, total: 0 }, written: 0, low: false, failed: None }
    }

    /// Whether the log refuses appends without trying a write.
    pub(super) const fn is_low(&self) -> bool {
        self.low
    }

    /// Whether the log refuses appends, or the last write failed.
    pub(super) const fn is_refusing(&self) -> bool {
        self.low || self.failed.is_some()
    }

    /// Whether the free space has to be checked before `bytes` are written.
    pub(super) fn needs_update(&self, bytes: u64) -> bool {
        self.bytes() > 0 && self.written.saturating_add(bytes) > self.space.free.saturating_sub(self.bytes()) / 4
            || self.space.total == 0
    }

    /// Notes the space that a check has found, and returns a change to be logged.
    pub(super) fn update(&mut self, space: Space, now: Instant) -> Option<FullnessChange> {
        let was_refusing = self.is_refusing();
        (self.space, self.written) = (space, 0);
        let has_margin = self.left() >= self.margin();
        self.low = if self.low { !has_margin } else { space.free < self.bytes() };
        let margin = self.margin();
        self.failed.take_if(|failed| {
            has_margin && (space.free >= failed.free.saturating_add(margin) || now - failed.at >= RETRY_AFTER)
        });
        match (was_refusing, self.is_refusing()) {
            (false, true) => Some(self.low_change()),
            (true, false) => Some(FullnessChange::DiskHasSpace(space.free)),
            _ => None,
        }
    }

    /// Takes space for a write; fails if that would touch the reserve.
    ///
    /// The error has a change to be logged if the log refuses all appends from now on.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), Option<FullnessChange>> {
        if self.bytes() == 0 || bytes <= self.left() {
            self.written += bytes;
            return Ok(());
        }
        // If a margin is left, only this write is too large, and smaller writes go on.
        let begins = self.left() < self.margin() && !self.is_refusing();
        self.low |= self.left() < self.margin();
        Err(begins.then(|| self.low_change()))
    }

    /// Notes that a write failed for `why`.
    ///
    /// Returns `why` unless the log was refusing appends before.
    pub(super) fn failed(&mut self, why: FullnessChange, free: u64, now: Instant) -> Option<FullnessChange> {
        let begins = !self.is_refusing();
        self.failed = Some(Failed { at: now, free });
        begins.then_some(why)
    }

    /// The size of the reserve, in bytes.
    fn bytes(&self) -> u64 {
        self.bytes_of(self.space)
    }

    fn bytes_of(&self, space: Space) -> u64 {
        match self.min_free {
            MinFree::Bytes(bytes) => bytes,
            MinFree::ForStore(bytes) => bytes.min(space.total / 2),
        }
    }

    /// The bytes that the log may write on a disk with this space.
    pub(super) fn left_of(&self, space: Space) -> u64 {
        space.free.saturating_sub(self.bytes_of(space))
    }

    /// The bytes that the log may still write; 0 while the space is unknown.
    pub(super) fn left(&self) -> u64 {
        self.left_of(self.space).saturating_sub(self.written)
    }

    /// The bytes that a log of `used_bytes` may use before it touches the reserve.
    ///
    /// `u64::MAX` while the space is unknown.
    pub(super) fn limit(&self, used_bytes: u64) -> u64 {
        let is_known = self.space.total > 0;
        if is_known { used_bytes.saturating_add(self.left()) } else { u64::MAX }
    }

    /// The space above the reserve at which appends are accepted again (hysteresis).
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
    fn the_reserve_stays_free_and_appends_resume_with_a_margin() {
        let (mut reserve, now) = (Reserve::new(MinFree::Bytes(40 * MIB)), Instant::now());
        assert!(reserve.needs_update(1), "the space is unknown");
        assert_eq!(reserve.limit(5), u64::MAX);
        assert_eq!(reserve.update(space(50), now), None);
        assert!(!reserve.needs_update(2 * MIB) && reserve.needs_update(3 * MIB));
        assert_eq!(reserve.limit(5 * MIB), 15 * MIB);
        assert_eq!((reserve.take(9 * MIB), reserve.needs_update(1)), (Ok(()), true));
        assert_eq!(reserve.limit(14 * MIB), 15 * MIB);
        let low = FullnessChange::DiskLow { free: 50 * MIB, min_free: 40 * MIB };
        assert_eq!((reserve.take(2 * MIB), reserve.is_low()), (Err(Some(low)), true));
        assert_eq!((reserve.take(2 * MIB), reserve.update(space(41), now)), (Err(None), None));
        assert_eq!((reserve.update(space(42), now), reserve.is_refusing()), (None, true), "the margin is 2.5 MiB");
        assert_eq!(
            (reserve.update(space(43), now), reserve.is_refusing()),
            (Some(FullnessChange::DiskHasSpace(43 * MIB)), false)
        );
        assert_eq!((reserve.update(space(41), now), reserve.is_low()), (None, false), "more than the reserve is free");
        let low = FullnessChange::DiskLow { free: 39 * MIB, min_free: 40 * MIB };
        assert_eq!((reserve.update(space(39), now), reserve.is_low()), (Some(low), true), "other programs write too");
    }

    #[test]
    fn one_write_that_is_too_large_does_not_close_the_log() {
        let (mut reserve, now) = (Reserve::new(MinFree::Bytes(40 * MIB)), Instant::now());
        reserve.update(space(60), now);
        assert_eq!((reserve.take(30 * MIB), reserve.is_refusing(), reserve.take(MIB)), (Err(None), false, Ok(())));
    }

    #[test]
    fn the_reserve_for_a_store_is_at_most_half_of_the_disk() {
        let (mut reserve, now) = (Reserve::new(MinFree::ForStore(80 * MIB)), Instant::now());
        reserve.update(space(100), now);
        assert_eq!(reserve.bytes(), 50 * MIB);
        reserve.update(Space { free: 300 * MIB, total: 400 * MIB }, now);
        assert_eq!(reserve.bytes(), 80 * MIB);
    }

    #[test]
    fn without_a_reserve_the_log_uses_the_whole_disk() {
        let (mut reserve, now) = (Reserve::new(MinFree::Bytes(0)), Instant::now());
        reserve.update(space(0), now);
        assert_eq!((reserve.take(MIB), reserve.needs_update(MIB), reserve.is_refusing()), (Ok(()), false, false));
    }

    #[test]
    fn a_failed_write_is_reported_once_until_space_or_time_heals_it() {
        let (mut reserve, now) = (Reserve::new(MinFree::Bytes(0)), Instant::now());
        let why = || FullnessChange::DiskFull("no space".to_owned());
        assert_eq!((reserve.failed(why(), 0, now), reserve.failed(why(), 0, now)), (Some(why()), None));
        assert_eq!((reserve.update(space(0), now + RETRY_AFTER), reserve.is_refusing()), (None, true));
        assert_eq!(
            (reserve.update(space(1), now), reserve.is_refusing()),
            (Some(FullnessChange::DiskHasSpace(MIB)), false)
        );
        // Under a quota, writes fail although the disk has free space.
        assert_eq!(reserve.failed(why(), 50 * MIB, now), Some(why()));
        assert_eq!((reserve.update(space(50), now), reserve.is_low(), reserve.is_refusing()), (None, false, true));
        assert_eq!(reserve.update(space(50), now + RETRY_AFTER), Some(FullnessChange::DiskHasSpace(50 * MIB)));
    }
}
