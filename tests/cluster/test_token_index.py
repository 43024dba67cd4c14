"""A sample of bench/soak/token_indices.py: a worker dies or stops, or the router stands still, at chosen tokens of running
streams of every kind, with default flags. The seed is printed; SEED=n replays it."""
import os
import random
import unittest

from harness import Cluster
from token_index import FAULTS, check

ARGS = ["--prefill", 2, "--decode", 2, "--threads", 1, "--local-prefill-max-tokens", 8]
PROMPT = "the quick brown fox jumps over the lazy dog " * 6
TOKENS = 64


class TokenIndex(unittest.TestCase):
    def test_nobody_sees_a_fault_at_a_token(self):
        seed = int(os.environ.get("SEED", random.randrange(10**6)))
        print(f"\n    SEED={seed}", flush=True)
        r = random.Random(seed)
        indices = [0, 1, *sorted(r.sample(range(2, TOKENS), 6))]
        faults = [FAULTS[i % len(FAULTS)] for i in range(len(indices))]
        r.shuffle(faults)
        with Cluster(args=ARGS) as c:
            for index, fault in zip(indices, faults):
                broken, gap = check(c, "tiny-llama", TOKENS, PROMPT, index, fault, seed + index)
                self.assertFalse(broken, f"SEED={seed}: {broken}")
                print(f"    {fault} at token {index}: longest gap {gap:.2f} s", flush=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
