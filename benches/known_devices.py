#!/usr/bin/env python3
"""Measures the cost of devices that the store knows: at rest, and after a restart until each device has sent once.

Usage: benches/known_devices.py rest BINARY MONGOD [DEVICES] [MINUTES]
       benches/known_devices.py restart BINARY MONGOD [DEVICES]

Needs pymongo (`pip install pymongo`). Both print a Markdown table.

`rest` starts three services for each store, each beside a mongod of its own. The first knows no device. The second
knows DEVICES (100,000) with a reading of this hour, the third with a reading of yesterday. No device sends. It prints
the CPU seconds a minute of the service and of mongod, for the first minute after the start and for the MINUTES (10)
after it.

`restart` has three rounds, each with one reading of each of DEVICES (1,000,000): of new devices, of known devices, and
after a restart of the service. It prints the time until `/readyz` answers 200 after the restart, and for each round the
CPU a reading and the commands of mongod.
"""

import http.client
import os
import sys
import tempfile
import time

from files import Server, cpu_seconds, ingest
from sizes import BATCH, start_mongod

DAY = 24 * 3600
LAYOUTS = {
    "MongoDB": {"TIDEGAUGE_STORE__KIND": "mongodb"},
    "MongoDB, packed": {"TIDEGAUGE_STORE__KIND": "mongodb", "TIDEGAUGE_MONGODB__LAYOUT": "packed"},
    "SQLite": {"TIDEGAUGE_STORE__KIND": "sqlite"},
}


class Site:
    """A service with a store, and the mongod of the store."""

    def __init__(self, layout, programs, folder):
        self.binary, mongod = programs
        self.data = os.path.join(folder, "data")
        self.variables = dict(LAYOUTS[layout], TIDEGAUGE_SERVER__SHUTDOWN_GRACE="10m")
        self.mongod = self.client = None
        if layout != "SQLite":
            self.mongod, self.client, uri = start_mongod(mongod, os.path.join(folder, "db"))
            self.variables["TIDEGAUGE_MONGODB__URI"] = uri
        self.start()

    def start(self):
        """Starts the service, and returns the seconds until it is ready."""
        begin = time.monotonic()
        self.service = Server(self.binary, self.data, **self.variables)
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.service.port)
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return time.monotonic() - begin
            time.sleep(0.01)

    def cpu(self):
        return self.service.cpu(), cpu_seconds(self.mongod.pid) if self.mongod else 0

    def commands(self):
        """The queries and updates that mongod has executed."""
        if not self.client:
            return 0, 0
        counts = self.client.admin.command("serverStatus")["opcounters"]
        return counts["query"], counts["update"] + counts["insert"]

    def send(self, devices, second):
        lines = (f"m,device=d{device:07} value={device % 500 / 10} {second}000" for device in range(devices))
        ingest(self.service.port, lines, precision="ms", most=BATCH)

    def send_and_store(self, devices, second):
        """Sends a reading of each device, and returns when all are stored."""
        self.send(devices, second)
        while self.service.metric("tidegauge_readings_pending") > 0:
            time.sleep(0.2)

    def stop(self):
        self.service.stop()
        if self.mongod:
            self.mongod.terminate()
            self.mongod.wait()


def folders(parent, name):
    folder = os.path.join(parent, name)
    for part in ("data", "db"):
        os.makedirs(os.path.join(folder, part))
    os.chmod(os.path.join(folder, "data"), 0o700)
    return folder


def rest(programs, devices, minutes):
    now = int(time.time())
    cases = [(layout, age) for layout in LAYOUTS for age in (None, 0, DAY)]
    with tempfile.TemporaryDirectory(prefix="tidegauge-rest-") as parent:
        sites = []
        for at, (layout, age) in enumerate(cases):
            site = Site(layout, programs, folders(parent, str(at)))
            sites.append(site)
            if age is not None:
                site.send_and_store(devices, now - age)
            site.service.stop()
        befores = []
        for site in sites:
            befores.append((site.mongod and cpu_seconds(site.mongod.pid) or 0, time.monotonic()))
            site.start()
        time.sleep(60)
        firsts = []
        for site, (mongod, begin) in zip(sites, befores):
            service, of_mongod = site.cpu()
            firsts.append((service, of_mongod, of_mongod - mongod))
        begin = time.monotonic()
        time.sleep(minutes * 60)
        print("| store | known devices | first minute: service | mongod | each minute: service | mongod |")
        print("|---|---|---:|---:|---:|---:|")
        spent = (time.monotonic() - begin) / 60
        for (layout, age), site, first in zip(cases, sites, firsts):
            service, mongod = ((after - before) / spent for after, before in zip(site.cpu(), first))
            known = "none" if age is None else f"{devices:,}, " + ("yesterday" if age else "this hour")
            print(f"| {layout} | {known} | {first[0]:.2f} | {first[2]:.2f} | {service:.3f} | {mongod:.3f} |")
        for site in sites:
            site.stop()


def restart(programs, devices):
    print("| store | round | ready after s | service, us a reading | mongod, us a reading | finds | writes |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for layout in LAYOUTS:
        with tempfile.TemporaryDirectory(prefix="tidegauge-restart-") as parent:
            site = Site(layout, programs, folders(parent, "site"))
            ready = None
            for number, name in enumerate(("new devices", "known devices", "after a restart")):
                if number == 2:
                    site.service.stop()
                    ready = site.start()
                # The cost of the start is a part of the round after it.
                (service, mongod), counts = site.cpu(), site.commands()
                service = 0 if number == 2 else service
                site.send_and_store(devices, int(time.time()))
                cost = [(after - before) / devices * 1e6 for after, before in zip(site.cpu(), (service, mongod))]
                finds, writes = (after - before for after, before in zip(site.commands(), counts))
                seconds = f"{ready:.2f}" if ready else ""
                figures = f"{seconds} | {cost[0]:.2f} | {cost[1]:.2f} | {finds:,} | {writes:,}"
                print(f"| {layout} | {name} | {figures} |", flush=True)
            site.stop()


def main():
    part, programs = sys.argv[1], sys.argv[2:4]
    numbers = [int(number) for number in sys.argv[4:]]
    if part == "rest":
        rest(programs, *(numbers + [100_000, 10][len(numbers):]))
    else:
        restart(programs, *(numbers or [1_000_000]))


if __name__ == "__main__":
    main()
