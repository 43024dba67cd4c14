"""Tensor and pipeline parallelism inside real workers: at one --reduction-width, whatever the prefill and the decode side are
cut into answers bit for bit what one rank answers. How ranks end is in test_lost_ranks.py."""
import pathlib
import time
import unittest

from harness import TINY, Cluster, in_parallel, run, state
from test_disaggregated import field_requests, wait_for_memory
from test_promise_a import answer, requests

WIDTH = ["--threads", 1, "--reduction-width", 4]
PAIR = [*WIDTH, "--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 0]
TP, PP, MP = "tensor-parallel-size", "pipeline-parallel-size", ["--distributed-executor-backend", "mp"]


def children_of(pid):
    out = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                out.append(int(entry.name))
    return sorted(out)


def gone(pids, seconds=10):
    deadline = time.monotonic() + seconds
    while left := [p for p in pids if state(p) not in ("gone", "Z")]:
        assert time.monotonic() < deadline, f"still there after {seconds} s: {left}"
        time.sleep(0.02)


class AsOneRank(unittest.TestCase):
    """Bodies, and what a worker of one rank answers to them."""

    @classmethod
    def setUpClass(cls):
        cls.bodies = field_requests() + requests(12, seed=23)
        with Cluster(args=WIDTH) as c:
            cls.alone = [answer(c, body) for body in cls.bodies]


class Parallel(AsOneRank):
    def check(self, args, handoff=False):
        with Cluster(args=args) as c:
            for round_name in ("cold", "with prefix hits"):
                got = in_parallel([lambda b=b: answer(c, b) for b in self.bodies])
                for body, want, have in zip(self.bodies, self.alone, got):
                    self.assertEqual(have, want, f"{args}, {round_name}: {body}")
            if handoff:
                self.assertGreater(c.metric("baton_kv_transfer_bytes_total"), 0)
                self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)
                self.assertEqual(c.metric("baton_handoff_recomputes_total"), 0)
                wait_for_memory(c, args)

    def test_one_worker_of_two_and_of_four_ranks(self):
        for ranks in ([f"--{TP}", 2], [f"--{TP}", 4], [f"--{PP}", 2], [f"--{TP}", 2, f"--{PP}", 2]):
            with self.subTest(ranks=ranks):
                self.check([*WIDTH, *ranks])

    def test_one_worker_whose_ranks_are_processes(self):
        self.check([*WIDTH, *MP, f"--{TP}", 2, f"--{PP}", 2])

    def test_any_cut_of_prefill_to_any_of_decode(self):
        for prefill, decode in (((TP, 1), (TP, 2)), ((TP, 2), (TP, 1)), ((TP, 2), (TP, 4)), ((PP, 1), (PP, 2)), ((PP, 2), (PP, 1))):
            with self.subTest(prefill=prefill, decode=decode):
                self.check([*PAIR, f"--prefill.{prefill[0]}", prefill[1], f"--decode.{decode[0]}", decode[1]], handoff=True)

    def test_ranks_as_processes_with_other_blocks_and_chunks_over_tcp(self):
        self.check([*PAIR, *MP, "--transport", "tcp", f"--prefill.{TP}", 2, f"--decode.{TP}", 4, f"--decode.{PP}", 2, "--prefill.block-size", 64,
                    "--prefill.max-num-batched-tokens", 48], handoff=True)

    def test_sides_with_other_sums_serve_together(self):
        with Cluster(args=["--threads", 1, "--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 0, f"--prefill.{TP}", 2]) as c:
            for body, (choices, *_) in zip(self.bodies[:12], self.alone):
                have, *_ = answer(c, body)
                self.assertEqual([x["index"] for x in have], [x["index"] for x in choices])
            self.assertGreater(c.metric("baton_kv_transfer_bytes_total"), 0)
            self.assertEqual(c.metric("baton_kv_digest_mismatches_total"), 0)

    def test_what_cannot_be_cut_is_refused_with_both_numbers(self):
        for flags, code, words in (([f"--{TP}", 16], 3, "--tensor-parallel-size 16 does not divide 8 attention heads"),
                                   ([f"--{TP}", 3], 2, "--tensor-parallel-size 3: must be a power of two"),
                                   ([f"--{PP}", 4], 3, "--pipeline-parallel-size 4 is not in 1 … 3")):
            with self.subTest(flags=flags):
                done = run(["worker", "--model", TINY, "--load-format", "dummy", *flags])
                self.assertEqual(done.returncode, code)
                self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
