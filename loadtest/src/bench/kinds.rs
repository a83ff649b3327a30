//! Measures disk space and CPU time for several kinds of values.

use std::path::Path;

use anyhow::{Context, ensure};

use super::history::{BATCH, CONNECTIONS, DAY_MS};
use super::loads::workload;
use super::{Bench, Section};
use crate::format::Format;
use crate::now_ms;
use crate::target::Target;
use crate::workload::{Values, Workload};

/// The number of devices. Each has a day of readings, one every [`STEP_MS`].
const DEVICES: u64 = 200;
const STEP_MS: u64 = 10_000;

impl Bench<'_> {
    /// Measures each kind of values, and starts the system anew for each kind.
    pub(super) async fn kinds(&mut self) -> anyhow::Result<()> {
        if matches!(self.system.target(), Target::Bare | Target::Naive) {
            return Ok(());
        }
        let mut kinds = vec![
            ("sensor with one decimal", Values::Decimal),
            ("counter, integers", Values::Counter),
            ("switch, seldom another value", Values::Switch),
            ("noise, doubles of 53 bits", Values::Noise),
        ];
        if let Some(file) = &self.args.series {
            kinds.push(("series of a file", Values::Series(series(file)?.into())));
        }
        for (kind, values) in kinds {
            self.kind(kind, values).await.with_context(|| kind.to_owned())?;
        }
        Ok(())
    }

    async fn kind(&mut self, kind: &str, values: Values) -> anyhow::Result<()> {
        let server = self.start().await?;
        let workload = Workload { values, ..workload(DEVICES, STEP_MS, BATCH, now_ms()? - 60 * DAY_MS) };
        let messages = (DAY_MS / STEP_MS * DEVICES / CONNECTIONS).div_ceil(BATCH);
        let sent = self.fill(&server, Format::Lines, workload, messages).await?;
        server.settle().await?;
        for (at, process) in server.processes.iter().enumerate() {
            let cpu_seconds = process.usage()?.cpu_seconds;
            self.add(Section::KINDS_CPU[at], kind, cpu_seconds / sent.readings as f64 * 1e6);
        }
        let bytes = server.stored_bytes().await?;
        self.add(Section::KindsDisk, kind, bytes as f64 / sent.readings as f64);
        Ok(())
    }
}

/// The numbers in the second column of a CSV file.
fn series(file: &Path) -> anyhow::Result<Vec<f64>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let second = |line: &str| line.split(',').nth(1).and_then(|number| number.trim().parse().ok());
    let numbers: Vec<f64> = text.lines().filter_map(second).filter(|number: &f64| number.is_finite()).collect();
    ensure!(!numbers.is_empty(), "{}: no line has a number in its second column", file.display());
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_the_second_column_without_its_head() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "timestamp,value\n2013-12-02 21:15:00,73.5\nx,-1\n").unwrap();
        assert_eq!(series(file.path()).unwrap(), [73.5, -1.0]);
        std::fs::write(file.path(), "timestamp,value\n").unwrap();
        assert!(series(file.path()).unwrap_err().to_string().contains("no line has a number"));
    }
}
