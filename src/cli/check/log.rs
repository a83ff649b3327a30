//! `tidegauge check --log`: reports on the content of the log, and on damage and its repair.
//!
//! `--quarantine` copies damaged bytes out of the log. Whole records among them go back to the end of the log
//! at once; `--put-back` does the same later, for copies that an operator has mended.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use indicatif::HumanCount;
use tidegauge::flush::DeadLetters;
use tidegauge::log::recovery::{self, Inspection};
use tidegauge::log::{LogError, quarantine};

use super::super::counted;
use super::super::data_dir::{DataDir, dead_letters, expect_log, explain, known_store, log_dir, quarantine_dir};

/// The most passes that set damage aside.
///
/// A pass may cut off bytes before the next segment, and so uncover more damage.
const MAX_PASSES: usize = 8;

/// Changes to the log that an operator asks for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mending {
    /// Set damage aside.
    pub(super) quarantine: bool,
    /// Append the whole records among the quarantined bytes to the log.
    pub(super) put_back: bool,
}

/// Reports on the log in `data_dir`, and mends it as asked.
///
/// Remaining damage is an error.
pub(super) fn check(data_dir: &Path, mending: Mending, out: &mut impl Write) -> anyhow::Result<()> {
    let Mending { quarantine, .. } = mending;
    if matches!(log_dir(data_dir).try_exists(), Ok(false)) && matches!(known_store(data_dir).try_exists(), Ok(false)) {
        writeln!(out, "no log yet: {} does not exist", log_dir(data_dir).display())?;
        return Ok(());
    }
    let is_changed = quarantine || mending.put_back;
    let data_dir = if is_changed { DataDir::lock(data_dir) } else { DataDir::lock_to_read(data_dir) }?;
    match expect_log(data_dir.path()) {
        Err(LogError::Missing(log)) if quarantine => {
            quarantine::begin_anew(&log)?;
            writeln!(out, "begun: {} is a new, empty log; the readings of the old one are lost", log.display())?;
        }
        expected => expected.map_err(explain)?,
    }
    let mut found = match recovery::inspect(&log_dir(data_dir.path())) {
        Err(damaged @ LogError::BadCheckpoint { .. }) if quarantine => {
            mend_checkpoint(&data_dir, &damaged, out)?;
            inspect(&data_dir)?
        }
        inspected => inspected.map_err(explain)?,
    };
    report(&data_dir, &found, out)?;
    if quarantine && !found.damage.is_empty() {
        let mut copies = Vec::new();
        for _ in 0..MAX_PASSES {
            copies.extend(set_aside(&data_dir, &found, out)?);
            found = inspect(&data_dir)?;
            if found.damage.is_empty() {
                put_back(&data_dir, &copies, out)?;
                found = inspect(&data_dir)?;
                break;
            }
        }
        report(&data_dir, &found, out)?;
    }
    if !found.damage.is_empty() {
        bail!(
            "the log is damaged in {}; `tidegauge check --log --quarantine` copies the damaged bytes to {} and \
             lets the server start with the rest",
            counted(found.damage.len() as u64, "place"),
            quarantine_dir(data_dir.path()).display()
        );
    }
    if mending.put_back {
        let put_back = put_back(&data_dir, &quarantined(&data_dir)?, out)?;
        if put_back == 0 {
            writeln!(out, "no whole record in {}", quarantine_dir(data_dir.path()).display())?;
        }
    }
    writeln!(out, "the log is good")?;
    Ok(())
}

/// The files in the folder of quarantined bytes, in the order of their positions.
fn quarantined(data_dir: &DataDir) -> anyhow::Result<Vec<PathBuf>> {
    let folder = quarantine_dir(data_dir.path());
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("read {}", folder.display())),
    };
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}

/// Appends the whole records in these copies to the log, and returns their number.
///
/// A copy whose records were appended is renamed: `.put-back` is added to its name.
fn put_back(data_dir: &DataDir, copies: &[PathBuf], out: &mut impl Write) -> anyhow::Result<u64> {
    let mut records = 0;
    for copy in copies {
        let found = quarantine::put_back(&log_dir(data_dir.path()), copy)?;
        records += found.records;
        if found.records > 0 {
            let mut done = copy.clone().into_os_string();
            done.push(".put-back");
            fs::rename(copy, &done).with_context(|| format!("rename {}", copy.display()))?;
            let [records, readings] = [(found.records, "whole record"), (found.readings, "reading")]
                .map(|(number, one)| counted(number, one));
            writeln!(out, "put back: {records} of {} with {readings} are at the end of the log", name(copy))?;
        }
        if found.deletions > 0 {
            let deletions = counted(found.deletions, "deletion");
            writeln!(out, "left aside: {deletions} in {}: delete these readings again", name(copy))?;
        }
    }
    Ok(records)
}

