//! Waits for a store that is away.
//!
//! A command is one process, and several of its tasks may wait for the same store. The waits are in one list,
//! from which [`say_waits`] tells a person what the command waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::bail;
use tidegauge::common::backoff::Backoff;
use tidegauge::common::finding::span;
use tidegauge::flush::Retry;
use tidegauge::store::{Cause, StoreError};
use tokio::time::Instant;

/// How long a store may be away before the command ends.
const RETRY_FOR: Duration = Duration::from_secs(300);

/// The trouble with a store, in a few words.
const AWAY: &str = "a store does not answer";

/// The time between two lines about the same wait.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// Repeats a request while it fails for a reason that may pass, for five minutes.
///
/// A collection of another kind ends the command at once, although the service waits until a person has
/// mended it.
pub(in super::super) async fn patiently<T>(
    mut request: impl AsyncFnMut() -> Result<T, StoreError>,
) -> anyhow::Result<T> {
    let mut patience = Patience::default();
    loop {
        match request().await {
            Ok(answer) => return Ok(answer),
            Err(error) if error.cause.is_permanent() || error.cause == Cause::Schema => return Err(error.into()),
            Err(error) => patience.wait(&error, true).await?,
        }
    }
}

/// Says every ten seconds what this process waits for, since when, and why.
pub(super) async fn say_waits(say: impl Fn(&str)) -> Infallible {
    let mut ticks = tokio::time::interval(SAID_EVERY);
    ticks.tick().await; // the first one is at once
    loop {
        ticks.tick().await;
        for line in lines() {
            say(&line);
        }
    }
}

/// The waits for a store that is away.
#[derive(Default)]
pub(super) struct Patience {
    backoff: Backoff,
    wait: Option<Wait>,
}

impl Retry for Patience {
    type GaveUp = anyhow::Error;

    fn succeed(&mut self) {
        *self = Self::default();
    }

    async fn wait(&mut self, error: &StoreError, _is_whole: bool) -> anyhow::Result<()> {
        let why = &*error.detail;
        let wait = self.wait.get_or_insert_with(|| Wait::begin(why));
        if wait.begun.elapsed() > RETRY_FOR {
            bail!("{why}; gave up after {RETRY_FOR:?}");
        }
        wait.note(why);
        tokio::time::sleep(self.backoff.next_wait()).await;
        Ok(())
    }
}

/// A wait in the list of this process. Dropping it ends it.
struct Wait {
    number: u64,
    begun: Instant,
}

/// The waits of this process by their numbers: why each one waits, and since when.
static WAITS: Mutex<BTreeMap<u64, (String, Instant)>> = Mutex::new(BTreeMap::new());

impl Wait {
    /// Begins a wait, and logs it unless another one for the same reason is under way.
    fn begin(why: &str) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let wait = Self { number: NEXT.fetch_add(1, Ordering::Relaxed), begun: Instant::now() };
        if !waits().values().any(|(reason, _)| reason == why) {
            tracing::warn!(why, "{AWAY}; trying again");
        }
        wait
    }

    /// Notes the reason of the last attempt.
    fn note(&self, why: &str) {
        waits().insert(self.number, (why.to_owned(), self.begun));
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        waits().remove(&self.number);
    }
}

fn waits() -> MutexGuard<'static, BTreeMap<u64, (String, Instant)>> {
    WAITS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The waits for people, one line for each reason, the oldest first.
fn lines() -> Vec<String> {
    let waits = waits();
    let (mut lines, mut known) = (Vec::new(), BTreeSet::new());
    for (why, begun) in waits.values() {
        if known.insert(why) {
            lines.push(format!("{AWAY}, for {} now: {why}", span(begun.elapsed())));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_said_every_ten_seconds_once_for_each_reason_until_it_ends() {
        let begun = Instant::now();
        let away = async || {
            if begun.elapsed() < Duration::from_secs(35) {
                return Err(StoreError::new(Cause::Network, "h is not reached"));
            }
            Ok(())
        };
        let said = RefCell::new(Vec::new());
        let work = async {
            let (one, other) = tokio::join!(patiently(&away), patiently(&away));
            tokio::time::sleep(Duration::from_secs(30)).await;
            one.and(other)
        };
        let say = |line: &str| said.borrow_mut().push(line.to_owned());
        tokio::select! {
            done = work => done.unwrap(),
            never = say_waits(say) => match never {},
        }
        let said = said.into_inner();
        let line = |seconds: u32| format!("a store does not answer, for {seconds}.0 seconds now: h is not reached");
        assert_eq!(said[..3], [10, 20, 30].map(line));
        assert!(said.len() <= 4, "the last wait before an attempt is at most ten seconds: {said:?}");
    }
}
