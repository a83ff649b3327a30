//! Line protocol as Telegraf and Home Assistant send it, without any configuration for them.

use serde_json::json;

use super::stored;
use crate::harness::{Server, Setup};

const TS_MS: i64 = 1_713_621_610_000; // 2024-04-20T14:00:10Z
const PATHS: [&str; 3] = ["/write?db=any", "/api/v2/write?org=any&bucket=any", "/api/v3/write_lp?db=any"];

/// Sends lines without their times, which all are [`TS_MS`], on each path, and expects 204.
async fn send(server: &Server, lines: &[&str]) {
    let lines: Vec<String> = lines.iter().map(|line| format!("{line} {TS_MS}000000\n")).collect();
    for path in PATHS {
        let answer = server.post(path, "text/plain", lines.concat()).await;
        assert_eq!((answer.status, answer.text()), (204, ""), "{path}");
    }
}

#[tokio::test]
async fn tags_other_than_the_device_are_labels() {
    let server = Server::start(Setup::sqlite()).await;
    let lines = [
        "cpu,cpu=cpu0,host=raspi usage_idle=10",
        "cpu,cpu=cpu1,host=raspi usage_idle=20",
        "cpu,cpu=cpu-total,host=raspi usage_idle=15",
        "net,host=raspi,interface=eth0 bytes_recv=1i",
        "net,host=raspi,interface=wlan0 bytes_recv=2i",
        "diskio,host=raspi,name=sda reads=3i",
        "diskio,host=raspi,name=sdb reads=4i",
    ];
    send(&server, &lines).await;
    let series = [
        "cpu_usage_idle{cpu=cpu-total}=15.0",
        "cpu_usage_idle{cpu=cpu0}=10.0",
        "cpu_usage_idle{cpu=cpu1}=20.0",
        "diskio_reads{name=sda}=3.0",
        "diskio_reads{name=sdb}=4.0",
        "net_bytes_recv{interface=eth0}=1.0",
        "net_bytes_recv{interface=wlan0}=2.0",
    ];
    assert_eq!(stored(&server, "raspi").await, [format!("{TS_MS} {}", series.join(" "))]);
    let device = server.get_json("/v1/devices").await["devices"][0].take();
    assert_eq!(device["metadata"], json!(null), "no tag describes the device");
}

#[tokio::test]
async fn the_host_is_the_device_of_its_disks() {
    let server = Server::start(Setup::sqlite()).await;
    let lines = [
        "disk,device=sda1,fstype=ext4,host=raspi,mode=rw,path=/ free=1i",
        "disk,device=sda1,fstype=ext4,host=otherhost,mode=rw,path=/ free=2i",
    ];
    send(&server, &lines).await;
    for (device, free) in [("raspi", "1.0"), ("otherhost", "2.0")] {
        let series = format!("disk_free{{device=sda1,fstype=ext4,mode=rw,path=/}}={free}");
        assert_eq!(stored(&server, device).await, [format!("{TS_MS} {series}")]);
    }
    assert_eq!(server.get("/v1/devices/sda1/latest").await.status, 404);
}

#[tokio::test]
async fn a_string_costs_itself_and_is_counted() {
    let server = Server::start(Setup::sqlite()).await;
    let lines = [
        "°C,domain=sensor,entity_id=kitchen,host=ha friendly_name_str=\"Kitchen\",value=21.4",
        "system,host=raspi load1=0.5,uptime=1249632i",
        "system,host=raspi uptime_format=\"14 days, 11:07\"",
    ];
    send(&server, &lines).await;
    assert_eq!(stored(&server, "ha").await, [format!("{TS_MS} °C{{domain=sensor,entity_id=kitchen}}=21.4")]);
    assert_eq!(stored(&server, "raspi").await, [format!("{TS_MS} system_load1=0.5 system_uptime=1249632.0")]);
    let ignored = [("protocol", "influx"), ("reason", "string")];
    let metrics = server.metrics().await;
    assert_eq!(metrics.count_where("tidegauge_fields_ignored_total", &ignored), 2 * PATHS.len() as u64);
    assert_eq!(metrics.count("tidegauge_readings_rejected_total"), 0);
}
