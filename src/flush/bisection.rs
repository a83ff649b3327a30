//! The bisection of a bucket that the store refuses for good: finds the parts that the store accepts.
//!
//! If the store refuses the bucket, it is written again without its metadata. If the store refuses that too,
//! the readings are written in halves, quarters and so on, the largest parts first, down to parts of one
//! instant. After [`REFUSALS_IN_A_ROW`] the bisection of a bucket ends, and the parts that remain are refused
//! as they are. Otherwise a store that refuses all readings of many devices would get a write for each
//! reading. A single bad reading in a bucket is always found.
//!
//! A bisection writes nothing: it says what to write next, and learns the outcome.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::model::BucketWrite;
use crate::store::{StoreError, Written};

/// How many parts may be refused in a row before no part is split any further: all halves, quarters and
/// eighths of the readings.
const REFUSALS_IN_A_ROW: u32 = 2 + 4 + 8;

/// The bisection of one bucket.
#[derive(Debug)]
pub(super) struct Bisection {
    /// The bucket, as it is written first.
    write: Arc<BucketWrite>,
    /// The parts to write, the next one first.
    next: VecDeque<Arc<BucketWrite>>,
    /// The parts that were refused and cannot be split.
    refused: Vec<BucketWrite>,
    /// The last part that was accepted, without the metadata.
    accepted: Option<Arc<BucketWrite>>,
    /// The last refusal.
    error: Option<StoreError>,
    refusals_in_a_row: u32,
    stage: Stage,
    metadata_is_refused: bool,
    stored: u64,
}

/// The outcome of the writes of a bucket: the readings and the metadata that the store refuses.
#[derive(Debug)]
pub struct BucketOutcome {
    /// The bucket, as it was written first.
    pub write: Arc<BucketWrite>,
    /// The number of readings that the store did not have.
    pub stored: u64,
    /// The readings that the store refuses, without the metadata, and the last refusal.
    pub refused: Option<(BucketWrite, StoreError)>,
    /// The last refusal, if the store refuses the metadata.
    pub refused_metadata: Option<StoreError>,
}

/// The question that the next write answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Does the store accept the bucket?
    Whole,
    /// Does the store accept the bucket without its metadata?
    WithoutMetadata,
    /// Which readings does the store accept, without the metadata?
    Readings,
    /// Does the store accept the metadata, with readings that it has accepted?
    Metadata,
}

impl Bisection {
    /// Begins with the whole bucket.
    pub(super) fn new(write: Arc<BucketWrite>) -> Self {
        Self {
            next: VecDeque::from([Arc::clone(&write)]),
            write,
            refused: Vec::new(),
            accepted: None,
            error: None,
            refusals_in_a_row: 0,
            stage: Stage::Whole,
            metadata_is_refused: false,
            stored: 0,
        }
    }

    /// The part to write next; `None` at the end.
    pub(super) fn next(&self) -> Option<&Arc<BucketWrite>> {
        self.next.front()
    }

    /// Handles the acceptance of the next part.
    ///
    /// Returns whether the readings of the part count as written.
    #[must_use]
    pub(super) fn accept(&mut self, written: Written) -> bool {
        let Some(part) = self.next.pop_front() else { return false };
        debug_assert_eq!(written.stored + written.duplicate, part.accepted, "each reading is one of both");
        self.refusals_in_a_row = 0;
        match self.stage {
            Stage::Whole => {}
            Stage::WithoutMetadata => self.metadata_is_refused = true,
            Stage::Metadata => return false, // its readings were counted when they were accepted without it
            Stage::Readings => self.accepted = Some(part),
        }
        self.stored += u64::from(written.stored);
        self.then_metadata();
        true
    }

    /// Handles the refusal of the next part for good.
    pub(super) fn refuse(&mut self, error: StoreError) {
        let Some(part) = self.next.pop_front() else { return };
        let may_pass = error.cause.may_pass_in_part();
        let part = Arc::unwrap_or_clone(part).with_metadata(None);
        match self.stage {
            Stage::Metadata => {
                self.metadata_is_refused = true;
                return;
            }
            Stage::Whole if may_pass && self.write.metadata.is_some() => {
                self.stage = Stage::WithoutMetadata;
                self.next.push_back(part.into());
                self.error = Some(error);
                return;
            }
            Stage::Whole => {}
            Stage::WithoutMetadata | Stage::Readings => self.refusals_in_a_row += 1,
        }
        self.error = Some(error);
        self.stage = Stage::Readings;
        if may_pass {
            self.split(part);
        } else {
            self.refused.push(part);
        }
        if !may_pass || self.refusals_in_a_row > REFUSALS_IN_A_ROW {
            self.refused.extend(self.next.drain(..).map(Arc::unwrap_or_clone));
        }
        self.then_metadata();
    }

