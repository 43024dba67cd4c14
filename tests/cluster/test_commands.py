"""The commands of an operator where things are wrong: servers that are silent, addresses that are none, full disks, and signals."""
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import tempfile
import unittest

from harness import BATON, Cluster, TINY, run
from odd_server import OddServer

SILENT = {"doctor": lambda url: ["doctor", "--url", url], "drain": lambda url: ["drain", "w", "--url", url],
          "flip": lambda url: ["flip", "w", "decode", "--url", url], "top": lambda url: ["top", "--once", "--url", url],
          "chat": lambda url: ["chat", "-m", "hello", "--url", url],
          "chat over gRPC": lambda url: ["chat", "-m", "hello", "--grpc", url.removeprefix("http://")]}
NO_ADDRESS = {"http://localhost:99999": "no port from 1 to 65535", "http://localhost:0": "no port from 1 to 65535", "localhost:-1": "no port from 1 to 65535",
              "http://localhost:x": "no port from 1 to 65535", "http://:8000": "the host is missing", "http://": "the host is missing",
              "ftp://localhost:1": "neither http nor https", "http://::1:8000": "an IPv6 address has brackets"}
TAKES_URL = {"doctor": ["doctor", "--url"], "drain": ["drain", "w", "--url"], "flip": ["flip", "w", "decode", "--url"], "top": ["top", "--url"],
             "chat": ["chat", "-m", "x", "--url"], "plan": ["plan", str(TINY), "--from-metrics"], "bench": ["bench", "--model", "m", "--base-url"],
             "bench --admin-url": ["bench", "--model", "m", "--num-prompts", "1", "--kill", "decode@1s", "--admin-url"]}

JSON, EVENTS = "application/json", "text/event-stream"
ODD_ANSWERS = [
    (200, JSON, b'{"workers":[1,{"address":5,"name":[]}],"address":"x","name":[],"flip":[1],"status":7,"awaited":{"a":1},"data":[3,{"id":4}]}'),
    (200, JSON, b'{"workers":5,"address":7,"flip":{"stage":8},"status":"ready","awaited":[5,{"for_s":"x"}],"data":{"id":"x"}}'),
    (200, JSON, b"[]"), (200, JSON, b"null"), (200, JSON, b"\xff\xfe"), (200, JSON, b""), (200, EVENTS, b"data: {}\n\n"),
    (404, JSON, b'{"error":{"message":5,"param":[]}}'), (500, JSON, b'{"error":"x"}'), (503, JSON, b'{"error":{"message":"\x1b]0;owned\x07"}}'),
    (200, EVENTS, b'data: 5\n\ndata: {"error":7}\n\ndata: {"event":[]}\n\ndata: {"event":"state","workers":[5,{"kv":7}],"t":"x","links":{}}\n\n')]


