//! A device index that was lost, on every deployment and layout.

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::doc;

use super::Scratch;
use crate::model::{BucketWrite, Deletion, Hour, Sample};
use crate::store::scenarios::Expiry;
use crate::store::{Cause, DeviceSet, DeviceSummary, Store};

const HOUR: Hour = Hour(493_526);

fn write_of(device: &str, hour: i32, metric: &str, metadata: Option<&str>) -> Arc<BucketWrite> {
    let samples = (0..20).map(|nth| (Sample { value: f64::from(nth), offset: nth as u32 * 7, metric: 0 }, true));
    let (hour, metadata) = (Hour(HOUR.0 + hour), metadata.map(Into::into));
    BucketWrite::new(device.into(), hour, metadata, vec![metric.into()], samples).into()
}

async fn write(store: &dyn Store, device: &str, hours: &[i32], metric: &str, metadata: Option<&str>) {
    for hour in hours {
        let write = write_of(device, *hour, metric, metadata);
        assert_eq!(store.write(&[write]).await.remove(0).unwrap().stored, 20);
    }
}

/// The entries of all devices, without the hour of their metadata, which a time series does not have.
async fn listed(store: &dyn Store) -> Vec<(DeviceSummary, Option<String>)> {
    let devices = store.devices("", None, 100).await.unwrap().devices;
    let text = |of: &DeviceSummary| of.metadata.as_ref().map(|metadata| metadata.text.to_string());
    devices.into_iter().map(|of| (DeviceSummary { metadata: None, ..of.clone() }, text(&of))).collect()
}