fn inspect(data_dir: &DataDir) -> anyhow::Result<Inspection> {
    recovery::inspect(&log_dir(data_dir.path())).map_err(explain)
}

fn report(data_dir: &DataDir, found: &Inspection, out: &mut impl Write) -> anyhow::Result<()> {
    writeln!(out, "log {}", log_dir(data_dir.path()).display())?;
    for segment in &found.segments {
        let of = [(segment.bytes, "byte"), (segment.records, "record"), (segment.readings, "reading")];
        let [bytes, records, readings] = of.map(|(number, one)| counted(number, one));
        writeln!(out, "  {}: {bytes}, {records}, {readings}", name(&segment.path))?;
    }
    let deletions = found.deletions.iter().filter(|deletion| !deletion.is_executed).count();
    if deletions > 0 {
        writeln!(out, "  {} not executed by the store yet", counted(deletions as u64, "deletion"))?;
    }
    for path in &found.stale {
        writeln!(out, "  {}: no longer needed, the next start removes it", name(path))?;
    }
    let readings = counted(found.segments.iter().map(|segment| segment.readings).sum(), "reading");
    writeln!(out, "  checkpoint: position {}, {readings} after it not stored yet", found.checkpoint.position)?;
    if let Some(followed) = found.followed {
        writeln!(out, "  follower: position {followed}, the log from there on is not forwarded yet")?;
    }
    if let Some(torn) = &found.torn {
        let (name, bytes) = (name(&torn.path), HumanCount(torn.bytes));
        writeln!(
            out,
            "  torn tail: {name}, byte {}, {bytes} bytes after the durable part: the next start cuts it off",
            torn.offset
        )?;
    }
    for damage in &found.damage {
        let (name, bytes) = (name(&damage.path), HumanCount(damage.bytes));
        writeln!(out, "  damaged: {name}, byte {}, {bytes} bytes: {}", damage.offset, damage.detail)?;
    }
    let current = dead_letters(data_dir.path());
    for path in [DeadLetters::taken_path(&current), current] {
        if let Ok(file) = path.metadata() {
            let bytes = HumanCount(file.len());
            writeln!(out, "readings that the store refused permanently: {}, {bytes} bytes", path.display())?;
        }
    }
    Ok(())
}

fn mend_checkpoint(data_dir: &DataDir, damaged: &LogError, out: &mut impl Write) -> anyhow::Result<()> {
    match quarantine::repair_checkpoint(&log_dir(data_dir.path()), &quarantine_dir(data_dir.path()))? {
        Some(copy) => writeln!(out, "mended: {damaged}: copied to {}", copy.display())?,
        None => writeln!(out, "mended: {damaged}: there was nothing left to copy")?,
    }
    Ok(())
}

/// Sets the damage aside, and returns the files with the copies.
fn set_aside(data_dir: &DataDir, found: &Inspection, out: &mut impl Write) -> anyhow::Result<Vec<PathBuf>> {
    let mut copies = Vec::new();
    for damage in &found.damage {
        let place = format!("{}, byte {}, {} bytes", name(&damage.path), damage.offset, HumanCount(damage.bytes));
        match quarantine::set_aside(damage, &quarantine_dir(data_dir.path()))? {
            Some(copy) => {
                writeln!(out, "set aside: {place}: copied to {}", copy.display())?;
                copies.push(copy);
            }
            None => writeln!(out, "set aside: {place}: there was nothing left to copy")?,
        }
    }
    Ok(copies)
}

