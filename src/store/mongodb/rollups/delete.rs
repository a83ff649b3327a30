//! Deletions: remove stats from the rollups of hours whose readings have expired.

use std::collections::BTreeSet;

use bson::doc;

use super::super::names;
use super::super::statements::Verb;
use super::document::rollups_of;
use super::{HourRollup, RollupCollection};
use crate::model::{Deletion, Hour};
use crate::store::StoreError;

/// The most days that one query of a deletion reads.
const DAYS_AT_ONCE: u32 = 100;

impl RollupCollection {
    /// Removes the stats that a deletion selects from the rollups of the hours that it covers, except those
    /// of `stored`: their stats come from stored readings. Returns the hours of the deletion that have a
    /// rollup.
    pub(in super::super) async fn delete(
        &self,
        deletion: &Deletion,
        stored: &BTreeSet<Hour>,
    ) -> Result<BTreeSet<Hour>, StoreError> {
        let hours = deletion.hours();
        let (mut found, mut ids) = (BTreeSet::new(), names::ids_of_days(&deletion.device, &hours));
        loop {
            let find = self.find(doc! { "_id": ids.clone(), "deviceId": &*deletion.device });
            let find = find.sort(doc! { "_id": 1 }).limit(DAYS_AT_ONCE.into()).batch_size(DAYS_AT_ONCE);
            let (mut changed, mut last) = (Vec::new(), None);
            self.commands
                .all_documents(find, |document| {
                    last = Some(document.get_str("_id")?.to_owned());
                    for rollup in rollups_of(document)?.into_iter().filter(|of| hours.contains(&of.stats.hour)) {
                        let hour = rollup.stats.hour;
                        found.insert(hour);
                        if !stored.contains(&hour) && deletion.covers(hour) {
                            changed.extend(without(rollup, deletion));
                        }
                    }
                    Ok(())
                })
                .await?;
            for outcome in self.put_all(&changed).await {
                outcome?;
            }
            let Some(last) = last else { return Ok(found) };
            ids.remove("$gte");
            ids.insert("$gt", last);
        }
    }

    /// Removes all rollups of a device.
    pub(in super::super) async fn delete_device(&self, device: &str) -> Result<(), StoreError> {
        let ids = names::ids_of_days(device, &Hour::ALL);
        let statement = doc! { "q": { "_id": ids, "deviceId": device }, "limit": 0 };
        self.commands.write_document(Verb::DeleteMatching, &self.managed.name, &statement).await.map(drop)
    }
}

/// The next revision of a rollup, without the series that a deletion selects; `None` if it has none of them.
fn without(mut rollup: HourRollup, deletion: &Deletion) -> Option<HourRollup> {
    let before = rollup.stats.stats.len();
    rollup.stats.stats.retain(|(metric, _)| !deletion.series.matches(metric));
    rollup.rev += 1;
    (rollup.stats.stats.len() < before).then_some(rollup)
}
