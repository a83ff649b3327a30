//! The requests of a batch: how it is divided, and what an answer leaves to be sent again.

use std::collections::VecDeque;

use super::answer::{Judged, Refused, Verdict};
use super::batch::Batch;
use super::upstream::{Answer, Body};
use crate::wire::Code;

/// The readings of a request whose answer certainly lists each of them that is refused.
pub(super) const READINGS_THAT_ARE_LISTED: usize = 100;

/// The parts of a batch that are still to be sent, by the numbers of their readings, the next one last.
pub(super) type Parts = VecDeque<Vec<usize>>;

/// Divides one batch after the other into requests.
#[derive(Debug)]
pub struct Requests {
    parts: Parts,
    /// The size up to which bodies are probably not too large for the other server.
    max_body_bytes: usize,
}

/// A request.
#[derive(Debug)]
pub struct Request {
    /// Its body.
    pub body: Body,
    /// Its readings, by their numbers in the batch.
    readings: Vec<usize>,
    /// The size of the body before its compression.
    text_bytes: usize,
}

/// The decisions of an answer.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The number of accepted readings.
    pub accepted: usize,
    /// The readings that are refused for good, by their numbers in the batch.
    pub refused: Vec<Refused>,
    /// Whether readings are refused for now. The next request has them, and should wait.
    pub is_limited: bool,
}

impl Default for Requests {
    fn default() -> Self {
        Self { parts: Parts::new(), max_body_bytes: usize::MAX }
    }
}

impl Requests {
    /// Begins a batch, and forgets what is left of another one.
    pub fn begin(&mut self, batch: &Batch) {
        self.parts.clear();
        if !batch.is_empty() {
            self.parts.push_back((0..batch.len()).collect());
        }
    }

    /// The next request of the batch; `None` if each of its readings is accepted, or refused for good.
    pub fn next(&mut self, batch: &Batch) -> Option<Request> {
        loop {
            let readings = self.parts.pop_back()?;
            let text = batch.body(&readings);
            if readings.len() > 1 && text.len() > self.max_body_bytes {
                split(&readings, readings.len().div_ceil(2), &mut self.parts);
                continue;
            }
            let body = Body::of(&text, readings.len());
            return Some(Request { body, readings, text_bytes: text.len() });
        }
    }

    /// Takes the answer to a request.
    pub fn take(&mut self, request: Request, answer: Answer) -> Outcome {
        let Request { readings, text_bytes, .. } = request;
        match answer.verdict {
            Verdict::Judged(judged) => {
                // One large reading must not make all further requests small.
                self.max_body_bytes = self.max_body_bytes.saturating_add(self.max_body_bytes / 16);
                self.take_judged(&readings, judged)
            }
            Verdict::TooLarge(detail) if readings.len() == 1 => {
                let refused = vec![Refused { at: readings[0], reason: Code::RequestTooLarge.as_str(), detail }];
                Outcome { refused, ..Outcome::default() }
            }
            Verdict::TooLarge(_) => {
                self.max_body_bytes = text_bytes / 2;
                split(&readings, readings.len().div_ceil(2), &mut self.parts);
                Outcome::default()
            }
        }
    }

    fn take_judged(&mut self, readings: &[usize], judged: Judged) -> Outcome {
        let Judged { known, mut refused, later } = judged;
        let accepted = known - refused.len() - later.len();
        for refused in &mut refused {
            refused.at = readings[refused.at];
        }
        split(&readings[known..], READINGS_THAT_ARE_LISTED, &mut self.parts);
        let is_limited = !later.is_empty();
        if is_limited {
            self.parts.push_back(later.into_iter().map(|at| readings[at]).collect());
        }
        Outcome { accepted, refused, is_limited }
    }
}

/// Adds pieces of this many readings to `parts`, the first one last.
pub(super) fn split(readings: &[usize], size: usize, parts: &mut Parts) {
    parts.extend(readings.chunks(size.max(1)).rev().map(<[usize]>::to_vec));
}
