//! Prints an estimate for people.

use std::io::{Result, Write};

use tidegauge::config::{Bytes, Period};

use super::constants::{Constants, FILE};
use super::fleet::{Fleet, Layout, Node};
use super::model::{Estimate, Rate};
use super::settings::{Setting, size};

/// The width of the column with the names of figures.
const NAME_WIDTH: usize = 38;

/// The members of a replica set. Each has all data of its shard.
const MEMBERS: f64 = 3.0;

pub(super) fn print(fleet: &Fleet, constants: &Constants, estimate: &Estimate, out: &mut impl Write) -> Result<()> {
    let mut line = |name: &str, text: String| writeln!(out, "{name:NAME_WIDTH$}  {text}");
    let per_second = |rate: f64| format!("{}/s", bytes(rate));
    let both = |rate: Rate, of: &dyn Fn(f64) -> String| format!("{}, at the peak {}", of(rate.average), of(rate.peak));
    let is_sqlite = fleet.layout() == Layout::Sqlite;
    line("store", fleet.layout().name().to_owned())?;
    line("readings a second", both(estimate.readings_per_second, &amount))?;
    line("requests a second", both(estimate.requests_per_second, &amount))?;
    line("network, bodies of requests", both(estimate.network_bytes_per_second, &per_second))?;
    line("network, heads and answers of HTTP", both(estimate.http_bytes_per_second, &per_second))?;
    let (open, new) = (amount(estimate.connections), amount(estimate.new_connections_per_second.peak));
    line("connections", format!("{open} at once, at the peak {new} new ones a second"))?;
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
    line("storage", bytes(estimate.storage_bytes))?;
    let (of_readings, of_one) =
        (estimate.storage_bytes_per_reading * estimate.readings, estimate.storage_bytes_per_reading);
    let of_indexes = bytes(estimate.index_bytes);
    line("of it readings", format!("{}, {of_one:.2} bytes each, {of_indexes} of it in indexes", bytes(of_readings)))?;
    let (of_rollups, device_days) = (bytes(estimate.rollup_bytes), amount(estimate.rollup_documents));
    line("of it rollups", format!("{of_rollups}, of {device_days} device-days"))?;
    if fleet.layout() == Layout::Packed && fleet.max_age < Period::hours(1) && estimate.readings_per_document > 1.0 {
        let of_hour = "an hour has several documents: --max-age 1h has one, which takes less";
        line("hint", of_hour.to_owned())?;
    }
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
    if is_sqlite {
        let day = bytes(estimate.disk_written_bytes_per_day);
        line("written to the disk", format!("{day} a day, in whole pages: the wear of an SD card"))?;
    }
    line("log with an hour of outage", both(estimate.log_bytes, &bytes))?;
    let full = bytes(estimate.service_memory_full_bytes);
    let memory = both(estimate.service_memory_bytes, &bytes);
    line("tidegauge, memory", format!("{memory}, with pending full {full}"))?;
    line("tidegauge, processor cores", both(estimate.service_cores, &cores))?;
    print_nodes(fleet, estimate, out)?;
    print_instance(estimate, out)?;
    writeln!(out, "figures of {}, measured on {}: {FILE}", constants.date, constants.machine)
}

fn print_nodes(fleet: &Fleet, estimate: &Estimate, out: &mut impl Write) -> Result<()> {
    let Node { cores, memory, disk } = fleet.node();
    let cores = counted(f64::from(cores), "core");
    let node = format!("{cores}, {} of memory, {} of disk", given(memory), given(disk));
    let (verdict, use_percent) =
        (if estimate.is_one_node_enough { "is enough" } else { "is not enough" }, estimate.first_limit_use * 100.0);
    writeln!(out, "one node of {node} {verdict}")?;
    let name = "  what limits first";
    writeln!(out, "{name:NAME_WIDTH$}  {}, {} % of what is planned with", estimate.first_limit, amount(use_percent))?;
    let instances = counted(estimate.instances, "instance");
    let nodes = if fleet.layout() == Layout::Sqlite {
        format!("{instances}, each with its own devices and file")
    } else {
        let (shards, members) = (counted(estimate.shards, "shard"), amount(estimate.shards * MEMBERS));
        format!("{instances} of tidegauge, {shards}; {members} of mongod with replica sets of three")
    };
    let name = "  nodes";
    writeln!(out, "{name:NAME_WIDTH$}  {nodes}")
}

/// Prints the memory and the settings of each instance.
fn print_instance(estimate: &Estimate, out: &mut impl Write) -> Result<()> {
    writeln!(out, "each instance of tidegauge")?;
    let mut line = |name: &str, text: &str| writeln!(out, "  {name:0$}  {text}", NAME_WIDTH - 2);
    let memory = size(estimate.instance_memory_max_bytes);
    line("memory, all of its limits reached", memory.trim_matches('"'))?;
    let settings = estimate.settings.to_set();
    if settings.is_empty() {
        return line("settings", "the defaults are enough");
    }
    for Setting { key, value, reason } in settings {
        line(&format!("set {key} to"), &format!("{value}: {reason}"))?;
    }
    Ok(())
}

fn counted(count: f64, one: &str) -> String {
    format!("{} {one}{}", amount(count), if count > 1.0 { "s" } else { "" })
}

/// A size that a flag gives.
///
/// A multiple of 1 MiB is shown in binary units, any other size in decimal ones.
fn given(size: Bytes) -> String {
    if size.0.is_multiple_of(1 << 20) { size.to_string() } else { bytes(size.0 as f64) }
}

/// A number for people: `166,667`, or from a million on `5.26 trillion`.
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

fn cores(number: f64) -> String {
    if number < 0.005 { "less than 0.01".to_owned() } else { digits(number) }
}

/// A number as text with few digits: `0.12`, `10.5`, `166667`.
///
/// Below 10 it has two decimals, below 100 one, and none above. Zeros at the end of the fraction are left
/// out.
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
        assert_eq!((given(Bytes::gib(32)), given(Bytes(2_000_000_000_000))), ("32GiB".into(), "2 TB".into()));
    }
}
