//! Brings the document of a device up to date after a deletion, and after a refused write.

use std::sync::Arc;

use bson::{DateTime, doc};

use super::super::encode::Encoder;
use super::super::names;
use super::super::statements::{Outcome, Verb};
use super::DeviceIndex;
use super::document::{REMOVED_UNTIL, encode_id};
use crate::model::{BucketWrite, Day, Metric};
use crate::store::StoreError;

/// The changes that a deletion makes in the document of a device.
#[derive(Debug, Default, PartialEq)]
pub(in super::super) struct Correction {
    /// The new first instant, if the range of the deletion has the old one.
    pub(in super::super) first_ts_ms: Option<i64>,
    /// The day of `lastTs`, if the last reading that is left is earlier than `lastTs`.
    pub(in super::super) removed_until: Option<Day>,
    /// The series that have no value left, sorted.
    pub(in super::super) series: Vec<Metric>,
}

impl DeviceIndex {
    /// Removes the document of a device.
    pub(in super::super) async fn remove(&self, device: &Arc<str>) -> Result<(), StoreError> {
        let statement = doc! { "q": { "_id": &**device, "deviceId": &**device }, "limit": 0 };
        self.commands.write_document(Verb::DeleteMatching, &self.managed.name, &statement).await?;
        self.noted.forget(device);
        self.noted.forget_and_collect(device);
        Ok(())
    }

    /// Makes the document of a device narrower. Its last days stay, because another instance may rely on
    /// them.
    pub(in super::super) async fn correct(&self, device: &str, with: &Correction) -> Result<(), StoreError> {
        let Correction { first_ts_ms, removed_until, series } = with;
        let encode = |statement: &mut Encoder| {
            statement.document("q", |filter| encode_id(filter, device));
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
            self.commands.write_one(Verb::UpdateMatching, &self.managed.name, encode).await?;
        }
        self.noted.note_removed(device, series, *first_ts_ms);
        Ok(())
    }

    /// Notes that the server has refused buckets which the documents of their devices already cover. Returns
    /// for each bucket why that failed, if it did.
    pub(in super::super) async fn note_refused(&self, refused: &[Arc<BucketWrite>]) -> Vec<Option<StoreError>> {
        let mut failed = vec![None; refused.len()];
        let encode = |statement: &mut Encoder, at: &usize| {
            let write = &refused[*at];
            let of_device = doc! { "_id": &*write.device, "deviceId": &*write.device };
            let day = DateTime::from_millis(Day::of(write.hour).start_ms());
            statement.elements_of(&doc! { "q": of_device, "u": { "$max": { REMOVED_UNTIL: day } } });
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
}
