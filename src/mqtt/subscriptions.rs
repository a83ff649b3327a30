//! The file with the subscriptions of the session at a broker.
//!
//! A topic that was removed from the configuration stays subscribed until the client unsubscribes. The broker
//! does not list its subscriptions, so the client keeps them in a file. Without the file (a new data folder),
//! the messages of a removed topic still arrive, and are refused as unknown and acknowledged.

use std::path::PathBuf;

use crate::common::small_file::read_small_regular_file;
use crate::disk::replace_file;

/// The file with the subscriptions of one session.
#[derive(Debug, Clone)]
pub(super) struct SubscriptionsFile {
    file: PathBuf,
}

impl SubscriptionsFile {
    pub(super) const fn new(file: PathBuf) -> Self {
        Self { file }
    }

    /// Whether the file exists: then there was a session before.
    pub(super) fn exists(&self) -> bool {
        self.file.exists()
    }

    /// Reads the filters that are subscribed and not among `wanted`.
    pub(super) fn surplus(&self, wanted: &[String]) -> Vec<String> {
        let read = read_small_regular_file(&self.file).ok();
        let known: Vec<String> = read.and_then(|json| serde_json::from_slice(&json).ok()).unwrap_or_default();
        known.into_iter().filter(|filter| !wanted.contains(filter)).collect()
    }

    /// Writes the filters that the session has.
    pub(super) fn note(&self, filters: &[String]) {
        let json = serde_json::to_vec(filters).unwrap_or_default();
        if read_small_regular_file(&self.file).is_ok_and(|known| known == json) {
            return;
        }
        if let Err(error) = replace_file(&self.file, &json) {
            let file = self.file.display();
            tracing::warn!(%file, %error, "cannot note the topics: one that is removed later may stay subscribed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_was_noted_and_is_not_wanted_is_surplus() {
        let folder = tempfile::tempdir().unwrap();
        let known = SubscriptionsFile::new(folder.path().join("topics.json"));
        let [a, b, c] = ["a/+", "b/#", "c"].map(str::to_owned);
        assert!(!known.exists() && known.surplus(std::slice::from_ref(&a)).is_empty(), "nothing is noted yet");
        known.note(&[a.clone(), b.clone()]);
        assert_eq!(known.surplus(&[b.clone(), c.clone()]), [a]);
        known.note(&[b.clone(), c]);
        assert_eq!(known.surplus(std::slice::from_ref(&b)), ["c"]);
    }
}
