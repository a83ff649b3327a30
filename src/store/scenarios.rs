//! Scenarios: tests of the promises of every store, which each store runs against itself.
//!
//! A store's tests call [`store_scenarios!`] with an async function that returns `(guard, store, other)`: a
//! value that lives as long as the stores, and two handles that share one database, like two instances. Each
//! scenario becomes a test. Scenarios use different devices, so all of them may share one database without
//! these devices.
//!
//! A store that keeps the first value of an identity passes `first_value_stays`, and runs other scenarios
//! where this matters. A store that can delete runs `@deleting`, or
//! `@deleting_devices` if it deletes whole devices only. A store that keeps the writes of a bucket
//! apart, and adds their stats, passes `in_parts`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::series::SERIES_MAX_BYTES;
use crate::model::{BucketWrite, Contents, Hour, HourOffset, Keep, Metric, Sample, SeriesFilter, Stats};
use crate::store::{HourStats, StatsNeeds, Store, Written};

pub(super) mod concurrent;
pub(super) mod deleting;
pub(super) mod devices;
pub(super) mod expiring;
pub(super) mod operator_metadata;
pub(super) mod reading;
pub(super) mod rolling;
pub(super) mod writing;

/// The seeds of a random scenario: from `TEST_SEED` on if that is set, else new ones in each run. Each is
/// printed before it is used, so that the output of a failing test ends with the seed that repeats it.
pub(super) fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let first = std::env::var("TEST_SEED").map_or_else(
        |_| rand::random::<u32>().into(),
        |text| text.parse().unwrap_or_else(|_| panic!("TEST_SEED={text} is not a whole number")),
    );
    (first..first + count).inspect(|seed| println!("TEST_SEED={seed}"))
}

