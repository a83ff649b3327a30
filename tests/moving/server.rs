//! `tidegauge move` to another server: exact over a kill, broken connections and readings that arrive
//! meanwhile; refusals, rates, rights, flags.

use std::process::{Command, Stdio};

use serde_json::json;

use super::{HOUR_MS, HOURS, START_MS, add, assert_complete, run_move, send};
use crate::forward::relay::Relay;
use crate::forward::{forwarded, to};
use crate::harness::mongod::signal;
use crate::harness::{Database, Finished, Model, Server, Setup, binary, now_ms, secret_of, wait_until};

/// The arguments of a move of the store of a server.
pub(crate) fn args(from: &Server, url: &str, flags: &[&str]) -> Vec<String> {
    let data_dir = from.data_dir().display().to_string();
    let always = ["move", "--from", "sqlite", "--to", url, "--data-dir", &data_dir];
    always.iter().chain(flags).map(|arg| (*arg).to_owned()).collect()
}

#[tokio::test]
async fn a_centre_gets_what_a_site_has_stored_once_over_a_kill_while_devices_send() {
    let (relay, centre) = (Relay::start().await, Server::start(Setup::sqlite()).await);
    relay.lead_to(Some(centre.http_addr()));
    let mut site = Server::start(Setup::sqlite()).await;
    let mut model = Model::default();
    for (nth, device) in ["a", "a/1", "b"].into_iter().enumerate() {
        let value = |at: i64| (at as f64 + nth as f64) * 0.1;
        send(&site, add(&mut model, device, (0..HOURS).map(|at| (START_MS + at * HOUR_MS, value(at))))).await;
    }
    site.start_again_after_stop(to(relay.url())).await;

    let args = args(&site, relay.url(), &[]);
    kill_after_a_place_is_noted(&site, &args).await;
    let before = accepted(&centre).await;
    assert!(before > 0, "something was sent");
    let live = async {
        wait_until("the move sends again", async || (accepted(&centre).await > before).then_some(())).await;
        for at in 0..10 {
            let hour_ms = START_MS + at * 70 * HOUR_MS;
            let (new, late) = ((START_MS + HOURS * HOUR_MS + at, 1.5), (hour_ms + 100, 0.5));
            let known = (hour_ms, (70 * at) as f64 * 0.1);
            send(&site, add(&mut model, "a", [new, late, known].into_iter())).await;
            relay.break_connections();
        }
    };
    let (done, ()) = tokio::join!(run_move(&args), live);
    assert_complete(&done);
    assert!(done.stderr.contains("continuing at the device "), "{}", done.stderr);
    assert!(!site.data_dir().join("move.json").exists(), "the move is complete");
    forwarded(&site).await;
    assert_eq!(centre.settled().await.count("tidegauge_readings_stored_total"), 3 * HOURS as u64 + 20);
    model.check(&centre).await;
    assert_complete(&run_move(&args).await);
    model.check(&centre).await;
    assert_eq!(centre.settled().await.count("tidegauge_readings_stored_total"), 3 * HOURS as u64 + 20);
}

/// Starts a slow move, and kills it once it has noted how far it is.
async fn kill_after_a_place_is_noted(site: &Server, args: &[String]) {
    let slowly = ["--max-bytes-per-second", "5kB"];
    let mut command = Command::new(binary());
    let command = command.args(args).args(slowly).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the binary runs");
    let progress = site.data_dir().join("move.json");
    wait_until("a place is noted", async || progress.exists().then_some(())).await;
    child.kill().expect("our child");
    let status = child.wait().expect("our child");
    assert_eq!(status.code(), None, "it was killed before its end");
}

#[tokio::test]
async fn a_move_names_both_sides_and_an_interrupted_one_the_command_that_continues_it() {
    let (centre, site) = (Server::start(Setup::sqlite()).await, Server::start(Setup::sqlite()).await);
    for device in ["a", "b", "c"] {
        let readings = (0..HOURS).map(|at| (START_MS + at * HOUR_MS, at as f64 * 0.1));
        send(&site, add(&mut Model::default(), device, readings)).await;
    }
    site.settled().await;
    let slow = args(&site, centre.url(), &["--max-bytes-per-second", "5kB"]);
    let mut command = Command::new(binary());
    let child = command.args(&slow).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    wait_until("something is sent", async || (accepted(&centre).await > 0).then_some(())).await;
    signal(&child, "INT");
    let ended = tokio::task::spawn_blocking(|| child.wait_with_output()).await.expect("no panic").expect("our child");
    let said = String::from_utf8(ended.stderr).expect("text");
    assert_eq!(ended.status.code(), Some(1), "{said}");
    let first = said.lines().next().expect("a line");
    assert!(first.starts_with("moving sqlite /") && first.ends_with(&format!(" to {}", centre.url())), "{said}");
    let command = format!("{} {}", binary().display(), slow.join(" "));
    assert!(said.ends_with(&format!("stopped by SIGINT; to continue, repeat: {command}\n")), "{said}");
    assert_complete(&run_move(&args(&site, centre.url(), &[])).await);
}

async fn accepted(server: &Server) -> u64 {
    server.metrics().await.count("tidegauge_readings_accepted_total")
}

