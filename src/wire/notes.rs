//! What a parser finds, written down for tests.

use std::fmt::Write;

use super::{Incoming, Rejection, Sink};

/// Writes down what it is given, an entry each: `device ts metric=value ... [metadata]`, `code: detail`,
/// `line n` or `device sequence n`.
#[derive(Default)]
pub(super) struct Notes(pub(super) Vec<String>);

impl Sink for Notes {
    fn reading(&mut self, incoming: Incoming<'_>) {
        let ts = incoming.ts_ms.map_or("now".to_owned(), |ms| ms.to_string());
        let mut note = format!("{} {ts}", incoming.device);
        for (metric, value) in incoming.values {
            write!(note, " {metric}={value}").unwrap();
        }
        if let Some(metadata) = incoming.metadata {
            write!(note, " {metadata}").unwrap();
        }
        self.0.push(note);
    }

    fn reject(&mut self, rejection: Rejection) {
        self.0.push(format!("{}: {}", rejection.code.as_str(), rejection.detail));
    }

    fn line(&mut self, number: u64) {
        self.0.push(format!("line {number}"));
    }

    fn sequence(&mut self, device: &str, number: u64) {
        self.0.push(format!("{device} sequence {number}"));
    }
}
