//! `tidegauge import`: files of readings to a running server.
//!
//! One thread reads and converts, requests go out one after the other, and between them stands a short queue:
//! a slow server slows the reading. Where the files have several values for one instant of a device, the last
//! one stays, and that is why no request may overtake another. The server decides what a reading is worth; a
//! row that cannot even be told is rejected here. Nothing here knows the log or a store: an import is a
//! client like any other.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use jiff::tz::TimeZone;
use tidegauge::model::check_device_id;
use tokio::sync::{mpsc, oneshot};

pub(super) use self::batch::Batch;
use self::batch::{Batcher, Stopped};
use self::columns::{Columns, Wanted, WantedDevice, WantedMetric};
use self::csv::{CsvError, Outcome, Row, Rows};
use self::progress::Progress;
use self::send::Answer;
pub(super) use self::send::Sender;
use self::source::{Format, Source};
use super::client::ClientArgs;
use super::{Usage, counted};

mod batch;
mod columns;
mod csv;
mod ndjson;
mod progress;
mod send;
mod source;
mod time;

/// How many batches are read ahead of the one that is being sent.
const READ_AHEAD: usize = 2;

/// Send readings from CSV and NDJSON files to a running server.
#[derive(Debug, Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct ImportArgs {
    /// Files to read, - being standard input; .gz and .zst are decompressed
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    client: ClientArgs,
    /// CSV: the device of all rows
    #[arg(long, value_name = "ID", conflicts_with = "device_column", value_parser = parse_device)]
    device: Option<String>,
    #[arg(
        long,
        value_name = "NAME",
        help = "CSV: the column of the device [default: deviceId, device_id, device, sensor_id, host, the first there is]"
    )]
    device_column: Option<String>,
    /// CSV: the column of the time [default: timestamp, time, ts, datetime, date, the first there is]
    #[arg(long, value_name = "NAME")]
    time_column: Option<String>,
    /// CSV: a metric to read, and the column it is in; may repeat [default: every column of numbers]
    #[arg(long = "metric", value_name = "NAME[=COLUMN]")]
    metrics: Vec<WantedMetric>,
    /// CSV: the zone of times that have no offset, such as Europe/Vienna
    #[arg(long, value_name = "ZONE", default_value = "UTC", value_parser = parse_zone)]
    tz: TimeZone,
    /// How readings are written [default: as the file name ends, else as the first character suggests]
    #[arg(long)]
    format: Option<Format>,
    /// The most lines in one request
    #[arg(long, value_name = "LINES", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,
    /// How long to try again while the server cannot be reached or is overloaded, such as 30s, 5m or 1h
    #[arg(long, value_name = "PERIOD", default_value = "5m", value_parser = parse_period)]
    retry_for: Duration,
    /// Read and convert, but send nothing
    #[arg(long)]
    dry_run: bool,
}

const LONG_HELP: &str = "\
CSV files have a header. Every other row is one reading: a time, a device, and a value for each metric whose cell is \
not empty. Without --metric, a column is a metric when most of its cells in the first 100 rows that are not empty are \
numbers; columns that are not read are named. `--metric temp` reads the column temp or, where there is none and only \
one column of numbers, that one; `--metric temp=value` reads the column value.

Times may be RFC 3339 with an offset; YYYY-MM-DD HH:MM[:SS[.fff]], with a space or a T, in the zone of --tz; or Unix \
time in seconds, milliseconds, microseconds or nanoseconds, told apart by magnitude. Where clocks are set back, a time \
that occurs twice means the first one; where they are set forward, a time that is left out is read as if they had not \
been set yet.

NDJSON files hold on each line what POST /v1/readings takes, and are passed on as they are. Give each reading its ts: \
one without is stamped by the server, and stored again if it has to be sent again.

A row that cannot be read, or that the server rejects, is told with its file and line, and the others go on. An import \
may be repeated: what is stored already is not stored twice. Where several rows are of the same device, time and metric, \
the value of the last one stays, in the order of the files and of their rows.

