"""Streams that nobody reads. Answers that a client asks for and does not read keep no other waiting. Streams of a worker's port that a peer
opens and does not read: how many he may have, for how long, and that its routers notice nothing."""
import contextlib
import json
import pathlib
import re
import socket
import struct
import tempfile
import time
import unittest

from harness import Cluster, HeldStream, in_parallel, texts
from test_disaggregated import LONG, PAIR
from test_flip import Load, answers
from test_promise_a import answer
from test_trust import frame, literal
from test_two_routers import Router, Routers, Worker

DATA, RST_STREAM, SETTINGS, PING, HEADERS, WINDOW_UPDATE = 0, 3, 4, 6, 1, 8
CANCEL = 8
SAYS_NOTHING = b"\0" * 5  # a message without fields
METHOD = {name: b"\x83\x86" + literal(b":path", b"/baton.v1.Worker/" + name) + literal(b":authority", b"a") + literal(b"te", b"trailers")
          + literal(b"content-type", b"application/grpc") for name in (b"Watch", b"Relay")}


class Peer:
    """A connection to a worker without a secret. `window`: bytes of each stream that he takes before he says more."""

    def __init__(self, address, window):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, window)))
        self.rest, self.next, self.data, self.ended = b"", 1, {}, set()

    def opens(self, method):
        """A stream of his; its number."""
        number, self.next = self.next, self.next + 2
        self.socket.sendall(frame(HEADERS, 4, number, METHOD[method]) + frame(DATA, method == b"Watch", number, SAYS_NOTHING))
        return number

    def hears(self, seconds):
        """Takes what comes for a while. What a stream brought is counted, and that it has ended: by a reset, or by its trailers."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                return
            assert data, "the connection has ended"
            self.rest += data
            while len(self.rest) >= 9 and len(self.rest) >= (whole := 9 + int.from_bytes(self.rest[:3], "big")):
                self.take(self.rest[3], self.rest[4], int.from_bytes(self.rest[5:9], "big"), self.rest[9:whole])
                self.rest = self.rest[whole:]

    def take(self, kind, flags, number, body):
        if kind == DATA:
            self.data[number] = self.data.get(number, 0) + len(body)
            self.socket.sendall(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", len(body))) if body else b"")
        if kind == RST_STREAM or (kind == HEADERS and flags & 1):
            self.ended.add(number)
        if kind in (SETTINGS, PING) and not flags & 1:
            self.socket.sendall(frame(kind, 1, 0, body if kind == PING else b""))

    def hears_until(self, condition, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {sorted(self.ended)} have ended"
            self.hears(0.2)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


class UnreadAnswers(unittest.TestCase):
    """Clients that ask for much and read nothing but the beginning."""

    OTHER = {"model": "tiny-llama", "prompt": LONG[::-1], "max_tokens": 48, "temperature": 0, "ignore_eos": True, "logprobs": 2}

    def whole(self, cluster, body, seeds):
        """What each seed's request is answered, in texts."""
        return in_parallel([lambda s=seed: [choice["text"] for choice in cluster.post("/v1/completions", {**body, "seed": s}).json()["choices"]]
                            for seed in range(seeds)])

    def stand_still(self, cluster, sequences):
        cluster.wait_until(lambda: cluster.metric("baton_sequences_unread") == sequences and cluster.metric("vllm:num_requests_running") == 0
                           and cluster.metric("vllm:num_requests_waiting") == 0, f"{sequences} sequences have come as far as they may", 120)

    def is_answered_at_once(self, cluster, want):
        started = time.monotonic()
        got = in_parallel([lambda: answer(cluster, self.OTHER) for _ in range(4)])
        self.assertLess(time.monotonic() - started, 10)
        self.assertEqual(got, [want] * 4)

    def read_to_their_ends(self, cluster, held, whole):
        got = in_parallel([lambda s=s: texts(s.rest()) for s in held])
        for i, answers_of_one in enumerate(got):
            self.assertEqual(answers_of_one, whole[i % len(whole)], i)
        for counter in ("baton_worker_losses_total", "baton_retries_total", "baton_migrations_total"):
            self.assertEqual((counter, cluster.metric(counter)), (counter, 0))

    def test_all_places_of_a_worker_are_there_for_who_reads(self):
        """With default flags, but for the time that a slow machine may take, and a quarter of the places, as it may take minutes to fill 128."""
        asked = {"prompt": "one two three", "max_tokens": 900, "temperature": 1, "n": 4, "logprobs": 10}
        with Cluster(args=["--max-num-seqs", 32, "--write-timeout-ms", 600000]) as c, contextlib.ExitStack() as stack:
            want = answer(c, self.OTHER)
            whole = self.whole(c, {"model": "tiny-llama", "ignore_eos": True, **asked}, 4)
            held = [stack.enter_context(HeldStream(c, **asked, seed=i % 4)) for i in range(8)]
            self.stand_still(c, 32)
            self.is_answered_at_once(c, want)
            self.read_to_their_ends(c, held, whole)

    def test_the_memory_of_a_worker_is_there_for_who_reads(self):
        asked = {"prompt": LONG, "max_tokens": 300, "temperature": 1, "n": 8}
        with Cluster(args=["--threads", 1]) as alone:
            want = answer(alone, self.OTHER)
            whole = self.whole(alone, {"model": "tiny-llama", "ignore_eos": True, **asked, "logprobs": 20}, 3)
        small = ["--decode.kv-cache-memory", "13M", "--relay-credit-tokens", 16, "--write-buffer-bytes", 4096, "--write-timeout-ms", 600000]
        with Cluster(args=[*PAIR, *small]) as c, contextlib.ExitStack() as stack:
            held = [stack.enter_context(HeldStream(c, **asked, seed=i % 3)) for i in range(12)]
            self.stand_still(c, 96)
            self.assertGreater(c.metric("vllm:num_preemptions_total"), 0, "they have had more blocks than there are")
            self.is_answered_at_once(c, want)
            self.assertEqual(c.metric("baton_handoff_no_room_total"), 0)
            self.read_to_their_ends(c, held, whole)

    def test_a_worker_whose_readers_all_stand_still_is_not_lost(self):
        with Cluster(args=["--threads", 1, "--step-stall-ms", 500]) as c, HeldStream(c, seed=1) as held:
            self.stand_still(c, 4)
            since = time.monotonic()
            c.wait_until(lambda: time.monotonic() > since + 3, "six times as long as a worker may stand still")
            self.read_to_their_ends(c, [held], self.whole(c, held.body, 2)[1:])


