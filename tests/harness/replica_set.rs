//! A replica set of three members on this machine, for what takes more than one: elections, rollbacks,
//! majorities.
//!
//! A test that kills or freezes members takes one of its own:
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

use super::{Mongod, START_DEADLINE, blocking, client, hello, initiate, is_primary};

/// How many members there are.
const MEMBERS: usize = 3;

/// After so long without a primary the others elect a new one: 10 s by default, and shorter here, but not so
/// short that a busy machine makes it happen by itself.
const ELECTION_TIMEOUT_MS: i32 = 4_000;

/// How long the others may take to catch up before [`ReplicaSet::step_down`]; the server wants the old
/// primary not to stand for election as long.
const STEP_DOWN_SECONDS: i32 = 60;

/// A replica set of our own. Members are named by their places, 0 to 2.
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

    /// Ends a member the hard way.
    pub(crate) fn kill9(&mut self, member: usize) {
        self.members[member].kill9();
    }

    /// Starts a member again after [`ReplicaSet::kill9`], and waits until it is one of the set.
    pub(crate) fn start_again(&mut self, member: usize) {
        self.members[member].spawn();
        self.members[member].wait_until(is_data_bearing);
    }

    /// Stops a member in its tracks: its connections stay open, and nothing is answered.
    pub(crate) fn freeze(&self, member: usize) {
        self.members[member].freeze();
    }

    /// Lets a frozen member go on.
    pub(crate) fn thaw(&self, member: usize) {
        self.members[member].thaw();
    }

    /// Lets the primary give its role away in good order, and returns which it was. It stands for election
    /// again at once, so that the set gets over the loss of the next primary as fast as ever.
    pub(crate) fn step_down(&self) -> usize {
        let primary = self.primary();
        let step_down = doc! { "replSetStepDown": STEP_DOWN_SECONDS, "secondaryCatchUpPeriodSecs": STEP_DOWN_SECONDS };
        blocking(async {
            let admin = self.members[primary].patient_admin().await;
            admin.run_command(step_down).await.expect("the others have caught up");
            admin.run_command(doc! { "replSetFreeze": 0 }).await.expect("it is no primary");
        });
        primary
    }

    /// Waits until there is a primary, and tells which it is.
    pub(crate) fn primary(&self) -> usize {
        let deadline = Instant::now() + START_DEADLINE;
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
                assert!(Instant::now() < deadline, "no primary after {START_DEADLINE:?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    }
}

fn is_data_bearing(hello: &Document) -> bool {
    is_primary(hello) || hello.get_bool("secondary").unwrap_or(false)
}
