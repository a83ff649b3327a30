//! `tidegauge import --follow`: what a gateway appends arrives once, whatever becomes of the file and the
//! importer.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

use super::{Readings, path, readings};
use crate::forward::relay::Relay;
use crate::harness::{Server, Setup, binary, in_stores, wait_for, wait_until};

const HEADER: &str = "time;press [bar];state\n";
const START_MS: i64 = 1_792_852_215_000;

/// A gateway that appends to a file, and what its rows mean.
struct Gateway {
    _folder: TempDir,
    file: PathBuf,
    progress: PathBuf,
    rows: u32,
    generation: u32,
    written: Readings,
}

impl Gateway {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let [file, progress] = ["press.csv", "press.progress"].map(|name| folder.path().join(name));
        fs::write(&file, HEADER).expect("writable");
        Self { _folder: folder, file, progress, rows: 0, generation: 0, written: Readings::new() }
    }

    /// The text of the next rows.
    fn rows(&mut self, count: u32) -> String {
        let mut text = String::new();
        for _ in 0..count {
            self.rows += 1;
            let ms = START_MS + i64::from(self.rows) * 1000;
            let at = jiff::Timestamp::from_millisecond(ms).expect("in range");
            writeln!(text, "{};{},5;ok", at.strftime("%d.%m.%Y %H:%M:%S"), self.rows).expect("a String takes any text");
            let values = BTreeMap::from([("press{unit=bar}".to_owned(), f64::from(self.rows) + 0.5)]);
            self.written.insert(("d".to_owned(), ms), values);
        }
        text
    }

    fn append(&mut self, count: u32) {
        let text = self.rows(count);
        self.write(&text);
    }

    fn write(&self, text: &str) {
        File::options()
            .append(true)
            .open(&self.file)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .expect("ours");
    }

    /// Renames the file, and begins another one.
    fn rotate(&mut self) {
        self.generation += 1;
        fs::rename(&self.file, self.file.with_extension(format!("csv.{}", self.generation))).expect("our folder");
        fs::write(&self.file, HEADER).expect("our folder");
    }

    /// Copies the file and truncates it. The gateway may write a header again.
    fn copy_and_truncate(&mut self, header: &str) {
        self.generation += 1;
        fs::copy(&self.file, self.file.with_extension(format!("csv.{}", self.generation))).expect("our folder");
        fs::write(&self.file, header).expect("our folder");
    }

    fn follow(&self, server: &Server) -> Follower {
        self.follow_to(server.url())
    }

    fn follow_to(&self, url: &str) -> Follower {
        let mut command = Command::new(binary());
        command.args(["import", path(&self.file), "--url", url, "--device", "d", "--tz", "UTC", "--follow"]);
        command.args(["--progress", path(&self.progress), "--metric", "press{unit=bar}"]);
        Follower(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")))
    }

    async fn arrived(&self, server: &Server) {
        wait_for("all rows arrive", async || {
            let found = readings(server).await;
            match self.written.keys().find(|row| !found.contains_key(*row)) {
                None => Ok(()),
                Some(row) => Err(format!("{} of {} rows are there, not {row:?}", found.len(), self.written.len())),
            }
        })
        .await;
        assert_eq!(readings(server).await, self.written);
    }
}

struct Follower(Option<Child>);

impl Follower {
    fn kill9(mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().expect("our child");
            child.wait().expect("our child");
        }
    }

    fn has_open(&self, file: &Path) -> bool {
        let id = self.0.as_ref().expect("it runs").id();
        let open = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
        open.map(|link| fs::read_link(link.path())).any(|path| path.is_ok_and(|path| path == file))
    }

    async fn terminate(mut self) -> Output {
        let mut child = self.0.take().expect("it runs");
        let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill runs");
        assert!(kill.success());
        wait_until("it ends", async || child.try_wait().expect("our child")).await;
        child.wait_with_output().expect("our child")
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            drop((child.kill(), child.wait()));
        }
    }
}

in_stores!(appended_rows_arrive_over_rotations_truncations_and_kills, [sqlite, mongodb]);

