//! `tidegauge import`: sends files of readings to a running server.
//!
//! One thread reads and converts the files. A short queue connects it to the task that sends one request
//! after another, so a slow server slows the reading. Requests never run concurrently: if the files have
//! several values for one instant of a device, the last one must win. The import rejects only rows that it
//! cannot convert; the server checks the readings. An import is an ordinary client: it knows neither log nor
//! store.
//!
//! With `--progress`, the import notes in a file the line up to which the server has answered for all lines.
//! Without it, a repetition sends everything again, which stores no reading with a time twice.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use jiff::tz::TimeZone;
use tidegauge::client::{Counts, READINGS};
use tidegauge::model::check_device_id;
use tokio::sync::{mpsc, oneshot, watch};

pub(super) use self::batch::Batch;
use self::batch::{Batcher, Stopped};
use self::columns::{Wanted, WantedDevice, WantedMetric};
use self::csv::{CsvError, Options, Outcome, Row, Rows};
use self::encoding::Encoding;
use self::notes::{Notes, Place};
use self::numbers::Decimal;
use self::progress::Progress;
use self::send::Receipt;
pub(super) use self::send::{DEAD_LETTERS, Sender, TooLarge, remarks};
pub(super) use self::source::Format;
use self::source::Source;
use self::time::{TimeFormat, Times};
use super::client::ClientArgs;
use super::serve::StopSignals;
use super::{Usage, counted};

mod batch;
mod cells;
mod columns;
mod csv;
mod encoding;
mod exported;
mod follow;
mod ndjson;
mod notes;
mod numbers;
mod preamble;
mod progress;
mod quotes;
mod repeated_hour;
mod send;
mod source;
mod time;

/// The number of batches read ahead of the one that is being sent.
const READ_AHEAD: usize = 2;
/// How long a request is retried without `--retry-for`.
const RETRY_FOR: Duration = Duration::from_secs(300);
/// How long a request is retried with `--follow`: a hundred years.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);
/// How long after a signal the lines that were read may still be sent.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// Send readings from CSV and NDJSON files to a running server.
#[derive(Debug, Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct ImportArgs {
    /// The files to read, or - for standard input; .gz and .zst are decompressed
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    client: ClientArgs,
    /// CSV: the device ID of all rows
    #[arg(long, value_name = "ID", conflicts_with = "device_column", value_parser = parse_device)]
    device: Option<String>,
    #[arg(
        long,
        value_name = "NAME",
        help = "CSV: the column of the device ID [default: the first of deviceId, device_id, device, sensor_id, host]"
    )]
    device_column: Option<String>,
    #[arg(
        long,
        value_name = "NAME[,NAME]",
        help = "CSV: the column of the time, or those of the date and the time [default: the first of timestamp, time, \
                ts, datetime, date]"
    )]
    time_column: Option<String>,
    /// CSV: the form of the time, as in strftime: %d.%m.%Y %H:%M [default: recognized]
    #[arg(long, value_name = "FORMAT")]
    time_format: Option<TimeFormat>,
    /// CSV: a metric and its column; may be repeated [default: every column of numbers]
    #[arg(long = "metric", value_name = "NAME[=COLUMN]")]
    metrics: Vec<WantedMetric>,
    #[arg(
        long,
        value_name = "NAME",
        help = "CSV: the column that names the metric of each row; the column value, or the only one of numbers, has \
                its value"
    )]
    metric_column: Option<String>,
    /// CSV: the time zone of times without an offset, such as Europe/Vienna
    #[arg(long, value_name = "ZONE", value_parser = parse_zone)]
    tz: Option<TimeZone>,
    /// CSV: the character between cells: , ; | or \t for a tab [default: recognized in the header]
    #[arg(long, value_name = "CHARACTER", value_parser = parse_delimiter)]
    delimiter: Option<u8>,
    /// CSV: the decimal mark, . or , [default: recognized, if the first rows have one reading]
    #[arg(long, value_name = "MARK")]
    decimal: Option<Decimal>,
    /// CSV: the number of lines before the header [default: comments that begin with #, blank lines, sep=;]
    #[arg(long, value_name = "LINES")]
    skip_lines: Option<u64>,
    /// The encoding of the files
    #[arg(long, default_value = "utf-8")]
    encoding: Encoding,
    /// The format of the files [default: by the end of the file name, else by the first character]
    #[arg(long)]
    format: Option<Format>,
    /// The number of lines in one request
    #[arg(
        long,
        value_name = "LINES",
        default_value_t = 5000,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    batch: u32,
    #[arg(
        long,
        value_name = "PERIOD",
        value_parser = parse_period,
        help = "The time to retry while the server is unreachable or overloaded, such as 30s, 5m or 1h [default: 5m; \
                with --follow, for ever]"
    )]
    retry_for: Option<Duration>,
    /// Wait for more lines at the end of the file, and send them as they are appended, until SIGTERM
    #[arg(long)]
    follow: bool,
    /// Read and convert, but send nothing
    #[arg(long)]
    dry_run: bool,
    /// Note in this file how far the import is, and continue there; the other flags must be the same
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    progress: Option<PathBuf>,
}

