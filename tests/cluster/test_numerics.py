"""An answer says `numerics: mixed` when workers of different numerics made it, and only then; and what one of other numerics
handed over changes no later answer."""
import os
import pathlib
import shutil
import tempfile
import unittest

from harness import Cluster
from test_promise_a import answer, bits_of
from test_two_routers import Router, Worker

LONG = "the quick brown fox jumps over the lazy dog " * 18
PAIR = ["--prefill", 1, "--decode", 1, "--threads", 1]


def body(prompt, **more):
    return {"model": "tiny-llama", "prompt": prompt, "max_tokens": 16, "temperature": 0.9, "seed": 3, "logprobs": 1, **more}


class Numerics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="baton-numerics-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        cls.key = pathlib.Path(cls.folder, "key")
        cls.key.write_text(os.urandom(32).hex() + "\n")

    def test_a_clean_pair_never_says_mixed_whatever_its_caches_hold(self):
        for handoff in ([], ["--local-prefill-max-tokens", 8]):
            with self.subTest(handoff=handoff), Cluster(args=[*PAIR, *handoff]) as c:
                for number in range(6):
                    for prompt in (LONG, LONG + f"and tail {number}", LONG[:300]):
                        reply = c.post("/v1/completions", body(prompt, n=1 + number % 2)).json()
                        self.assertNotIn("numerics", reply)
                self.assertGreater(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "caches were hit")

    def worker(self, role, name, *args):
        folder = pathlib.Path(self.folder, name)
        folder.mkdir()
        worker = Worker(role, folder, self.key)
        worker.command += [str(a) for a in args]
        return worker

    def test_workers_of_two_numerics_come_and_go_over_one_decode_workers_cache(self):
        prompts = [LONG, LONG + "and more", LONG * 2]
        # The same on every CPU: some have no bf16 to compute with, and keep KV in float32 by default.
        plain = ["--dtype", "float32"]
        with Cluster(args=["--threads", 1, *plain]) as c:
            alone = [answer(c, body(prompt, n=n)) for prompt in prompts for n in (1, 2)]
        handoff = ["--local-prefill-max-tokens", 8]
        with self.worker("decode", "d", *plain) as d, self.worker("prefill", "p1", *plain) as p1, \
                self.worker("prefill", "p2", *plain, "--kv-cache-dtype", "bfloat16") as p2:
            for turn in range(3):
                with Router([d.address, p2.address], self.key, handoff) as other:  # it knows nothing of p1
                    replies = [other.post("/v1/completions", body(prompt, n=n)).json() for prompt in prompts for n in (1, 2)]
                for reply, want in zip(replies, alone):
                    if "numerics" not in reply:  # by then the decode worker has all of the prompt itself
                        self.assertTrue(turn > 0 and bits_of(reply) == want, f"turn {turn}: {reply}")
                with Router([d.address, p1.address], self.key, handoff) as clean:  # it knows nothing of p2
                    replies = [clean.post("/v1/completions", body(prompt, n=n)).json() for prompt in prompts for n in (1, 2)]
                for reply, want in zip(replies, alone):
                    self.assertNotIn("numerics", reply, f"turn {turn}")
                    self.assertEqual(bits_of(reply), want, f"turn {turn}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
