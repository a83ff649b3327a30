//! `tidegauge demo`: serves a simulated factory from a temporary folder.
//!
//! The command is `serve` with a configuration of its own, and clients beside it. The server treats them like
//! any clients: history arrives over HTTP in large requests, and live readings over HTTP and UDP in small
//! ones, all on loopback. The demo reads and writes no file, variable or store of a real server.

use std::error::Error;
use std::io::{self, ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use clap::Args;
use tidegauge::common::clock::Clock;
use tidegauge::config::{Bytes, Config, Listen};
use tidegauge::telemetry::logs;

use self::clients::Clients;
use self::factory::Factory;
use super::serve::{Listening, serve};

mod calendar;
mod clients;
mod factory;
mod random;
mod sensor;

/// The log level of the server: warnings, except for two kinds.
///
/// The simulation sends bad readings all the time, so warnings about refused readings are off. So are
/// warnings about readings that a stop leaves in the log.
const LOG_LEVEL: &str = "warn,audit=warn,tidegauge::telemetry::refusals=error,tidegauge::cli::serve=error";

/// Serve a simulated factory, to try tidegauge out.
#[derive(Debug, Args)]
#[command(after_long_help = LONG_HELP)]
pub(crate) struct DemoArgs {
    /// The port on 127.0.0.1 for HTTP; 0 selects a free one
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// The seed of the simulated values: one seed has the same values at the same time in each run
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

const LONG_HELP: &str = "\
The demo keeps its log and its SQLite file in a new temporary folder, and removes the folder when Ctrl-C ends it. It \
reads no configuration file and no variable TIDEGAUGE_..., and listens on 127.0.0.1 alone, for UDP on a free port.

Simulated devices send the readings of the last week over HTTP, and go on live, over HTTP and UDP: lights by floor and \
zone, climate and weather, a compressor whose bearing fails ten minutes after the start, an energy meter that was \
replaced, a silent tank, a sensor whose clock is wrong, a truck that sends late, and a scale that sends twice.";

/// Serves the factory until Ctrl-C, then removes its folder.
pub(crate) async fn run(args: &DemoArgs) -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("tidegauge-demo-{:08x}", rand::random::<u32>()));
    std::fs::create_dir(&folder).with_context(|| format!("create the folder {}", folder.display()))?;
    let served = serve_factory(args, &folder).await;
    std::fs::remove_dir_all(&folder).with_context(|| format!("remove the folder {}", folder.display()))?;
    served
}

async fn serve_factory(args: &DemoArgs, folder: &Path) -> anyhow::Result<()> {
    let config = config(args, folder)?;
    logs::init(&config.telemetry)?;
    let start = |listening: Listening| {
        let udp = listening.udp.context("datagrams are on")?;
        announce(listening.http, udp, folder)?;
        let clock = Clock::system();
        let factory = Factory::new(args.seed, clock.now_ms());
        tokio::spawn(Clients::new(listening.http, udp, clock)?.run(Arc::new(factory)));
        Ok(())
    };
    serve(&config, None, start).await.map_err(|error| explain(error, args.port))
}

fn config(args: &DemoArgs, folder: &Path) -> anyhow::Result<Config> {
    let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut config = Config::default();
    config.server.data_dir = folder.into();
    // The folder is removed at the end, so readings need not reach the store.
    config.server.shutdown_grace = "1s".parse()?;
    config.http.listen = loopback(args.port);
    config.udp.listen = Listen::At(loopback(0));
    config.udp.receive_buffer = Bytes::kib(64); // granted by every system
    config.telemetry.log_level = LOG_LEVEL.parse()?;
    Ok(config)
}

/// Prints the address, and commands to try.
fn announce(http: SocketAddr, udp: SocketAddr, folder: &Path) -> io::Result<()> {
    let folder = folder.display();
    let mut out = io::stdout().lock();
    writeln!(out, "demo of a factory: http://{http}/ (UDP {udp}); Ctrl-C ends it and removes {folder}")?;
    writeln!(out, "a week by day:   curl 'http://{http}/v1/devices/LIGHT-FL01-ZONE1/rollups?from=-7d&step=1d'")?;
    writeln!(out, "latest values:   curl 'http://{http}/v1/latest?meta.floor=2'")?;
    writeln!(out, "silent devices:  curl 'http://{http}/v1/devices?silent_for=1h'")?;
    out.flush()
}

/// Replaces the error of a port in use by one that says what to do.
fn explain(error: anyhow::Error, port: u16) -> anyhow::Error {
    let in_use = |cause: &(dyn Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|cause| cause.kind() == ErrorKind::AddrInUse)
    };
    if error.chain().any(in_use) {
        return anyhow!("another program uses port {port}: choose one with --port, such as --port 0 for a free one");
    }
    error
}
