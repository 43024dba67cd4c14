"""A worker takes requests when a canary of the router's own has gone through it: prefill, transfer and decode. One that cannot
take KV is named by /ready, doctor, the log and the listing, and recovers by itself."""
import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import unittest

from harness import Cluster, free_port, run
from test_discovery import Router, Worker

BODY = {"model": "tiny-llama", "prompt": "the quick brown fox jumps over the lazy dog " * 8, "max_tokens": 8, "temperature": 0}
NOWHERE = "127.0.0.77"  # of this machine, and nobody listens there


class Relay(contextlib.ExitStack):
    """Takes connections at `host` and hands them to 127.0.0.1, same port."""

    def __init__(self, host, port):
        super().__init__()
        self.listener = self.enter_context(socket.create_server((host, port)))
        self.port = port
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                here, _ = self.listener.accept()
                there = socket.create_connection(("127.0.0.1", self.port))
                for a, b in ((here, there), (there, here)):
                    threading.Thread(target=self.copy, args=(a, b), daemon=True).start()

    @staticmethod
    def copy(a, b):
        with contextlib.suppress(OSError):
            while data := a.recv(1 << 16):
                b.sendall(data)
        for one in (a, b):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class EarlyRouter(Router):
    """That is entered once it answers, ready or not."""

    def __init__(self, folder, args):
        port = free_port()
        super().__init__(folder, args)
        self.command[self.command.index("--port") + 1] = str(port)
        self.host, self.port, self.url = "127.0.0.1", str(port), f"http://127.0.0.1:{port}"

    def __enter__(self):
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.env)
        self.wait_until(lambda: self.get("/live").status == 200, "an answer")
        return self


class Canaries(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="baton-test-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        key = pathlib.Path(self.folder, "hash-key")
        key.write_text(os.urandom(32).hex() + "\n")
        key.chmod(0o600)

    def test_a_decode_worker_that_takes_no_kv_is_named_and_recovers(self):
        port = free_port("127.0.0.1", NOWHERE)
        broken = ["--transport", "tcp", "--landing-port", str(port), "--advertise-host", NOWHERE]
        with Worker(self.folder, "p0", "prefill", args=["--transport", "tcp"]) as p, \
                Worker(self.folder, "d0", "decode", args=broken) as d:
            with EarlyRouter(self.folder, ["--worker", p.address, "--worker", f"127.0.0.1:{d.port}", "--local-prefill-max-tokens", 0]) as r:
                r.wait_until(lambda: "its canary failed" in r.get("/ready").body, "a canary that fails")
                ready = r.get("/ready")
                self.assertEqual(ready.status, 503)
                # The prefill worker always; d0 too, unless it was asked alone before the other was there.
                awaited = {one["worker"]: one for one in ready.json()["awaited"]}
                for one in awaited.values():
                    self.assertEqual(one["state"], "unproven")
                    self.assertGreaterEqual(one["for_s"], 0)
                    self.assertLessEqual(one["next_try_s"] or 0, 10)
                said = "unproven: its canary failed, through p0 and d0: UNAVAILABLE: the decode worker was lost: "
                self.assertIn("p0", awaited)
                r.wait_until(lambda: f"worker p0: {said}" in r.log.read_text(), "the reason in the log")
                self.assertIn(NOWHERE, r.log.read_text().split(said)[1].split("\n")[0], "the address that cannot be reached")
                r.wait_until(lambda: re.search(r"worker p0.*unproven for [0-9.]+ s.*its canary failed, through p0 and d0",
                                               run(["doctor", "--url", r.url]).stdout), "what doctor says")
                with Relay(NOWHERE, port):
                    r.wait_until(lambda: r.get("/ready").status == 200, "that it recovers")
                    self.assertEqual(r.log.read_text().count("proven by a canary"), 2)
                    self.assertEqual(r.post("/v1/completions", BODY).status, 200)
                    r.wait_until(lambda: r.metric("baton_kv_transfer_bytes_total") > 0, "KV that was handed over")

    def test_canaries_leave_no_trace_in_caches_counters_and_answers(self):
        args = ["--prefill", 1, "--decode", 1, "--threads", 1, "--local-prefill-max-tokens", 0]
        with Cluster(args=args) as c, Cluster(args=[*args, "--canaries=false"]) as without:
            self.assertEqual(c.log.read_text().count("proven by a canary"), 2)
            self.assertNotIn("canary", without.log.read_text())
            for name in ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:prefix_cache_queries_total",
                         "vllm:prefix_cache_hits_total", "vllm:request_success_total", "baton_leaked_kv_blocks"):
                self.assertEqual(c.metric(name), without.metric(name), name)
            for _ in range(2):
                mine, others = (one.post("/v1/completions", BODY).json() for one in (c, without))
                self.assertEqual(mine["choices"], others["choices"])
                self.assertEqual(mine["usage"], others["usage"])


if __name__ == "__main__":
    unittest.main()
