"""What was right once and is no more: a ticket of before a flip, a router with the secret of before a rotation, a rank that is there already.
Each is refused with words, and costs the others nothing."""
import contextlib
import pathlib
import shutil
import struct
import tempfile
import time
import unittest

import greeting
import grpc_call
from grpc_call import field
from harness import START_SECONDS, run
from test_flip import workers
from test_hostile_tls import Front, until_closed
from test_nodes import TP, Group
from test_tls import ask, port_of, router, worker

PROMPT_TOKENS = 64


def reserve(address, request, expiry_ms):
    """A ticket that nobody's request is behind, as the worker's answer has it."""
    message = field(1, field(1, request)) + field(2, PROMPT_TOKENS) + field(5, 1) + field(6, expiry_ms)
    with tempfile.NamedTemporaryFile() as out:
        code, said = grpc_call.call(address, "/baton.v1.Worker/Reserve", message, output=out.name)
        assert code == "OK", said
        reply = out.read()[5:]
    assert 1 in grpc_call.fields(reply), "it has a ticket"
    return reply


def prefill(address, request, ticket):
    """(code, message, messages) of a prefill leg that goes to `ticket`."""
    tokens = b"".join(struct.pack("<i", 1 + i % 7) for i in range(PROMPT_TOKENS))
    ticket += field(7, 20_000)  # it would still have time
    message = field(1, field(1, request) + field(3, 1)) + field(2, ticket) + field(3, tokens) + field(4, PROMPT_TOKENS) + field(6, field(13, 4))
    return grpc_call.answers(address, "/baton.v1.Worker/Prefill", message, seconds=120)


class Tickets(unittest.TestCase):
    def test_a_ticket_of_before_a_flip_takes_no_kv_after_it(self):
        by_tcp = ["--transport", "tcp"]
        with worker("--role", "prefill", *by_tcp) as p, worker("--role", "decode", *by_tcp) as d, worker("--role", "decode", *by_tcp) as other, \
             router(port_of(p), "--worker", port_of(d), "--worker", port_of(other)) as r:
            front = Front(r)
            front.wait_until(lambda: all(w["takes_requests"] for w in workers(front)), "all serve")
            want = ask(front).json()["choices"]
            good = prefill(port_of(p), "fresh", reserve(port_of(d), "fresh", 20_000))
            self.assertEqual((good[0], 2 in good[2][-1], 5 in good[2][-1]), ("OK", True, False), good)
            stale = reserve(port_of(d), "stale", 3_600_000)
            for role in ("prefill", "decode"):  # the first does not wait an hour for a ticket that nobody asks for
                done = run(["flip", port_of(d), role, "--url", front.admin], timeout=120)
                self.assertEqual(done.returncode, 0, done.stderr)
            code, said, messages = prefill(port_of(p), "stale", stale)
            self.assertTrue(code != "OK" or 5 in messages[-1], f"{code} {said} {messages}")
            front.wait_until(lambda: all(w["takes_requests"] for w in workers(front)), "all serve")
            self.assertEqual(ask(front).json()["choices"], want)
            front.wait_until(lambda: front.metric("baton_leaked_kv_blocks") == 0, "no block is lost")


class Secrets(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-stale-"))
        self.addCleanup(shutil.rmtree, self.dir, True)

    def secret(self, name):
        path = self.dir / name
        path.write_text(name * 40)
        path.chmod(0o600)
        return ["--cluster-secret-file", path]

    def test_after_a_rotation_the_old_router_is_refused_and_the_new_one_serves(self):
        old, new = self.secret("a"), self.secret("b")
        with contextlib.ExitStack() as life:
            first = life.enter_context(contextlib.ExitStack())
            w = first.enter_context(worker("--port", 0, *old))
            address = port_of(w)
            left_behind = life.enter_context(router(address, *old))
            behind = Front(left_behind)
            want = ask(behind).json()["choices"]
            first.close()
            rotated = life.enter_context(worker("--port", address.rsplit(":", 1)[1], *new))
            with router(address, *new) as r:
                front = Front(r)
                left_behind.until_logged("another cluster secret")
                for _ in range(5):
                    self.assertEqual(ask(front).json()["choices"], want)
                refused = ask(behind)
                self.assertEqual(refused.status, 503, refused.body)
                front.wait_until(lambda: front.metric('baton_worker_refused_total') > 0, "the worker counts it")
            lines = [line for line in rotated.log.read_text().splitlines() if "cluster secret" in line]
            self.assertTrue(lines, "the worker says so, too")
            self.assertLess(len(lines), 100)


class Ranks(unittest.TestCase):
    def test_a_rank_that_comes_twice_is_refused_and_the_group_meets(self):
        with Group(3, "--pipeline-parallel-size", 3) as group:
            zero = group.start(0)
            zero.await_text("meet at")
            first = group.start(1)
            first.await_text("goes to 127.0.0.1")
            one = [first, group.start(1), group.start(1)]  # of the three that say they are rank 1 one comes first
            deadline = time.monotonic() + START_SECONDS
            while sum(node.process.poll() is not None for node in one) < 2:
                self.assertLess(time.monotonic(), deadline, "two of three end")
                time.sleep(0.02)
            told = [node for node in one if node.process.poll() is not None]
            self.assertEqual(len(told), 2, "one of the three stays")
            for node in told:
                self.assertNotEqual(node.process.returncode, 0)
                self.assertIn("two processes were started with one index", node.said().splitlines()[-1])
            group.start(2)
            for node in group.nodes:
                if node not in told:
                    node.await_ready()

    def test_connections_that_greet_twice_or_fall_silent_are_closed_and_the_group_meets(self):
        with Group(2, TP, 2) as group:
            secret = group.secret.read_bytes()
            zero = group.start(0)
            zero.await_text("meet at")
            with greeting.greeted(group.host_of(0), group.port, secret, greeting.RANKS) as s:
                s.sendall((greeting.MAGIC + bytes([1, greeting.RANKS]) + bytes(32)) * 20)
                until_closed(s)
            zero.await_text("is refused")
            with greeting.greeted(group.host_of(0), group.port, secret, greeting.RANKS) as silent:
                until_closed(silent)
            zero.await_text("it has not greeted within 2 s")
            group.start(1)
            for node in group.nodes:
                node.await_ready()


if __name__ == "__main__":
    unittest.main(verbosity=2)
