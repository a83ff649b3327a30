//! `tidegauge check --full`: looks at everything that the service uses, and reports findings.
//!
//! It changes nothing and takes no lock, so it may run beside the service. Each part takes a limited time,
//! and reports as a finding what it leaves out. The parts are in the rooms that know them: `store::mongodb`,
//! `store::sqlite`, and [`super::files`] for the log and its disk.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tidegauge::common::clock::Clock;
use tidegauge::common::finding::{Finding, Part, Severity, span};
use tidegauge::config::{Config, Expiry, MongodbUri, Overridden, Period, StoreKind, SyncPolicy};
use tidegauge::store::Store;
use tidegauge::store::mongodb::{BucketStore, TimeseriesStore};
use tidegauge::store::sqlite::SqliteCheck;
use tidegauge::telemetry::{Metrics, VERSION};
use tidegauge::tls::Tls;

use super::{files, forward, mqtt, rights};
use crate::cli::known_store::KnownStore;
use crate::cli::serve::options;
use crate::cli::{counted, data_dir, target};

const CONFIGURATION: Part = Part::Configuration;
const CERTIFICATE: Part = Part::Certificate;
const STORE: Part = Part::StoreRecord;

/// A certificate, token or key that expires within this time is a warning: for certificates as in the alerts.
const EXPIRY_MIN: Duration = Duration::from_secs(14 * 86_400);

/// The mend of a data folder that cannot be written.
const UNWRITABLE: &str = "run the check as the user of the service; that user has to own the folder of \
     server.data_dir, and its disk must not be read-only";

/// How many tokens and keys a finding names at most.
const NAMED_MAX: usize = 10;

/// The exit code if there are warnings and no errors.
pub(super) const WARNINGS: u8 = 2;

/// The width of the column with the part, such as `log-dead-letters`.
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

/// The subject of a check.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) config: &'a Config,
    /// The configuration file, if there is one.
    pub(super) file: Option<&'a Path>,
    pub(super) overridden: &'a [Overridden],
    /// The certificates of the server, if TLS is on.
    pub(super) tls: Option<&'a Tls>,
    /// The server that readings are forwarded to, if there is one.
    pub(super) forward: Option<&'a tidegauge::forward::Options>,
    /// The MQTT brokers.
    pub(super) brokers: &'a [tidegauge::mqtt::Options],
}