const LONG_HELP: &str = "\
CSV files have a header. Every other row is one reading: a time, a device ID, and a value for each metric whose cell \
is not empty. A row of more than 256 values is several readings. Without --metric, a column is a metric if most of its \
non-empty cells in the first 100 rows are numbers, or true (1) and false (0); the import prints the columns that it \
does not read. `--metric temp` reads the column temp or, if there is none, the only column of numbers; `--metric \
temp=value` reads the column value. Labels follow the name of a metric in braces, in the header and in --metric: \
cpu_idle{cpu=cpu0}. A unit in brackets becomes the label unit: a column Temperatur [°C] or Temperatur (°C) is the \
metric Temperatur{unit=°C}, also with `--metric Temperatur` or `--metric 'Temperatur [°C]'`, unless several columns \
differ only in their brackets. A new name keeps the unit, unless it has another or the whole header follows it: \
`--metric temp=Temperatur` is temp{unit=°C}, and `--metric 'temp=Temperatur [°C]'` is temp. If each row has one value, \
`--metric-column tag` takes the metric from the column tag, and its label unit from the column unit. The value is in \
the column value, or in that of --metric, or in the only one of numbers. Without these options, a file in which a \
column seems to name the metric is refused.

The cells may be separated by , ; | or tabs, and numbers may have a decimal comma. The import guesses both only if the \
file cannot be read in another way, and prints its guess; else it asks for --delimiter or --decimal. Numbers with \
separators of thousands are rejected. Lines before the header may be comments that begin with #, or sep=;.

A file of `tidegauge export` has one value in each row: deviceId,ts,series,value, and the metadata of a device in its \
last row. It needs no flags, like the CSV file of GET /v1/readings?device=ID, which keeps the names of all series. The \
file of GET /v1/devices/ID/readings needs --device. It begins with ts, and its times look like \
2026-04-20T14:00:10.000Z: each other column of numbers is a metric, also host or time. With --time-column ts, such a \
file is read like any other.

Times may be RFC 3339 with an offset; YYYY-MM-DD, YYYY/MM/DD or DD.MM.YYYY with HH:MM[:SS[.fff]], in the zone of --tz; \
or Unix time in seconds, milliseconds, microseconds or nanoseconds, by magnitude. --time-format names any other form, \
such as '%m/%d/%Y %I:%M %p'. 01/02/2026 is refused without it.

When clocks are set back, the times of an hour exist twice. The order of the rows of each device tells the two apart: \
the second ones begin where the times go back. If they do not, such as in a file with only one of the two hours, these \
rows are rejected with both instants. A time that clocks skip is rejected. Write the offset into the times, or let the \
gateway write UTC, to avoid both.

Each line of an NDJSON file has a form that POST /v1/readings accepts, and is sent unchanged. Give each reading a ts: \
the server stamps one without, and stores it twice if it is sent twice.

With --follow, the import waits at the end of one file for the lines that a program appends, and sends each once it \
has its line end. When the file is renamed and the program writes to another one of its name, it sends the rest of the \
old one first, and rejects a last line without end, and its rest in the next file; when it is truncated, it begins \
again, with the same header if it has none. With --progress, a later start continues there, also in a file that was \
renamed meanwhile, such as to press.csv.1 or press-20260421.csv, and is still in the same folder, not compressed. It \
prints the names of compressed files that it skips, and does not count rows that it sends again. If the server has \
another store by then, it prints that, and goes on. A row ends with its line. Rows of the hour that exists twice wait \
for a later row of their device. If none comes, they wait for a row of another device that is a day later, and for a \
day at least. SIGTERM ends it: what is read is sent, at most within 10 seconds. Name the metrics with --metric, for \
the first rows may not have a number in each column.