def begin(*args):
    return subprocess.Popen([str(BATON), *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def limited(most_bytes, *args):
    """On a disk that is full: none of its files grows beyond so many bytes."""
    return subprocess.run([str(BATON), *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes)))


class Commands(unittest.TestCase):
    def test_a_server_that_is_silent_is_given_up_with_its_address_and_the_seconds(self):
        for what, args in SILENT.items():
            with self.subTest(what), OddServer() as server:
                done = run([*args(server.url), "--request-timeout-ms", 300], timeout=30)
                said = done.stdout + done.stderr
                self.assertEqual(done.returncode, 6, said)
                self.assertIn(server.url.removeprefix("http://"), said)
                self.assertIn("0.3 s", said)

    def test_what_is_no_address_is_refused_as_such(self):
        for text, why in NO_ADDRESS.items():
            for what, args in TAKES_URL.items():
                with self.subTest(what, text=text):
                    done = run([*args, text], timeout=30)
                    self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                    self.assertIn(why, done.stderr)
        for text in ("localhost", "localhost:0", "localhost:99999", "http://localhost:1", ":1", "::1:1"):
            with self.subTest("chat --grpc", text=text):
                done = run(["chat", "-m", "x", "--grpc", text], timeout=30)
                self.assertEqual((done.returncode, "is no address" in done.stderr), (2, True), done.stderr)

    def test_an_answer_of_any_server_ends_a_command_in_words(self):
        for (status, kind, body) in ODD_ANSWERS:
            answer = (f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode() + body
            for what, args in {**SILENT, "bench --kill": lambda url: ["bench", "--model", "m", "--num-prompts", 1, "--kill", "w@1s", "--admin-url", url],
                               "bench": lambda url: ["bench", "--num-prompts", 1, "--base-url", url]}.items():
                with self.subTest(what, status=status, body=body), OddServer([answer], closes=True) as server:
                    done = run([*args(server.url)], timeout=60)
                    self.assertIn(done.returncode, (0, 1, 2, 3, 6), done.stdout + done.stderr)
                    self.assertNotIn("\x1b]", done.stdout + done.stderr)

    def test_a_signal_ends_a_command_that_waits_for_a_server(self):
        for what, args in SILENT.items():
            for number in (signal.SIGINT, signal.SIGTERM):
                with self.subTest(what, signal=number.name), OddServer() as server:
                    waits = begin(*args(server.url), "--request-timeout-ms", 0)
                    server.wait_taken()
                    waits.send_signal(number)
                    said, _ = waits.communicate(timeout=30)
                    self.assertIn(waits.returncode, (-number, 128 + number), said)

    def test_what_cannot_be_printed_is_a_failure(self):
        for args in (["version"], ["--help"], ["plan", "--kv-table"], ["completion", "bash"], ["help", "serve"], ["config", "explain", "serve", TINY]):
            with self.subTest(args=args), open("/dev/full", "w") as full:
                done = subprocess.run([str(BATON), *map(str, args)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
                self.assertEqual(done.returncode, 5, done.stderr)
                self.assertIn("cannot write to standard output", done.stderr)

    def test_without_its_tools_baton_says_what_is_missing_and_completes_all_else(self):
        with tempfile.TemporaryDirectory(prefix="baton-alone-") as there:
            alone = pathlib.Path(there, "it's alone")
            alone.mkdir()
            shutil.copy(BATON, alone / "baton")  # not a link: it looks where its file lies
            for args in (["bench", "--model", "m"], ["plan"], ["sim", "--help"], ["help", "plan", "memory"]):
                done = subprocess.run([alone / "baton", *args], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, 6, done.stderr)
                self.assertIn(f"baton-tools, which cannot be started: {alone}/baton-tools: No such file or directory", done.stderr)
            script = subprocess.run([alone / "baton", "completion", "bash"], capture_output=True, text=True, timeout=60, check=True).stdout
            (alone / "baton-tools").symlink_to(pathlib.Path(BATON).with_name("baton-tools"))
            whole = subprocess.run([alone / "baton", "completion", "bash"], capture_output=True, text=True, timeout=60, check=True).stdout
            for flag, in_both in (("--max-num-seqs", True), ("--num-prompts", False), ("--kv-table", False)):
                self.assertEqual((flag in script, flag in whole), (in_both, True), flag)

    def test_certificates_for_which_there_is_no_room_are_none_and_those_that_are_there_stay(self):
        with tempfile.TemporaryDirectory(prefix="baton-full-") as there:
            folder = pathlib.Path(there, "tls")
            full = limited(300, "certs", folder)  # a key has some 240 bytes, a certificate more
            self.assertEqual(full.returncode, 5, full.stderr)
            self.assertRegex(full.stderr, f"^baton: cannot write {folder}/ca.crt: File too large\n$")
            self.assertEqual(list(folder.iterdir()), [])
            self.assertEqual(run(["certs", folder]).returncode, 0)
            before = {file.name: file.read_bytes() for file in folder.iterdir()}
            self.assertEqual(limited(300, "certs", folder).returncode, 5)
            self.assertEqual({file.name: file.read_bytes() for file in folder.iterdir()}, before)
            for file in folder.iterdir():
                self.assertEqual(file.stat().st_mode & 0o777, 0o644 if file.suffix == ".crt" else 0o600, file)
            blocked = run(["certs", "/dev/null/x"])
            self.assertEqual(blocked.returncode, 2, blocked.stderr)

    def test_nothing_is_left_of_a_plan_that_a_signal_ends(self):
        shape = ["--model-shape", "llama-3.1-8b", "--max-model-len", "8192", "--memory", "80GiB", "--memory-bandwidth", "3350", "--compute", "800"]
        with tempfile.TemporaryDirectory(prefix="baton-signal-") as there:
            line = json.dumps({"timestamp": 0, "input_length": 4000, "output_length": 1000})
            trace = pathlib.Path(there, "trace.jsonl")
            trace.write_text((line + "\n") * 20000)
            temporary = pathlib.Path(there, "tmp")
            temporary.mkdir()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                plan = subprocess.Popen([str(BATON), "sim", *shape, "--both", "2", "--trace", str(trace), "--num-prompts", "20000"],
                                        env={**os.environ, "TMPDIR": str(temporary)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                while plan.poll() is None and not list(temporary.glob("*/config.json")):
                    pass
                self.assertIsNone(plan.poll())
                plan.send_signal(number)
                self.assertEqual(plan.wait(30), -number)
                self.assertEqual(list(temporary.iterdir()), [])
            nowhere = run(["plan", *shape], env={**os.environ, "TMPDIR": "/nowhere"})
            self.assertEqual(nowhere.returncode, 2, nowhere.stderr)
            self.assertIn("cannot make the folder /nowhere/baton-shape-", nowhere.stderr)

    def test_who_has_read_enough_is_no_failure(self):
        reads, writes = os.pipe()
        os.close(reads)
        with open(writes, "w") as gone:
            done = subprocess.run([str(BATON), "help", "serve"], stdout=gone, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class AtACluster(unittest.TestCase):
    def test_top_ends_when_nobody_reads_it(self):
        with Cluster(args=["--threads", 1]) as c:
            shown = subprocess.Popen([str(BATON), "top", "--url", c.admin], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.addCleanup(shown.kill)
            self.assertNotEqual(shown.stdout.readline(), "")
            shown.stdout.close()
            self.assertEqual(shown.wait(30), 0)

    def test_a_recording_that_finds_no_room_ends_with_a_whole_line(self):
        with Cluster(args=["--threads", 1]) as c, tempfile.TemporaryDirectory(prefix="baton-record-") as there:
            record = pathlib.Path(there, "run.jsonl")
            done = limited(2000, "top", "--url", c.admin, "--interval-ms", 50, "--record", record)
            self.assertEqual((done.returncode, done.stderr), (5, f"baton: --record: cannot write {record}: File too large\n"))
            self.assertTrue(all(json.loads(line)["event"] for line in record.read_text().splitlines()))
            self.assertEqual(run(["top", "--once", "--replay", record]).returncode, 0)
            before = record.read_bytes()
            self.assertEqual(run(["top", "--once", "--url", c.admin, "--record", record]).returncode, 2)
            self.assertEqual(record.read_bytes(), before)

    def test_top_says_that_a_router_is_silent(self):
        with Cluster(args=["--threads", 1]) as c:
            shown = subprocess.Popen([str(BATON), "top", "--url", c.admin], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.addCleanup(shown.wait)
            self.addCleanup(shown.kill)
            self.addCleanup(shown.stdout.close)
            self.assertNotEqual(shown.stdout.readline(), "")
            router = c.pid_of("router")
            os.kill(router, signal.SIGSTOP)
            try:
                self.assertTrue(any(f"{c.admin} is silent for" in line for line in shown.stdout))
            finally:
                os.kill(router, signal.SIGCONT)


if __name__ == "__main__":
    unittest.main(verbosity=2)
