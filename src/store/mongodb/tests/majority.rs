//! Stored means that a majority has it: what only the primary has may be rolled back.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::block_in_place;

use super::Scratch;
use super::mongod::replica_set::ReplicaSet;
use crate::config::Timeseries;
use crate::model::{BucketWrite, Hour, Sample};
use crate::store::mongodb::{BucketStore, MongodbOptions, TimeseriesStore};
use crate::store::scenarios::in_the_end;
use crate::store::{Store, StoreError, Written};

const HOUR: Hour = Hour(493_526);

fn write_at(offset: u32) -> Arc<BucketWrite> {
    let sample = (Sample { value: 0.5, offset, metric: 0 }, true);
    BucketWrite::new("d".into(), HOUR, None, vec!["lux".into()], [sample]).into()
}

async fn write_one(store: &dyn Store, offset: u32) -> Result<Written, StoreError> {
    store.write(&[write_at(offset)]).await.remove(0)
}

async fn write_in_the_end(store: &dyn Store, offset: u32) -> Written {
    in_the_end(async || write_one(store, offset).await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_stored_before_a_majority_has_it() {
    let set = block_in_place(ReplicaSet::start);
    let scratch = Scratch::at(set.uri()).await;
    let options = || MongodbOptions { timeout: Duration::from_secs(1), ..scratch.options() };
    let timeseries = Timeseries::default();
    let buckets = BucketStore::connect(options()).await.unwrap();
    let measurements = TimeseriesStore::connect(options(), timeseries).await.unwrap();
    for store in [&buckets as &dyn Store, &measurements] {
        write_in_the_end(store, 0).await;
        let primary = block_in_place(|| set.primary());
        let others = || (0..3).filter(|&member| member != primary);
        others().for_each(|member| set.freeze(member));
        let alone = write_one(store, 1).await;
        others().for_each(|member| set.thaw(member));
        assert!(
            matches!(alone, Err(StoreError { .. })),
            "{}: the primary alone has it, and it is said to be stored: {alone:?}",
            store.name()
        );
        let Written { stored, duplicate } = write_in_the_end(store, 1).await;
        assert_eq!(stored + duplicate, 1);
        let hours = in_the_end(async || store.contents("d", HOUR..Hour(HOUR.0 + 1)).await).await;
        assert_eq!(hours[0].1.reading_count(), 2, "{}", store.name());
    }
}