pub(in crate::store::mongodb) async fn a_lost_index_is_rebuilt(
    scratch: &Scratch,
    store: &impl Store,
    other: &impl Store,
) {
    let ids = ["a", "a-b", "a/2026-04-20T14", "gone", "z"];
    write(store, "a", &[0, 30, 9_000], "lux", Some(r#"{"floor":1}"#)).await;
    write(store, "a", &[60], "temp.in", None).await;
    write(store, "a-b", &[-3], "lux{k=v}", None).await;
    write(other, "a/2026-04-20T14", &[0], "$lux", Some(r#"{"$a.b":1}"#)).await;
    write(store, "gone", &[-30, -28], "lux", None).await;
    let hours = [-30, -28].map(|hour| ("gone".into(), Hour(HOUR.0 + hour)));
    let rolled_up = store.rollups().expect("rollups").roll_up(&hours).await;
    assert!(rolled_up.iter().all(Result::is_ok));
    scratch.expire_readings(store, "gone").await;
    write(other, "z", &[1, 2], "lux", None).await;
    let before = listed(store).await;
    assert_eq!(before.iter().map(|(of, _)| &*of.device).collect::<Vec<_>>(), ids);

    scratch.run(doc! { "drop": "devices" }).await;
    let found = async |store: &dyn Store| {
        let (list, z) = (store.entries("", None, 10).await.unwrap(), store.entries_of(&["z".into()]).await.unwrap());
        assert!(list.is_incomplete && z.is_incomplete);
        (list.devices.len(), z.devices.len())
    };
    for store in [store as &dyn Store, other] {
        assert_eq!(found(store).await, (0, 0), "without a ping, which notices the loss");
        assert_eq!(store.last_hour("z").await.unwrap(), Some(Hour(HOUR.0 + 2)), "its readings are there");
        let error = store.count_silent(0, DeviceSet::default()).await.unwrap_err();
        assert_eq!(error.cause, Cause::Schema);
        assert!(error.detail.contains("tidegauge check --rebuild-device-index"), "{error}");
    }
    // The bucket is stored, but its entry may have been noted in the collection that is gone.
    let outcome = store.write(&[write_of("z", 3, "lux", None)]).await.remove(0);
    assert_eq!(outcome.unwrap_err().cause, Cause::Schema);
    assert_eq!(store.write(&[write_of("z", 3, "lux", None)]).await.remove(0).unwrap().duplicate, 20);
    for store in [store as &dyn Store, other] {
        assert_eq!(found(store).await, (1, 1), "z was written again");
        assert!(!store.rollups().expect("rollups").is_ready().await.unwrap());
    }

    assert_eq!(other.rebuild_device_index().await.unwrap(), ids.len() as u64);
    for store in [store as &dyn Store, other] {
        assert!(!store.entries("", None, 1).await.unwrap().is_incomplete);
        assert!(store.rollups().expect("rollups").is_ready().await.unwrap());
        store.count_silent(0, DeviceSet::default()).await.unwrap();
    }
    let after = listed(store).await;
    assert_eq!(after[..4], before[..4]);
    assert_eq!((after[4].0.first_ts_ms, after.len()), (before[4].0.first_ts_ms, 5));
}

/// One instance finds an empty database and marks its index, while another one has noted its device in the
/// index that is gone.
pub(in crate::store::mongodb) async fn no_device_is_missing_from_a_marked_index(
    scratch: &Scratch,
    store: &impl Store,
    other: &impl Store,
) {
    write(store, "a", &[0], "lux", None).await;
    scratch.run(doc! { "dropDatabase": 1 }).await;
    other.ping().await.unwrap(); // which notices it
    assert!(other.rollups().expect("rollups").is_ready().await.unwrap(), "nothing is stored");
    let outcome = store.write(&[write_of("a", 1, "lux", None)]).await.remove(0);
    assert_eq!(outcome.unwrap_err().cause, Cause::Schema, "it is not in the new index");
    write_again(store, write_of("a", 1, "lux", None)).await;
    for store in [store as &dyn Store, other] {
        let list = store.entries("", None, 10).await.unwrap();
        assert_eq!((list.devices.len(), list.is_incomplete), (1, false));
    }
}

/// Repeats a write until it succeeds.
async fn write_again(store: &dyn Store, write: Arc<BucketWrite>) {
    while let Err(error) = store.write(&[Arc::clone(&write)]).await.remove(0) {
        assert!(!error.is_permanent(), "{error}");
    }
}

/// Two instances write new devices and delete others while the index is dropped and rebuilt.
pub(in crate::store::mongodb) async fn rebuilds_beside_writers_lose_nothing(
    scratch: &Scratch,
    store: &impl Store,
    other: &impl Store,
) {
    let id = |of: &str, nth: usize| format!("{of}{nth:02}");
    for nth in 0..20 {
        write(store, &id("old", nth), &[0], "lux", None).await;
        write(store, &id("gone", nth), &[0], "lux", None).await;
    }
    let writing = async |store: &dyn Store, of: &str| {
        for nth in 0..20 {
            write_again(store, write_of(&id(of, nth), 0, "lux", Some(r#"{"floor":1}"#))).await;
            write_again(store, write_of(&id("old", nth), 1, of, None)).await;
        }
    };
    let deleting = async {
        for nth in 0..20 {
            let deletion = Deletion::of_device(id("gone", nth).into());
            store.deletions().delete(&deletion, &BTreeSet::new()).await.unwrap();
        }
    };
    let rebuilding = async {
        for _ in 0..3 {
            scratch.run(doc! { "drop": "devices" }).await;
            let (one, another) = tokio::join!(store.rebuild_device_index(), other.rebuild_device_index());
            // A rebuild fails if an instance creates the collection anew meanwhile.
            for error in [one, another].into_iter().filter_map(Result::err) {
                assert!(!error.cause.is_permanent(), "{error}");
            }
        }
    };
    tokio::join!(writing(store, "new-a"), writing(other, "new-b"), deleting, rebuilding);
    other.rebuild_device_index().await.unwrap();
    let list = store.entries("", None, 1_000).await.unwrap();
    assert!(!list.is_incomplete);
    let expected = ["new-a", "new-b", "old"].iter().flat_map(|of| (0..20).map(|nth| id(of, nth)));
    let found: Vec<_> = list.devices.iter().map(|entry| entry.device.to_string()).collect();
    assert_eq!(found, expected.collect::<Vec<_>>());
    for entry in &list.devices {
        let series: Vec<_> = entry.series.iter().map(|series| &*series.metric).collect();
        let is_old = entry.device.starts_with("old");
        let expected: &[&str] = if is_old { &["lux", "new-a", "new-b"] } else { &["lux"] };
        assert_eq!((series.as_slice(), entry.metadata.is_some()), (expected, !is_old), "{}", entry.device);
    }
}
