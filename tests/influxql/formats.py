#!/usr/bin/env python3
"""Compares the bytes of answers: JSON, CSV and MessagePack, plain, pretty and in chunks.

Usage: formats.py INFLUXD_URL OTHER, after compare.py has written the data. OTHER is the address of a server, or
`exec:PROGRAM`: the program gets lines of JSON with the parameters and prints an answer for each as hexadecimal
digits. Keys of MessagePack maps have no order, so these answers are compared as sets of bytes.
"""

import itertools
import json
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

DATABASE = "influxql"
TYPES = {"json": "application/json", "csv": "application/csv", "msgpack": "application/x-msgpack"}
WINDOWS = "WHERE time >= '2026-03-28T00:00:00Z' AND time < '2026-03-29T06:00:00Z' GROUP BY time(1h)"
QUERIES = [
    "SELECT temp, room FROM climate WHERE device_id =~ /S[34]/ LIMIT 7",
    "SELECT max(usage_idle), count(usage_idle) FROM cpu GROUP BY cpu, device_id",
    f"SELECT cumulative_sum(count(temp)), min(temp) FROM climate {WINDOWS}, device_id",
    "SELECT temp FROM climate WHERE device_id='S1'; SHOW DATABASES; SELECT value FROM power WHERE phase = 'L1' LIMIT 9",
    "SELECT count(temp) FROM climate; SELECT count(hum) FROM climate",
    'SELECT max(*) FROM "odd name" GROUP BY *',
    "SELECT temp FROM climate WHERE device_id='S1' LIMIT 3 tz('Europe/Vienna')",
    "SELECT min(temp) FROM nope",
    "SHOW DATABASES",
    "SHOW TAG KEYS",
    'SELEC <a> & "b"',
]


def ask(url, case):
    """The bytes that a server answers."""
    fields = {"db": DATABASE, "q": case["q"]}
    if case["epoch"]:
        fields["epoch"] = case["epoch"]
    if case["chunk"]:
        fields |= {"chunked": "true", "chunk_size": str(case["chunk"])}
    target = url + "/query" + ("?pretty=true" if case["pretty"] else "")
    request = urllib.request.Request(target, urllib.parse.urlencode(fields).encode(), {"Accept": TYPES[case["format"]]})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        return error.read()


def ask_program(program, cases):
    """The bytes that a program answers."""
    questions = "".join(json.dumps(case) + "\n" for case in cases)
    done = subprocess.run([program], input=questions, check=True, capture_output=True, text=True)
    return [bytes.fromhex(line) for line in done.stdout.splitlines()]


def comparable(answer, case):
    """The answer in a form to compare: without the order of its bytes in MessagePack, else without a last line end."""
    return sorted(answer) if case["format"] == "msgpack" else answer.rstrip(b"\n")


def main():
    influxd, other = sys.argv[1:]
    epochs = [None, "ns", "u", "ms", "s", "m", "h"]
    choices = itertools.product(QUERIES, TYPES, epochs, [False, True], [None, 3, 10_000])
    cases = [dict(zip(["q", "format", "epoch", "pretty", "chunk"], choice, strict=True)) for choice in choices]
    cases = [case for case in cases if case["format"] == "json" or not case["pretty"]]
    if other.startswith("exec:"):
        ours = ask_program(other.removeprefix("exec:"), cases)
    else:
        ours = [ask(other.removeprefix("filled:"), case) for case in cases]
    different = []
    for case, b in zip(cases, ours, strict=True):
        a = ask(influxd, case)
        if comparable(a, case) != comparable(b, case):
            different.append((case, a, b))
    for case, a, b in different[:10]:
        print(f"{case}\ninfluxd {a[:400]}\nours    {b[:400]}")
    print(f"{len(cases) - len(different)} of {len(cases)} agree")
    if different:
        sys.exit(f"{len(different)} answers differ")


if __name__ == "__main__":
    main()