The import prints each rejected row and value with its file and line, and continues; on a terminal it prints the first \
20 only, elsewhere all, or with --follow 20 a minute. The server names 100 of a request. A cell that is no number \
rejects its value alone if the row has another. A quote that is not closed rejects its row, and so does text after a \
closing quote, because following lines may be in the row: correct the quote, and repeat. It may be repeated: stored \
readings with a time are not stored twice. After a file that cannot be read, or not to its end, the next one follows; \
the exit status is not 0. With --progress, a repetition continues where the import was, or in the first file that \
could not be read, if the files have not changed since and the server has the same store. If several rows have the \
same device, time and series, the last one wins, in the order of the files and of their rows.

The last line counts what the server counts: rejected readings and values, by reason, readings that overwrote others \
of their request, such as two rows with the same time, and ignored fields. An \
imported value replaces a stored one of the same device, time and series, also a newer one: import an old export only \
where nothing was corrected since. A server in time-series mode keeps the first of several values instead, and counts \
the later ones of a request as ignored fields.

Exit status: 0 if every reading and value was accepted, 1 if some were rejected or the import failed, 64 for bad \
usage.";

/// Runs the import. A rejected reading is an error too.
pub(crate) async fn run(mut args: ImportArgs) -> anyhow::Result<()> {
    if args.follow {
        check_followed(&args.files)?;
    }
    let named = args.progress.as_ref();
    let named = named.map(|path| Notes::new(path.clone(), &args.files, args.follow, args.client.url()));
    let mut notes = named.transpose()?;
    let start = notes.as_mut().map(Notes::place).transpose()?.flatten();
    if let Some(Place { file, done, .. }) = &start {
        eprintln!("continuing after line {} of {file}", done.line);
        let at = args.files.iter().position(|path| path.display().to_string() == *file);
        args.files.drain(..at.context("the progress is of a file that is not imported")?);
    }
    // A followed file that was begun may be on its way to another name, before the next one is made.
    let total_bytes = match &start {
        Some(_) if args.follow => None,
        _ => source::total_bytes(&args.files)?.filter(|_| !args.follow),
    };
    let progress = Arc::new(Progress::start(total_bytes, args.dry_run, args.follow));
    // A followed file has no end, so each attempt accounts for itself.
    if let Some(place) = start.as_ref().filter(|_| !args.follow) {
        progress.add_earlier(place.rejected);
    }
    let retry_for = args.retry_for.unwrap_or(if args.follow { FOR_EVER } else { RETRY_FOR });
    let sender = if args.dry_run { None } else { Some(Sender::to(&args.client, READINGS, retry_for)?) };
    let (queue, batches) = mpsc::channel(READ_AHEAD);
    let (stop, stopped) = watch::channel(false);
    let mut signals = args.follow.then(|| StopSignals::new(true)).transpose()?;
    let do_follow = args.follow;
    if let Some(notes) = notes.as_ref().filter(|_| do_follow && start.is_none()) {
        notes.begin(&args.files[0])?;
    }
    let reading = start_reading(args, start, queue, Arc::clone(&progress), stopped);
    let sent = tokio::select! {
        sent = send_all(batches, sender.as_ref(), &progress, notes.as_mut()) => sent,
        never = progress.watch() => match never {},
        overdue = stop_in_time(&mut signals, &stop) => Err(overdue),
    };
    let outcome = match sent {
        Ok(()) => reading.await.context("the reading thread died")?,
        Err(error) => Err(error), // the reading thread may wait for input; it ends with the process
    };
    writeln!(std::io::stdout(), "{}", progress.finish())?;
    let noted = match (&mut notes, &sender) {
        (Some(notes), Some(sender)) => notes.end(outcome.is_ok() && !do_follow, sender, &progress).await,
        _ => Ok(()),
    };
    outcome?;
    noted?;
    match progress.rejected() {
        (0, 0) => Ok(()),
        (0, values) => bail!("{} rejected", counted(values, "value")),
        (readings, _) => bail!("{} rejected", counted(readings, "reading")),
    }
}

fn check_followed(files: &[PathBuf]) -> Result<(), Usage> {
    match files {
        [file] if source::is_plain(file) => Ok(()),
        _ => Err(Usage("--follow is for one file that is not compressed, and not for standard input".to_owned())),
    }
}

/// Ends the reading thread at a signal.
///
/// Returns an error if the lines that were read are not sent within [`STOP_GRACE`], or at a second signal.
async fn stop_in_time(signals: &mut Option<StopSignals>, stop: &watch::Sender<bool>) -> anyhow::Error {
    let Some(signals) = signals else { return std::future::pending().await };
    let name = signals.received().await;
    stop.send_replace(true);
    tokio::select! {
        () = tokio::time::sleep(STOP_GRACE) => {}
        _ = signals.received() => {}
    }
    anyhow!("stopped by {name} before the server took all lines; the next start with the same --progress sends them")
}

