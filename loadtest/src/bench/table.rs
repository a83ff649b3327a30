//! Medians of several runs, as a table and as ratios.

use std::collections::BTreeMap;

/// Figures by question and system, one for each run.
#[derive(Debug, Default)]
pub(super) struct Table {
    questions: Vec<String>,
    figures: BTreeMap<(usize, usize), Vec<f64>>,
}

/// What one cell says.
#[derive(Debug, serde::Serialize)]
pub(super) struct Cell<'a> {
    question: &'a str,
    system: &'a str,
    runs: &'a [f64],
    median: f64,
}

impl Table {
    pub(super) fn add(&mut self, question: &str, system: usize, figure: f64) {
        let at = self.questions.iter().position(|known| known == question).unwrap_or_else(|| {
            self.questions.push(question.to_owned());
            self.questions.len() - 1
        });
        self.figures.entry((at, system)).or_default().push(figure);
    }

    pub(super) fn cells<'a>(&'a self, systems: &[&'a str]) -> Vec<Cell<'a>> {
        let cell = |(&(question, system), runs): (&(usize, usize), &'a Vec<f64>)| Cell {
            question: &self.questions[question],
            system: systems[system],
            runs,
            median: median(runs),
        };
        self.figures.iter().map(cell).collect()
    }

    /// A Markdown table: a row for each question; each figure with its ratio to that of the first system.
    pub(super) fn markdown(&self, systems: &[&str]) -> String {
        let mut lines =
            vec![row("", systems.iter().map(ToString::to_string)), row("---", vec!["---:".to_owned(); systems.len()])];
        for (at, question) in self.questions.iter().enumerate() {
            let median_of = |system| self.figures.get(&(at, system)).map(|runs| median(runs));
            let first = median_of(0);
            let cells = (0..systems.len()).map(|system| match (median_of(system), first) {
                (Some(figure), Some(first)) if system > 0 => format!("{} ({:.2})", short(figure), figure / first),
                (Some(figure), _) => short(figure),
                (None, _) => String::new(),
            });
            lines.push(row(question, cells));
        }
        lines.join("\n") + "\n"
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

/// Three digits that matter.
fn short(figure: f64) -> String {
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
    fn a_table_has_medians_and_ratios_to_the_first_system() {
        let mut table = Table::default();
        for figure in [3_000.0, 1_000.0, 2_000.0] {
            table.add("readings/s", 0, figure);
            table.add("readings/s", 1, figure / 4.0);
        }
        table.add("other", 1, 0.5);
        assert_eq!(
            table.markdown(&["ours", "theirs"]),
            "|  | ours | theirs |\n| --- | ---: | ---: |\n| readings/s | 2,000 | 500 (0.25) |\n| other |  | 0.50 |\n"
        );
    }
}
