//! Checks the server: version, topology, write concern, clocks, members, oplog, cache, disk.

use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use mongodb::options::{Acknowledgment, WriteConcern};

use super::super::collection::Deployment;
use super::{ADMIN, Inspector, number};
use crate::common::clock::Clock;
use crate::common::finding::{Finding, Part, count, size, span};

const VERSION: Part = Part::ServerVersion;
const TOPOLOGY: Part = Part::ServerTopology;
const MEMBERS: Part = Part::ServerMembers;
const WRITE_CONCERN: Part = Part::ServerWriteConcern;
const CLOCK: Part = Part::ServerClock;
const CACHE: Part = Part::ServerCache;
const OPLOG: Part = Part::ServerOplog;
const DISK: Part = Part::ServerDisk;

/// The oldest server that tidegauge supports.
const OLDEST_MAJOR: u64 = 6;

/// A larger difference between the clocks of this machine and of the server is a warning: days are closed,
/// and documents expire, at other times.
const CLOCK_WARNING: Duration = Duration::from_secs(2);
/// A larger difference is an error.
const CLOCK_ERROR: Duration = Duration::from_secs(60);

/// If pages take this share of the cache, the threads of clients do the work of eviction. This and the next
/// share are the defaults of the server.
const CACHE_FULL_PERCENT: u64 = 95;
/// The same share for pages that are not on disk yet.
const CACHE_DIRTY_PERCENT: u64 = 20;

/// The shortest time that an oplog should cover. A member that was away for longer has to be copied anew.
const OPLOG_MIN: Duration = Duration::from_secs(86_400);

/// An oplog of this share of its largest size counts as full: its window does not grow any more.
const OPLOG_FULL_PERCENT: u64 = 90;

/// A smaller free share of the server's disk is a warning.
const DISK_WARNING_PERCENT: u64 = 10;
/// A smaller free share is an error.
const DISK_ERROR_PERCENT: u64 = 3;

/// The longest delay of a member behind the primary.
const DELAY_MAX: Duration = Duration::from_secs(60);