Exit status: 0 when every reading was accepted, 1 when some were rejected or the import failed, 64 for bad usage.";

/// Runs the import. An error when a reading was rejected, too.
pub(crate) async fn run(args: ImportArgs) -> anyhow::Result<()> {
    let progress = Arc::new(Progress::start(source::total_bytes(&args.files)?, args.dry_run));
    let sender = if args.dry_run { None } else { Some(args.client.sender(args.retry_for)?) };
    let (queue, batches) = mpsc::channel(READ_AHEAD);
    let reading = start_reading(args, queue, Arc::clone(&progress));
    let sent = tokio::select! {
        sent = send_all(batches, sender.as_ref(), &progress) => sent,
        never = progress.watch() => match never {},
    };
    let outcome = match sent {
        Ok(()) => reading.await.context("the reading thread died")?,
        Err(error) => Err(error), // the reading thread may wait for input: it ends with the process
    };
    writeln!(std::io::stdout(), "{}", progress.finish())?;
    outcome?;
    match progress.counts.rejected.load(Ordering::Relaxed) {
        0 => Ok(()),
        rejected => bail!("{} rejected", counted(rejected, "reading")),
    }
}

/// Starts the thread that reads. A thread of its own, because the end of the program must not wait for one
/// that reads from a terminal or a pipe.
fn start_reading(
    args: ImportArgs,
    queue: mpsc::Sender<Batch>,
    progress: Arc<Progress>,
) -> oneshot::Receiver<anyhow::Result<()>> {
    let (done, outcome) = oneshot::channel();
    std::thread::spawn(move || {
        let read = read_files(&args, &queue, &progress);
        drop(queue);
        let _ = done.send(read); // nobody waits for it when sending has failed
    });
    outcome
}

/// Sends batches, each when the one before it is answered, until there are no more or one fails for good.
async fn send_all(
    mut batches: mpsc::Receiver<Batch>,
    sender: Option<&Sender>,
    progress: &Progress,
) -> anyhow::Result<()> {
    while let Some(batch) = batches.recv().await {
        let answer = match sender {
            Some(sender) => sender.send(&batch, |what| progress.set_trouble(Some(what))).await?,
            None => Answer { accepted: batch.lines.len() as u64, ..Answer::default() },
        };
        progress.set_trouble(None);
        add(&progress.counts.accepted, answer.accepted);
        add(&progress.counts.rejected, answer.rejected);
        for refusal in answer.refusals {
            progress.list_rejection(&batch.file, refusal.line, &refusal.why);
        }
    }
    Ok(())
}

/// Reads all files, in order. Ends early, and without an error, when sending has stopped: that has its own.
fn read_files(args: &ImportArgs, queue: &mpsc::Sender<Batch>, progress: &Progress) -> anyhow::Result<()> {
    for path in &args.files {
        let source = source::open(path, args.format, &progress.counts.bytes)?;
        let batcher = Batcher::new(queue, args.batch as usize, Arc::clone(&source.name));
        let read = match source.format {
            Format::Csv => read_csv(source, args, batcher, progress),
            Format::Ndjson => read_ndjson(source, batcher, progress),
        };
        match read {
            Err(error) if error.is::<Stopped>() => return Ok(()),
            other => other?,
        }
    }
    Ok(())
}

