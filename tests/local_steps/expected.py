#!/usr/bin/env python3
"""Compares the rollups of servers with rollups that it computes from the readings.

    expected.py READINGS URL...

The first server answers all queries, and the others divide them among themselves. READINGS is a JSON file: for each
device, a list of [Unix milliseconds, {metric: value}] in the order of time. The script reads the local time of a zone
from zoneinfo at each quarter of an hour, and steps begin where that clock shows their starts. It prints the number of
compared points, or the differences with exit code 1.
"""

import bisect
import datetime
import itertools
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
EARLIER = {"-1d": 1, "-7d": 7, "-4w": 28}
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
    clock = {zone: Clock(zone, first - 110 * DAY, last + 40 * DAY) for zone in zones}
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
                bounds = touched(starts, start, end)
                yield device, parameters, points(bounds, folded(readings, bounds, columns))
        for step, offset, earlier in [
            ("1h", None, "-1d"), ("1h", None, "-7d"), ("6h", None, "-1d"), ("8h", "6h", "-4w"), ("1d", None, "-1d"),
            ("1d", None, "-7d"), ("1w", None, "-7d"), ("1mo", None, "-1mo"),
        ]:
            # Two days around the change itself, and around the same local time later.
            changes = [change, change + EARLIER.get(earlier, 0) * DAY]
            near = [(at - DAY, at + DAY) for at in changes]
            for start, end in near if step in ("1h", "6h") else [(first + 9 * DAY, last - 9 * DAY)]:
                bounds = touched(clock[zone].starts(step, OFFSETS[offset], start, end), start, end)
                before = [clock[zone].earlier(bound, earlier) for bound in bounds]
                for columns in [COLUMNS, "increase"]:
                    parameters = {"step": step, "tz": zone, "from": start, "to": end, "fn": columns, "compare": earlier}
                    if offset is not None:
                        parameters["offset"] = offset
                    sides = folded(readings, bounds, columns), folded(readings, before, columns)
                    yield device, parameters, compared(bounds, before, *sides, columns)


class Clock:
    """The local time of a zone at each quarter of an hour, and the latest local time shown up to then."""

    def __init__(self, zone, start, end):
        zone = zoneinfo.ZoneInfo(zone)
        self.ticks = []
        for ts in range(start // QUARTER * QUARTER, end, QUARTER):
            local = (EPOCH + datetime.timedelta(milliseconds=ts)).astimezone(zone)
            self.ticks.append((ts, local.replace(tzinfo=None), local.utcoffset()))
        self.shown = list(itertools.accumulate((local for _, local, _ in self.ticks), max))

    def earlier(self, bound, earlier):
        """The instant of a bound when its local time is moved back by `earlier`, such as -7d."""
        at = (bound - self.ticks[0][0]) // QUARTER
        shown = self.shown[at - 1] + datetime.timedelta(milliseconds=QUARTER)
        if earlier == "-1mo":
            shown = shown.replace(year=shown.year - (shown.month == 1), month=(shown.month - 2) % 12 + 1)
        else:
            shown -= datetime.timedelta(days=EARLIER[earlier])
        return self.ticks[bisect.bisect_left(self.shown, shown)][0]

    def change_in(self, start, end):
        """The last change of the clock in a range, at least three days from its ends."""
        inside = [tick for tick in self.ticks if start + 3 * DAY < tick[0] < end - 3 * DAY]
        changes = [after[0] for before, after in zip(inside, inside[1:]) if before[2] != after[2]]
        return changes[-1] if changes else None

    def starts(self, step, offset, start, end):
        """The starts of the steps, and the end of the last one. An offset shifts the steps like a slow clock."""
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
                shown = max(shown, local)  # a clock that is set back shows the same times again
                name = name_of(step, shown)
                begins = name != before
            if begins and before is not None:
                starts.append(ts)
            before = name
        return starts


def name_of(step, local):
    """The local time at which the step of a local time began."""
    day = local.replace(hour=0, minute=0)
    if step.endswith("h"):
        hours = int(step[:-1])
        return day.replace(hour=local.hour // hours * hours)
    if step == "1w":
        return day - datetime.timedelta(days=local.weekday())
    return day.replace(day=1) if step == "1mo" else day


def touched(starts, start, end):
    """The bounds of the steps that a range touches."""
    return starts[bisect.bisect_right(starts, start) - 1:bisect.bisect_left(starts, end) + 1]


def folded(readings, bounds, columns):
    """The columns of each metric, by the number of the step. If bounds are equal, the last one begins the step."""
    metrics, before = {}, {}
    for ts, values in readings:
        if ts >= bounds[-1]:
            break
        at = bisect.bisect_right(bounds, ts) - 1
        for metric, value in values.items():
            earlier = before.get(metric)
            before[metric] = (ts, value)
            if at >= 0:
                metrics.setdefault(metric, {}).setdefault(at, []).append((ts, value, earlier))
    make = increase if columns == "increase" else stats
    return {metric: {at: make(bounds[at], values) for at, values in steps.items()} for metric, steps in metrics.items()}


def points(bounds, metrics):
    """The points of each metric, by the start of their steps."""
    return {metric: {bounds[at]: columns for at, columns in steps.items()} for metric, steps in metrics.items()}


def compared(bounds, before, now, earlier, columns):
    """The points of each step that has readings, or had some earlier."""
    none = {column: 0 if column == "count" else None for column in columns.split(",")}
    metrics = {}
    for metric in now.keys() | earlier.keys():
        sides = now.get(metric, {}), earlier.get(metric, {})
        for at in sorted(sides[0].keys() | sides[1].keys()):
            of_earlier = {"ts": rfc3339(before[at]), **sides[1].get(at, none)}
            point = {**sides[0].get(at, none), "compared": of_earlier}
            metrics.setdefault(metric, {})[bounds[at]] = point
    return metrics


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