impl Inspector<'_> {
    pub(super) async fn check_server(&mut self, hello: &Document, clock: &Clock) {
        self.check_version().await;
        self.findings.push(topology(self.deployment, hello));
        self.findings.push(write_concern(self.commands.database.write_concern()));
        self.check_clock(clock).await;
        if self.deployment == Deployment::ReplicaSet {
            self.check_members().await;
            self.check_oplog().await;
        }
        if self.deployment != Deployment::Sharded {
            self.check_cache().await;
        }
        self.check_disk().await;
    }

    async fn check_version(&mut self) {
        let Some(info) = self.ask(VERSION, None, doc! { "buildInfo": 1 }).await else { return };
        let version = info.get_str("version").unwrap_or("of an unknown version");
        let major = version.split('.').next().and_then(|major| major.parse::<u64>().ok());
        let found = format!("the server is MongoDB {version}");
        self.findings.push(match major {
            Some(major) if major < OLDEST_MAJOR => Finding::error(
                VERSION,
                format!("{found}, and tidegauge needs {OLDEST_MAJOR}.0 or newer"),
                format!("upgrade the servers to MongoDB {OLDEST_MAJOR}.0 or newer"),
            ),
            _ => Finding::ok(VERSION, found),
        });
    }

    async fn check_clock(&mut self, clock: &Clock) {
        let (asked, before_ms) = (Instant::now(), clock.now_ms());
        let Some(hello) = self.ask(CLOCK, None, doc! { "hello": 1 }).await else { return };
        let round_trip = asked.elapsed();
        let Ok(server) = hello.get_datetime("localTime") else {
            self.findings.push(Finding::skipped(CLOCK, "the server does not tell its time"));
            return;
        };
        let here_ms = before_ms + i64::try_from(round_trip.as_millis() / 2).unwrap_or(0);
        self.findings.push(clock_difference(server.timestamp_millis() - here_ms, round_trip));
    }

    async fn check_members(&mut self) {
        let Some(status) = self.ask(MEMBERS, Some(ADMIN), doc! { "replSetGetStatus": 1 }).await else { return };
        self.findings.extend(members(&status));
    }

    async fn check_oplog(&mut self) {
        let Some(stats) = self.ask(OPLOG, Some("local"), doc! { "collStats": "oplog.rs" }).await else { return };
        let mut ends = Vec::new();
        for direction in [1, -1] {
            let find = doc! {
                "find": "oplog.rs", "sort": { "$natural": direction }, "limit": 1, "singleBatch": true,
                "projection": { "ts": 1 },
            };
            let Some(found) = self.list(OPLOG, Some("local"), find).await else { return };
            let ts = found.first().and_then(|entry| entry.get_timestamp("ts").ok());
            ends.extend(ts.map(|ts| ts.time));
        }
        let ([first, last], Some(used), Some(max)) = (&ends[..], number(&stats, "size"), number(&stats, "maxSize"))
        else {
            return;
        };
        let window = Duration::from_secs(u64::from(last.saturating_sub(*first)));
        self.findings.push(oplog(window, used, max));
    }

    async fn check_cache(&mut self) {
        let command = doc! {
            "serverStatus": 1, "metrics": 0, "repl": 0, "locks": 0, "tcmalloc": 0, "transactions": 0, "sharding": 0,
        };
        let Some(status) = self.ask(CACHE, Some(ADMIN), command).await else { return };
        let cache = status.get_document("wiredTiger").and_then(|engine| engine.get_document("cache"));
        let figures = cache.ok().and_then(|cache| {
            let used = number(cache, "bytes currently in the cache")?;
            let dirty = number(cache, "tracked dirty bytes in the cache")?;
            Some((used, dirty, number(cache, "maximum bytes configured").filter(|max| *max > 0)?))
        });
        let Some((used, dirty, max)) = figures else {
            self.findings.push(Finding::skipped(CACHE, "the server does not tell the use of its cache"));
            return;
        };
        let message =
            format!("the cache holds {} of {}, {} of them not on disk yet", size(used), size(max), size(dirty));
        let is_full = used / (max / 100).max(1) >= CACHE_FULL_PERCENT;
        let is_dirty = dirty / (max / 100).max(1) >= CACHE_DIRTY_PERCENT;
        self.findings.push(if is_full || is_dirty {
            Finding::warning(
                CACHE,
                format!("{message}: writes wait until pages are evicted"),
                "give mongod more memory (storage.wiredTiger.engineConfig.cacheSizeGB) or a faster disk, or raise \
                 flush.max_age, so that it has fewer writes",
            )
        } else {
            Finding::ok(CACHE, message)
        });
    }

    async fn check_disk(&mut self) {
        let Some(stats) = self.ask(DISK, None, doc! { "dbStats": 1 }).await else { return };
        let total = number(&stats, "fsTotalSize").filter(|total| *total > 0);
        let (Some(used), Some(total)) = (number(&stats, "fsUsedSize"), total) else {
            self.findings.push(Finding::skipped(DISK, "the server does not tell the size of its disk yet"));
            return;
        };
        self.findings.push(disk(total.saturating_sub(used), total));
    }
}

fn topology(deployment: Deployment, hello: &Document) -> Finding {
    match deployment {
        Deployment::Standalone => Finding::warning(
            TOPOLOGY,
            "the server is a standalone one: if its disk is lost, so are the stored readings; each append writes the \
             whole document into the journal; and a time series may store a write without an answer twice",
            "start mongod with --replSet rs0 (replication.replSetName in mongod.conf), run rs.initiate() in mongosh \
             once, put replicaSet=rs0 into mongodb.uri, and restart tidegauge",
        ),
        Deployment::Sharded => Finding::ok(TOPOLOGY, "the server is a mongos of a sharded cluster"),
        Deployment::ReplicaSet => {
            let set = hello.get_str("setName").unwrap_or_default();
            let members = hello.get_array("hosts").map_or(0, Vec::len);
            let found =
                format!("the server is the primary of the replica set {set}, whose members with data are {members}");
            if members > 1 {
                return Finding::ok(TOPOLOGY, found);
            }
            Finding::note(TOPOLOGY, format!("{found}: if its disk is lost, so are the stored readings"))
                .with_mend("add members: rs.add(\"HOST:27017\") in mongosh")
        }
    }
}

fn write_concern(of_uri: Option<&WriteConcern>) -> Finding {
    let found = "tidegauge writes with { w: \"majority\", j: true }";
    let w = of_uri.and_then(|concern| concern.w.as_ref());
    match w {
        Some(Acknowledgment::Nodes(0)) => Finding::error(
            WRITE_CONCERN,
            "mongodb.uri says w=0, with which the driver refuses to create indexes",
            "remove w=0 from mongodb.uri and restart tidegauge",
        ),
        Some(Acknowledgment::Nodes(nodes)) => Finding::warning(
            WRITE_CONCERN,
            format!("{found}, though mongodb.uri says w={nodes}, which has no effect on readings"),
            format!("remove w={nodes} from mongodb.uri, or write w=majority"),
        ),
        _ if of_uri.is_some_and(|concern| concern.journal == Some(false)) => Finding::warning(
            WRITE_CONCERN,
            format!("{found}, though mongodb.uri says journal=false, which has no effect on readings"),
            "remove journal=false from mongodb.uri",
        ),
        _ => Finding::ok(WRITE_CONCERN, found),
    }
}

