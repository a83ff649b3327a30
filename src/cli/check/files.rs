//! The part of `tidegauge check --full` about the data folder: the log, its disk, dead letters, quarantine.

use std::ffi::OsStr;
use std::path::Path;

use tidegauge::common::finding::{Finding, Part, counted, size};
use tidegauge::config::{Bytes, Config};
use tidegauge::disk;
use tidegauge::flush::DeadLetters;
use tidegauge::log::recovery::{self, Inspection};
use tidegauge::log::{LogError, MinFree};

use super::forward;
use crate::cli::client::local_url;
use crate::cli::data_dir;
use crate::cli::serve::options;

const SEGMENTS: Part = Part::LogSegments;
const SIZE: Part = Part::LogSize;
const DISK: Part = Part::LogDisk;
const DEAD_LETTERS: Part = Part::LogDeadLetters;
const QUARANTINE: Part = Part::LogQuarantine;

/// The largest log that is read without `--deep`. Reading it takes some seconds.
const READ_MAX: u64 = 2 << 30;

/// The attempts to read a log that looks damaged.
///
/// A running service may cut the log while it is read, which looks like damage.
const ATTEMPTS: usize = 3;

/// Looks at the data folder. Blocks the thread while it reads files.
pub(super) fn look(config: &Config, is_deep: bool) -> Vec<Finding> {
    let data_dir = &config.server.data_dir;
    let log = data_dir::log_dir(data_dir);
    let mut findings = Vec::new();
    match (data_dir::expect_log(data_dir), bytes_in(&log)) {
        (Err(LogError::Missing(_)), _) => findings.push(Finding::error(
            SEGMENTS,
            format!("{} has no log any more, and store.json says that it had one", log.display()),
            format!(
                "if its volume is not mounted, or the folder was moved, put it back; otherwise a new log begins \
                without the readings that only the old one had: {} --quarantine",
                check_log(data_dir)
            ),
        )),
        (Err(error), _) => findings.push(unreadable(&error, data_dir)),
        (Ok(()), None) => {
            findings.push(Finding::note(SEGMENTS, format!("there is no log {} yet", log.display())));
        }
        (Ok(()), Some(on_disk)) => {
            let records = recovery::extent(&log).ok().flatten();
            let used = records.map_or(on_disk, |records| records.end.0.saturating_sub(records.start.0));
            findings.push(segments(&log, used, is_deep, data_dir));
            let waiting = if config.forward.url.is_some() { forward::waiting(config) } else { None };
            findings.push(log_size(used, config.log.max_bytes, waiting.map_or(0, |unread| unread.bytes)));
        }
    }
    findings.extend(disk_of_log(config, &log));
    findings.extend(dead_letters(config));
    findings.extend(quarantine(data_dir));
    findings
}

/// The bytes of the files in a folder; `None` if there is no such folder.
///
/// In the folder of the log, they include spare segments and the unused rest of the newest segment.
fn bytes_in(folder: &Path) -> Option<u64> {
    bytes_of(folder, |_| true)
}

/// The bytes of the files in a folder whose names `is_counted` selects; `None` if there is no such folder.
fn bytes_of(folder: &Path, is_counted: impl Fn(&OsStr) -> bool) -> Option<u64> {
    let files = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
    let files = files.filter(|file| is_counted(&file.file_name()));
    Some(files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum())
}

fn segments(log: &Path, used: u64, is_deep: bool, data_dir: &Path) -> Finding {
    if used > READ_MAX && !is_deep {
        let why = format!("the log has {}, more than {}; --deep reads any size", size(used), size(READ_MAX));
        return Finding::skipped(SEGMENTS, why);
    }
    let command = check_log(data_dir);
    match inspect(log) {
        Ok(found) if found.damage.is_empty() => {
            let readings: u64 = found.segments.iter().map(|segment| segment.readings).sum();
            Finding::ok(
                SEGMENTS,
                format!(
                    "the checksums are right ({}); {} behind the checkpoint not stored yet",
                    counted(found.segments.len() as u64, "segment"),
                    counted(readings, "reading")
                ),
            )
        }
        Ok(found) => {
            let first = &found.damage[0];
            let place = format!("{}, byte {}: {}", first.path.display(), first.offset, first.detail);
            Finding::error(
                SEGMENTS,
                format!("the log is damaged in {}, first in {place}", counted(found.damage.len() as u64, "place")),
                format!("stop the service and run: {command}; with --quarantine it sets the damaged bytes aside"),
            )
        }
        Err(error @ LogError::BadCheckpoint { .. }) => {
            Finding::error(SEGMENTS, error.to_string(), format!("stop the service and run: {command} --quarantine"))
        }
        Err(error) => unreadable(&error, data_dir),
    }
}

fn unreadable(error: &LogError, data_dir: &Path) -> Finding {
    let mend = format!("run the check as the user of the service: sudo -u tidegauge {}", check_log(data_dir));
    Finding::error(SEGMENTS, error.to_string(), mend)
}

/// The command that reports on the log.
fn check_log(data_dir: &Path) -> String {
    format!("tidegauge check --log --data-dir {}", data_dir.display())
}

/// Reads the log; a running service may change it meanwhile.
fn inspect(log: &Path) -> Result<Inspection, LogError> {
    let mut last = recovery::inspect(log);
    for _ in 1..ATTEMPTS {
        if last.as_ref().is_ok_and(|found| found.damage.is_empty()) {
            break;
        }
        last = recovery::inspect(log);
    }
    last
}

