//! `tidegauge estimate`: what a fleet of devices needs, computed from measured figures.
//!
//! The flags describe the fleet (`fleet`). `constants.toml`, which is compiled into the program, has the
//! measured figures, each with its origin (`constants`). `model` and `settings` compute the estimate, without
//! I/O. `text` prints it.
//!
//! All figures are finite floating-point numbers: the ranges of the flags keep each product below 1e40.

mod constants;
mod fleet;
mod model;
mod settings;
mod text;

use std::io::Write;

use clap::Args;

use self::constants::Constants;
pub(super) use self::fleet::Fleet;
use self::model::Estimate;

/// The flags of `tidegauge estimate`.
#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub(super) struct EstimateArgs {
    #[command(flatten)]
    fleet: Fleet,
    /// Print the figures as one JSON object, in the units that their names end with
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
The figures come from measurements of one machine, which the output names, and are rounded. They tell one node from \
twenty, and not five nodes from six: load a node of your own before you buy others (docs/sizing.md).

Examples: a workshop, whose 200 machines send once a minute:

  tidegauge estimate --devices 200

Ten million devices that send 100 bytes a minute, kept for a year, with peaks of five times the mean:

  tidegauge estimate --devices 10000000 --interval 60s --metrics 1 --bytes 100 --retention 365d --peak 5 \\
      --layout readable";

/// Prints the estimate.
pub(super) fn run(args: &EstimateArgs) -> anyhow::Result<()> {
    let constants = Constants::measured()?;
    let of = |fleet: Fleet| (Estimate::of(&fleet, &constants), fleet);
    let on_small_machine = args.fleet.on_small_machine().map(of).filter(|(estimate, _)| estimate.is_one_node_enough);
    let (estimate, fleet) = on_small_machine.unwrap_or_else(|| of(args.fleet.clone()));
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &estimate)?;
        writeln!(out)?;
        return Ok(());
    }
    Ok(text::print(&fleet, &constants, &estimate, &mut out)?)
}
