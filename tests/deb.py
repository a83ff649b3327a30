"""Programs for the tests from Debian packages: fetched once, kept under target/."""

import fcntl
import os
import pathlib
import shutil
import subprocess
import tempfile

from wheel import TARGET, fail, patiently


class Program:
    """The program `name` in the folder `folder` of the Debian package `package`.

    The environment variable `variable` names a program to use instead; else one on the PATH is used. Otherwise apt-get
    downloads the package, without root and without installing it. If the system has no lists of packages, apt-get
    fetches lists for this download. `libraries` are the packages of its shared libraries. With them, the result is a
    script that runs the program with these libraries."""

    def __init__(self, name, package, variable, folder="usr/bin", libraries=()):
        self.name, self.package, self.variable, self.folder = name, package, variable, folder
        self.libraries = list(libraries)
        self.instead = f"or set {variable} to the path of {name}"

    def path(self):
        if given := os.environ.get(self.variable):
            return shutil.which(given) or self.fail(f"{self.variable}={given} is not an executable")
        return shutil.which(self.name) or self.cached()

    def cached(self):
        """The fetched program. It gets its name only when it is complete."""
        cache = TARGET / self.name
        cache.mkdir(parents=True, exist_ok=True)
        with open(cache / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (cache / self.name).exists():
                self.fetch(cache)
        return cache / self.name

    def fetch(self, cache):
        for program in ["apt-get", "dpkg-deb"]:
            shutil.which(program) or self.fail(f"there is no {program}: install {self.package}, {self.instead}")
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            get = ["download", "--quiet=2", self.package, *self.libraries]
            if subprocess.run(["apt-get", *get], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True).returncode:
                for part in ["lists/partial", "cache/archives/partial"]:
                    (pathlib.Path(folder) / part).mkdir(parents=True)
                own_lists = ["apt-get", "-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache",
                             "-o", "APT::Update::Error-Mode=any"]
                self.call([*own_lists, "update", "--quiet=2"], folder)
                self.call([*own_lists, *get], folder)
            for package in pathlib.Path(folder).glob("*.deb"):
                self.call(["dpkg-deb", "--extract", package, "unpacked"], folder)
            unpacked = pathlib.Path(folder) / "unpacked"
            if self.libraries:
                self.keep_with_libraries(unpacked, cache)
            else:
                (unpacked / self.folder / self.name).rename(cache / self.name)

    def keep_with_libraries(self, unpacked, cache):
        shutil.rmtree(cache / "unpacked", ignore_errors=True)
        unpacked.rename(cache / "unpacked")
        folders = sorted({str(file.parent) for file in (cache / "unpacked").rglob("*.so.*")})
        script = cache / "script"
        script.write_text(f'#!/bin/sh\nexport LD_LIBRARY_PATH="{":".join(folders)}"\n'
                          f'exec "{cache / "unpacked" / self.folder / self.name}" "$@"\n')
        script.chmod(0o755)
        script.rename(cache / self.name)

    def call(self, command, folder):
        done = patiently(command, folder)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            self.fail(f"{command[0]} could not fetch the package {self.package} ({reason}): check apt-get update, "
                      f"{self.instead}")

    def fail(self, reason):
        fail(reason)
