//! `tidegauge dead-letters`: what the store refused for good, to be looked at and sent again.
//!
//! To send them again, the file is taken away first (renamed, under the lock that the server holds while it
//! adds a line), so that what is refused meanwhile goes into a new one. What the server does not accept goes
//! back to the end of that one; only then is the other deleted. Breaking off at any moment loses nothing: the
//! next `retry` finds the file that was taken away, and sending again is safe.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde::Deserialize;
use tidegauge::flush::DeadLetters;

use super::client::ClientArgs;
use super::data_dir;
use super::import::Batch;
use super::settings::ConfigArgs;
use super::{Usage, counted};

/// Lines to a request: few enough that the server lists all that it rejects of most of them.
const LINES_PER_REQUEST: usize = 20;

/// How long the server may be away before a retry gives up.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// Look at what the store refused for good, or send it again.
#[derive(Debug, Args)]
pub(crate) struct DeadLettersArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what was refused: when, why, and how many readings of which device
    List(ListArgs),
    /// Send it to a running server again, and forget what that accepts
    Retry(RetryArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Only those of this device
    #[arg(long, value_name = "ID")]
    device: Option<String>,
    /// Only those with this reason
    #[arg(long)]
    reason: Option<String>,
    /// One line each for people, or the lines of the file as they are
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Args)]
struct RetryArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// What `list` shows of a line.
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
        Command::Retry(args) => retry(&args).await,
    }
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    let files = Files::of(&args.config)?;
    let mut out = std::io::stdout().lock();
    let (mut letters, mut readings) = (0, 0);
    for path in [&files.taken, &files.current] {
        for line in lines(path)? {
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

async fn retry(args: &RetryArgs) -> anyhow::Result<()> {
    let files = Files::of(&args.config)?;
    let Some(_mine) = files.take()? else {
        println!("0 dead letters");
        return Ok(());
    };
    let sender = args.client.sender(RETRY_FOR)?;
    let (mut accepted, mut kept) = (0, Vec::new());
    for chunk in lines(&files.taken)?.chunks(LINES_PER_REQUEST) {
        let batch = Batch {
            file: files.taken.display().to_string().into(),
            body: (chunk.join("\n") + "\n").into(),
            lines: (1..=chunk.len() as u64).collect(),
        };
        let answer = sender.send(&batch, |trouble| eprintln!("tidegauge: {trouble}; trying again")).await?;
        accepted += answer.accepted;
        for refusal in &answer.refusals {
            eprintln!("tidegauge: not accepted: {}", refusal.why);
        }
        let lists_all = answer.refusals.len() as u64 == answer.rejected;
        let is_kept = |line: usize| !lists_all || answer.refusals.iter().any(|refusal| refusal.line == line as u64 + 1);
        kept.extend(chunk.iter().enumerate().filter(|(line, _)| is_kept(*line)).map(|(_, line)| line.clone()));
    }
    files.put_back(&kept)?;
    let (accepted, letters) = (counted(accepted, "reading"), counted(kept.len() as u64, "dead letter"));
    println!("{accepted} accepted, {letters} kept");
    if kept.is_empty() { Ok(()) } else { bail!("the server does not accept all of them") }
}

/// Where dead letters are.
struct Files {
    /// What the server adds to.
    current: PathBuf,
    /// What is being sent again.
    taken: PathBuf,
}

impl Files {
    fn of(config: &ConfigArgs) -> anyhow::Result<Self> {
        let data_dir = config.load()?.server.data_dir;
        if !data_dir.is_dir() {
            let folder = data_dir.display();
            return Err(Usage(format!("there is no data folder {folder}; name it with --data-dir or --config")).into());
        }
        let current = data_dir::dead_letters(&data_dir);
        Ok(Self { taken: current.with_extension("retrying.ndjson"), current })
    }

    /// Takes the file away from the server, unless an earlier `retry` has left one. `None`: there is nothing.
    /// While the result lives, nobody else retries.
    fn take(&self) -> anyhow::Result<Option<File>> {
        if !self.taken.exists() {
            let renamed = DeadLetters::take(&self.current, &self.taken);
            if !renamed.with_context(|| format!("rename {}", self.current.display()))? {
                return Ok(None);
            }
        }
        let mine = File::open(&self.taken).with_context(|| format!("open {}", self.taken.display()))?;
        if mine.try_lock().is_err() {
            bail!("dead letters are being sent by another process");
        }
        Ok(Some(mine))
    }

    /// Adds lines to what the server adds to, and deletes what was taken.
    fn put_back(&self, lines: &[String]) -> anyhow::Result<()> {
        DeadLetters::put_back(&self.current, &self.taken, lines)
            .with_context(|| format!("put back what {} keeps", self.taken.display()))
    }
}

/// The lines of a file, none if it is not there. Empty ones, which end a line that was cut off, are left out.
fn lines(path: &Path) -> anyhow::Result<Vec<String>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.with_context(|| format!("open {}", path.display()))?,
    };
    let lines = BufReader::new(file).lines().filter(|line| line.as_ref().map_or(true, |line| !line.is_empty()));
    lines.collect::<std::io::Result<_>>().with_context(|| format!("read {}", path.display()))
}
