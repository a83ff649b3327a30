//! Whether appends are refused for want of room, and that its beginning and its end are said once each.
//!
//! Small batches may still fit while larger ones do not, so an end takes more than one append that succeeds.

use std::time::{Duration, Instant};

/// How long no append may have been refused for want of disk before the disk counts as having room again.
const QUIET: Duration = Duration::from_secs(10);

/// Why there is no room, while there is none.
#[derive(Debug, Default)]
pub(super) struct Fullness {
    /// The log has reached its limit.
    full: bool,
    /// When an append was last refused because the disk is full.
    disk_refused: Option<Instant>,
}

/// Something to tell the operator.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The log has reached its limit, in bytes.
    Full(u64),
    /// There is room below the limit again: so many bytes are in use.
    Room(u64),
    /// The disk is full: what the system said.
    DiskFull(String),
    /// The disk takes appends again.
    DiskRoom,
}

impl Fullness {
    /// Whether appends are being refused, while the log uses so many bytes of `max_bytes`. Whoever goes by it may stop to
    /// send, so that nothing is appended or cut any more: it must not stay true for that alone.
    pub(super) fn is_refusing(&self, used_bytes: u64, max_bytes: u64) -> bool {
        let no_disk = self.disk_refused.is_some_and(|last| last.elapsed() < QUIET);
        no_disk || (self.full && !has_room(used_bytes, max_bytes))
    }

    /// An append does not fit below the limit.
    pub(super) fn refused(&mut self, max_bytes: u64) -> Option<News> {
        (!std::mem::replace(&mut self.full, true)).then_some(News::Full(max_bytes))
    }

    /// The log was cut, and uses so many bytes of `max_bytes`.
    pub(super) fn cut(&mut self, used_bytes: u64, max_bytes: u64) -> Option<News> {
        let ends = self.full && has_room(used_bytes, max_bytes);
        self.full &= !ends;
        ends.then_some(News::Room(used_bytes))
    }

    /// An append found no room on the disk.
    pub(super) fn disk_refused(&mut self, why: &str) -> Option<News> {
        let begins = self.disk_refused.replace(Instant::now()).is_none();
        begins.then(|| News::DiskFull(why.to_owned()))
    }

    /// An append was written.
    pub(super) fn written(&mut self) -> Option<News> {
        self.disk_refused.take_if(|last| last.elapsed() >= QUIET).map(|_| News::DiskRoom)
    }
}

/// A tenth has to be free.
const fn has_room(used_bytes: u64, max_bytes: u64) -> bool {
    used_bytes <= max_bytes / 10 * 9
}

/// Writes news as a log line. Not for where a lock is held.
pub(super) fn tell(news: Option<News>) {
    if let Some(news) = news {
        match news {
            News::Full(max_bytes) => tracing::warn!(
                max_bytes,
                "the log is full (log.max_bytes): readings are refused until the store has taken some of what it holds"
            ),
            News::Room(used_bytes) => tracing::info!(used_bytes, "the log has room again: readings are taken"),
            News::DiskFull(error) => tracing::warn!(error, "the disk of the log is full: readings are refused"),
            News::DiskRoom => tracing::info!("the disk of the log has room again: readings are taken"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_is_news_once_and_so_is_room_for_a_tenth() {
        let mut fullness = Fullness::default();
        assert_eq!((fullness.cut(5, 100), fullness.is_refusing(95, 100)), (None, false));
        assert_eq!((fullness.refused(100), fullness.is_refusing(95, 100)), (Some(News::Full(100)), true));
        assert_eq!((fullness.refused(100), fullness.cut(91, 100), fullness.is_refusing(91, 100)), (None, None, true));
        assert_eq!((fullness.cut(90, 100), fullness.is_refusing(95, 100)), (Some(News::Room(90)), false));
        assert_eq!((fullness.cut(90, 100), fullness.refused(100)), (None, Some(News::Full(100))));
        assert!(!fullness.is_refusing(50, 100), "one batch was too large");
    }

    #[test]
    fn a_full_disk_is_news_once_and_has_room_when_nothing_was_refused_for_a_while() {
        let mut fullness = Fullness::default();
        assert_eq!(fullness.written(), None);
        assert_eq!(fullness.disk_refused("no space"), Some(News::DiskFull("no space".to_owned())));
        assert_eq!((fullness.disk_refused("no space"), fullness.written()), (None, None));
        assert!(fullness.is_refusing(0, 100));
        fullness.disk_refused = fullness.disk_refused.and_then(|last| last.checked_sub(QUIET));
        assert!(!fullness.is_refusing(0, 100), "whoever went away has to be let in again");
        assert_eq!(fullness.written(), Some(News::DiskRoom));
    }
}
