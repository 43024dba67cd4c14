"""A rank's end is its worker's end, and the other way round: killed, or standing still, on CPUs and on GPUs (the emulated plugin, with
an emulated NCCL), within a collective, too. The worker comes back, and no answer changes."""
import contextlib
import os
import signal
import time
import unittest

from harness import Cluster, HeldStream, in_parallel
from test_gpu_parallel import NCCL, PLUGIN, AsOneGpu
from test_gpu_parallel import WIDTH as GPU_WIDTH
from test_gpu_roles import bodies
from test_parallel import MP, PP, TP, WIDTH, AsOneRank, children_of, gone
from test_promise_a import answer


class LostRanks(AsOneRank):
    def test_a_killed_rank_ends_its_worker_which_comes_back(self):
        with Cluster(args=[*WIDTH, *MP, f"--{TP}", 4]) as c:
            worker = c.workers("both")[0]
            ranks = children_of(worker)
            self.assertEqual(len(ranks), 3)
            os.kill(ranks[-1], signal.SIGKILL)  # the others may end first, because it is lost
            gone([worker])
            self.assertIn(f"(process {ranks[-1]}) was ended by signal 9", c.log.read_text())
            c.wait_until(lambda: c.post("/v1/completions", self.bodies[0]).status == 200, "a new worker serves")
            self.assertEqual(answer(c, self.bodies[0]), self.alone[0])
            self.assertNotEqual(c.workers("both"), [worker])

    def test_a_rank_killed_under_load_loses_no_answer(self):
        bodies = [{**b, "max_tokens": max(b.get("max_tokens", 8), 8)} for b in self.bodies]
        with Cluster(args=WIDTH) as c:
            want = [answer(c, body) for body in bodies]
        for workers in (1, 2):  # alone, its requests wait for the one that follows it
            with self.subTest(workers=workers):
                self.kill_a_rank_under_load(workers, bodies, want)

    def kill_a_rank_under_load(self, workers, bodies, want):
        args = [*WIDTH, *MP, f"--{TP}", 2, "--both", workers]
        with Cluster(args=args) as c:
            victim = children_of(c.workers("both")[0])[0]

            def kill_while_busy():
                with HeldStream(c) as stream:
                    os.kill(victim, signal.SIGKILL)
                    self.assertEqual(stream.rest()[-1], "[DONE]")

            *got, _ = in_parallel([*(lambda b=b: answer(c, b) for b in bodies), kill_while_busy])
            for body, expected, have in zip(bodies, want, got):
                self.assertEqual(have, expected, f"a rank killed: {body}")
            said = f"(process {victim}) was ended by signal 9"
            c.wait_until(lambda: said in c.log.read_text(), f"the log says who was killed: {said}", 10)

    def test_a_stopped_rank_ends_its_worker_too(self):
        with Cluster(args=[*WIDTH, *MP, f"--{TP}", 2, "--rank-timeout-ms", 1000, "--failover-wait-ms", 0]) as c:
            worker = c.workers("both")[0]
            rank = children_of(worker)[0]
            os.kill(rank, signal.SIGSTOP)
            self.assertIn(c.post("/v1/completions", self.bodies[0]).status, (500, 502, 503, 504))
            gone([worker, rank], seconds=20)
            self.assertIn("rank 1 has not answered for 1000 ms", c.log.read_text())
            c.wait_until(lambda: c.post("/v1/completions", self.bodies[0]).status == 200, "a new worker serves")

    def test_a_killed_worker_ends_its_ranks(self):
        with Cluster(args=[*WIDTH, *MP, f"--{TP}", 2, f"--{PP}", 2]) as c:
            worker = c.workers("both")[0]
            ranks = children_of(worker)
            self.assertEqual(len(ranks), 3)
            os.kill(worker, signal.SIGKILL)
            gone(ranks)

    def test_a_stop_leaves_no_rank_running(self):
        with Cluster(args=[*WIDTH, *MP, f"--{TP}", 4]) as c:
            ranks = children_of(c.workers("both")[0])
            self.assertEqual(c.stop(), 0)
            gone(ranks)


@unittest.skipUnless(PLUGIN, "no emulated plugin was built")
class LostGpuRanks(AsOneGpu):
    def test_a_killed_rank_ends_its_worker_which_comes_back(self):
        with Cluster(args=[*GPU_WIDTH, *MP, f"--{TP}", 2]) as c:
            worker = c.workers("both")[0]
            rank = children_of(worker)[0]
            start = time.monotonic()
            os.kill(rank, signal.SIGKILL)
            gone([worker], seconds=5)
            self.assertLess(time.monotonic() - start, 5)
            self.assertIn(f"(process {rank}) was ended by signal 9", c.log.read_text())
            c.wait_until(lambda: c.post("/v1/completions", bodies()[0]).status == 200, "a new worker serves")
            self.assertEqual(answer(c, bodies()[0]), self.alone[0])

    def test_a_process_that_stands_still_while_the_others_wait_for_its_part_of_a_sum_ends_the_worker(self):
        with Cluster(args=[*GPU_WIDTH, *MP, f"--{TP}", 2, "--rank-timeout-ms", 1000, "--failover-wait-ms", 0, "--canaries=false"]) as c:
            worker = c.workers("both")[0]
            rank = children_of(worker)[0]
            os.kill(rank, signal.SIGSTOP)
            try:
                self.assertIn(c.post("/v1/completions", bodies()[0]).status, (500, 502, 503, 504))
                gone([worker], seconds=20)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGCONT)
            self.assertIn("1000 ms", c.log.read_text())

    def test_a_rank_that_stands_still_within_a_collective_ends_its_worker(self):
        for backend in ([], MP):  # in a step of a request: the start has some sixty calls, and a canary would come before it
            with self.subTest(backend=backend), Cluster(
                    args=[*GPU_WIDTH, *backend, f"--{TP}", 2, *NCCL, "--rank-timeout-ms", 1000, "--failover-wait-ms", 0, "--canaries=false"],
                    env={"BATON_EMULATED_NCCL_HANG": "1:80"}) as c:
                worker = c.workers("both")[0]
                self.assertIn(c.post("/v1/completions", bodies()[0]).status, (500, 502, 503, 504))
                gone([worker], seconds=20)
                self.assertIn("a step has not ended for 1000 ms: a rank does not answer within a collective", c.log.read_text())

    def test_nccl_that_fails_on_any_rank_ends_its_worker_whose_requests_move(self):
        for backend in ([], MP):
            for rank in (0, 1):
                with self.subTest(backend=backend, rank=rank), Cluster(
                        args=[*GPU_WIDTH, *backend, f"--{TP}", 2, *NCCL, "--failover-wait-ms", 0, "--canaries=false"],
                        env={"BATON_EMULATED_NCCL_FAIL": f"{rank}:80"}) as c:
                    worker = c.workers("both")[0]
                    self.assertEqual(c.post("/v1/completions", bodies()[0]).status, 503, "it would move, and there is no other worker")
                    gone([worker], seconds=20)
                    c.wait_until(lambda: "worker-0 ended with 7" in c.log.read_text(), "the group is lost")
                    self.assertRegex(c.log.read_text(), r"(?m)^baton: rank \d of 2, NCCL: (internal error|another rank has failed)")


if __name__ == "__main__":
    unittest.main(verbosity=2)