fn read_csv(source: Source, args: &ImportArgs, mut batcher: Batcher<'_>, progress: &Progress) -> anyhow::Result<()> {
    let Source { name, input, .. } = source;
    let failed = |error: CsvError| match error {
        CsvError::Columns(why) => anyhow!(Usage(format!("{name}: {why}"))),
        other => anyhow!(other).context(name.to_string()),
    };
    let mut rows = Rows::open(input, &args.wanted(), args.tz.clone()).map_err(failed)?;
    announce(&name, rows.columns(), progress);
    let mut text = Vec::new();
    while let Some(Row { line, outcome }) = rows.next(&mut text).map_err(failed)? {
        add(&progress.counts.rows, 1);
        match outcome {
            Outcome::Reading { empty_cells } => {
                add(&progress.counts.empty_cells, empty_cells);
                batcher.push(line, &text)?;
            }
            Outcome::NoValues { empty_cells } => {
                add(&progress.counts.empty_cells, empty_cells);
                add(&progress.counts.empty_rows, 1);
            }
            Outcome::Bad(why) => {
                add(&progress.counts.rejected, 1);
                progress.list_rejection(&name, line, &why);
            }
        }
    }
    Ok(batcher.finish()?)
}

fn read_ndjson(source: Source, mut batcher: Batcher<'_>, progress: &Progress) -> anyhow::Result<()> {
    let mut lines = ndjson::Lines::new(source.input);
    let mut text = Vec::new();
    while let Some(number) = lines.next(&mut text).with_context(|| source.name.to_string())? {
        add(&progress.counts.rows, 1);
        batcher.push(number, &text)?;
    }
    Ok(batcher.finish()?)
}

/// Says which columns are metrics and which are not read, so that a wrong guess is seen.
fn announce(file: &str, columns: &Columns, progress: &Progress) {
    let metrics: Vec<&str> = columns.values.iter().map(|value| value.metric.as_str()).collect();
    progress.note(&format!("{file}: metrics {}", metrics.join(", ")));
    if !columns.ignored.is_empty() {
        progress.note(&format!("{file}: columns not read: {:?}", columns.ignored));
    }
}

impl ImportArgs {
    fn wanted(&self) -> Wanted {
        let device = match (&self.device, &self.device_column) {
            (Some(device), _) => WantedDevice::Fixed(device.clone()),
            (None, Some(column)) => WantedDevice::Column(column.clone()),
            (None, None) => WantedDevice::Customary,
        };
        Wanted { device, time_column: self.time_column.clone(), metrics: self.metrics.clone() }
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

fn parse_device(text: &str) -> anyhow::Result<String> {
    check_device_id(text)?;
    Ok(text.to_owned())
}

fn parse_zone(text: &str) -> anyhow::Result<TimeZone> {
    Ok(TimeZone::get(text)?)
}

fn parse_period(text: &str) -> anyhow::Result<Duration> {
    Ok(Duration::try_from(text.parse::<jiff::SignedDuration>()?)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::http::StatusCode;
    use axum::routing::post;
    use clap::Parser;
    use tokio::net::TcpListener;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        import: ImportArgs,
    }

    #[tokio::test]
    async fn of_two_values_of_one_instant_the_last_in_the_file_arrives_last_even_if_the_server_was_overloaded() {
        let arrived = Arc::new(Mutex::new((0, Vec::new())));
        let log = Arc::clone(&arrived);
        let answer = move |body: String| async move {
            let (requests, bodies) = &mut *log.lock().unwrap();
            *requests += 1;
            if *requests == 1 {
                return (StatusCode::SERVICE_UNAVAILABLE, r#"{"code":"overloaded","detail":"the log is full"}"#);
            }
            bodies.push(body);
            (StatusCode::OK, r#"{"accepted":1}"#)
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = axum::Router::new().route("/v1/readings", post(answer));
        tokio::spawn(async move { axum::serve(listener, app).await });

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("readings.ndjson");
        let lines: Vec<String> =
            (0..9).map(|value| format!(r#"{{"deviceId":"a","ts":1776693610000,"value":{value}}}"#)).collect();
        std::fs::write(&file, lines.join("\n")).unwrap();
        let line = ["import", file.to_str().unwrap(), "--batch", "1", "--url", &url];
        run(Line::try_parse_from(line).unwrap().import).await.unwrap();
        let expected: Vec<String> = lines.iter().map(|line| format!("{line}\n")).collect();
        assert_eq!(arrived.lock().unwrap().1, expected);
    }
}
