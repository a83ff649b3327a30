//! Answers as tables: latest values, devices and rollups as CSV and NDJSON.

use std::collections::BTreeSet;

use super::*;

#[tokio::test]
async fn latest_values_and_devices_are_tables_too() {
    let server = half_pending(Setup::sqlite()).await;
    let limits = json!({ "value": { "max": 0 } });
    let metadata = json!({ "room": "a, \"b\"", "limits": limits });
    let reading = json!({ "deviceId": "z", "ts": START_MS, "metadata": metadata, "values": { "value": 1, "w": 1 } });
    assert_eq!(server.ingest(&reading).await.status, 200);

    let latest = server.get_json("/v1/devices/x:1/latest").await;
    let of = |(series, at): (&String, &Value)| -> Value {
        let (ts, value) = (&at["ts"], &at["value"]);
        json!({ "deviceId": "x:1", "ts": ts, "series": series, "value": value, "beyond": null, "moreMetrics": false })
    };
    let expected: Vec<Value> = latest["metrics"].as_object().expect("metrics").iter().map(of).collect();
    assert_eq!(lines(&file(&server, "/v1/devices/x:1/latest?", "ndjson").await), expected);
    let columns = ["deviceId", "ts", "series", "value", "beyond", "moreMetrics"];
    assert_eq!(cells(&file(&server, "/v1/devices/x:1/latest?", "csv").await), as_cells(&columns, &expected));
    let beyond = lines(&file(&server, "/v1/devices/z/latest?", "ndjson").await);
    assert_eq!(beyond.iter().map(|line| &line["beyond"]).collect::<Vec<_>>(), [&json!("max"), &Value::Null]);

    let mut expected = server.get_json("/v1/devices").await["devices"].take();
    let expected = expected.as_array_mut().expect("devices");
    for device in expected.iter_mut() {
        device["moreMetrics"] = json!(false);
    }
    assert_eq!(lines(&file(&server, "/v1/devices?", "ndjson").await), *expected);
    let columns = ["deviceId", "firstSeen", "lastSeen", "metadata", "metrics", "moreMetrics"];
    assert_eq!(cells(&file(&server, "/v1/devices?", "csv").await), as_cells(&columns, expected));

    let first = server.get_as("/v1/devices?limit=2", "text/csv").await;
    assert_eq!(first.header("content-disposition"), "attachment; filename=\"devices.csv\"");
    let next = first.header("link").strip_prefix('<').and_then(|link| link.strip_suffix(">; rel=\"next\""));
    let last = server.get_as(next.expect("a link"), "text/csv").await;
    assert_eq!((cells(first.text()).len(), cells(last.text())[1][0].as_str(), last.header("link")), (3, "z", ""));
}

#[tokio::test]
async fn a_table_without_a_limit_has_all_devices() {
    let mut server = Server::start(Setup::sqlite()).await;
    let ids: Vec<String> = (0..230).map(|nth| format!("d-{nth:03}")).collect();
    let readings = |of: &[String]| -> Value {
        of.iter().map(|id| json!({ "deviceId": id, "ts": START_MS, "metadata": { "f": 1 }, "value": 1 })).collect()
    };
    assert_eq!(server.ingest(&readings(&ids[..150])).await.status, 200);
    server.settled().await;
    assert!(server.terminate().await.success());
    let setup = Setup::sqlite().all_pending().set("query.max_points", 300);
    server.start_again_with(setup).await;
    assert_eq!(server.ingest(&readings(&ids[150..])).await.status, 200);
    let named: Vec<String> = ids.iter().map(|id| format!("&device={id}")).collect();
    for path in ["/v1/devices?", "/v1/latest?", &format!("/v1/rollups?{RANGE}")] {
        for selection in ["", "&meta.f=1", &named.concat()] {
            let path = format!("{path}{selection}");
            let all = file(&server, &path, "ndjson").await;
            let of = |line: &Value| line["deviceId"].as_str().map(str::to_owned);
            assert_eq!(lines(&all).iter().filter_map(of).collect::<Vec<_>>(), ids, "{path}");
            let whole = server.get(&format!("{path}&format=csv")).await;
            assert_eq!((cells(whole.text()).len(), whole.header("link")), (231, ""), "{path}");
            if !path.contains("rollups") {
                assert_eq!((whole.header("cache-control"), whole.header("etag")), ("no-store", ""), "a file");
            }
        }
        let page = server.get(&format!("{path}&format=csv&limit=100")).await;
        assert_eq!((cells(page.text()).len(), page.header("link").is_empty()), (101, false), "{path}");
        let small = server.get(&format!("{path}&format=csv&prefix=d-00")).await;
        assert_eq!((cells(small.text()).len(), small.header("etag").is_empty()), (11, false), "one page has a tag");
        let head = format!("GET {path}&format=csv HTTP/1.0\r\nHost: localhost\r\n\r\n");
        assert_eq!(Connection::open(&server).await.ask(head.as_bytes()).await.0, 505, "{path}");
    }

    let wide = (0..301).map(|nth| json!({ "deviceId": "d-150", "ts": START_MS + nth * 60_000, "value": 1 }));
    assert_eq!(server.ingest(&wide.collect()).await.status, 200);
    let path = format!("/v1/rollups?{RANGE}&step=1m&format=csv");
    let answer = server.request(reqwest::Method::GET, &path).send().await.expect("a head");
    assert_eq!(answer.status(), 200);
    assert!(answer.bytes().await.is_err(), "a page that cannot be read is no end of the table");
    server.logged("a file ended early").await;
}

