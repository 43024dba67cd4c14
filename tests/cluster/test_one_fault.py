"""One fault and a spare worker, with default flags: no client sees anything but a delay. Bytes, status and usage are those
of a cluster that nothing happens to."""
import json
import os
import signal
import subprocess
import threading
import time
import unittest
import urllib.request

from harness import BATON, Cluster, HeldStream, in_parallel, run, texts
from test_promise_a import path_of

# The tiny model's prompts are so short that a decode worker would compute most of them itself.
TWO_OF_EACH = ["--prefill", 2, "--decode", 2, "--threads", 1, "--local-prefill-max-tokens", 8]
WORDS = "the quick brown fox jumps over the lazy dog "


def bodies(count, max_tokens, stream):
    """Requests of many kinds: greedy and seeded, one choice and two, logprobs, penalties, a stop string."""
    kinds = [{"temperature": 0}, {"temperature": 0.9}, {"temperature": 0.9, "n": 2}, {"temperature": 0.7, "logprobs": 2},
             {"temperature": 0.8, "repetition_penalty": 1.3, "presence_penalty": 0.5}, {"temperature": 0.9, "stop": ["zq"]}]
    return [{"model": "tiny-llama", "prompt": f"request {i}: " + WORDS * (1 + i % 7), "seed": 100 + i, "ignore_eos": True,
             "max_tokens": max_tokens, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {}),
             **kinds[i % len(kinds)]} for i in range(count)]


def seen(reply):
    """What a client sees of an answer, apart from times and ids: status, each choice's text, logprobs and end, usage."""
    if not reply.body.startswith("data: "):
        body = reply.json()
        assert reply.status == 200, f"{reply.status}: {reply.body}"
        chunks = [body]
    else:
        chunks = [json.loads(e[len("data: "):]) for e in reply.body.split("\n\n") if e.startswith("data: {")]
        assert "data: [DONE]" in reply.body, reply.body[-300:]
    choices, usage, mixed = {}, None, None
    for chunk in chunks:
        assert "error" not in chunk, chunk
        usage, mixed = chunk.get("usage") or usage, chunk.get("numerics") or mixed
        for choice in chunk.get("choices", []):
            got = choices.setdefault(choice["index"], {"text": "", "logprobs": [], "end": None})
            got["text"] += choice["text"]
            if choice.get("logprobs"):
                got["logprobs"] += list(zip(choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]))
            got["end"] = choice.get("finish_reason") or got["end"]
    usage = {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}
    return {"status": reply.status, "choices": choices, "usage": usage, "numerics": mixed}


def ask(cluster, body):
    return seen(cluster.post(path_of(body), body))


