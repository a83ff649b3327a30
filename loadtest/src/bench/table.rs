//! Tables of figures: medians of several runs, and ratios to the first system.

use std::collections::BTreeMap;

/// A section of the output, with a table of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Section {
    Readings,
    Stored,
    Latency,
    ServiceCpu,
    MongodCpu,
    DevicesCpu,
    QuietCpu,
    QuietMongodCpu,
    Hours,
    Lost,
    Query,
    Memory,
    Disk,
    KindsDisk,
    KindsCpu,
    KindsMongodCpu,
}

impl Section {
    /// The section for the CPU time of the service, and that for its mongod.
    pub(super) const CPU: [Self; 2] = [Self::ServiceCpu, Self::MongodCpu];
    pub(super) const QUIET_CPU: [Self; 2] = [Self::QuietCpu, Self::QuietMongodCpu];
    pub(super) const KINDS_CPU: [Self; 2] = [Self::KindsCpu, Self::KindsMongodCpu];

    const fn title(self) -> &'static str {
        match self {
            Self::Readings => "Readings a second: acknowledged (HTTP), taken of a flood (UDP). More is better",
            Self::Stored => "Readings a second until all of them are in the store. More is better",
            Self::Latency => "Answered within, p99, ms. Less is better",
            Self::ServiceCpu => "CPU seconds of the service per million readings, until all are stored. Less is better",
            Self::MongodCpu => "CPU seconds of mongod per million readings, until all are stored. Less is better",
            Self::DevicesCpu => {
                "CPU seconds of the service per million readings, until queries return them, by devices. Less is better"
            }
            Self::QuietCpu => {
                "20,000 devices, one reading a minute each, in single POSTs: CPU microseconds of the service per \
                 reading. Less is better"
            }
            Self::QuietMongodCpu => "The same: CPU microseconds of mongod per reading. Less is better",
            Self::Hours => "Three hours of a fleet with a reading a minute, by a fast clock. Less is better",
            Self::Lost => "Datagrams of the flood that were lost, percent. Less is better",
            Self::Query => "Hourly count, minimum, maximum and mean of readings every 10 s, ms. Less is better",
            Self::Memory => "Memory, MiB unless said otherwise. Less is better",
            Self::Disk => "Disk. Less is better",
            Self::KindsDisk => "Bytes on disk per reading, by kind of data, logs and journals aside. Less is better",
            Self::KindsCpu => {
                "CPU seconds of the service per million readings, until all are stored, by kind of data. Less is better"
            }
            Self::KindsMongodCpu => "The same: CPU seconds of mongod per million readings. Less is better",
        }
    }
}

/// All figures: one for each question (a row), system (a column) and run.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The rows of all sections, in the order in which they were first measured.
    questions: Vec<(Section, String)>,
    figures: BTreeMap<(usize, usize), Vec<f64>>,
}

/// The figures of one question and system.
#[derive(Debug, serde::Serialize)]
pub(super) struct Cell<'a> {
    section: Section,
    question: &'a str,
    system: &'a str,
    runs: &'a [f64],
    median: f64,
}

impl Table {
    pub(super) fn add(&mut self, section: Section, question: &str, system: usize, figure: f64) {
        let known = self.questions.iter().position(|(known, name)| *known == section && name == question);
        let at = known.unwrap_or_else(|| {
            self.questions.push((section, question.to_owned()));
            self.questions.len() - 1
        });
        self.figures.entry((at, system)).or_default().push(figure);
    }

