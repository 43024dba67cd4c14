"""A fault at a chosen token of running streams. What every client gets is compared with what it gets undisturbed."""
import contextlib
import http.client
import json
import os
import random
import signal
import threading
import time

from test_one_fault import seen

FAULTS = ["kill decode", "stop decode", "kill prefill", "stop prefill", "pause router"]
PAUSES = [0.3, 2, 3.5, 4.5, 6]  # seconds: on both sides of a heartbeat's (3 s) and a lease's (4 s) end


def variants(model, tokens, prompt):
    """Streams of every kind, whose fault falls on the same moment."""
    base = {"model": model, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, "seed": 7,
            "stream_options": {"include_usage": True}}
    kinds = [{"temperature": 0}, {"temperature": 0.9}, {"temperature": 0.9, "n": 2}, {"temperature": 0.7, "logprobs": 2},
             {"temperature": 0.8, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}]
    return [{**base, **kind, "prompt": f"{i}. {prompt}"} for i, kind in enumerate(kinds)]


def across(text, index):
    """A stop string that begins before the fault's place in `text` and ends behind it, found nowhere earlier."""
    at = max(1, min(len(text) - 6, index))
    for length in range(4, 12):
        piece = text[max(0, at - length // 2):at + length // 2]
        if len(piece) == 2 * (length // 2) and text.find(piece) == max(0, at - length // 2):
            return piece
    return None


class Stream:
    """One streamed request; calls `at_token(count)` after each token of choice 0 and keeps what came."""

    def __init__(self, cluster, body, at_token=lambda count: None):
        self.cluster, self.body, self.at_token, self.text, self.gaps = cluster, body, at_token, "", []

    def run(self):
        connection = http.client.HTTPConnection(self.cluster.host, int(self.cluster.port), timeout=120)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps(self.body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.status, count, last = response.status, 0, None
            for line in response:
                line = line.decode()
                self.text += line
                if not line.startswith("data: {"):
                    continue
                for choice in json.loads(line[len("data: "):]).get("choices", []):
                    if choice["index"] == 0:
                        now, count = time.monotonic(), count + 1
                        self.gaps.append(now - (last or now))
                        last = now
                        self.at_token(count)

    def seen(self):
        reply = type("Reply", (), {"status": self.status, "body": self.text})
        return seen(reply)


def harm(cluster, fault, r):
    """Does it, and returns once it is over."""
    what, whom = fault.split()
    pids = [cluster.pid_of("router")] if whom == "router" else cluster.workers(whom)
    pid = r.choice(pids)
    if what == "kill":
        return os.kill(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(r.choice(PAUSES))  # the length of the pause is what is tested
    os.kill(pid, signal.SIGCONT)


def check(cluster, model, tokens, prompt, index, fault, seed):
    """The broken promise, or nothing; and the longest gap between two tokens of the streams."""
    r = random.Random(seed)
    bodies = variants(model, tokens, prompt)
    want = []
    for body in bodies:
        stream = Stream(cluster, body)
        stream.run()
        want.append(stream.seen())
    stop = across(want[0]["choices"][0]["text"], index)
    if stop:  # the greedy one again, to a stop string across the seam
        bodies.append({**bodies[0], "stop": [stop]})
        stream = Stream(cluster, bodies[-1])
        stream.run()
        want.append(stream.seen())
    harmer = threading.Thread(target=harm, args=(cluster, fault, r))
    streams = [Stream(cluster, body) for body in bodies]
    # A piece of a stream may hold several tokens, so that not every count is seen.
    streams[0].at_token = lambda count: harmer.start() if count >= max(1, index) and not harmer.ident else None
    threads = [threading.Thread(target=s.run) for s in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not harmer.ident:
        harmer.start()  # it came in fewer pieces: the fault falls behind its end
    harmer.join()
    workers = len(cluster.workers("prefill")) + len(cluster.workers("decode"))
    for body, expected, stream in zip(bodies, want, streams):
        try:
            have = stream.seen()
        except AssertionError as failed:
            return f"{fault} at token {index}: {body} failed: {failed}", 0
        if have != expected:
            return f"{fault} at token {index}: {body}\ngot      {have}\nexpected {expected}", 0
    cluster.wait_until(lambda: cluster.metric("baton_worker_up") == max(workers, 4), "all workers are back", 60)
    return "", max(max(s.gaps) for s in streams)
