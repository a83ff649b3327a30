//! `tidegauge export`: writes the readings of a running server to a file.
//!
//! An export is an ordinary client, so pending readings are in it. It lists the devices page by page, and
//! asks for the readings of each page as one file. The last row of each device gets its metadata
//! (`rows.rs`); all other bytes are those of the server. So the memory is constant, and every number is the
//! shortest decimal that is the same 64-bit float.
//!
//! The rows are in the order of devices and times. So the last whole row of a file tells where to continue,
//! and `--resume` needs no state beside the file (`place.rs`).

use std::fs::{File, TryLockError};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use tidegauge::common::clock::{Clock, relative_ms, rfc3339};
use tidegauge::common::regular_file::open_regular_with;
use tidegauge::model::check_device_id;

use self::place::{Next, Place};
use self::requests::{Listed, Requests};
use self::rows::{Counts, Rows};
use super::client::ClientArgs;
use super::import::Format;
use super::{Usage, counted};

mod place;
mod requests;
mod rows;

/// The time between two lines of progress on standard error.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The years 0 to 9999: all instants that a reading may have.
const ALWAYS: (&str, &str) = ("0000-01-01T00:00:00Z", "253402300800000");

/// Write the readings of a running server to a file, which import reads.
#[derive(Debug, Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// The format of the file
    #[arg(long, default_value = "ndjson")]
    format: Format,
    #[arg(
        long,
        value_name = "TIME",
        allow_hyphen_values = true,
        help = "The first instant: RFC 3339, Unix milliseconds, a local time with --tz, or a time before now such as \
                -24h [default: all]"
    )]
    from: Option<String>,
    /// The end of the range, exclusive [default: all]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    to: Option<String>,
    /// The time zone of --from and --to without an offset, such as Europe/Berlin
    #[arg(long, value_name = "ZONE")]
    tz: Option<String>,
    /// Only this device; may be repeated
    #[arg(long = "device", value_name = "ID", conflicts_with = "prefix", value_parser = parse_device)]
    devices: Vec<String>,
    /// Only devices whose ID starts with this text
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Only devices with this metadata; may be repeated. KEY!=VALUE excludes it
    #[arg(long = "meta", value_name = "KEY=VALUE", value_parser = parse_pair)]
    metadata: Vec<(String, String)>,
    /// Only this metric or series; may be repeated
    #[arg(long = "metric", value_name = "NAME")]
    metrics: Vec<String>,
    /// The file to write; it must not exist [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Continue the file of an interrupted export; the other flags must be those of that export
    #[arg(long, requires = "output")]
    resume: bool,
}

const LONG_HELP: &str = "\
The file has every reading that the server has stored or accepted, in the order of the devices and their times. NDJSON \
has a line for each instant of a device, or several lines for more than 256 values; the last line of the device also \
has the metadata that it has sent. CSV has a row for each value: deviceId,ts,series,value,metadata. `tidegauge import` \
reads both, and then each value has the same bits. GET and POST /v1/metadata copy what operators have set; standard \
error says if there is any.

A time before now, such as -24h, is by the clock of this machine. It is one instant for all devices. With --output, \
standard error has it. Once the file has a row, --resume needs it in place of -24h.

Readings that arrive during the export are in the file if their device has not been passed yet. Devices whose readings \
have expired are not in it, and neither are their rollups: `tidegauge move` takes these along.

Exit status: 0 if the file is complete, 1 if not (then repeat the command with --resume), 64 for bad usage. A file \
without a row is complete if the server has no such reading; standard error names each --device that the server does \
not have, and says if it has none that --prefix and --meta select.";

/// Runs the export.
pub(super) async fn run(mut args: ExportArgs) -> anyhow::Result<()> {
    let fixed = args.fix_times(Clock::system().now_ms());
    let args = &args;
    let requests = Requests::to(&args.client)?;
    let counts = match &args.output {
        None => write_all(args, &requests, Place::default(), BufWriter::new(std::io::stdout())).await?,
        Some(path) => {
            let mut file = open(path, args.resume)?;
            let place = place::find(&mut file, args.format).with_context(|| path.display().to_string())?;
            for (flag, text, instant) in &fixed {
                if place.next.is_some() {
                    let why =
                        format!("--resume needs an instant in place of {flag} {text}: the first export has printed it");
                    return Err(Usage(why).into());
                }
                eprintln!("tidegauge: {flag} {text} is {instant}; --resume needs {flag} {instant}");
            }
            file.set_len(place.bytes)?;
            file.seek(SeekFrom::End(0))?;
            let written = write_all(args, &requests, place, BufWriter::new(&file)).await;
            let counts = written.map_err(|error| explain(error, &mut file, path, args))?;
            file.sync_all().with_context(|| path.display().to_string())?;
            counts
        }
    };
    eprintln!("{}", written(counts));
    Ok(())
}

fn written(Counts { devices, rows }: Counts) -> String {
    format!("{} of {} written", counted(rows, "row"), counted(devices, "device"))
}

/// Opens the file and locks it: two exports would mix their rows.
fn open(path: &Path, resume: bool) -> anyhow::Result<File> {
    let shown = || path.display().to_string();
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let file = open_regular_with(path, &mut options).with_context(shown)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => bail!("another export writes {}", shown()),
        Err(TryLockError::Error(error)) => return Err(error).with_context(shown),
    }
    if !resume && file.metadata()?.len() > 0 {
        let why = format!("{} exists: continue it with --resume, or remove it first", shown());
        return Err(Usage(why).into());
    }
    Ok(file)
}

