//! Units, gathered over a pack and written as metadata of their devices.

use std::collections::{BTreeMap, HashMap};

use super::resolve::Measured;

/// The metadata of each device that has some: the text of a JSON object.
pub(super) type Metadata = HashMap<String, String>;

/// By device, the unit of each metric.
#[derive(Debug, Default)]
pub(super) struct Units(HashMap<String, BTreeMap<String, String>>);

impl Units {
    pub(super) fn note(&mut self, measured: Measured<'_>) {
        if let (Some(unit), Some(_)) = (measured.unit, measured.value) {
            self.0.entry(measured.device).or_default().insert(measured.metric, unit.into_owned());
        }
    }

    /// Leaves out what would be longer than `max_bytes`.
    pub(super) fn into_metadata(self, max_bytes: usize) -> Metadata {
        let texts = self.0.into_iter().map(|(device, units)| (device, text(&units)));
        texts.filter(|(_, text)| text.len() <= max_bytes).collect()
    }
}

fn text(units: &BTreeMap<String, String>) -> String {
    let units = serde_json::to_string(units).expect("a map of strings is JSON");
    format!("{{\"units\":{units}}}")
}
