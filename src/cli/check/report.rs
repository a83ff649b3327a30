//! `tidegauge check --report FILE`: one file to report a fault with, without secrets.
//!
//! The types of the configuration hide secrets whenever they are written (`config::Secret`,
//! `config::MongodbUri`). The findings and the errors of clients name no credentials.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::Timestamp;
use tidegauge::client::{Client, Options, TimeLimit};
use tidegauge::common::clock::Clock;
use tidegauge::common::finding::Finding;
use tidegauge::common::printable::printable;
use tidegauge::config::{Config, Http, Overridden};
use tidegauge::telemetry::VERSION;

use super::full;
use crate::cli::client::{local_url, token_of_environment};

/// How long the server may take for its metrics.
const TIMEOUT: TimeLimit = TimeLimit::Whole(Duration::from_secs(10));

/// The size limit of the metrics in a report.
const METRICS_MAX: usize = 8 << 20;

/// The marks that the kernel escapes in the path of a mount. The backslash is the last one to be decoded.
const ESCAPES: [(&str, &str); 4] = [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", r"\")];

/// Writes the report into a new file, which only its owner may read.
pub(super) async fn write(
    path: &Path,
    config: &Config,
    overridden: &[Overridden],
    findings: &[Finding],
) -> anyhow::Result<()> {
    let options = OpenOptions::new().write(true).create_new(true).mode(0o600).clone();
    let mut file = options.open(path).with_context(|| format!("{} (--report)", path.display()))?;
    let mut text = format!("Fault report of tidegauge. Secrets are shown as ***.\n\n== machine\n{}", machine(config));
    let in_force = toml::to_string(&config.filled()).context("the configuration as TOML")?;
    write!(text, "\n== configuration in force\n{in_force}")?;
    for overridden in overridden {
        writeln!(text, "# {overridden}")?;
    }
    let mut found = Vec::new();
    full::report(config.store_kind(), findings, false, &mut found)?;
    write!(text, "\n== findings of check --full\n{}", String::from_utf8_lossy(&found))?;
    let metrics = metrics(&config.http).await.unwrap_or_else(|error| format!("none: {error:#}\n"));
    write!(text, "\n== metrics of the running server\n{metrics}")?;
    file.write_all(printable(&text).as_bytes()).with_context(|| format!("{} (--report)", path.display()))
}

/// Describes the program, the operating system and the machine.
fn machine(config: &Config) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let line = |text: &str, key: &str| text.lines().find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()));
    let unknown = || "unknown".to_owned();
    let os = line(&read("/etc/os-release"), "PRETTY_NAME=").unwrap_or_else(unknown);
    let memory = line(&read("/proc/meminfo"), "MemTotal:").unwrap_or_else(unknown);
    let processors = std::thread::available_parallelism().map_or_else(|_| unknown(), |number| number.to_string());
    let now = Timestamp::from_millisecond(Clock::system().now_ms()).map_or_else(|_| unknown(), |now| now.to_string());
    format!(
        "time         {now}\nversion      {VERSION}\nsystem       {os}, Linux {}, {}\nprocessors   {processors}\n\
         memory       {memory}\ndata folder  {}\n",
        read("/proc/sys/kernel/osrelease").trim(),
        std::env::consts::ARCH,
        file_system_of(&config.server.data_dir).unwrap_or_else(unknown),
    )
}

/// The type and the options of the file system that has a folder.
fn file_system_of(folder: &Path) -> Option<String> {
    file_system_in(&std::fs::read_to_string("/proc/self/mounts").ok()?, &folder.canonicalize().ok()?)
}

/// The same, with the text of `/proc/self/mounts`, which escapes the marks in [`ESCAPES`].
fn file_system_in(mounts: &str, folder: &Path) -> Option<String> {
    let unescaped =
        |text: &str| ESCAPES.into_iter().fold(text.to_owned(), |text, (code, mark)| text.replace(code, mark));
    let mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).filter(|fields| fields.len() > 3);
    let places = mounts.map(|fields| (unescaped(fields[1]), fields));
    let holding = places.filter(|(place, _)| folder.starts_with(place));
    // A later mount covers an earlier one at the same place.
    holding.max_by_key(|(place, _)| place.len()).map(|(_, fields)| format!("on {} ({})", fields[2], fields[3]))
}

/// Asks the server with this configuration for `/metrics`.
///
/// Unless the server has TLS, the request has the token in the variable `TIDEGAUGE_TOKEN`.
async fn metrics(http: &Http) -> anyhow::Result<String> {
    let url = local_url(http)?;
    // With TLS, the client connects by address, and a certificate names a host. It cannot check the
    // certificate, so it sends no token: another server might receive it.
    let token = if http.tls.is_on() { None } else { token_of_environment()? };
    let client = Client::new(Options { time_limit: TIMEOUT, is_local: http.tls.is_on(), token, ..Options::new(&url) })?;
    let answer = client.get("/metrics", &[]).await;
    if http.tls.is_on() && matches!(&answer, Err(trouble) if trouble.reason == "unauthorized") {
        bail!(
            "with TLS, this command sends no token, because it connects by address and cannot check the certificate; \
             add the output of: curl -H \"Authorization: Bearer $TIDEGAUGE_TOKEN\" https://NAME:{}/metrics",
            http.listen.port()
        );
    }
    let page = answer?.whole(METRICS_MAX).await?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_of_a_mount_with_escaped_marks_is_found() {
        let mounts = "/dev/a / ext4 rw 0 0\n/dev/b /mnt/my\\040disk xfs ro 0 0\n/dev/c /mnt/\\134040 btrfs rw 0 0\n";
        for (folder, found) in
            [("/mnt/my disk/data", "on xfs (ro)"), ("/mnt/\\040", "on btrfs (rw)"), ("/mnt/my", "on ext4 (rw)")]
        {
            assert_eq!(file_system_in(mounts, Path::new(folder)).as_deref(), Some(found), "{folder}");
        }
    }
}
