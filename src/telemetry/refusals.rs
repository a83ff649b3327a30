//! Log lines about refusals: at most one a minute for each sender, kind and code.
//!
//! A device that sends bad data sends it again and again. The first refusal is logged at once, with an
//! example. Further refusals within a minute are counted, and logged together as one line. Memory and the
//! number of lines are bounded: if too many senders are refused, the later senders share one line for each
//! kind and code.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::RequestId;

/// The shortest time between two lines of the same sender, kind and code.
const INTERVAL: Duration = Duration::from_secs(60);

/// How often the counted refusals are checked for lines that are due.
const TICK: Duration = Duration::from_secs(5);

/// The most combinations of sender, kind and code that have lines of their own.
const MAX_OWN_LINES: usize = 128;

/// The longest example in a line, in bytes.
const MAX_EXAMPLE_BYTES: usize = 400;

/// The sender of refused requests, readings and so on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Sender {
    /// The owner of a token, key or client certificate, by name.
    Named(Arc<str>),
    /// A sender without a name, by address.
    Address(IpAddr),
    /// All senders together, because the cause is in the server.
    All,
    /// All senders that have no line of their own.
    Others,
}

/// The kind of the refused items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum What {
    Connections,
    Requests,
    Datagrams,
    Messages,
    Readings,
    Queries,
}

/// One or more refusals with the same code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalEntry {
    /// The kind of the refused items.
    pub what: What,
    /// The code of the refusal, such as `unauthorized`.
    pub code: &'static str,
    /// How many items were refused.
    pub count: u64,
    /// The description of one of these items and its problem.
    pub example: String,
}

/// Logs refusals, at most once a minute for each sender, kind of item and code.
#[derive(Debug, Default)]
pub struct RefusalLog(Mutex<Unreported>);

type Key = (Sender, What, &'static str);

/// Refusals that no line reports yet, by sender, kind of item and code.
///
/// An entry without refusals remembers when its last line was written.
#[derive(Debug, Default)]
struct Unreported(HashMap<Key, Counted>);

#[derive(Debug)]
struct Counted {
    count: u64,
    example: Example,
    reported_at: Instant,
}

/// The description of one refused item.
#[derive(Debug, Default, PartialEq, Eq)]
struct Example {
    text: String,
    /// The HTTP request that the item was in.
    request: Option<RequestId>,
}

/// A log line about refusals of one sender, kind and code.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    key: Key,
    count: u64,
    example: Example,
}

impl RefusalLog {
    /// Logs refusals at once, or counts them for a later line.
    ///
    /// They are counted if the last line of the same sender, kind and code is less than a minute old.
    /// `request` is the ID of the HTTP request, if there is one.
    pub fn record(&self, sender: Sender, entry: RefusalEntry, request: Option<RequestId>) {
        let line = self.unreported(|unreported| unreported.add(sender, entry, request, Instant::now()));
        line.iter().for_each(Line::write);
    }

    /// Logs counted refusals, and never returns.
    ///
    /// The line of a sender, kind and code follows a minute after their last line.
    pub async fn run(&self) {
        let mut ticks = tokio::time::interval(TICK);
        loop {
            ticks.tick().await;
            let lines = self.unreported(|unreported| unreported.due(Instant::now()));
            lines.iter().for_each(Line::write);
        }
    }

