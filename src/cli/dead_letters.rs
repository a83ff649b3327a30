//! `tidegauge dead-letters`: lists readings that the store refuses permanently, and sends them again. With
//! `--forward`, these are the readings that the server at `forward.url` refuses.
//!
//! `retry` first takes the file away: it renames the file, under the lock that the server holds while it adds
//! a line, so that the server adds later lines to a new file. It sends the lines, appends those that the
//! server rejects to the new file, and only then deletes the renamed one. An interruption at any moment loses
//! nothing: the next `retry` finds the renamed file, and sending a line twice is safe.
//!
//! `retry` sends the last lines first. The server skips a value of a line if it has already accepted another
//! value of the same device, time and series (`POST /v1/dead-letters`). So of two lines with such values, the
//! later line wins.
//!
//! `retry` divides a reading of more than 256 values, or of more than `ingest.max_metrics_per_reading`: the
//! server may refuse it.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use nix::unistd::Uid;
use serde::Deserialize;
use tidegauge::client::Counts;
use tidegauge::common::regular_file::open_regular;
use tidegauge::config::Config;
use tidegauge::flush::{DeadLetters, MAX_LINE_BYTES, NumberedLine, NumberedLines, divide_readings};
use tidegauge::model::METRICS_PER_READING;

use super::client::ClientArgs;
use super::import::{Batch, DEAD_LETTERS, Sender, TooLarge, remarks};
use super::settings::ConfigArgs;
use super::{Usage, counted, data_dir};

/// Lines in a request: few enough that most answers list all rejected readings.
const LINES_PER_REQUEST: usize = 20;

/// The size of a request, in bytes, from which on no more lines are added.
const BYTES_PER_REQUEST: u64 = 1 << 20;

/// How long a request is repeated if the server does not answer.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// List readings that the store refuses permanently, or send them again.
#[derive(Debug, Args)]
pub(crate) struct DeadLettersArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the dead letters: when and why the store refused them, and how many readings of which device
    List(ListArgs),
    /// Send the dead letters to a running server, and delete those that it accepts or has newer values of
    Retry(RetryArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Show the readings that the server at forward.url refuses, instead of those that the store refuses
    #[arg(long)]
    forward: bool,
    /// Show only dead letters of this device
    #[arg(long, value_name = "ID")]
    device: Option<String>,
    /// Show only dead letters with this reason
    #[arg(long)]
    reason: Option<String>,
    /// Print a summary of each line, or the lines of the file unchanged
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Args)]
struct RetryArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Send the readings that the server at forward.url refuses: to this server, which forwards them again
    #[arg(long)]
    forward: bool,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// The fields of a line that `list` shows.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Letter {
    refused_at: String,
    reason: String,
    detail: String,
    device_id: String,
    readings: Vec<serde::de::IgnoredAny>,
}

pub(super) async fn run(args: DeadLettersArgs) -> anyhow::Result<()> {
    match args.command {
        Command::List(args) => list(&args),
        Command::Retry(args) => retry(args).await,
    }
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    let files = Files::of(&args.config.load()?, args.forward)?;
    let mut out = std::io::stdout().lock();
    let (mut letters, mut readings) = (0, 0);
    for path in [&files.taken, &files.current] {
        let file = match open_regular(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            opened => opened.with_context(|| format!("open {}", path.display()))?,
        };
        for line in NumberedLines::new(BufReader::new(file)) {
            let NumberedLine { number, text, .. } = line.with_context(|| format!("read {}", path.display()))?;
            let Some(line) = text else {
                eprintln!("tidegauge: {}", too_long(path, number));
                continue;
            };
            if is_blank(&line) {
                continue;
            }
            let Ok(letter) = serde_json::from_slice::<Letter>(&line) else {
                let line = String::from_utf8_lossy(&line);
                eprintln!("tidegauge: line {number} of {} was cut off: {}", path.display(), line);
                continue;
            };
            let is_other = |wanted: &Option<String>, found: &str| wanted.as_ref().is_some_and(|wanted| wanted != found);
            if is_other(&args.device, &letter.device_id) || is_other(&args.reason, &letter.reason) {
                continue;
            }
            letters += 1;
            readings += letter.readings.len() as u64;
            match args.format {
                Format::Json => {
                    out.write_all(&line)?;
                    out.write_all(b"\n")?;
                }
                Format::Text => writeln!(
                    out,
                    "{} {} {} {}: {}",
                    letter.refused_at,
                    letter.device_id,
                    counted(letter.readings.len() as u64, "reading"),
                    letter.reason,
                    letter.detail.replace('\n', " ")
                )?,
            }
        }
    }
    if matches!(args.format, Format::Text) {
        writeln!(out, "{} with {}", counted(letters, "dead letter"), counted(readings, "reading"))?;
    }
    Ok(())
}

