"""The harness itself, around a program that only pretends to be a cluster: the error of a test is the one that is
raised, whatever its clean-up meets, and no process is left running."""
import contextlib
import io
import os
import pathlib
import signal
import stat
import subprocess
import tempfile
import time
import unittest

import harness
from harness import Cluster, state

# `serve` with one child. MODE says how it takes SIGTERM: "ends" with its child, "deaf" not at all, "leaves" its child.
PRETENDED = '''#!/usr/bin/env python3
import os, signal, subprocess, sys
mode = os.environ["MODE"]
child = subprocess.Popen(["sleep", "1000"])
def end(*_):
    if mode == "deaf":
        return
    if mode == "ends":
        child.terminate()
        child.wait()
    os._exit(0)
signal.signal(signal.SIGTERM, end)
if mode == "never ready":
    signal.pause()
ready = sys.argv[sys.argv.index("--ready-file") + 1]
open(ready + ".new", "w").write("BATON_HTTP='http://127.0.0.1:1'\\nBATON_GRPC='127.0.0.1:2'\\nBATON_ADMIN='http://127.0.0.1:3'\\n")
os.rename(ready + ".new", ready)
while True:
    signal.pause()
'''


class Harness(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = pathlib.Path(folder.name) / "pretended"
        program.write_text(PRETENDED)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.during_the_test("BATON", program)
        self.children = []

    def during_the_test(self, name, value):
        self.addCleanup(setattr, harness, name, getattr(harness, name))
        setattr(harness, name, value)

    def cluster(self, mode):
        return Cluster(env={"MODE": mode})

    def note(self, cluster):
        self.children = [cluster.process.pid, *cluster.children()]
        self.assertEqual(len(self.children), 2)

    def none_is_left(self):
        deadline = time.monotonic() + 10
        while any(state(pid) not in ("Z", "gone") for pid in self.children) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual([state(pid) for pid in self.children if state(pid) not in ("Z", "gone")], [])

    def fail_inside(self, mode, stopped=False):
        """What comes out of a test that fails with "first"; what its clean-up printed."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), self.assertRaisesRegex(ValueError, "^first$"), self.cluster(mode) as c:
            self.note(c)
            if stopped:
                os.kill(self.children[1], signal.SIGSTOP)
                c.wait_until(lambda: state(self.children[1]) == "T", "the child is stopped")
            raise ValueError("first")
        self.none_is_left()
        return out.getvalue()

    def test_the_place_of_the_model_needs_no_home(self):
        env = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "BATON_CACHE_DIR")}
        done = subprocess.run([harness.ROOT / "scripts" / "fetch_model.sh", "--path"], capture_output=True, text=True, env=env)
        self.assertEqual((done.returncode, done.stderr, done.stdout[:1]), (0, "", "/"))

    def test_a_clean_end_is_quiet(self):
        with self.cluster("ends") as c:
            self.note(c)
        self.none_is_left()

    def test_the_first_error_is_raised(self):
        self.assertNotIn("while stopping", self.fail_inside("ends"))

    def test_a_stopped_child_goes_on_and_ends(self):
        self.assertNotIn("while stopping", self.fail_inside("ends", stopped=True))

    def test_a_cluster_that_does_not_end_hides_no_error(self):
        self.during_the_test("STOP_SECONDS", 1)
        self.assertIn("did not stop in 1 s", self.fail_inside("deaf"))
        self.assertIn("did not stop in 1 s", self.fail_inside("deaf", stopped=True))

    def test_a_child_that_is_left_hides_no_error(self):
        self.assertIn("left running", self.fail_inside("leaves"))

    def test_without_an_error_the_clean_up_is_the_test(self):
        with self.assertRaisesRegex(AssertionError, "left running"), self.cluster("leaves") as c:
            self.note(c)
        self.none_is_left()

    def test_a_cluster_that_never_gets_ready_is_ended(self):
        self.during_the_test("START_SECONDS", 3)
        c = self.cluster("never ready")
        with self.assertRaisesRegex(RuntimeError, "not ready after 3 s"):
            c.__enter__()
        self.assertIsNotNone(c.process.poll())


if __name__ == "__main__":
    unittest.main(verbosity=2)
