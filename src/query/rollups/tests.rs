//! Rollups against a plain model: every reading by itself, in the order of time.

use proptest::prelude::*;

use super::increase::{LOOK_BACK_MS, grown};
use super::merge::{merge, repeated};
use super::parts::Splitter;
use super::read::{Hours, add_page};
use super::zone::tests::zone;
use super::*;
use crate::model::{Contents, Hour, MS_PER_HOUR, Sample, ValueAt};
use crate::query::Limits;
use crate::query::tests::{limits, over, store_of};
use crate::store::{FirstReadings, HourStats};

/// The instant, the metric (x, y or z) and the value of readings.
type Values = Vec<(i64, u32, i32)>;

const NAMES: [&str; 3] = ["x", "y", "z"];

pub(super) fn by_hour(values: &[(i64, u32, i32)]) -> Vec<(Hour, Contents)> {
    let mut hours: BTreeMap<Hour, Vec<Sample>> = BTreeMap::new();
    for &(ts_ms, metric, value) in values {
        let sample = Sample { value: f64::from(value), offset: Hour::offset_of(ts_ms), metric };
        hours.entry(Hour::of(ts_ms)).or_default().push(sample);
    }
    let metrics: Vec<Metric> = NAMES.map(Into::into).to_vec();
    hours.into_iter().map(|(hour, samples)| (hour, Contents::new(metrics.clone(), samples))).collect()
}

pub(super) fn stored_stats(hours: &[(Hour, Contents)], series: &SeriesFilter) -> Vec<HourStats> {
    let of = |(hour, contents): &(Hour, Contents)| HourStats {
        hour: *hour,
        last_ts_ms: hour.instant_ms(contents.span().expect("not empty").1),
        stats: contents.stats(*hour).into_iter().filter(|(name, _)| series.matches(name)).collect(),
    };
    hours.iter().map(of).collect()
}

/// The first readings of a range, as a store returns them.
fn page_of(
    stored: &[(Hour, Contents)],
    range_ms: &Range<i64>,
    instants: usize,
    series: &SeriesFilter,
) -> FirstReadings {
    let mut left = instants;
    let mut page = FirstReadings { hours: Vec::new(), complete_until_ms: range_ms.end };
    for (hour, contents) in stored {
        let mut until_ms = None;
        let mut last = None;
        let found = contents.filter(|metric, offset| {
            let ts_ms = hour.instant_ms(offset);
            let is_wanted = until_ms.is_none() && range_ms.contains(&ts_ms) && series.matches(metric);
            if is_wanted && last != Some(ts_ms) {
                if left == 0 {
                    until_ms = Some(ts_ms);
                    return false;
                }
                left -= 1;
                last = Some(ts_ms);
            }
            is_wanted
        });
        if !found.is_empty() {
            page.hours.push((*hour, found));
        }
        if let Some(until_ms) = until_ms {
            page.complete_until_ms = until_ms;
            break;
        }
    }
    page
}

/// The rollups of stored and pending readings, as [`Group::rollups_of`] makes them of a device with this many
/// series, from pages with this many instants.
fn rollups_of(
    plan: &Plan,
    stored: &[(Hour, Contents)],
    pending: &[(Hour, Contents)],
    (series, page): (usize, usize),
) -> Rollups {
    let mut folding = Folding::new(&plan.grid);
    for window in plan.windows(series) {
        let of_window = |of: &[(Hour, Contents)]| -> Vec<(Hour, Contents)> {
            of.iter().filter(|(hour, _)| window.contains(hour)).cloned().collect()
        };
        let stored = of_window(stored);
        let hours = Hours::of(plan, stored_stats(&stored, &plan.series), of_window(pending));
        let mut splitter = Splitter::new(&plan.grid, &plan.series);
        for (hour, contents) in hours.only_pending() {
            splitter.add(*hour, contents);
        }
        for run in hours.runs() {
            let mut range_ms = run[0].0.start_ms()..run[run.len() - 1].0.end_ms();
            while !range_ms.is_empty() {
                let found = page_of(&stored, &range_ms, page, &plan.series);
                let until_ms = found.complete_until_ms;
                add_page(&mut splitter, found, range_ms.start, &hours.to_split);
                range_ms.start = until_ms;
            }
        }
        let mut parts = splitter.finish();
        let repeated = repeated(&hours.stored, &hours.pending);
        let repeated = stored.into_iter().filter(|(hour, _)| repeated.contains(hour)).collect();
        parts.extend(merge(hours.stored, repeated, hours.pending, &plan.series).into_iter().map(part_of));
        parts.sort_by_key(|part| part.ts_ms);
        folding.add_parts(parts, plan.counts_increase());
    }
    folding.finish()
}

