//! The notes of the instances that share a store, in memory, so that their answers can be lost at will.

use super::*;
use crate::log::BegunDeletion;
use crate::store::{Announced, Instance, Joined, Notes};

/// Notes of instances, and of deletions that a test adds.
#[derive(Default)]
pub(in crate::flush) struct KeptNotes {
    /// Whether calls take effect and their answers are lost.
    pub(in crate::flush) loses_answers: AtomicBool,
    /// Whether only the answers to [`Instances::close`] are lost.
    pub(in crate::flush) loses_closing: AtomicBool,
    /// Whether beats are refused.
    pub(in crate::flush) refuses_beats: AtomicBool,
    /// How long the answer to a beat takes.
    pub(in crate::flush) beat_takes: Mutex<Duration>,
    pub(in crate::flush) longest_command: Mutex<Duration>,
    instances: Mutex<Vec<Instance>>,
    /// The deletions, and when each was announced.
    deletions: Mutex<Vec<(Instant, Announced)>>,
}

impl KeptNotes {
    /// Adds a deletion of a device that another instance has just announced, and that is closed.
    pub(in crate::flush) fn add_closed(&self, id: u64, device: &str) {
        let deletion = Arc::new(Deletion::of_device(device.into()));
        let begun = BegunDeletion { id, by: "test".into(), deletion, from: None };
        self.add(Announced { is_closed: true, ..announced(&begun, "other") });
    }

    /// Adds a deletion that an instance has just announced and executed, and that is not closed.
    pub(in crate::flush) fn add_executed(&self, begun: &BegunDeletion, by: &str, readings: u64) {
        self.add(Announced { executed: vec![(by.to_owned(), readings)], ..announced(begun, by) });
    }

    fn add(&self, announced: Announced) {
        self.deletions.lock().unwrap().push((Instant::now(), announced));
    }

    /// Adds an instance that beats no more.
    pub(in crate::flush) fn add_stopped(&self, instance: &str, lease: Duration) {
        self.instances.lock().unwrap().push(Instance { id: instance.into(), beats: 1, lease });
    }

    /// How long each instance counts as running after its last beat, by the notes.
    pub(in crate::flush) fn leases(&self) -> Vec<Duration> {
        self.instances.lock().unwrap().iter().map(|instance| instance.lease).collect()
    }

    /// The numbers of the deletions that an instance has executed, or need not execute.
    pub(in crate::flush) fn executed(&self) -> Vec<u64> {
        let deletions = self.deletions.lock().unwrap();
        let executed = deletions.iter().filter(|(_, announced)| !announced.executed.is_empty());
        executed.map(|(_, announced)| u64::from_str_radix(&announced.id, 16).unwrap()).collect()
    }

    fn execute(&self, instance: &str, readings: u64, is_meant: impl Fn(Instant, &Announced) -> bool) {
        for (at, announced) in &mut *self.deletions.lock().unwrap() {
            if is_meant(*at, announced) && !announced.is_executed_by(instance) {
                announced.executed.push((instance.to_owned(), readings));
            }
        }
    }

    fn answer<T>(&self, answer: T) -> Result<T, StoreError> {
        if self.loses_answers.load(Ordering::Relaxed) { Err(away()) } else { Ok(answer) }
    }
}

/// The note of a deletion that no instance has executed.
fn announced(begun: &BegunDeletion, from: &str) -> Announced {
    Announced {
        id: format!("{:016x}", begun.id),
        from: from.to_owned(),
        record: serde_json::to_string(begun).unwrap(),
        joined: Vec::new(),
        executed: Vec::new(),
        is_closed: false,
    }
}

#[async_trait]
impl Instances for KeptNotes {
    async fn beat(&self, instance: &str, valid: Duration) -> Result<bool, StoreError> {
        let is_new = {
            let mut instances = self.instances.lock().unwrap();
            let known = instances.iter().position(|known| *known.id == *instance);
            match known {
                Some(at) => {
                    instances[at].beats += 1;
                    instances[at].lease = valid;
                }
                None => instances.push(Instance { id: instance.into(), beats: 1, lease: valid }),
            }
            known.is_none()
        };
        let takes = *self.beat_takes.lock().unwrap();
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        if self.refuses_beats.load(Ordering::Relaxed) {
            return Err(StoreError::new(Cause::NotPrimary, "not primary"));
        }
        self.answer(is_new)
    }

    fn longest_command(&self) -> Duration {
        *self.longest_command.lock().unwrap()
    }

    async fn look(&self, instance: &str) -> Result<Notes, StoreError> {
        let instances = self.instances.lock().unwrap().clone();
        let deletions = self.deletions.lock().unwrap();
        let is_left = |of: &&Announced| !of.is_closed || !of.is_executed_by(instance);
        let left = deletions.iter().map(|(_, announced)| announced).filter(is_left);
        self.answer(Notes { instances, deletions: left.cloned().collect() })
    }

    async fn announce(&self, _id: &str, _from: &str, _record: &str) -> Result<(), StoreError> {
        self.answer(())
    }

    async fn join(&self, _id: &str, _instance: &str) -> Result<Joined, StoreError> {
        self.answer(Joined::Closed)
    }

    async fn note_executed(&self, id: &str, instance: &str, readings: u64) -> Result<(), StoreError> {
        self.execute(instance, readings, |_, announced| announced.id == *id);
        self.answer(())
    }

    async fn close(&self, announced: &Announced) -> Result<bool, StoreError> {
        let mut deletions = self.deletions.lock().unwrap();
        let open = deletions.iter_mut().find(|(_, of)| of.id == announced.id && !of.is_closed);
        let closes = open.is_some();
        if let Some((_, of)) = open {
            of.is_closed = true;
        }
        if self.loses_closing.load(Ordering::Relaxed) { Err(away()) } else { self.answer(closes) }
    }

    async fn pass_closed(&self, instance: &str, age: Duration) -> Result<(), StoreError> {
        self.execute(instance, 0, |at, _| at.elapsed() >= age);
        self.answer(())
    }

    async fn remove_closed(&self, _instances: &[&str]) -> Result<(), StoreError> {
        self.answer(())
    }

    async fn leave(&self, instance: &str) -> Result<(), StoreError> {
        self.instances.lock().unwrap().retain(|known| *known.id != *instance);
        self.answer(())
    }

    async fn check_entry(&self, _device: &Arc<str>) -> Result<(), StoreError> {
        self.answer(())
    }
}
