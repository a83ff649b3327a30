"""The spool: a reading for which `write` returned is stored, whenever the process dies."""

import contextlib
import os
import pathlib
import random
import signal
import socket
import sys
import threading
import traceback
import unittest

from common import START, TOKEN, URL, Case, Client, unused_url

SEED = int(os.environ.get("SEED") or random.randrange(1 << 30))
SPOOL = {"queue_bytes": 1 << 20, "batch_bytes": 20_000, "batch_seconds": 0.005}
FAST = {**SPOOL, "spool_sync": False}
PADDING = {"padding": "x" * 1500}


def child(write, url, folder, first, is_synced):
    """Writes readings until it is killed; each `write` that returned puts a byte into the pipe."""
    client = Client(url, TOKEN, spool=folder, spool_sync=is_synced, **{**SPOOL, "queue_bytes": 8 << 20})
    for ts in range(first, first + 120):
        client.write("killed", ts, ts, metadata=PADDING)
        os.write(write, b".")
    os.read(os.pipe()[0], 1)


class Kills(Case):
    def test_kill_9_at_random_places(self):
        numbers = random.Random(SEED)
        print(f"SEED={SEED}", file=sys.stderr)
        folder = self.folder()
        first, written, begun = START, [], []
        for turn in range(24):
            url = numbers.choice([URL, URL, unused_url()])
            read, write = os.pipe()
            process = os.fork()
            if process == 0:
                try:
                    os.close(read)
                    child(write, url, folder, first, turn % 2 == 0)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            os.close(write)
            stop, count = numbers.randrange(1, 60), 0
            while count < stop and (done := os.read(read, numbers.choice([1, 7, 100]))):
                count += len(done)
            os.kill(process, signal.SIGKILL)
            while done := os.read(read, 1000):
                count += len(done)
            os.close(read)
            self.assertTrue(os.WIFSIGNALED(os.waitpid(process, 0)[1]))
            self.assertGreaterEqual(count, stop)
            written += range(first, first + count)
            begun.append(first + count)  # the child may have died in this call of `write`
            first += count + 1
        with self.client(spool=folder, **SPOOL):
            pass
        with self.client(spool=folder, **SPOOL) as client:
            client.flush()
        stored = self.stored("killed")
        self.assertEqual([ts for ts in written if stored.get(ts) != {"value": ts}], [], f"lost with SEED={SEED}")
        self.assertLessEqual(set(stored), set(written + begun))
        self.assertEqual(sorted(os.listdir(folder)), ["lock", "position"])

    def test_torn_and_damaged_records(self):
        numbers = random.Random(SEED)
        whole = self.folder()
        dead = self.client(unused_url(), spool=whole, background=False)
        for index in range(4):
            dead.write("whole", index, START + index)
        dead.close(0)
        [name] = [name for name in os.listdir(whole) if name.endswith(".spool")]
        content = pathlib.Path(whole, name).read_bytes()
        records = content.splitlines(keepends=True)
        last = len(content) - len(records[-1])
        cuts = [last, last + 1, len(content) - 1, *(numbers.randrange(len(content)) for _ in range(8))]
        damages = [0, len(records[0]) - 1, *(numbers.randrange(last) for _ in range(8))]
        for number, (kind, at) in enumerate([("cut", it) for it in cuts] + [("damage", it) for it in damages]):
            folder, device = self.folder(), f"mended-{number}"
            text = bytearray(content[:at] if kind == "cut" else content)
            if kind == "damage":
                text[at] ^= 1 << numbers.randrange(8)
            pathlib.Path(folder, name).write_bytes(text)
            pathlib.Path(folder, "position").write_bytes(numbers.choice([b"", b"x" * 30, b"%020d 00000000\n" % 9999]))
            sent, errors = [], []
            client = self.client(spool=folder, on_error=errors.append)
            post = client._post
            client._post = lambda lines: (sent.extend(lines), post(lines))
            client.write(device, 9, START + 9)
            client.flush()
            client.close()
            lines = [record[9:-1] for record in text.splitlines(keepends=True) if record in records]
            self.assertEqual(sent[:-1], lines, (kind, at, SEED))
            self.assertEqual(self.stored(device), {START + 9: {"value": 9}})
            lost = sum(error.lost for error in errors)
            self.assertEqual(lost > 0, kind == "damage", (at, SEED))

    def test_a_stale_position_resends_and_a_later_one_loses_nothing(self):
        folder = self.folder()
        with self.client(spool=folder) as client:
            client.write("position", 1, START)
            client.flush()
        position = pathlib.Path(folder, "position").read_bytes()
        with self.client(unused_url(), spool=folder, background=False) as client:
            client.write("position", 2, START + 1)
        self.assertEqual(pathlib.Path(folder, "position").read_bytes(), position)
        for name in os.listdir(folder):
            if name.endswith(".spool"):
                os.remove(pathlib.Path(folder, name))  # as after a power cut without spool_sync
        with self.client(spool=folder) as client:
            client.write("position", 3, START + 2)
        self.assertEqual(list(self.stored("position")), [START, START + 2])

    def test_one_client_uses_a_spool(self):
        folder = self.folder()
        client = self.client(spool=folder)
        self.fails("spool_failed", self.client, spool=folder)
        client.close()
        self.client(spool=folder).close()
        self.fails("spool_failed", self.client, spool="/dev/null/spool")


