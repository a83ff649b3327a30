//! Whether the log has reached its limit, and the log lines about want of space: one when it begins, one when
//! it ends.
//!
//! Small batches may still fit while larger ones do not, so an end takes more than one append that succeeds.

/// Whether the log has reached its limit.
#[derive(Debug, Default)]
pub(super) struct Fullness {
    full: bool,
}

/// Something to tell the operator.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The log has reached its limit, in bytes.
    Full(u64),
    /// There is room below the limit again: so many bytes are in use.
    Room(u64),
    /// The disk has so little free space that the reserve is touched, in bytes.
    DiskLow { free: u64, min_free: u64 },
    /// The disk is full: what the system said.
    DiskFull(String),
    /// No file can be opened: what the system said.
    NoFiles(String),
    /// The disk takes appends again, and has so many bytes free.
    DiskRoom(u64),
}

impl Fullness {
    /// Whether appends are being refused, while the log uses so many bytes of `max_bytes`. Whoever goes by it
    /// may stop to send, so that nothing is appended or cut any more: it must not stay true for that alone.
    pub(super) fn is_refusing(&self, used_bytes: u64, max_bytes: u64) -> bool {
        self.full && !has_room(used_bytes, max_bytes)
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
            News::DiskLow { free: free_bytes, min_free: min_free_bytes } => tracing::warn!(
                free_bytes,
                min_free_bytes,
                "the disk of the log is nearly full (log.min_free_bytes): readings are refused until the store has taken \
                 what the log holds, or there is more space"
            ),
            News::NoFiles(error) => tracing::warn!(
                error,
                "the process has too many open files: readings are refused; see ulimit -n and http.max_connections"
            ),
            News::DiskRoom(free_bytes) => {
                tracing::info!(free_bytes, "the disk of the log has room again: readings are taken");
            }
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
}
