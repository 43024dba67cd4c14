"""Beam search and best_of on real processes with default flags: the same bytes alone and among 32, handed over between workers of other
ranks and blocks, preempted, and with a decode worker killed in the middle; no block stays behind; what cannot be is a 400 by name."""
import os
import random
import re
import signal
import threading
import unittest

from harness import Cluster, in_parallel
from test_disaggregated import wait_for_memory
from test_promise_a import TIGHT, answer, as_chat, requests
from token_index import Stream, harm

WIDTH = ["--threads", 1, "--reduction-width", 4]
PAIR = ["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 4]
LONG = "the quick brown fox jumps over the lazy dog " * 12
# A spare decode worker, and handoffs between other ranks and blocks.
SPARE = [*WIDTH, "--prefill", 1, "--decode", 2, "--local-prefill-max-tokens", 4, "--prefill.block-size", 64, "--decode.block-size", 16]
SPARES = {"TP 2 and 1": [*SPARE, "--prefill.tensor-parallel-size", 2], "TP 1 and 2": [*SPARE, "--decode.tensor-parallel-size", 2]}
DEATHS = range(0, 61, 5)  # the token of a running stream at which a worker dies: a sample here, each in bench/soak/beams.py


def beam_requests():
    base = {"model": "tiny-llama", "prompt": "one two three", "max_tokens": 24, "use_beam_search": True, "n": 3, "logprobs": 1}
    changes = [{}, {"prompt": LONG}, {"n": 1, "best_of": 4, "prompt": LONG}, {"n": 2, "best_of": 5, "length_penalty": 0.3},
               {"early_stopping": True, "length_penalty": 2}, {"early_stopping": "never", "prompt": LONG + "tail"}, {"min_tokens": 20},
               {"stop": ["e", "qu"]}, {"echo": True, "prompt": LONG}, {"ignore_eos": True, "max_tokens": 40}, {"max_tokens": 1},
               {"stop_token_ids": list(range(3, 60))}, {"temperature": 0, "seed": 3}, {"logprobs": None, "n": 2}, {"n": 1}]
    bodies = [{k: v for k, v in {**base, **change}.items() if v is not None} for change in changes]
    bodies += [as_chat({"logprobs": None, **bodies[i]}) for i in (1, 3)]
    drawn = {"model": "tiny-llama", "prompt": LONG, "max_tokens": 20, "temperature": 0.9, "seed": 4}
    return bodies + [{**drawn, "best_of": 4}, {**drawn, "n": 2, "best_of": 3, "logprobs": 2, "stop": ["e"]}]


def searches():
    """Of every kind, under way for longer than the last of DEATHS."""
    bodies = [{**b, "prompt": LONG, "max_tokens": 90, "ignore_eos": True} for b in beam_requests() if b.get("use_beam_search") and "prompt" in b and "stop" not in b]
    return [{**b, "prompt": f"{i}. {LONG}"} for i, b in enumerate(bodies) if "stop_token_ids" not in b]


def across_a_death(cluster, bodies, index, r):
    """All at once, while the decode worker with most of them is killed when a stream beside them has had so many tokens."""
    def kill():
        shared = shared_on_decode(cluster)
        if not any(shared.values()):
            return harm(cluster, "kill decode", r)
        os.kill(cluster.workers("decode")[max(shared, key=shared.get)], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    beside = Stream(cluster, {"model": "tiny-llama", "prompt": LONG, "max_tokens": 80, "temperature": 0, "ignore_eos": True, "stream": True},
                    lambda count: killer.start() if count >= max(1, index) and not killer.ident else None)
    streaming = threading.Thread(target=beside.run)
    streaming.start()
    got = in_parallel([lambda b=b: answer(cluster, b) for b in bodies])
    streaming.join()
    assert killer.ident, beside.text
    killer.join()
    cluster.wait_until(lambda: cluster.metric("baton_worker_up") == 3, "the worker is back", 60)
    return got


def shared_on_decode(cluster):
    """Shared blocks of each decode worker, by the number in its name."""
    series = re.findall(r'^baton_kv_blocks_shared\{.*worker="decode-(\d+)".*\} (\S+)$', cluster.get("/metrics").body, re.M)
    return {int(number): float(blocks) for number, blocks in series}


def logprob_of(choice):
    return sum(choice["logprobs"]["token_logprobs"])


class Beams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bodies = beam_requests()
        cls.others = requests(32 - len(cls.bodies), seed=23)
        # Beams that grow by more than they were admitted with.
        cls.long = [{**b, "max_tokens": 100, "ignore_eos": True} for b in cls.bodies
                    if b.get("use_beam_search") and b.get("prompt") == "one two three" and "stop" not in b]
        with Cluster(args=WIDTH) as c:
            cls.alone = [answer(c, body) for body in cls.bodies]
            cls.long_alone = [answer(c, body) for body in cls.long]

    def check(self, cluster, what):
        """All at once, with other requests beside them."""
        asked = [lambda b=b: answer(cluster, b) for b in self.bodies] + [lambda b=b: answer(cluster, b) for b in self.others]
        for body, want, have in zip(self.bodies, self.alone, in_parallel(asked)):
            self.assertEqual(have, want, f"{what}: {body}")
        cluster.wait_until(lambda: cluster.metric("baton_kv_blocks_shared") == 0, "no block is shared any more", 5)
        self.assertEqual(cluster.metric("baton_leaked_kv_blocks"), 0)

    def test_answers_are_likelier_than_greedy_ones_and_in_order(self):
        of_greedy, of_beams = 0, 0
        with Cluster() as c:
            for prompt in (LONG, "one two three", "x" * 40, "numbers 123 456"):
                body = {"model": "tiny-llama", "prompt": prompt, "max_tokens": 16, "ignore_eos": True, "logprobs": 0}
                (greedy,) = c.post("/v1/completions", {**body, "temperature": 0}).json()["choices"]
                whole = c.post("/v1/completions", {**body, "use_beam_search": True, "n": 3, "best_of": 6}).json()
                beams = whole["choices"]
                self.assertEqual([b["index"] for b in beams], [0, 1, 2])
                self.assertEqual(whole["usage"]["completion_tokens"], 48, "of what is answered")
                scores = [logprob_of(b) for b in beams]
                self.assertEqual(scores, sorted(scores, reverse=True))
                of_greedy, of_beams = of_greedy + logprob_of(greedy), of_beams + scores[0]
        self.assertGreater(of_beams, of_greedy + 0.1, "on the whole: the greedy text may be pruned where it begins badly")

    def test_best_of_answers_the_likeliest_of_those_drawn(self):
        body = {"model": "tiny-llama", "prompt": LONG, "max_tokens": 16, "seed": 9, "logprobs": 0, "ignore_eos": True}
        with Cluster() as c:
            drawn = c.post("/v1/completions", {**body, "n": 5}).json()["choices"]
            best = c.post("/v1/completions", {**body, "n": 2, "best_of": 5}).json()
            likeliest = sorted(drawn, key=logprob_of, reverse=True)[:2]
            self.assertEqual([b["text"] for b in best["choices"]], [d["text"] for d in likeliest])
            self.assertEqual(best["usage"]["completion_tokens"], 80, "of all that were drawn")
            hidden = c.post("/v1/completions", {k: v for k, v in {**body, "best_of": 5}.items() if k != "logprobs"}).json()["choices"]
            self.assertEqual([(h["text"], h["logprobs"]) for h in hidden], [(likeliest[0]["text"], None)])

    def test_among_others_they_answer_the_same(self):
        with Cluster(args=WIDTH) as c:
            self.check(c, "all at once")
            self.check(c, "with prefix hits")

    def test_preempted_they_answer_the_same(self):
        with Cluster(args=[*WIDTH, *TIGHT]) as c:
            self.assertEqual(in_parallel([lambda b=b: answer(c, b) for b in self.long * 3]), self.long_alone * 3)
            c.wait_until(lambda: c.metric("vllm:num_preemptions_total") > 0, "some were preempted", 5)
            self.check(c, "little memory")

    def test_handed_over_to_other_ranks_and_blocks_they_answer_the_same(self):
        other = ["--prefill.tensor-parallel-size", 2, "--decode.tensor-parallel-size", 1, "--prefill.block-size", 64, "--decode.block-size", 16]
        for args in (["--transport", "shm"], ["--transport", "tcp", *other]):
            with self.subTest(args=args), Cluster(args=[*WIDTH, *PAIR, *args]) as c:
                self.check(c, args)
                self.assertGreater(c.metric("baton_kv_transfer_bytes_total"), 0)
                self.assertEqual(c.metric("baton_handoff_recomputes_total"), 0)
                wait_for_memory(c, args)

    def test_a_killed_decode_worker_changes_no_answer(self):
        bodies = [{**b, "max_tokens": 300, "ignore_eos": True} for b in self.bodies if b.get("prompt") == LONG and "seed" not in b]
        bodies += [{**b, "prompt": f"{i} {LONG}"} for i, b in enumerate(bodies)]
        with Cluster(args=WIDTH) as c:
            want = in_parallel([lambda b=b: answer(c, b) for b in bodies])
        with Cluster(args=[*WIDTH, "--prefill", 1, "--decode", 2, "--local-prefill-max-tokens", 4]) as c:
            c.wait_until(lambda: c.log.read_text().count("proven by a canary") == 3, "both decode workers take requests")
            got = []
            asking = threading.Thread(target=lambda: got.extend(in_parallel([lambda b=b: answer(c, b) for b in bodies])))
            asking.start()
            # How the router divides them follows the speeds that it measured: one worker may have them all.
            busy = []
            c.wait_until(lambda: busy.extend(number for number, blocks in shared_on_decode(c).items() if blocks > 10) or busy, "searches are under way")
            os.kill(c.workers("decode")[busy[0]], signal.SIGKILL)
            asking.join()
            self.assertEqual(got, want)
            self.assertGreater(c.metric("baton_retries_total"), 0)

    def test_a_worker_killed_at_a_token_changes_no_answer_between_other_ranks(self):
        seed = int(os.environ.get("SEED", random.randrange(10**6)))
        print(f"\n    SEED={seed}", flush=True)
        r = random.Random(seed)
        bodies, ranks = searches(), r.choice(list(SPARES))
        with Cluster(args=WIDTH) as c:
            want = in_parallel([lambda b=b: answer(c, b) for b in bodies])
        with Cluster(args=SPARES[ranks]) as c:
            for index in sorted(r.sample(DEATHS, 3)):
                got = across_a_death(c, bodies, index, r)
                for body, expected, have in zip(bodies, want, got):
                    self.assertEqual(have, expected, f"SEED={seed}, {ranks}, killed at token {index}: {body}")
            self.assertGreater(c.metric("baton_retries_total"), 0)
            c.wait_until(lambda: c.metric("baton_kv_blocks_shared") == 0, "no block is shared any more", 5)

    def test_what_cannot_be_is_refused_by_name(self):
        base = {"model": "tiny-llama", "prompt": "a b c", "max_tokens": 8, "use_beam_search": True, "n": 2}
        cases = [({"stream": True}, "stream"), ({"stream": True, "use_beam_search": False, "best_of": 3}, "stream"),
                 ({"n": 1000}, "n"), ({"best_of": 1000}, "best_of"), ({"best_of": 0}, "best_of"), ({"n": 3, "best_of": 2}, "best_of"),
                 ({"temperature": 0.5}, "temperature"), ({"logit_bias": {"5": 1}}, "logit_bias"), ({"guided_regex": "a+"}, "guided_regex"),
                 ({"bad_words": ["a"]}, "bad_words"), ({"length_penalty": 99}, "length_penalty"), ({"early_stopping": "soon"}, "early_stopping"),
                 ({"prompt": ["a"] * 60, "best_of": 4}, "best_of")]
        with Cluster(args=["--max-model-len", 2000, "--kv-cache-memory", "16M"]) as c:
            for change, field in cases:
                reply = c.post("/v1/completions", {**base, **change})
                self.assertEqual((reply.status, reply.json()["error"]["param"]), (400, field), f"{change}: {reply.body}")
            for width, field in (({"n": 32}, "n"), ({"best_of": 32}, "best_of")):
                reply = c.post("/v1/completions", {**base, **width, "max_tokens": 1900})
                self.assertEqual((reply.status, reply.json()["error"]["param"]), (400, field), reply.body)
                self.assertIn(f"`{field}`: a beam search with 32 beams", reply.json()["error"]["message"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