/// Looks at everything, and returns the findings.
pub(super) async fn look(subject: &Subject<'_>, is_deep: bool) -> anyhow::Result<Vec<Finding>> {
    let Subject { config, file, overridden, tls, forward, brokers } = *subject;
    let clock = Clock::system();
    let known = KnownStore::load(&data_dir::known_store(&config.server.data_dir)).ok().flatten();
    let mut findings = configuration(config, overridden.len());
    findings.extend(access(config, clock.now_ms()));
    findings.extend(rights::look(config, file));
    findings.extend(tls.map(|tls| certificate(tls.not_after_ms(), clock.now_ms())));
    findings.extend(data_folder(config));
    findings.extend(check_store(config, known.as_ref(), is_deep, &clock).await?);
    findings.extend(known.and_then(|known| known.objection(config)).map(other_store));
    if let Some(forward) = forward {
        findings.extend(forward::look(config, &forward.client).await);
    }
    for broker in brokers {
        findings.extend(mqtt::look(broker).await);
    }
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

fn configuration(config: &Config, overridden: usize) -> Vec<Finding> {
    let mut findings = vec![Finding::ok(
        CONFIGURATION,
        format!(
            "the configuration is valid; flags and variables override {} of its file",
            counted(overridden as u64, "value")
        ),
    )];
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
    let uri = config.mongodb.uri.as_ref().filter(|_| config.store_kind().is_mongodb());
    if uri.is_some_and(MongodbUri::takes_any_certificate) {
        findings.push(Finding::warning(
            CONFIGURATION,
            "an option of mongodb.uri switches off the check of certificates: a machine on the way to MongoDB can read \
             and change everything",
            "remove tlsInsecure and tlsAllowInvalidCertificates; for a private authority, set tlsCAFile to its file",
        ));
    }
    findings
}

/// Reports open access, and credentials that have expired or will soon.
///
/// Access is open if clients of other machines need no token.
fn access(config: &Config, now_ms: i64) -> Vec<Finding> {
    let mut findings = Vec::new();
    let listens = [
        Some(("http.listen", config.http.listen)),
        config.mqtt_listener.listen.address().map(|at| ("mqtt_listener.listen", at)),
        config.udp.listen.address().map(|at| ("udp.listen", at)),
    ];
    let open = listens.into_iter().flatten().find(|(_, at)| !at.ip().to_canonical().is_loopback());
    if let Some((key, at)) = open.filter(|_| config.auth.allow_anonymous) {
        let note = format!("auth.allow_anonymous admits every client of {key}, which is {at}: other machines reach it");
        let mend =
            "configure tokens and keys, and set auth.allow_anonymous = false, unless the network keeps others out";
        findings.push(Finding::note(CONFIGURATION, note).with_mend(mend));
    }
    if let Some(names) = names_of(config, |expires| expires.is_over(now_ms)) {
        let note = format!("these tokens and keys have expired {names}");
        findings.push(Finding::note(CONFIGURATION, note).with_mend("remove them, or give their clients new ones"));
    }
    let soon_ms = now_ms.saturating_add(EXPIRY_MIN.as_millis() as i64);
    if let Some(names) = names_of(config, |expires| expires.is_over(soon_ms) && !expires.is_over(now_ms)) {
        let found = format!("these tokens and keys expire within {} {names}", span(EXPIRY_MIN));
        findings.push(Finding::warning(CONFIGURATION, found, "give their clients new ones, then remove them"));
    }
    findings
}

/// The number and the names of the tokens and keys whose expiry `is_it`; `None` if there are none.
fn names_of(config: &Config, is_it: impl Fn(Expiry) -> bool) -> Option<String> {
    let is_it = |expires: Option<Expiry>| expires.is_some_and(&is_it);
    let tokens = config.auth.tokens.iter().filter(|token| is_it(token.expires));
    let keys = config.auth.keys.iter().filter(|key| is_it(key.expires));
    let names = tokens.map(|token| format!("token {}", token.name)).chain(keys.map(|key| format!("key {}", key.id)));
    let names: Vec<String> = names.collect();
    let shown = names[..names.len().min(NAMED_MAX)].join(", ");
    (!names.is_empty()).then(|| format!("({} in all): {shown}", names.len()))
}

/// Judges how long the certificate of the server is still valid.
fn certificate(not_after_ms: i64, now_ms: i64) -> Finding {
    let left = Duration::from_millis(u64::try_from(not_after_ms.saturating_sub(now_ms)).unwrap_or(0));
    let mend = "replace the files of http.tls.cert_file and http.tls.key_file, then run: systemctl reload tidegauge";
    if left.is_zero() {
        let ago = Duration::from_millis(now_ms.saturating_sub(not_after_ms).max(0).cast_unsigned());
        let found = format!("the certificate of the server expired {} ago: clients that check it refuse it", span(ago));
        return Finding::error(CERTIFICATE, found, mend);
    }
    let found = format!("the certificate of the server expires in {}", span(left));
    if left < EXPIRY_MIN { Finding::warning(CERTIFICATE, found, mend) } else { Finding::ok(CERTIFICATE, found) }
}

/// An error if the service cannot use the data folder.
///
/// A missing one that the first start can create is a warning: mostly, a flag was forgotten.
fn data_folder(config: &Config) -> Option<Finding> {
    let folder = &config.server.data_dir;
    let refused = data_dir::expect_writable(folder).err();
    if matches!(folder.try_exists(), Ok(false)) {
        let missing = format!("there is no data folder {}", folder.display());
        let mend = "if the service has been started, name its folder with --data-dir or --config";
        return Some(match refused {
            None => Finding::warning(CONFIGURATION, format!("{missing}: the first start creates it"), mend),
            Some(error) => {
                let found = format!("{missing}, and this user cannot create it: {error}");
                Finding::error(CONFIGURATION, found, format!("{mend}; otherwise run the check as its user"))
            }
        });
    }
    refused.map(|error| {
        let found = format!("the data folder {} cannot be written: {error}", folder.display());
        Finding::error(CONFIGURATION, found, UNWRITABLE)
    })
}

fn other_store(why: String) -> Finding {
    Finding::warning(
        STORE,
        why,
        "use the configuration and the environment of the service; if it shall change its store, move the readings \
         (docs/operations.md, Move to another store)",
    )
}

async fn check_store(
    config: &Config,
    known: Option<&KnownStore>,
    is_deep: bool,
    clock: &Clock,
) -> anyhow::Result<Vec<Finding>> {
    let (metrics, _) = Metrics::new();
    Ok(match config.store_kind() {
        StoreKind::Sqlite => {
            let retention = config.retention.readings.period().map(Period::as_duration);
            let was_used = known.is_some_and(|known| known.store == StoreKind::Sqlite.as_str());
            let (file, data_dir) = (config.sqlite_file(), config.server.data_dir.clone());
            let check = SqliteCheck { file, data_dir, retention, is_deep, was_used };
            let clock = clock.clone();
            tokio::task::spawn_blocking(move || check.run(&clock)).await?
        }
        StoreKind::Mongodb => {
            let store = BucketStore::connect(options::mongodb(config, &metrics)).await?;
            let findings = Box::pin(store.check(clock)).await; // large, and run once
            with_record(findings, config, known, &store).await
        }
        StoreKind::MongodbTimeseries => {
            let (options, timeseries) = (options::mongodb(config, &metrics), config.mongodb.timeseries.clone());
            let store = TimeseriesStore::connect(options, timeseries).await?;
            let findings = Box::pin(store.check(clock)).await;
            with_record(findings, config, known, &store).await
        }
    })
}

/// Adds a warning if the database is not the one that the service has used.
///
/// The record in the data folder (`known`) names that database. A database that does not answer is not
/// compared.
async fn with_record(
    mut findings: Vec<Finding>,
    config: &Config,
    known: Option<&KnownStore>,
    database: &dyn Store,
) -> Vec<Finding> {
    let is_away = findings.iter().any(|found| found.part == Part::ServerReach && found.severity == Severity::Error);
    let Some(known) = known.filter(|known| known.store == database.name() && !is_away) else { return findings };
    let other = || other_store(format!("{} is not the database that the service has used", target::name_of(config)));
    findings.extend(match database.history().await {
        Ok(now) => known.difference(now.as_ref()).map(|_| other()),
        Err(error) => Some(Finding::skipped(STORE, error)),
    });
    findings
}

#[cfg(test)]
mod tests {
    use tidegauge::config::TokenHash;

    use super::*;

    #[test]
    fn a_connection_string_that_takes_any_certificate_is_a_warning() {
        let severities = |options: &str| {
            let mut config = Config::default();
            config.mongodb.uri = Some(format!("mongodb://h/?tls=true{options}").parse().unwrap());
            let findings = configuration(&config, 0).into_iter();
            findings.map(|finding| finding.severity).collect::<Vec<_>>()
        };
        assert_eq!(severities(""), [Severity::Ok]);
        assert_eq!(severities("&tlsInsecure=true"), [Severity::Ok, Severity::Warning]);
    }

    #[test]
    fn a_certificate_is_replaced_in_its_last_two_weeks() {
        const DAY: i64 = 86_400_000;
        let severity = |days: i64| certificate(days * DAY, 0).severity;
        assert_eq!([15, 13, 0, -1].map(severity), [Severity::Ok, Severity::Warning, Severity::Error, Severity::Error]);
    }

    #[test]
    fn a_token_is_replaced_in_its_last_two_weeks() {
        const DAY: i64 = 86_400_000;
        const END: i64 = 1_801_353_600_000; // 2027-01-31T00:00:00Z
        let hash = TokenHash::of("x");
        let keys = format!("name = 'a'\nhash = '{hash}'\nscopes = ['query']\nexpires = 2027-01-31T00:00:00Z\n");
        let config: Config = toml::from_str(&format!("[[auth.tokens]]\n{keys}")).unwrap();
        let found = |days: i64| access(&config, END - days * DAY).into_iter().next();
        assert_eq!(found(15), None);
        for (days, severity, said) in [
            (13, Severity::Warning, "these tokens and keys expire within 14.0 days (1 in all): token a"),
            (-1, Severity::Note, "these tokens and keys have expired (1 in all): token a"),
        ] {
            let found = found(days).unwrap();
            assert_eq!((found.severity, &*found.found), (severity, said));
        }
    }

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