/// Adds to an error how to continue.
///
/// A new file without rows is removed, so that the corrected command can begin.
fn explain(error: anyhow::Error, file: &mut File, path: &Path, args: &ExportArgs) -> anyhow::Error {
    let has_rows = args.resume || !place::find(file, args.format).is_ok_and(|place| place.next.is_none());
    if !has_rows {
        let _ = std::fs::remove_file(path); // the caller reports the first error
    } else if !error.is::<Usage>() {
        return anyhow!("{error:#}; repeat the command with --resume to continue the file");
    }
    error
}

/// Writes all rows from a place on.
async fn write_all(args: &ExportArgs, requests: &Requests, place: Place, out: impl Write) -> anyhow::Result<Counts> {
    let (mut rows, mut line) = (Rows::new(args.format, out), Instant::now());
    if place.bytes == 0 {
        rows.begin()?;
    }
    let mut after = None;
    if let Some(Next { device, ts }) = place.next {
        let open = requests.devices(&[("device", &device)], None).await?.devices;
        write_page(args, requests, &open, Some(&ts), &mut rows, &mut line).await?;
        after = Some(device);
    }
    let selection = args.selection();
    let is_to_come = |device: &&String| after.as_ref().is_none_or(|after| *device > after);
    let mut missing: Vec<&String> = args.devices.iter().filter(is_to_come).collect();
    let mut has_devices = after.is_some();
    loop {
        let page = requests.devices(&as_params(&selection), after.as_deref()).await?;
        has_devices |= !page.devices.is_empty();
        missing.retain(|device| !page.devices.iter().any(|listed| listed.device_id.eq_ignore_ascii_case(device)));
        write_page(args, requests, &page.devices, None, &mut rows, &mut line).await?;
        let Some(last) = page.next else { break };
        after = Some(last);
    }
    for device in missing {
        let metadata = if args.metadata.is_empty() { "" } else { " with this metadata" };
        eprintln!("tidegauge: the server has no device {device}{metadata}");
    }
    if !has_devices && args.devices.is_empty() {
        let selected = if selection.is_empty() { "" } else { " that --prefix and --meta select" };
        eprintln!("tidegauge: the server has no device{selected}");
    }
    rows.finish()
}

/// Writes the readings of some devices.
///
/// `line` is the time of the last line of progress.
async fn write_page(
    args: &ExportArgs,
    requests: &Requests,
    devices: &[Listed],
    from: Option<&str>,
    rows: &mut Rows<impl Write>,
    line: &mut Instant,
) -> anyhow::Result<()> {
    if devices.is_empty() {
        return Ok(());
    }
    let from = from.or(args.from.as_deref()).unwrap_or(ALWAYS.0);
    let format = if args.format == Format::Csv { "csv" } else { "ndjson" };
    let mut params = vec![("format", format), ("from", from), ("to", args.to.as_deref().unwrap_or(ALWAYS.1))];
    params.extend(args.tz.as_deref().map(|zone| ("tz", zone)));
    params.extend(args.metrics.iter().map(|metric| ("metric", metric.as_str())));
    params.extend(devices.iter().map(|device| ("device", device.device_id.as_str())));
    let mut answer = requests.get("/v1/readings", &params).await?;
    rows.start_file(devices);
    while let Some(piece) = answer.piece().await.context("the server has ended its answer early")? {
        rows.add(&piece)?;
        if line.elapsed() > LINE_INTERVAL {
            *line = Instant::now();
            eprintln!("{} so far", written(rows.counts()));
        }
    }
    rows.end_file()
}

impl ExportArgs {
    /// Replaces times before now by instants: the export sends many requests, one after another.
    ///
    /// Returns the flag, the time before now, and the instant of each.
    fn fix_times(&mut self, now_ms: i64) -> Vec<(&'static str, String, String)> {
        let mut fixed = Vec::new();
        for (flag, time) in [("--from", &mut self.from), ("--to", &mut self.to)] {
            let Some(text) = time else { continue };
            let Some(ms) = relative_ms(text, now_ms) else { continue };
            let instant = rfc3339(ms);
            fixed.push((flag, std::mem::replace(text, instant.clone()), instant));
        }
        fixed
    }

    /// The parameters of `GET /v1/devices` that select the devices.
    fn selection(&self) -> Vec<(String, String)> {
        let named = self.devices.iter().map(|device| ("device".to_owned(), device.clone()));
        let prefix = self.prefix.iter().map(|prefix| ("prefix".to_owned(), prefix.clone()));
        let metadata = self.metadata.iter().map(|(key, value)| (format!("meta.{key}"), value.clone()));
        named.chain(prefix).chain(metadata).collect()
    }
}

fn as_params(pairs: &[(String, String)]) -> Vec<(&str, &str)> {
    pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

fn parse_device(text: &str) -> anyhow::Result<String> {
    check_device_id(text)?;
    Ok(text.to_owned())
}

fn parse_pair(text: &str) -> anyhow::Result<(String, String)> {
    let (key, value) = text.split_once('=').context("write KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}
