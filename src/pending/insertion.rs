//! The way from a record into the buckets, a turn at a time.

use std::sync::Arc;

use super::names::Names;
use super::{ITEMS_PER_TURN, Index, Pending};
use crate::log::Position;
use crate::log::batch_view::{BadPayload, BatchView, Step, Steps};
use crate::model::Hour;

/// Marks a name whose id is not known yet.
const UNKNOWN: u32 = u32::MAX;

/// The batch of one record on its way into the buckets. First [`Self::decode`], without the lock of pending,
/// then [`Self::apply`], until nothing is left to decode.
#[derive(Debug)]
pub struct Insertion<'a> {
    position: Position,
    names: Vec<&'a str>,
    steps: Steps<'a>,
    /// Decoded and not applied yet.
    turn: Vec<Step<'a>>,
    /// The ids of the batch's names in each generation of names that was met.
    tables: Vec<IdTable>,
    device: &'a str,
    metadata: Option<&'a str>,
    /// An old generation of names, to be dropped without the lock.
    old_names: Option<Arc<Names>>,
}

#[derive(Debug)]
struct IdTable {
    generation: Arc<Names>,
    ids: Vec<u32>,
}

impl<'a> Insertion<'a> {
    /// Begins with the batch of the record at `position`.
    ///
    /// # Errors
    /// When the table of names breaks the grammar of payloads.
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

    /// Decodes what goes into pending in the next turn. False: everything has been applied.
    ///
    /// # Errors
    /// When the payload breaks its grammar; what came before may have been applied.
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
                    values.len() + if is_same { 1 } else { 1 + metadata_items }
                }
            };
            self.turn.push(step);
        }
        Ok(!self.turn.is_empty())
    }

    /// Puts what was decoded into the buckets, and returns how many readings that were.
    pub fn apply(&mut self, pending: &mut Pending, now_ms: u64) -> u64 {
        if self.tables.is_empty() {
            self.old_names = pending.names.advance();
        }
        let before = pending.readings();
        // The bucket of the reading before, and where the ids of its names are.
        let mut last: Option<(Hour, Index, usize)> = None;
        for step in self.turn.drain(..) {
            match step {
                Step::Group { device, metadata } => (self.device, self.metadata, last) = (device, metadata, None),
                Step::Reading { ts_ms, values } => {
                    let hour = Hour::of(ts_ms);
                    let (bucket, table, metadata) = match last {
                        Some((of_last, bucket, table)) if of_last == hour => (bucket, table, None),
                        _ => {
                            let bucket = pending.bucket(self.device, hour, self.position, now_ms);
                            let table = table_of(&mut self.tables, pending.names_of(bucket), self.names.len());
                            (bucket, table, self.metadata)
                        }
                    };
                    last = Some((hour, bucket, table));
                    let IdTable { generation, ids } = &mut self.tables[table];
                    let values = values.map(|(name, value)| {
                        let id = &mut ids[usize::from(name)];
                        if *id == UNKNOWN {
                            *id = generation.id(self.names[usize::from(name)]);
                        }
                        (*id, value)
                    });
                    pending.push(bucket, metadata, Hour::offset_of(ts_ms), values);
                }
            }
        }
        pending.readings() - before
    }

    /// Whether all of the batch has been applied.
    pub fn is_over(&self) -> bool {
        self.turn.is_empty() && self.steps.is_over()
    }
}

/// Where the ids of a generation are. Nearly always there is one.
fn table_of(tables: &mut Vec<IdTable>, generation: &Arc<Names>, names: usize) -> usize {
    tables.iter().position(|table| Arc::ptr_eq(&table.generation, generation)).unwrap_or_else(|| {
        tables.push(IdTable { generation: Arc::clone(generation), ids: vec![UNKNOWN; names] });
        tables.len() - 1
    })
}

/// What it costs to compare or to copy metadata, in values.
const fn items_of(metadata: &str) -> usize {
    metadata.len() / 64
}

impl Pending {
    /// Takes in the batch of the record at `position`, in as many turns as it takes.
    ///
    /// # Errors
    /// When the payload breaks its grammar.
    pub fn insert(&mut self, payload: &[u8], position: Position, now_ms: u64) -> Result<(), BadPayload> {
        let mut insertion = Insertion::new(payload, position)?;
        while insertion.decode()? {
            insertion.apply(self, now_ms);
        }
        Ok(())
    }
}
