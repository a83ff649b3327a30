//! Writes hours into the documents of their days.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bson::{Document, doc};

use super::super::by_device::of_devices;
use super::super::encode::Encoder;
use super::super::names;
use super::super::statements::{Outcome, Verb};
use super::columns::{COLUMNS, METRICS};
use super::document::{add_revs, day_of, insert, key_of, leave_out, put, start_of};
use super::{HourRollup, RollupCollection};
use crate::config::BucketLayout;
use crate::model::Hour;
use crate::store::{Cause, StoreError};

/// How often a statement is sent at most.
///
/// It is sent again while other writers insert the same document, and hour by hour after the server has
/// refused all hours together.
const ATTEMPTS: usize = 4;

/// The fewest hours of a day that are inserted as columns before the day is known to be complete. Hours that
/// follow are put beside the columns.
const PACKED_HOURS_MIN: usize = 6;

impl RollupCollection {
    /// Writes the rollups, unless the stored ones are as new: one statement for each device and day. The
    /// outcome at index i belongs to the rollup at index i. Ok means that this rollup, or a newer one, is
    /// durable. After a permanent error the document has no older rollup of the hour either, so that queries
    /// read its stats from the readings.
    pub(in super::super) async fn put_all(&self, rollups: &[HourRollup]) -> Vec<Result<(), StoreError>> {
        let mut outcomes: Vec<Option<Result<(), StoreError>>> = vec![None; rollups.len()];
        let mut waiting = by_day(rollups);
        let mut reached = Ok(());
        for _ in 0..ATTEMPTS {
            let mut again = Vec::new();
            let statement = |encoder: &mut Encoder, day: &Vec<usize>| put(encoder, &of_day(rollups, day));
            let settle = |day: &Vec<usize>, outcome| match outcome {
                Outcome::Done => day.iter().for_each(|&at| outcomes[at] = Some(Ok(()))),
                Outcome::Unmet => again.push(day.clone()), // another writer was a moment quicker to insert it
                Outcome::Failed(error) if error.is_permanent() && day.len() > 1 => {
                    again.extend(day.iter().map(|&at| vec![at])); // as many hours as the server takes
                }
                Outcome::Failed(error) => day.iter().for_each(|&at| outcomes[at] = Some(Err(error.clone()))),
            };
            let name = &self.managed.name;
            reached = self.commands.write_all(Verb::Update, name, &waiting, statement, settle).await.map(drop);
            waiting = again;
            if reached.is_err() || waiting.is_empty() {
                break;
            }
        }
        if reached.is_ok() {
            self.leave_out_refused(rollups, &mut outcomes).await;
        }
        let contended = || StoreError::new(Cause::Contention, "other writers of the day were quicker");
        let unsettled = || Err(reached.clone().err().unwrap_or_else(contended));
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unsettled)).collect()
    }

    /// Leaves the hours that were refused for good out of their documents. If that fails, the outcome is the
    /// error of this attempt, which is transient.
    async fn leave_out_refused(&self, rollups: &[HourRollup], outcomes: &mut [Option<Result<(), StoreError>>]) {
        let is_refused =
            |outcome: &Option<Result<(), StoreError>>| matches!(outcome, Some(Err(error)) if error.is_permanent());
        let refused: Vec<usize> = (0..rollups.len()).filter(|&at| is_refused(&outcomes[at])).collect();
        if refused.is_empty() {
            return;
        }
        let statement = |encoder: &mut Encoder, &at: &usize| leave_out(encoder, &rollups[at]);
        let mut again: Vec<(usize, StoreError)> = Vec::new();
        let settle = |&at: &usize, outcome| match outcome {
            Outcome::Failed(error) if !error.is_permanent() => again.push((at, error)),
            Outcome::Done | Outcome::Unmet | Outcome::Failed(_) => {}
        };
        let reached = self.commands.write_all(Verb::Update, &self.managed.name, &refused, statement, settle).await;
        if let Err(error) = reached {
            again = refused.iter().map(|&at| (at, error.clone())).collect();
        }
        for (at, error) in again {
            outcomes[at] = Some(Err(error));
        }
    }

    /// Writes the rollups that were derived of these buckets. A bucket without readings has none, and its
    /// outcome is Ok.
    pub(in super::super) async fn put_derived(
        &self,
        buckets: &[(Arc<str>, Hour)],
        rollups: Vec<HourRollup>,
    ) -> Vec<Result<(), StoreError>> {
        let rollups = match self.insert_packed(rollups).await {
            Ok(others) => others,
            Err(error) => return vec![Err(error); buckets.len()],
        };
        let outcomes = self.put_all(&rollups).await;
        let bucket = |rollup: HourRollup| (rollup.device, rollup.stats.hour);
        let mut outcomes: HashMap<(Arc<str>, Hour), Result<(), StoreError>> =
            rollups.into_iter().map(bucket).zip(outcomes).collect();
        buckets.iter().map(|bucket| outcomes.remove(bucket).unwrap_or(Ok(()))).collect()
    }

    /// Inserts the documents of days with many hours as columns, such as the days of an imported history.
    /// Returns the rollups of the other days, and of the days that have a document already.
    async fn insert_packed(&self, rollups: Vec<HourRollup>) -> Result<Vec<HourRollup>, StoreError> {
        if self.layout != BucketLayout::Packed {
            return Ok(rollups);
        }
        let mut is_packed = vec![false; rollups.len()];
        for at in by_day(&rollups).into_iter().filter(|day| day.len() >= PACKED_HOURS_MIN).flatten() {
            is_packed[at] = true;
        }
        let (packed, others): (Vec<_>, Vec<_>) = rollups.into_iter().zip(is_packed).partition(|(_, packed)| *packed);
        let mut others: Vec<HourRollup> = others.into_iter().map(|(rollup, _)| rollup).collect();
        if !packed.is_empty() {
            others.extend(self.insert_days(packed.into_iter().map(|(rollup, _)| rollup).collect()).await?);
        }
        Ok(others)
    }

    /// Writes those rollups that are not stored, or newer than stored. All are of `hours`, which are in one
    /// day. Returns how many were written, and how many were refused. It leaves out a rollup with a permanent
    /// error: queries still read its stats from the readings.
    ///
    /// If `hours` starts with the first hour of the day, the devices have no document of the day as a rule.
    /// So documents are inserted first, which costs the server least. Documents that exist already are
    /// brought up to date.
    pub(in super::super) async fn bring_up_to_date(
        &self,
        hours: &Range<Hour>,
        mut rollups: Vec<HourRollup>,
    ) -> Result<(u64, u64), StoreError> {
        let before = rollups.len();
        if hours.start == start_of(day_of(hours.start)) {
            rollups = self.insert_days(rollups).await?;
        }
        let (mut done, mut refused) = (before - rollups.len(), 0);
        let outdated = self.outdated(hours, rollups).await?;
        for (rollup, outcome) in outdated.iter().zip(self.put_all(&outdated).await) {
            match outcome {
                Ok(()) => done += 1,
                Err(error) if error.is_permanent() => {
                    let (device, hour_ms) = (&*rollup.device, rollup.stats.hour.start_ms());
                    tracing::error!(
                        device,
                        hour_ms,
                        %error,
                        "the hour of a device cannot be rolled up; queries read its readings until they expire"
                    );
                    refused += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok((done as u64, refused))
    }

    /// Inserts the documents of days, and returns the rollups that it does not insert.
    ///
    /// These are rollups of days that have a document already, or that the server refuses for good.
    ///
    /// It does not insert hours that a deletion has emptied either.
    async fn insert_days(&self, rollups: Vec<HourRollup>) -> Result<Vec<HourRollup>, StoreError> {
        let (mut others, rollups): (Vec<_>, Vec<_>) = rollups.into_iter().partition(HourRollup::is_empty);
        let days = by_day(&rollups);
        let mut is_inserted = vec![false; rollups.len()];
        let mut failed = Ok(());
        let layout = self.layout;
        let document = |encoder: &mut Encoder, day: &Vec<usize>| insert(encoder, &of_day(&rollups, day), layout);
        let settle = |day: &Vec<usize>, outcome| match outcome {
            Outcome::Done => day.iter().for_each(|&at| is_inserted[at] = true),
            Outcome::Failed(error) if !error.is_permanent() => failed = Err(error),
            Outcome::Unmet | Outcome::Failed(_) => {}
        };
        self.commands.write_all(Verb::Insert, &self.managed.name, &days, document, settle).await?;
        failed?;
        others.extend(rollups.into_iter().zip(is_inserted).filter(|(_, inserted)| !inserted).map(|(rollup, _)| rollup));
        Ok(others)
    }

    /// Filters the rollups of hours of one day: returns those that are not stored or newer than stored.
    /// Statements that do nothing would cost more than this query.
    async fn outdated(&self, hours: &Range<Hour>, mut rollups: Vec<HourRollup>) -> Result<Vec<HourRollup>, StoreError> {
        if rollups.is_empty() {
            return Ok(rollups);
        }
        let mut devices: Vec<&str> = rollups.iter().map(|rollup| &*rollup.device).collect();
        devices.sort_unstable();
        devices.dedup();
        let ids: Vec<String> = devices.iter().map(|device| names::day_id(device, day_of(hours.start))).collect();
        let find = self.find(doc! { "_id": { "$in": ids }, "deviceId": of_devices(&devices) });
        let mut fields = doc! { "_id": 0, "deviceId": 1, METRICS: 1, COLUMNS: 1 };
        let rev_of = |hour| (format!("hours.{}.rev", key_of(Hour(hour))), 1.into());
        fields.extend((hours.start.0..hours.end.0).map(rev_of).collect::<Document>());
        let find = find.projection(fields).batch_size(u32::try_from(devices.len()).unwrap_or(u32::MAX));
        let mut revs: HashMap<String, BTreeMap<Hour, i64>> = HashMap::new();
        self.commands
            .all_documents(find, |document| {
                let of_device = revs.entry(document.get_str("deviceId")?.to_owned()).or_default();
                add_revs(document, day_of(hours.start), of_device);
                Ok(())
            })
            .await?;
        let stored = |rollup: &HourRollup| revs.get(&*rollup.device)?.get(&rollup.stats.hour).copied();
        rollups.retain(|rollup| stored(rollup).is_none_or(|stored| stored < rollup.rev));
        Ok(rollups)
    }
}

/// The indices of the rollups of each device and day, their hours ascending.
fn by_day(rollups: &[HourRollup]) -> Vec<Vec<usize>> {
    let mut days: BTreeMap<(&str, i32), Vec<usize>> = BTreeMap::new();
    for (at, rollup) in rollups.iter().enumerate() {
        days.entry((&rollup.device, day_of(rollup.stats.hour))).or_default().push(at);
    }
    let mut days: Vec<Vec<usize>> = days.into_values().collect();
    for day in &mut days {
        day.sort_unstable_by_key(|&at| rollups[at].stats.hour);
    }
    days
}

fn of_day<'a>(rollups: &'a [HourRollup], day: &[usize]) -> Vec<&'a HourRollup> {
    day.iter().map(|&at| &rollups[at]).collect()
}
