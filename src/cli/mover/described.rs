//! Copies the metadata that operators have set.

use std::sync::Arc;

use tidegauge::model::OperatorMetadata;

use super::super::target::patiently;
use super::stores::Stores;

/// The devices whose metadata is copied at once.
const DEVICES_AT_ONCE: usize = 500;

/// Copies the metadata into the new store, and returns the number of devices.
///
/// For each key, a newer value in the new store stays.
pub(super) async fn copy(stores: &Stores) -> anyhow::Result<u64> {
    each(stores, async |some| {
        patiently(async || stores.to.store.operator_metadata().merge_metadata(some).await).await?;
        Ok(some.len() as u64)
    })
    .await
}

/// Counts the devices whose metadata in the new store lacks keys of the old store.
pub(super) async fn count_missing(stores: &Stores) -> anyhow::Result<u64> {
    each(stores, async |some| {
        let devices: Vec<Arc<str>> = some.iter().map(|(device, _)| Arc::clone(device)).collect();
        let known = patiently(async || stores.to.store.operator_metadata().metadata_of(&devices).await).await?;
        let lacks = |(device, metadata): &&(Arc<str>, OperatorMetadata)| {
            let known = known.get(device).cloned().unwrap_or_default();
            let mut merged = known.clone();
            merged.merge(metadata.clone());
            merged.forget_old_removals(); // the new store forgets them too
            merged != known
        };
        Ok(some.iter().filter(lacks).count() as u64)
    })
    .await
}

/// Calls `of_some` with the operators' metadata in the old store.
///
/// Each call has some devices. Returns the sum of the results.
async fn each(
    stores: &Stores,
    of_some: impl AsyncFn(&[(Arc<str>, OperatorMetadata)]) -> anyhow::Result<u64>,
) -> anyhow::Result<u64> {
    let (mut sum, mut after) = (0, None::<Arc<str>>);
    loop {
        let list = async || stores.from.operator_metadata().list_metadata("", after.as_deref(), DEVICES_AT_ONCE).await;
        let some = patiently(list).await?;
        let Some((last, _)) = some.last() else { return Ok(sum) };
        let last = Arc::clone(last);
        sum += of_some(&some).await?;
        after = Some(last);
    }
}