/// Judges the difference between the clocks of the server and of this machine.
///
/// `ahead_ms` is how far the clock of the server is ahead, in milliseconds.
fn clock_difference(ahead_ms: i64, round_trip: Duration) -> Finding {
    let difference = Duration::from_millis(ahead_ms.unsigned_abs()).saturating_sub(round_trip / 2);
    let direction = if ahead_ms < 0 { "behind" } else { "ahead of" };
    let message =
        format!("the clock of the server is {:.1} s {direction} the clock of this machine", difference.as_secs_f64());
    let mend = "run NTP on both machines (timedatectl set-ntp true), and check it: timedatectl timesync-status";
    match difference {
        large if large >= CLOCK_ERROR => Finding::error(
            CLOCK,
            format!("{message}: days are rolled up, and documents expire, at the wrong time"),
            mend,
        ),
        large if large >= CLOCK_WARNING => Finding::warning(CLOCK, message, mend),
        _ => Finding::ok(CLOCK, "the clocks of the server and of this machine agree within two seconds"),
    }
}

/// Judges the reply to `replSetGetStatus`.
fn members(status: &Document) -> Vec<Finding> {
    let members: Vec<&Document> =
        status.get_array("members").into_iter().flatten().filter_map(Bson::as_document).collect();
    let mut findings = Vec::new();
    let optime_ms = |member: &Document| member.get_datetime("optimeDate").ok().map(|date| date.timestamp_millis());
    let primary_ms =
        members.iter().find(|member| number(member, "state") == Some(1)).and_then(|member| optime_ms(member));
    let mut writable = 0;
    for member in &members {
        let (name, state) = (member.get_str("name").unwrap_or("?"), number(member, "state").unwrap_or(6));
        writable += u64::from(matches!(state, 1 | 2));
        if !matches!(state, 1 | 2 | 7) {
            let (text, why) =
                (member.get_str("stateStr").unwrap_or("unknown"), member.get_str("lastHeartbeatMessage").unwrap_or(""));
            findings.push(Finding::warning(
                MEMBERS,
                format!("the member {name} is in the state {text} {why}").trim_end().to_owned(),
                format!("start or repair {name}; rs.status() in mongosh shows its state"),
            ));
            continue;
        }
        let behind_ms = primary_ms.zip(optime_ms(member)).map_or(0, |(primary, own)| primary.saturating_sub(own));
        let behind = Duration::from_millis(u64::try_from(behind_ms).unwrap_or(0));
        if behind > DELAY_MAX && state == 2 {
            findings.push(Finding::warning(
                MEMBERS,
                format!("the member {name} is {} behind the primary", span(behind)),
                format!("give {name} a faster disk or more memory; rs.printSecondaryReplicationInfo() shows its delay"),
            ));
        }
    }
    let majority = number(status, "writeMajorityCount").unwrap_or(1);
    if writable < majority {
        findings.push(Finding::error(
            MEMBERS,
            format!("a majority needs {majority} members with data, and {writable} work: no write is acknowledged"),
            "start the other members of the replica set; until then readings wait in the log",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            MEMBERS,
            format!("all {} members work, and {majority} of them are a majority", members.len()),
        ));
    }
    findings
}

fn oplog(window: Duration, used: u64, max: u64) -> Finding {
    let is_full = used / (max / 100).max(1) >= OPLOG_FULL_PERCENT;
    let message = format!("the oplog covers {} with {} of {}", span(window), size(used), size(max));
    if !is_full || window >= OPLOG_MIN {
        return Finding::ok(OPLOG, message);
    }
    let factor = OPLOG_MIN.as_secs_f64() / window.as_secs_f64().max(1.0);
    let megabytes = (max as f64 / f64::from(1 << 20) * factor).ceil().min(u64::MAX as f64) as u64;
    Finding::warning(
        OPLOG,
        format!("{message}: a member that is away for longer has to be copied anew"),
        format!("on each member in mongosh: db.adminCommand({{ replSetResizeOplog: 1, size: {megabytes} }})"),
    )
}

