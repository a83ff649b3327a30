#!/usr/bin/env python3
"""Measures the bytes on disk and in the oplog, and the CPU time, of a reading, for `tidegauge estimate`.

Usage: benches/sizes.py BINARY MONGOD [DEVICES]

Needs pymongo (`pip install pymongo`). For each layout it sends yesterday's readings of DEVICES (100) devices: 60 and
360 an hour, with 1 and 4 metrics, one decimal each. From the four sizes it computes the bytes of a document, of a
metric in it, of a reading and of a value, and prints them in the form of src/cli/estimate/constants.toml.
"""

import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time

import pymongo

from files import Server, cpu_seconds, ingest

HOUR = 3600
DAY = 24 * HOUR
BATCH = 20_000
CASES = [(60, 1), (60, 4), (360, 1), (360, 4)]
LAYOUTS = {
    "readable": {"TIDEGAUGE_STORE__KIND": "mongodb"},
    "packed": {"TIDEGAUGE_STORE__KIND": "mongodb", "TIDEGAUGE_MONGODB__LAYOUT": "packed"},
    "timeseries": {"TIDEGAUGE_STORE__KIND": "mongodb-timeseries"},
    "sqlite": {"TIDEGAUGE_STORE__KIND": "sqlite"},
}


def start_mongod(binary, folder):
    """Starts a replica set of one member, and returns the process and a client."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = open(os.path.join(folder, "log"), "w")
    args = [binary, "--replSet", "rs0", "--bind_ip", "127.0.0.1", "--nounixsocket", "--port", str(port)]
    args += ["--dbpath", folder, "--wiredTigerCacheSizeGB", "1", "--oplogSize", "4000"]
    args += ["--setParameter", "diagnosticDataCollectionEnabled=false"]
    server = subprocess.Popen(args, stdout=log, stderr=log)
    client = pymongo.MongoClient(f"mongodb://127.0.0.1:{port}/?directConnection=true")
    client.admin.command("replSetInitiate", {"_id": "rs0", "members": [{"_id": 0, "host": f"127.0.0.1:{port}"}]})
    while not client.admin.command("hello")["isWritablePrimary"]:
        time.sleep(0.1)
    return server, client, f"mongodb://127.0.0.1:{port}/?replicaSet=rs0"


def lines(devices, readings, metrics, start):
    """Yields line protocol: a temperature that drifts, with noise, in tenths of a degree."""
    step = HOUR // readings
    for device in range(devices):
        values = random.Random(device)
        level = [values.randrange(150, 300) for _ in range(metrics)]
        for second in range(0, DAY, step):
            fields = []
            for metric in range(metrics):
                level[metric] += values.choice((-1, 0, 0, 1))
                fields.append(f"metric-{metric}={(level[metric] + values.randrange(-2, 3)) / 10}")
            moment = (start + second) * 1000 + values.randrange(0, 100)
            yield f"m,device=device-{device:09} {','.join(fields)} {moment}"


def stats(database, name):
    """The number of documents, the bytes on disk and the bytes of indexes of a collection."""
    found = database.command("collStats", name)
    reusable = found["wiredTiger"]["block-manager"]["file bytes available for reuse"]
    documents = found["timeseries"]["bucketCount"] if "timeseries" in found else found["count"]
    return documents, found["storageSize"] - reusable, found["totalIndexSize"]


def sqlite_tables(file):
    """The bytes of each table with its indexes."""
    connection = sqlite3.connect(file)
    sql = "SELECT tbl_name, sum(pgsize) FROM dbstat JOIN sqlite_schema USING (name) GROUP BY tbl_name"
    return dict(connection.execute(sql))


def sqlite_expired_bytes(file):
    """The bytes of all rows of `buckets` after the expiry of their readings, the oldest first as the service does."""
    connection = sqlite3.connect(file)
    buckets = connection.execute("SELECT device, hour FROM buckets ORDER BY hour, device").fetchall()
    sql = "UPDATE buckets SET readings_state = 1, first_chunk = NULL WHERE device = ? AND hour = ?"
    connection.executemany(sql, buckets)
    connection.commit()
    return sqlite_tables(file)["buckets"]


def run(binary, layout, uri, client, mongod, devices, readings, metrics):
    """Stores a day, and returns the figures per bucket."""
    name = f"{layout}_{readings}_{metrics}"
    start = (int(time.time()) // DAY - 1) * DAY
    with tempfile.TemporaryDirectory(prefix="tidegauge-sizes-") as folder:
        variables = LAYOUTS[layout] | {
            "TIDEGAUGE_RETENTION__READINGS": "90d",
            "TIDEGAUGE_UDP__LISTEN": "off",
            "TIDEGAUGE_FLUSH__MAX_AGE": "1d",
            "TIDEGAUGE_PENDING__MAX_BYTES": "4GiB",
            "TIDEGAUGE_SERVER__SHUTDOWN_GRACE": "10m",
            "TIDEGAUGE_LOG__MIN_FREE_BYTES": "0",
        }
        if layout != "sqlite":
            variables |= {"TIDEGAUGE_MONGODB__URI": uri, "TIDEGAUGE_MONGODB__DATABASE": name}
        service = Server(binary, folder, **variables)

        def oplog():
            return client.local.command("collStats", "oplog.rs")["size"]

        def journal():
            return client.admin.command("serverStatus")["wiredTiger"]["log"]["log bytes written"]

        before = (oplog(), journal(), cpu_seconds(mongod.pid))
        ingest(service.port, lines(devices, readings, metrics, start), precision="ms", most=BATCH)
        service.process.send_signal(signal.SIGTERM)
        while open(f"/proc/{service.process.pid}/stat").read().rsplit(")", 1)[1].split()[0] != "Z":
            time.sleep(0.05)
        cpu = service.cpu()
        service.process.wait()
        buckets = devices * 24
        figures = {"service cpu": cpu / (devices * 24 * readings) * 1e6}
        if layout == "sqlite":
            tables = sqlite_tables(os.path.join(folder, "tidegauge.sqlite"))
            of = ["first_chunks", "chunks", "buckets"]
            figures["documents"] = 1
            figures["disk"] = sum(tables.get(table, 0) for table in of) / buckets
            figures["index"] = 0
            figures["rollups"] = tables["rollups"] / devices
            figures["devices"] = (tables["devices"] + tables["series"]) / devices
            figures["expired"] = sqlite_expired_bytes(os.path.join(folder, "tidegauge.sqlite")) / buckets
            return figures
        client.admin.command("fsync")
        figures["oplog"] = (oplog() - before[0]) / buckets
        figures["journal"] = (journal() - before[1]) / buckets
        figures["mongod cpu"] = (cpu_seconds(mongod.pid) - before[2]) / buckets * 1e6
        database = client[name]
        documents, disk, index = stats(database, "readings" if layout == "timeseries" else "buckets")
        figures.update({"documents": documents / buckets, "disk": disk / buckets, "index": index / documents})
        for other in ["rollups", "devices"]:
            count, disk, index = stats(database, other)
            assert count >= devices, (other, count)
            figures[other] = (disk + index) / devices
        client.drop_database(name)
        return figures


def fit(found, key):
    """The parts of a figure that each document, metric, reading and value adds, from the four cases."""
    y = {case: found[case].get(key, 0) for case in CASES}
    value = (y[360, 4] - y[60, 4] - y[360, 1] + y[60, 1]) / 900
    reading = (y[360, 1] - y[60, 1]) / 300 - value
    metric = (y[60, 4] - y[60, 1]) / 3 - 60 * value
    document = y[60, 1] - metric - 60 * (reading + value)
    return document, metric, reading, value


def main():
    binary, mongod_binary = sys.argv[1], sys.argv[2]
    devices = int(sys.argv[3]) if len(sys.argv) > 3 else 100
    with tempfile.TemporaryDirectory(prefix="tidegauge-sizes-mongod-") as folder:
        mongod, client, uri = start_mongod(mongod_binary, folder)
        try:
            for layout in LAYOUTS:
                found = {}
                for case in CASES:
                    found[case] = run(binary, layout, uri, client, mongod, devices, *case)
                    print(layout, case, {key: round(value, 3) for key, value in found[case].items()}, file=sys.stderr)
                print(f"[{layout}]")
                names = ["document", "metric_of_document", "reading", "value"]
                for key in ["disk", "oplog"]:
                    for name, share in zip(names, fit(found, key)):
                        print(f"{key}_bytes_per_{name} = {max(share, 0):.2f}")
                one, four = found[60, 1], found[60, 4]
                print(f"index_bytes_per_document = {one['index']:.0f}")
                of_metric = (four["rollups"] - one["rollups"]) / 3 / 24
                print(f"rollup_bytes_per_day = {max(one['rollups'] - 24 * of_metric, 0):.0f}")
                print(f"rollup_bytes_per_metric_of_hour = {of_metric:.1f}")
                print(f"rollup_bytes_per_expired_hour = {one.get('expired', 0):.1f}")
                print(f"bytes_per_device = {one['devices']:.0f}")
                further = (found[360, 4]["service cpu"] - found[360, 1]["service cpu"]) / 3
                print(f"# service: {further:.2f} us of CPU for a further value", flush=True)
        finally:
            client.close()
            mongod.terminate()
            mongod.wait()


if __name__ == "__main__":
    main()
