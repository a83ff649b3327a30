//! The client IDs in use.
//!
//! A second connection with the same ID and the same owner ends the first one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

/// An owner (the name of a token or certificate) and a client ID.
type Key = (Option<Arc<str>>, Box<str>);

/// The client IDs in use.
#[derive(Debug, Default)]
pub(super) struct ClientIds {
    used: Mutex<HashMap<Key, (u64, CancellationToken)>>,
    next: AtomicU64,
}

/// The use of a client ID. Dropping it ends the use.
#[derive(Debug)]
pub(super) struct Claim {
    ids: Arc<ClientIds>,
    key: Key,
    number: u64,
}

impl ClientIds {
    /// Claims a client ID for a connection, and ends the connection that had it.
    ///
    /// A later claim of the same ID cancels `end`.
    pub(super) fn claim(self: &Arc<Self>, owner: Option<Arc<str>>, client_id: &str, end: &CancellationToken) -> Claim {
        let (key, number) = ((owner, client_id.into()), self.next.fetch_add(1, Ordering::Relaxed));
        let previous = self.used(|used| used.insert(Key::clone(&key), (number, end.clone())));
        if let Some((_, previous)) = previous {
            previous.cancel();
        }
        Claim { ids: Arc::clone(self), key, number }
    }

    /// Makes a client ID for a client that has none.
    pub(super) fn unused() -> String {
        format!("tidegauge-{:016x}", rand::random::<u64>())
    }

    fn used<T>(&self, with: impl FnOnce(&mut HashMap<Key, (u64, CancellationToken)>) -> T) -> T {
        with(&mut self.used.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.ids.used(|used| {
            if used.get(&self.key).is_some_and(|(number, _)| *number == self.number) {
                used.remove(&self.key);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_connection_of_the_same_owner_ends_the_first_only() {
        let ids = Arc::new(ClientIds::default());
        let tokens: [CancellationToken; 3] = std::array::from_fn(|_| CancellationToken::new());
        let (ann, bob) = (Some(Arc::from("ann")), Some(Arc::from("bob")));
        let first = ids.claim(ann.clone(), "pump", &tokens[0]);
        let _other = ids.claim(bob, "pump", &tokens[1]);
        assert!(tokens.iter().all(|token| !token.is_cancelled()));
        let second = ids.claim(ann, "pump", &tokens[2]);
        assert_eq!(tokens.each_ref().map(CancellationToken::is_cancelled), [true, false, false]);
        drop(first);
        assert_eq!(ids.used(|used| used.len()), 2, "the end of the first is not that of the second");
        drop(second);
        assert_eq!(ids.used(|used| used.len()), 1);
    }
}
