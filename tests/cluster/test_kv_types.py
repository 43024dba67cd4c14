"""KV kept in fp8: the same on both sides it is Promise A; sides that keep other types, or sum in another order, hold
Promise B: every field, no text lost, repeated or sent twice, usage and logprobs whole, and the reply says so."""
import json
import unittest

from harness import Cluster, events, in_parallel
from test_disaggregated import LONG, PAIR, field_requests, wait_for_memory
from test_promise_a import answer, requests

TYPE = "kv-cache-dtype"


def keeps_the_protocol(test, cluster, body, count, alone=False):
    """Streams `body`, which runs to `count` tokens a choice, and looks at every chunk. `alone`: one worker may have answered all of it."""
    stream = {**body, "stream": True, "stream_options": {"include_usage": True}, "logprobs": 1}
    data = events(cluster.post("/v1/completions", stream).body)
    test.assertEqual(data[-1], "[DONE]")
    chunks = [json.loads(d) for d in data[:-1]]
    choices = body.get("n", 1)
    tokens, finishes = [[] for _ in range(choices)], [[] for _ in range(choices)]
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        i = choice["index"]
        test.assertFalse(finishes[i], "nothing comes after the end")
        tokens[i] += (choice["logprobs"] or {"tokens": []})["tokens"]
        finishes[i] += [choice["finish_reason"]] if choice["finish_reason"] else []
    test.assertEqual(finishes, [["length"]] * choices)
    test.assertEqual([len(t) for t in tokens], [count] * choices, "one score a token, none twice")
    test.assertEqual(chunks[-1]["usage"]["completion_tokens"], count * choices)
    whole = cluster.post("/v1/completions", body).json()
    test.assertIn(whole.get("numerics"), ["mixed", None] if alone else ["mixed"])
    test.assertEqual(whole["usage"]["completion_tokens"], count * choices)


class KvTypes(unittest.TestCase):
    def test_fp8_on_both_sides_equals_one_fp8_worker(self):
        bodies = field_requests() + requests(12, seed=29)
        with Cluster(args=["--threads", 1]) as c:
            finer = [answer(c, body) for body in bodies]
        with Cluster(args=["--threads", 1, f"--{TYPE}", "fp8"]) as c:
            alone = [answer(c, body) for body in bodies]
        self.assertNotEqual(alone, finer, "fp8 is coarser than what is computed in")
        with Cluster(args=[*PAIR, f"--{TYPE}", "fp8", "--decode.block-size", 64, "--prefill.max-num-batched-tokens", 48]) as c:
            for round_name in ("cold", "with prefix hits"):
                got = in_parallel([lambda b=b: answer(c, b) for b in bodies])
                for body, want, have in zip(bodies, alone, got):
                    self.assertEqual(have, want, f"{round_name}: {body}")
            self.assertGreater(c.metric("baton_kv_transfer_bytes_total"), 0)
            self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)
            wait_for_memory(c, "fp8 on both sides")

    def test_sides_that_differ_keep_the_protocol(self):
        bodies = [{"model": "tiny-llama", "prompt": (LONG + str(i)) * (1 + i % 2), "max_tokens": 24, "ignore_eos": True, "seed": i,
                   "temperature": [0, 0.8][i % 2], "n": 1 + i % 3, "logit_bias": {"0": -100, "1": -100, "2": -100}} for i in range(9)]
        for sides in ([f"--prefill.{TYPE}", "float32", f"--decode.{TYPE}", "fp8"],
                      [f"--prefill.{TYPE}", "fp8", f"--decode.{TYPE}", "bfloat16"],
                      [f"--prefill.{TYPE}", "float16", f"--decode.{TYPE}", "fp8"],
                      [f"--{TYPE}", "fp8", "--prefill.tensor-parallel-size", 2]):
            with self.subTest(sides=sides), Cluster(args=[*PAIR, *sides]) as c:
                in_parallel([lambda b=b: keeps_the_protocol(self, c, b, 24) for b in bodies])
                self.assertGreater(c.metric("baton_kv_transfer_bytes_total"), 0)
                self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)
                self.assertEqual(c.metric("baton_handoff_recomputes_total"), 0)
                wait_for_memory(c, sides)


if __name__ == "__main__":
    unittest.main()
