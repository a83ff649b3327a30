//! Servers with the data of the comparison.

use crate::harness::{Server, Setup};

/// The data, as line protocol.
pub(super) const LINES: &str = include_str!("data.lp");

/// The lines in a row that are stored, or pending.
const IN_A_ROW: usize = 7;

/// A server on which half of the data is stored and the other half is pending, often of the same hour.
pub(super) async fn half_pending(setup: Setup) -> Server {
    let mut server = Server::start(setup.clone()).await;
    for is_pending in [false, true] {
        if is_pending {
            server.settled().await;
            server.terminate().await;
            server.start_again_with(setup.clone().all_pending()).await;
        }
        let half = LINES.lines().enumerate().filter(|(at, _)| (at / IN_A_ROW % 2 == 1) == is_pending);
        let half: Vec<&str> = half.map(|(_, line)| line).collect();
        let answer = server.post("/write?db=influxql", "text/plain", half.join("\n")).await;
        assert_eq!(answer.status, 204, "{}", answer.text());
    }
    let pending = server.metrics().await.count("tidegauge_readings_pending");
    assert!(pending > 400, "{pending} are pending");
    server
}
