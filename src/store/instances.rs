//! The notes by which the instances of a store know each other.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::StoreError;

/// The notes of the instances that share a store: which of them run, and the deletions that each has to
/// execute.
///
/// `flush` gives them their meaning. Each call is durable when it returns `Ok`, may be repeated, and changes
/// one note in one step, unless it says otherwise. A note is removed some weeks after its last change.
#[async_trait]
pub trait Instances: Send + Sync {
    /// Notes that an instance runs. Returns whether the instance had no note.
    ///
    /// The instance begins no write later than `valid` after this call. [`Instance::lease`] is `valid` plus
    /// [`Self::longest_command`].
    async fn beat(&self, instance: &str, valid: Duration) -> Result<bool, StoreError>;

    /// How long a command, also one without an answer, may be under way.
    fn longest_command(&self) -> Duration;

    /// Returns all instances, and the deletions that are not closed or that this instance has not executed.
    async fn look(&self, instance: &str) -> Result<Notes, StoreError>;

    /// Notes a deletion that no instance has joined yet. Does nothing if it is noted already.
    async fn announce(&self, id: &str, from: &str, record: &str) -> Result<(), StoreError>;

    /// Makes an instance join a deletion, unless the deletion is closed.
    async fn join(&self, id: &str, instance: &str) -> Result<Joined, StoreError>;

    /// Notes that an instance has executed a deletion, and how many readings it has removed.
    async fn note_executed(&self, id: &str, instance: &str, readings: u64) -> Result<(), StoreError>;

    /// Closes a deletion if the instances that have joined it are those of `announced`. Returns whether it
    /// has done so.
    async fn close(&self, announced: &Announced) -> Result<bool, StoreError>;

    /// Notes that an instance need not execute the closed deletions that were announced at least `age` ago.
    /// The clock of the store decides.
    ///
    /// The instance must have begun that long ago, with an empty log and without dead letters. Then it has no
    /// readings from before these deletions.
    async fn pass_closed(&self, instance: &str, age: Duration) -> Result<(), StoreError>;

    /// Removes the closed deletions that all of these instances have executed.
    async fn remove_closed(&self, instances: &[&str]) -> Result<(), StoreError>;

    /// Removes the note of an instance that has nothing pending.
    async fn leave(&self, instance: &str) -> Result<(), StoreError>;

    /// Makes the device index cover the readings of a device again. Another instance, which has deleted some
    /// of them, may have removed from the index what this instance has noted there.
    async fn check_entry(&self, device: &Arc<str>) -> Result<(), StoreError>;
}

/// The answer to [`Instances::look`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Notes {
    /// All instances that have a note.
    pub instances: Vec<Instance>,
    /// The deletions that are not closed, or that the asking instance has not executed.
    pub deletions: Vec<Announced>,
}

/// An instance that runs, or has ended without having stored all of its readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// The name of the instance.
    pub id: Arc<str>,
    /// The number of its beats. The instance runs while this number grows.
    pub beats: i64,
    /// How long after its last beat a command of a write of the instance may take effect.
    pub lease: Duration,
}

/// A deletion that each instance executes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// The number of the deletion, as text.
    pub id: String,
    /// The instance that has accepted the deletion.
    pub from: String,
    /// The record of the deletion, in the format of `flush`.
    pub record: String,
    /// The instances that have joined the deletion.
    pub joined: Vec<String>,
    /// The instances that have executed the deletion, each with its removed readings.
    pub executed: Vec<(String, u64)>,
    /// Whether the deletion is closed: no further instance executes it in the store.
    pub is_closed: bool,
}

impl Announced {
    /// Whether an instance has executed the deletion.
    #[must_use]
    pub fn is_executed_by(&self, instance: &str) -> bool {
        self.executed.iter().any(|(other, _)| other == instance)
    }
}

/// The answer to [`Instances::join`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joined {
    /// The instance has joined. The deletion is closed only when the instance has executed it, or counts as
    /// dead.
    Yes,
    /// The deletion is closed.
    Closed,
    /// There is no note of the deletion.
    Unknown,
}
