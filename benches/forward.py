#!/usr/bin/env python3
"""Measures what it costs to send readings from a site to a centre: `[forward]` after an outage, and `move`.

Usage: benches/forward.py BINARY [READINGS]

Stores READINGS (2,000,000) of a thousand devices, one each minute with one decimal, in a site with SQLite whose centre
is away. Then it starts the centre, and measures until all are forwarded. Then it moves the same store into an empty
centre. It prints a Markdown table. All processes share the processors.
"""

import http.client
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

from files import DEVICES, cpu_seconds, ingest, wait_until_stored

START = 1_700_000_000 // 3600 * 3600


class Server:
    """A running service with SQLite and more variables of the configuration."""

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


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def row(name, readings, seconds, sender, receiver, size):
    """Prints a row: the two sides are seconds of CPU."""
    costs = f"{sender / readings * 1e6:.2f} | {receiver / readings * 1e6:.2f}"
    size = f"{size / readings:.1f}" if size else ""
    print(f"| {name} | {readings / seconds:,.0f} | {costs} | {size} |", flush=True)


def forward(binary, site, port, readings, folder):
    """Starts the centre that the site waits for, and measures until the site has forwarded all."""
    centre = Server(binary, folder, TIDEGAUGE_HTTP__LISTEN=f"127.0.0.1:{port}")
    try:
        while centre.metric("tidegauge_readings_accepted_total") == 0:
            time.sleep(0.01)
        start, before = time.monotonic(), centre.metric("tidegauge_readings_accepted_total")
        sender, receiver = site.cpu(), centre.cpu()
        while site.metric("tidegauge_forward_lag_bytes") > 0:
            time.sleep(0.05)
        seconds, size = time.monotonic() - start, site.metric("tidegauge_forward_bytes_total")
        accepted = centre.metric("tidegauge_readings_accepted_total")
        assert accepted == readings, (accepted, readings)
        figures = (site.cpu() - sender, centre.cpu() - receiver)
        row("`[forward]`, after an outage", readings - before, seconds, *figures, size * (readings - before) / readings)
    finally:
        centre.stop()


def move(binary, site_folder, readings, folder):
    """Moves the store of a site into an empty centre, and measures the copy and the comparison."""
    centre = Server(binary, folder)
    try:
        url = f"http://127.0.0.1:{centre.port}"
        command = [binary, "move", "--from", "sqlite", "--to", url, "--data-dir", site_folder]
        start, receiver = time.monotonic(), centre.cpu()
        mover = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said = re.compile(r"sent ([\d,]+) readings in ([\d,]+) bytes")
        sent = next(found for line in mover.stderr if (found := said.search(line)))
        sent, size = (int(number.replace(",", "")) for number in sent.groups())
        copied, sender, mid = time.monotonic(), cpu_seconds(mover.pid), centre.cpu()
        assert sent == readings, (sent, readings)
        row("`move`: the copy", readings, copied - start, sender, mid - receiver, size)
        printed = mover.stdout.read()
        assert "missing in the new store: 0 values" in printed, printed
        _, status, usage = os.wait4(mover.pid, 0)
        assert status == 0, status
        compared = usage.ru_utime + usage.ru_stime - sender
        row("`move`: the comparison", readings, time.monotonic() - copied, compared, centre.cpu() - mid, 0)
    finally:
        centre.stop()


def main():
    binary, readings = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2_000_000
    readings -= readings % DEVICES
    with tempfile.TemporaryDirectory(prefix="tidegauge-forward-") as folder:
        folders = [os.path.join(folder, name) for name in ("site", "one", "other")]
        port = free_port()
        site = Server(binary, folders[0], TIDEGAUGE_FORWARD__URL=f"http://127.0.0.1:{port}")
        try:
            ingest(site.port, (f"m,host=d{device:04} value={(at + device) * 7919 % 1000 / 10} {START + 60 * at}"
                               for at in range(readings // DEVICES) for device in range(DEVICES)))
            wait_until_stored(site.port)
            print("| | readings/s | CPU s per million, site | CPU s per million, centre | bytes a reading |")
            print("| --- | ---: | ---: | ---: | ---: |")
            forward(binary, site, port, readings, folders[1])
        finally:
            site.stop()
        move(binary, folders[0], readings, folders[2])


if __name__ == "__main__":
    main()
