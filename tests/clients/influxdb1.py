"""Writes with influxdb, the Python client of InfluxDB 1, as its documentation shows it: points and lines, in every
precision, in batches, plain and gzip. Takes the URL of the server and a token."""

import sys
import urllib.parse

from influxdb import InfluxDBClient
from influxdb.exceptions import InfluxDBClientError

URL, TOKEN = urllib.parse.urlsplit(sys.argv[1]), sys.argv[2]
START = 1713621600  # 2024-04-20T14:00:00Z
PRECISIONS = {"n": 10**9, "u": 10**6, "ms": 10**3, "s": 1}


def point(device, second, per_second):
    return {
        "measurement": "climate",
        "tags": {"device": device, "site": "north hall"},
        "time": (START + second) * per_second,
        "fields": {"temp": 20.5 + second, "hum": 40 + second, "open": second % 2 == 0},
    }


def points(client, device):
    for second, (precision, per_second) in enumerate(PRECISIONS.items()):
        client.write_points([point(device, second, per_second)], time_precision=precision)
    last = f"climate,device={device},site=s temp=24.5 {START + 4}"
    lines = [f"climate,device={device} temp=1", "climate temp=2", last]
    try:
        client.write_points(lines, time_precision="s", protocol="line")
        sys.exit("a bad line must raise")
    except InfluxDBClientError as error:
        assert error.code == 400, error
        assert "partial write: line 2: no tag names the device" in str(error), error


def batches(client, device):
    client.write_points([point(device, second, 1) for second in range(120)], time_precision="s", batch_size=50)


for name, gzip in [("plain", False), ("gzip", True)]:
    client = InfluxDBClient(URL.hostname, URL.port, "ann", TOKEN, "plant", gzip=gzip)
    assert client.ping() == "1.8.10"
    client.create_database("plant")
    points(client, f"v1-sync-{name}")
    batches(client, f"v1-batch-{name}")
    client.close()

client = InfluxDBClient(URL.hostname, URL.port, "ann", "wrong", "plant")
try:
    client.write_points([point("stranger", 0, 1)], time_precision="s")
    sys.exit("a wrong token must raise")
except InfluxDBClientError as error:
    assert error.code == 401 and "the token is not known" in str(error), error
