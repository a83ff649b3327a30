//! The way from a record into the buckets.

use smallvec::SmallVec;

use super::{Index, Pending};
use crate::log::Position;
use crate::log::batch_view::{BadPayload, BatchView, Values, Visitor};
use crate::model::Hour;

impl Pending {
    /// Takes in the batch of the record at `position`.
    ///
    /// # Errors
    /// When the payload breaks its grammar.
    pub fn insert(&mut self, payload: &[u8], position: Position, now_ms: u64) -> Result<(), BadPayload> {
        let batch = BatchView::new(payload)?;
        if self.names.wants_sweep() {
            self.names.sweep(self.open.iter().map(|(_, bucket)| bucket));
        }
        let names = batch.names().iter().map(|name| self.names.id(name)).collect();
        batch.walk(&mut Insertion { pending: self, names, position, now_ms, device: "", metadata: None, last: None })
    }
}

/// A batch on its way into the buckets.
struct Insertion<'p, 'a> {
    pending: &'p mut Pending,
    /// The ids of the batch's names.
    names: SmallVec<[u32; 8]>,
    position: Position,
    now_ms: u64,
    device: &'a str,
    metadata: Option<&'a str>,
    /// The bucket of the reading before, if it was of the same device.
    last: Option<(Hour, Index)>,
}

impl<'a> Visitor<'a> for Insertion<'_, 'a> {
    fn group(&mut self, device: &'a str, metadata: Option<&'a str>) {
        (self.device, self.metadata, self.last) = (device, metadata, None);
    }

    fn reading(&mut self, ts_ms: i64, values: Values<'a>) {
        let hour = Hour::of(ts_ms);
        let (bucket, metadata) = match self.last {
            Some((last, bucket)) if last == hour => (bucket, None), // it has the metadata of its group already
            _ => (self.pending.bucket(self.device, hour, self.position, self.now_ms), self.metadata),
        };
        self.last = Some((hour, bucket));
        let values = values.map(|(name, value)| (self.names[usize::from(name)], value));
        self.pending.push(bucket, metadata, Hour::offset_of(ts_ms), values);
    }
}
