"""An abort storm: many streams at once whose clients all leave within a second, and what the cluster still does then.
Used by test_abort_storm.py and bench/abort_storm.py."""
import json
import random
import socket
import threading
import time

from harness import HELD

WORDS = "the quick brown fox jumps over the lazy dog and runs through a field of rye until the evening comes ".split()


def prompt(seed, words):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(words))


class Storm:
    """`count` streams, each on a connection of its own; prompts differ, so that none is a prefix hit."""

    def __init__(self, cluster, count, words=120, max_tokens=200):
        self.sockets = []
        for i in range(count):
            body = json.dumps({"model": "tiny-llama", "prompt": prompt(1000 + i, words), "max_tokens": max_tokens, "stream": True,
                               "ignore_eos": True, "seed": i}).encode()
            s = socket.create_connection((cluster.host, int(cluster.port)), timeout=30)
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            self.sockets.append(s)

    def leave(self):
        """Closes every connection; the seconds it took, and how many streams had been refused before."""
        refused = 0
        for s in self.sockets:
            s.setblocking(False)
            try:
                refused += s.recv(64, socket.MSG_PEEK).startswith(b"HTTP/1.1 4")
            except BlockingIOError:
                pass
        start = time.monotonic()
        for s in self.sockets:
            s.close()
        return time.monotonic() - start, refused


class Load:
    """Clients in a closed loop; what they got, by time."""

    def __init__(self, cluster, clients, words=20, max_tokens=16):
        self.cluster, self.words, self.max_tokens = cluster, words, max_tokens
        self.done, self.failed, self.stopping = [], [], False  # done: (when, tokens)
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(clients)]
        for t in self.threads:
            t.start()

    def run(self, client):
        n = 0
        while not self.stopping:
            n += 1
            body = {"model": "tiny-llama", "prompt": prompt(client * 100000 + n, self.words), "max_tokens": self.max_tokens,
                    "temperature": 0, "ignore_eos": True}
            try:
                reply = self.cluster.post("/v1/completions", body)
                if reply.status == 200:
                    self.done.append((time.monotonic(), reply.json()["usage"]["completion_tokens"]))
                else:
                    self.failed.append((time.monotonic(), reply.status, reply.body))
                    time.sleep(0.05)
            except OSError as e:
                self.failed.append((time.monotonic(), 0, str(e)))

    def tokens_per_s(self, begin, end):
        return sum(tokens for when, tokens in list(self.done) if begin <= when < end) / (end - begin)

    def stop(self):
        self.stopping = True
        for t in self.threads:
            t.join()


def held(cluster):
    """What of a handoff is held, by metric; empty: nothing."""
    return {name: value for name in HELD if (value := cluster.metric(name))}
