//! Leaves values out of a batch: those that a deletion removes, or that are older than accepted ones.

use std::collections::HashMap;

use super::batch::{BadPayload, Batch, BatchBuilder, BatchView, Step};

/// A batch without the values that were left out.
#[derive(Debug)]
pub struct Remaining {
    /// The values that stay.
    pub batch: Batch,
    /// The number of readings of which no value stays. They are left out as a whole.
    pub left_out: u64,
    /// The number of values left out of readings that keep at least one value.
    pub values_left_out: u64,
}

/// Encodes a payload again, without the values that `is_left_out` selects.
///
/// `of_owner` is called once for each device with its metadata. It returns the metadata to encode, and a note
/// about this owner. `is_left_out` gets the note, the instant, the series and the value. Returns `None` if
/// all values stay and no metadata changes. The work is in proportion to the payload.
///
/// # Errors
/// When the payload breaks its grammar.
pub fn leave_out<'p, T>(
    payload: &'p [u8],
    mut of_owner: impl FnMut(&'p str, Option<&'p str>) -> (Option<&'p str>, T),
    mut is_left_out: impl FnMut(&T, i64, &str, f64) -> bool,
) -> Result<Option<Remaining>, BadPayload> {
    let BatchView { names, steps } = BatchView::new(payload)?;
    let mut batch = BatchBuilder::default();
    let (mut left_out, mut values_left_out, mut has_changed) = (0, 0, false);
    let (mut numbers, mut owners, mut owner): (HashMap<_, u32>, Vec<_>, _) = (HashMap::new(), Vec::new(), None);
    let mut left = Vec::new();
    for step in steps {
        match step? {
            Step::Group { device, metadata } => {
                // The same slices mean the same owner. Comparing the texts could take quadratic time.
                let key = (device.as_bytes().as_ptr(), metadata.map(str::as_ptr));
                let number = *numbers.entry(key).or_insert_with(|| {
                    let (new_metadata, of_owner) = of_owner(device.as_str(), metadata);
                    has_changed |= new_metadata != metadata;
                    owners.push((device, new_metadata, of_owner));
                    owners.len() as u32 - 1
                });
                owner = Some(number);
            }
            Step::Reading { ts_ms, values } => {
                let Some(number) = owner else { continue };
                let (device, metadata, of_owner) = &owners[number as usize];
                let count = values.len();
                let values = values.map(|(name, value)| (names[usize::from(name)], value));
                left.clear();
                left.extend(values.filter(|(name, value)| !is_left_out(of_owner, ts_ms, name.text, *value)));
                has_changed |= left.len() < count;
                if left.is_empty() {
                    left_out += 1;
                    continue;
                }
                values_left_out += (count - left.len()) as u64;
                // Only names that begin with the measurement have its length.
                let measurement_bytes = left.iter().map(|(name, _)| name.measurement_bytes).max().unwrap_or(0);
                let values = left.iter().map(|(name, value)| (name.text, *value));
                batch
                    .push_of(Some(number), device.as_str(), *metadata, ts_ms, measurement_bytes, values)
                    .expect("it is a part of a record");
            }
        }
    }
    Ok(has_changed.then(|| Remaining { batch: batch.finish(), left_out, values_left_out }))
}
