//! Workbooks, as openpyxl reads them: the cells of CSV with the types of a spreadsheet.

use super::*;
use crate::clients::run_program;

/// The sheets of a workbook.
async fn sheets(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet");
    assert_eq!(answer.header("content-encoding"), "", "it is compressed already");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("book.xlsx");
    std::fs::write(&path, &answer.body).expect("the folder is writable");
    let printed = run_program("workbook.py", &[path.to_str().expect("UTF-8")]).await;
    serde_json::from_str::<Value>(&printed).expect("JSON").as_array().expect("sheets").clone()
}

async fn workbook(server: &Server, path: &str) -> Answer {
    let request = server.request(reqwest::Method::GET, &format!("{path}&format=xlsx"));
    server.send(request.header("accept-encoding", "gzip, zstd")).await
}

/// A cell of CSV as one of a sheet in this zone.
fn typed(cell: &str, zone: &str) -> Value {
    if let Ok(instant) = cell.parse::<jiff::Timestamp>() {
        let local = instant.in_tz(zone).expect("a zone").strftime("%Y-%m-%d %H:%M:%S%.3f").to_string();
        return json!({ "date": local });
    }
    match cell {
        "" => Value::Null,
        "true" | "false" => json!(cell == "true"),
        _ => cell.parse::<f64>().map_or_else(|_| json!(cell), |number| json!(number)),
    }
}

/// A number in one form: JSON has `1` and `1.0`.
fn as_floats(row: &Value) -> Vec<Value> {
    let cells = row.as_array().expect("cells").iter();
    cells.map(|cell| cell.as_f64().map_or_else(|| cell.clone(), Value::from)).collect()
}

async fn workbooks_have_the_cells_of_csv(setup: Setup) {
    let server = half_pending(setup).await;
    let odd = json!({
        "deviceId": "z", "ts": START_MS + 7, "metadata": { "a": "=1+1", "b": "<&>\n", "c": true }, "value": -0.5,
    });
    assert_eq!(server.ingest(&odd).await.status, 200);
    for path in [
        &*format!("/v1/devices/x:1/readings?{RANGE}"),
        &format!("/v1/readings?{RANGE}"),
        &format!("/v1/readings?{RANGE}&device=none"),
        "/v1/devices/x:1/latest?",
        "/v1/latest?",
        "/v1/devices?",
        &format!("/v1/devices/x:1/rollups?{RANGE}&fn=count,avg,last&compare=-1d"),
        &format!("/v1/rollups?{RANGE}"),
        &format!("/v1/rollups?{RANGE}&combine=by:a,c"),
    ] {
        for zone in ["UTC", "Europe/Berlin"] {
            let of_csv = if path.contains("rollups") { format!("{path}&tz={zone}&times=utc") } else { path.to_owned() };
            let mut expected = cells(&file(&server, &of_csv, "csv").await);
            if let Some(local) = expected[0].iter().position(|name| name == "local") {
                for row in &mut expected {
                    row.remove(local); // dates are local
                }
            }
            let path = if zone == "UTC" { path.to_owned() } else { format!("{path}&tz={zone}") };
            let answer = workbook(&server, &path).await;
            let sheets = sheets(&answer).await;
            assert_eq!((sheets.len(), &sheets[0]["name"]), (1, &json!("Sheet1")));
            assert_eq!((&sheets[0]["frozen"], &sheets[0]["bold"]), (&json!("A2"), &json!(true)));
            let rows: Vec<Vec<Value>> = sheets[0]["rows"].as_array().expect("rows").iter().map(as_floats).collect();
            let header = expected.remove(0);
            assert_eq!(rows[0], header.iter().map(|name| json!(name)).collect::<Vec<_>>(), "{path}");
            let expected: Vec<Vec<Value>> =
                expected.iter().map(|row| row.iter().map(|cell| typed(cell, zone)).collect()).collect();
            assert_eq!(rows[1..], expected, "{path}");
            let widths = sheets[0]["widths"].as_array().expect("widths");
            assert!(widths.iter().all(|width| (10.0..=40.0).contains(&width.as_f64().expect("a width"))), "{widths:?}");
        }
    }
    let named = workbook(&server, "/v1/devices/x:1/latest?").await;
    assert_eq!(named.header("content-disposition"), "attachment; filename=\"latest-x_1.xlsx\"");
    let again = workbook(&server, "/v1/devices/x:1/latest?").await;
    assert!(!named.header("etag").is_empty() && again.header("etag") == named.header("etag"), "the same bytes");
}

in_stores!(workbooks_have_the_cells_of_csv, [sqlite, packed]);

#[tokio::test]
async fn a_workbook_has_all_pages_of_a_list_and_none_of_the_forms_of_csv() {
    let server = Server::start(Setup::sqlite()).await;
    let readings: Value =
        (0..230).map(|nth| json!({ "deviceId": format!("=d{nth:03}"), "ts": START_MS, "value": nth })).collect();
    assert_eq!(server.ingest(&readings).await.status, 200);
    for path in ["/v1/devices?", "/v1/latest?", &format!("/v1/rollups?{RANGE}"), &format!("/v1/readings?{RANGE}")] {
        let sheets = sheets(&workbook(&server, path).await).await;
        let ids: Vec<&Value> = sheets[0]["rows"].as_array().expect("rows").iter().map(|row| &row[0]).collect();
        assert_eq!((ids.len(), ids[1], ids[230]), (231, &json!("=d000"), &json!("=d229")), "{path}");
    }
    let by_header =
        server.get_as("/v1/devices?limit=2", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet").await;
    assert_eq!(by_header.header("content-disposition"), "attachment; filename=\"devices.xlsx\"");
    assert_eq!(
        (sheets(&by_header).await[0]["rows"].as_array().map(Vec::len), by_header.header("link").is_empty()),
        (Some(3), false)
    );
    for (form, why) in [
        ("delimiter=%3B", "delimiter: is for format=csv only"),
        ("delimiter=tab&decimal=,", "delimiter: is for format=csv only"),
        ("bom=1", "bom: is for format=csv only"),
        ("times=local", "times: local times need `tz`"),
    ] {
        let refused = workbook(&server, &format!("/v1/devices?{form}")).await;
        assert_eq!(problem(&refused, 400)["code"], "invalid_parameter", "{form}");
        assert!(refused.text().contains(why), "{}", refused.text());
    }
    let head = format!("GET /v1/readings?{RANGE}&format=xlsx HTTP/1.0\r\nHost: localhost\r\n\r\n");
    assert_eq!(Connection::open(&server).await.ask(head.as_bytes()).await.0, 505);
}
