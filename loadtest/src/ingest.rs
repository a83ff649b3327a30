//! `loadtest ingest`

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::ValueEnum;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::{latencies, micros, milliseconds, now_ms, process};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// The server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    url: String,
    /// The format of the bodies
    #[arg(long, value_enum, default_value_t = Format::Json)]
    format: Format,
    /// Connections, each with one request under way
    #[arg(long, default_value_t = 64)]
    connections: u64,
    /// Readings per request
    #[arg(long, default_value_t = 1)]
    batch: u64,
    /// Devices, of which each connection has its share
    #[arg(long, default_value_t = 1_000)]
    devices: u64,
    /// How long to send
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Wait until nothing is pending before the CPU time is read
    #[arg(long)]
    settle: bool,
    /// Processes whose CPU time is counted; may repeat
    #[arg(long)]
    pid: Vec<u32>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Json,
    Ndjson,
    /// Influx line protocol
    Lines,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let cpu_before = args.pid.iter().map(|&pid| process::cpu_seconds(pid)).collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    let shared = Arc::new(args.clone());
    let mut senders: JoinSet<_> = (0..args.connections).map(|nth| send(Arc::clone(&shared), nth)).collect();
    let (mut readings, mut all) = (0, latencies()?);
    while let Some(sent) = senders.join_next().await {
        let (count, latencies) = sent??;
        readings += count;
        all.add(latencies)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let at = |quantile| milliseconds(all.value_at_quantile(quantile));
    println!(
        "{} connections, {} readings a request, {:?}, {} devices",
        args.connections, args.batch, args.format, args.devices
    );
    println!(
        "{readings} readings in {seconds:.2} s: {:.0} readings/s, {:.0} requests/s",
        readings as f64 / seconds,
        all.len() as f64 / seconds
    );
    println!("latency ms: p50 {:.2}, p99 {:.2}, max {:.2}", at(0.5), at(0.99), at(1.0));
    if args.settle {
        settle(&args.url).await?;
        println!("nothing pending after {:.2} s", start.elapsed().as_secs_f64());
    }
    for (&pid, before) in args.pid.iter().zip(cpu_before) {
        let cpu = process::cpu_seconds(pid)? - before;
        println!(
            "pid {pid}: {cpu:.2} cpu-s, {:.3} cpu-s per million readings, {:.0} MiB at most",
            cpu / readings as f64 * 1e6,
            process::peak_mib(pid)?
        );
    }
    Ok(())
}

/// Waits until everything is stored.
async fn settle(url: &str) -> anyhow::Result<()> {
    let mut client = Client::connect(url).await?;
    loop {
        let (_, metrics) = client.get("/metrics").await?;
        if String::from_utf8_lossy(metrics).lines().any(|line| line == "tidegauge_readings_pending 0") {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn send(args: Arc<Args>, nth: u64) -> anyhow::Result<(u64, hdrhistogram::Histogram<u64>)> {
    let mut client = Client::connect(&args.url).await?;
    let mut latencies = latencies()?;
    let (path, content_type) = match args.format {
        Format::Json => ("/v1/readings", "application/json"),
        Format::Ndjson => ("/v1/readings", "application/x-ndjson"),
        Format::Lines => ("/api/v2/write?precision=ms", "text/plain"),
    };
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    let (mut readings, mut body) = (0, String::new());
    // Each device sends in time order: one step forward whenever the connection comes back to it.
    let devices = (args.devices / args.connections).max(1);
    let first_ms = now_ms()? - 3_600_000;
    while Instant::now() < deadline {
        body.clear();
        for at in readings..readings + args.batch {
            let (device, ts_ms) = (nth * devices + at % devices, first_ms + at / devices);
            append(&mut body, args.format, device, ts_ms)?;
        }
        finish(&mut body, args.format);
        let asked = Instant::now();
        let (status, answer) = client.post(path, content_type, body.as_bytes()).await?;
        ensure!(status / 100 == 2, "status {status}: {}", String::from_utf8_lossy(answer));
        latencies.record(micros(asked.elapsed()))?;
        readings += args.batch;
    }
    Ok((readings, latencies))
}

fn append(body: &mut String, format: Format, device: u64, ts_ms: u64) -> std::fmt::Result {
    let value = ts_ms % 1_000;
    match format {
        Format::Json | Format::Ndjson => {
            let before = match (format, body.is_empty()) {
                (Format::Json, true) => "[",
                (Format::Json, false) => ",",
                _ => "",
            };
            write!(body, "{before}{{\"deviceId\":\"device-{device:06}\",\"ts\":{ts_ms},\"value\":{value}.25}}")?;
            if matches!(format, Format::Ndjson) { writeln!(body) } else { Ok(()) }
        }
        Format::Lines => writeln!(body, "temp,deviceId=device-{device:06} value={value}.25 {ts_ms}"),
    }
}

fn finish(body: &mut String, format: Format) {
    if matches!(format, Format::Json) {
        body.push(']');
    }
}
