//! The findings of `tidegauge check --full`, and numbers as text for people.

use std::time::Duration;

use indicatif::{BinaryBytes, HumanCount};
use serde::Serialize;
use strum::{Display, EnumIter};

/// How serious a finding is, from the least to the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Severity {
    /// The part is as it should be.
    Ok,
    /// The part works, but an operator should know something; or it was not checked.
    Note,
    /// The part may soon fail, or works only in part. An operator should mend it.
    Warning,
    /// The part does not work, or readings are at risk.
    Error,
}

/// The part that a finding is about, such as `collection-expiry`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, EnumIter, Display)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
#[expect(missing_docs, reason = "the table in docs/operations.md describes each part")]
pub enum Part {
    Configuration,
    Certificate,
    StoreRecord,
    ForwardReach,
    ForwardLag,
    MqttBroker,
    MqttTopics,
    ServerReach,
    ServerVersion,
    ServerTopology,
    ServerMembers,
    ServerWriteConcern,
    ServerClock,
    ServerCache,
    ServerOplog,
    ServerDisk,
    ServerGrowth,
    Collection,
    CollectionOptions,
    CollectionIndexes,
    CollectionExpiry,
    CollectionValidator,
    CollectionSharding,
    CollectionShards,
    DeviceIndex,
    QueryPlan,
    DocumentsSize,
    DocumentsReadings,
    SqliteFile,
    SqliteIntegrity,
    SqliteSize,
    SqliteDisk,
    SqliteGrowth,
    LogSegments,
    LogSize,
    LogDisk,
    LogDeadLetters,
    LogQuarantine,
}

/// The result of the check of one part, and how to mend a problem.
///
/// The fields are those in the JSON of `tidegauge check --full --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How serious the finding is.
    pub severity: Severity,
    /// The part that was checked.
    pub part: Part,
    /// A sentence with figures that says what was found, without its full stop.
    pub found: String,
    /// The advice to an operator, with the exact command if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

impl Finding {
    /// A finding that the part is as it should be.
    #[must_use]
    pub fn ok(part: Part, found: impl Into<String>) -> Self {
        Self { severity: Severity::Ok, part, found: found.into(), mend: None }
    }

    /// A finding that an operator should know, without a problem.
    #[must_use]
    pub fn note(part: Part, found: impl Into<String>) -> Self {
        Self { severity: Severity::Note, part, found: found.into(), mend: None }
    }

    /// A finding that the part was not checked, and why.
    #[must_use]
    pub fn skipped(part: Part, why: impl std::fmt::Display) -> Self {
        Self::note(part, format!("not checked: {why}"))
    }

    /// A finding of a problem that an operator should mend soon.
    #[must_use]
    pub fn warning(part: Part, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, part, found: found.into(), mend: Some(mend.into()) }
    }

    /// A finding that the part does not work, or that readings are at risk.
    #[must_use]
    pub fn error(part: Part, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self { severity: Severity::Error, part, found: found.into(), mend: Some(mend.into()) }
    }

    /// Adds advice to an operator.
    #[must_use]
    pub fn with_mend(self, mend: impl Into<String>) -> Self {
        Self { mend: Some(mend.into()), ..self }
    }
}

/// A number of bytes for people: `1.50 MiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    BinaryBytes(bytes).to_string()
}

/// A number for people: `1,000`.
#[must_use]
pub fn count(number: u64) -> String {
    HumanCount(number).to_string()
}

/// A number and the noun `one`, for people: `1 reading`, `2,000 readings`.
#[must_use]
pub fn counted(number: u64, one: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {one}{plural}", HumanCount(number))
}

/// A length of time for people: `2.5 days`, but `40.0 hours`.
///
/// The unit is the largest one of which the time has at least two.
#[must_use]
pub fn span(length: Duration) -> String {
    let seconds = length.as_secs_f64();
    let units = [(365.0 * 86_400.0, "years"), (86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")];
    let fits = |&(of, _): &(f64, &str)| seconds >= 2.0 * of;
    let (of, unit) = units.into_iter().find(fits).unwrap_or((1.0, "seconds"));
    format!("{:.1} {unit}", seconds / of)
}

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator;

    use super::*;

    #[test]
    fn figures_are_for_people() {
        assert_eq!((size(0), size(3 << 19), count(12_345)), ("0 B".into(), "1.50 MiB".into(), "12,345".into()));
        for (seconds, text) in [
            (0, "0.0 seconds"),
            (90, "90.0 seconds"),
            (150, "2.5 minutes"),
            (7_200, "2.0 hours"),
            (216_000, "2.5 days"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
        assert_eq!(span(Duration::from_secs(3 * 365 * 86_400)), "3.0 years");
    }

    #[test]
    fn the_json_of_a_finding_has_stable_names() {
        let json = |finding: &Finding| serde_json::to_string(finding).unwrap();
        let warning = Finding::warning(Part::LogSize, "it is full", "empty it");
        let text = r#"{"severity":"warning","part":"log-size","found":"it is full","mend":"empty it"}"#;
        assert_eq!(json(&warning), text);
        let skipped = json(&Finding::skipped(Part::Collection, "why"));
        assert_eq!(skipped, r#"{"severity":"note","part":"collection","found":"not checked: why"}"#);
        for part in Part::iter() {
            assert_eq!(serde_json::to_string(&part).unwrap(), format!("\"{part}\""));
        }
        assert!(Severity::Error > Severity::Warning && Severity::Warning > Severity::Note);
    }
}
