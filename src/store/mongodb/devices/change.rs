//! The part of a note that the document of a device lacks, as one update.
//!
//! A note is what a write adds to the entry of a device (`DeviceNote`).
//!
//! An update has plain operators only, and its filter names devices by `_id`: that costs the server a third
//! of a pipeline with a filter. At the turn of a day, the documents of most devices change alike (`lastTs`,
//! the days of the same series, the hour of metadata that stays the same), so one statement updates many of
//! them.

use std::collections::HashMap;
use std::sync::Arc;

use bson::RawDocument;
use serde_json::{Map, Value};

use super::super::encode::Encoder;
use super::super::{metadata, names};
use super::document::measurement_length;
use crate::model::{Day, Hour};
use crate::store::device_index::MAX_SERIES;
use crate::store::{DeviceSeries, DeviceSummary};

/// The most devices whose documents one statement updates.
const DEVICES_MAX: usize = 1_000;

/// Metadata of a note: its hour, the object, and the text of the object as [`metadata::to_text`] writes it.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) hour: Hour,
    pub(super) object: Map<String, Value>,
    pub(super) text: Arc<str>,
}

/// The fields of a note that the document of a device lacks.
#[derive(Debug, PartialEq)]
pub(super) struct Difference {
    pub(super) lacking: Lacking,
    /// Whether the document has newer metadata than the note.
    pub(super) has_newer_metadata: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum Lacking {
    Nothing,
    Some(Change),
    /// The document would have too many series, so others have to leave it.
    TooManySeries,
}

/// An update of the document of a device. It has an effect only if the metadata of the document is as in
/// `guard`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Change {
    guard: Guard,
    update: Vec<u8>,
}

/// A condition on the hour of the stored metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Guard {
    None,
    /// The stored metadata is of this hour.
    ///
    /// It then counts as the metadata that was read.
    Of(Hour),
    /// There is no metadata, or none of a later hour.
    NotAfter(Hour),
}

impl Difference {
    /// Compares the entry of a device with a note.
    pub(super) fn of(entry: &DeviceSummary, note: &DeviceSummary, given: Option<&Given>) -> Self {
        let newer = |series: &&DeviceSeries| {
            let known = entry.series.binary_search_by(|known| known.metric.cmp(&series.metric));
            known.map_or(true, |at| {
                let known = &entry.series[at];
                series.last_day > known.last_day
                    || measurement_length(&series.metric) > measurement_length(&known.metric)
            })
        };
        let series: Vec<&DeviceSeries> = note.series.iter().filter(newer).collect();
        let day_of = |ts_ms| Day::of(Hour::of(ts_ms));
        let last_day = Some(day_of(note.last_ts_ms)).filter(|day| *day > day_of(entry.last_ts_ms));
        let first_ts_ms = Some(note.first_ts_ms).filter(|first| *first < entry.first_ts_ms);
        let more_series = note.has_more_series && !entry.has_more_series;
        let stored = entry.metadata.as_ref();
        let newest = given.filter(|given| stored.is_none_or(|stored| given.hour >= stored.hour));
        let (guard, hour, object) = match (newest, stored) {
            (Some(given), Some(stored)) if stored.text == given.text => {
                let is_newer = given.hour > stored.hour;
                (if is_newer { Guard::Of(stored.hour) } else { Guard::None }, is_newer.then_some(given.hour), None)
            }
            (Some(given), _) => (Guard::NotAfter(given.hour), Some(given.hour), Some(&given.object)),
            (None, _) => (Guard::None, None, None),
        };
        let has_newer_metadata = given.is_some() && newest.is_none();
        if series.is_empty() && last_day.is_none() && first_ts_ms.is_none() && !more_series && hour.is_none() {
            return Self { lacking: Lacking::Nothing, has_newer_metadata };
        }
        if entry.series.len() + series.len() > MAX_SERIES {
            return Self { lacking: Lacking::TooManySeries, has_newer_metadata };
        }
        let update = Encoder::build(|update| {
            if let Some(first_ts_ms) = first_ts_ms {
                update.document("$min", |min| min.datetime("firstTs", first_ts_ms));
            }
            if last_day.is_some() || !series.is_empty() {
                update.document("$max", |max| latest(max, last_day, &series));
            }
            if hour.is_some() || more_series {
                update.document("$set", |set| {
                    if let Some(object) = object {
                        metadata::encode(set, "metadata", object);
                    }
                    if let Some(hour) = hour {
                        set.datetime("metadataHour", hour.start_ms());
                    }
                    if more_series {
                        set.boolean("moreSeries", true);
                    }
                });
            }
        });
        let change = Change { guard, update: update.as_bytes().to_vec() };
        Self { lacking: Lacking::Some(change), has_newer_metadata }
    }
}

