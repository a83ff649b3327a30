#!/usr/bin/env python3
"""Asks influxd and tidegauge the same InfluxQL queries, and compares the answers value by value.

Usage: compare.py INFLUXD_URL OTHER file | SEED COUNT. README.md beside this file explains it. It prints the
differences that differences.txt does not name, then `n of n`, and exits with status 1 if there are any.
"""

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from generate import generate

FOLDER = Path(__file__).resolve().parent
DATABASE = "influxql"
TOLERANCE = 1e-9
SHOWN = 20


def lines(name):
    """The lines of a file that are not empty. In a query, a backslash and an n stand for a line end."""
    return [line.replace("\\n", "\n") for line in (FOLDER / name).read_text().split("\n") if line]


def known_differences():
    """The queries in differences.txt. Its lines with # are the reasons."""
    return {line for line in lines("differences.txt") if not line.startswith("#")}


def post(url, path, fields, body=None):
    """The body of the answer, whatever its status."""
    data = body if body is not None else urllib.parse.urlencode(fields).encode()
    target = f"{url}{path}" + (f"?{urllib.parse.urlencode(fields)}" if body is not None else "")
    try:
        with urllib.request.urlopen(urllib.request.Request(target, data)) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def fill(url):
    """Writes the data into a fresh database."""
    for statement in [f"DROP DATABASE {DATABASE}", f"CREATE DATABASE {DATABASE}"]:
        post(url, "/query", {"q": statement})
    assert not post(url, "/write", {"db": DATABASE}, (FOLDER / "data.lp").read_bytes())


def ask_server(url, queries):
    """Sends the queries to a server, and returns its answers."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda query: post(url, "/query", {"db": DATABASE, "q": query}), queries))


def ask_program(program, queries):
    """Sends the queries to a program, and returns its answers, one a line."""
    now = time.time_ns()
    questions = "".join(json.dumps({"q": query, "now": now}) + "\n" for query in queries)
    done = subprocess.run([program], input=questions, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def is_close(a, b):
    """Whether two values are equal, up to the rounding of a sum."""
    if isinstance(a, float) or isinstance(b, float):
        if not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b)):
            return False
        return abs(a - b) <= TOLERANCE * max(abs(a), abs(b), 1e-3)
    return type(a) is type(b) and a == b


def in_order(rows):
    """The rows, sorted within each instant."""
    return sorted(rows, key=lambda row: (row[:1] != rows[0][:1], json.dumps(row))) if rows else rows


def runs(rows):
    """The rows of each instant."""
    found = []
    for row in rows:
        if found and found[-1][0][0] == row[0]:
            found[-1].append(row)
        else:
            found.append([row])
    return [in_order(run) for run in found]


def is_same(a, b):
    """Whether two answers are equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return False
        has_time = a.get("columns", [None])[0] == "time"
        values = [(runs(a[key]), runs(b[key])) if key == "values" and has_time else (a[key], b[key]) for key in a]
        return all(is_same(x, y) for x, y in values)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(is_same(x, y) for x, y in zip(a, b))
    return is_close(a, b)


def comparable(answer, query):
    """The answer without the parts that InfluxDB chooses arbitrarily."""
    answer = json.loads(answer)
    for result in answer.get("results", []):
        for series in result.get("series", []):
            named = set(re.findall(r"mode\([^)]*\) AS (\w+)", query))
            places = [at for at, name in enumerate(series["columns"]) if name in named or name.startswith("mode")]
            for row in series.get("values", []):
                for at in places:
                    row[at] = row[at] is not None
                if query.startswith("SELECT percentile("):
                    row[2:] = []
                    if "time(" not in query:
                        row[0] = None
    return answer


def main():
    influxd, other, *choice = sys.argv[1:]
    fill(influxd)
    is_program = other.startswith("exec:")
    if not is_program and not other.startswith("filled:"):
        fill(other)
    queries = lines("queries.txt") if choice == ["file"] else generate(int(choice[0]), int(choice[1]))
    theirs = ask_server(influxd, queries)
    if is_program:
        ours = ask_program(other.removeprefix("exec:"), queries)
    else:
        ours = ask_server(other.removeprefix("filled:"), queries)
    known = known_differences()
    different, named = [], 0
    for query, a, b in zip(queries, theirs, ours, strict=True):
        try:
            agrees = is_same(comparable(a, query), comparable(b, query))
        except json.JSONDecodeError:
            agrees = False
        if not agrees and query in known:
            named += 1
        elif not agrees:
            different.append((query, a, b))
    for query, a, b in different[:SHOWN]:
        at = next((at for at, (x, y) in enumerate(zip(a, b)) if x != y), 0)
        start = max(0, at - 60)
        print(f"query   {query}\ninfluxd {a[start:start + 400].rstrip()}\nours    {b[start:start + 400].rstrip()}")
    empty = sum('"series"' not in answer and '"error"' not in answer for answer in theirs)
    agreed = len(queries) - len(different) - named
    print(f"{agreed} of {len(queries)} agree, {named} differ for named reasons; {empty} answers are empty")
    if different:
        sys.exit(f"{len(different)} answers differ")


if __name__ == "__main__":
    main()
