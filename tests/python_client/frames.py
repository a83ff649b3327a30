"""Data frames. Skipped without pandas."""

import contextlib
import io
import os
import sys
import unittest
from datetime import timedelta

from common import DAY, ROOT, START, URL, Case

try:
    import pandas
except ImportError:
    pandas = None


class Frames(Case):
    def setUp(self):
        if pandas is None:
            # Older interpreters have no pandas of the pinned version.
            self.assertLess(sys.version_info, (3, 11), "pandas of tests/python_client/requirements.txt is missing")
            self.skipTest("pandas is not there")

    def test_frames_have_an_index_in_utc(self):
        with self.client() as client:
            client.write_many("frame", [(START + 1000 * index, {"temp": index, f"odd{index % 2}": 1})
                                        for index in range(10)], metadata={"floor": 1})
            client.flush()
            readings = client.readings("frame", **DAY, page_size=4).to_frame()
            self.assertEqual(list(readings.columns), ["odd0", "odd1", "temp"])
            self.assertEqual(readings["temp"].tolist(), [float(index) for index in range(10)])
            self.assertEqual(readings["odd1"].isna().tolist(), [True, False] * 5)
            self.in_utc(readings)
            rollups = client.rollups(["frame"], **DAY, metric="temp").to_frame()
            self.assertEqual(list(rollups.columns), ["device", "series", "count", "min", "max", "avg", "sum"])
            self.assertEqual(rollups.iloc[0].tolist(), ["frame", "temp", 10, 0.0, 9.0, 4.5, 45.0])
            self.in_utc(rollups)
            ends = client.rollups(["frame"], **DAY, fn="first,last").to_frame()
            self.assertEqual(list(ends.columns), ["device", "series", "first", "last", "first_ts", "last_ts"])
            self.assertEqual(ends.set_index("series").loc["temp", ["first", "last"]].tolist(), [0.0, 9.0])
            self.assertEqual(ends["last_ts"].max(), readings.index[-1])
            compared = client.rollups("frame", **DAY, metric="temp", fn="min,last", compare="-1d")
            self.assertEqual([(row.min, row.compared.min, row.ts - row.compared.ts) for row in compared],
                             [(0.0, None, timedelta(days=1))])
            compared = compared.to_frame()
            self.assertEqual(list(compared.columns), ["device", "series", "min", "last", "compared_ts", "last_ts"])
            self.in_utc(compared)
            combined = client.rollups("frame", **DAY, metric="temp", combine=True).to_frame()
            self.assertEqual(list(combined.columns), ["series", "count", "min", "max", "avg", "sum"])
            by_floor = client.rollups(prefix="frame", **DAY, metric="temp", combine="by:floor")
            self.assertEqual([(row.group, row.count) for row in by_floor], [({"floor": 1}, 10)])
            self.assertEqual(by_floor.to_frame()["by_floor"].tolist(), [1])
            latest = client.latest("frame").to_frame()
            self.assertEqual(latest.set_index("series")["value"].to_dict(), {"odd0": 1.0, "odd1": 1.0, "temp": 9.0})
            self.in_utc(latest)
            devices = client.devices(prefix="frame").to_frame()
            self.assertEqual((devices.index.tolist(), devices["metadata"].tolist()), (["frame"], [{"floor": 1}]))
            self.assertEqual(str(devices["last_seen"].dt.tz), "UTC")
            several = client.readings(prefix="frame", **DAY).to_frame()
            self.assertEqual(list(several.columns), ["device", "odd0", "odd1", "temp"])
            self.assertEqual(several["device"].tolist(), ["frame"] * 10)
            self.in_utc(several)
            for empty in [client.readings("frame", start=0, end=1), client.rollups(["frame"], 0, 1)]:
                self.in_utc(empty.to_frame(), 0)

    def test_the_example_of_the_page(self):
        example = (ROOT / "docs/senders.md").read_text().split("```python\n")[1].split("```")[0]
        self.assertEqual(example.count("http://127.0.0.1:8080"), 1)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder())
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(example.replace("http://127.0.0.1:8080", URL), {})
        reading, *frame = printed.getvalue().splitlines()
        self.assertRegex(reading, r"^20\S+ \S+\+00:00 22\.4$")
        self.assertIn("22.4", "".join(frame))

    def in_utc(self, frame, length=None):
        self.assertIsInstance(frame.index, pandas.DatetimeIndex)
        self.assertEqual((str(frame.index.tz), frame.index.name), ("UTC", "ts"))
        if length is None:
            self.assertGreaterEqual(frame.index[0], pandas.Timestamp(0, tz="UTC"))
        else:
            self.assertEqual(len(frame), length)


if __name__ == "__main__":
    unittest.main()
