"""Reads with influxdb, the Python client of InfluxDB 1, as its documentation shows it: query() in each form, and the
DataFrameClient. Takes the URL of the server and a token."""

import sys
import urllib.parse

import pandas
from influxdb import DataFrameClient, InfluxDBClient
from influxdb.exceptions import InfluxDBClientError
from influxdb.resultset import ResultSet

URL, TOKEN = urllib.parse.urlsplit(sys.argv[1]), sys.argv[2]
ADDRESS = URL.hostname, URL.port, "ann", TOKEN, "plant"
START = 1713621600  # 2024-04-20T14:00:00Z
MINUTES = 180

client = InfluxDBClient(*ADDRESS)
client.create_database("plant")
lines = [f"climate,device_id=S{device},room=hall temp={device}.5,hum={at} {START + 60 * at}"
         for device in (1, 2) for at in range(MINUTES)]
client.write_points(lines, time_precision="s", protocol="line")

assert client.get_list_database() == [{"name": "plant"}], client.get_list_database()
assert client.get_list_measurements() == [{"name": "climate"}]
assert len(client.get_list_series()) == 2

# The client reads chunks of JSON only.
chunked = InfluxDBClient(*ADDRESS, headers={"Accept": "application/json"})
for reader, options in [(client, {}), (client, {"method": "POST"}), (chunked, {"chunked": True, "chunk_size": 7})]:
    found = reader.query("SELECT temp, hum FROM climate WHERE device_id = 'S1'", epoch="s", **options)
    points = [point for part in ([found] if isinstance(found, ResultSet) else found) for point in part.get_points()]
    assert points[0] == {"time": START, "temp": 1.5, "hum": 0}, points[0]
    assert len(points) == MINUTES and points[-1]["hum"] == MINUTES - 1, options

bound = client.query("SELECT mean(hum) FROM climate WHERE device_id = $device AND time >= $from GROUP BY time(1h)",
                     bind_params={"device": "S2", "from": f"{START}s"} | {"from": "2024-04-20T14:00:00Z"})
assert [point["mean"] for point in bound.get_points()][:3] == [29.5, 89.5, 149.5], bound

several = client.query("SELECT count(temp) FROM climate; SELECT count(temp) FROM climate GROUP BY device_id")
assert [result.raw["series"][0]["values"][0][1] for result in several] == [2 * MINUTES, MINUTES], several
assert {tags["device_id"] for _, tags in several[1].keys()} == {"S1", "S2"}

try:
    client.query("SELECT temp FROM climate WHERE")
    sys.exit("a bad query must raise")
except InfluxDBClientError as error:
    assert error.code == 400 and "error parsing query" in str(error), error

frames = DataFrameClient(*ADDRESS)
frame = frames.query("SELECT temp, hum FROM climate WHERE device_id = 'S1'")["climate"]
assert isinstance(frame, pandas.DataFrame) and frame.shape == (MINUTES, 2), frame
assert frame.index[0] == pandas.Timestamp(START, unit="s", tz="UTC") and frame["hum"].sum() == 16110, frame
groups = frames.query("SELECT max(hum) FROM climate WHERE time < '2024-04-21' GROUP BY time(1h), device_id fill(none)")
assert groups[("climate", (("device_id", "S2"),))]["max"].tolist() == [59, 119, 179], groups
