#!/usr/bin/env python3
"""Measures files: rows per second, processor time and memory of the largest ones.

Usage: benches/files.py BINARY [READINGS]

Starts BINARY with SQLite in a temporary folder, stores READINGS of one device (10,000,000), one each second with
one decimal, and as many of a thousand devices, one each minute. Then it reads both as files and prints a table.
The service and the reader share the processors.
"""

import http.client
import os
import re
import subprocess
import sys
import tempfile
import time

HOUR = 3600
START = 1_700_000_000 // HOUR * HOUR
DEVICES = 1000
BATCH = 50_000


class Server:
    """A running service, by default with SQLite. `variables` are further environment variables of its configuration."""

    def __init__(self, binary, folder, **variables):
        environment = dict(
            os.environ,
            TIDEGAUGE_RETENTION__READINGS="forever",
            TIDEGAUGE_FLUSH__MAX_AGE="5s",
            TIDEGAUGE_UDP__LISTEN="127.0.0.1:0",
            TIDEGAUGE_HTTP__LISTEN="127.0.0.1:0",
        )
        environment |= variables
        self.process = subprocess.Popen([binary, "serve", "--data-dir", folder], env=environment,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.port = int(re.search(r"http=\S*:(\d+)", self.process.stdout.readline()).group(1))

    def cpu(self):
        return cpu_seconds(self.process.pid)

    def metric(self, name):
        """The sum of a metric over its labels."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))

    def stop(self):
        self.process.terminate()
        self.process.wait()


def ingest(port, lines, precision="s", most=BATCH):
    """Sends lines of line protocol, `most` at once, and repeats a batch while the service is overloaded."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    batch = []

    def send():
        body = "\n".join(batch).encode()
        while True:
            connection.request("POST", f"/write?precision={precision}", body)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status == 204:
                return
            assert answer.status == 503, (answer.status, text)
            time.sleep(float(answer.getheader("Retry-After", "1")))

    for line in lines:
        batch.append(line)
        if len(batch) == most:
            send()
            batch = []
    if batch:
        send()


def wait_until_stored(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while True:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        if re.search(r"^tidegauge_readings_pending 0$", text, re.M):
            return
        time.sleep(0.5)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid, name):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(rf"^{name}:\s+(\d+)", status.read(), re.M).group(1)) / 1024


def measure(server, name, path, rows, encoding):
    pid = server.process.pid
    with open(f"/proc/{pid}/clear_refs", "w") as clear_refs:
        clear_refs.write("5")
    memory, cpu, start = memory_mib(pid, "VmRSS"), server.cpu(), time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", path, headers={"Accept-Encoding": encoding})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    size, lines = 0, 0
    while piece := answer.read(1 << 20):
        size += len(piece)
        lines += piece.count(b"\n") if encoding == "identity" else 0
    seconds, cpu = time.monotonic() - start, server.cpu() - cpu
    assert encoding != "identity" or abs(lines - rows) <= 1, (lines, rows)
    more = memory_mib(pid, "VmHWM") - memory
    figures = f"{rows / seconds / 1e6:.1f} | {cpu / rows * 1e9:.0f} | {size / 1e6:.0f} | {more:.0f}"
    print(f"| {name} | {figures} |", flush=True)


def main():
    binary, readings = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10_000_000
    with tempfile.TemporaryDirectory(prefix="tidegauge-files-") as folder:
        server = Server(binary, folder)
        try:
            ingest(server.port, (f"m,host=one value={at * 7919 % 1000 / 10} {START + at}" for at in range(readings)))
            minutes = range(readings // DEVICES)
            many = (f"m,host=d{device:04} value={(at + device) * 7919 % 1000 / 10} {START + 60 * at}"
                    for at in minutes for device in range(DEVICES))
            ingest(server.port, many)
            wait_until_stored(server.port)
            print("| file | million rows/s | ns of CPU per row | MB | MiB of memory |\n|---|---|---|---|---|")
            one, many = f"/v1/devices/one/readings?from={START}000", f"/v1/readings?prefix=d&from={START}000"
            for name, path, encoding in (
                ("CSV of one device", f"{one}&format=csv", "identity"),
                ("the same, zstd", f"{one}&format=csv", "zstd"),
                ("the same, gzip", f"{one}&format=csv", "gzip"),
                ("NDJSON of one device", f"{one}&format=ndjson", "identity"),
                (f"CSV of {DEVICES} devices", f"{many}&format=csv", "identity"),
            ):
                rows = readings if "one" in name or "same" in name else len(minutes) * DEVICES
                measure(server, name, path, rows, encoding)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