#[tokio::test]
async fn readings_that_the_centre_refuses_are_counted_and_explained() {
    let short = Setup::sqlite().set("retention.readings", "1d").set("retention.rollups", "1d");
    let (centre, site) = (Server::start(short).await, Server::start(Setup::sqlite()).await);
    let now_ms = now_ms(); // the centre accepts readings of the last day only
    let reading = |at: i64| json!({ "ts": if at < 150 { START_MS + at } else { now_ms - at }, "value": at });
    send(&site, vec![json!({ "deviceId": "S1", "readings": (0..153).map(reading).collect::<Vec<_>>() })]).await;
    site.settled().await;
    let done = run_move(&args(&site, centre.url(), &[])).await;
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.stderr.contains("sent 153 readings in "), "{}", done.stderr);
    for counts in [": 3 accepted, 150 refused (150 timestamp_too_old)", "refused: 150 readings: timestamp_too_old: "] {
        assert!(done.stderr.contains(counts), "{counts}: {}", done.stderr);
    }
    assert!(done.stderr.contains(r#"such as {"deviceId":"S1","#), "{}", done.stderr);
    assert!(done.stdout.contains("missing in the new store: 150 values"), "{}", done.stdout);
    assert_eq!(centre.settled().await.count("tidegauge_readings_stored_total"), 3);
}

#[tokio::test]
async fn a_move_needs_rights_at_the_centre_and_waits_for_its_rate() {
    // After 2,000 readings the next one has to wait for four seconds.
    let setup = Setup::sqlite().set("limits.token_readings_per_second", 400).set("limits.burst", "1s");
    let setup = setup.token("site", "scopes = ['ingest', 'query']\ndevice_prefix = 'site-7/'");
    let setup = setup.token("writer", "scopes = ['ingest']").token("reader", "scopes = ['query']");
    let centre = Server::start(setup.token("operator", "scopes = ['query', 'admin']")).await;
    let site = Server::start(Setup::sqlite()).await;
    let reading = |at: i64| json!({ "ts": START_MS + at * 1_000, "value": at });
    send(&site, vec![json!({ "deviceId": "S1", "readings": (0..2_000).map(reading).collect::<Vec<_>>() })]).await;
    site.settled().await;
    let file = site.data_dir().join("centre.token").display().to_string();
    let with = async |secret: &str| -> Finished {
        std::fs::write(&file, secret).expect("writable");
        run_move(&args(&site, centre.url(), &["--token-file", &file])).await
    };
    for (secret, status) in [("tg_wrong", "401"), (&secret_of("writer"), "403"), (&secret_of("reader"), "403")] {
        let refused = with(secret).await;
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let says = |text: &str| refused.stderr.contains(text) && !refused.stderr.contains(secret);
        assert!(says(status) && says("--token-file") && says("ingest and query"), "{refused:?}");
    }
    assert_complete(&with(&secret_of("site")).await);
    assert_complete(&with(&secret_of("site")).await); // its first request is beyond the rate
    let request = centre.request(reqwest::Method::GET, "/metrics").bearer_auth(secret_of("operator"));
    let metrics = centre.send(request).await;
    let limited = r#"tidegauge_limited_total{limit="limits.token_readings_per_second"} "#;
    let limited = metrics.text().lines().find_map(|line| line.strip_prefix(limited));
    assert!(limited.is_some_and(|count| count != "0"), "{limited:?}");
    let request = centre.request(reqwest::Method::GET, "/v1/devices").bearer_auth(secret_of("operator"));
    assert_eq!(centre.send(request).await.json()["devices"][0]["deviceId"], "site-7/S1");
}

#[tokio::test]
async fn a_move_to_a_server_with_the_same_store_is_refused_also_behind_a_proxy() {
    let relay = Relay::start().await;
    let refuses = async |args: &[String], servers: [&Server; 2]| {
        relay.lead_to(Some(servers[1].http_addr()));
        let id = async |server: &Server| server.get_json("/version").await["storeId"].as_str().map(str::to_owned);
        let mut ids = Vec::new();
        for server in servers {
            ids.push(wait_until("the store is known", async || id(server).await).await);
        }
        assert_eq!(ids[0], ids[1]);
        let refused = run_move(args).await;
        assert_eq!(refused.code, Some(64), "{refused:?}");
        assert!(refused.stderr.contains(&format!("{} already has this store", relay.url())), "{refused:?}");
    };
    let site = Server::start(Setup::sqlite()).await;
    refuses(&args(&site, relay.url(), &[]), [&site, &site]).await;

    let database = Database::new();
    let setup = Setup::mongodb(&database);
    let (one, other) = (Server::start(setup.clone()).await, Server::start(setup.clone()).await);
    let config = one.data_dir().join("move.toml");
    std::fs::write(&config, setup.to_toml()).expect("our folder");
    let with_config = ["move", "--from", "mongodb", "--to", relay.url(), "--config", config.to_str().expect("text")];
    refuses(&with_config.map(str::to_owned), [&one, &other]).await;
}

#[tokio::test]
async fn flags_that_do_not_go_together_are_refused() {
    let site = Server::start(Setup::sqlite()).await;
    for (url, flags, said) in [
        ("https://me:hunter2@h", &[][..], "has no user"),
        ("https://h/?token=hunter2", &[], "has no user"),
        ("mongodb://h", &[], "mongodb:// is not supported"),
        ("mongodb", &["--token-file", "x"], "are for a server"),
        ("mongodb", &["--max-bytes-per-second", "1kB"], "are for a server"),
    ] {
        let refused = run_move(&args(&site, url, flags)).await;
        assert!(refused.code == Some(64) && refused.stderr.contains(said), "{said}: {refused:?}");
        assert!(!refused.stderr.contains("hunter2"), "{refused:?}");
    }
}