async fn retry(args: RetryArgs) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let files = Files::of(&config, args.forward)?;
    files.refuse_root(Uid::effective())?;
    // First, so that faulty flags leave the file in its place.
    let sender = Sender::to(&args.client.or_server_of(&config.http)?, DEAD_LETTERS, RETRY_FOR)?;
    let Some(taken) = files.take()? else {
        println!("0 dead letters");
        return Ok(());
    };
    let (mut lines, mut kept) = (Vec::new(), Vec::new());
    for line in NumberedLines::new(BufReader::new(&taken)) {
        let NumberedLine { number, at, text } = line.with_context(|| format!("read {}", files.taken.display()))?;
        match text {
            None => {
                eprintln!("tidegauge: {}; it is kept", too_long(&files.taken, number));
                kept.push(at);
            }
            Some(text) if is_blank(&text) => {}
            Some(_) => lines.push((number, at)),
        }
    }
    let max_metrics = config.ingest.max_metrics_per_reading.min(METRICS_PER_READING);
    let (mut counts, mut max_lines) = (Counts::default(), LINES_PER_REQUEST);
    while !lines.is_empty() {
        let mut chunk = lines.split_off(start_of_last_request(&lines, max_lines));
        let mut body = Vec::new();
        let mut readings = Some(0);
        for (_, at) in &chunk {
            let mut line = vec![0; (at.end - at.start) as usize];
            taken.read_exact_at(&mut line, at.start).context("read a dead letter")?;
            let line = divide_readings(&line, max_metrics).unwrap_or(line);
            readings = readings.zip(readings_in(&line)).map(|(one, other)| one + other);
            body.extend_from_slice(&line);
            body.push(b'\n');
        }
        let file = files.taken.display().to_string().into();
        let (body, numbers) = (body.into(), chunk.iter().map(|(number, _)| *number).collect());
        let batch = Batch { file, body, lines: numbers, done: None, readings };
        let answer = match sender.send(&batch, |trouble| eprintln!("tidegauge: {trouble}; trying again")).await {
            Err(error) if error.is::<TooLarge>() => {
                if chunk.len() == 1 {
                    eprintln!("tidegauge: {error}; it is kept");
                    kept.extend(chunk.into_iter().map(|(_, at)| at));
                } else {
                    max_lines = chunk.len() / 2;
                    lines.append(&mut chunk);
                }
                continue;
            }
            answered => answered?,
        };
        for refusal in &answer.rejections {
            eprintln!("tidegauge: not accepted: {}", refusal.why);
        }
        let lists_all =
            answer.rejections.len() as u64 == answer.counts.rejected.saturating_add(answer.counts.rejected_values);
        let is_kept = |line: u64| !lists_all || answer.rejections.iter().any(|refusal| refusal.line == line);
        kept.extend(chunk.into_iter().filter(|(number, _)| is_kept(*number)).map(|(_, at)| at));
        counts.add(answer.counts);
    }
    kept.sort_unstable_by_key(|at| at.start);
    files.put_back(&kept)?;
    let mut summary = format!("{} accepted", counted(counts.accepted, "reading"));
    for remark in remarks(&counts) {
        summary += ", ";
        summary += &remark;
    }
    println!("{summary}, {} kept", counted(kept.len() as u64, "dead letter"));
    if kept.is_empty() { Ok(()) } else { bail!("the server does not accept all of them") }
}