/// Starts the thread that reads the files. It reads the first file from `start` on.
///
/// It is not a task of the runtime, because the program must be able to end while a read from a terminal or a
/// pipe blocks.
fn start_reading(
    args: ImportArgs,
    start: Option<Place>,
    queue: mpsc::Sender<Batch>,
    progress: Arc<Progress>,
    stopped: watch::Receiver<bool>,
) -> oneshot::Receiver<anyhow::Result<()>> {
    let (done, outcome) = oneshot::channel();
    std::thread::spawn(move || {
        let read = if args.follow {
            follow::read(&args, start.as_ref(), &queue, &progress, &stopped)
        } else {
            read_files(&args, start.map_or(0, |place| place.done.line), &queue, &progress)
        };
        drop(queue);
        let _ = done.send(read); // the receiver is gone if sending has failed
    });
    outcome
}

/// Sends batches one after another, until the last one or a permanent failure.
async fn send_all(
    mut batches: mpsc::Receiver<Batch>,
    sender: Option<&Sender>,
    progress: &Progress,
    mut notes: Option<&mut Notes>,
) -> anyhow::Result<()> {
    while let Some(batch) = batches.recv().await {
        let answer = if let Some(sender) = sender {
            sender.send(&batch, |what| progress.set_trouble(Some(what))).await?
        } else {
            let accepted = batch.readings.unwrap_or(batch.lines.len() as u64);
            let counts = Counts { accepted, ..Counts::default() };
            Receipt { counts, rejections: Vec::new() }
        };
        progress.set_trouble(None);
        progress.add(answer.counts);
        for rejection in answer.rejections {
            progress.list_rejection(&batch.file, rejection.line, &rejection.why);
        }
        if let (Some(notes), Some(sender), Some(done)) = (&mut notes, sender, &batch.done) {
            if notes.is_due(&batch) {
                notes.confirm_store(sender, progress).await?;
            }
            notes.note(&batch, progress.rejected_with(done.rejected))?;
        }
    }
    Ok(())
}

/// Reads all files in order, the first one after line `start`.
///
/// After a file that cannot be read, it goes on with the next one, but notes no further places: a repetition
/// reads that file again. If sending has stopped, it returns early and without an error, because the sender
/// has its own.
fn read_files(args: &ImportArgs, start: u64, queue: &mpsc::Sender<Batch>, progress: &Progress) -> anyhow::Result<()> {
    let mut failed = Vec::new();
    for (nth, path) in args.files.iter().enumerate() {
        let start = if nth == 0 { start } else { 0 };
        match read_file(path, args, start, failed.is_empty(), queue, progress) {
            Ok(()) => {}
            Err(error) if error.is::<Stopped>() => return Ok(()),
            Err(error) if args.files.len() == 1 => return Err(error),
            Err(error) => {
                progress.note(&format!("{error:#}"));
                failed.push(error);
            }
        }
    }
    let count = failed.len();
    let first = failed.into_iter().next().map_or(Ok(()), Err);
    first.with_context(|| format!("{count} of {} files could not be read to the end", args.files.len()))
}

fn read_file(
    path: &Path,
    args: &ImportArgs,
    start: u64,
    do_note: bool,
    queue: &mpsc::Sender<Batch>,
    progress: &Progress,
) -> anyhow::Result<()> {
    let source = source::open(path, args.format, args.encoding, &progress.counts.bytes)?;
    let batcher = Batcher::new(queue, args.batch as usize, Arc::clone(&source.name)).with_counts(&progress.counts);
    let batcher = if do_note { batcher } else { batcher.with_marks() };
    match source.format {
        Format::Csv => read_csv(source, args, start, batcher, progress),
        Format::Ndjson => read_ndjson(source, start, batcher, progress),
    }
}

fn read_csv(
    source: Source,
    args: &ImportArgs,
    start: u64,
    mut batcher: Batcher<'_>,
    progress: &Progress,
) -> anyhow::Result<()> {
    let Source { name, input, .. } = source;
    let mut rows = Rows::open(input, &args.options()).map_err(|error| of_csv(error, &name))?;
    announce(&name, &rows, progress);
    let read = send_rows(&mut rows, &name, start, &mut batcher, progress).and_then(|()| {
        rows.end();
        send_rows(&mut rows, &name, start, &mut batcher, progress)
    });
    // Also the rows before an error. Held rows are not sent then: what follows them tells their times.
    batcher.finish()?;
    read
}

