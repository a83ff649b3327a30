//! Processes that are stopped in their tracks: their connections stay open and get no answer.

use std::process::Command;

use super::Mongod;

impl Mongod {
    /// Stops the server in its tracks.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets the server go on.
    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let (child, _) = self.running.as_ref().expect("it is running");
        let sent = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().expect("kill(1)");
        assert!(sent.success());
    }
}
