//! The set-ups of docs/mqtt.md work: each `toml mqtt` block configures a server, and the commands of
//! the `console mqtt` block behind it print what it shows.

use std::process::{Command, Stdio};

use super::{acknowledged, connected, received};
use crate::harness::{Broker, Server, Setup, publisher};
use crate::readme::{blocks, print_what_is_shown};

const PAGE: &str = include_str!("../../docs/mqtt.md");

#[tokio::test]
async fn each_set_up_of_the_page_stores_what_its_commands_publish() {
    let (setups, commands): (Vec<&str>, Vec<&str>) =
        (blocks(PAGE, "toml mqtt").collect(), blocks(PAGE, "console mqtt").collect());
    assert!(setups.len() >= 4 && setups.len() == commands.len(), "{} and {}", setups.len(), commands.len());
    for (setup, commands) in setups.into_iter().zip(commands) {
        let broker = Broker::start().await;
        let keys = setup.replace("[[mqtt]]\n", "").replace("[[mqtt.topics]]", "[[topics]]");
        let keys = keys.replace("mqtt://127.0.0.1", &format!("mqtt://127.0.0.1:{}", broker.port()));
        let server = Server::start(Setup::sqlite().mqtt(&keys)).await;
        connected(&server).await;
        let published = commands.split("\n$ ").filter(|command| command.contains("mosquitto_pub "));
        let mut count = 0;
        for command in published {
            let command = command.trim_start_matches("$ ").trim_end();
            let port = format!("{} -p {} ", publisher(), broker.port());
            let command = command.replacen("mosquitto_pub ", &port, 1);
            let output = Command::new("sh").args(["-c", &command]).stdin(Stdio::null()).output().expect("sh is there");
            assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
            count += 1;
        }
        let metrics = received(&server, count).await;
        assert_eq!(metrics.count("tidegauge_mqtt_refused_total"), 0, "{commands}");
        server.settled().await;
        print_what_is_shown("docs/mqtt.md", std::iter::once(commands), server.url()).await;
    }
}

/// The ID of an entity is unique in its domain only.
#[tokio::test]
async fn entities_of_home_assistant_with_one_id_have_a_metric_each() {
    let topic = PAGE.split("Home Assistant's statestream needs no preset: `").nth(1).expect("the line");
    let topic = topic.split('`').next().expect("the end of the key");
    let broker = Broker::start().await;
    let server = Server::start(broker.subscribed(Setup::sqlite(), &format!("[[topics]]\n{topic}\n"))).await;
    connected(&server).await;
    broker.publish("homeassistant/sensor/living_room/state", "21.5");
    broker.publish("homeassistant/light/living_room/state", "on");
    acknowledged(&broker, 2).await;
    server.settled().await;
    let latest = server.get_json("/v1/devices/living_room/latest").await;
    let value = |metric: &str| latest["metrics"][metric]["value"].as_f64();
    assert_eq!((value("sensor"), value("light")), (Some(21.5), Some(1.0)), "{latest}");
}
