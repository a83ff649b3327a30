//! `loadtest fill`

use std::fmt::Write;

use anyhow::ensure;

use crate::client::Client;
use crate::now_ms;

/// How many lines a request has.
const LINES: u64 = 5_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080")]
    url: String,
    /// Devices
    #[arg(long)]
    devices: u64,
    /// Readings of each device
    #[arg(long)]
    readings: u64,
    /// The time between two readings of a device
    #[arg(long, default_value_t = 1)]
    step_ms: u64,
}

/// Sends the readings of all devices in time order, as the devices would.
pub(crate) async fn run(args: &Args) -> anyhow::Result<()> {
    let mut client = Client::connect(&args.url).await?;
    let hour_ms = 3_600_000;
    let last_ms = now_ms()? / hour_ms * hour_ms - args.step_ms; // the end of the last full hour
    let (mut body, mut lines) = (String::new(), 0);
    for back in (0..args.readings).rev() {
        let ts_ms = last_ms - back * args.step_ms;
        for device in 0..args.devices {
            writeln!(body, "temp,deviceId=device-{device:06} value={}.25 {ts_ms}", (ts_ms / args.step_ms) % 1_000)?;
            lines += 1;
            if lines % LINES == 0 {
                send(&mut client, &mut body).await?;
            }
        }
    }
    send(&mut client, &mut body).await?;
    println!("{lines} readings of {} devices", args.devices);
    Ok(())
}

async fn send(client: &mut Client, body: &mut String) -> anyhow::Result<()> {
    if !body.is_empty() {
        let (status, answer) = client.post("/api/v2/write?precision=ms", "text/plain", body.as_bytes()).await?;
        ensure!(status == 204, "status {status}: {}", String::from_utf8_lossy(answer));
        body.clear();
    }
    Ok(())
}