fn latest(max: &mut Encoder, last_day: Option<Day>, series: &[&DeviceSeries]) {
    if let Some(day) = last_day {
        max.datetime("lastTs", day.start_ms());
    }
    for DeviceSeries { metric, last_day } in series {
        let name = names::stored(metric);
        max.datetime(["series.", &name, ".lastDay"], last_day.start_ms());
        if metric.measurement().is_some() {
            max.int32(["series.", &name, ".measurement"], measurement_length(metric));
        }
    }
}

/// Devices whose documents change alike.
#[derive(Debug)]
pub(super) struct Group {
    change: Change,
    /// The indices of these devices, ascending.
    pub(super) of: Vec<usize>,
}

impl Group {
    /// Groups changes, each with the index of its device. In a sharded cluster, each device is a group: a
    /// write must run on one shard.
    pub(super) fn all(changes: Vec<(usize, Change)>, is_sharded: bool) -> Vec<Self> {
        let mut alike: HashMap<Change, Vec<usize>> = HashMap::new();
        for (at, change) in changes {
            alike.entry(change).or_default().push(at);
        }
        let max = if is_sharded { 1 } else { DEVICES_MAX };
        let split = |(change, of): (Change, Vec<usize>)| {
            let groups = of.chunks(max).map(|of| Self { change: change.clone(), of: of.to_vec() });
            groups.collect::<Vec<_>>()
        };
        let mut groups: Vec<Self> = alike.into_iter().flat_map(split).collect();
        groups.sort_unstable_by_key(|group| group.of[0]);
        groups
    }