/// Compares the log with `log.max_bytes`.
///
/// `to_forward` bytes of it wait to be forwarded.
fn log_size(used: u64, Bytes(max): Bytes, to_forward: u64) -> Finding {
    let message = format!("the log takes {} of log.max_bytes, which is {}", size(used), size(max));
    let percent = used / (max / 100).max(1);
    let (found, mend) = if to_forward > used / 2 {
        let found = format!(
            "{message}, and {} of it wait for the server at forward.url: readings are refused when it is full",
            size(to_forward)
        );
        let mend = "see forward-reach and forward-lag: repair that server or the way to it, or raise log.max_bytes and \
                    restart (docs/operations.md, Forward lag)";
        (found, mend)
    } else {
        let found =
            format!("{message}: buckets are stored before their time, and readings are refused when it is full");
        let mend =
            "repair the store if it is away, or raise log.max_bytes and restart (docs/operations.md, Log filling)";
        (found, mend)
    };
    match percent {
        forward::ERROR_PERCENT.. => Finding::error(SIZE, found, mend),
        forward::WARNING_PERCENT.. => Finding::warning(SIZE, found, mend),
        _ => Finding::ok(SIZE, message),
    }
}

/// Compares the free space of the disk with what the log needs.
///
/// The log may grow to `log.max_bytes`, and leaves a reserve free.
fn disk_of_log(config: &Config, log: &Path) -> Option<Finding> {
    let place = log.ancestors().find(|folder| folder.exists())?;
    let space = match disk::space(place) {
        Ok(space) => space,
        Err(error) => return Some(Finding::skipped(DISK, format!("the space at {}: {error}", place.display()))),
    };
    let reserve = match options::min_free(config) {
        MinFree::Bytes(bytes) => bytes,
        MinFree::ForStore(bytes) => bytes.min(space.total / 2),
    };
    Some(judge_disk(space, bytes_in(log).unwrap_or(0), reserve, config.log.max_bytes.0))
}

fn judge_disk(space: disk::Space, used: u64, reserve: u64, max: u64) -> Finding {
    let most = (space.free.saturating_add(used)).saturating_sub(reserve);
    let message = format!("the disk of the log has {} of {} free", size(space.free), size(space.total));
    if space.free < reserve {
        return Finding::error(
            DISK,
            format!("{message}, less than the {} that the log leaves free: readings are refused", size(reserve)),
            "remove other files from the disk, or enlarge it; no restart is needed",
        );
    }
    if most < max {
        let fits = Bytes(most >> 20 << 20);
        return Finding::warning(
            DISK,
            format!("{message}: the log can take {}, and log.max_bytes is {}", size(most), size(max)),
            format!("set log.max_bytes = \"{fits}\" or less, so that its alerts come in time, or enlarge the disk"),
        );
    }
    Finding::ok(DISK, format!("{message}, enough for log.max_bytes of {}", size(max)))
}

fn dead_letters(config: &Config) -> Option<Finding> {
    let data_dir = &config.server.data_dir;
    let bytes = DeadLetters::bytes_at(&data_dir::dead_letters(data_dir));
    (bytes > 0).then(|| {
        let folder = data_dir.display();
        let url = match local_url(&config.http) {
            Ok(_) if config.http.tls.is_on() => format!("https://NAME:{}", config.http.listen.port()),
            Ok(url) => url,
            Err(_) => "http://NAME:PORT".to_owned(),
        };
        Finding::warning(
            DEAD_LETTERS,
            format!("the store refused readings permanently: {} of them are kept", size(bytes)),
            format!(
                "tidegauge dead-letters list --data-dir {folder} shows the reasons; remove these, then run: tidegauge \
                 dead-letters retry --data-dir {folder} --url {url}"
            ),
        )
    })
}

/// The findings about copies of damaged bytes, and about those of which a part was put back.
///
/// Copies of the checkpoint have no readings.
fn quarantine(data_dir: &Path) -> Vec<Finding> {
    let folder = data_dir::quarantine_dir(data_dir);
    let (aside, in_part) = ("their readings are lost", "only the readings of whole records were put back");
    let mut findings = Vec::new();
    for (suffix, state) in [(".bytes", aside), (".bytes.put-back", in_part)] {
        let is_of = |name: &str| name.ends_with(suffix) && !name.starts_with("checkpoint");
        let bytes = bytes_of(&folder, |name| name.to_str().is_some_and(is_of)).unwrap_or(0);
        if bytes > 0 {
            let found = format!("{} of damaged bytes were set aside in {}: {state}", size(bytes), folder.display());
            let mend = "send lost readings again if their senders still have them, then remove the folder";
            findings.push(Finding::note(QUARANTINE, found).with_mend(mend));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use tidegauge::common::finding::Severity;
    use tidegauge::disk::Space;

    use super::*;

    #[test]
    fn a_disk_has_to_hold_the_largest_log_and_its_reserve() {
        let of = |free: u64, used: u64| {
            judge_disk(Space { free: free << 20, total: 1 << 30 }, used << 20, 100 << 20, 500 << 20)
        };
        assert_eq!((of(600, 0).severity, of(400, 200).severity), (Severity::Ok, Severity::Ok));
        let small = of(400, 100);
        assert_eq!((small.severity, of(99, 501).severity), (Severity::Warning, Severity::Error));
        assert!(small.mend.unwrap().contains("\"400MiB\""));
    }

    #[test]
    fn a_log_of_three_quarters_is_a_warning_and_an_almost_full_one_an_error() {
        let found = |used: u64, to_forward: u64| log_size(used << 20, Bytes::gib(1), to_forward << 20);
        let severities = [700, 800, 1_000].map(|used| found(used, 0).severity);
        assert_eq!(severities, [Severity::Ok, Severity::Warning, Severity::Error]);
        let mend = |to_forward| found(1_000, to_forward).mend.unwrap();
        assert!(mend(100).starts_with("repair the store") && mend(900).starts_with("see forward-reach"));
    }
}
