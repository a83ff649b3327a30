#!/usr/bin/env python3
"""Compares the rollups of servers with those that it computes from the readings.

    expected.py READINGS URL...

The first server answers all questions, and the others share them. READINGS is a JSON file: for each device, a list
of [Unix milliseconds, {metric: value}] in the order of time. The
local time comes from zoneinfo, read at each quarter of an hour; the steps begin where that clock says so. Prints the
number of compared points, or what differs, with exit code 1.
"""

import bisect
import datetime
import json
import math
import sys
import urllib.parse
import urllib.request
import zoneinfo
from concurrent.futures import ThreadPoolExecutor

MINUTE, QUARTER, HOUR, DAY = 60_000, 900_000, 3_600_000, 86_400_000
ZONES = ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/New_York", "America/St_Johns",
         "Australia/Lord_Howe"]
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
LOOK_BACK = 7 * DAY
OFFSETS = {None: 0, "30m": 30, "5h45m": 345, "6h": 360, "6d22h": 9_960}  # in minutes
COLUMNS = "count,min,max,avg,sum,first,last"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        devices = json.load(file)
    questions = [question for device, readings in devices.items() for question in questions_of(device, readings)]
    first, *others = sys.argv[2:]
    parts = [(first, questions)] + [(url, questions[at::len(others)]) for at, url in enumerate(others)]
    with ThreadPoolExecutor(4) as pool:
        print(sum(pool.map(lambda part: sum(compare(part[0], *question) for question in part[1]), parts)))


def questions_of(device, readings):
    """The parameters of queries, and the points that they should find."""
    first, last = readings[0][0], readings[-1][0]
    is_year = last - first > 300 * DAY
    zones = ["Europe/Berlin", "Australia/Lord_Howe"] if is_year else ZONES
    clock = {zone: Clock(zone, first - 40 * DAY, last + 40 * DAY) for zone in zones}
    for zone in zones:
        change = clock[zone].change_in(first, last) or (first + last) // 2
        near = (change - 2 * DAY + 37 * MINUTE, change + DAY + 13 * MINUTE)
        for step, offset, (start, end) in [
            ("5m", None, (change - 6 * HOUR, change + 6 * HOUR)),
            ("1h", None, near),
            ("1h", "30m", near),
            ("6h", None, near),
            ("8h", "6h", (first, last)),
            ("12h", "5h45m", near),
            ("1d", None, (first, last)),
            ("1d", "6h", (first, last)),
            ("1w", None, (first, last)),
            ("1w", "6d22h", (first, last)),
            ("1mo", None, (first + 9 * DAY, last - 9 * DAY)),
        ]:
            starts = clock[zone].starts(step, OFFSETS[offset], start, end)
            for columns in [COLUMNS, "increase"] if step in ("1h", "8h", "1d") else [COLUMNS]:
                parameters = {"step": step, "tz": zone, "from": start, "to": end, "fn": columns}
                if offset is not None:
                    parameters["offset"] = offset
                yield device, parameters, expected(readings, starts, start, end, columns)