    /// Writes the statement that changes the documents. `device` returns the ID of a device.
    pub(super) fn statement<'a>(&self, statement: &mut Encoder, is_sharded: bool, device: impl Fn(usize) -> &'a str) {
        statement.document("q", |filter| {
            match self.of[..] {
                [only] => {
                    filter.string("_id", device(only));
                    if is_sharded {
                        filter.string("deviceId", device(only));
                    }
                }
                _ => filter.document("_id", |is| {
                    is.array("$in", |ids| {
                        self.of.iter().enumerate().for_each(|(nth, at)| ids.string(nth, device(*at)));
                    });
                }),
            }
            match self.change.guard {
                Guard::None => {}
                Guard::Of(hour) => filter.datetime("metadataHour", hour.start_ms()),
                // `$lte` would not match a document without metadata.
                Guard::NotAfter(hour) => filter.document("metadataHour", |is| {
                    is.document("$not", |is| is.datetime("$gt", hour.start_ms()));
                }),
            }
        });
        statement.raw_document("u", RawDocument::from_bytes(&self.change.update).expect("the encoder wrote it"));
        if self.of.len() > 1 {
            statement.boolean("multi", true);
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::{DateTime, Document, doc};

    use super::*;
    use crate::model::Metric;
    use crate::store::DeviceMetadata;

    const DAY_MS: i64 = 86_400_000;

    fn summary(series: &[(&str, i32)], span_ms: (i64, i64), metadata: Option<(i32, &str)>) -> DeviceSummary {
        let of = |(name, day): &(&str, i32)| DeviceSeries { metric: (*name).into(), last_day: Day(*day) };
        DeviceSummary {
            device: "d".into(),
            metadata: metadata.map(|(hour, text)| DeviceMetadata { hour: Hour(hour), text: text.into() }),
            series: series.iter().map(of).collect(),
            has_more_series: false,
            first_ts_ms: span_ms.0,
            last_ts_ms: span_ms.1,
            removed_until: None,
        }
    }

    fn difference(entry: &DeviceSummary, note: &DeviceSummary) -> Difference {
        let given = note.metadata.as_ref().map(|of| Given {
            hour: of.hour,
            object: metadata::parse(&of.text).unwrap(),
            text: Arc::clone(&of.text),
        });
        Difference::of(entry, note, given.as_ref())
    }

    /// The statement that a note leads to.
    fn statement(entry: &DeviceSummary, note: &DeviceSummary) -> Option<Document> {
        let Lacking::Some(change) = difference(entry, note).lacking else { return None };
        let [group] = &Group::all(vec![(0, change)], false)[..] else { panic!("one group") };
        let built = Encoder::build(|statement| group.statement(statement, false, |_| "d"));
        Some(Document::try_from(&*built).unwrap())
    }

    #[test]
    fn an_update_has_only_what_the_document_lacks() {
        let at = DateTime::from_millis;
        let entry = summary(&[("a", 1), ("b", 2)], (DAY_MS, 2 * DAY_MS + 5), Some((30, r#"{"x":1}"#)));
        let of = |series: &[(&str, i32)], span, metadata| statement(&entry, &summary(series, span, metadata));
        let same_day = (2 * DAY_MS, 3 * DAY_MS - 1);
        assert_eq!(of(&[("b", 2)], same_day, None), None, "`lastTs` is exact to the day");
        assert_eq!(of(&[("a", 0), ("b", 2)], same_day, Some((30, r#"{"x":1}"#))), None);
        assert_eq!(
            of(&[("b", 3)], (3 * DAY_MS + 1, 3 * DAY_MS + 2), Some((72, r#"{"x":1}"#))),
            Some(doc! {
                "q": { "_id": "d", "metadataHour": at(30 * 3_600_000) },
                "u": {
                    "$max": { "lastTs": at(3 * DAY_MS), "series.b.lastDay": at(3 * DAY_MS) },
                    "$set": { "metadataHour": at(72 * 3_600_000) },
                },
            })
        );
        assert_eq!(
            of(&[("c.d", 2)], (7, 2 * DAY_MS), Some((30, r#"{"x":2}"#))),
            Some(doc! {
                "q": { "_id": "d", "metadataHour": { "$not": { "$gt": at(30 * 3_600_000) } } },
                "u": {
                    "$min": { "firstTs": at(7) },
                    "$max": { "series.c\u{FF0E}d.lastDay": at(2 * DAY_MS) },
                    "$set": { "metadata": { "x": 2 }, "metadataHour": at(30 * 3_600_000) },
                },
            })
        );
        let older = difference(&entry, &summary(&[("b", 2)], same_day, Some((29, "{}"))));
        assert_eq!(older, Difference { lacking: Lacking::Nothing, has_newer_metadata: true });
        let measured = DeviceSeries { metric: Metric::of_measurement("b", 1), last_day: Day(2) };
        let note = DeviceSummary { series: vec![measured], ..summary(&[], same_day, None) };
        let update = doc! { "$max": { "series.b.lastDay": at(2 * DAY_MS), "series.b.measurement": 1 } };
        assert_eq!(statement(&entry, &note), Some(doc! { "q": { "_id": "d" }, "u": update }));
        let many = |names: std::ops::Range<usize>| names.map(|nth| format!("m{nth:05}")).collect::<Vec<_>>();
        let of = |names: std::ops::Range<usize>| {
            let names = many(names);
            summary(&names.iter().map(|name| (name.as_str(), 1)).collect::<Vec<_>>(), same_day, None)
        };
        let (full, more) = (of(0..MAX_SERIES), of(MAX_SERIES..MAX_SERIES + 1));
        assert_eq!(difference(&full, &more).lacking, Lacking::TooManySeries);
    }

    #[test]
    fn documents_that_change_alike_are_one_statement() {
        let entry = summary(&[("a", 1)], (0, DAY_MS), None);
        let change_of = |day: i32| {
            let span_ms = (i64::from(day) * DAY_MS, i64::from(day) * DAY_MS + 7);
            let Lacking::Some(change) = difference(&entry, &summary(&[("a", day)], span_ms, None)).lacking else {
                panic!("a day more")
            };
            change
        };
        let changes = |count| (0..count).map(|at| (at, change_of(if at == 3 { 5 } else { 2 }))).collect::<Vec<_>>();
        let sizes = |groups: &[Group]| groups.iter().map(|group| group.of.len()).collect::<Vec<_>>();
        assert_eq!(sizes(&Group::all(changes(2_001), false)), [1_000, 1, 1_000]);
        assert_eq!(sizes(&Group::all(changes(4), true)), [1, 1, 1, 1]);
        let group = &Group::all(changes(3), false)[0];
        let built = Encoder::build(|statement| group.statement(statement, false, |at| ["x", "y", "z"][at]));
        let at = DateTime::from_millis(2 * DAY_MS);
        let expected = doc! {
            "q": { "_id": { "$in": ["x", "y", "z"] } },
            "u": { "$max": { "lastTs": at, "series.a.lastDay": at } },
            "multi": true,
        };
        assert_eq!(Document::try_from(&*built).unwrap(), expected);
    }
}