class Forks(Case):
    def test_a_child_process_leaves_the_client_to_its_parent(self):
        for folder, background in [(None, True), (self.folder(), True), (self.folder(), False)]:
            device = f"forked-{background}-{folder is None}"
            client = self.client(spool=folder, background=background, batch_seconds=3600)
            client.write(device, 1, START)
            client.flush()
            client.write(device, 2, START + 1)
            held, release = threading.Event(), threading.Event()

            def hold():  # during the fork, and no thread of the child will release it
                with client._changed:
                    held.set()
                    release.wait()

            def use():
                self.fails("forked", client.write, device, 9)
                self.fails("forked", client.flush)
                self.fails("forked", client.latest, device)
                self.assertGreater(client.queued_bytes, 0)
                with client:
                    pass

            holder = threading.Thread(target=hold)
            self.addCleanup(release.set)
            holder.start()
            held.wait()
            with self.child(use):
                release.set()
                holder.join()
                self.assertEqual(self.stored(device), {START: {"value": 1}})
                client.write(device, 3, START + 2)
                client.flush()
                client.close()
                self.client(spool=folder).close()  # the child does not keep the folder locked
            self.assertEqual(self.stored(device), {START + index: {"value": index + 1} for index in range(3)})

    @contextlib.contextmanager
    def child(self, call):
        """A child process that has made a call without an error, and lives until the block ends."""
        ours, theirs = socket.socketpair()
        process = os.fork()
        if process == 0:
            try:
                signal.alarm(300)
                ours.close()
                call()
                theirs.sendall(b".")
                theirs.recv(1)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()
        try:
            with ours:
                self.assertEqual(ours.recv(1), b".", "the child failed")
                yield
        finally:
            os.waitpid(process, 0)


class Full(Case):
    def fill(self, client, device, count):
        for index in range(count):
            client.write(device, index, START + index, metadata=PADDING)

    def size_of(self, folder):
        return sum(os.path.getsize(pathlib.Path(folder, name)) for name in os.listdir(folder))

    def test_a_full_spool_raises_and_keeps_what_it_has(self):
        folder = self.folder()
        client = self.client(unused_url(), spool=folder, **FAST)
        error = self.fails("queue_full", self.fill, client, "full", 10_000)
        self.assertIn("unsent", error.detail)
        self.assertLessEqual(self.size_of(folder), (1 << 20) + 100)
        client.close()
        with self.client(spool=folder, **SPOOL) as client:
            client.flush()
            client.write("full", 1, START + 86_000)  # there is space again
        stored = sorted(self.stored("full"))
        self.assertGreater(len(stored), 500)
        self.assertEqual(stored, [*range(START, START + len(stored) - 1), START + 86_000])

    def test_a_full_queue_drops_the_oldest_if_the_user_wants(self):
        for folder in [None, self.folder()]:
            device = "dropped-memory" if folder is None else "dropped-spool"
            errors = []
            client = self.client(
                unused_url(), spool=folder, when_full="drop_oldest", on_error=errors.append, **FAST)
            self.fill(client, device, 1500)
            self.assertLessEqual(client.queued_bytes, 1 << 20)
            lost = sum(error.lost for error in errors)
            self.assertGreater(lost, 500)
            self.assertLessEqual({error.code for error in errors}, {"dropped"})
            client.close(0)
            lost = sum(error.lost for error in errors)
            if folder is None:
                self.assertEqual(lost, 1500)
                continue
            with self.client(spool=folder, **FAST) as client:
                client.flush()
            self.assertEqual(sorted(self.stored(device)), [*range(START + lost, START + 1500)])

    def test_a_full_queue_blocks_if_the_user_wants(self):
        for folder in [None, self.folder()]:
            device = "blocked-memory" if folder is None else "blocked-spool"
            with self.client(spool=folder, when_full="block", **FAST) as client:
                self.fill(client, device, 1500)
                self.assertLessEqual(client.queued_bytes, 1 << 20)
            if folder is not None:
                with self.client(spool=folder, **SPOOL) as client:
                    client.flush()
            self.assertEqual(len(self.stored(device)), 1500)

    def test_a_full_disk_raises_and_later_writes_succeed(self):
        folder = self.folder()
        client = self.client(spool=folder, batch_seconds=3600)
        client.write("disk", 1, START)
        with file_size_limit(100):
            self.fails("spool_failed", client.write_many, "disk", [(START + 1, 1), (START + 2, 2)])
        client.write("disk", 3, START + 3)
        client.flush()
        stored = self.stored("disk")
        self.assertLessEqual({START, START + 3}, set(stored))
        self.assertLessEqual(set(stored), {START + index for index in range(4)})

    def test_a_failed_sync_is_final(self):
        client = self.client(spool=self.folder(), batch_seconds=3600)
        client.write("unsynced", 1, START)
        os.dup2(null := os.open("/dev/null", os.O_WRONLY), client._queue._file.fileno())  # fdatasync refuses it
        os.close(null)
        for _ in range(2):
            self.fails("spool_failed", client.write, "unsynced", 2, START + 1)


@contextlib.contextmanager
def file_size_limit(size):
    """Fails writes beyond this size of a file, as a full disk does: in the middle of a record."""
    import resource
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


if __name__ == "__main__":
    unittest.main()
