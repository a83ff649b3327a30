//! The part of `tidegauge check --full` about `[forward]`: whether the other server takes readings and
//! metadata of this one, and how much of the log waits for it.

use tidegauge::client::{Client, Trouble};
use tidegauge::common::finding::{Finding, Part, size};
use tidegauge::config::Config;
use tidegauge::forward::{probe, probe_metadata};
use tidegauge::log::follower::{self, Unread};

use crate::cli::data_dir;

const REACH: Part = Part::ForwardReach;
const LAG: Part = Part::ForwardLag;

/// If a log uses this percentage of `log.max_bytes` or more, that is a warning.
///
/// The service then flushes early.
pub(super) const WARNING_PERCENT: u64 = 75;
/// If a log uses this percentage or more, that is an error.
///
/// The service is then not ready.
pub(super) const ERROR_PERCENT: u64 = 95;

/// Asks the other server, and looks at the lag.
pub(super) async fn look(config: &Config, client: &Client) -> Vec<Finding> {
    let url = config.forward.url.as_deref().unwrap_or_default();
    let mut findings = match probe(client).await {
        Ok(()) => {
            let readings = Finding::ok(REACH, format!("{url} takes readings with this token"));
            vec![readings, metadata(url, probe_metadata(client).await)]
        }
        Err(trouble) => vec![unreachable(url, &trouble)],
    };
    findings.extend(waiting(config).map(|unread| lag(config, unread)));
    findings
}

/// The part of the log that waits to be forwarded.
///
/// `None`: the log has no follower or cannot be read. [`super::files`] reports an unreadable log.
pub(super) fn waiting(config: &Config) -> Option<Unread> {
    follower::unread(&data_dir::log_dir(&config.server.data_dir)).ok().flatten()
}

fn unreachable(url: &str, trouble: &Trouble) -> Finding {
    let (reason, detail) = (trouble.reason, trouble.detail());
    let mend = match reason {
        "connection" | "timeout" => {
            "start the other server, or correct forward.url; if the error names a certificate, set forward.ca_file to \
             its authority; readings wait in the log meanwhile"
        }
        "unauthorized" => {
            "make a token with the scope ingest, and metadata for what operators set, at the other server (tidegauge \
             token new), set forward.token and restart; readings wait in the log meanwhile"
        }
        "rate_limited" | "unavailable" | "internal" => {
            "run tidegauge check --full at the other server, which takes no readings at the moment; they wait in the \
             log here"
        }
        _ => {
            "look for a proxy, or a mistake in forward.url: the answer is not that of a tidegauge; readings wait in \
             the log meanwhile"
        }
    };
    Finding::error(REACH, format!("readings cannot be forwarded to {url}: {reason}: {detail}"), mend)
}

/// Judges the answer to metadata, of a server that takes readings.
fn metadata(url: &str, answer: Result<(), Trouble>) -> Finding {
    match answer {
        Ok(()) => Finding::ok(REACH, format!("{url} takes metadata of operators with this token")),
        Err(trouble) if trouble.reason == "unauthorized" => {
            let note = format!("metadata that operators set here does not reach {url}: {}", trouble.detail());
            Finding::note(REACH, note).with_mend(
                "unless that is meant, make a token with the scopes ingest and metadata at the other server (tidegauge \
                 token new), set forward.token and restart; then send what GET /v1/metadata lists here to POST \
                 /v1/metadata there",
            )
        }
        Err(trouble) => Finding::skipped(REACH, format_args!("whether {url} takes metadata: {}", trouble.detail())),
    }
}

fn lag(config: &Config, Unread { bytes, as_of_ms }: Unread) -> Finding {
    if bytes == 0 {
        return Finding::ok(LAG, "all readings of the log are forwarded");
    }
    let max = config.log.max_bytes;
    let since = i64::try_from(as_of_ms).ok().filter(|&ms| ms > 0); // 0: unknown
    let since = since.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let since = since.map_or_else(String::new, |since| format!("; all before {since:.0} are"));
    let message = format!("{} of the log are not forwarded yet, of log.max_bytes of {max}{since}", size(bytes));
    let mend = "mend forward-reach, or raise forward.max_bytes_per_second; the log is cut once the other server has \
                the readings (docs/operations.md, Forward lag)";
    match bytes / (max.0 / 100).max(1) {
        ERROR_PERCENT.. => Finding::error(LAG, format!("{message}: the log has no room for more"), mend),
        WARNING_PERCENT.. => Finding::warning(LAG, message, mend),
        _ => Finding::ok(LAG, message),
    }
}

#[cfg(test)]
mod tests {
    use tidegauge::common::finding::Severity;
    use tidegauge::config::Bytes;

    use super::*;

    #[test]
    fn the_share_of_the_log_that_waits_decides() {
        let mut config = Config::default();
        config.log.max_bytes = Bytes::mib(100);
        for (mebibytes, severity) in
            [(0, Severity::Ok), (74, Severity::Ok), (75, Severity::Warning), (95, Severity::Error)]
        {
            let found = lag(&config, Unread { bytes: mebibytes << 20, as_of_ms: 1_713_621_600_000 });
            assert_eq!((found.severity, found.mend.is_some()), (severity, severity > Severity::Ok), "{found:?}");
            assert_eq!(
                found.found.ends_with("all before 2024-04-20T14:00:00Z are"),
                mebibytes == 74 || mebibytes == 75
            );
        }
    }

    #[test]
    fn each_refusal_has_its_mend() {
        let mends = ["connection", "unauthorized", "unavailable", "unexpected"].map(|reason| {
            let mut trouble = Trouble::unexpected("http://centre", "why".to_owned());
            trouble.reason = reason;
            unreachable("http://centre", &trouble).mend.unwrap()
        });
        let distinct: std::collections::BTreeSet<_> = mends.iter().collect();
        assert_eq!(distinct.len(), mends.len(), "{mends:?}");
    }
}