/// Sends the rows after line `start`.
fn send_rows<R: BufRead>(
    rows: &mut Rows<R>,
    name: &str,
    start: u64,
    batcher: &mut Batcher<'_>,
    progress: &Progress,
) -> anyhow::Result<()> {
    let mut text = Vec::new();
    while let Some(Row { line, outcome }) = rows.next(&mut text).map_err(|error| of_csv(error, name))? {
        if line <= start {
            continue;
        }
        add(&progress.counts.rows, 1);
        match outcome {
            Outcome::Reading { readings, empty_cells, bad_values } => {
                add(&progress.counts.empty_cells, empty_cells);
                add(&progress.counts.rejected_values, bad_values.len() as u64);
                for why in &bad_values {
                    progress.list_rejection(name, line, why);
                }
                batcher.push(line, &text, Some(readings), rows.returned_to())?;
            }
            Outcome::NoValues { empty_cells } => {
                add(&progress.counts.empty_cells, empty_cells);
                add(&progress.counts.empty_rows, 1);
            }
            Outcome::Bad(why) => {
                add(&progress.counts.rejected, 1);
                progress.list_rejection(name, line, &why);
            }
        }
    }
    Ok(())
}

fn of_csv(error: CsvError, name: &str) -> anyhow::Error {
    match error {
        CsvError::Columns(why) => anyhow!(Usage(format!("{name}: {why}"))),
        other => anyhow!(other).context(name.to_owned()),
    }
}

fn read_ndjson(source: Source, start: u64, mut batcher: Batcher<'_>, progress: &Progress) -> anyhow::Result<()> {
    let mut lines = ndjson::Lines::new(source.input, 0);
    let mut text = Vec::new();
    let read = loop {
        match lines.next(&mut text) {
            Ok(Some(number)) if number <= start => {}
            Ok(Some(number)) => {
                add(&progress.counts.rows, 1);
                batcher.push(number, &text, None, number)?;
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(anyhow!(error).context(source.name.to_string())),
        }
    };
    batcher.finish()?; // also the lines before an error
    read
}

/// Prints what was guessed, and the columns.
///
/// It names the form of cells and numbers, the metrics, and the columns that are not read.
fn announce<R: BufRead>(file: &str, rows: &Rows<R>, progress: &Progress) {
    if !rows.guessed().is_empty() {
        progress.note(&format!("{file}: read with {}", rows.guessed().join(" ")));
    }
    let Some(columns) = rows.columns() else { return };
    let metrics: Vec<&str> = columns.values.iter().map(|value| value.metric.as_str()).collect();
    let found = if columns.metric.is_some() { "metrics of the rows, values from" } else { "metrics" };
    progress.note(&format!("{file}: {found} {}", metrics.join(", ")));
    if !columns.ignored.is_empty() {
        progress.note(&format!("{file}: columns not read: {:?}", columns.ignored));
    }
}

impl ImportArgs {
    /// How CSV files are read, according to the flags.
    fn options(&self) -> Options {
        let device = match (&self.device, &self.device_column) {
            (Some(device), _) => WantedDevice::Fixed(device.clone()),
            (None, Some(column)) => WantedDevice::Column(column.clone()),
            (None, None) => WantedDevice::Customary,
        };
        Options {
            wanted: Wanted {
                device,
                time_column: self.time_column.clone(),
                metric_column: self.metric_column.clone(),
                metrics: self.metrics.clone(),
            },
            times: Times { zone: self.tz.clone(), format: self.time_format.clone() },
            delimiter: self.delimiter,
            decimal: self.decimal,
            skip_lines: self.skip_lines,
        }
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

fn parse_device(text: &str) -> anyhow::Result<String> {
    check_device_id(text)?;
    Ok(text.to_owned())
}

fn parse_delimiter(text: &str) -> Result<u8, &'static str> {
    match text {
        "\\t" => Ok(b'\t'),
        _ => match text.as_bytes() {
            [character @ (b',' | b';' | b'|' | b'\t' | b':' | b' ')] => Ok(*character),
            _ => Err("the character is , ; | : or \\t"),
        },
    }
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

    use axum::body::Bytes;
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
    async fn the_last_value_of_an_instant_arrives_last_despite_retries() {
        let arrived = Arc::new(Mutex::new((0, Vec::new())));
        let log = Arc::clone(&arrived);
        let answer = move |body: Bytes| async move {
            let body = String::from_utf8(zstd::decode_all(&*body).unwrap()).unwrap();
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