async fn appended_rows_arrive_over_rotations_truncations_and_kills(setup: Setup) {
    let server = Server::start(setup).await;
    let mut gateway = Gateway::new();
    let mut follower = gateway.follow(&server);
    for round in 0..24 {
        gateway.append(1 + round * 7 % 40);
        match round % 6 {
            0 => gateway.arrived(&server).await,
            1 => gateway.rotate(),
            2 => {
                follower.kill9();
                gateway.append(3);
                if round % 4 == 0 {
                    gateway.rotate();
                }
                follower = gateway.follow(&server);
            }
            3 => {
                gateway.arrived(&server).await;
                gateway.copy_and_truncate(HEADER);
            }
            4 => {
                let ended = follower.terminate().await;
                assert_eq!(ended.status.code(), Some(0), "{ended:?}");
                gateway.append(2);
                gateway.rotate();
                gateway.append(2);
                gateway.rotate();
                follower = gateway.follow(&server);
            }
            _ => {
                let text = gateway.rows(5);
                let (one, two) = text.split_at(text.len() / 2);
                gateway.write(one);
                gateway.write(two);
            }
        }
    }
    gateway.arrived(&server).await;
    let ended = follower.terminate().await;
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
}

#[tokio::test]
async fn a_stop_accounts_for_what_was_sent_and_a_partial_line_waits() {
    let server = Server::start(Setup::sqlite()).await;
    let mut gateway = Gateway::new();
    let follower = gateway.follow(&server);
    gateway.append(10);
    gateway.arrived(&server).await;
    gateway.write("24.10.2026 20:00:00;7");
    gateway.write(",5;no line end");
    let ended = follower.terminate().await;
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.starts_with("10 rows read"), "{ended:?}");
    assert!(said.contains("10 readings accepted, 0 rejected"), "{ended:?}");

    let follower = gateway.follow(&server);
    gateway.write("\n24.10.2026 20:00:01;\"8\n24.10.2026 20:00:02;9,5;ok\n");
    wait_until("the rows arrive", async || (readings(&server).await.len() == 12).then_some(())).await;
    let ended = follower.terminate().await;
    let (said, listed) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.code() == Some(1) && said.starts_with("3 rows read"), "{ended:?}");
    assert!(said.contains("2 readings accepted, 1 rejected"), "{ended:?}");
    assert!(listed.contains("continuing after line 11 of"), "{ended:?}");
    assert!(listed.contains("press.csv:13: a quote is not closed"), "{ended:?}");
}

#[tokio::test]
async fn a_truncated_file_without_a_header_has_the_last_one_also_after_a_restart() {
    let server = Server::start(Setup::sqlite()).await;
    let mut gateway = Gateway::new();
    for _ in 0..2 {
        let follower = gateway.follow(&server);
        gateway.append(4);
        gateway.arrived(&server).await;
        gateway.copy_and_truncate("");
        gateway.append(2);
        gateway.arrived(&server).await;
        let ended = follower.terminate().await;
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    }
}

/// A gateway that writes in buffers is within a row when its file is truncated.
#[tokio::test]
async fn a_torn_or_bad_first_row_of_a_truncated_file_is_rejected_once_and_the_next_rows_arrive() {
    let server = Server::start(Setup::sqlite()).await;
    let mut gateway = Gateway::new();
    for bad in ["0:05;21,5;ok\n", "1,5;ok\n", "k\n", "\"\n", "24.10.2026 20:00:00;ERR;ok\n"] {
        let follower = gateway.follow(&server); // from the second on, in a file that begins with a bad row
        gateway.append(5);
        gateway.arrived(&server).await;
        gateway.copy_and_truncate(bad);
        gateway.append(2);
        gateway.arrived(&server).await;
        let ended = follower.terminate().await;
        let (said, listed) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        assert!(ended.status.code() == Some(1) && said.contains("1 rejected (1 not converted)"), "{bad}: {ended:?}");
        assert!(listed.contains("press.csv:1: "), "{bad}: {listed}");
    }
}

/// The rest of a row may be a row too: here, of another day.
#[tokio::test]
async fn a_row_within_which_a_file_is_truncated_is_rejected_with_its_rest() {
    let server = Server::start(Setup::sqlite()).await;
    let mut gateway = Gateway::new();
    let follower = gateway.follow(&server);
    gateway.append(5);
    gateway.arrived(&server).await;
    gateway.write("2");
    gateway.copy_and_truncate("4.10.2026 20:00:05;21,5;ok\n");
    gateway.append(2);
    gateway.arrived(&server).await;
    let ended = follower.terminate().await;
    let (said, listed) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.code() == Some(1) && said.contains("2 rejected (2 not converted)"), "{ended:?}");
    assert!(listed.contains("press.csv.1:7: the file ends within \"2\""), "{listed}");
    let rest = "press.csv:1: the file before ended within a line, and this may be its rest: \"4.10.2026 20:00:05;";
    assert!(listed.contains(rest), "{listed}");
}