class Clock:
    """The local time of a zone at each quarter of an hour."""

    def __init__(self, zone, start, end):
        zone = zoneinfo.ZoneInfo(zone)
        self.ticks = []
        for ts in range(start // QUARTER * QUARTER, end, QUARTER):
            local = (EPOCH + datetime.timedelta(milliseconds=ts)).astimezone(zone)
            self.ticks.append((ts, local.replace(tzinfo=None), local.utcoffset()))

    def change_in(self, start, end):
        """The last change of the clock in a range, at least three days from its ends."""
        inside = [tick for tick in self.ticks if start + 3 * DAY < tick[0] < end - 3 * DAY]
        changes = [after[0] for before, after in zip(inside, inside[1:]) if before[2] != after[2]]
        return changes[-1] if changes else None

    def starts(self, step, offset, start, end):
        """The starts of the steps, and the end of the last one. Steps with an offset are those of a clock behind."""
        if step == "5m":  # all offsets from UTC are multiples of it
            return list(range(start // (5 * MINUTE) * 5 * MINUTE, end + 5 * MINUTE, 5 * MINUTE))
        behind = datetime.timedelta(minutes=offset)
        starts, shown, before = [], self.ticks[0][1] - behind, None
        for ts, local, _ in self.ticks:
            local -= behind
            if step == "1h":
                name = local.replace(minute=0)
                begins = local.minute == 0 or (before is not None and name > before)
            else:
                shown = max(shown, local)  # a clock that is set back repeats what it has shown
                name = name_of(step, shown)
                begins = name != before
            if begins and before is not None:
                starts.append(ts)
            before = name
        return starts


def name_of(step, local):
    """The local time at which the step began that includes a local time."""
    day = local.replace(hour=0, minute=0)
    if step.endswith("h"):
        hours = int(step[:-1])
        return day.replace(hour=local.hour // hours * hours)
    if step == "1w":
        return day - datetime.timedelta(days=local.weekday())
    return day.replace(day=1) if step == "1mo" else day


def expected(readings, starts, start, end, columns):
    """The points of each metric, by the start of their steps."""
    first = bisect.bisect_right(starts, start) - 1
    last = bisect.bisect_left(starts, end)
    begin, stop = starts[first], starts[last]
    metrics, before = {}, {}
    for ts, values in readings:
        if ts >= stop:
            break
        at = starts[bisect.bisect_right(starts, ts) - 1] if ts >= begin else None
        for metric, value in values.items():
            earlier = before.get(metric)
            before[metric] = (ts, value)
            if at is not None:
                metrics.setdefault(metric, {}).setdefault(at, []).append((ts, value, earlier))
    make = increase if columns == "increase" else stats
    return {metric: {at: make(at, values) for at, values in steps.items()} for metric, steps in metrics.items()}


def stats(_start, values):
    numbers = [value for _, value, _ in values]
    total = math.fsum(numbers)
    first, last = ({"ts": rfc3339(values[at][0]), "value": values[at][1]} for at in (0, -1))
    return {
        "count": len(numbers),
        "min": min(numbers),
        "max": max(numbers),
        "avg": total / len(numbers),
        "sum": total,
        "first": first,
        "last": last,
    }


def increase(start, values):
    growth = []
    for _, value, earlier in values:
        if earlier is not None and earlier[0] >= start - LOOK_BACK:
            growth.append(value - earlier[1] if value >= earlier[1] else value)
    return {"increase": math.fsum(growth)}


def compare(url, device, parameters, metrics):
    query = f"{url}/v1/devices/{device}/rollups?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(query) as answer:
        answer = json.load(answer)
    if "partial" in answer:
        sys.exit(f"{query}: the answer is partial: {answer.get('partialReason')}")
    found = answer["metrics"]
    if found.keys() != metrics.keys():
        sys.exit(f"{query}: found {sorted(found)}, expected {sorted(metrics)}")
    for metric, points in metrics.items():
        if len(found[metric]) != len(points):
            sys.exit(f"{query}: {metric} has {len(found[metric])} points, expected {len(points)}")
        for point, (start, columns) in zip(found[metric], points.items()):
            ts, local = point.pop("ts"), datetime.datetime.fromisoformat(point.pop("local"))
            instant = EPOCH + datetime.timedelta(milliseconds=start)
            offset = instant.astimezone(zoneinfo.ZoneInfo(parameters["tz"])).utcoffset()
            is_start = ts == rfc3339(start) and (local, local.utcoffset()) == (instant, offset)
            if not is_start or not same(point, columns):
                sys.exit(f"{query}: {metric} at {ts} has {point}, expected {columns} at {rfc3339(start)}")
    return sum(map(len, metrics.values()))


def same(found, wanted):
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-9)
    return found == wanted


def rfc3339(ts):
    instant = EPOCH + datetime.timedelta(milliseconds=ts)
    return instant.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ts % 1000:03}Z"


if __name__ == "__main__":
    main()
