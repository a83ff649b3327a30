//! A replica set of three members on this machine, for elections, rollbacks and majorities.
//!
//! A test that kills or freezes members starts its own:
//!
//! ```ignore
//! let mut set = ReplicaSet::start();             // on a thread that may block: tokio::task::block_in_place
//! let database = Database::at(set.uri());
//! let old = set.primary();
//! set.kill9(old);                                // or set.freeze(old), or set.step_down()
//! set.start_again(old);                          // or set.thaw(old)
//! ```

use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::error::{Error, ErrorKind};

use super::deadline::deadline;
use super::{Mongod, START_SECONDS, blocking, client, hello, initiate, is_primary};

/// The number of members.
const MEMBERS: usize = 3;

/// The time without a primary after which the other members elect a new one.
///
/// It is shorter than the default of 10 s, but long enough that a busy machine does not cause an election.
const ELECTION_TIMEOUT_MS: i32 = 4_000;

/// How long the other members may take to catch up in [`ReplicaSet::step_down`].
///
/// For the same time the old primary may not become primary again.
const STEP_DOWN_SECONDS: i32 = 60;

/// `PrimarySteppedDown`, `NotWritablePrimary`, `InterruptedDueToReplStateChange`.
const NOT_PRIMARY: [i32; 3] = [189, 10_107, 11_602];

/// A replica set. Its members have the numbers 0 to 2.
#[derive(Debug)]
pub(crate) struct ReplicaSet {
    members: Vec<Mongod>,
    uri: String,
}

impl ReplicaSet {
    /// Starts the servers and waits until one is the primary and the others follow it.
    pub(crate) fn start() -> Self {
        let mut members: Vec<Mongod> = (0..MEMBERS).map(|_| Mongod::start_uninitiated(&[])).collect();
        for member in &mut members {
            member.wait_until(|hello| hello.contains_key("isreplicaset"));
        }
        let all: Vec<&Mongod> = members.iter().collect();
        initiate(&all, doc! { "electionTimeoutMillis": ELECTION_TIMEOUT_MS, "heartbeatIntervalMillis": 500 });
        for member in &mut members {
            member.wait_until(is_data_bearing);
        }
        let addresses: Vec<String> = members.iter().map(Mongod::address).collect();
        let set = Self { uri: format!("mongodb://{}/?replicaSet=tests", addresses.join(",")), members };
        set.primary();
        set
    }

    /// The URI of all members, without a database name.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// Kills a member with SIGKILL.
    pub(crate) fn kill9(&mut self, member: usize) {
        self.members[member].kill9();
    }

    /// Starts a member again after [`ReplicaSet::kill9`].
    ///
    /// It waits until the member has rejoined the set.
    pub(crate) fn start_again(&mut self, member: usize) {
        self.members[member].spawn();
        self.members[member].wait_until(is_data_bearing);
    }

    /// Stops a member with SIGSTOP: its connections stay open and it does not answer.
    pub(crate) fn freeze(&self, member: usize) {
        self.members[member].freeze();
    }

    /// Continues a frozen member.
    pub(crate) fn thaw(&self, member: usize) {
        self.members[member].thaw();
    }

    /// Makes the primary step down, and returns its number.
    ///
    /// This ends the time in which it may not be elected again ([`STEP_DOWN_SECONDS`]). So the set recovers
    /// from the loss of the next primary as fast as before.
    pub(crate) fn step_down(&self) -> usize {
        let give_up_at = Instant::now() + deadline(START_SECONDS);
        loop {
            let primary = self.primary();
            match blocking(self.try_step_down(primary)) {
                Ok(()) => return primary,
                Err(error) if is_not_primary(&error) && Instant::now() < give_up_at => {} // ask the new primary
                Err(error) => panic!("member {primary} does not step down: {error}"),
            }
        }
    }

    async fn try_step_down(&self, primary: usize) -> Result<(), Error> {
        let admin = self.members[primary].admin().await;
        let seconds = STEP_DOWN_SECONDS;
        admin.run_command(doc! { "replSetStepDown": seconds, "secondaryCatchUpPeriodSecs": seconds }).await?;
        admin.run_command(doc! { "replSetFreeze": 0 }).await.map(drop)
    }

    /// Waits for a primary and returns its number.
    pub(crate) fn primary(&self) -> usize {
        let limit = deadline(START_SECONDS);
        let give_up_at = Instant::now() + limit;
        let candidates = (0..MEMBERS).filter(|&member| self.members[member].running.is_some());
        let uris: Vec<_> = candidates.map(|member| (member, self.members[member].own_uri())).collect();
        blocking(async {
            let mut candidates = Vec::new();
            for (member, uri) in uris {
                candidates.push((member, client(&uri).await));
            }
            loop {
                for (member, client) in &candidates {
                    if is_primary(&hello(client).await) {
                        return *member;
                    }
                }
                assert!(Instant::now() < give_up_at, "no primary after {limit:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    }
}

fn is_data_bearing(hello: &Document) -> bool {
    is_primary(hello) || hello.get_bool("secondary").unwrap_or(false)
}

/// Whether a command failed because the member is not the primary.
///
/// A primary that is stepping down fails so too.
fn is_not_primary(error: &Error) -> bool {
    matches!(&*error.kind, ErrorKind::Command(command) if NOT_PRIMARY.contains(&command.code))
}
