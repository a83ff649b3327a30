//! Deletions of whole devices.

use super::Timeseries;
use crate::store::StoreError;
use crate::store::mongodb::encode::Encoder;
use crate::store::mongodb::statements::Verb;

impl Timeseries {
    /// Deletes all measurements of a device. No insert that this instance has sent before takes effect
    /// afterwards. No write of the device may be in progress.
    pub(super) async fn delete_device(&self, device: &str) -> Result<(), StoreError> {
        self.sessions.fence().await?;
        self.known.forget(device);
        let encode = |statement: &mut Encoder| {
            statement.document("q", |filter| filter.string("meta.deviceId", device));
            statement.int32("limit", 0);
        };
        self.commands.write_one(Verb::DeleteMatching, &self.collection, encode).await.map(drop)
    }
}
