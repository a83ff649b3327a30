//! Collects lines into request bodies, with the line numbers of the file.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::follow::Mark;
use super::progress::Counts;

/// The size at which a body is complete: well below the limit of a server.
const BODY_BYTES: usize = 1024 * 1024;

/// The body of one request, and the lines that it is made of.
#[derive(Debug, Clone)]
pub(in crate::cli) struct Batch {
    /// The file that the lines are from.
    pub(in crate::cli) file: Arc<str>,
    /// The lines as NDJSON.
    pub(in crate::cli) body: Bytes,
    /// For each line of the body, its number in the file.
    pub(in crate::cli) lines: Vec<u64>,
    /// The place in the file that the batch reaches, if it is known.
    ///
    /// All lines before it are in this batch or in earlier ones.
    pub(in crate::cli) done: Option<Done>,
    /// How many readings the body has, if that is known.
    ///
    /// Lines of foreign files may have any number.
    pub(in crate::cli) readings: Option<u64>,
}

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::cli) struct Done {
    /// The number of the last line before it.
    pub(super) line: u64,
    /// The place with a checksum of the bytes before it, if the file is followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mark: Option<Mark>,
    /// The lines up to the header, if the file is followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) header: Option<Arc<str>>,
    /// How many rows, and how many single values, the import had rejected until then.
    ///
    /// If rows were held, some of these are after the place, and count again when the import continues there.
    #[serde(skip)]
    pub(super) rejected: (u64, u64),
}

/// The receiver of batches has ended.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("sending has stopped")]
pub(in crate::cli) struct Stopped;

/// Collects the lines of one file and passes on full batches.
///
/// It blocks while the queue is full, so it needs a thread that may block.
pub(in crate::cli) struct Batcher<'a> {
    queue: &'a mpsc::Sender<Batch>,
    max_lines: usize,
    file: Arc<str>,
    body: Vec<u8>,
    lines: Vec<u64>,
    done: Option<Done>,
    /// See [`Batch::readings`].
    readings: Option<u64>,
    /// The counts of the rows and values that the import has rejected.
    counts: Option<&'a Counts>,
    has_marks: bool,
}

impl<'a> Batcher<'a> {
    /// Starts a file: batches have at most `max_lines` lines.
    pub(in crate::cli) fn new(queue: &'a mpsc::Sender<Batch>, max_lines: usize, file: Arc<str>) -> Self {
        let (body, lines, done, counts) = (Vec::new(), Vec::new(), None, None);
        Self { queue, max_lines, file, body, lines, done, readings: Some(0), counts, has_marks: false }
    }

    /// Notes with each place how much the import had rejected.
    pub(super) fn with_counts(self, counts: &'a Counts) -> Self {
        Self { counts: Some(counts), ..self }
    }

    /// Lets only [`Self::set_mark`] set the place that a batch reaches.
    pub(super) fn with_marks(self) -> Self {
        Self { has_marks: true, ..self }
    }

    /// Sets the place that the next batch reaches: all lines before it were added.
    ///
    /// `header` has the lines up to the header.
    pub(super) fn set_mark(&mut self, mark: Mark, header: Option<Arc<str>>) {
        self.done = Some(Done { line: mark.lines(), mark: Some(mark), header, rejected: (0, 0) });
    }

    /// Adds line `number` of the file, without its line end.
    ///
    /// `readings` is the number of readings in the line, if it is known. With this line, all lines up to line
    /// `done_to` are in this batch or in earlier ones.
    pub(in crate::cli) fn push(
        &mut self,
        number: u64,
        line: &[u8],
        readings: Option<u64>,
        done_to: u64,
    ) -> Result<(), Stopped> {
        if !self.lines.is_empty() && self.body.len() + line.len() >= BODY_BYTES {
            self.pass_on()?;
        }
        self.body.extend_from_slice(line);
        self.body.push(b'\n');
        self.lines.push(number);
        self.readings = self.readings.zip(readings).map(|(before, more)| before + more);
        if !self.has_marks {
            let rejected = self.counts.map_or((0, 0), Counts::unconverted);
            self.done = Some(Done { line: done_to, mark: None, header: None, rejected });
        }
        if self.lines.len() >= self.max_lines { self.pass_on() } else { Ok(()) }
    }

    /// Passes on the last batch, if it has lines.
    pub(in crate::cli) fn finish(&mut self) -> Result<(), Stopped> {
        if self.lines.is_empty() { Ok(()) } else { self.pass_on() }
    }

    fn pass_on(&mut self) -> Result<(), Stopped> {
        let body = std::mem::take(&mut self.body).into();
        let lines = std::mem::take(&mut self.lines);
        let readings = self.readings.replace(0);
        let (file, done) = (Arc::clone(&self.file), self.done.clone());
        self.queue.blocking_send(Batch { file, body, lines, done, readings }).map_err(|_| Stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_limited_in_lines_and_bytes_and_has_whole_lines() {
        let (queue, mut batches) = mpsc::channel(10);
        let mut batcher = Batcher::new(&queue, 3, "f".into());
        let long = vec![b'x'; BODY_BYTES / 2 + 1];
        for (number, line) in [(2, &b"a"[..]), (3, b"b"), (5, b"c"), (6, b"d"), (7, &long), (8, &long)] {
            batcher.push(number, line, Some(number), number).unwrap();
        }
        batcher.finish().unwrap();
        drop(queue);
        let mut all = Vec::new();
        while let Some(batch) = batches.blocking_recv() {
            assert!(batch.body.len() <= BODY_BYTES && batch.body.ends_with(b"\n"));
            assert_eq!(std::str::from_utf8(&batch.body).unwrap().lines().count(), batch.lines.len());
            assert_eq!(batch.done.as_ref().map(|done| done.line), batch.lines.last().copied());
            assert_eq!(batch.readings, Some(batch.lines.iter().sum::<u64>()));
            all.push(batch.lines);
        }
        assert_eq!(all, [vec![2, 3, 5], vec![6, 7], vec![8]]);
    }

    #[test]
    fn a_batcher_without_a_receiver_returns_an_error() {
        let (queue, batches) = mpsc::channel(10);
        drop(batches);
        assert_eq!(Batcher::new(&queue, 1, "f".into()).push(1, b"{}", None, 1), Err(Stopped));
    }
}