/// The rollups of the readings by identity.
fn model_of(plan: &Plan, readings: &BTreeMap<(u32, i64), i32>) -> Rollups {
    let mut rollups = Rollups::new();
    let mut before: Option<(u32, ValueAt)> = None;
    let starts = plan.grid.starts();
    let increases = plan.counts_increase();
    for (&(metric, ts_ms), &value) in readings {
        let value = f64::from(value);
        let before = before.replace((metric, ValueAt { ts_ms, value }));
        if !plan.series.matches(&Metric::from(NAMES[metric as usize])) || !plan.grid.range_ms().contains(&ts_ms) {
            continue;
        }
        let start_ms = starts[starts.partition_point(|start| *start <= ts_ms) - 1];
        let before = before.filter(|(of, at)| *of == metric && at.ts_ms >= start_ms - LOOK_BACK_MS);
        let growth = before.map_or(0.0, |(_, at)| if increases { grown(at.value, value) } else { 0.0 });
        let series = rollups.entry(NAMES[metric as usize].into()).or_default();
        let stats = Stats::of(ts_ms, value);
        match series.last_mut().filter(|point: &&mut Point| point.start_ms == start_ms) {
            Some(point) => {
                point.stats.append(&stats);
                point.increase += growth;
            }
            None => series.push(Point { start_ms, stats, increase: growth, is_filled: false }),
        }
    }
    rollups
}

const LIMITS: Limits = Limits {
    max_hours: 10_000,
    max_points: 1_000_000,
    max_values_read: 1_000_000,
    catch_up: std::time::Duration::ZERO,
    timeout: std::time::Duration::ZERO,
    kept: None,
};

/// Some minutes before the clocks of Berlin, New York or Lord Howe change, or at the start of 1970.
fn any_start() -> impl Strategy<Value = i64> {
    prop::sample::select(vec![0, 1_711_846_800_000, 1_729_990_800_000, 1_710_054_000_000, 1_712_415_600_000])
}

