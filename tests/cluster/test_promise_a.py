"""Promise A over the API: 32 concurrent requests with mixed sampling fields answer what each answers alone, bit for bit."""
import random
import unittest

from harness import Cluster, in_parallel

PROMPTS = ["one two three", "The quick brown fox", "a", "numbers 123 456", "x" * 300, "shared prefix " * 40 + "tail A",
           "shared prefix " * 40 + "tail B"]


def requests(count, seed):
    r = random.Random(seed)
    out = []
    for i in range(count):
        body = {"model": "tiny-llama", "prompt": r.choice(PROMPTS), "max_tokens": r.randint(1, 48), "seed": r.randint(0, 2**40),
                "temperature": r.choice([0, 0.3, 0.8, 1.0, 1.5]), "logprobs": r.choice([None, 0, 3])}
        if r.random() < 0.3:
            body["top_k"] = r.choice([1, 5, 40])
        if r.random() < 0.3:
            body["top_p"] = r.choice([0.5, 0.9])
        if r.random() < 0.2:
            body["min_p"] = 0.05
        if r.random() < 0.3:
            body["repetition_penalty"] = 1.2
        if r.random() < 0.3:
            body.update(presence_penalty=0.5, frequency_penalty=0.3)
        if r.random() < 0.2:
            body["logit_bias"] = {"5": 4.0, "9": -100}
        if r.random() < 0.2:
            body["n"] = 3
        if r.random() < 0.2:
            body["ignore_eos"] = True
        if r.random() < 0.1:
            body.update(echo=True, prompt_logprobs=1)
        if r.random() < 0.1:
            body["stop"] = ["e", "qu"]
        if r.random() < 0.1:
            body["min_tokens"] = min(4, body["max_tokens"])
        out.append({k: v for k, v in body.items() if v is not None})
    return out


def answer(cluster, body):
    reply = cluster.post("/v1/completions", body)
    assert reply.status == 200, f"{reply.status} {reply.body} for {body}"
    return reply.json()["choices"], reply.json()["usage"]["completion_tokens"]


class PromiseA(unittest.TestCase):
    # one setting per way the same arithmetic may be cut
    SETTINGS = [
        ["--max-num-batched-tokens", 16],
        ["--max-num-batched-tokens", 64, "--threads", 1],
        ["--max-num-batched-tokens", 2048, "--threads", 2],
        ["--no-enable-prefix-caching", "--max-num-seqs", 4],
        ["--kv-cache-memory", "7M", "--max-model-len", 1024],  # small enough to preempt under load
    ]

    def test_under_load_equals_alone(self):
        bodies = requests(32, seed=7)
        with Cluster(args=["--threads", 1]) as c:
            alone = [answer(c, body) for body in bodies]
        for setting in self.SETTINGS:
            with self.subTest(setting=setting), Cluster(args=setting) as c:
                loaded = in_parallel([lambda b=b: answer(c, b) for b in bodies])
                for body, want, got in zip(bodies, alone, loaded):
                    self.assertEqual(got, want, f"{setting}: {body}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