/// Repeats a failing attempt for a minute.
pub(super) async fn in_the_end<T, E: std::fmt::Display>(mut attempt: impl AsyncFnMut() -> Result<T, E>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

/// Makes a test of each scenario. See the module.
macro_rules! store_scenarios {
    ($open:path) => {
        $crate::store::scenarios::store_scenarios!(@one $open, writing:
            a_sum_that_leaves_the_range_of_a_double_comes_back,
        );
        $crate::store::scenarios::store_scenarios!($open, in_parts);
    };
    ($open:path, in_parts) => {
        $crate::store::scenarios::store_scenarios!(@all $open);
        $crate::store::scenarios::store_scenarios!(@one $open, writing:
            of_one_identity_across_writes_the_last_value_stays,
            random_writes_leave_what_a_map_would_hold,
        );
        $crate::store::scenarios::store_scenarios!(@two $open, concurrent:
            two_writers_of_the_same_readings_store_each_once,
        );
    };
    ($open:path, first_value_stays) => {
        $crate::store::scenarios::store_scenarios!(@all $open);
        $crate::store::scenarios::store_scenarios!(@one $open, writing:
            of_one_identity_across_writes_the_first_value_stays,
            random_writes_leave_the_first_value_of_each_identity,
        );
        $crate::store::scenarios::store_scenarios!(@two $open, concurrent:
            two_writers_of_the_same_readings_show_each_once,
        );
    };
    (@all $open:path) => {
        $crate::store::scenarios::store_scenarios!(@one $open, writing:
            written_once_is_stored_once,
            a_write_that_is_resent_whole_changes_nothing,
            a_write_that_is_resent_in_part_adds_only_what_is_new,
            late_readings_are_stored_before_and_between,
            readings_out_of_order_in_one_write_are_sorted,
            of_one_identity_in_one_write_the_last_value_stays,
            a_write_that_keeps_the_first_value_changes_none,
            a_second_metric_at_the_same_instant_counts_as_stored,
            readings_of_different_metrics_share_a_bucket,
            a_reading_that_is_partly_new_counts_as_stored,
            hours_and_devices_do_not_touch_each_other,
            the_edges_of_an_hour_and_hours_before_1970_are_stored,
            hours_soon_after_1970_are_found_from_any_start,
            a_device_with_readings_of_1970_only_is_summed_up,
            values_and_names_come_back_exactly,
            series_with_labels_come_back_exactly,
            many_small_writes_of_one_bucket_add_up,
            one_call_writes_many_buckets_and_answers_in_their_order,
            an_empty_call_answers_nothing,
        );
        $crate::store::scenarios::store_scenarios!(@one $open, reading:
            ranges_include_their_start_and_exclude_their_end,
            ranges_that_end_in_any_year_have_all_readings,
            pages_of_any_size_give_each_reading_once,
            the_latest_of_an_hour_is_the_last_value_of_each_metric,
            stats_of_several_devices_come_in_the_order_asked_for,
            stats_are_of_the_metrics_asked_for,
            series_are_selected_by_name_text_and_label,
            an_hour_without_the_metrics_asked_for_is_still_there,
            an_unknown_device_has_nothing,
            the_last_hour_is_the_newest_not_the_last_written,
            the_store_answers_a_ping,
            devices_are_found_by_literal_prefix,
            devices_are_paged_in_bytewise_order,
            devices_whose_ids_look_like_documents_of_others_stay_apart,
        );
        $crate::store::scenarios::store_scenarios!(@two $open, reading:
            stats_of_recent_hours_are_those_of_all,
        );
        $crate::store::scenarios::store_scenarios!(@two $open, concurrent:
            two_writers_of_different_readings_lose_none,
            two_writers_of_different_metrics_lose_none,
        );
        $crate::store::scenarios::store_scenarios!(@one $open, operator_metadata:
            what_operators_set_is_merged_and_listed_by_device,
        );
        $crate::store::scenarios::store_scenarios!(@two $open, operator_metadata:
            changes_of_two_instances_are_all_there,
        );
    };
    (@indexed $open:path) => {
        $crate::store::scenarios::store_scenarios!(@one $open, devices:
            a_device_is_summed_up_by_all_its_hours,
            metadata_stays_until_it_is_replaced,
            writes_in_any_order_leave_the_metadata_of_the_newest_hour,
            a_series_keeps_its_measurement,
            a_device_has_a_bounded_number_of_series,
            silent_devices_are_counted_by_their_last_reading,
            a_list_of_devices_with_many_series_is_cut,
            stats_of_readings_that_expired_elsewhere_are_added_once,
            stats_that_expired_elsewhere_join_those_of_stored_readings,
        );
        $crate::store::scenarios::store_scenarios!(@guarded $open, devices:
            devices_whose_readings_have_expired_are_listed,
        );
        $crate::store::scenarios::store_scenarios!(@guarded $open, expiring:
            stats_of_expired_readings_stay_until_later_ones_may_include_them,
        );
        $crate::store::scenarios::store_scenarios!(@two $open, devices:
            two_writers_of_one_device_leave_one_entry,
        );
    };
    (@deleting_devices $open:path) => {
        $crate::store::scenarios::store_scenarios!(@one $open, deleting:
            a_device_is_deleted_with_all_that_belongs_to_it,
        );
        $crate::store::scenarios::store_scenarios!(@one $open, operator_metadata:
            what_operators_set_outlives_the_readings,
        );
    };
    (@deleting $open:path) => {
        $crate::store::scenarios::store_scenarios!(@deleting_devices $open);
        $crate::store::scenarios::store_scenarios!(@one $open, deleting:
            random_writes_and_deletions_leave_what_a_map_would_hold,
            readings_can_be_written_again_after_they_were_deleted,
            after_deletions_the_index_covers_what_is_left,
            a_series_that_is_deleted_leaves_the_device_index,
        );
        $crate::store::scenarios::store_scenarios!(@two $open, deleting:
            two_instances_write_and_delete_in_turn,
            the_index_covers_what_two_instances_leave,
        );
        $crate::store::scenarios::store_scenarios!(@guarded $open, deleting:
            of_expired_readings_a_deletion_removes_the_stats_of_whole_hours,
        );
    };
    (@one $open:path, $room:ident: $($scenario:ident,)*) => { $(
        #[tokio::test]
        async fn $scenario() {
            let (_guard, store, _other) = $open().await;
            $crate::store::scenarios::$room::$scenario(&store).await;
        }
    )* };
    (@guarded $open:path, $room:ident: $($scenario:ident,)*) => { $(
        #[tokio::test]
        async fn $scenario() {
            let (guard, store, _other) = $open().await;
            $crate::store::scenarios::$room::$scenario(&guard, &store).await;
        }
    )* };
    (@two $open:path, $room:ident: $($scenario:ident,)*) => { $(
        #[tokio::test]
        async fn $scenario() {
            let (_guard, store, other) = $open().await;
            $crate::store::scenarios::$room::$scenario(&store, &other).await;
        }
    )* };
}
pub(super) use store_scenarios;

/// Expires readings as the database does.
pub(super) trait Expiry {
    /// Deletes all readings of a device. Its stats stay.
    async fn expire_readings(&self, store: &dyn Store, device: &str);
}

/// 2026-04-20T14:00:00Z.
const HOUR: Hour = Hour(493_526);

/// A reading as a device sends it: the offset into the hour, and the values by metric.
type Sent<'a> = (HourOffset, &'a [(&'a str, f64)]);

/// The write of readings, accepted in this order.
fn write_of(device: &str, hour: Hour, readings: &[Sent<'_>]) -> Arc<BucketWrite> {
    let mut metrics: Vec<Metric> = Vec::new();
    let mut arrived = Vec::new();
    for &(offset, values) in readings {
        for (nth, &(name, value)) in values.iter().enumerate() {
            let at = metrics.iter().position(|metric| &**metric == name).unwrap_or_else(|| {
                metrics.push(name.into());
                metrics.len() - 1
            });
            arrived.push((Sample { value, offset, metric: u32::try_from(at).unwrap() }, nth == 0));
        }
    }
    BucketWrite::new(device.into(), hour, None, metrics, arrived).into()
}

fn with_metadata(mut write: Arc<BucketWrite>, metadata: &str) -> Arc<BucketWrite> {
    Arc::make_mut(&mut write).metadata = Some(metadata.into());
    write
}

fn written(stored: u32, duplicate: u32) -> Written {
    Written { stored, duplicate }
}

/// Writes one bucket, and retries after transient errors.
async fn write(store: &dyn Store, write: &Arc<BucketWrite>) -> Written {
    for _ in 0..100 {
        let outcomes = store.write(std::slice::from_ref(write)).await;
        assert_eq!(outcomes.len(), 1);
        match &outcomes[0] {
            Ok(written) => {
                assert_eq!(
                    written.stored + written.duplicate,
                    write.accepted,
                    "all accepted readings are accounted for"
                );
                return *written;
            }
            Err(error) if error.is_permanent() => panic!("{error}"),
            Err(_) => tokio::task::yield_now().await,
        }
    }
    panic!("the store did not accept the write");
}

/// The expected values of a bucket, by offset and metric.
type Model = BTreeMap<(HourOffset, String), f64>;

fn model_of(readings: &[Sent<'_>]) -> Model {
    let mut model = Model::new();
    for (offset, values) in readings {
        model.extend(values.iter().map(|&(name, value)| ((*offset, name.to_owned()), value)));
    }
    model
}

/// Selects these metrics.
fn series_of(metrics: &[&str]) -> SeriesFilter {
    SeriesFilter::new(metrics.iter().copied(), []).unwrap()
}

fn only(hour: Hour) -> Range<Hour> {
    hour..Hour(hour.0 + 1)
}

async fn hour_stats(store: &dyn Store, device: &str, hours: Range<Hour>, series: &SeriesFilter) -> Vec<HourStats> {
    let mut found = store.hour_stats(&[device.into()], hours, series, StatsNeeds::All).await.unwrap();
    assert_eq!(found.len(), 1, "the stats of one device");
    found.remove(0)
}

fn samples_of(contents: &Contents) -> Model {
    let named = |sample: &Sample| ((sample.offset, contents.metric_of(sample).to_string()), sample.value);
    contents.samples().iter().map(named).collect()
}

/// Checks that the bucket has exactly the values of `model`, and that its stats are their fold.
async fn expect(store: &dyn Store, device: &str, hour: Hour, model: &Model) {
    let contents = store.contents(device, only(hour)).await.unwrap();
    let [(found_hour, contents)] = &contents[..] else { panic!("{device}: {} hours", contents.len()) };
    assert_eq!(*found_hour, hour);
    assert_eq!(&samples_of(contents), model, "{device}: contents");
    assert_eq!(contents.samples().len(), model.len(), "{device}: an identity twice");

    let stats = hour_stats(store, device, only(hour), &SeriesFilter::ALL).await;
    let [stats] = &stats[..] else { panic!("{device}: stats of {} hours", stats.len()) };
    let (last, _) = model.keys().next_back().unwrap();
    assert_eq!((stats.hour, stats.last_ts_ms), (hour, hour.instant_ms(*last)), "{device}");
    assert_eq!(by_name(&stats.stats), fold(hour, model), "{device}: stats");
}

fn fold(hour: Hour, model: &Model) -> BTreeMap<String, Stats> {
    let mut stats: BTreeMap<String, Stats> = BTreeMap::new();
    for ((offset, metric), value) in model {
        let only = Stats::of(hour.instant_ms(*offset), *value);
        stats.entry(metric.clone()).and_modify(|stats| stats.append(&only)).or_insert(only);
    }
    stats
}

fn by_name(stats: &[(Metric, Stats)]) -> BTreeMap<String, Stats> {
    let named: BTreeMap<_, _> = stats.iter().map(|(metric, stats)| (metric.to_string(), *stats)).collect();
    assert_eq!(named.len(), stats.len(), "a metric twice");
    named
}