class UnreadAnswersOfAKey(unittest.TestCase):
    """One API key asks for much and reads none of it, while others ask."""

    LISTED = {"prompt": ["one two", "two three", "three four", "four five"], "max_tokens": 900, "temperature": 1, "n": 1, "logprobs": 10}

    def ask(self, key, **fields):
        return self.cluster.post("/v1/completions", {"model": "tiny-llama", "prompt": "a b", "max_tokens": 4, **fields}, headers={"Authorization": f"Bearer {key}"})

    def holds(self, stack, key, most, **fields):
        """Streams of the key, which nobody reads: as many as it gets, at most so many; and why it gets no more."""
        held = []
        while len(held) < most:
            stream = HeldStream.__new__(HeldStream)
            try:
                stream.__init__(self.cluster, key=key, **fields, seed=len(held))
            except AssertionError as why:
                stream.socket.close()
                return held, json.loads(why.args[0])["error"]
            held.append(stack.enter_context(stream))
        return held, None

    def test_leave_places_to_others_and_give_way(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        keys = pathlib.Path(folder, "keys")
        keys.write_text("sk-greedy name=greedy\nsk-other name=other\nsk-third name=third\n")
        with Cluster(args=["--api-key-file", keys, "--max-running-requests", 16, "--write-timeout-ms", 600000]) as c, contextlib.ExitStack() as stack:
            self.cluster = c
            want = [[choice["text"] for choice in self.ask("sk-greedy", **self.LISTED, ignore_eos=True, seed=seed).json()["choices"]] for seed in range(3)]
            greedy, why = self.holds(stack, "sk-greedy", 4, **self.LISTED)
            self.assertEqual(len(greedy), 3, "three lists of four are all that one key may have of 16")
            self.assertEqual(why["flag"], "--max-running-requests")
            self.assertIn("of this API key", why["message"])
            c.wait_until(lambda: c.metric("baton_sequences_unread") == 12, "they stand still", 120)
            asked = time.monotonic()
            other = []

            def has_its_share():
                more, _ = self.holds(stack, "sk-other", 7 - len(other))
                other.extend(more)
                return len(other) == 7

            c.wait_until(has_its_share, "another key has as many as two may have each", 30)
            self.assertLess(time.monotonic() - asked, 30)
            self.assertEqual(self.ask("sk-other").status, 429, "and no more")
            self.assertEqual(self.ask("sk-third").status, 200, "there is still one for a third")
            got = in_parallel([lambda s=s: s.rest() for s in greedy])
            broken = [data for data in got if "error" in data[-1] or "error" in data[-2]]
            self.assertEqual(len(broken), 1, "one of its answers is ended")
            error = json.loads(next(e for e in broken[0] if '"error"' in e))["error"]
            self.assertEqual((error["code"], error["flag"]), ("overloaded", "--max-running-requests"))
            self.assertRegex(error["message"], r"this answer was not read for \d+ s, and its API key holds more than its share")
            for data, answers_of_one in zip(got, want, strict=True):
                if data is not broken[0]:
                    self.assertEqual(texts(data), answers_of_one)
            counted = dict(re.findall(r'^baton_key_refused_total{.*key="greedy",limit="(share|unread)".*} (\d+)$', c.get("/metrics").body, re.M))
            self.assertEqual(counted["unread"], "1")
            self.assertGreater(int(counted["share"]), 0)


class UnreadStreams(Routers):
    @contextlib.contextmanager
    def beside(self):
        """A worker whose router is asked all the while, and answers as it did."""
        with Worker("prefill", self.folder, self.key_file) as p, Worker("decode", self.folder, self.key_file) as d, \
                Router([p.address, d.address], self.key_file) as router:
            want = answers(router)
            with Load(router, want, threads=1) as load:
                yield d, router
            self.assertEqual(load.wrong, [])
            self.assertEqual(router.metric("baton_worker_losses_total"), 0)

    def test_a_connection_has_four_of_a_kind_and_the_oldest_gives_way(self):
        with self.beside() as (worker, _), Peer(worker.address, 1 << 20) as peer:
            for method in (b"Watch", b"Relay"):
                numbers = []
                for _ in range(10):
                    numbers.append(peer.opens(method))
                    if method == b"Watch":  # which says something at once; what begins together has no order at the worker
                        peer.hears_until(lambda: numbers[-1] in peer.data, "it has begun")
                peer.hears_until(lambda: len(peer.ended & set(numbers)) >= 6, "six end")
                peer.hears(1)
                ended = peer.ended & set(numbers)
                self.assertEqual(len(ended), 6, "the others stay")
                if method == b"Watch":
                    self.assertEqual(ended, set(numbers[:6]), "the oldest end")
                log = worker.log.read_text()
                self.assertIn(f"a {method.decode()} stream of 127.0.0.1 is ended: its connection has more than 4", log)

    def test_of_many_connections_a_thousand_stay(self):
        with self.beside() as (worker, router), contextlib.ExitStack() as stack:
            peers = [stack.enter_context(Peer(worker.address, 0)) for _ in range(270)]
            for peer in peers:
                for _ in range(4):
                    peer.opens(b"Watch")
            router.wait_until(lambda: "there are more than 1024, and most are its host's" in worker.log.read_text(), "some end", 60)

    def test_who_takes_nothing_for_half_a_minute_loses_his_stream(self):
        with self.beside() as (worker, router), Peer(worker.address, 0) as peer, Peer(worker.address, 1 << 20) as reader:
            unread, read = peer.opens(b"Watch"), reader.opens(b"Watch")
            peer.hears_until(lambda: reader.hears(0.1) or unread in peer.ended, "it is ended", 60)
            self.assertNotIn(unread, peer.data)
            self.assertRegex(worker.log.read_text(), r"a Watch stream of 127\.0\.0\.1 is ended: \d+ bytes wait, and nothing was taken for 30 s")
            reader.hears(1)
            self.assertGreater(reader.data[read], 1000)
            self.assertNotIn(read, reader.ended, "who reads keeps his")
            router.wait_until(lambda: router.metric("baton_worker_refused_total") > 0, "it is counted")


if __name__ == "__main__":
    unittest.main(verbosity=2)
