"""Death, stops and clocks where prefill and decode are processes of their own: whoever is lost, full or late costs no answer and no
memory."""
import contextlib
import os
import signal
import socket
import threading
import time
import unittest

from harness import Beside, Cluster, in_parallel, not_reading
from test_disaggregated import HANDOFF, LONG, PAIR, AsAlone, wait_for_memory
from test_frozen_writer import stop_while_it_owes
from test_promise_a import answer, bits_of, path_of

TWO_OF_EACH = ["--prefill", 2, "--decode", 2, "--threads", 1, *HANDOFF]


class Readers:
    """Clients that read whatever they are answered, until they leave."""

    def __init__(self, cluster, bodies):
        self.clients = [not_reading(cluster, body) for body in bodies]
        self.threads = [threading.Thread(target=self.read, args=(client,)) for client in self.clients]

    def read(self, client):
        with contextlib.suppress(OSError):
            while client.recv(1 << 16):
                pass

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        for client in self.clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread, client in zip(self.threads, self.clients):
            thread.join()
            client.close()


class MostlyStopped(Beside):
    """A process that runs for a hundredth of a second, four times a second: it answers, and gets nowhere."""

    def __init__(self, pid):
        self.pid = pid

    def go_on(self):
        while not self.over.is_set():
            os.kill(self.pid, signal.SIGSTOP)
            self.over.wait(0.24)
            os.kill(self.pid, signal.SIGCONT)
            self.over.wait(0.01)