#[tokio::test]
async fn rollups_are_tables_too() {
    let server = half_pending(Setup::sqlite()).await;
    let described = json!([
        { "deviceId": "x:1", "ts": START_MS, "value": 1, "metadata": { "\"a": 2 } },
        { "deviceId": "y", "ts": START_MS, "value": 2, "metadata": { "at": { "city": "Graz, \"A\"" } } },
    ]);
    assert_eq!(server.ingest(&described).await.status, 200);
    let columns = ["count", "min", "max", "avg", "sum", "first", "last"];
    let asked = format!("{RANGE}&offset=30m&tz=Asia/Kathmandu&fill=null&fn={}", columns.join(","));
    let flat = |of: &Value, device: Option<&str>| -> Vec<Value> {
        let series = of["metrics"].as_object().expect("metrics").iter();
        let points =
            series.flat_map(|(series, points)| points.as_array().expect("points").iter().map(move |at| (series, at)));
        points
            .map(|(series, point)| {
                let mut row = point.clone();
                row["series"] = json!(series);
                if let Some(device) = device {
                    row["deviceId"] = json!(device);
                }
                for column in ["first", "last"] {
                    let of_column = row[column].take();
                    row[format!("{column}Ts")] = of_column["ts"].clone();
                    row[column] = of_column["value"].clone();
                }
                row
            })
            .collect()
    };
    let names = ["ts", "local", "series", "count", "min", "max", "avg", "sum", "first", "firstTs", "last", "lastTs"];
    let with_device: Vec<&str> = std::iter::once("deviceId").chain(names).collect();

    let path = format!("/v1/devices/x:1/rollups?{asked}");
    let expected = flat(&server.get_json(&path).await, Some("x:1"));
    assert!(expected.iter().any(|row| row["min"].is_null()) && expected.len() > 8, "{expected:?}");
    assert_eq!(lines(&file(&server, &path, "ndjson").await), expected);
    assert_eq!(cells(&file(&server, &path, "csv").await), as_cells(&with_device, &expected));

    let path = "/v1/devices/x:1/rollups?from=2024-04-20T00:00:00Z&to=2024-04-22T00:00:00Z&fn=min,last&compare=-1d";
    let mut expected = flat(&server.get_json(path).await, Some("x:1"));
    for row in &mut expected {
        let compared = row["compared"].take();
        row.as_object_mut().expect("a row").retain(|name, _| !name.starts_with("first") && name != "compared");
        row["comparedTs"] = compared["ts"].clone();
        row["comparedMin"] = compared["min"].clone();
        row["comparedLast"] = compared["last"]["value"].clone();
        row["comparedLastTs"] = compared["last"]["ts"].clone();
    }
    let sides = expected.iter().map(|row| [row["min"].is_null(), row["comparedMin"].is_null()]);
    let sides: BTreeSet<[bool; 2]> = sides.collect();
    assert_eq!(sides, BTreeSet::from([[false, true], [true, false]]), "each day is a day before or after none");
    let of_both = ["min", "last", "lastTs", "comparedTs", "comparedMin", "comparedLast", "comparedLastTs"];
    let of_both: Vec<&str> = ["deviceId", "ts", "series"].into_iter().chain(of_both).collect();
    assert_eq!(lines(&file(&server, path, "ndjson").await), expected);
    assert_eq!(cells(&file(&server, path, "csv").await), as_cells(&of_both, &expected));

    let path = format!("/v1/rollups?{asked}");
    let of_all = server.get_json(&path).await;
    let of_devices = of_all["devices"].as_array().expect("devices").iter();
    let expected: Vec<Value> = of_devices.flat_map(|of| flat(of, of["deviceId"].as_str())).collect();
    assert_eq!(lines(&file(&server, &path, "ndjson").await), expected);
    assert_eq!(cells(&file(&server, &path, "csv").await), as_cells(&with_device, &expected));
    let first = server.get_as(&format!("{path}&limit=1"), "text/csv").await;
    assert!(first.header("link").contains("&cursor=x%3A1>; rel=\"next\""), "{}", first.header("link"));

    let path = format!("/v1/rollups?{asked}&combine=true");
    let expected = flat(&server.get_json(&path).await, None);
    assert_eq!(cells(&file(&server, &path, "csv").await), as_cells(&names, &expected));

    let path = format!("/v1/rollups?{asked}&combine=by:at.city,%22a,%20b");
    let groups = server.get_json(&path).await["groups"].take();
    let of_group = |group: &Value| {
        let by = group["by"].as_object().expect("values").clone();
        let rows = flat(group, None).into_iter();
        rows.map(move |mut row| {
            by.iter().for_each(|(key, value)| row[format!("meta.{key}")] = value.clone());
            row
        })
    };
    let expected: Vec<Value> = groups.as_array().expect("groups").iter().flat_map(of_group).collect();
    assert_eq!(lines(&file(&server, &path, "ndjson").await), expected);
    let with_group: Vec<&str> = ["meta.at.city", "meta.\"a", "meta. b"].into_iter().chain(names).collect();
    let rows = cells(&file(&server, &path, "csv").await);
    assert_eq!(rows, as_cells(&with_group, &expected));
    assert!(rows[1][..3] == ["", "2", ""] && rows.iter().any(|row| row[..3] == ["Graz, \"A\"", "", ""]), "{rows:?}");
}

