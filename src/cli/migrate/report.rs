//! The report of a migration: what was understood, what was left alone and why.

use std::collections::BTreeMap;
use std::fmt;

use indicatif::HumanCount;
use tidegauge::common::printable::printable;
use tidegauge::store::mongodb::{DocumentId, OlderBucket, Remark, Shape};

/// How many documents with the same remark are named.
const EXAMPLES: usize = 3;

/// How many different remarks are listed. A hostile collection may have millions.
const LISTED: usize = 50;

/// The counts of a migration.
#[derive(Debug, Default)]
pub(super) struct Report {
    dry_run: bool,
    /// Documents of tidegauge itself.
    pub(super) own: u64,
    shapes: BTreeMap<Shape, u64>,
    /// The readings of the documents that were understood.
    pub(super) readings: u64,
    /// Readings that the store did not have.
    pub(super) stored: u64,
    /// Readings that the store refused for good.
    pub(super) refused: u64,
    /// Documents that were removed.
    pub(super) removed: u64,
    left: Remarks,
    /// Documents that the interrupted attempt left alone.
    pub(super) left_before: u64,
    findings: Remarks,
}

/// Remarks about documents, grouped by text, with some documents of each group.
#[derive(Debug, Default)]
struct Remarks {
    all: u64,
    groups: BTreeMap<String, (u64, Vec<String>)>,
}

impl Remarks {
    fn add(&mut self, id: &DocumentId, Remark { about, detail }: &Remark) {
        self.all += 1;
        let is_listed = self.groups.len() < LISTED || self.groups.contains_key(about);
        let group = if is_listed { about.as_str() } else { "other reasons" };
        let (count, examples) = self.groups.entry(group.to_owned()).or_default();
        *count += 1;
        if examples.len() < EXAMPLES {
            let separator = if detail.is_empty() { "" } else { ": " };
            examples.push(format!("_id {id}{separator}{detail}"));
        }
    }
}

impl fmt::Display for Remarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (about, (count, examples)) in &self.groups {
            writeln!(f, "  {} {}", HumanCount(*count), printable(about))?;
            for example in examples {
                writeln!(f, "      {}", printable(example))?;
            }
        }
        Ok(())
    }
}

impl Report {
    pub(super) fn new(dry_run: bool) -> Self {
        Self { dry_run, ..Self::default() }
    }

    /// Counts a document that is understood.
    pub(super) fn count(&mut self, id: &DocumentId, bucket: &OlderBucket) {
        *self.shapes.entry(bucket.shape).or_default() += 1;
        self.readings += bucket.hours.iter().map(|(_, contents)| contents.reading_count() as u64).sum::<u64>();
        for finding in &bucket.findings {
            self.find(id, finding);
        }
    }

    /// Counts a document that is left alone.
    pub(super) fn leave(&mut self, id: &DocumentId, why: &Remark) {
        self.left.add(id, why);
    }

    /// Counts a remark about a document whose readings were copied.
    pub(super) fn find(&mut self, id: &DocumentId, what: &Remark) {
        self.findings.add(id, what);
    }

    /// The number of documents that were left alone, in the interrupted attempt too.
    pub(super) const fn left_alone(&self) -> u64 {
        self.left_before + self.left.all
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dry_run, own, shapes, readings, stored, refused, removed, left, left_before, findings } = self;
        let documents = HumanCount(shapes.values().sum());
        let [own, readings, all_left, removed] = [*own, *readings, left.all, *removed].map(HumanCount);
        writeln!(f, "documents: {documents} understood, {all_left} left alone, {own} of tidegauge itself")?;
        for (shape, count) in shapes {
            writeln!(f, "  {} {shape}", HumanCount(*count))?;
        }
        if *dry_run {
            writeln!(f, "readings: {readings} would be copied")?;
        } else {
            let there = self.readings.saturating_sub(stored + refused);
            let [stored, there, refused] = [*stored, there, *refused].map(HumanCount);
            writeln!(f, "readings: {readings} copied, {stored} new, {there} there already, {refused} refused")?;
            writeln!(f, "removed: {removed} documents")?;
        }
        if left.all > 0 {
            write!(f, "left alone:\n{left}")?;
        }
        if *left_before > 0 {
            let left_before = HumanCount(*left_before);
            writeln!(f, "left alone by the interrupted attempt: {left_before} documents (--dry-run names them)")?;
        }
        if findings.all > 0 {
            write!(
                f,
                "findings in documents whose readings {}:\n{findings}",
                if *dry_run { "would be copied" } else { "were copied; --remove leaves these documents" }
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;

    use super::*;

    fn id(number: u32) -> DocumentId {
        let bytes = format!("{number:012}");
        let mut document = vec![0x16, 0, 0, 0, 0x07];
        document.extend(b"_id\0");
        document.extend(bytes.as_bytes());
        document.push(0);
        DocumentId::from_text(&BASE64_STANDARD.encode(document)).unwrap()
    }

    #[test]
    fn remarks_are_grouped_and_the_groups_are_limited() {
        let mut report = Report::new(false);
        for number in 0..1_000 {
            let about = if number % 2 == 0 { "often".to_owned() } else { format!("seldom {number:04}") };
            report.leave(&id(number), &Remark { about, detail: "why".to_owned() });
        }
        assert_eq!(report.left_alone(), 1_000);
        let text = report.to_string();
        assert!(text.contains("0 understood, 1,000 left alone"), "{text}");
        assert!(text.contains("\n  500 often\n      _id ObjectId(\"") && text.contains("\"): why\n"), "{text}");
        assert!(text.contains(&format!("\n  {} other reasons\n", 500 - (LISTED - 1))), "{text}");
        assert!(text.lines().count() < 10 + (LISTED + 1) * (EXAMPLES + 1), "{text}");
    }
}