    fn unreported<T>(&self, with: impl FnOnce(&mut Unreported) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Unreported {
    /// Adds refusals. Returns the line to write now; `None` if they are only counted.
    fn add(&mut self, sender: Sender, entry: RefusalEntry, request: Option<RequestId>, now: Instant) -> Option<Line> {
        let RefusalEntry { what, code, count, example } = entry;
        let example = Example { text: shortened(example), request };
        let mut key = (sender, what, code);
        if !self.0.contains_key(&key) && self.0.len() >= MAX_OWN_LINES {
            key.0 = Sender::Others; // may exceed the limit by an entry for each kind and code
        }
        if let Some(counted) = self.0.get_mut(&key) {
            counted.count += count;
            if counted.example.text.is_empty() {
                counted.example = example;
            }
            return None;
        }
        self.0.insert(key.clone(), Counted { count: 0, example: Example::default(), reported_at: now });
        Some(Line { key, count, example })
    }

    /// The lines to write at `now`, for refusals that were counted.
    ///
    /// A sender, kind and code get a line when their last line is a minute old. If nothing was counted in
    /// this minute, they are forgotten.
    fn due(&mut self, now: Instant) -> Vec<Line> {
        let mut lines = Vec::new();
        self.0.retain(|key, entry| {
            if now.duration_since(entry.reported_at) < INTERVAL {
                return true;
            }
            if entry.count == 0 {
                return false;
            }
            let (count, example) = (std::mem::take(&mut entry.count), std::mem::take(&mut entry.example));
            entry.reported_at = now;
            lines.push(Line { key: key.clone(), count, example });
            true
        });
        lines
    }
}

fn shortened(mut example: String) -> String {
    let end = (0..=MAX_EXAMPLE_BYTES.min(example.len())).rev().find(|&end| example.is_char_boundary(end));
    example.truncate(end.unwrap_or(0));
    example
}

impl Line {
    fn write(&self) {
        let Self { key: (sender, what, code), count, example: Example { text: example, request } } = self;
        let request_id = request.as_ref().map(RequestId::as_str);
        let message = match what {
            What::Connections => "connections are refused",
            What::Requests => "requests are refused",
            What::Datagrams => "datagrams are refused",
            What::Messages => "messages are refused",
            What::Readings => "readings are rejected",
            What::Queries => "queries are not answered",
        };
        tracing::warn!(%sender, code, count, example, request_id, "{message}");
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
            Self::All => f.write_str("all"),
            Self::Others => f.write_str("others"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn from(nth: u32) -> Sender {
        Sender::Address(Ipv4Addr::from(nth).into())
    }

    fn bad(code: &'static str, example: &str) -> RefusalEntry {
        RefusalEntry { what: What::Readings, code, count: 2, example: example.to_owned() }
    }

    fn found(lines: &[Line]) -> Vec<(u64, &str)> {
        lines.iter().map(|line| (line.count, line.example.text.as_str())).collect()
    }

    #[test]
    fn a_flood_has_a_line_at_once_and_one_a_minute_with_all_since() {
        let (mut unreported, start) = (Unreported::default(), Instant::now());
        let first = unreported.add(from(1), bad("a", "first"), None, start).expect("at once");
        assert_eq!(found(&[first]), [(2, "first")]);
        for ms in 1..60_000 {
            let now = start + Duration::from_millis(ms);
            assert_eq!(unreported.add(from(1), bad("a", &ms.to_string()), None, now), None);
            assert!(unreported.due(now).is_empty());
        }
        assert_eq!(found(&unreported.due(start + INTERVAL)), [(2 * 59_999, "1")]);
        assert_eq!(unreported.add(from(1), bad("a", "later"), None, start + INTERVAL), None);
        assert!(unreported.due(start + INTERVAL).is_empty());
        assert_eq!(found(&unreported.due(start + 2 * INTERVAL)), [(2, "later")], "without another one");
        assert!(unreported.due(start + 3 * INTERVAL).is_empty() && unreported.0.is_empty(), "quiet, and forgotten");
        assert!(unreported.add(from(1), bad("a", "new"), None, start + 3 * INTERVAL).is_some());
    }

    #[test]
    fn senders_and_codes_have_lines_of_their_own_as_long_as_there_are_few() {
        let (mut unreported, now) = (Unreported::default(), Instant::now());
        for sender in [from(1), from(2), Sender::Named("gateway-1".into())] {
            for code in ["a", "b"] {
                assert!(unreported.add(sender.clone(), bad(code, ""), None, now).is_some(), "{sender} {code}");
            }
        }
        let lines = (0..100_000).filter_map(|nth| unreported.add(from(nth), bad("a", ""), None, now));
        let senders: Vec<_> = lines.map(|line| line.key.0).collect();
        assert!(senders.len() < MAX_OWN_LINES && senders.last() == Some(&Sender::Others), "{}", senders.len());
        assert!(unreported.0.len() <= MAX_OWN_LINES + 1, "{}", unreported.0.len());
        assert!(unreported.due(now + INTERVAL).len() <= MAX_OWN_LINES + 1);
    }

    #[test]
    fn an_example_is_cut_between_characters() {
        let line = Unreported::default().add(from(1), bad("a", &"ä".repeat(1_000)), None, Instant::now());
        assert_eq!(line.expect("at once").example.text, "ä".repeat(MAX_EXAMPLE_BYTES / 2));
    }
}
