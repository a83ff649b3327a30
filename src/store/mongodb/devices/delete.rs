//! Brings the document of a device up to date after a deletion, and after a refused write.

use std::sync::Arc;

use super::super::encode::Encoder;
use super::super::names;
use super::super::statements::{Outcome, Verb};
use super::DeviceIndex;
use super::document::REMOVED_UNTIL;
use crate::model::{BucketWrite, Day, Metric};
use crate::store::{DeviceSummary, StoreError};

/// The changes that a deletion makes in the document of a device.
#[derive(Debug, Default, PartialEq)]
pub(in super::super) struct Correction {
    /// The first instant, if the deletion has removed the one before.
    pub(in super::super) first_ts_ms: Option<i64>,
    /// The day of `lastTs`, if the last reading is earlier.
    pub(in super::super) removed_until: Option<Day>,
    /// The series that have no value left, sorted.
    pub(in super::super) series: Vec<Metric>,
}

impl DeviceIndex {
    /// Removes the document of a device.
    pub(in super::super) async fn remove(&self, device: &Arc<str>) -> Result<(), StoreError> {
        let encode = |statement: &mut Encoder| statement.int32("limit", 0);
        self.change(device, Verb::DeleteMatching, encode).await?;
        self.noted.forget(device);
        self.noted.forget_and_collect(device);
        Ok(())
    }

    /// Makes the document of a device narrower. Its last days stay, because another instance may rely on
    /// them.
    pub(in super::super) async fn correct(&self, device: &str, with: &Correction) -> Result<(), StoreError> {
        let Correction { first_ts_ms, removed_until, series } = with;
        let encode = |statement: &mut Encoder| {
            statement.document("u", |update| {
                if let Some(first_ts_ms) = first_ts_ms {
                    update.document("$set", |set| set.datetime("firstTs", *first_ts_ms));
                }
                if let Some(day) = removed_until {
                    update.document("$max", |max| max.datetime(REMOVED_UNTIL, day.start_ms()));
                }
                if !series.is_empty() {
                    update.document("$unset", |unset| {
                        for series in series {
                            unset.string(["series.", &*names::stored(series)], "");
                        }
                    });
                }
            });
        };
        if *with != Correction::default() {
            self.change(device, Verb::UpdateMatching, encode).await?;
        }
        self.noted.note_removed(device, series, *first_ts_ms);
        Ok(())
    }

    /// Notes that the server has refused buckets, which their documents cover. Returns for each bucket why
    /// that failed, if it did.
    pub(in super::super) async fn note_refused(&self, refused: &[Arc<BucketWrite>]) -> Vec<Option<StoreError>> {
        let mut failed = vec![None; refused.len()];
        let encode = |statement: &mut Encoder, at: &usize| {
            let write = &refused[*at];
            statement.document("q", |filter| {
                filter.string("_id", &write.device);
                filter.string("deviceId", &write.device);
            });
            let day = Day::of(write.hour);
            statement.document("u", |update| {
                update.document("$max", |max| max.datetime(REMOVED_UNTIL, day.start_ms()));
            });
        };
        let settle = |at: &usize, outcome| {
            if let Outcome::Failed(error) = outcome {
                failed[*at] = Some(error);
            }
        };
        let all: Vec<usize> = (0..refused.len()).collect();
        let sent = self.commands.write_all(Verb::UpdateMatching, &self.managed.name, &all, encode, settle).await;
        match sent {
            Ok(_) => failed,
            Err(error) => vec![Some(error); refused.len()],
        }
    }

    /// Has the next write of a device look at its document. Returns what this instance has noted of it
    /// since it has deleted some of its readings.
    pub(in super::super) fn forget_and_collect(&self, device: &Arc<str>) -> Option<DeviceSummary> {
        self.noted.forget_and_collect(device)
    }

    /// Sends one statement for the document of a device.
    async fn change(&self, device: &str, verb: Verb<'_>, then: impl Fn(&mut Encoder)) -> Result<(), StoreError> {
        let encode = |statement: &mut Encoder| {
            statement.document("q", |filter| {
                filter.string("_id", device);
                filter.string("deviceId", device);
            });
            then(statement);
        };
        self.commands.write_one(verb, &self.managed.name, encode).await.map(drop)
    }
}
