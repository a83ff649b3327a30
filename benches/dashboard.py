#!/usr/bin/env python3
"""Measures the dashboard in Chromium: first paint, a page of 100,000 devices, a year of hours of five devices.

Usage: benches/dashboard.py BINARY

Starts BINARY with SQLite in a temporary folder, fills it, opens its page in a headless Chromium, and prints the
median and the largest of RUNS times, each from the action to the painted frame. Server and browser share the
processors. For comparison, it measures the first paint of an empty page of another server: the part of Chromium.
"""

import http.server
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading

from files import Server, ingest, wait_until_stored

RUNS = 9
DEVICES = 100_000
HOURS = 365 * 24
GET_CHROMIUM = pathlib.Path(__file__).resolve().parent.parent / "tests" / "get-chromium"

# Runs an action, waits until a condition holds and its frame is painted, and returns the time.
TIMED = """(async () => {
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const start = performance.now();
  %s;
  while (!(%s)) await new Promise((done) => setTimeout(done));
  await frame();
  return performance.now() - start;
})()"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
ROWS = "document.querySelectorAll('tr[data-device] b').length"


class Browser:
    """Chromium, which reads commands from descriptor 3 and writes to 4."""

    def __init__(self, profile):
        chromium = subprocess.run([GET_CHROMIUM], check=True, capture_output=True, text=True).stdout.strip()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}"]
        command = ["sh", "-c", 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null', "sh", chromium, *options]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([*command, "--remote-debugging-pipe", "about:blank"], **pipes)
        self.number, self.rest, self.session = 0, b"", None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method, **params):
        self.number += 1
        command = {"id": self.number, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        self.process.stdin.write(json.dumps(command).encode() + b"\0")
        self.process.stdin.flush()
        while True:
            while b"\0" not in self.rest:
                self.rest += os.read(self.process.stdout.fileno(), 1 << 20)
            message, self.rest = self.rest.split(b"\0", 1)
            message = json.loads(message)
            if message.get("id") == self.number:
                return message["result"]

    def js(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def open(self, url, condition=ROWS):
        """Opens an address in a new document, and waits for a condition."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        while not self.js(condition):
            pass


class EmptyPage(http.server.BaseHTTPRequestHandler):
    """Answers every request with a heading."""

    def do_GET(self):
        body = b"<!doctype html><title>Empty</title><h1>Empty</h1>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def fill(port):
    names = [f"D-{number:06}" for number in range(DEVICES)]
    ingest(port, (f"light,deviceId={name} lux={nth % 500}" for nth, name in enumerate(names)))
    now = int(subprocess.run(["date", "+%s"], check=True, capture_output=True).stdout)
    hours = range(now // 3600 - HOURS, now // 3600)
    ingest(port, (f"climate,deviceId=YEAR-{nth} temp={20 + nth + hour % 24 / 4} {hour * 3600}"
                  for hour in hours for nth in range(5)))
    wait_until_stored(port)


def main():
    with tempfile.TemporaryDirectory() as folder:
        server = Server(sys.argv[1], folder)
        browser = None
        try:
            fill(server.port)
            browser = Browser(os.path.join(folder, "profile"))
            measure(browser, f"http://127.0.0.1:{server.port}")
        finally:
            for process in filter(None, [browser and browser.process, server.process]):
                process.kill()
                process.wait()


def measure(browser, url):
    year = "&".join(f"device=YEAR-{nth}" for nth in range(5))
    chart = "document.querySelectorAll('.chart .legend tbody tr').length === 5 && document.querySelector('canvas')"
    actions = [
        ("a page of 100,000 devices", "location.hash = '#/devices?prefix=D-05'",
         "document.querySelector('tr[data-device=\"D-050000\"] b')"),
        ("a year of five devices, 12 hours a step", f"location.hash = '#/chart?{year}&range=365d'", chart),
        ("a year of five devices, 8,760 hours each", f"location.hash = '#/chart?{year}&range=365d&step=1h'", chart),
    ]
    empty = http.server.HTTPServer(("127.0.0.1", 0), EmptyPage)
    threading.Thread(target=empty.serve_forever, daemon=True).start()
    paints = ["first paint of an empty page", "first paint, nothing cached", "first paint, files cached"]
    times = {name: [] for name in paints}
    browser.open(f"{url}/")  # Chromium starts some of its parts at the first page
    for _ in range(RUNS):
        browser.call("Network.clearBrowserCache")
        browser.open(f"http://127.0.0.1:{empty.server_port}/", PAINT)
        times[paints[0]].append(browser.js(PAINT))
        for name in paints[1:]:
            browser.open(f"{url}/")
            times[name].append(browser.js(PAINT))
        for name, action, condition in actions:
            browser.open(f"{url}/")
            times.setdefault(name, []).append(browser.js(TIMED % (action, condition)))
    print("| | median, ms | largest, ms |\n|---|---:|---:|")
    for name, found in times.items():
        print(f"| {name} | {statistics.median(found):.0f} | {max(found):.0f} |")


if __name__ == "__main__":
    main()
