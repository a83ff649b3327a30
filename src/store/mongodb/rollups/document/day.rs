//! The first and the last instant of a rollup document.

use std::collections::BTreeMap;

use bson::RawDocument;

use super::super::super::decode::{DecodeError, expect_version};
use super::super::columns::PackedHour;
use super::{SCHEMA_VERSION, decode, entry_of, hour_at, is_emptied, is_left_out, packed_day, supersedes};
use crate::model::{Hour, SeriesFilter};
use crate::store::StatsNeeds;
use crate::store::metric_names::MetricNames;

/// An hour of a document.
enum OfDay<'a> {
    Entry(&'a RawDocument),
    Packed(PackedHour),
}

/// The span of a document.
#[derive(Debug, PartialEq)]
pub(in crate::store::mongodb) struct Day {
    /// The first instant of the day.
    pub(in crate::store::mongodb) first_ts_ms: i64,
    /// The last instant of the day.
    pub(in crate::store::mongodb) last_ts_ms: i64,
}

impl Day {
    /// Reads a document; `None` if no hour of it has a rollup.
    pub(in super::super) fn decode(document: &RawDocument) -> Result<Option<Self>, DecodeError> {
        expect_version(document, SCHEMA_VERSION)?;
        let start = Hour::of(document.get_datetime("day")?.timestamp_millis());
        let mut names = MetricNames::new(&SeriesFilter::ALL);
        let (mut packed, read) = packed_day(document, start, &mut names, StatsNeeds::Numbers);
        read?;
        let mut hours = BTreeMap::new();
        for element in document.get_document("hours")? {
            let (key, value) = element?;
            let (key, entry) = (key.as_str().as_bytes(), entry_of(value)?);
            if supersedes(start, key, value, &mut packed)? && !is_left_out(entry) && !is_emptied(entry) {
                hours.insert(hour_at(start, key)?, OfDay::Entry(entry));
            }
        }
        hours.extend(packed.into_iter().flatten().map(|hour| (hour.stats.hour, OfDay::Packed(hour))));
        let (Some((_, first)), Some(last)) = (hours.first_key_value(), hours.last_key_value()) else {
            return Ok(None);
        };
        let first_ts_ms = match first {
            OfDay::Entry(entry) => entry.get_datetime("firstTs")?.timestamp_millis(),
            OfDay::Packed(hour) => hour.first_ts_ms,
        };
        let last = match last {
            (hour, OfDay::Entry(entry)) => decode(entry, *hour, &mut names)?,
            (_, OfDay::Packed(hour)) => hour.stats.clone(),
        };
        Ok(Some(Self { first_ts_ms, last_ts_ms: last.last_ts_ms }))
    }
}
