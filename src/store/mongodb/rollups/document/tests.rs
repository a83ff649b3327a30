//! Documents with hours in any order, left out, emptied or damaged.

use bson::{RawDocumentBuf, doc};

use super::*;
use crate::model::Stats;

/// The stored stats of one value, 2.0, at an instant.
fn stats(metric: &str, ts_ms: i64) -> bson::Document {
    let at = doc! { "ts": bson::DateTime::from_millis(ts_ms), "value": 2.0 };
    doc! { metric: { "count": 1_i64, "min": 2.0, "max": 2.0, "sum": 2.0, "first": at.clone(), "last": at } }
}

#[test]
fn every_hour_has_its_key_before_and_after_1970() {
    assert_eq!((key_of(Hour(0)), key_of(Hour(-1)), key_of(Hour(47))), ("00", "23", "23"));
    assert_eq!((day_of(Hour(23)), day_of(Hour(24)), day_of(Hour(-1))), (0, 1, -1));
}

#[test]
fn hours_of_a_document_are_read_within_the_range() {
    let entry = |ms| {
        let ts = bson::DateTime::from_millis(ms);
        doc! { "stats": stats("lux", ms), "lastTs": ts, "firstTs": ts, "rev": 3_i64 }
    };
    let day = bson::DateTime::from_millis(Hour(24).start_ms());
    let hours = doc! { "13": entry(13), "02": entry(2), "23": entry(23) };
    let document = doc! { "deviceId": "d", "day": day, "schemaVersion": 1, "hours": hours };
    let document = RawDocumentBuf::try_from(&document).unwrap();
    let mut found = Vec::new();
    let mut names = MetricNames::new(&SeriesFilter::ALL);
    add_hours(&document, &(Hour(0)..Hour(47)), &mut names, StatsNeeds::All, |_| Ok(&mut found)).unwrap();
    let at = |hour, ms| HourStats { hour, last_ts_ms: ms, stats: vec![("lux".into(), Stats::of(ms, 2.0))] };
    assert_eq!(found, [at(Hour(37), 13), at(Hour(26), 2)]);
    let mut revs = BTreeMap::new();
    add_revs(&document, 1, &mut revs);
    assert_eq!(revs, [26, 37, 47].map(|hour| (Hour(hour), 3)).into());
}

#[test]
fn a_day_has_its_first_and_last_instant() {
    let at = |hour, offset| bson::DateTime::from_millis(Hour(hour).instant_ms(offset));
    let first = doc! { "rev": 1_i64, "firstTs": at(26, 5), "lastTs": at(26, 9), "stats": stats("a", 0) };
    let last = doc! { "rev": 1_i64, "firstTs": at(37, 1), "lastTs": at(37, 3), "stats": stats("b", 0) };
    let day = doc! { "deviceId": "d", "day": at(24, 0), "schemaVersion": 1, "hours": { "13": last, "02": first } };
    let span = span_of(&RawDocumentBuf::try_from(&day).unwrap()).unwrap();
    assert_eq!(span, Some((Hour(26).instant_ms(5), Hour(37).instant_ms(3))));
}

#[test]
fn an_hour_that_was_left_out_has_a_rev_and_no_stats() {
    let ts = bson::DateTime::from_millis(Hour(13).instant_ms(5));
    let hour = doc! { "rev": 3_i64, "firstTs": ts, "lastTs": ts, "stats": stats("lux", 5) };
    let day = doc! { "deviceId": "d", "day": bson::DateTime::from_millis(0), "schemaVersion": 1,
    "hours": { "13": hour, "14": { "rev": 7_i64, "tooLarge": true } } };
    let day = RawDocumentBuf::try_from(&day).unwrap();
    let (mut metrics, mut found) = (MetricNames::new(&SeriesFilter::ALL), Vec::new());
    add_hours(&day, &(Hour(0)..Hour(24)), &mut metrics, StatsNeeds::All, |_| Ok(&mut found)).unwrap();
    assert_eq!(found.iter().map(|stats| stats.hour).collect::<Vec<_>>(), [Hour(13)]);
    let mut revs = BTreeMap::new();
    add_revs(&day, 0, &mut revs);
    assert_eq!(revs, [(Hour(13), 3), (Hour(14), 7)].into());
    assert_eq!(span_of(&day).unwrap().unwrap().1, Hour(13).instant_ms(5));
}

#[test]
fn an_hour_that_was_emptied_has_a_rev_and_no_stats() {
    let stats = HourStats { hour: Hour(14), last_ts_ms: Hour(14).start_ms(), stats: Vec::new() };
    let first_ts_ms = Hour(14).start_ms();
    let emptied = HourRollup { device: "d".into(), rev: 9, first_ts_ms, stats, may_lack_deleted: false };
    let day = Encoder::build(|top| insert(top, &[&emptied], BucketLayout::Readable));
    let (mut metrics, mut found) = (MetricNames::new(&SeriesFilter::ALL), Vec::new());
    add_hours(&day, &(Hour(0)..Hour(24)), &mut metrics, StatsNeeds::All, |_| Ok(&mut found)).unwrap();
    assert_eq!((found, span_of(&day).unwrap()), (Vec::new(), None));
    let mut revs = BTreeMap::new();
    add_revs(&day, 0, &mut revs);
    assert_eq!(revs, [(Hour(14), 9)].into());
    assert_eq!(rollups_of(&day).unwrap(), [emptied]);
}

#[test]
fn documents_that_are_no_rollups_are_unreadable() {
    let day = bson::DateTime::from_millis(0);
    for bad in
        [doc! {}, doc! { "day": day, "hours": { "24": {} } }, doc! { "day": day, "hours": { "03": { "rev": 1 } } }]
    {
        let mut bad = bad;
        bad.insert("schemaVersion", 1);
        bad.insert("deviceId", "d");
        let bad = RawDocumentBuf::try_from(&bad).unwrap();
        let (mut names, mut found) = (MetricNames::new(&SeriesFilter::ALL), Vec::new());
        assert!(add_hours(&bad, &(Hour(0)..Hour(99)), &mut names, StatsNeeds::All, |_| Ok(&mut found)).is_err());
        assert_eq!(found, []);
    }
}
