//! The devices of a pack, and their units as metadata.
//!
//! Each device, metric and unit is kept once, so the memory of a pack depends on its different names and not
//! on its records.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::{Options, interner::Interner, resolve::Measurement};
use crate::{model::check_metric_name, wire::metadata};

/// The most metrics that fit into a record of the log.
const MAX_METRICS: u32 = 1 << 16;

/// The text around the units of a device.
const AROUND: [&str; 2] = ["{\"units\":", "}"];

/// Collects the devices, and the last unit of each metric.
#[derive(Debug)]
pub(super) struct UnitTable {
    max_metadata_bytes: usize,
    devices: Interner,
    /// The device of the last record.
    last: Option<u32>,
    metrics: Interner,
    units: Interner,
    /// The length of the metadata by device; `None` if it is too long.
    bytes: Vec<Option<usize>>,
    entries: Vec<Entry>,
    /// The indexes in `entries` by device and metric.
    table: HashTable<u32>,
    hasher: RandomState,
}

/// The unit of a metric of a device.
#[derive(Debug, Clone, Copy)]
struct Entry {
    device: u32,
    metric: u32,
    unit: u32,
}

impl UnitTable {
    pub(super) fn new(options: &Options<'_>) -> Self {
        // Each device has a reading, so a pack with more than `max_readings` devices is refused.
        let max_devices = u32::try_from(options.max_readings).unwrap_or(u32::MAX).saturating_add(1);
        Self {
            max_metadata_bytes: options.max_metadata_bytes,
            devices: Interner::new(max_devices),
            last: None,
            metrics: Interner::new(MAX_METRICS),
            units: Interner::new(MAX_METRICS),
            bytes: Vec::new(),
            entries: Vec::new(),
            table: HashTable::new(),
            hasher: RandomState::default(),
        }
    }

    pub(super) fn add(&mut self, measurement: &Measurement<'_>) {
        let last = self.last.filter(|&last| self.devices.text(last) == measurement.device);
        let Some(device) = last.or_else(|| self.devices.number(measurement.device)) else { return };
        self.last = Some(device);
        if device as usize == self.bytes.len() {
            self.bytes.push(Some(0));
        }
        let (Some(unit), Some(_)) = (measurement.unit, measurement.value) else { return };
        if self.bytes[device as usize].is_none() || check_metric_name(measurement.metric).is_err() {
            return;
        }
        if let (Some(metric), Some(unit)) = (self.metrics.number(measurement.metric), self.units.number(unit)) {
            self.put(device, metric, unit);
        }
    }

    fn put(&mut self, device: u32, metric: u32, unit: u32) {
        let hash = self.hasher.hash_one((device, metric));
        let is_it = |&at: &u32| {
            let entry = self.entries[at as usize];
            (entry.device, entry.metric) == (device, metric)
        };
        let known = self.table.find(hash, is_it).copied();
        let member_bytes = |unit| metadata::member_bytes(self.metrics.text(metric), self.units.text(unit));
        let before = match known.map(|at| self.entries[at as usize].unit) {
            Some(same) if same == unit => return,
            Some(other) => member_bytes(other),
            None => 0,
        };
        let bytes = &mut self.bytes[device as usize];
        let members = bytes.map(|bytes| bytes + member_bytes(unit) - before);
        let around = AROUND.concat().len() + "{}".len() - ",".len();
        *bytes = members.filter(|members| members + around <= self.max_metadata_bytes);
        if bytes.is_none() {
            return;
        }
        if let Some(at) = known {
            self.entries[at as usize].unit = unit;
        } else if let Ok(at) = u32::try_from(self.entries.len()) {
            self.entries.push(Entry { device, metric, unit });
            let (entries, hasher) = (&self.entries, &self.hasher);
            self.table.insert_unique(hash, at, |&at| {
                let entry = entries[at as usize];
                hasher.hash_one((entry.device, entry.metric))
            });
        }
    }

    /// The devices, each with its metadata. Metadata that is too long is dropped.
    pub(super) fn into_devices(mut self) -> DeviceTable {
        let (metrics, units) = (&self.metrics, &self.units);
        self.entries.sort_unstable_by_key(|entry| (entry.device, metrics.text(entry.metric)));
        let mut metadata = String::new();
        let mut ends = Vec::with_capacity(self.bytes.len());
        let mut entries = self.entries.chunk_by(|a, b| a.device == b.device).peekable();
        for (device, bytes) in (0..).zip(&self.bytes) {
            let units_of = entries.next_if(|entries| entries[0].device == device);
            if let (Some(of), Some(_)) = (units_of, bytes) {
                metadata.push_str(AROUND[0]);
                metadata::append(
                    &mut metadata,
                    of.iter().map(|entry| (metrics.text(entry.metric), units.text(entry.unit))),
                );
                metadata.push_str(AROUND[1]);
            }
            ends.push(metadata.len());
        }
        DeviceTable { devices: self.devices, metadata, ends }
    }
}

/// The devices of a pack and their metadata.
#[derive(Debug)]
pub(super) struct DeviceTable {
    devices: Interner,
    metadata: String,
    /// The end of the metadata in `metadata`, by device.
    ends: Vec<usize>,
}

impl DeviceTable {
    /// The number of a device, and its metadata: the text of a JSON object.
    pub(super) fn find(&self, device: &str) -> (Option<u32>, Option<&str>) {
        let number = self.devices.find(device);
        let metadata = number.and_then(|number| {
            let at = number as usize;
            let start = if at == 0 { 0 } else { self.ends[at - 1] };
            self.metadata.get(start..*self.ends.get(at)?)
        });
        (number, metadata.filter(|text| !text.is_empty()))
    }
}
