//! Scenarios of two instances that share a database.

use std::sync::Arc;

use super::*;

const WRITES: u32 = 20;
const READINGS: u32 = 10;

/// The nth write of ten readings. Each write overlaps the previous one by half.
fn overlapping(device: &str, nth: u32, metric: &str) -> Arc<BucketWrite> {
    let values: Vec<_> =
        (0..READINGS).map(|at| nth * READINGS / 2 + at).map(|at| (at, (metric, f64::from(at)))).collect();
    let readings: Vec<Sent<'_>> = values.iter().map(|(at, value)| (*at, std::slice::from_ref(value))).collect();
    write_of(device, HOUR, &readings)
}

fn model(writes: &[Arc<BucketWrite>]) -> Model {
    writes.iter().flat_map(|write| samples_of(&write.contents)).collect()
}

async fn write_in_turn(store: &dyn Store, writes: &[Arc<BucketWrite>]) -> u32 {
    let mut stored = 0;
    for sent in writes {
        stored += write(store, sent).await.stored;
    }
    stored
}

pub(in crate::store) async fn two_writers_of_the_same_readings_store_each_once(store: &dyn Store, other: &dyn Store) {
    let (stored, model) = write_the_same(store, other).await;
    assert!(stored as usize <= model.len(), "{stored} of {} readings", model.len());
}

/// Each of the two writers may store a reading, but no query returns it twice.
pub(in crate::store) async fn two_writers_of_the_same_readings_show_each_once(store: &dyn Store, other: &dyn Store) {
    let (stored, model) = write_the_same(store, other).await;
    assert!(stored as usize >= model.len(), "{stored} of {} readings", model.len());
}

/// Returns how many readings the two writers report as stored, and the values.
async fn write_the_same(store: &dyn Store, other: &dyn Store) -> (u32, Model) {
    let device = "concurrent-same";
    let writes: Vec<_> = (0..WRITES).map(|nth| overlapping(device, nth, "a")).collect();
    let backwards: Vec<_> = writes.iter().rev().cloned().collect();
    let (one, two) = tokio::join!(write_in_turn(store, &writes), write_in_turn(other, &backwards));
    let model = model(&writes);
    expect(store, device, HOUR, &model).await;
    expect(other, device, HOUR, &model).await;
    (one + two, model)
}

pub(in crate::store) async fn two_writers_of_different_readings_lose_none(store: &dyn Store, other: &dyn Store) {
    let device = "concurrent-different";
    let writes: Vec<_> = (0..WRITES).map(|nth| overlapping(device, nth, "a")).collect();
    let (even, odd): (Vec<_>, Vec<_>) = writes.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).unzip();
    tokio::join!(write_in_turn(store, &even), write_in_turn(other, &odd));
    expect(store, device, HOUR, &model(&writes)).await;
}

pub(in crate::store) async fn two_writers_of_different_metrics_lose_none(store: &dyn Store, other: &dyn Store) {
    let device = "concurrent-metrics";
    let a: Vec<_> = (0..WRITES).map(|nth| overlapping(device, nth, "a")).collect();
    let b: Vec<_> = (0..WRITES).map(|nth| overlapping(device, nth, "b")).collect();
    let (one, two) = tokio::join!(write_in_turn(store, &a), write_in_turn(other, &b));
    expect(store, device, HOUR, &model(&[a, b].concat())).await;
    assert!(one > 0 && two > 0);
}
