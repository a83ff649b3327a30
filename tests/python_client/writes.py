"""Writes and queries: the queries return the readings that were written."""

import itertools
import math
import random
import threading
import unittest
import weakref
from collections import deque
from datetime import datetime, timedelta, timezone
from unittest import mock

from common import DAY, START, TOKEN, URL, Case, Client
from tidegauge import Rollup, Sample

def instant(ts):
    return datetime.fromtimestamp(ts // 1000, timezone.utc) + timedelta(milliseconds=ts % 1000)


DATE = instant(START)


def series_of(seed, count, step_ms):
    """Readings whose values are quarters, so that their sums are exact in any order."""
    numbers = random.Random(seed)
    return [(START + index * step_ms, {"temp": numbers.randrange(-4000, 4000) / 4, "hum{room=a b}": 40 + index % 7})
            for index in range(count)]


class Writes(Case):
    def test_readings_are_those_that_were_written(self):
        written = series_of(1, 1000, 7_001)
        with self.client(batch_readings=64) as client:
            client.write_many("exact/1", written)
        client = self.client()
        alive = deque()
        most = 0
        read = []
        for reading in client.readings("exact/1", **DAY, page_size=50):
            alive.append(weakref.ref(reading))
            while alive[0]() is None:
                alive.popleft()
            most = max(most, len(alive))
            self.assertEqual(reading.ts.utcoffset(), timedelta(0))
            read.append((round(reading.ts.timestamp() * 1000), dict(sorted(reading.values.items()))))
        self.assertEqual(read, [(ts, dict(sorted(values.items()))) for ts, values in written])
        self.assertLessEqual(most, 51)
        some = client.readings("exact/1", START + 7_001, DATE + timedelta(milliseconds=3 * 7_001), metric="temp")
        self.assertEqual([reading.values for reading in some],
                         [{"temp": values["temp"]} for _, values in written[1:3]])
        labelled = list(client.readings("exact/1", **DAY, labels={"room": "a b"}))
        self.assertEqual([set(reading.values) for reading in labelled], [{"hum{room=a b}"}] * 1000)

    def test_readings_within_a_millisecond_are_all_stored(self):
        begin = datetime.now(timezone.utc) - timedelta(seconds=1)
        with self.client() as client:
            for number in range(300):
                client.write("at-once", number)
                client.write("beside", number)
            client.flush()
            end = datetime.now(timezone.utc) + timedelta(minutes=1)
            for device in ("at-once", "beside"):
                read = [reading.values["value"] for reading in client.readings(device, begin, end)]
                self.assertEqual(read, list(range(300)), device)

    def test_a_long_burst_waits_for_the_clock(self):
        client = self.client()
        looks = itertools.count(2 * START)  # at the clock: two a millisecond
        with mock.patch("tidegauge._now", lambda: next(looks) // 2):
            times = [client._time_for("burst") for _ in range(20_020)]
        self.assertTrue(all(before < after for before, after in zip(times, times[1:])))
        self.assertLessEqual(times[-1], next(looks) // 2 + 10_000)
        with mock.patch("tidegauge._now", lambda: START - 60_000):  # the clock is set back
            self.assertEqual(client._time_for("burst"), START - 60_000)

    def test_floats_are_exact(self):
        numbers = random.Random(2)
        values = [numbers.uniform(-1, 1) * 10.0 ** numbers.randrange(-300, 300) for _ in range(500)]
        values += [0.1, 5e-324, 1.7976931348623157e308, -0.0, 2**53 + 2, True, 10**300]
        with self.client() as client:
            client.write_many("floats", [(START + index, value) for index, value in enumerate(values)])
            client.flush()
            read = [reading.values["value"] for reading in client.readings("floats", **DAY)]
        self.assertEqual([float(value).hex() for value in values], [value.hex() for value in read])

    def test_rollups_latest_and_devices(self):
        written = {device: series_of(device, 900, 11_003) for device in ("roll-a", "roll-b")}
        with self.client() as client:
            for device, readings in written.items():
                client.write_many(device, readings, metadata={"floor": 2, "name": device})
            client.flush()
            for step_ms, step in [(3_600_000, "1h"), (86_400_000, "1d")]:
                alone = [rollup for device in written for rollup in client.rollups(device, **DAY, step=step)]
                self.assertEqual(set(alone), set(expected(written, step_ms)))
                self.assertEqual(set(client.rollups(["roll-a", "roll-b"], **DAY, step=step)), set(alone))
                self.assertEqual(set(client.rollups(prefix="roll-", **DAY, step=step)), set(alone))
            shifts = [client.rollups("roll-a", **DAY, step="8h", offset=offset, tz="Asia/Tokyo")
                      for offset in ("6h", timedelta(hours=6))]
            self.assertEqual(shifts[0], shifts[1])
            self.assertLessEqual({shift.ts.hour for shift in shifts[0]}, {5, 13, 21})
            both = client.rollups(list(written), **DAY, step="1d", metric="temp", combine=True)
            every = [values["temp"] for readings in written.values() for _, values in readings]
            self.assertEqual([(it.device, it.series, it.count, it.sum, it.min, it.max) for it in both],
                             [(None, "temp", 1800, sum(every), min(every), max(every))])
            ends = client.rollups("roll-a", **DAY, step="1d", metric="temp", fn=["first", "last"])
            first, last = (Sample(instant(ts), values["temp"]) for ts, values in written["roll-a"][::899])
            self.assertEqual([(it.first, it.last, it.count, it.avg) for it in ends], [(first, last, None, None)])
            self.assertEqual([client.rollups([]), client.latest([])], [[], []])
            latest = {row.series: (row.device, row.ts, row.value) for row in client.latest("roll-a")}
            ts, values = written["roll-a"][-1]
            last = instant(ts)
            self.assertEqual(latest, {series: ("roll-a", last, value) for series, value in values.items()})
            devices = client.devices(prefix="roll-", limit=1)
            self.assertEqual([device.device for device in devices], ["roll-a", "roll-b"])
            self.assertEqual(devices[0].metadata, {"floor": 2, "name": "roll-a"})
            self.assertEqual(devices[0].metrics, sorted(values))
            self.assertEqual((devices[0].first_seen, devices[0].last_seen), (DATE, last))
            self.assertFalse(devices.partial)

    def test_devices_are_selected_by_their_metadata(self):
        metadata = {"pick-a": {"floor": 1, "zone": "Zone 1"}, "pick-b": {"floor": 2, "zone": "Zone 22", "on": True},
                    "pick-c": {"floor": 2.5, "at": {"city": "Graz"}}, "pick-d": None}
        with self.client() as client:
            for device, of_device in metadata.items():
                client.write(device, {"temp": 1}, START, metadata=of_device)
                client.write(device, {"temp": 2}, START + 1)
            client.flush()
            for meta, found in [
                ({"floor": 1}, "a"), ({"floor": "2.0"}, "b"), ({"floor": [1, 2.5]}, "ac"), ({"floor!": (1, 2)}, "cd"),
                ({"zone": "Zone*"}, "ab"), ({"zone": "Zone*", "floor!": 1}, "b"), ({"at.city": "Graz"}, "c"),
                ({"on": True}, "b"), ({"floor": "Zone\\*"}, ""), ({}, "abcd"), (None, "abcd"),
            ]:
                found = [f"pick-{letter}" for letter in found]
                selected = {"prefix": "pick-", "meta": meta}
                self.assertEqual([it.device for it in client.devices(**selected)], found, meta)
                self.assertEqual([it.device for it in client.latest(**selected)], found, meta)
                self.assertEqual([it.device for it in client.rollups(**DAY, **selected)], found, meta)
                read = client.readings(**DAY, **selected, page_size=1)
                self.assertEqual([(it.device, it.values["temp"]) for it in read],
                                 [(device, temp) for device in found for temp in (1.0, 2.0)], meta)
                self.assertIsNone(read.device)
            combined = client.rollups(**DAY, prefix="pick-", meta={"floor": "*"}, combine=True)
            self.assertEqual([it.count for it in combined], [6])
            one = {"device": "pick-a", "meta": {"floor": 2}}
            self.assertEqual([client.devices(**one), client.latest(**one), client.rollups(**one, **DAY),
                              list(client.readings(**one, **DAY))], [[], [], [], []])
            both = client.readings(["pick-b", "pick-a", "pick-b"], **DAY)
            self.assertEqual([it.device for it in both], ["pick-b", "pick-b", "pick-a", "pick-a"])
            self.assertEqual([client.devices([]), list(client.readings([], prefix="pick-"))], [[], []])
            silent = {"prefix": "pick-", "meta": {"floor": 1}}
            ages = datetime.now(timezone.utc) - DATE + timedelta(hours=1)
            for silent_for, found in [("15m", 1), (timedelta(days=1), 1), (ages, 0)]:
                self.assertEqual(len(client.devices(**silent, silent_for=silent_for)), found, silent_for)
            for error, selection in [
                (ValueError, {"meta": {"floor": []}}), (TypeError, {"meta": {"floor": None}}),
                (ValueError, {"meta": {"floor": math.inf}}), (TypeError, {"meta": {2: 1}}),
                (TypeError, {"silent_for": 900}), (ValueError, {"silent_for": timedelta(-1)}),
            ]:
                with self.assertRaises(error, msg=selection):
                    client.devices(**selection)
            self.fails("invalid_parameter", client.devices, meta={"zone": "a*b"})

    def test_a_date_without_a_time_is_refused(self):
        client = self.client()
        for day in [DATE.date(), "2024-04-20"]:
            for call in [client.rollups, client.readings]:
                with self.assertRaisesRegex(ValueError, '"2024-04-20T00:00:00Z"'):
                    call("times", day)
            with self.assertRaises(ValueError):
                client.write("times", 1, day)

    def test_times(self):
        local = DATE.astimezone(timezone(timedelta(hours=5, minutes=45)))
        before = datetime.now(timezone.utc)
        with self.client() as client:
            client.write("times", 1, local + timedelta(microseconds=1_999), labels={"unit": "Cel"})
            client.write("times", 2, "2024-04-20T16:00:00.5+02:00")
            client.write("times", {"now": 3, "absent": None})
            client.flush()
            read = [(reading.ts - DATE, reading.values) for reading in client.readings("times", **DAY)]
            self.assertEqual(read, [(timedelta(milliseconds=1), {"value{unit=Cel}": 1.0}),
                                    (timedelta(milliseconds=500), {"value": 2.0})])
            now = client.latest("times", metric="now")[0]
            self.assertLess(abs(now.ts - before), timedelta(minutes=1))

    def test_errors_of_the_caller_raise_at_once(self):
        client = self.client()
        for error, *arguments in [
            (ValueError, "", 1), (ValueError, "d", math.nan), (ValueError, "d", 10**400), (ValueError, "d", {}),
            (ValueError, "d", {"temp": None}), (ValueError, "d", 1, 1_713_621_600),
            (ValueError, "d", 1, datetime.now()),
            (ValueError, "d", {"x" * 300_000: 1}), (TypeError, "d", "1"), (TypeError, "d", {1: 1}),
            (TypeError, "d", {"temp": b"1"}), (TypeError, "d", 1, 1.5), (TypeError, "d", 1, True),
        ]:
            with self.assertRaises(error, msg=arguments):
                client.write(*arguments)
        self.assertEqual(client.queued_bytes, 0)
        for options in [{"when_full": "?"}, {"queue_bytes": 5}, {"when_full": "block", "background": False}]:
            with self.assertRaises(ValueError):
                Client(URL, **options)
        for url in ["127.0.0.1:8080", "ftp://x", "http://ann:secret@x", "http://x?y"]:
            with self.assertRaises(ValueError):
                Client(url)
        for token in ["secret\nX: y", "Bearer secret", " secret"]:
            with self.assertRaises(ValueError) as caught:
                Client(URL, token)
            self.assertNotIn("secret", str(caught.exception))
        self.assertNotIn(str(TOKEN), repr(client))

    def test_rejected_readings_are_reported(self):
        readings = [("rejects", START), ("no device ", START + 1), ("rejects", START + 2)] + [("rejects", START + 3)]
        client = self.client()
        for device, ts in readings:
            client.write(device, {"temp": 1, "bad{": 2} if ts == START + 2 else {"temp": 1}, ts)
        error = self.fails("partially_rejected", client.flush)
        self.assertEqual((error.status, error.lost), (400, 1))
        self.assertEqual([it.code for it in error.rejections], ["invalid_device_id", "invalid_label"])
        self.assertIn('"no device "', error.rejections[0].reading)
        client.flush()  # raises each error once
        self.assertEqual(list(self.stored("rejects")), [START, START + 2, START + 3])
        got = []
        with self.client(on_error=got.append) as client:
            client.write_many("no device ", [(START + index, index) for index in range(150)])
        self.assertEqual([(error.lost, len(error.rejections)) for error in got], [(150, 100)])

    def test_refusals_keep_the_readings(self):
        client = Client(URL, "wrong")
        self.addCleanup(lambda: self.fails("not_sent", client.close, 0.0))
        client.write("refused", 1, START)
        for _ in range(2):
            self.assertEqual(self.fails("unauthorized", client.flush).status, 401)
        self.assertGreater(client.queued_bytes, 0)
        error = self.fails("unknown_device", self.client().latest, "refused")
        self.assertEqual((error.status, error.problem["title"], error.temporary), (404, "Unknown device", False))
        self.assertEqual(self.fails("invalid_parameter", self.client().devices, nonsense=1).status, 400)

    def test_without_a_thread_flush_sends(self):
        client = self.client(background=False, batch_readings=2)
        client.write_many("manual", [(START + index, index) for index in range(5)])
        self.assertGreater(client.queued_bytes, 0)
        self.fails("unknown_device", client.latest, "manual")
        client.flush()
        self.assertEqual(client.queued_bytes, 0)
        client.write("manual", 5, START + 5)
        client.close()
        self.assertEqual(len(self.stored("manual")), 6)
        self.fails("closed", client.write, "manual", 6)
        self.fails("closed", client.latest, "manual")

    def test_batches_are_sent_by_age_and_by_size(self):
        for options in [{"batch_seconds": 0.0}, {"batch_seconds": 3600, "batch_readings": 3},
                        {"batch_seconds": 3600, "batch_bytes": 100}]:
            client = self.client(**options)
            client.write_many("sent", [(START + index, index) for index in range(3)])
            with client._changed:
                self.assertTrue(client._changed.wait_for(lambda: client._queue.size == 0, 300), options)

    def test_many_threads_write(self):
        with self.client(batch_readings=100) as client:
            def write(thread):
                for index in range(100):
                    client.write("threads", thread, START + 1000 * thread + index)
                    if index % 40 == 0:
                        client.flush()
            threads = [threading.Thread(target=write, args=[number]) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(self.stored("threads"),
                         {START + 1000 * it + index: {"value": it} for it in range(8) for index in range(100)})


def expected(written, step_ms):
    """Rollups computed from readings."""
    for device, readings in written.items():
        cells = {}
        for ts, values in readings:
            for series, value in values.items():
                cells.setdefault((series, ts - ts % step_ms), []).append(value)
        for (series, ts), values in cells.items():
            total = sum(values)
            yield Rollup(device, series, instant(ts), len(values), min(values), max(values), total / len(values), total)


if __name__ == "__main__":
    unittest.main()
