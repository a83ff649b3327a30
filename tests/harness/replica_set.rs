//! A replica set of three members, all on this machine, whose members are killed, frozen and stepped down.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::Client;
use tempfile::TempDir;

use super::mongod::leash::Leash;
use super::mongod::{free_port, spawn};

/// How long the members may take to agree on a primary, on a busy machine.
const ELECTION_DEADLINE: Duration = Duration::from_secs(60);
const MEMBERS: usize = 3;

/// Three members. They end when this is dropped.
#[derive(Debug)]
pub(crate) struct ReplicaSet {
    members: Vec<Member>,
    uri: String,
}

#[derive(Debug)]
struct Member {
    port: u16,
    folder: TempDir,
    running: Option<(Child, Leash)>,
}

impl ReplicaSet {
    /// Starts three members and waits until they have a primary.
    pub(crate) async fn start() -> Self {
        let members: Vec<Member> = (0..MEMBERS).map(|_| Member::start()).collect();
        let hosts: Vec<String> = members.iter().map(|member| format!("127.0.0.1:{}", member.port)).collect();
        let set =
            Self { members, uri: format!("mongodb://{}/?replicaSet=tests&heartbeatFrequencyMS=500", hosts.join(",")) };
        let members: Vec<Document> =
            hosts.iter().enumerate().map(|(id, host)| doc! { "_id": id as i32, "host": host }).collect();
        let settings = doc! { "electionTimeoutMillis": 1_500, "heartbeatIntervalMillis": 300 };
        let config = doc! { "_id": "tests", "members": members, "settings": settings };
        let deadline = Instant::now() + ELECTION_DEADLINE;
        while let Err(reason) = set.command(0, doc! { "replSetInitiate": &config }).await {
            assert!(Instant::now() < deadline, "the replica set cannot be initiated: {reason}");
            tokio::time::sleep(Duration::from_millis(100)).await; // the others may not listen yet
        }
        set.primary().await;
        set
    }

    /// The URI, without a database name.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    /// Which member is the primary. Waits until one is, and answers.
    pub(crate) async fn primary(&self) -> usize {
        let deadline = Instant::now() + ELECTION_DEADLINE;
        loop {
            for member in 0..MEMBERS {
                let hello = self.command(member, doc! { "hello": 1 }).await.unwrap_or_default();
                if hello.get_bool("isWritablePrimary").unwrap_or(false) {
                    return member;
                }
            }
            assert!(Instant::now() < deadline, "no primary after {ELECTION_DEADLINE:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends a member the hard way.
    pub(crate) fn kill9(&mut self, member: usize) {
        self.members[member].kill9();
    }

    /// Starts a member again. The others take it back in their own time.
    pub(crate) fn start_again(&mut self, member: usize) {
        self.members[member].start_again();
    }

    /// Lets a member hang: it answers nothing, and refuses nothing.
    pub(crate) fn freeze(&self, member: usize) {
        self.members[member].signal("-STOP");
    }

    /// Lets a member go on.
    pub(crate) fn thaw(&self, member: usize) {
        self.members[member].signal("-CONT");
    }

    /// Makes the primary a secondary.
    pub(crate) async fn step_down(&self, primary: usize) {
        let stepped = self.command(primary, doc! { "replSetStepDown": 5, "force": true }).await;
        stepped.unwrap_or_else(|reason| panic!("the primary does not step down: {reason}"));
    }

    /// What a member answers.
    async fn command(&self, member: usize, command: Document) -> Result<Document, String> {
        let port = self.members[member].port;
        let limits = "serverSelectionTimeoutMS=1000&connectTimeoutMS=1000";
        let uri = format!("mongodb://127.0.0.1:{port}/?directConnection=true&{limits}");
        let admin = Client::with_uri_str(uri).await.expect("a MongoDB URI").database("admin");
        let answer = tokio::time::timeout(ELECTION_DEADLINE / 2, admin.run_command(command)).await;
        answer.map_err(|elapsed| elapsed.to_string())?.map_err(|error| error.to_string())
    }
}

impl Member {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("tidegauge-mongod-").tempdir().expect("a temporary folder");
        let mut member = Self { port: free_port(), folder, running: None };
        member.start_again();
        member
    }

    fn start_again(&mut self) {
        assert!(self.running.is_none(), "it is running");
        let child = spawn(self.port, self.folder.path());
        let leash = Leash::tie(&child, self.folder.path());
        self.running = Some((child, leash));
    }

    fn kill9(&mut self) {
        if let Some((mut child, _leash)) = self.running.take() {
            child.kill().expect("our child");
            child.wait().expect("our child");
        }
    }

    fn signal(&self, signal: &str) {
        let (child, _) = self.running.as_ref().expect("it is running");
        let sent = Command::new("sh").args(["-c", "kill \"$0\" \"$1\"", signal, &child.id().to_string()]).status();
        assert!(sent.expect("sh is there").success(), "{signal} was not sent");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill9();
    }
}
