"""Writes with influxdb-client, the Python client of InfluxDB 2, as its documentation shows: one request at a time and
in batches, plain and gzip. Takes the URL of the server and a token."""

import sys
from datetime import datetime, timedelta, timezone

from influxdb_client import InfluxDBClient, Point, WriteOptions, WritePrecision
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.rest import ApiException

URL, TOKEN = sys.argv[1:]
START = datetime(2024, 4, 20, 14, tzinfo=timezone.utc)


def point(device, second, precision=WritePrecision.NS):
    made = Point("climate").tag("device", device).tag("site", "north hall")
    made = made.field("temp", 20.5 + second).field("hum", 40 + second).field("open", second % 2 == 0)
    return made.time(START + timedelta(seconds=second), precision)


def synchronous(client, device):
    precisions = [WritePrecision.NS, WritePrecision.US, WritePrecision.MS, WritePrecision.S]
    with client.write_api(write_options=SYNCHRONOUS) as api:
        for second, precision in enumerate(precisions):
            record = point(device, second, precision)
            api.write(bucket="plant", org="acme", record=record, write_precision=precision)
        try:
            bad = f"climate,device={device} temp=1\nclimate temp=2\n"
            api.write(bucket="plant", org="acme", record=bad + point(device, 4).to_line_protocol())
            sys.exit("a bad line must raise")
        except ApiException as error:
            assert error.status == 422, error
            assert error.message.startswith("partial write: line 2: no tag names the device"), error.message


def batching(client, device):
    errors = []
    options = WriteOptions(batch_size=50, flush_interval=500)
    with client.write_api(write_options=options, error_callback=lambda *error: errors.append(error)) as api:
        for second in range(120):
            api.write(bucket="plant", org="acme", record=point(device, second))
    assert not errors, errors


for name, gzip in [("plain", False), ("gzip", True)]:
    with InfluxDBClient(url=URL, token=TOKEN, org="acme", enable_gzip=gzip, timeout=60_000) as client:
        assert client.ping()
        assert client.health().status == "pass"
        synchronous(client, f"v2-sync-{name}")
        batching(client, f"v2-batch-{name}")

with InfluxDBClient(url=URL, token="wrong", org="acme") as client:
    try:
        client.write_api(write_options=SYNCHRONOUS).write(bucket="plant", org="acme", record=point("stranger", 0))
        sys.exit("a wrong token must raise")
    except ApiException as error:
        assert error.status == 401 and "the token is not known" in error.message, error
