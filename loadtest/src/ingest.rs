//! `loadtest ingest`: puts one load on one server, and prints throughput and cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressStyle};

use crate::format::Format;
use crate::http::{self, Until};
use crate::latency::Latency;
use crate::process::{Process, Usage};
use crate::target::Target;
use crate::verify::{self, Verified};
use crate::workload::{Kind, Values, Workload};
use crate::{metrics, mqtt, now_ms, udp};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// The system under load
    #[arg(long, value_enum, default_value_t = Target::Tidegauge)]
    target: Target,
    /// The server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    url: String,
    /// Send datagrams to this address, and not HTTP requests
    #[arg(long, value_name = "HOST:PORT", requires = "rate")]
    udp: Option<std::net::SocketAddrV4>,
    /// Publish to this address by MQTT with quality of service 1, topic `loadtest`, and not over HTTP
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["udp", "rate"])]
    mqtt: Option<String>,
    /// Messages of a connection by MQTT that may be unacknowledged
    #[arg(long, default_value_t = 1, requires = "mqtt")]
    window: u16,
    /// The format of the messages
    #[arg(long, value_enum, default_value_t = Format::Json)]
    format: Format,
    /// The workload of the devices
    #[arg(long, value_enum, default_value_t = Kind::Factory)]
    workload: Kind,
    /// Devices
    #[arg(long, default_value_t = 1_000)]
    devices: u64,
    /// The time between two readings of a device, instead of the workload's
    #[arg(long)]
    step_ms: Option<u64>,
    /// Readings per message, instead of the workload's
    #[arg(long)]
    batch: Option<u64>,
    /// Connections (or sockets) over which the devices are spread
    #[arg(long, default_value_t = 4)]
    connections: u64,
    /// Open loop: readings per second; 0 is the rate of the workload. Without it (closed loop) each
    /// connection sends its next message after the answer to the last one
    #[arg(long)]
    rate: Option<f64>,
    /// How long to send
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Stop when each device has this many readings, instead of by time
    #[arg(long, conflicts_with = "seconds")]
    readings_per_device: Option<u64>,
    /// The time of the first readings: this long ago. 0 is now, for devices that keep to the clock
    #[arg(long, default_value_t = 31.0)]
    days_ago: f64,
    /// Wait until tidegauge has no pending readings before measuring the processes
    #[arg(long)]
    settle: bool,
    /// Afterwards compare the rollups of this many devices with the acknowledged readings
    #[arg(long, default_value_t = 0)]
    verify: u64,
    /// A process whose CPU time and memory are counted, as NAME=PID; may repeat
    #[arg(long)]
    process: Vec<Process>,
    /// Print one JSON object only
    #[arg(long)]
    json: bool,
}

/// The results of a run.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Report {
    pub(crate) target: Target,
    pub(crate) protocol: &'static str,
    pub(crate) format: Format,
    pub(crate) workload: Workload,
    pub(crate) connections: u64,
    pub(crate) seconds: f64,
    /// The number of acknowledged readings; over UDP, of sent readings.
    pub(crate) readings: u64,
    pub(crate) readings_per_second: f64,
    pub(crate) messages_per_second: f64,
    /// How often a message was refused for now and sent again.
    pub(crate) again: u64,
    pub(crate) latency_ms: Option<Latency>,
    /// Seconds from the last answer until no reading was pending.
    pub(crate) drained_after: Option<f64>,
    pub(crate) processes: Vec<Usage>,
    pub(crate) verified: Option<Verified>,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let report = measure(args).await?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    let wrong = report.verified.as_ref().map_or(0, |verified| verified.wrong);
    ensure!(wrong == 0, "{wrong} devices do not have what was acknowledged");
    Ok(())
}

async fn measure(args: &Args) -> anyhow::Result<Report> {
    let mut processes = args.process.clone();
    processes.iter_mut().try_for_each(Process::reset)?;
    let sending = args.sending()?;
    let progress = Arc::new(AtomicU64::new(0));
    let shown = tokio::spawn(show(Arc::clone(&progress)));
    let start = Instant::now();
    let (sent, messages) = if let Some(address) = args.udp {
        (None, send_datagrams(args, &sending, address, &progress).await?)
    } else {
        let sent = match &args.mqtt {
            Some(address) => {
                let published = http::Sending { address: address.clone(), ..sending.clone() };
                mqtt::send(published, args.window, Arc::clone(&progress)).await?
            }
            None => http::send(sending.clone(), Arc::clone(&progress)).await?,
        };
        let messages = sent.latencies.len();
        (Some(sent), messages)
    };
    shown.abort();
    let seconds = start.elapsed().as_secs_f64();
    let settling = Instant::now();
    if args.settle || args.verify > 0 {
        metrics::settle(&args.url).await?;
    }
    let drained_after = args.settle.then(|| settling.elapsed().as_secs_f64());
    let processes = processes.iter().map(Process::usage).collect::<Result<_, _>>()?;
    let verified = match &sent {
        Some(sent) if args.verify > 0 => Some(verify::verify(&[(&sending, &sent.messages)], args.verify, 0).await?),
        _ => None,
    };
    let readings = progress.load(Ordering::Relaxed);
    Ok(Report {
        target: args.target,
        protocol: match (&args.udp, &args.mqtt) {
            (Some(_), _) => "udp",
            (_, Some(_)) => "mqtt",
            _ => "http",
        },
        format: args.format,
        workload: sending.workload,
        connections: args.connections,
        seconds,
        readings,
        readings_per_second: readings as f64 / seconds,
        messages_per_second: messages as f64 / seconds,
        again: sent.as_ref().map_or(0, |sent| sent.again),
        latency_ms: sent.map(|sent| Latency::of(&sent.latencies)),
        drained_after,
        processes,
        verified,
    })
}

