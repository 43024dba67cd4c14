"""A worker whose GPUs (the emulated plugin, with an emulated NCCL) are on two machines (here: processes on addresses of their own,
whose GPUs do not reach each other's memory): 1, 2 and 4 GPUs answer the same bytes, in parts and in stages, and all machines end with
exit code 7 within 5 seconds when one, or a rank process of one, is lost."""
import os
import signal
import time
import unittest

from harness import STOP_SECONDS, Cluster, HeldStream, in_parallel
from test_gpu_roles import GPU, PLUGIN, SMALL, bodies
from test_nodes import PP, TP, WIDTH, Group
from test_parallel import MP, children_of
from test_promise_a import answer

FLAGS = [*SMALL[2:], *(part for name, value in GPU.items() for part in (f"--{name}", value))]
APART = {"BATON_EMULATED_PEERS": "no-ipc"}


class GpuGroup(Group):
    """Two machines with as many GPUs each."""

    def __init__(self, gpus, *args, cut=None):
        super().__init__(2, *(cut or (TP, 2 * gpus)), *FLAGS, *args)
        self.gpus, self.env = gpus, APART

    def start_all(self):
        for index in range(self.count):
            self.start(index, "--device", f"cuda:{index * self.gpus}")
        return [node.await_ready() for node in self.nodes][0]


@unittest.skipUnless(PLUGIN, "no emulated plugin was built")
class GpuNodes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Cluster(args=[*WIDTH, *FLAGS]) as c:
            cls.alone = [answer(c, body) for body in bodies()]

    def test_gpus_of_two_machines_answer_what_one_gpu_answers_and_end_together(self):
        for gpus, args in ((1, []), (2, []), (2, MP)):
            with self.subTest(gpus=gpus, args=args), GpuGroup(gpus, *args) as group:
                with group.router(group.start_all()) as c:
                    for body, want, have in zip(bodies(), self.alone, in_parallel([lambda b=b: answer(c, b) for b in bodies()])):
                        self.assertEqual(have, want, body)
                self.assertIn("sums over GPUs by NCCL, since those over the GPUs' own links cannot be: rank 0: memory of rank 1: CUDA IPC is not supported"
                              if gpus == 1 else "sums over GPUs by NCCL", group.nodes[0].said())
                for node in reversed(group.nodes):
                    node.process.send_signal(signal.SIGTERM)
                self.assertEqual([node.process.wait(STOP_SECONDS) for node in group.nodes], [0, 0], group.nodes[1].said())

    def test_stages_of_two_machines_answer_with_steps_ahead_what_one_gpu_answers_step_by_step(self):
        """Long answers of equal length: nearly all of their decodes are given while the step before runs. Beside a stream that is left."""
        long = [{**body, "max_tokens": 24, "ignore_eos": True} for body in bodies()[:2]]
        with Cluster(args=[*WIDTH, *FLAGS, "--no-async-scheduling"]) as c:
            alone = [answer(c, body) for body in long]
        for gpus, cut, args in ((1, (PP, 2), []), (1, (PP, 2), ["--enforce-eager"]), (2, (TP, 2, PP, 2), MP)):
            with self.subTest(cut=cut, args=args), GpuGroup(gpus, "--async-scheduling", *args, cut=cut) as group:
                with group.router(group.start_all()) as c, HeldStream(c, n=1, max_tokens=300) as left:
                    for what in ("beside a stream", "once it is left"):
                        got = in_parallel([lambda b=b: answer(c, b) for b in long])
                        for body, want, have in zip(long, alone, got):
                            self.assertEqual(have, want, f"{what}: {body}")
                        left.socket.close()

    def test_a_machine_that_is_killed_while_a_request_runs_ends_the_other(self):
        for victim in (1, 0):
            with self.subTest(victim=victim), GpuGroup(1) as group:
                with group.router(group.start_all()) as c, HeldStream(c, max_tokens=500):
                    since = time.monotonic()
                    group.nodes[victim].process.kill()
                    group.ends_lost([group.nodes[1 - victim]], since, f"rank {victim} is gone")

    def test_a_gpu_that_stands_still_within_a_collective_ends_both_machines(self):
        with GpuGroup(1, "--one-shot-sum-bytes", 0, "--rank-timeout-ms", 1000) as group:
            group.env = {**APART, "BATON_EMULATED_NCCL_HANG": "1:90"}
            with group.router(group.start_all(), args=["--failover-wait-ms", 0, "--canaries=false"]) as c:
                self.assertIn(c.post("/v1/completions", bodies()[0]).status, (500, 502, 503, 504))
                group.nodes[0].process.wait(STOP_SECONDS)
                group.ends_lost(group.nodes, time.monotonic(), "a step has not ended for 1000 ms: a rank does not answer within a collective")

    def test_a_rank_process_that_is_killed_ends_both_machines(self):
        with GpuGroup(2, *MP) as group:
            group.start_all()
            victim = children_of(group.nodes[1].process.pid)[0]
            since = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            group.ends_lost(group.nodes, since, "rank 3")


if __name__ == "__main__":
    unittest.main()