class LostWorkers(AsAlone):
    def test_what_takes_longer_than_its_credit_goes_on(self):
        """Nobody but the router's renewals keeps a leg for more than 4 s: those that run, and those that wait for a place."""
        body = {"model": "tiny-llama", "prompt": LONG, "max_tokens": 400, "temperature": 0, "ignore_eos": True}
        with Cluster(args=[*PAIR, "--max-num-seqs", 2]) as c:
            want, count, took = c.post("/v1/completions", body).json()["choices"][0]["text"], 8, 0
            while took < 6:
                started = time.monotonic()
                got = in_parallel([lambda: c.post("/v1/completions", body) for _ in range(count)])
                took, count = time.monotonic() - started, count * 2
                self.assertEqual({(reply.status, reply.json()["choices"][0]["text"]) for reply in got}, {(200, want)})
            self.assertNotIn("renewed its credit", c.log.read_text())

    def test_a_full_decode_worker_is_a_queue(self):
        """Answers that are read hold decode's memory for longer than a prefill worker waits for room (20 s). What came after them is answered
        all the same when they have left."""
        slow = {"model": "tiny-llama", "prompt": LONG, "max_tokens": 1400, "ignore_eos": True, "stream": True}
        body = {"model": "tiny-llama", "prompt": LONG[::-1], "max_tokens": 12, "temperature": 0, "ignore_eos": True}
        with Cluster(args=["--threads", 1]) as alone:
            want = answer(alone, body)
        with Cluster(args=[*PAIR, "--decode.kv-cache-memory", "13M"]) as c:
            (decode,) = c.workers("decode")
            got = []
            waits = threading.Thread(target=lambda: got.append(answer(c, body)))
            with Readers(c, [{**slow, "n": 8, "seed": i} for i in range(12)]):
                c.wait_until(lambda: c.metric("baton_handoff_opens_refused_total") > 0, "decode is full")
                waits.start()
                with MostlyStopped(decode):
                    c.wait_until(lambda: c.metric("baton_handoff_no_room_total") > 0, "some were refused, and ask again", 60)
            waits.join(60)
            self.assertEqual(got, [want])
            wait_for_memory(c, "a full decode worker")

    def kill_during_load(self, role, how=signal.SIGKILL, transport="auto"):
        bodies = [{**b, "max_tokens": max(b.get("max_tokens", 8), 8)} for b in self.bodies[:30]]
        with Cluster(args=["--threads", 1]) as c:
            want = [answer(c, body) for body in bodies]
        with Cluster(args=[*TWO_OF_EACH, "--transport", transport]) as c:
            victim = c.workers(role)[0]
            started = threading.Event()

            def killer():
                started.wait()
                while c.metric("baton_kv_transfer_bytes_total") == 0:
                    time.sleep(0.005)
                stop_while_it_owes(c, victim, f"{role}-0")
                os.kill(victim, how)

            thread = threading.Thread(target=killer)
            thread.start()
            started.set()
            got = in_parallel([lambda b=b: answer(c, b) for b in bodies])
            thread.join()
            if how == signal.SIGSTOP:
                if transport == "tcp":  # on shared memory its lanes stay open until it goes on
                    c.wait_until(lambda: c.metric("baton_handoff_jobs") == 0, "nobody waits for a stopped peer", 15)
                os.kill(victim, signal.SIGCONT)
            for body, expected, have in zip(bodies, want, got):
                self.assertEqual(have, expected, f"{role} killed: {body}")
            moved = c.metric("baton_retries_total") + (c.metric("baton_migrations_total") if role == "decode" else 0)
            self.assertGreater(moved, 0, "what it had went to the other")
            wait_for_memory(c, f"the death of a {role} worker")

    def test_prefill_worker_killed_under_load(self):
        self.kill_during_load("prefill")

    def test_decode_worker_killed_under_load(self):
        self.kill_during_load("decode")

    def test_prefill_worker_stopped_under_load(self):
        self.kill_during_load("prefill", signal.SIGSTOP)

    def test_decode_worker_stopped_under_load(self):
        self.kill_during_load("decode", signal.SIGSTOP)

    def test_decode_worker_stopped_under_load_over_tcp(self):
        self.kill_during_load("decode", signal.SIGSTOP, "tcp")

    def test_with_one_of_each_a_lost_worker_costs_no_answer(self):
        """The other computes the prompt, or the lost one comes back in time: every answer is the same."""
        bodies = self.bodies[:12]
        for role, how in (("prefill", signal.SIGKILL), ("prefill", signal.SIGSTOP), ("decode", signal.SIGKILL), ("decode", signal.SIGSTOP)):
            with self.subTest(role=role, how=how), Cluster(args=PAIR) as c:
                answer(c, bodies[0])
                before = c.metric("baton_kv_transfer_bytes_total")

                def harm():
                    while c.metric("baton_kv_transfer_bytes_total") == before:
                        time.sleep(0.005)
                    victim = c.workers(role)[0]
                    os.kill(victim, how)
                    time.sleep(3)  # the length of the stop is what is tested
                    if how == signal.SIGSTOP:
                        os.kill(victim, signal.SIGCONT)

                thread = threading.Thread(target=harm)
                thread.start()
                started = time.monotonic()
                got = in_parallel([lambda b=b: c.post(path_of(b), b) for b in bodies])
                self.assertLess(time.monotonic() - started, 100, "nobody waited for what a request may wait in all")
                thread.join()
                for body, want, reply in zip(bodies, self.alone, got):
                    self.assertEqual(reply.status, 200, reply.body)
                    self.assertEqual(bits_of(reply.json()), want, f"{role} lost: {body}")
                c.wait_until(lambda: c.metric("baton_worker_up") == 2, "both are there", 30)
                wait_for_memory(c, f"the loss of the {role} worker")

    def test_client_that_leaves_frees_both_sides(self):
        with Cluster(args=PAIR) as c:
            body = {"model": "tiny-llama", "prompt": LONG * 3, "max_tokens": 300, "ignore_eos": True, "stream": True}
            for i in range(8):
                with not_reading(c, body) as client:
                    if i % 2:
                        client.recv(1)  # its answer has begun
            wait_for_memory(c, "clients left")
            c.wait_until(lambda: c.sequences() == 0, "nothing runs", 5)
            self.assertEqual(answer(c, self.bodies[0]), self.alone[0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
