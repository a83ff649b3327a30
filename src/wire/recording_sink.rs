//! A sink for tests that records what a parser finds.

use std::fmt::Write;

use super::{Ignored, Incoming, Rejection, Sink};

/// Records one text for each call of the sink, in order.
///
/// A reading is `device ts metric=value ... metadata`, a rejected one `code: detail`, and a rejected value
/// `value code: detail`. The other texts are `ignored what name`, `line n` and `device sequence n`.
#[derive(Default)]
pub(crate) struct RecordingSink(pub(crate) Vec<String>);

impl Sink for RecordingSink {
    fn reading(&mut self, incoming: Incoming<'_>) {
        let ts = incoming.ts_ms.map_or("now".to_owned(), |ms| ms.to_string());
        let mut entry = format!("{} {ts}", incoming.device);
        for (metric, value) in incoming.values {
            write!(entry, " {metric}={value}").unwrap();
        }
        if let Some(metadata) = incoming.metadata {
            write!(entry, " {metadata}").unwrap();
        }
        self.0.push(entry);
    }

    fn reject(&mut self, rejection: Rejection) {
        self.0.push(format!("{}: {}", rejection.code.as_str(), rejection.detail));
    }

    fn reject_value(&mut self, rejection: Rejection) {
        self.0.push(format!("value {}: {}", rejection.code.as_str(), rejection.detail));
    }

    fn ignore(&mut self, what: Ignored, name: &str) {
        self.0.push(format!("ignored {what:?} {name}"));
    }

    fn line(&mut self, number: u64) {
        self.0.push(format!("line {number}"));
    }

    fn sequence(&mut self, device: &str, number: u64) {
        self.0.push(format!("{device} sequence {number}"));
    }
}
