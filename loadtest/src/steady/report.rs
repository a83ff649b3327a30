//! The report of `loadtest steady`.

use std::fmt;

use super::peak::Figures;
use super::watch::Span;
use super::{Args, End, Store};
use crate::verify::Verified;

/// The results of a run.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Report {
    command: Vec<String>,
    machine: String,
    store: Store,
    devices: u64,
    speed: u32,
    batch: u64,
    /// CPU seconds per second without readings: of the service, and of mongod.
    rest: [f64; 2],
    hours: Vec<Span>,
    peak: Option<Figures>,
    /// The name of the row for the time after the last hour.
    after_name: &'static str,
    after: Span,
    #[serde(flatten)]
    outcome: Outcome,
}

/// The results of sending, and of the comparison afterwards.
#[derive(Debug, serde::Serialize)]
pub(crate) struct Outcome {
    /// How often a message was refused for now and sent again.
    pub(crate) again: u64,
    /// The number of sent readings that the service has not accepted.
    pub(crate) lost: u64,
    /// The longest time from the instant at which a message was due to its answer.
    ///
    /// The time is by the fast clock. It is 0 over UDP, which has no answers.
    pub(crate) behind_seconds: f64,
    /// How often the service logged that the store is away.
    pub(crate) store_away: u64,
    pub(crate) verified: Option<Verified>,
}

impl Report {
    pub(super) fn new(
        args: &Args,
        rest: [f64; 2],
        hours: Vec<Span>,
        peak: Option<Figures>,
        after: Span,
        outcome: Outcome,
    ) -> Self {
        Self {
            command: std::env::args().collect(),
            machine: crate::bench::machine(),
            store: args.store,
            devices: args.devices,
            speed: args.speed,
            batch: args.batch,
            rest,
            hours,
            peak,
            after_name: match args.end {
                End::Stored => "until stored",
                End::Sent => "afterwards",
            },
            after,
            outcome,
        }
    }

    /// CPU seconds per million readings of all spans: of the service, and of mongod.
    pub(crate) fn cost(&self) -> [f64; 2] {
        per_million(&self.all(), self.readings())
    }

    pub(super) const fn verified(&self) -> Option<&Verified> {
        self.outcome.verified.as_ref()
    }

    /// CPU seconds per second without readings: of the service, and of mongod.
    pub(crate) const fn rest(&self) -> [f64; 2] {
        self.rest
    }

    /// The average time from the acceptance of a reading until it is stored.
    pub(crate) fn wait_seconds(&self) -> f64 {
        total(&self.all()).wait_seconds()
    }

    fn all(&self) -> Vec<&Span> {
        self.hours.iter().chain([&self.after]).collect()
    }

    fn readings(&self) -> u64 {
        self.all().iter().map(|span| span.readings).sum()
    }

    /// The hours from which the cost of a whole day is estimated.
    ///
    /// The first hours of a day cost more: they roll up the day before, and note the new day in the device
    /// index. One plain hour stands for all other hours.
    fn day(&self) -> Option<Day<'_>> {
        let midnight = self.hours.iter().position(|hour| hour.name == "00:00")?;
        let after = &self.hours[midnight..];
        let turn = &after[..after.len().min(TURN_HOURS)];
        let plain = after.get(TURN_HOURS).or_else(|| self.hours[..midnight].get(1))?;
        Some(Day { turn, plain })
    }
}

/// The number of hours after midnight in which the day before may be rolled up.
const TURN_HOURS: usize = 7;

/// The hours from which the cost of a whole day is estimated.
struct Day<'a> {
    turn: &'a [Span],
    /// An hour outside of `turn`, which stands for each other hour of the day.
    plain: &'a Span,
}

impl Day<'_> {
    fn plain_hours(&self) -> usize {
        24 - self.turn.len()
    }

    fn cost(&self) -> [f64; 2] {
        let turn = self.turn.iter().map(|hour| (hour, 1));
        let hours = turn.chain([(self.plain, self.plain_hours())]);
        let costs = hours.map(|(hour, times)| per_million(&[hour], hour.readings).map(|cost| cost * times as f64));
        costs.fold([0.0; 2], |sum, cost| [0, 1].map(|at| sum[at] + cost[at] / 24.0))
    }
}

