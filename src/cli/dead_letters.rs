//! `tidegauge dead-letters`: lists readings that the store refuses permanently, and sends them again. With
//! `--forward`, those that the server refuses to which readings are forwarded.
//!
//! `retry` first takes the file away: it renames the file, under the lock that the server holds while it adds
//! a line, so that the server adds later lines to a new file. It sends the lines, appends those that the
//! server rejects to the new file, and only then deletes the renamed one. An interruption at any moment loses
//! nothing: the next `retry` finds the renamed file, and sending a line twice is safe.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde::Deserialize;
use tidegauge::common::regular_file::open_regular;
use tidegauge::config::Config;
use tidegauge::flush::DeadLetters;

use super::client::ClientArgs;
use super::data_dir;
use super::import::{Batch, Counts, READINGS, Sender};
use super::settings::ConfigArgs;
use super::{Usage, counted};

/// Lines in a request: few enough that most answers list all rejected readings.
const LINES_PER_REQUEST: usize = 20;

/// How long a retry waits for a server that does not answer.
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
    /// Send the dead letters to a running server, and delete those that it accepts
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
        for line in lines(file, path) {
            let line = line?.text;
            let Ok(letter) = serde_json::from_str::<Letter>(&line) else {
                eprintln!("tidegauge: a line of {} was cut off: {line}", path.display());
                continue;
            };
            let is_other = |wanted: &Option<String>, found: &str| wanted.as_ref().is_some_and(|wanted| wanted != found);
            if is_other(&args.device, &letter.device_id) || is_other(&args.reason, &letter.reason) {
                continue;
            }
            letters += 1;
            readings += letter.readings.len() as u64;
            match args.format {
                Format::Json => writeln!(out, "{line}")?,
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
    let Some(taken) = files.take()? else {
        println!("0 dead letters");
        return Ok(());
    };
    let sender = Sender::to(&args.client.or_server_of(&config.http)?, READINGS, RETRY_FOR)?;
    let mut lines = lines(taken.try_clone()?, &files.taken);
    let (mut counts, mut kept) = (Counts::default(), Vec::new());
    loop {
        let chunk = lines.by_ref().take(LINES_PER_REQUEST).collect::<anyhow::Result<Vec<_>>>()?;
        if chunk.is_empty() {
            break;
        }
        let batch = Batch {
            file: files.taken.display().to_string().into(),
            body: chunk.iter().flat_map(|line| [&line.text, "\n"]).collect::<String>().into(),
            lines: (1..=chunk.len() as u64).collect(),
            readings: chunk.iter().map(|line| readings_in(&line.text)).sum(),
        };
        let answer = sender.send(&batch, |trouble| eprintln!("tidegauge: {trouble}; trying again")).await?;
        for refusal in &answer.rejections {
            eprintln!("tidegauge: not accepted: {}", refusal.why);
        }
        let lists_all = answer.rejections.len() as u64 == answer.counts.rejected + answer.counts.rejected_values;
        let is_kept =
            |line: usize| !lists_all || answer.rejections.iter().any(|refusal| refusal.line == line as u64 + 1);
        kept.extend(chunk.into_iter().enumerate().filter(|(at, _)| is_kept(*at)).map(|(_, line)| line.at));
        counts.add(answer.counts);
    }
    files.put_back(&kept)?;
    let mut summary = format!("{} accepted", counted(counts.accepted, "reading"));
    for remark in counts.remarks() {
        summary += ", ";
        summary += &remark;
    }
    println!("{summary}, {} kept", counted(kept.len() as u64, "dead letter"));
    if kept.is_empty() { Ok(()) } else { bail!("the server does not accept all of them") }
}

/// The number of readings that a server finds in a line; `None` if the line is no dead letter.
fn readings_in(line: &str) -> Option<u64> {
    let letter: Letter = serde_json::from_str(line).ok()?;
    Some(letter.readings.len().max(1) as u64) // an empty list is one rejection
}

/// The files of dead letters.
struct Files {
    /// The file that the server adds lines to.
    current: PathBuf,
    /// The renamed file, whose lines are being sent.
    taken: PathBuf,
}

impl Files {
    /// The files of the store, or those of forwarding.
    fn of(config: &Config, forward: bool) -> anyhow::Result<Self> {
        let data_dir = config.server.data_dir.clone();
        if !data_dir.is_dir() {
            let folder = data_dir.display();
            return Err(Usage(format!("there is no data folder {folder}; name it with --data-dir or --config")).into());
        }
        let current =
            if forward { data_dir::forward_dead_letters(&data_dir) } else { data_dir::dead_letters(&data_dir) };
        Ok(Self { taken: DeadLetters::taken_path(&current), current })
    }

    /// Takes the file away from the server, unless an earlier `retry` has left one. `None`: there is none.
    /// While the result lives, no other process can retry.
    fn take(&self) -> anyhow::Result<Option<File>> {
        match DeadLetters::take(&self.current, &self.taken) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => bail!("another process is sending the dead letters"),
            taken => taken.with_context(|| format!("rename {} to {}", self.current.display(), self.taken.display())),
        }
    }

    /// Moves the lines at the byte ranges `kept` to the file that the server adds to, and deletes the rest.
    fn put_back(&self, kept: &[Range<u64>]) -> anyhow::Result<()> {
        DeadLetters::put_back(&self.current, &self.taken, kept)
            .with_context(|| format!("move the kept lines of {} back", self.taken.display()))
    }
}

/// A line of a file.
struct Line {
    /// The bytes of the line in the file, without its end.
    at: Range<u64>,
    text: String,
}

/// The lines of a file, read one by one. Empty lines, which end a line that was cut off, are left out.
fn lines(file: File, path: &Path) -> impl Iterator<Item = anyhow::Result<Line>> {
    let (mut input, mut next) = (BufReader::new(file), 0);
    let all = std::iter::from_fn(move || {
        let (mut text, start) = (String::new(), next);
        match input.read_line(&mut text) {
            Ok(0) => return None,
            Ok(bytes) => next += bytes as u64,
            Err(error) => return Some(Err(error).with_context(|| format!("read {}", path.display()))),
        }
        text.truncate(text.trim_end_matches('\n').len());
        Some(Ok(Line { at: start..start + text.len() as u64, text }))
    });
    all.filter(|line| line.as_ref().map_or(true, |line| !line.text.is_empty()))
}
