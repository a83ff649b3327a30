//! Divides a batch into requests, and keeps the readings that must be sent again.
//!
//! The readings of one device are always sent in their order. So if there are several values of one identity,
//! the other server keeps the last one, as this server does.

use std::collections::HashSet;

use super::batch::Batch;
use super::verdict::{Answer, Judged, Refused, Verdict};
use crate::client::Body;
use crate::wire::Code;

/// The most readings of a request whose answer lists each rejected reading.
const READINGS_THAT_ARE_LISTED: usize = 100;

/// Divides batches into requests, one batch after the other.
#[derive(Debug)]
pub(super) struct Requests {
    /// The parts of the batch that are not sent yet; the next part is the last one.
    ///
    /// A part has the numbers of its readings.
    parts: Vec<Vec<usize>>,
    /// The largest uncompressed body that the other server probably accepts.
    max_body_bytes: usize,
}

/// A request with some readings of the batch.
#[derive(Debug)]
pub(super) struct Request {
    /// The compressed body of the request.
    pub(super) body: Body,
    /// The numbers of its readings in the batch.
    pub(super) readings: Vec<usize>,
    /// The size of the body before compression.
    text_bytes: usize,
}

/// The outcome of the readings of a request, from its answer.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// The number of accepted readings.
    pub(super) accepted: usize,
    /// The number of the last accepted reading in the batch.
    pub(super) last_accepted: Option<usize>,
    /// The readings that are refused for good, with their numbers in the batch.
    pub(super) refused: Vec<Refused>,
    /// Whether readings are refused only for now, for example by a rate limit.
    ///
    /// The next request contains them, and should wait.
    pub(super) is_limited: bool,
}

impl Default for Requests {
    fn default() -> Self {
        Self { parts: Vec::new(), max_body_bytes: usize::MAX }
    }
}

impl Requests {
    /// Begins a batch, and forgets the parts of the last one.
    pub(super) fn begin(&mut self, batch: &Batch) {
        self.parts.clear();
        if !batch.is_empty() {
            self.parts.push((0..batch.len()).collect());
        }
    }

    /// The next request of the batch; `None` if each reading is accepted or refused.
    pub(super) fn next(&mut self, batch: &Batch) -> Option<Request> {
        loop {
            let readings = self.parts.pop()?;
            let text = batch.body(&readings);
            if readings.len() > 1 && text.len() > self.max_body_bytes {
                self.send_next(readings.chunks(readings.len().div_ceil(2)));
                continue;
            }
            let body = Body::of(&text, Some(readings.len() as u64));
            return Some(Request { body, readings, text_bytes: text.len() });
        }
    }

    /// Takes the answer to a request.
    pub(super) fn take(&mut self, batch: &Batch, request: Request, answer: Answer) -> Outcome {
        let Request { readings, text_bytes, .. } = request;
        match answer.verdict {
            Verdict::Judged(judged) => {
                // The limit grows again, so that one large reading does not make all further requests small.
                self.max_body_bytes = self.max_body_bytes.saturating_add(self.max_body_bytes / 16);
                self.take_judged(batch, &readings, judged)
            }
            Verdict::TooLarge(detail) if readings.len() == 1 => {
                let refused = vec![Refused { at: readings[0], reason: Code::RequestTooLarge.as_str(), detail }];
                Outcome { refused, ..Outcome::default() }
            }
            Verdict::TooLarge(_) => {
                self.max_body_bytes = text_bytes / 2;
                self.send_next(readings.chunks(readings.len().div_ceil(2)));
                Outcome::default()
            }
        }
    }

    /// Makes these parts the next ones to send, in their order.
    pub(super) fn send_next<'p>(&mut self, parts: impl DoubleEndedIterator<Item = &'p [usize]>) {
        self.parts.extend(parts.rev().map(<[usize]>::to_vec));
    }

    fn take_judged(&mut self, batch: &Batch, readings: &[usize], judged: Judged) -> Outcome {
        let Judged { known, mut refused, later } = judged;
        for refused in &mut refused {
            refused.at = readings[refused.at];
        }
        self.send_next(readings[known..].chunks(READINGS_THAT_ARE_LISTED));
        let mut outcome = Outcome { is_limited: !later.is_empty(), ..Outcome::default() };
        let mut later = later.into_iter().map(|at| readings[at]).peekable();
        let mut places_of_refused = refused.iter().map(|refused| refused.at).peekable();
        let mut devices = HashSet::new();
        let mut again = Vec::new();
        for &reading in &readings[..known] {
            if places_of_refused.next_if_eq(&reading).is_some() {
                continue;
            }
            let device = batch.device(reading);
            if later.next_if_eq(&reading).is_some() {
                devices.insert(device);
            }
            if devices.contains(device) {
                again.push(reading); // although it may be accepted: it must follow those before it
            } else {
                outcome.accepted += 1;
                outcome.last_accepted = Some(reading);
            }
        }
        if !again.is_empty() {
            self.parts.push(again);
        }
        Outcome { refused, ..outcome }
    }
}
