//! Counts the instructions of each stage of a reading with callgrind: `make instructions`.
//!
//! Unlike times, the counts are nearly the same in each run, on all machines of a kind, and under any load.
//! They are in a table, `instructions.toml`. `--check` compares with it: a change that makes a stage slower
//! must change the table too, and shows in review. `--update` writes the table. Without an option, the counts
//! are only printed.
//!
//! The program runs itself under valgrind once for each stage. Only the instructions of [`measured`] count.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, anyhow, ensure};
use serde::Deserialize;
use tidegauge::bench::{STAGES, Stage, Work};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions.toml");

/// The largest increase over the table, in percent. An unrelated change can make the compiler inline a
/// function or not: the count of an unchanged stage was seen to differ by 8 %.
const TOLERANCE: f64 = 10.0;

/// The same if another compiler made the table: enough to notice work that is done twice.
const TOLERANCE_OF_OTHERS: f64 = 30.0;

/// The committed table.
#[derive(Debug, Deserialize)]
struct Table {
    /// The [`compiler`] of the counted program.
    compiler: String,
    instructions: BTreeMap<String, f64>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => count_all().map(|_| true),
        ["--check"] => check(),
        ["--update"] => update().map(|()| true),
        ["--stage", name] => run(name).map(|()| true),
        _ => Err(anyhow!("usage: instructions [--check | --update]")),
    };
    done.map_or_else(
        |error| {
            eprintln!("instructions: {error:#}");
            ExitCode::FAILURE
        },
        |good| if good { ExitCode::SUCCESS } else { ExitCode::FAILURE },
    )
}

/// Does the work of a stage twice, and counts the second time, without the set-up of the process.
fn run(name: &str) -> anyhow::Result<()> {
    let stage = STAGES.iter().find(|stage| stage.name == name).with_context(|| format!("no stage {name}"))?;
    drop((stage.prepare)()());
    let work = (stage.prepare)();
    drop(measured(work));
    Ok(())
}

#[inline(never)]
fn measured(work: Work) -> Box<dyn Any> {
    work()
}

/// Returns whether all counts are as in the table.
fn check() -> anyhow::Result<bool> {
    let table: Table = toml::from_str(&std::fs::read_to_string(TABLE).context(TABLE)?).context(TABLE)?;
    let compiler = compiler()?;
    let tolerance = if compiler == table.compiler { TOLERANCE } else { TOLERANCE_OF_OTHERS };
    if compiler != table.compiler {
        println!("the table is of {}, this is {compiler}: the tolerance is {tolerance} %", table.compiler);
    }
    let counts = count_all()?;
    let verdicts = compare(&table.instructions, &counts, tolerance);
    let failed = verdicts.iter().filter(|verdict| verdict.is_err()).count();
    for verdict in &verdicts {
        match verdict {
            Ok(good) => println!("ok      {good}"),
            Err(bad) => println!("FAILED  {bad}"),
        }
    }
    if failed > 0 {
        println!("if that is as it should be: make instructions UPDATE=1, and say why in the commit");
    }
    println!("{} passed, {failed} failed", verdicts.len() - failed);
    Ok(failed == 0)
}

/// Returns a line for each stage of either side: `Err` if the stage differs.
fn compare(
    table: &BTreeMap<String, f64>,
    counts: &BTreeMap<String, f64>,
    tolerance: f64,
) -> Vec<Result<String, String>> {
    let verdict = |(name, expected): (&String, &f64)| {
        let Some(count) = counts.get(name) else { return Err(format!("{name}: there is no such stage")) };
        let percent = (count / expected - 1.0) * 100.0;
        let line = format!("{name}: {count:.1}, in the table {expected:.1} ({percent:+.1} %)");
        if percent <= tolerance { Ok(line) } else { Err(line) }
    };
    let new = counts.keys().filter(|name| !table.contains_key(*name));
    table.iter().map(verdict).chain(new.map(|name| Err(format!("{name}: not in the table")))).collect()
}

fn update() -> anyhow::Result<()> {
    let head = format!(
        "# Instructions per reading (rollup_merge: per hour of a device) of each stage in src/bench.rs, counted by\n\
         # callgrind. Written by `make instructions UPDATE=1`, compared by `make instructions`.\n\
         compiler = \"{}\"\n\n[instructions]\n",
        compiler()?
    );
    let counts = count_all()?;
    let lines = STAGES.map(|stage| format!("{} = {:.1}\n", stage.name, counts[stage.name]));
    std::fs::write(TABLE, head + &lines.concat()).context(TABLE)?;
    println!("{TABLE} is written");
    Ok(())
}

fn count_all() -> anyhow::Result<BTreeMap<String, f64>> {
    let folder = tempfile::tempdir()?;
    let counts = STAGES.iter().map(|stage| {
        let count = count(stage, &folder.path().join(stage.name))?;
        println!("{:20} {count:8.1} instructions per {}", stage.name, stage.per);
        Ok((stage.name.to_owned(), count))
    });
    counts.collect()
}

/// Instructions per reading.
fn count(stage: &Stage, out: &Path) -> anyhow::Result<f64> {
    let mut valgrind = Command::new(std::env::var_os("VALGRIND").unwrap_or_else(|| "valgrind".into()));
    // Each step of a repeated string instruction counts, and whether glibc copies by them depends on the
    // processor.
    let without = "glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_rep_stosb_threshold=1073741824";
    valgrind.env("GLIBC_TUNABLES", without);
    valgrind.args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*::measured*"]);
    valgrind.arg(format!("--callgrind-out-file={}", out.display()));
    valgrind.arg(std::env::current_exe()?).args(["--stage", stage.name]);
    let done = valgrind.output().context("valgrind is needed to count instructions: apt-get install valgrind")?;
    ensure!(done.status.success(), "{}: {}: {}", stage.name, done.status, String::from_utf8_lossy(&done.stderr));
    let counted = std::fs::read_to_string(out)?;
    let total = counted.lines().find_map(|line| line.strip_prefix("totals: ")).context("callgrind counted nothing")?;
    let total: f64 = total.trim().parse()?;
    ensure!(total > 0.0, "{}: callgrind did not find the function to count", stage.name);
    Ok(total / stage.count as f64)
}

/// Returns the compiler and the platform, on which the counts depend besides the source.
fn compiler() -> anyhow::Result<String> {
    let rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("--version").output()?;
    let version = String::from_utf8(rustc.stdout)?;
    let version = version.split(' ').nth(1).context("rustc --version")?;
    Ok(format!("rustc {version} for {}-{}", std::env::consts::ARCH, std::env::consts::OS))
}
