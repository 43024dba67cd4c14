"""Promise A over the API: 32 concurrent requests with mixed sampling fields answer what each answers alone, bit for bit."""
import random
import unittest

from harness import Cluster, in_parallel

PROMPTS = ["one two three", "The quick brown fox", "a", "numbers 123 456", "x" * 300, "shared prefix " * 40 + "tail A",
           "shared prefix " * 40 + "tail B"]

# Memory for little more than one sequence of full length, whatever the KV's type on this machine.
TIGHT = ["--kv-cache-memory", "4M", "--max-model-len", 576]


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
        if r.random() < 0.2:
            body = as_chat(body)
        out.append({k: v for k, v in body.items() if v is not None})
    return out


def as_chat(body):
    """The same request as a chat."""
    chat = {k: v for k, v in body.items() if k not in ("prompt", "logprobs", "echo")}
    chat["messages"] = [{"role": "user", "content": body["prompt"]}]
    if body["logprobs"] is not None:
        chat.update(logprobs=True, top_logprobs=body["logprobs"])
    return chat


def path_of(body):
    return "/v1/chat/completions" if "messages" in body else "/v1/completions"


def answer(cluster, body):
    reply = cluster.post(path_of(body), body)
    assert reply.status == 200, f"{reply.status} {reply.body} for {body}"
    return bits_of(reply.json())


def bits_of(whole):
    """What must be the same bits: texts, logprobs of answer and prompt, reasons, tokens counted."""
    return whole["choices"], whole.get("prompt_logprobs"), whole["usage"]["completion_tokens"]


class PromiseA(unittest.TestCase):
    # One setting per way the same arithmetic may be cut.
    SETTINGS = [
        ["--max-num-batched-tokens", 16, "--threads", 2],
        ["--max-num-batched-tokens", 17, "--threads", 1],
        ["--max-num-batched-tokens", 64, "--threads", 1],
        ["--max-num-batched-tokens", 333, "--threads", 2, "--block-size", 64],
        ["--max-num-batched-tokens", 2048, "--threads", 2, "--async-scheduling"],
        ["--no-enable-prefix-caching", "--max-num-seqs", 4],
    ]

    def check(self, setting, bodies, alone):
        """Twice, so that the second time the prompts are known. The cluster's prefix hits and preemptions."""
        with Cluster(args=setting) as c:
            for prompts in ("new", "known"):
                loaded = in_parallel([lambda b=b: answer(c, b) for b in bodies])
                for body, want, got in zip(bodies, alone, loaded):
                    self.assertEqual(got, want, f"{setting}, {prompts} prompts: {body}")
            c.wait_until(lambda: c.metric("vllm:num_requests_running") == 0, "the counters are reported")
            return c.metric("vllm:prefix_cache_hits_total"), c.metric("vllm:num_preemptions_total")

    def alone(self, bodies):
        with Cluster(args=["--threads", 1]) as c:
            return [answer(c, body) for body in bodies]

    def test_under_load_equals_alone(self):
        bodies = requests(32, seed=7)
        alone = self.alone(bodies)
        for setting in self.SETTINGS:
            hits, _ = self.check(setting, bodies, alone)
            self.assertEqual(hits > 0, "--no-enable-prefix-caching" not in setting, f"{setting}: {hits} tokens found again")

    def test_preempted_equals_alone(self):
        bodies = [{**body, "max_tokens": body["max_tokens"] + 100, "ignore_eos": True} for body in requests(32, seed=8)]
        alone = self.alone(bodies)
        for chunk, threads in ((16, 2), (2048, 1)):
            setting = ["--max-num-batched-tokens", chunk, "--threads", threads, *TIGHT]
            _, preemptions = self.check(setting, bodies, alone)
            self.assertGreater(preemptions, 0, f"{setting}: the memory was not small enough to say anything")


if __name__ == "__main__":
    unittest.main(verbosity=2)