class OneFault(unittest.TestCase):
    """Each test asks a quiet cluster first, and then the same of one that something happens to."""

    @classmethod
    def setUpClass(cls):
        cls.streams = bodies(24, 200, True)
        cls.short = bodies(40, 24, False)
        cls.long = bodies(8, 1000, True)  # some run when a command that was started meanwhile arrives
        with Cluster(args=["--threads", 1]) as c:
            cls.alone = {json.dumps(b): ask(c, b) for b in [*cls.streams, *cls.short, *cls.long]}

    def expect_all(self, asked, got, what):
        wrong = [(b, have, self.alone[json.dumps(b)]) for b, have in zip(asked, got) if have != self.alone[json.dumps(b)]]
        text = "\n".join(f"{b}\n  got      {have}\n  expected {want}" for b, have, want in wrong[:3])
        self.assertFalse(wrong, f"{what}: {len(asked) - len(wrong)} of {len(asked)} as alone\n{text}")

    def run_while(self, cluster, asked, disturb, stagger=0.0):
        """Sends everything and disturbs the cluster once tokens flow."""
        def one(i, body):
            time.sleep(stagger * i)  # arrivals are spread: that is the load, not a wait for something
            try:
                return ask(cluster, body)
            except AssertionError as failed:
                return str(failed)

        before = cluster.metric("vllm:generation_tokens_total")
        asking = threading.Thread(target=lambda: got.extend(in_parallel([lambda i=i, b=b: one(i, b) for i, b in enumerate(asked)])))
        got = []
        asking.start()
        cluster.wait_until(lambda: cluster.metric("vllm:generation_tokens_total") > before + 20, "tokens flow")
        try:
            disturb()
        finally:
            asking.join()
        return got

    def stopped_for(self, pids, seconds):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)  # the length of the stop is what is tested
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def test_a_decode_worker_killed_under_streams(self):
        with Cluster(args=TWO_OF_EACH) as c:
            got = self.run_while(c, self.streams, lambda: os.kill(c.workers("decode")[0], signal.SIGKILL))
            self.expect_all(self.streams, got, "decode killed")

    def test_a_decode_worker_killed_with_default_flags_alone(self):
        with Cluster(args=["--prefill", 1, "--decode", 2]) as c:
            got = self.run_while(c, self.streams, lambda: os.kill(c.workers("decode")[0], signal.SIGKILL))
            self.expect_all(self.streams, got, "decode killed")

    def drain(self, cluster, *args):
        done = run(["drain", *args, "--url", cluster.admin], timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_workers_drained_one_after_another_under_streams(self):
        """As for an upgrade: each in turn takes nothing new until what ran there has ended, and comes back."""
        told = []

        def each_in_turn(c, stream, busy):
            drain = subprocess.Popen([BATON, "drain", busy, "--url", c.admin], stdout=subprocess.PIPE, text=True)
            told.append(drain.stdout.readline())
            self.assertEqual(len(texts(stream.rest())), 4)
            told.append(drain.communicate(timeout=120)[0])
            self.assertEqual(drain.returncode, 0)
            self.drain(c, busy, "--undo")
            for name in ("decode-1" if busy == "decode-0" else "decode-0", "prefill-0", "prefill-1"):
                told.append(self.drain(c, name, "--timeout-ms", "60000"))
                self.drain(c, name, "--undo")

        def workers(c):
            with urllib.request.urlopen(c.admin + "/workers", timeout=10) as reply:
                return json.load(reply)["workers"]

        with Cluster(args=TWO_OF_EACH) as c:
            c.wait_until(lambda: all(w["takes_requests"] for w in workers(c)), "all take requests: no canary runs")
            with HeldStream(c) as stream:  # goes on until it is read: one that decodes has a request when it is told to drain
                (busy,) = [w["name"] for w in workers(c) if w["role"] == "decode" and w["requests"]]
                got = self.run_while(c, self.long, lambda: each_in_turn(c, stream, busy), 0.1)
            self.expect_all(self.long, got, "drained")
            self.assertEqual(c.metric("baton_retries_total"), 0, "nobody computes again")
        self.assertRegex(told[0], r"^decode-\d: draining, [1-9]\d* requests\n$")
        self.assertTrue(all("drained, 0 requests" in out for out in told[1:]), told)

    def test_drain_refuses_the_last_that_decodes_and_names_who_there_is(self):
        with Cluster(args=["--threads", 1]) as c:
            for worker, url, why in (("worker-0", c.admin, "the last that decodes"), ("decode-9", c.admin, "worker-0"),
                                     ("worker-0", c.url, "--admin-port")):
                done = run(["drain", worker, "--url", url])
                self.assertEqual((done.returncode, why in done.stderr), (2, True), done.stderr)
            self.assertRegex(run(["doctor", "--url", c.url]).stdout, r"ok +cluster .*/ready: 200 ready")
            self.drain(c, "worker-0", "--force")
            self.assertEqual(c.get("/ready").status, 503)
            said = run(["doctor", "--url", c.url]).stdout
            self.assertRegex(said, r"worker worker-0 +held for \d+\.\d s: an operator drains it")
            self.assertNotRegex(said, "ok +cluster")
            self.assertEqual(self.drain(c, "worker-0", "--undo"), "worker-0: ready\n")
            self.assertEqual(c.get("/ready").status, 200)

    def test_a_prefill_worker_killed_under_load(self):
        with Cluster(args=TWO_OF_EACH) as c:
            got = self.run_while(c, self.short, lambda: os.kill(c.workers("prefill")[0], signal.SIGKILL), 0.02)
            self.expect_all(self.short, got, "prefill killed")

    def test_a_decode_worker_stopped_for_five_seconds_while_requests_arrive(self):
        with Cluster(args=TWO_OF_EACH) as c:
            got = self.run_while(c, self.short, lambda: self.stopped_for(c.workers("decode")[:1], 5), 0.1)
            self.expect_all(self.short, got, "decode stopped")

    def test_a_prefill_worker_stopped_for_five_seconds_while_requests_arrive(self):
        with Cluster(args=TWO_OF_EACH) as c:
            got = self.run_while(c, self.short, lambda: self.stopped_for(c.workers("prefill")[:1], 5), 0.1)
            self.expect_all(self.short, got, "prefill stopped")

    def test_the_router_stopped_for_less_and_more_than_a_lease(self):
        for seconds in (3.5, 4.5, 6):
            with self.subTest(seconds=seconds), Cluster(args=TWO_OF_EACH) as c:
                asked = self.streams[:10]
                got = self.run_while(c, asked, lambda: self.stopped_for([c.pid_of("router")], seconds))
                self.expect_all(asked, got, f"router stopped for {seconds} s")

    def test_every_process_stopped_at_once(self):
        with Cluster(args=TWO_OF_EACH) as c:
            asked = self.streams[:10]
            got = self.run_while(c, asked, lambda: self.stopped_for(list(c.children()), 6))
            self.expect_all(asked, got, "everything stopped")


if __name__ == "__main__":
    unittest.main(verbosity=2)
