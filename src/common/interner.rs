//! Interning: equal values share one allocation.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;

/// The most values that an interner remembers.
const MAX: usize = 1_024;

/// The values that were shared lately, each once.
///
/// When there are too many, it forgets all of them. So a value may be in memory a few times.
#[derive(Debug)]
pub struct Interner<T>(Mutex<HashSet<Arc<T>, RandomState>>);

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// Replaces a value by an equal one that was shared before, or remembers it.
    pub fn share(&self, value: &mut Arc<T>) {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = values.get(&*value) {
            *value = Arc::clone(known);
            return;
        }
        if values.len() == MAX {
            values.clear();
        }
        values.insert(Arc::clone(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_shared_and_a_flood_of_others_is_not_kept() {
        let interner = Interner::default();
        let shared = |value: usize| {
            let mut value = Arc::new(value);
            interner.share(&mut value);
            value
        };
        let first = shared(0);
        assert!(Arc::ptr_eq(&first, &shared(0)) && !Arc::ptr_eq(&first, &shared(1)));
        (2..10 * MAX).for_each(|value| assert_eq!(*shared(value), value));
        assert_eq!(Arc::strong_count(&first), 1, "it is forgotten");
        assert!(interner.0.lock().unwrap().len() <= MAX);
    }
}
