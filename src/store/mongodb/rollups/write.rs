//! Writes hours into the documents of their days.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bson::doc;
use mongodb::options::Hint;

use super::super::by_device::of_devices;
use super::super::encode::Encoder;
use super::super::names;
use super::super::statements::{Outcome, Verb};
use super::document::{day_of, key_of, put, rev_of};
use super::{HourRollup, RollupCollection};
use crate::model::Hour;
use crate::store::{StoreError, WriteError};

impl RollupCollection {
    /// Writes the rollups, unless the stored ones are as new. The outcome at index i belongs to the rollup at
    /// index i. Ok means that this rollup, or a newer one, is durable.
    pub(in super::super) async fn put_all(&self, rollups: &[HourRollup]) -> Vec<Result<(), WriteError>> {
        let mut outcomes: Vec<Option<Result<(), WriteError>>> = vec![None; rollups.len()];
        let mut waiting: Vec<usize> = (0..rollups.len()).collect();
        let mut reached = Ok(());
        // A duplicate key may be due to another hour of the same new document, which was a moment quicker.
        // When the document exists, it can only mean that the stored hour is as new.
        for may_race in [true, false] {
            let mut raced = Vec::new();
            let statement = |encoder: &mut Encoder, at: &usize| put(encoder, &rollups[*at]);
            let settle = |&at: &usize, outcome| match outcome {
                Outcome::Unmet if may_race => raced.push(at),
                Outcome::Done | Outcome::Unmet => outcomes[at] = Some(Ok(())),
                Outcome::Failed(error) => outcomes[at] = Some(Err(error)),
            };
            reached = self.commands.write_all(Verb::Update, &self.managed.name, &waiting, statement, settle).await;
            if reached.is_err() {
                break;
            }
            waiting = raced;
        }
        let unreached = || Err(reached.clone().expect_err("else each rollup has an outcome"));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unreached)).collect()
    }

    /// Writes the rollups that were derived of these buckets. A bucket without readings has none, and its
    /// outcome is Ok.
    pub(in super::super) async fn put_derived(
        &self,
        buckets: &[(Arc<str>, Hour)],
        rollups: Vec<HourRollup>,
    ) -> Vec<Result<(), WriteError>> {
        let outcomes = self.put_all(&rollups).await;
        let bucket = |rollup: HourRollup| (rollup.device, rollup.stats.hour);
        let mut outcomes: HashMap<(Arc<str>, Hour), Result<(), WriteError>> =
            rollups.into_iter().map(bucket).zip(outcomes).collect();
        buckets.iter().map(|bucket| outcomes.remove(bucket).unwrap_or(Ok(()))).collect()
    }

    /// Writes the rollups of an hour that are not stored yet, and returns how many were written. It leaves
    /// out a rollup with a permanent error: queries still read its stats from the readings.
    pub(in super::super) async fn bring_up_to_date(
        &self,
        hour: Hour,
        rollups: Vec<HourRollup>,
    ) -> Result<u64, WriteError> {
        let outdated = self.outdated(hour, rollups).await?;
        let mut done = 0;
        for (rollup, outcome) in outdated.iter().zip(self.put_all(&outdated).await) {
            match outcome {
                Ok(()) => done += 1,
                Err(error) if error.is_permanent() => {
                    let (device, hour_ms) = (&*rollup.device, hour.start_ms());
                    tracing::warn!(device, hour_ms, %error, "the hour of a device cannot be rolled up");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Filters the rollups of one hour: returns those that are not stored or newer than stored. Statements
    /// that do nothing would cost more than this query.
    async fn outdated(&self, hour: Hour, mut rollups: Vec<HourRollup>) -> Result<Vec<HourRollup>, StoreError> {
        if rollups.is_empty() {
            return Ok(rollups);
        }
        let devices: Vec<&str> = rollups.iter().map(|rollup| &*rollup.device).collect();
        let day = day_of(hour);
        let ids: Vec<String> = devices.iter().map(|device| names::day_id(device, day)).collect();
        let find = self.documents.find(doc! { "_id": { "$in": ids }, "deviceId": of_devices(&devices) });
        let find = find.hint(Hint::Keys(doc! { "_id": 1 }));
        let fields = doc! { "_id": 0, "deviceId": 1, format!("hours.{}.rev", key_of(hour)): 1 };
        let find = find.projection(fields).batch_size(u32::try_from(devices.len()).unwrap_or(u32::MAX));
        let mut revs: HashMap<String, i64> = HashMap::new();
        self.commands
            .each_document(find, |document| {
                if let Some(rev) = rev_of(document, hour) {
                    revs.insert(document.get_str("deviceId")?.to_owned(), rev);
                }
                Ok(ControlFlow::Continue(()))
            })
            .await?;
        rollups.retain(|rollup| revs.get(&*rollup.device).is_none_or(|stored| *stored < rollup.rev));
        Ok(rollups)
    }
}