/// The index of the first line in the next request.
///
/// The request has the last lines that fit, one to `max_lines`.
fn start_of_last_request(lines: &[(u64, Range<u64>)], max_lines: usize) -> usize {
    let mut bytes = 0;
    let fits = |(_, at): &&(u64, Range<u64>)| {
        let is_full = bytes >= BYTES_PER_REQUEST;
        bytes += at.end - at.start;
        !is_full
    };
    lines.len() - lines.iter().rev().take(max_lines).take_while(fits).count()
}

/// Whether a line is the end of one that was cut off, or a deletion has removed it in place.
fn is_blank(line: &[u8]) -> bool {
    matches!(line.first(), None | Some(b' '))
}

fn too_long(path: &Path, number: u64) -> String {
    format!("line {number} of {} is longer than {MAX_LINE_BYTES} bytes, so it is no dead letter", path.display())
}

/// The number of readings in a line, as the server counts them.
///
/// `None`: the line is no dead letter.
fn readings_in(line: &[u8]) -> Option<u64> {
    let letter: Letter = serde_json::from_slice(line).ok()?;
    Some(letter.readings.len().max(1) as u64) // the server rejects a line without readings as one reading
}

/// The files of dead letters.
struct Files {
    /// The file that the server adds lines to.
    current: PathBuf,
    /// The renamed file, whose lines are being sent.
    taken: PathBuf,
}

impl Files {
    /// The files with the dead letters of the store, or of forwarding.
    fn of(config: &Config, forward: bool) -> anyhow::Result<Self> {
        let data_dir = &config.server.data_dir;
        data_dir::expect_folder(data_dir)?;
        let current = if forward { data_dir::forward_dead_letters(data_dir) } else { data_dir::dead_letters(data_dir) };
        Ok(Self { taken: DeadLetters::taken_path(&current), current })
    }

    /// Refuses root if the letters belong to another user, as whom the service runs.
    ///
    /// The service could not open the files that root leaves.
    fn refuse_root(&self, user: Uid) -> anyhow::Result<()> {
        for path in [&self.current, &self.taken] {
            let owner = path.metadata().map_or(0, |file| file.uid());
            if user.is_root() && owner != 0 {
                return Err(Usage(format!(
                    "{} belongs to the user {owner}, who could not open what root leaves here: run the command with \
                     sudo -u '#{owner}'",
                    path.display()
                ))
                .into());
            }
        }
        Ok(())
    }

    /// Takes the current file away from the server, by renaming it.
    ///
    /// If an earlier `retry` was interrupted, its taken file is continued instead. `None`: there are no dead
    /// letters. While the result lives, no other process can retry.
    fn take(&self) -> anyhow::Result<Option<File>> {
        match DeadLetters::take(&self.current, &self.taken) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => bail!("another process is sending the dead letters"),
            taken => taken.with_context(|| format!("rename {} to {}", self.current.display(), self.taken.display())),
        }
    }

    /// Moves the lines at the byte ranges `kept` back, and deletes the taken file.
    ///
    /// They are appended to the file that the server adds to.
    fn put_back(&self, kept: &[Range<u64>]) -> anyhow::Result<()> {
        DeadLetters::put_back(&self.current, &self.taken, kept)
            .with_context(|| format!("move the kept lines of {} back", self.taken.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    #[test]
    fn root_does_not_retry_the_letters_of_another_user() {
        let folder = tempfile::tempdir().unwrap();
        let [current, taken] = ["current", "taken"].map(|name| folder.path().join(name));
        let files = Files { current, taken };
        let root = Uid::from_raw(0);
        files.refuse_root(root).unwrap(); // there are none
        std::fs::write(&files.taken, "").unwrap();
        let _ = chown(&files.taken, Some(1), None); // only root may; the files of others are not root's anyway
        let owner = files.taken.metadata().unwrap().uid();
        if owner == 0 {
            return; // this root has no other user, as in a namespace of one user ID
        }
        let refused = files.refuse_root(root).unwrap_err();
        assert!(refused.is::<Usage>() && refused.to_string().ends_with(&format!("sudo -u '#{owner}'")), "{refused}");
        files.refuse_root(Uid::from_raw(owner)).unwrap();
    }
}
