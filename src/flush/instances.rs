//! The instances that share a store: each executes the deletions of all.
//!
//! An instance has readings that no other one knows: in its log, in memory, on their way to the store, among
//! its dead letters. So a deletion is executed by each instance, as if the client had sent it to all of them:
//!
//! 1. The instance that accepts a deletion executes it, and *announces* it in the store ([`tell`]).
//! 2. Each other instance looks for announcements about once a second, or with each beat if it was alone. It
//!    appends a deletion that it does not know to its own log. From there on, the deletion is like one of its
//!    own: it has a place among the readings, removes what is pending before it, waits for the writes in
//!    flight, is executed in the store, and is left out of a replay. Just before the store executes the
//!    deletion, the instance *joins* it.
//! 3. When all instances that run have executed it, it is *closed*, and its client is answered.
//!
//! **Closed.** What is sent after the answer must stay. So no instance executes a closed deletion in the
//! store: the store lets no one join it any more. An instance that was away has missed it. It removes only
//! what it has itself: pending readings, those in its log, dead letters. An instance that begins with none of
//! these has missed no deletion that was announced before.
//!
//! **Leases.** Each instance has a note in the store, and *beats* every two seconds: it counts up a number in
//! its note. Another instance that sees no beat for the time of the lease in the note, by its own monotonic
//! clock, takes the instance for dead. The lease is as long as a command of a write of the dead instance may
//! be under way. After a slow look it is longer, so that it is not over before the next beat is answered. But
//! it is short while a beat without an answer may take effect late, and replace a longer lease in the note.
//! An instance writes nothing to the store while it has no lease: from its start, or when it has not reached
//! the store for a while, until it has looked for the deletions that it has missed. If it cannot look, the
//! store counts as away. With the new lease it still writes nothing until pending has lost what they remove.
//!
//! **After a crash** the log has the deletions that were under way. The feeder waits a moment for the first
//! look, so that the replay leaves out what other instances have deleted meanwhile.
//!
//! An instance that ends with nothing left removes its note. The note of an instance that does not come back
//! expires after some weeks; until then, closed deletions stay noted for it.

mod peers;
mod watcher;

use std::time::Duration;

use super::Pipeline;
use crate::log::BegunDeletion;
use crate::pending::Pending;
use crate::store::{Joined, StoreError};

pub(super) use peers::Peers;
pub(super) use watcher::run;

/// How long the end waits for the store to remove the note of this instance.
const LEAVE: Duration = Duration::from_secs(2);

/// Joins a deletion, and returns whether this instance may execute it in the store.
pub(super) async fn may_execute(pipeline: &Pipeline, begun: &BegunDeletion) -> Result<bool, StoreError> {
    let (Some(instances), Some(own)) = (pipeline.store.instances(), pipeline.peers.id()) else { return Ok(true) };
    Ok(match instances.join(&number(begun.id), own).await? {
        Joined::Yes => true,
        Joined::Closed => false,
        Joined::Unknown => begun.from.is_none(), // it is not announced yet, or it was removed long ago
    })
}

/// Announces a deletion that is executed here, or notes that it is executed if another instance has announced
/// it. Returns whether there are other instances.
pub(super) async fn tell(pipeline: &Pipeline, begun: &BegunDeletion, readings: u64) -> Result<bool, StoreError> {
    let (Some(instances), Some(own)) = (pipeline.store.instances(), pipeline.peers.id()) else { return Ok(false) };
    let id = number(begun.id);
    if begun.from.is_some() {
        instances.note_executed(&id, own, readings).await?;
        return Ok(true);
    }
    if instances.look(own).await?.instances.iter().all(|instance| instance.id == *own) {
        return Ok(false);
    }
    let record = serde_json::to_string(begun).unwrap_or_default();
    instances.announce(&id, own, &record).await?;
    Ok(true)
}

/// Removes the note of this instance at its end, if nothing is left that a deletion might have to remove.
pub(super) async fn leave(pipeline: &Pipeline) {
    let (Some(instances), Some(own)) = (pipeline.store.instances(), pipeline.peers.id()) else { return };
    let is_empty = pipeline.status().pending_readings == 0 && pipeline.with_pending(Pending::deletions) == 0;
    if is_empty && pipeline.dead_letters.is_empty() {
        let _ = tokio::time::timeout(LEAVE, instances.leave(own)).await; // otherwise the note expires
    }
}

/// Returns the number of a deletion as the store has it.
fn number(id: u64) -> String {
    format!("{id:016x}")
}
