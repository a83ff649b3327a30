//! Brings the document of a device up to date after a deletion.

use super::super::encode::Encoder;
use super::super::names;
use super::super::statements::Verb;
use super::DeviceIndex;
use crate::model::Metric;
use crate::store::WriteError;

impl DeviceIndex {
    /// Removes the document of a device.
    pub(in super::super) async fn remove(&self, device: &str) -> Result<(), WriteError> {
        let encode = |statement: &mut Encoder| statement.int32("limit", 0);
        self.change(device, Verb::DeleteMatching, encode).await
    }

    /// Sets the first instant of a device, and removes series. `lastTs` stays: it only has to be no earlier
    /// than the day of the last reading.
    pub(in super::super) async fn correct(
        &self,
        device: &str,
        first_ts_ms: i64,
        series: &[Metric],
    ) -> Result<(), WriteError> {
        let encode = |statement: &mut Encoder| {
            statement.document("u", |update| {
                update.document("$set", |set| set.datetime("firstTs", first_ts_ms));
                if !series.is_empty() {
                    update.document("$unset", |unset| {
                        for series in series {
                            unset.string(["series.", &*names::stored(series)], "");
                        }
                    });
                }
            });
        };
        self.change(device, Verb::UpdateMatching, encode).await
    }

    /// Has the next write of a device look at its document.
    pub(in super::super) fn forget(&self, device: &str) {
        self.noted.forget(device);
    }

    /// Sends one statement for the document of a device, and has the next write look at the document.
    async fn change(&self, device: &str, verb: Verb<'_>, then: impl Fn(&mut Encoder)) -> Result<(), WriteError> {
        self.forget(device);
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
