//! What a query sees of a pending bucket.

use std::sync::Arc;

use crate::model::{BucketWrite, Contents, Hour};

/// What is pending of one bucket at one moment.
#[derive(Debug, Clone)]
pub struct PendingHour {
    /// The hour.
    pub hour: Hour,
    pub(super) flying: Option<Arc<BucketWrite>>,
    pub(super) open: Option<(Contents, Option<Arc<str>>)>,
}

impl PendingHour {
    /// The readings, those in flight included.
    pub fn contents(&self) -> Contents {
        match (&self.flying, &self.open) {
            (Some(write), Some((open, _))) => write.contents.merge(open),
            (Some(write), None) => write.contents.clone(),
            (None, Some((open, _))) => open.clone(),
            (None, None) => Contents::default(),
        }
    }

    /// The newest metadata that came with them.
    pub fn metadata(&self) -> Option<Arc<str>> {
        let open = self.open.as_ref().and_then(|(_, metadata)| metadata.clone());
        open.or_else(|| self.flying.as_ref().and_then(|write| write.metadata.clone()))
    }
}
