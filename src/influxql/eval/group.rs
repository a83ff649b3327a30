//! Groups. Each becomes a series of the answer, and has its rows, or for each call its points or the reducers
//! of its windows.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::plan::Plan;
use super::super::value::Value;
use super::reduce::{Point, Reducer};

/// A row of the data that a `SELECT` without functions shows.
#[derive(Debug, Clone)]
pub(super) struct RawRow {
    pub(super) time: i64,
    pub(super) order: u32,
    pub(super) values: Box<[Value]>,
}

/// The points of a group that a call has collected.
#[derive(Debug)]
pub(super) enum Collected {
    Points(Vec<Point>),
    /// The reducer of each window, by the start of the window.
    Windows(BTreeMap<i64, Reducer>),
}

/// One series of the answer.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) name: Arc<str>,
    pub(super) tags: Vec<(Arc<str>, Arc<str>)>,
    pub(super) rows: Vec<RawRow>,
    /// With a `LIMIT`: the most rows that the group has had at once.
    ///
    /// The statement was charged for the memory of so many rows.
    pub(super) most_rows: usize,
    pub(super) calls: Vec<Collected>,
}

impl Group {
    pub(super) fn new(name: Arc<str>, tags: Vec<(Arc<str>, Arc<str>)>, plan: &Plan) -> Self {
        let collected = |has_aggregate| {
            if has_aggregate { Collected::Windows(BTreeMap::new()) } else { Collected::Points(Vec::new()) }
        };
        let calls = plan.calls.iter().map(|call| collected(call.aggregate.is_some())).collect();
        Self { name, tags, rows: Vec::new(), most_rows: 0, calls }
    }

    /// Returns the key by which `SLIMIT` sorts groups.
    ///
    /// It has the keys of the tags that are not empty, then their values: `host,room,a,kitchen`.
    pub(super) fn key_of_present_tags(&self) -> String {
        let present = || self.tags.iter().filter(|(_, value)| !value.is_empty());
        let parts: Vec<&str> = present().map(|(key, _)| &**key).chain(present().map(|(_, value)| &**value)).collect();
        parts.join(",")
    }

    /// Sorts the rows by time, and rows of one instant by series.
    pub(super) fn sort(&mut self, is_descending: bool) {
        self.rows.sort_by_key(|row| (row.time, row.order));
        if is_descending {
            self.rows.reverse();
        }
    }
}