fn disk(free: u64, total: u64) -> Finding {
    let percent = free / (total / 100).max(1);
    let message = format!("the disk of the server has {} of {} free ({} %)", size(free), size(total), count(percent));
    let mend = "enlarge the disk of mongod, remove other files from it, or shorten retention.readings; the space of \
                expired documents is used again, and not returned to the disk";
    match percent {
        low if low < DISK_ERROR_PERCENT => {
            Finding::error(DISK, format!("{message}: mongod stops when it is full"), mend)
        }
        low if low < DISK_WARNING_PERCENT => Finding::warning(DISK, message, mend),
        _ => Finding::ok(DISK, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::finding::Severity;

    #[test]
    fn clocks_may_differ_by_two_seconds_and_by_half_a_round_trip() {
        let severity =
            |ahead_ms, round_trip_ms| clock_difference(ahead_ms, Duration::from_millis(round_trip_ms)).severity;
        assert_eq!([1_900, -1_900].map(|ms| severity(ms, 0)), [Severity::Ok; 2]);
        assert_eq!([2_000, -59_000].map(|ms| severity(ms, 0)), [Severity::Warning; 2]);
        assert_eq!([60_000, -90_000].map(|ms| severity(ms, 0)), [Severity::Error; 2]);
        assert_eq!(severity(4_000, 5_000), Severity::Ok);
    }

    #[test]
    fn a_member_that_is_away_is_a_warning_and_a_lost_majority_an_error() {
        let at = |ms| bson::DateTime::from_millis(ms);
        let member = |state: i32, ms| doc! { "name": "a:1", "state": state, "stateStr": "X", "optimeDate": at(ms) };
        let status =
            |members: Vec<Document>, majority: i32| doc! { "members": members, "writeMajorityCount": majority };
        let severities = |status: &Document| members(status).iter().map(|found| found.severity).collect::<Vec<_>>();
        assert_eq!(severities(&status(vec![member(1, 100_000), member(2, 90_000), member(7, 0)], 2)), [Severity::Ok]);
        assert_eq!(
            severities(&status(vec![member(1, 100_000), member(2, 90_000), member(8, 0)], 2)),
            [Severity::Warning]
        );
        assert_eq!(severities(&status(vec![member(1, 100_000), member(2, 30_000)], 2)), [Severity::Warning]);
        let lost = status(vec![member(1, 0), member(8, 0), member(8, 0)], 2);
        assert_eq!(severities(&lost), [Severity::Warning, Severity::Warning, Severity::Error]);
    }

    #[test]
    fn an_oplog_of_less_than_a_day_is_a_warning_once_it_is_full() {
        let hours = |hours: u64| Duration::from_secs(hours * 3_600);
        assert_eq!(oplog(hours(1), 10 << 20, 1 << 30).severity, Severity::Ok, "it grows");
        assert_eq!(oplog(hours(25), 1 << 30, 1 << 30).severity, Severity::Ok);
        let short = oplog(hours(6), 1 << 30, 1 << 30);
        assert_eq!(short.severity, Severity::Warning);
        assert!(short.mend.unwrap().ends_with("size: 4096 })"), "four times as large");
        assert_eq!(oplog(hours(0), u64::MAX, 0).severity, Severity::Warning);
    }

    #[test]
    fn a_disk_that_is_nearly_full_is_found() {
        let severities = [50, 10, 9, 3, 2, 0].map(|free| disk(free << 30, 100 << 30).severity);
        let (ok, warning, error) = (Severity::Ok, Severity::Warning, Severity::Error);
        assert_eq!(severities, [ok, ok, warning, warning, error, error]);
    }

    #[test]
    fn a_write_concern_of_the_uri_that_has_no_effect_is_found() {
        let of = |w: Option<u32>, journal| {
            let mut concern = WriteConcern::default();
            (concern.w, concern.journal) = (w.map(Acknowledgment::from), journal);
            write_concern(Some(&concern)).severity
        };
        assert_eq!(write_concern(None).severity, Severity::Ok);
        assert_eq!(write_concern(Some(&WriteConcern::majority())).severity, Severity::Ok);
        assert_eq!((of(Some(0), None), of(Some(1), None)), (Severity::Error, Severity::Warning));
        assert_eq!((of(None, Some(false)), of(None, Some(true))), (Severity::Warning, Severity::Ok));
    }
}
