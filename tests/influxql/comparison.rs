//! A real influxd answers the same queries about the same data. `README.md` beside this file has the
//! differences.

use std::process::Command;

use super::data::half_pending;
use crate::harness::{Database, Influxd, Server, Setup};

/// Compares the answers with `compare.py`. Returns what it printed.
async fn compare(influxd: &Influxd, server: &Server, program: &str, choice: &[&str]) -> String {
    let program = format!("{}/tests/influxql/{program}", env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new("python3");
    python.arg(program).arg(influxd.url()).arg(format!("filled:{}", server.url())).args(choice);
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    let output =
        tokio::task::spawn_blocking(move || python.output()).await.expect("no panic").expect("python3 is there");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

#[tokio::test]
async fn queries_picked_by_hand_and_generated_ones_agree_on_sqlite() {
    let (influxd, server) = (Influxd::start().await, half_pending(Setup::sqlite()).await);
    let by_hand = compare(&influxd, &server, "compare.py", &["file"]).await;
    assert!(by_hand.starts_with("553 of 569 agree, 16 differ for named reasons"), "{by_hand}");
    let generated = compare(&influxd, &server, "compare.py", &["1", "300"]).await;
    assert!(generated.starts_with("300 of 300 agree"), "{generated}");
    let bytes = compare(&influxd, &server, "formats.py", &[]).await;
    assert!(bytes.starts_with("924 of 924 agree"), "{bytes}");
}

#[tokio::test]
async fn generated_queries_agree_on_each_layout_of_mongodb() {
    let influxd = Influxd::start().await;
    let databases = [Database::new(), Database::new(), Database::new()];
    let setups = [Setup::mongodb(&databases[0]), Setup::packed(&databases[1]), Setup::timeseries(&databases[2])];
    for (seed, setup) in setups.into_iter().enumerate() {
        let server = half_pending(setup).await;
        let generated = compare(&influxd, &server, "compare.py", &[&(seed + 2).to_string(), "150"]).await;
        assert!(generated.starts_with("150 of 150 agree"), "{generated}");
    }
}
