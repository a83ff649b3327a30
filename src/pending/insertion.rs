//! Inserting the readings of a record into the buckets, one turn at a time.

use std::sync::Arc;

use super::names::Names;
use super::slots::Key;
use super::{ITEMS_PER_BUCKET, ITEMS_PER_TURN, Pending};
use crate::log::Position;
use crate::log::batch_view::{BadPayload, BatchView, Name, Step, Steps};
use crate::model::Hour;

/// The insertion of one record.
///
/// Call [`Self::decode`] without the lock of pending and [`Self::apply`] with it, until nothing is left to
/// decode.
#[derive(Debug)]
pub struct Insertion<'a> {
    position: Position,
    names: Vec<Name<'a>>,
    steps: Steps<'a>,
    /// The steps that are decoded and not applied yet.
    turn: Vec<Step<'a>>,
    /// The ids of the batch's names, for each generation of names that the buckets use.
    tables: Vec<IdTable>,
    device: &'a str,
    metadata: Option<&'a str>,
    /// An old generation of names. It is dropped with the insertion, without the lock.
    old_names: Option<Arc<Names>>,
}

#[derive(Debug)]
struct IdTable {
    generation: Arc<Names>,
    /// `None`: not looked up yet.
    ids: Vec<Option<Key>>,
}

impl<'a> Insertion<'a> {
    /// Starts the insertion of the record at `position`.
    ///
    /// # Errors
    /// If the payload's table of names is not valid.
    pub fn new(payload: &'a [u8], position: Position) -> Result<Self, BadPayload> {
        let batch = BatchView::new(payload)?;
        Ok(Self {
            position,
            names: batch.names().to_vec(),
            steps: batch.steps(),
            turn: Vec::new(),
            tables: Vec::new(),
            device: "",
            metadata: None,
            old_names: None,
        })
    }

    /// Decodes the steps of the next turn. Returns false when all steps have been applied.
    ///
    /// # Errors
    /// If the payload is not valid. Earlier turns may have been applied.
    pub fn decode(&mut self) -> Result<bool, BadPayload> {
        let (mut items, mut last) = (0, None);
        let mut metadata_items = self.metadata.map_or(0, items_of);
        while items < ITEMS_PER_TURN {
            let Some(step) = self.steps.next() else { break };
            let step = step?;
            items += match &step {
                Step::Group { metadata, .. } => {
                    (metadata_items, last) = (metadata.map_or(0, items_of), None);
                    1
                }
                Step::Reading { ts_ms, values } => {
                    let hour = Hour::of(*ts_ms);
                    let is_same = last.replace(hour) == Some(hour);
                    values.len() + if is_same { 1 } else { ITEMS_PER_BUCKET + metadata_items }
                }
            };
            self.turn.push(step);
        }
        Ok(!self.turn.is_empty())
    }

    /// Inserts the decoded readings into the buckets, and returns their number.
    pub fn apply(&mut self, pending: &mut Pending, now_ms: u64) -> u64 {
        if self.tables.is_empty() {
            self.old_names = pending.names.advance();
        }
        let before = pending.readings();
        // The bucket of the last reading, and the table of its names.
        let mut last: Option<(Hour, Key, usize)> = None;
        for step in self.turn.drain(..) {
            match step {
                Step::Group { device, metadata } => (self.device, self.metadata, last) = (device, metadata, None),
                Step::Reading { ts_ms, values } => {
                    let hour = Hour::of(ts_ms);
                    let (bucket, table, metadata) = match last {
                        Some((of_last, bucket, table)) if of_last == hour => (bucket, table, None),
                        _ => {
                            let bucket = pending.bucket(self.device, hour, self.position, now_ms);
                            let names = &pending.open[bucket].names;
                            (bucket, table_of(&mut self.tables, names, self.names.len()), self.metadata)
                        }
                    };
                    last = Some((hour, bucket, table));
                    let IdTable { generation, ids } = &mut self.tables[table];
                    let values = values.map(|(name, value)| {
                        let name = usize::from(name);
                        (*ids[name].get_or_insert_with(|| generation.id(self.names[name])), value)
                    });
                    pending.push(bucket, metadata, Hour::offset_of(ts_ms), values);
                }
            }
        }
        pending.readings() - before
    }

    /// Returns whether all of the batch has been applied.
    pub fn is_over(&self) -> bool {
        self.turn.is_empty() && self.steps.is_over()
    }
}

/// Returns the index of the table of a generation. There is nearly always only one.
#[inline]
fn table_of(tables: &mut Vec<IdTable>, generation: &Arc<Names>, names: usize) -> usize {
    tables.iter().position(|table| Arc::ptr_eq(&table.generation, generation)).unwrap_or_else(|| {
        tables.push(IdTable { generation: Arc::clone(generation), ids: vec![None; names] });
        tables.len() - 1
    })
}

/// The work of comparing or copying metadata, in the unit of [`ITEMS_PER_TURN`].
const fn items_of(metadata: &str) -> usize {
    metadata.len() / 64
}

impl Pending {
    /// Inserts the record at `position`, all turns in a row.
    ///
    /// # Errors
    /// If the payload is not valid.
    pub fn insert(&mut self, payload: &[u8], position: Position, now_ms: u64) -> Result<(), BadPayload> {
        let mut insertion = Insertion::new(payload, position)?;
        while insertion.decode()? {
            insertion.apply(self, now_ms);
        }
        Ok(())
    }
}