/// The rows of another header are not read under the last one.
#[tokio::test]
async fn a_truncated_file_whose_header_lacks_the_metric_or_the_time_is_refused() {
    for header in ["time;temp [bar];hum", "Zeit;hum;press [bar]"] {
        let server = Server::start(Setup::sqlite()).await;
        let mut gateway = Gateway::new();
        let mut follower = gateway.follow(&server);
        gateway.append(2);
        gateway.arrived(&server).await;
        gateway.copy_and_truncate(&format!("{header}\n24.10.2026 20:00:00;7,5;8,5\n"));
        let child = follower.0.as_mut().expect("it runs");
        let status = wait_until("it ends", async || child.try_wait().expect("our child")).await;
        assert_eq!(status.code(), Some(64), "{header}");
        assert_eq!(readings(&server).await, gateway.written);
    }
}

#[tokio::test]
async fn the_last_line_of_a_rotated_file_is_rejected_if_it_has_no_end() {
    let server = Server::start(Setup::sqlite()).await;
    let mut gateway = Gateway::new();
    let follower = gateway.follow(&server);
    gateway.append(2);
    gateway.arrived(&server).await;
    gateway.write("24.10.2026 20:00:00;7;o");
    gateway.rotate();
    gateway.append(2);
    gateway.arrived(&server).await;
    let ended = follower.terminate().await;
    let (said, listed) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.code() == Some(1) && said.contains("1 rejected (1 not converted)"), "{ended:?}");
    assert!(listed.contains("press.csv:4: the file ends within \"24.10.2026 20:00:00;7;o\""), "{listed}");
}

#[tokio::test]
async fn rows_wait_for_a_server_that_is_away() {
    let server = Server::start(Setup::sqlite()).await;
    let relay = Relay::start().await;
    let mut gateway = Gateway::new();
    gateway.append(20);
    let follower = gateway.follow_to(relay.url());
    wait_until("it notes the file", async || gateway.progress.exists().then_some(())).await;
    follower.kill9();
    gateway.rotate(); // before the server took any line
    let follower = gateway.follow_to(relay.url());
    gateway.append(20);
    relay.lead_to(Some(server.http_addr()));
    gateway.arrived(&server).await; // it follows the file
    for server in [None, Some(&server)] {
        relay.lead_to(server.map(Server::http_addr));
        gateway.append(20);
        gateway.rotate();
        gateway.append(20);
        if let Some(server) = server {
            gateway.arrived(server).await;
        }
    }
    assert!(follower.terminate().await.status.success());

    relay.lead_to(None);
    gateway.append(20);
    let follower = gateway.follow_to(relay.url());
    wait_until("it reads the file", async || follower.has_open(&gateway.file).then_some(())).await;
    let ended = follower.terminate().await;
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    assert!(said.contains("stopped by SIGTERM before the server took all lines"), "{said}");
    assert_eq!(said.matches("rows wait until the server accepts them: http://").count(), 1, "{said}");
    relay.lead_to(Some(server.http_addr()));
    gateway.rotate();
    fs::remove_file(&gateway.file).expect("our folder"); // the gateway has not made the new file yet
    let follower = gateway.follow_to(relay.url());
    gateway.arrived(&server).await;
    assert!(follower.terminate().await.status.success());
}

/// The address stays the same, as when the readings are moved to another store.
#[tokio::test]
async fn rows_go_on_in_another_store_of_the_server_with_a_line_about_it() {
    let servers = [Server::start(Setup::sqlite()).await, Server::start(Setup::sqlite()).await];
    for server in &servers {
        let id = async || server.get_json("/version").await["storeId"].as_str().map(str::to_owned);
        wait_until("the ID of the store is known", id).await;
    }
    let relay = Relay::start().await;
    let mut gateway = Gateway::new();
    for (server, lines) in servers.iter().zip([0, 1]) {
        relay.lead_to(Some(server.http_addr()));
        gateway.written.clear();
        gateway.append(5);
        let follower = gateway.follow_to(relay.url());
        gateway.arrived(server).await;
        let ended = follower.terminate().await;
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(0), "{said}");
        assert_eq!(said.matches("press.progress: the server has another store now").count(), lines, "{said}");
    }
}

#[tokio::test]
async fn only_one_plain_file_is_followed() {
    for files in [&["-"][..], &["a.csv", "b.csv"], &["a.csv.gz"]] {
        let refused = crate::harness::run(&[&["import", "--follow"], files].concat()).await;
        assert!(refused.code == Some(64) && refused.stderr.contains("--follow is for one file"), "{refused:?}");
    }
}
