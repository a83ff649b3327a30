//! Prints an estimate for people.

use std::io::{Result, Write};

use super::constants::{Constants, FILE};
use super::fleet::{Fleet, Layout};
use super::model::{Estimate, Rate};

/// The width of the names of figures.
const NAME_WIDTH: usize = 30;

pub(super) fn print(fleet: &Fleet, constants: &Constants, estimate: &Estimate, out: &mut impl Write) -> Result<()> {
    let mut line = |name: &str, text: String| writeln!(out, "{name:NAME_WIDTH$}  {text}");
    let per_second = |rate: f64| format!("{}/s", bytes(rate));
    let both = |rate: Rate, of: &dyn Fn(f64) -> String| format!("{}, at the peak {}", of(rate.average), of(rate.peak));
    let is_sqlite = fleet.layout == Layout::Sqlite;
    line("readings a second", both(estimate.readings_per_second, &amount))?;
    line("requests a second", both(estimate.requests_per_second, &amount))?;
    line("network", both(estimate.network_bytes_per_second, &per_second))?;
    line(
        "readings that are kept",
        format!("{}, {} as they were sent", amount(estimate.readings), bytes(estimate.sent_bytes)),
    )?;
    let documents = if is_sqlite { "buckets" } else { "documents" };
    line(
        documents,
        format!(
            "{}, {} a day, of {} readings",
            amount(estimate.documents),
            amount(estimate.documents_per_day),
            amount(estimate.readings_per_document)
        ),
    )?;
    line(
        "storage",
        format!("{}, {:.2} bytes a reading", bytes(estimate.storage_bytes), estimate.storage_bytes_per_reading),
    )?;
    line(
        "of it indexes, and rollups",
        format!(
            "{}, and {} of {} device-days",
            bytes(estimate.index_bytes),
            bytes(estimate.rollup_bytes),
            amount(estimate.rollup_documents)
        ),
    )?;
    if !is_sqlite {
        line("working set (cache)", bytes(estimate.working_set_bytes))?;
        let (pages, reads) = (bytes(estimate.hot_index_bytes), amount(estimate.index_reads_per_second));
        line("pages of the index, an hour", format!("{pages} more cache, or up to {reads} reads a second"))?;
        let day = bytes(estimate.oplog_bytes_per_day);
        line("oplog", format!("{}, {day} a day", per_second(estimate.oplog_bytes_per_second)))?;
        line("journal", per_second(estimate.journal_bytes_per_second))?;
        line("mongod, processor cores", cores(estimate.store_cores))?;
    }
    line("log", both(estimate.log_bytes_per_second, &per_second))?;
    line("log with an hour of outage", both(estimate.log_bytes, &bytes))?;
    line("tidegauge, memory", both(estimate.service_memory_bytes, &bytes))?;
    line("tidegauge, processor cores", both(estimate.service_cores, &cores))?;
    line("set log.max_bytes to", setting(estimate.log_max_bytes))?;
    line("set pending.max_bytes to", setting(estimate.pending_max_bytes))?;
    print_nodes(fleet, estimate, out)?;
    writeln!(out, "figures of {}, measured on {}: {FILE}", constants.date, constants.machine)
}

fn print_nodes(fleet: &Fleet, estimate: &Estimate, out: &mut impl Write) -> Result<()> {
    let Fleet { node_cores, node_memory, node_disk, .. } = fleet;
    let node =
        format!("{node_cores} cores, {} of memory, {} of disk", bytes(node_memory.0 as f64), bytes(node_disk.0 as f64));
    let (verdict, use_percent) =
        (if estimate.is_one_node_enough { "is enough" } else { "is not enough" }, estimate.first_limit_use * 100.0);
    writeln!(out, "one node of {node} {verdict}")?;
    let name = "  what limits first";
    writeln!(out, "{name:NAME_WIDTH$}  {}, {} % of what is planned with", estimate.first_limit, amount(use_percent))?;
    let nodes = match fleet.layout {
        Layout::Sqlite => format!("{} instances, each with its own devices and file", amount(estimate.instances)),
        _ => format!("{} of tidegauge, {} shards", amount(estimate.instances), amount(estimate.shards)),
    };
    let name = "  nodes";
    writeln!(out, "{name:NAME_WIDTH$}  {nodes}")
}

/// A number with three digits: `166,667` or `5.26 trillion`.
fn amount(number: f64) -> String {
    let units = [(1e18, "quintillion"), (1e15, "quadrillion"), (1e12, "trillion"), (1e9, "billion"), (1e6, "million")];
    match units.into_iter().find(|(of, _)| number >= *of) {
        Some((of, unit)) => format!("{} {unit}", digits(number / of)),
        None if number >= 100.0 => tidegauge::common::finding::count(number.round() as u64),
        None => digits(number),
    }
}

/// Bytes in units of 1000, as disks are sold: `526 TB`.
fn bytes(number: f64) -> String {
    let units = [(1e18, "EB"), (1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    let (of, unit) = units.into_iter().find(|(of, _)| number >= *of).unwrap_or((1.0, "B"));
    format!("{} {unit}", digits(number / of))
}

/// A size for the configuration, rounded up.
fn setting(number: f64) -> String {
    let (of, unit) = if number >= 1e9 { ((1_u64 << 30) as f64, "GiB") } else { ((1_u64 << 20) as f64, "MiB") };
    format!("\"{}{unit}\"", (number / of).ceil().max(1.0))
}

fn cores(number: f64) -> String {
    digits(number)
}

/// Three digits, without zeros at the end of a fraction.
fn digits(number: f64) -> String {
    let decimals = match number {
        large if large >= 100.0 => 0,
        some if some >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{number:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(amount(166_666.7), "166,667");
        assert_eq!((amount(5.256e12), amount(60.0), amount(0.5)), ("5.26 trillion".into(), "60".into(), "0.5".into()));
        assert_eq!(
            (bytes(5.256e14), bytes(999.0), bytes(0.0)),
            ("526 TB".into(), "999 B".into(), "0".to_owned() + " B")
        );
        assert_eq!((setting(5e9), setting(1.0)), ("\"5GiB\"".into(), "\"1MiB\"".into()));
    }
}
