#!/usr/bin/env python3
"""Measures the cost of forwarding readings from a site to a centre: `[forward]` after an outage.

Usage: benches/forward.py BINARY [READINGS]

Stores READINGS (2,000,000) of a thousand devices, one each minute with one decimal, in a site with SQLite whose centre
is not running. Then it starts the centre, and measures until the site has forwarded all readings. It prints a Markdown
table. All processes share the processors.
"""

import os
import socket
import sys
import tempfile
import time

from files import DEVICES, START, Server, ingest, wait_until_stored


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def row(name, readings, seconds, sender, receiver, size):
    """Prints a row. `sender` and `receiver` are seconds of CPU, `size` is bytes."""
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


def main():
    binary, readings = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2_000_000
    readings -= readings % DEVICES
    with tempfile.TemporaryDirectory(prefix="tidegauge-forward-") as folder:
        folders = [os.path.join(folder, name) for name in ("site", "centre")]
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


if __name__ == "__main__":
    main()