/// A cell as a German spreadsheet reads it.
fn of_spreadsheet(cell: &str) -> String {
    if let Ok(instant) = cell.parse::<jiff::Timestamp>() {
        let local = instant.in_tz("Europe/Berlin").expect("a zone").strftime("%Y-%m-%d %H:%M:%S%.3f").to_string();
        return local.replace(".000", "").replace('.', ",");
    }
    if cell.parse::<f64>().is_ok() { cell.replace('.', ",") } else { cell.to_owned() }
}

#[tokio::test]
async fn csv_for_a_spreadsheet_has_the_same_cells_on_each_path() {
    let server = half_pending(Setup::sqlite()).await;
    let described = [json!("1;2,5"), json!(2.5), json!(-3), json!([1.5])].into_iter().enumerate();
    let described = described.map(
        |(nth, a)| json!({ "deviceId": format!("z{nth}"), "ts": START_MS + 7, "metadata": { "a": a }, "value": 0.5 }),
    );
    assert_eq!(server.ingest(&described.collect()).await.status, 200);
    for path in [
        &*format!("/v1/devices/x:1/readings?{RANGE}"),
        &format!("/v1/readings?{RANGE}"),
        "/v1/devices/x:1/latest?",
        "/v1/latest?",
        "/v1/devices?",
        &format!("/v1/devices/x:1/rollups?{RANGE}&fn=avg,last&compare=-1d"),
        &format!("/v1/rollups?{RANGE}"),
        &format!("/v1/rollups?{RANGE}&combine=by:a"),
    ] {
        let usual = cells(&file(&server, path, "csv").await);
        let expected: Vec<Vec<String>> =
            usual.iter().map(|row| row.iter().map(|cell| of_spreadsheet(cell)).collect()).collect();
        let path = format!("{path}&delimiter=%3B&decimal=,&bom=1&times=local&tz=Europe/Berlin");
        let text = file(&server, &path, "csv").await;
        let text = text.strip_prefix('\u{feff}').expect("a byte order mark");
        let reader = csv::ReaderBuilder::new().has_headers(false).delimiter(b';').from_reader(text.as_bytes());
        let found: Vec<Vec<String>> = reader.into_deserialize().collect::<Result<_, _>>().expect("whole rows");
        assert!(found.len() > 1 && found == expected, "{path}: {found:?}, expected {expected:?}");
        let refused = server.get(&format!("{path}&format=ndjson")).await;
        assert!(refused.status == 400 && refused.text().contains("is for format=csv only"), "{}", refused.text());
    }
}

#[tokio::test]
async fn values_of_metadata_that_would_make_rows_too_long_are_refused() {
    let server = Server::start(Setup::sqlite().set("query.max_points", 20)).await;
    let readings = json!([{ "ts": START_MS, "value": 1 }, { "ts": START_MS + HOUR_MS, "value": 2 }]);
    let long = json!({ "deviceId": "a", "metadata": { "long": "x".repeat(2_000), "short": 1 }, "readings": readings });
    assert_eq!(server.ingest(&long).await.status, 200);
    let path = format!("/v1/rollups?{RANGE}&combine=by");
    for (by, format, status) in [("long", "json", 200), ("long", "csv", 400), ("short", "csv", 200)] {
        let answer = server.get(&format!("{path}:{by}&format={format}")).await;
        assert_eq!(answer.status, status, "{by} {format}: {}", answer.text());
        assert!(status == 200 || answer.text().contains("ask for JSON"), "{}", answer.text());
    }
}

/// Objects as the header and the rows of CSV.
fn as_cells(columns: &[&str], objects: &[Value]) -> Vec<Vec<String>> {
    let cell = |value: &Value| value.as_str().map_or_else(|| value.to_string().replace("null", ""), str::to_owned);
    let rows = objects.iter().map(|object| columns.iter().map(|column| cell(&object[column])).collect());
    std::iter::once(columns.iter().map(|&column| column.to_owned()).collect()).chain(rows).collect()
}