fn per_million(spans: &[&Span], readings: u64) -> [f64; 2] {
    [0, 1].map(|at| spans.iter().map(|span| span.cpu_seconds[at]).sum::<f64>() / readings.max(1) as f64 * 1e6)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "`{}`\n\n{}, {} times as fast as time.\n", self.command.join(" "), self.machine, self.speed)?;
        writeln!(
            f,
            "| hour | readings | rejected | service, CPU s per million | mongod | service, MiB | mongod, MiB \
             | log, MiB | store, MiB | a reading waits, s | at most, s | write commands | buckets | expired by TTL |"
        )?;
        writeln!(f, "|---|{}", "---:|".repeat(13))?;
        for hour in &self.hours {
            row(f, &hour.name, hour, per_million(&[hour], hour.readings))?;
        }
        let last_hour = self.hours.last().map_or(0, |hour| hour.readings);
        let after = Span { waited_seconds: 0.0, ..self.after.clone() }; // the last hour counts these readings
        row(f, self.after_name, &after, per_million(&[&self.after], last_hour))?;
        row(f, "in all", &total(&self.all()), self.cost())?;
        writeln!(f)?;
        if let Some(day) = self.day() {
            let [service, mongod] = day.cost();
            writeln!(
                f,
                "CPU s per million readings of a whole day, the {} hours from 00:00 and {} times that from {}: service \
                {service:.2}, mongod {mongod:.2}, together {:.2}",
                day.turn.len(),
                day.plain_hours(),
                day.plain.name,
                service + mongod
            )?;
        }
        if let Some(peak) = &self.peak {
            writeln!(f, "{peak}")?;
        }
        let [service, mongod] = self.rest.map(|seconds| seconds * 1e3);
        writeln!(f, "At rest, CPU ms a second: service {service:.2}, mongod {mongod:.2}")?;
        let Outcome { again, lost, behind_seconds, store_away, verified } = &self.outcome;
        writeln!(
            f,
            "Behind the schedule at most {behind_seconds:.1} s; {again} messages sent again; {lost} readings lost; \
            the store was away {store_away} times"
        )?;
        match verified {
            Some(Verified { devices, readings, wrong }) => {
                writeln!(f, "Verified {devices} devices, {readings} readings: {wrong} wrong")
            }
            None => writeln!(f, "Not verified"),
        }
    }
}

/// All spans as one: sums of counts, maxima of sizes, the last size of the store.
fn total(spans: &[&Span]) -> Span {
    let mut total = Span::default();
    for span in spans {
        total.seconds += span.seconds;
        total.readings += span.readings;
        total.rejected += span.rejected;
        total.commands += span.commands;
        total.buckets += span.buckets;
        total.expired += span.expired;
        total.waited_seconds += span.waited_seconds;
        total.log_mib = total.log_mib.max(span.log_mib);
        total.store_mib = span.store_mib;
        total.longest_wait_seconds = total.longest_wait_seconds.max(span.longest_wait_seconds);
        for at in 0..2 {
            total.cpu_seconds[at] += span.cpu_seconds[at];
            total.resident_mib[at] = total.resident_mib[at].max(span.resident_mib[at]);
        }
    }
    total
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, span: &Span, cost: [f64; 2]) -> fmt::Result {
    let Span { readings, rejected, resident_mib, log_mib, store_mib, .. } = span;
    let Span { longest_wait_seconds, commands, buckets, expired, .. } = span;
    writeln!(
        f,
        "| {name} | {readings} | {rejected} | {:.2} | {:.2} | {:.0} | {:.0} | {log_mib:.0} | {store_mib:.0} \
         | {:.0} | {longest_wait_seconds:.0} | {commands} | {buckets} | {expired} |",
        cost[0],
        cost[1],
        resident_mib[0],
        resident_mib[1],
        span.wait_seconds()
    )
}