/// Readings at minutes that are near each other, or up to nine days away.
///
/// There are few different values, so that counters often restart.
fn any_values() -> impl Strategy<Value = Vec<(i64, u32, i32)>> {
    let minute = prop_oneof![6 => -400..400_i64, 1 => -13_000..13_000_i64];
    prop::collection::vec((minute, 0..3_u32, -3..9_i32), 0..50)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn stored_and_pending_merge_to_the_fold_of_all_identities(
        start_ms in any_start(),
        stored in any_values(),
        pending in any_values(),
        only_x in any::<bool>(),
        increase in any::<bool>(),
        name in prop::sample::select(vec![
            "UTC", "Europe/Berlin", "Asia/Kathmandu", "America/New_York", "Australia/Lord_Howe", "America/St_Johns",
        ]),
        step in prop::sample::select(vec!["5m", "1h", "2h", "6h", "8h", "1d", "1w", "1mo"]),
        offset_minutes in prop_oneof![Just(0), 0..480_i64],
        range in (-600..300_i64, 1..900_i64),
        sizes in (prop::sample::select(vec![1_usize, 700, 5_000, 100_000]), 1..9_usize),
    ) {
        let series = if only_x { SeriesFilter::new(["x"], []).unwrap() } else { SeriesFilter::ALL };
        let at = |values: Values| -> Values {
            values.into_iter().map(|(minute, metric, value)| (start_ms + minute * 60_000, metric, value)).collect()
        };
        let (stored, pending) = (at(stored), at(pending));
        let columns = Columns::NONE.with(if increase { Column::Increase } else { Column::Last });
        let from_ms = start_ms + range.0 * 60_000;
        let step: Step = step.parse().unwrap();
        let step = step.beginning_later(offset_minutes * 60_000 % step.usual_ms()).unwrap();
        let request = RollupsRequest {
            devices: Vec::new(),
            known_series: None,
            from_ms: Some(from_ms),
            to_ms: from_ms + range.1 * 60_000,
            series,
            step,
            zone: zone(name),
            columns,
            fill: Fill::None,
            compare: None,
        };
        let plan = Plan::new(&request, &LIMITS).unwrap();
        let identities = stored.iter().chain(&pending).map(|&(ts_ms, metric, value)| ((metric, ts_ms), value));
        let expected = model_of(&plan, &identities.collect());
        let found = rollups_of(&plan, &by_hour(&stored), &by_hour(&pending), sizes);
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn a_request_to_the_store_has_few_stats_however_many_series_there_are() {
    let plan = |step: &str| {
        let request = RollupsRequest {
            devices: Vec::new(),
            known_series: None,
            from_ms: Some(0),
            to_ms: 30 * 24 * MS_PER_HOUR,
            series: SeriesFilter::ALL,
            step: step.parse().unwrap(),
            zone: Zone::UTC,
            columns: Columns::default(),
            fill: Fill::None,
            compare: None,
        };
        Plan::new(&request, &LIMITS).unwrap()
    };
    let hourly = plan("1h");
    assert_eq!(hourly.groups(&[4; 50]).len(), 7, "few series: eight devices at once");
    assert!(hourly.groups(&[]).is_empty());
    assert_eq!(hourly.groups(&[500, 4, 4, 500, 0]), [0..1, 1..3, 3..4, 4..5]);
    assert_eq!([4, 500].map(|series| hourly.windows(series).len()), [1, 6], "six windows of five days");
    for (step, per_hour) in [("1h", 1), ("15m", 4)] {
        let plan = plan(step);
        for series in [0, 1, 92, 93, 500, 4_096, 40_000, 100_000] {
            let windows = plan.windows(series);
            assert_eq!((windows[0].start, windows[windows.len() - 1].end), (plan.hours.start, plan.hours.end));
            assert!(windows.windows(2).all(|pair| pair[0].end == pair[1].start), "{windows:?}");
            for window in windows {
                let hours = (window.end.0 - window.start.0) as usize;
                let is_small = hours * per_hour * series <= STATS_PER_REQUEST;
                assert!(hours == 1 || is_small, "{series} series: {window:?}");
            }
        }
    }
}

#[tokio::test]
async fn series_are_looked_up_unless_there_are_few_stats_in_any_case() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_of(folder.path(), &["d"], 1, &["m{a=1}".into(), "m{a=2}".into()]).await;
    let queries = over(store, folder.path(), limits());
    let unknown = |number: usize| (0..number).map(|nth| Arc::<str>::from(format!("x{nth}")));
    for (others, hours, metric, expected) in [
        (0, 48, None, 0),
        (0, 49, None, 2),
        (48, 1, None, 2),
        (150, 720, Some("m"), 2),
        (150, 720, Some("m{a=1}"), 0),
        (150, 20_000, Some("m{a=1}"), 0),
        (150, 90_000, Some("m{a=1}"), 1),
    ] {
        let request = RollupsRequest {
            devices: unknown(others).chain(["d".into()]).collect(),
            known_series: None,
            from_ms: Some(0),
            to_ms: hours * MS_PER_HOUR,
            series: SeriesFilter::new(metric, []).unwrap(),
            step: Step::HOUR,
            zone: Zone::UTC,
            columns: Columns::default(),
            fill: Fill::None,
            compare: None,
        };
        let plan = Plan::new(&request, queries.limits()).unwrap();
        let work = queries.work(DeviceScope::all(), &request, &plan).await.unwrap();
        assert_eq!(work.series.last(), Some(&expected), "{others} other devices, {hours} hours of {metric:?}");
        assert_eq!(work.series.iter().sum::<usize>(), expected);
    }
}

/// The range begins with April in Berlin, some hours before the first of April in UTC.
#[test]
fn the_first_day_is_a_few_days_before_the_steps_of_a_comparison_at_most() {
    let from_ms = 1_680_300_000_000;
    for (step, name, compare) in [
        ("1h", "UTC", "-1d"),
        ("1h", "Pacific/Kiritimati", "-7d"),
        ("1d", "America/New_York", "-364d"),
        ("1mo", "Europe/Berlin", "-1mo"),
        ("1mo", "Pacific/Kiritimati", "-1mo"),
        ("1mo", "America/New_York", "-3mo"),
        ("1y", "Europe/Berlin", "-2y"),
    ] {
        for column in [Column::Last, Column::Increase] {
            let earlier: Earlier = compare.parse().unwrap();
            let request = RollupsRequest {
                devices: Vec::new(),
                known_series: None,
                from_ms: Some(from_ms),
                to_ms: from_ms + MS_PER_HOUR,
                series: SeriesFilter::ALL,
                step: step.parse().unwrap(),
                zone: zone(name),
                columns: Columns::NONE.with(column),
                fill: Fill::None,
                compare: Some(earlier),
            };
            let plan = Plan::new(&request, &LIMITS).unwrap();
            assert_eq!(plan.first_day(None), Day::of(plan.hours.start));
            let before = Plan::earlier(&request, &Alignment::new(&plan.grid, &request.zone, earlier)).unwrap();
            let early = Day::of(before.hours.start).0 - plan.first_day(request.compare).0;
            assert!((0..9).contains(&early), "{early} days early: {step} in {name} and {compare}");
        }
    }
}

#[test]
fn a_query_reads_only_the_hours_that_steps_cut() {
    let plan = |name: &str, step: &str| {
        let request = RollupsRequest {
            devices: Vec::new(),
            known_series: None,
            from_ms: Some(0),
            to_ms: 3 * 24 * MS_PER_HOUR,
            series: SeriesFilter::ALL,
            step: step.parse().unwrap(),
            zone: zone(name),
            columns: Columns::default(),
            fill: Fill::None,
            compare: None,
        };
        Plan::new(&request, &LIMITS).unwrap()
    };
    let hours: Values = (-48..120).map(|hour| (hour * MS_PER_HOUR + 1, 0, 1)).collect();
    let read = |name: &str, step: &str| {
        let plan = plan(name, step);
        let stored = by_hour(&hours).into_iter().filter(|(hour, _)| plan.hours.contains(hour)).collect::<Vec<_>>();
        let hours = Hours::of(&plan, stored_stats(&stored, &plan.series), Vec::new());
        hours.runs().flatten().map(|(hour, _)| hour.0).collect::<Vec<_>>()
    };
    assert!(read("Europe/Berlin", "1d").is_empty());
    assert_eq!(read("Asia/Kolkata", "1d"), [-6, 18, 42, 66, 90], "18:30 in UTC");
    assert_eq!(read("UTC", "30m").len(), 72);
    assert!(!plan("Europe/Berlin", "1h").reads);
}

#[test]
fn a_value_that_is_stored_and_pending_counts_once_as_one_to_read() {
    let request = RollupsRequest {
        devices: Vec::new(),
        known_series: None,
        from_ms: Some(0),
        to_ms: 3 * MS_PER_HOUR,
        series: SeriesFilter::new(["x"], []).unwrap(),
        step: "30m".parse().unwrap(),
        zone: Zone::UTC,
        columns: Columns::default(),
        fill: Fill::None,
        compare: None,
    };
    let plan = Plan::new(&request, &LIMITS).unwrap();
    let minutes = |range: Range<i64>, metric| range.map(move |minute| (minute * 60_000, metric, 1)).collect::<Values>();
    let stored = minutes(0..10, 0);
    for (pending, expected) in [
        (vec![], 10),
        (stored.clone(), 10),
        (minutes(0..15, 0), 15),
        (minutes(10..15, 0), 15),
        (minutes(10..15, 1), 10),
        (minutes(60..64, 0), 14),
        (minutes(5..7, 0), 10),
    ] {
        let stats = stored_stats(&by_hour(&stored), &plan.series);
        assert_eq!(Hours::of(&plan, stats, by_hour(&pending)).values, expected, "{pending:?}");
    }
}

#[test]
fn the_range_that_would_fit_is_a_part_of_the_steps() {
    let request = RollupsRequest {
        devices: Vec::new(),
        known_series: None,
        from_ms: Some(0),
        to_ms: 100 * MS_PER_HOUR,
        series: SeriesFilter::ALL,
        step: Step::HOUR,
        zone: Zone::UTC,
        columns: Columns::NONE.with(Column::Increase),
        fill: Fill::None,
        compare: None,
    };
    let plan = Plan::new(&request, &LIMITS).unwrap();
    assert!(plan.hours.start < Hour(0), "hours before the steps are read too");
    let refused = ReadBudget::new(40).take(100, &plan, plan.hours.end).unwrap_err().to_string();
    assert!(refused.contains("ask for about 40 hours at once"), "{refused}");
}

#[test]
fn limits_are_checked_before_steps_are_made_and_say_what_fits() {
    let refused = |step: &str, days: i64| {
        let request = RollupsRequest {
            devices: Vec::new(),
            known_series: None,
            from_ms: Some(0),
            to_ms: days * 24 * MS_PER_HOUR,
            series: SeriesFilter::ALL,
            step: step.parse().unwrap(),
            zone: Zone::UTC,
            columns: Columns::default(),
            fill: Fill::Null,
            compare: None,
        };
        let limits = Limits { max_hours: 876_600, max_points: 1_000_000, ..LIMITS };
        Plan::new(&request, &limits)
            .map(|plan| plan.points_of([&model_of(&plan, &[((0, 1), 1), ((1, 1), 1)].into())], 100))
    };
    let steps = refused("1m", 36_000).expect_err("too many").to_string();
    assert!(steps.contains("steps of 1m") && steps.contains("ask for 16665 hours at most"), "{steps}");
    let points = refused("1h", 30).expect("a plan").expect_err("too many").to_string();
    assert!(points.contains("1440 points") && points.contains("a longer step, such as 1d"), "{points}");
}