    pub(super) fn cells<'a>(&'a self, systems: &[&'a str]) -> Vec<Cell<'a>> {
        let cell = |(&(question, system), runs): (&(usize, usize), &'a Vec<f64>)| Cell {
            section: self.questions[question].0,
            question: &self.questions[question].1,
            system: systems[system],
            runs,
            median: median(runs),
        };
        self.figures.iter().map(cell).collect()
    }

    /// The tables of all sections as Markdown.
    ///
    /// Each median is followed by its ratio to the median of the first system.
    pub(super) fn markdown(&self, systems: &[&str]) -> String {
        let mut sections: Vec<Section> = self.questions.iter().map(|(section, _)| *section).collect();
        sections.sort_unstable();
        sections.dedup();
        sections.into_iter().map(|section| self.section(section, systems)).collect::<Vec<_>>().join("\n")
    }

    fn section(&self, section: Section, systems: &[&str]) -> String {
        let asked = |at: usize, system| self.figures.contains_key(&(at, system));
        let rows: Vec<usize> = (0..self.questions.len()).filter(|&at| self.questions[at].0 == section).collect();
        let shown: Vec<usize> = (0..systems.len()).filter(|&system| rows.iter().any(|&at| asked(at, system))).collect();
        let mut lines = vec![
            format!("**{}**\n", section.title()),
            row("", shown.iter().map(|&system| systems[system].to_owned())),
            row("---", vec!["---:".to_owned(); shown.len()]),
        ];
        for at in rows {
            let cells = shown.iter().map(|&system| self.cell(at, system));
            lines.push(row(&self.questions[at].1, cells));
        }
        lines.join("\n") + "\n"
    }

    fn cell(&self, question: usize, system: usize) -> String {
        let median_of = |system| self.figures.get(&(question, system)).map(|runs| median(runs));
        match (median_of(system), median_of(0)) {
            (Some(figure), Some(first)) if system > 0 && first > 0.0 => {
                format!("{} ({:.2})", short(figure), figure / first)
            }
            (Some(figure), _) => short(figure),
            (None, _) => String::new(),
        }
    }
}

fn row(head: &str, cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().collect();
    format!("| {head} | {} |", cells.join(" | "))
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

/// A figure with about three significant digits: `1.23`, `12.3`, `1,234`.
pub(super) fn short(figure: f64) -> String {
    match figure.abs() {
        large if large >= 100.0 => {
            let digits = format!("{figure:.0}");
            let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
            groups.collect::<Vec<_>>().join(",")
        }
        middle if middle >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_the_middle_run_or_of_the_two_in_the_middle() {
        for (runs, expected) in [(&[7.0][..], 7.0), (&[9.0, 1.0, 2.0], 2.0), (&[4.0, 100.0, 0.0, 2.0], 3.0)] {
            assert!((median(runs) - expected).abs() < 1e-9, "{runs:?}");
        }
    }

    #[test]
    fn a_table_has_medians_and_ratios_to_the_first_system() {
        let mut table = Table::default();
        for figure in [3_000.0, 1_000.0, 2_000.0] {
            table.add(Section::Readings, "json", 0, figure);
            table.add(Section::Readings, "json", 1, figure / 4.0);
        }
        table.add(Section::Readings, "lines", 1, 0.5);
        table.add(Section::Lost, "udp", 0, 0.0);
        table.add(Section::Lost, "udp", 2, 12.34);
        let expected = format!(
            "**{}**\n\n|  | ours | theirs |\n| --- | ---: | ---: |\n| json | 2,000 | 500 (0.25) |\n\
             | lines |  | 0.50 |\n\n\
             **{}**\n\n|  | ours | others |\n| --- | ---: | ---: |\n| udp | 0.00 | 12.3 |\n",
            Section::Readings.title(),
            Section::Lost.title()
        );
        assert_eq!(table.markdown(&["ours", "theirs", "others"]), expected);
    }

    #[test]
    fn every_run_is_in_the_cells() {
        let mut table = Table::default();
        table.add(Section::Query, "one device", 0, 2.0);
        table.add(Section::Query, "one device", 0, 4.0);
        let cells = serde_json::to_value(table.cells(&["ours"])).unwrap();
        let expected = serde_json::json!([{
            "section": "query", "question": "one device", "system": "ours", "runs": [2.0, 4.0], "median": 3.0
        }]);
        assert_eq!(cells, expected);
    }
}
