//! `tidegauge check --full`: looks at everything that the service uses, and reports findings.
//!
//! It changes nothing and takes no lock, so it may run beside the service. Each part takes a limited time;
//! what it leaves out is a finding too. The parts are in the rooms that know them: `store::mongodb`,
//! `store::sqlite`, and [`super::files`] for the log and its disk.

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;
use tidegauge::common::clock::Clock;
use tidegauge::common::finding::{Finding, Part, Severity};
use tidegauge::config::{Config, Period, Remarks, StoreKind, SyncPolicy};
use tidegauge::store::mongodb::{BucketStore, TimeseriesStore};
use tidegauge::store::sqlite::SqliteCheck;
use tidegauge::telemetry::{Metrics, VERSION};

use super::files;
use crate::cli::counted;
use crate::cli::serve::options;

const CONFIGURATION: Part = Part::Configuration;

/// The exit code if there are warnings and no errors.
pub(super) const WARNINGS: u8 = 2;

/// The widest part of the text before the sentence, to align sentences.
const PART_WIDTH: usize = 22;

/// The JSON of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    /// The version of this program.
    version: &'static str,
    /// The kind of the store: `sqlite`, `mongodb` or `mongodb-timeseries`.
    store: StoreKind,
    /// The number of findings that are warnings.
    warnings: usize,
    /// The number of findings that are errors.
    errors: usize,
    /// All findings, in the order of the parts.
    findings: &'a [Finding],
}

/// Looks at everything, and returns the findings.
pub(super) async fn look(config: &Config, remarks: &Remarks, is_deep: bool) -> anyhow::Result<Vec<Finding>> {
    let clock = Clock::system();
    let mut findings = configuration(config, remarks);
    findings.extend(check_store(config, is_deep, &clock).await?);
    let config = config.clone();
    findings.extend(tokio::task::spawn_blocking(move || files::look(&config, is_deep)).await?);
    Ok(findings)
}

/// Prints the findings, and returns the exit code.
pub(super) fn report(
    store: StoreKind,
    findings: &[Finding],
    is_json: bool,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (warnings, errors) = (of(Severity::Warning), of(Severity::Error));
    if is_json {
        serde_json::to_writer(&mut *out, &Report { version: VERSION, store, warnings, errors, findings })?;
        writeln!(out)?;
    } else {
        for Finding { severity, part, found, mend } in findings {
            writeln!(out, "{severity:7}  {part:PART_WIDTH$}  {found}")?;
            if let Some(mend) = mend {
                writeln!(out, "{:7}  {:PART_WIDTH$}  mend: {mend}", "", "")?;
            }
        }
        writeln!(out, "{}, {}", counted(errors as u64, "error"), counted(warnings as u64, "warning"))?;
    }
    Ok(match (errors, warnings) {
        (0, 0) => ExitCode::SUCCESS,
        (0, _) => WARNINGS.into(),
        _ => ExitCode::FAILURE,
    })
}

fn configuration(config: &Config, remarks: &Remarks) -> Vec<Finding> {
    let overridden = remarks.overridden.len();
    let mut findings = vec![Finding::ok(
        CONFIGURATION,
        format!(
            "the configuration is valid; flags and variables override {} of its file",
            counted(overridden as u64, "value")
        ),
    )];
    findings.extend(remarks.renamed.iter().map(|renamed| Finding::note(CONFIGURATION, renamed.to_string())));
    if config.log.sync == SyncPolicy::Interval {
        let lost = config.log.sync_interval;
        let note = Finding::note(
            CONFIGURATION,
            format!("log.sync is \"interval\": a power cut loses the acknowledged readings of the last {lost}"),
        );
        findings.push(note.with_mend("set log.sync = \"always\", unless that may be lost"));
    }
    if config.auth.allow_anonymous && !(config.auth.tokens.is_empty() && config.auth.keys.is_empty()) {
        findings.push(Finding::warning(
            CONFIGURATION,
            "there are tokens or keys, but auth.allow_anonymous admits every client without one",
            "set auth.allow_anonymous = false",
        ));
    }
    findings
}

async fn check_store(config: &Config, is_deep: bool, clock: &Clock) -> anyhow::Result<Vec<Finding>> {
    let (metrics, _) = Metrics::new();
    Ok(match config.store_kind() {
        StoreKind::Sqlite => {
            let retention = config.retention.readings.period().map(Period::as_duration);
            let check = SqliteCheck { file: config.sqlite_file(), retention, is_deep };
            let clock = clock.clone();
            tokio::task::spawn_blocking(move || check.run(&clock)).await?
        }
        StoreKind::Mongodb => {
            let store = BucketStore::connect(options::mongodb(config, &metrics)).await?;
            Box::pin(store.check(clock)).await // large, and run once
        }
        StoreKind::MongodbTimeseries => {
            let (options, timeseries) = (options::mongodb(config, &metrics), options::timeseries(config));
            let store = TimeseriesStore::connect(options, timeseries).await?;
            Box::pin(store.check(clock)).await
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_that_of_the_most_serious_finding() {
        let ok = Finding::ok(Part::LogSize, "is good");
        let note = Finding::note(Part::ServerWriteConcern, "is odd").with_mend("do this");
        let warning = Finding::warning(Part::LogDisk, "is bad", "mend");
        let error = Finding::error(Part::QueryPlan, "is worse", "mend");
        let code = |findings: &[Finding]| report(StoreKind::Sqlite, findings, true, &mut Vec::new()).unwrap();
        let text = |code: ExitCode| format!("{code:?}");
        let success = text(ExitCode::SUCCESS);
        assert_eq!((text(code(&[])), text(code(&[ok.clone(), note.clone()]))), (success.clone(), success));
        assert_eq!(text(code(&[warning.clone(), ok.clone()])), text(WARNINGS.into()));
        assert_eq!(text(code(&[error, warning])), text(ExitCode::FAILURE));
        let mut out = Vec::new();
        report(StoreKind::Sqlite, &[ok, note], false, &mut out).unwrap();
        let lines = String::from_utf8(out).unwrap();
        let expected = format!(
            "ok       {:22}  is good\nnote     {:22}  is odd\n{:33}mend: do this\n0 errors, 0 warnings\n",
            "log-size", "server-write-concern", ""
        );
        assert_eq!(lines, expected);
    }
}