fn name(path: &Path) -> std::path::Display<'_> {
    Path::new(path.file_name().unwrap_or(OsStr::new(""))).display()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tempfile::TempDir;
    use tidegauge::log::{BatchBuilder, Instruments, Log, MinFree, Options, Sync};

    use super::*;

    /// A data folder with a log of twenty records of three readings, in small segments, and its segments.
    async fn twenty_records() -> (TempDir, Vec<PathBuf>) {
        twenty_records_in(500).await
    }

    /// Does the same as [`twenty_records`], with segments of this size.
    async fn twenty_records_in(segment_bytes: u64) -> (TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir().unwrap();
        let dir = log_dir(folder.path());
        let options = Options {
            dir: dir.clone(),
            sync: Sync::Always,
            group_window: Duration::ZERO,
            segment_bytes,
            max_bytes: 1 << 20,
            min_free: MinFree::Bytes(0),
        };
        let (log, _) = Log::open(options, Instruments::default()).unwrap();
        for record in 0..20 {
            let mut batch = BatchBuilder::default();
            for reading in 0..3 {
                let ts_ms = record * 10 + reading;
                batch.push_of(None, "device", None, ts_ms, 0, [("m", 1.0)].into_iter()).unwrap();
            }
            log.append(batch.finish()).unwrap().durable().await.unwrap();
        }
        let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let mut segments: Vec<_> = files.filter(|file| file.extension().is_some_and(|is| is == "log")).collect();
        segments.sort();
        (folder, segments)
    }

    fn checked(folder: &TempDir, quarantine: bool) -> (anyhow::Result<()>, String) {
        mended(folder, Mending { quarantine, put_back: false })
    }

    fn mended(folder: &TempDir, mending: Mending) -> (anyhow::Result<()>, String) {
        let mut out = Vec::new();
        let outcome = check(folder.path(), mending, &mut out);
        (outcome, String::from_utf8(out).unwrap())
    }

    #[tokio::test]
    async fn a_good_log_is_reported_segment_by_segment() {
        let (folder, segments) = twenty_records().await;
        let (outcome, text) = checked(&folder, false);
        outcome.unwrap();
        for segment in &segments {
            assert!(text.contains(&format!("  {}: ", name(segment))), "{text}");
        }
        assert!(text.contains("checkpoint: position 0, 60 readings after it not stored yet"), "{text}");
        assert!(text.ends_with("the log is good\n"), "{text}");
    }

    #[tokio::test]
    async fn dead_letters_are_reported_also_those_that_a_retry_has_taken() {
        let (folder, _) = twenty_records().await;
        let path = dead_letters(folder.path());
        let taken = DeadLetters::taken_path(&path);
        for (path, letters) in [(&path, "{}\n"), (&taken, "{}\n{}\n")] {
            fs::write(path, letters).unwrap();
        }
        let (outcome, text) = checked(&folder, false);
        outcome.unwrap();
        for (path, bytes) in [(&path, 3), (&taken, 6)] {
            let line = format!("readings that the store refused permanently: {}, {bytes} bytes\n", path.display());
            assert!(text.contains(&line), "{text}");
        }
    }

    #[tokio::test]
    async fn a_torn_tail_is_reported_and_is_not_damage() {
        let (folder, segments) = twenty_records().await;
        let newest = segments.last().unwrap();
        let mut bytes = fs::read(newest).unwrap();
        let whole = bytes.len();
        bytes.extend_from_slice(b"TGR1 and no more");
        fs::write(newest, bytes).unwrap();
        let (outcome, text) = checked(&folder, false);
        outcome.unwrap();
        assert!(text.contains(&format!("torn tail: {}, byte {whole}, 16 bytes", name(newest))), "{text}");
    }

    #[tokio::test]
    async fn damage_is_an_error_with_its_place_until_it_is_set_aside() {
        let (folder, segments) = twenty_records().await;
        let mut bytes = fs::read(&segments[1]).unwrap();
        bytes[60] ^= 1;
        fs::write(&segments[1], bytes).unwrap();
        let (outcome, text) = checked(&folder, false);
        assert!(outcome.unwrap_err().to_string().contains("--quarantine"));
        assert!(text.contains(&format!("damaged: {}, byte 32, ", name(&segments[1]))), "{text}");

        let (outcome, text) = checked(&folder, true);
        outcome.unwrap();
        assert!(text.contains("copied to ") && text.ends_with("the log is good\n"), "{text}");
        assert!(text.contains("57 readings after it"), "{text}");
        assert_eq!(fs::read_dir(folder.path().join("quarantine")).unwrap().count(), 1);
        checked(&folder, false).0.unwrap();
    }

    #[tokio::test]
    async fn quarantined_records_that_are_mended_are_put_back_once() {
        let (folder, segments) = twenty_records().await;
        let mut bytes = fs::read(&segments[1]).unwrap();
        bytes[60] ^= 1;
        fs::write(&segments[1], bytes).unwrap();
        checked(&folder, true).0.unwrap();
        let put_back = || mended(&folder, Mending { put_back: true, ..Mending::default() });
        let (outcome, text) = put_back();
        outcome.unwrap();
        assert!(text.contains("57 readings after it") && text.contains("no whole record in "), "{text}");

        let copy = fs::read_dir(folder.path().join("quarantine")).unwrap().next().unwrap().unwrap().path();
        let mut bytes = fs::read(&copy).unwrap();
        bytes[60 - 32] ^= 1;
        fs::write(&copy, bytes).unwrap();
        let (outcome, text) = put_back();
        outcome.unwrap();
        assert!(text.contains("put back: 1 whole record of ") && text.contains(" with 3 readings are at"), "{text}");
        let (outcome, text) = put_back();
        outcome.unwrap();
        assert!(text.contains("60 readings after it") && text.contains("no whole record in "), "{text}");
    }

    #[tokio::test]
    async fn whole_records_that_overlap_with_the_next_segment_are_kept() {
        let (folder, segments) = twenty_records().await;
        // The second segment is gone from its place, and its records follow those of the first.
        let mut bytes = fs::read(&segments[0]).unwrap();
        let second = fs::read(&segments[1]).unwrap();
        bytes.extend_from_slice(&second);
        fs::write(&segments[0], bytes).unwrap();
        let (outcome, text) = checked(&folder, false);
        assert!(outcome.is_err() && text.contains("the next segment begins before here"), "{text}");
        let (outcome, text) = checked(&folder, true);
        outcome.unwrap();
        assert!(text.contains("put back: "), "{text}");
    }

    #[tokio::test]
    async fn a_stray_file_beside_a_segment_that_goes_on_is_no_damage() {
        let (folder, segments) = twenty_records_in(1 << 20).await;
        let records = (fs::metadata(&segments[0]).unwrap().len() - 32) / 20;
        let stray = segments[0].with_file_name(format!("{:020}.log", 32 + 3 * records));
        for bytes in [&b""[..], b"TGLOG", &[0; 32], &[7; 900]] {
            fs::write(&stray, bytes).unwrap();
            let (outcome, text) = checked(&folder, false);
            outcome.unwrap();
            assert!(text.contains(&format!("  {}: no longer needed", name(&stray))), "{text}");
            assert!(text.contains("60 readings after it"), "{text}");
        }
    }

    #[tokio::test]
    async fn a_damaged_checkpoint_is_an_error_until_it_is_mended() {
        let (folder, _) = twenty_records().await;
        let path = log_dir(folder.path()).join("checkpoint");
        let whole = fs::read(&path).unwrap();
        for kept in [0, 1, 27, 29, whole.len() - 1] {
            fs::write(&path, &whole[..kept]).unwrap();
            let error = checked(&folder, false).0.unwrap_err().to_string();
            assert!(error.contains("checkpoint is damaged") && error.contains("--quarantine"), "{error}");
            let (outcome, text) = checked(&folder, true);
            outcome.unwrap();
            assert!(text.contains("mended: ") && text.contains("60 readings after it"), "{kept} bytes: {text}");
            checked(&folder, false).0.unwrap();
        }
    }

    #[tokio::test]
    async fn a_missing_log_is_an_error_until_a_new_one_is_begun() {
        for is_empty in [false, true] {
            let (folder, _) = twenty_records().await;
            fs::write(known_store(folder.path()), r#"{"store":"sqlite"}"#).unwrap();
            checked(&folder, false).0.unwrap();
            fs::remove_dir_all(log_dir(folder.path())).unwrap();
            if is_empty {
                fs::create_dir_all(log_dir(folder.path()).join("lost+found")).unwrap(); // a volume of its own
            }
            let error = checked(&folder, false).0.unwrap_err().to_string();
            assert!(error.contains("the log is missing") && error.contains("check --log --quarantine"), "{error}");
            let (outcome, text) = checked(&folder, true);
            outcome.unwrap();
            assert!(text.starts_with("begun: ") && text.ends_with("the log is good\n"), "{text}");
            checked(&folder, false).0.unwrap();
        }
    }

    #[test]
    fn without_a_log_there_is_nothing_to_check_or_create() {
        let folder = tempfile::tempdir().unwrap();
        let (outcome, text) = checked(&folder, true);
        outcome.unwrap();
        assert!(text.starts_with("no log yet: "), "{text}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_log_in_use_is_left_alone() {
        let (folder, _) = twenty_records().await;
        let _used = DataDir::lock(folder.path()).unwrap();
        let error = checked(&folder, true).0.unwrap_err().to_string();
        assert!(error.contains("another tidegauge uses this data folder"), "{error}");
    }
}
