//! Whether the log has reached its limit, and the log lines about lack of space.
//!
//! One line appears when the lack begins, and one when it ends. Small batches may still fit while larger ones
//! do not, so one successful append does not end the lack.

use crate::common::once_per_change::OncePerChange;

/// The most bytes of a usual record: as many as a connection of MQTT puts into one.
const USUAL_RECORD_BYTES: u64 = 256 << 10;

/// Whether the log has reached its limit.
#[derive(Debug, Default)]
pub(super) struct Fullness {
    full: OncePerChange,
}

/// A change of the space for appends, to be logged.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FullnessChange {
    /// The log has reached its limit, in bytes.
    Full(u64),
    /// The log is below its limit again. It uses this many bytes.
    HasSpace(u64),
    /// The disk has less free space than the reserve, in bytes.
    DiskLow { free: u64, min_free: u64 },
    /// The disk is full: the operating system's error.
    DiskFull(String),
    /// No file can be opened: the operating system's error.
    OutOfFiles(String),
    /// The disk accepts appends again. It has this many bytes free.
    DiskHasSpace(u64),
}

impl Fullness {
    /// Whether the log refuses appends while it uses `used_bytes` of `max_bytes`.
    ///
    /// Senders may stop sending while this is true, and then neither an append nor a cut may follow. So this
    /// depends on the bytes alone: it is false as soon as a usual record fits, or a tenth of the log is free.
    pub(super) fn is_refusing(&self, used_bytes: u64, max_bytes: u64) -> bool {
        self.full.holds() && used_bytes + USUAL_RECORD_BYTES.min(max_bytes / 10) > max_bytes
    }

    /// Whether the log was full, and uses `used_bytes` of `max_bytes`: less than a tenth of it is free.
    pub(super) const fn was_full(&self, used_bytes: u64, max_bytes: u64) -> bool {
        self.full.holds() && !has_space(used_bytes, max_bytes)
    }

    /// Notes that an append does not fit below the limit.
    pub(super) fn refused(&mut self, max_bytes: u64) -> Option<FullnessChange> {
        self.full.begins().then_some(FullnessChange::Full(max_bytes))
    }

    /// Notes that the log was cut, and uses `used_bytes` of `max_bytes`.
    pub(super) fn cut(&mut self, used_bytes: u64, max_bytes: u64) -> Option<FullnessChange> {
        let ends = has_space(used_bytes, max_bytes) && self.full.ends();
        ends.then_some(FullnessChange::HasSpace(used_bytes))
    }
}

/// Whether a tenth of the log is free.
const fn has_space(used_bytes: u64, max_bytes: u64) -> bool {
    used_bytes <= max_bytes / 10 * 9
}

/// Writes a change as a log line. Callers hold no lock.
pub(super) fn log_change(change: Option<FullnessChange>) {
    let Some(change) = change else { return };
    match change {
        FullnessChange::Full(max_bytes) => tracing::warn!(
            max_bytes,
            "the log is full (log.max_bytes): readings are refused until some of its readings are stored, and \
             forwarded if forward.url is set"
        ),
        FullnessChange::HasSpace(used_bytes) => {
            tracing::info!(used_bytes, "the log has room again: readings are accepted");
        }
        FullnessChange::DiskFull(error) => {
            tracing::warn!(error, "the disk of the log is full: readings are refused");
        }
        FullnessChange::DiskLow { free: free_bytes, min_free: min_free_bytes } => tracing::warn!(
            free_bytes,
            min_free_bytes,
            "the disk of the log is nearly full (log.min_free_bytes): readings are refused until the store has stored \
             the readings in the log, or the disk has more free space"
        ),
        FullnessChange::OutOfFiles(error) => tracing::warn!(
            error,
            "the process has too many open files: readings are refused; see ulimit -n and http.max_connections"
        ),
        FullnessChange::DiskHasSpace(free_bytes) => {
            tracing::info!(free_bytes, "the disk of the log has room again: readings are accepted");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_is_reported_once_and_so_is_a_free_tenth() {
        let mut fullness = Fullness::default();
        let (full, has_space) = (Some(FullnessChange::Full(100)), Some(FullnessChange::HasSpace(90)));
        assert_eq!((fullness.cut(5, 100), fullness.is_refusing(95, 100)), (None, false));
        assert_eq!((fullness.refused(100), fullness.is_refusing(95, 100)), (full, true));
        assert_eq!((fullness.refused(100), fullness.cut(91, 100), fullness.is_refusing(91, 100)), (None, None, true));
        assert_eq!((fullness.cut(90, 100), fullness.is_refusing(95, 100)), (has_space, false));
        assert_eq!((fullness.cut(90, 100), fullness.refused(100)), (None, Some(FullnessChange::Full(100))));
        assert!(!fullness.is_refusing(50, 100), "only one batch was too large");
    }

    #[test]
    fn a_full_log_refuses_until_a_usual_record_fits_and_was_full_until_a_tenth_is_free() {
        const MAX_BYTES: u64 = 100 << 20;
        let mut fullness = Fullness::default();
        let with_free = |fullness: &Fullness, free_bytes: u64| {
            let used_bytes = MAX_BYTES - free_bytes;
            (fullness.is_refusing(used_bytes, MAX_BYTES), fullness.was_full(used_bytes, MAX_BYTES))
        };
        assert_eq!(with_free(&fullness, 0), (false, false), "it has refused nothing");
        assert_eq!(fullness.refused(MAX_BYTES), Some(FullnessChange::Full(MAX_BYTES)));
        assert_eq!(fullness.cut(MAX_BYTES - USUAL_RECORD_BYTES, MAX_BYTES), None);
        assert_eq!(with_free(&fullness, USUAL_RECORD_BYTES - 1), (true, true));
        assert_eq!(with_free(&fullness, USUAL_RECORD_BYTES), (false, true));
        assert_eq!(with_free(&fullness, MAX_BYTES / 10 - 1), (false, true));
        assert_eq!(with_free(&fullness, MAX_BYTES / 10), (false, false));
    }
}