    /// Ends the bisection.
    pub(super) fn finish(self) -> BucketOutcome {
        let Self { write, stored, refused, error, metadata_is_refused, .. } = self;
        let refused_metadata = error.clone().filter(|_| metadata_is_refused);
        BucketOutcome { write, stored, refused: BucketWrite::join(refused).zip(error), refused_metadata }
    }

    /// After the last of the readings, queues an accepted part again, with the metadata.
    fn then_metadata(&mut self) {
        if self.stage != Stage::Readings || !self.next.is_empty() || self.write.metadata.is_none() {
            return;
        }
        if let Some(part) = self.accepted.take() {
            self.stage = Stage::Metadata;
            let metadata = self.write.metadata.clone();
            self.next.push_back(Arc::unwrap_or_clone(part).with_metadata(metadata).into());
        }
    }

    /// Queues the halves of a part. A part of one instant has no halves, and counts as refused.
    fn split(&mut self, part: BucketWrite) {
        match part.halves() {
            Some(halves) => self.next.extend(halves.map(Arc::new)),
            None => self.refused.push(part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Hour, Sample};
    use crate::store::Cause;

    /// A bucket with readings of the values 0 to 99.
    fn bucket(metadata: Option<&str>) -> Arc<BucketWrite> {
        let sample = |at: u32| (Sample { value: f64::from(at), offset: at, metric: 0 }, true);
        BucketWrite::new("d".into(), Hour(0), metadata.map(Into::into), vec!["t".into()], (0..100).map(sample)).into()
    }

    /// The result of the bisection of a bucket, and the number of its writes after the first.
    fn narrow(write: &Arc<BucketWrite>, cause: Cause, takes: impl Fn(&BucketWrite) -> bool) -> (BucketOutcome, usize) {
        let (mut writes, error) = (0, StoreError::new(cause, "why"));
        let mut bisection = Bisection::new(Arc::clone(write));
        while let Some(part) = bisection.next().cloned() {
            writes += 1;
            if takes(&part) {
                let _ = bisection.accept(Written { stored: part.accepted, duplicate: 0 });
            } else {
                bisection.refuse(error.clone());
            }
        }
        (bisection.finish(), writes - 1)
    }

    #[test]
    fn refused_metadata_costs_one_write_and_no_reading() {
        let (narrowed, writes) = narrow(&bucket(Some("{}")), Cause::Validation, |part| part.metadata.is_none());
        assert!(narrowed.refused_metadata.is_some() && narrowed.refused.is_none());
        assert_eq!((narrowed.stored, writes), (100, 1));
    }

    #[test]
    fn a_bad_reading_is_found_and_the_metadata_stays() {
        let is_good = |part: &BucketWrite| part.contents.samples().iter().all(|sample| sample.offset != 61);
        for metadata in [None, Some("{}")] {
            let (narrowed, writes) = narrow(&bucket(metadata), Cause::Validation, is_good);
            let (refused, _) = narrowed.refused.expect("the bad reading");
            let offsets: Vec<u32> = refused.contents.samples().iter().map(|sample| sample.offset).collect();
            assert_eq!((refused.accepted, offsets, narrowed.refused_metadata.is_some()), (1, vec![61], false));
            assert_eq!(narrowed.stored, 99);
            assert!(writes <= 2 * 7 + 2, "{writes} writes");
        }
    }

    #[test]
    fn a_store_that_refuses_everything_gets_a_few_writes_and_one_that_cannot_read_the_bucket_none() {
        for (cause, most) in [(Cause::TooLarge, REFUSALS_IN_A_ROW as usize + 2), (Cause::UnreadableDocument, 0)] {
            let (narrowed, writes) = narrow(&bucket(Some("{}")), cause, |_| false);
            assert_eq!(narrowed.refused.map(|(refused, _)| (refused.accepted, refused.metadata)), Some((100, None)));
            assert!(writes <= most, "{writes} writes");
        }
    }
}
