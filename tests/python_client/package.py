"""The package: its types are sound, and the wheel has them."""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

from common import ROOT

SOURCE = ROOT / "clients" / "python"
USE = """
from tidegauge import Client
client = Client("http://127.0.0.1:8080")
client.write("S1", {"temp": 1, "hum": None}, labels={"room": "a"}, metadata={"floor": 2})
mean: float = client.readings("S1").__next__().values["temp"]
client.rollups(["S1"], step="1h", fn=["min", "max"], meta={"floor!": [2, "3*"]})
client.write("S1", "1")
"""


class Package(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tidegauge-package-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def python(self, *arguments, cwd):
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def test_the_types_of_the_installed_package(self):
        source = shutil.copytree(SOURCE, self.folder / "source")
        built = self.python("hatchling", "build", "-t", "wheel", "-d", str(self.folder), cwd=source)
        self.assertEqual(built.returncode, 0, built.stdout)
        with zipfile.ZipFile(next(self.folder.glob("tidegauge-*.whl"))) as wheel:
            names = [name for name in wheel.namelist() if ".dist-info/" not in name]
            self.assertEqual(sorted(names), ["tidegauge/__init__.py", "tidegauge/py.typed"])
            wheel.extractall(self.folder / "installed")
        (self.folder / "installed" / "use.py").write_text(USE)
        checked = self.python("mypy", "--strict", "--cache-dir=/dev/null", "tidegauge", "use.py",
                              cwd=self.folder / "installed")
        *errors, summary = checked.stdout.splitlines()
        self.assertIn("Found 1 error in 1 file (checked 2 source files)", summary, checked.stdout)
        self.assertTrue(errors[0].startswith('use.py:7: error: Argument 2 to "write"'), errors)


if __name__ == "__main__":
    unittest.main()