impl Args {
    fn sending(&self) -> anyhow::Result<http::Sending> {
        ensure!(self.target.reads(self.format), "{:?} does not read {:?}", self.target, self.format);
        ensure!(self.devices >= self.connections, "each connection needs a device");
        ensure!(self.window > 0, "--window is at least 1");
        let asks = self.settle || self.verify > 0;
        ensure!(!asks || self.target == Target::Tidegauge, "--settle and --verify ask tidegauge");
        ensure!(self.verify == 0 || self.udp.is_none(), "--verify needs acknowledgements, and datagrams have none");
        let (step_ms, batch, late_percent, resent_percent) = self.workload.habits();
        let back_ms = (self.days_ago * 86_400_000.0) as u64;
        let workload = Workload {
            kind: self.workload,
            first_device: 0,
            devices: self.devices,
            step_ms: self.step_ms.unwrap_or(step_ms),
            batch: self.batch.unwrap_or(batch),
            late_percent,
            resent_percent,
            first_ms: now_ms()? - back_ms,
            values: Values::Decimal,
        };
        let until = match self.readings_per_device {
            Some(each) => Until::Messages((each * self.devices / self.connections).div_ceil(workload.batch)),
            None => Until::Seconds(self.seconds),
        };
        let rate = self.rate.map(|rate| if rate > 0.0 { rate } else { workload.natural_rate() });
        let (target, format, connections) = (self.target, self.format, self.connections);
        Ok(http::Sending { address: self.url.clone(), target, format, workload, connections, rate, until })
    }
}

async fn send_datagrams(
    args: &Args,
    sending: &http::Sending,
    address: std::net::SocketAddrV4,
    progress: &Arc<AtomicU64>,
) -> anyhow::Result<u64> {
    let sending = udp::Sending {
        address,
        format: args.format,
        workload: sending.workload.clone(),
        sockets: args.connections,
        rate: sending.rate.context("datagrams take --rate")?,
        until: sending.until,
    };
    let progress = Arc::clone(progress);
    let datagrams = tokio::task::spawn_blocking(move || udp::send(&sending, &progress)).await??;
    Ok(datagrams.iter().sum())
}

/// Shows the number of readings so far on a terminal.
async fn show(progress: Arc<AtomicU64>) {
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{elapsed} {human_pos} readings, {per_sec}").expect("a good template"));
    loop {
        bar.set_position(progress.load(Ordering::Relaxed));
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

fn print(report: &Report) {
    let Workload { kind, devices, step_ms, batch, .. } = &report.workload;
    println!(
        "{:?} by {} as {:?}: {kind:?}, {devices} devices, a reading every {step_ms} ms, {batch} a message, \
         {} connections",
        report.target, report.protocol, report.format, report.connections
    );
    println!(
        "{} readings in {:.2} s: {:.0} readings/s, {:.0} messages/s, {} messages sent again",
        report.readings, report.seconds, report.readings_per_second, report.messages_per_second, report.again
    );
    if let Some(latency) = &report.latency_ms {
        println!(
            "latency ms: p50 {:.2}, p99 {:.2}, p99.9 {:.2}, max {:.2}",
            latency.p50, latency.p99, latency.p999, latency.max
        );
    }
    if let Some(seconds) = report.drained_after {
        println!("nothing pending {seconds:.2} s later");
    }
    for usage in &report.processes {
        println!(
            "{}: {:.2} cpu-s, {:.3} cpu-s per million readings, {:.1} cpu-us a message, memory {:.0} MiB, at most \
             {:.0} MiB",
            usage.name,
            usage.cpu_seconds,
            usage.cpu_seconds / report.readings as f64 * 1e6,
            usage.cpu_seconds / (report.messages_per_second * report.seconds) * 1e6,
            usage.resident_mib,
            usage.peak_mib
        );
    }
    if let Some(verified) = &report.verified {
        println!("verified {} devices, {} readings: {} wrong", verified.devices, verified.readings, verified.wrong);
    }
}
