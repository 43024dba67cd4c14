"""Ranks that cannot start: a damaged checkpoint, or another one, that one machine or one rank alone reads ends every process of the
worker at once with the exit code of its class and a line that names the rank and the file; a rank that stands still, in a collective or
as a whole process, ends the others when nothing has moved for --rank-start-timeout-ms."""
import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from checkpoint import SHARDS, cut, make_checkpoint, put
from harness import BATON, START_SECONDS, TINY, run
from test_gpu_nodes import APART, FLAGS
from test_gpu_roles import PLUGIN, SMALL
from test_nodes import LOST, Group
from test_nodes import PP as PP_FLAG
from test_nodes import TP as TP_FLAG
from test_parallel import MP, children_of, gone

NAN = float("nan")
CUT = [TP_FLAG, 2, PP_FLAG, 2]  # rank 3 has the last half of the last layer's MLP
LAST_NUMBER = ("model.layers.2.mlp.gate_proj.weight", 255 * 128 + 7)
WITHIN = 60  # seconds, on a busy machine: far from every limit of a start
GPU = FLAGS[-4:]


class BadCheckpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-checkpoints-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.good, cls.other = (make_checkpoint(cls.folder / str(seed), seed) for seed in (1, 2))

    def damages(self):
        """What is done to a copy, the exit code, and what the last lines say where the machine's first rank is `first`."""
        def swap(copy):
            shutil.rmtree(copy)
            shutil.copytree(self.other, copy)
        return {"another checkpoint": (swap, 2, "has model digest"),
                "a shard cut off": (lambda copy: cut(copy / SHARDS[1], 0.9), 3, f'{SHARDS[1]}: "lm_head.weight" spans bytes'),
                "no shard": (lambda copy: (copy / SHARDS[1]).unlink(), 3, f"{SHARDS[1]}: cannot open"),
                "no config": (lambda copy: (copy / "config.json").unlink(), 3, "config.json: cannot open")}

    def on_two_machines(self, harm, machine, gpu, code, words):
        copies = [shutil.copytree(self.good, self.folder / f"machine-{index}") for index in range(2)]
        self.addCleanup(lambda: [shutil.rmtree(copy, ignore_errors=True) for copy in copies])
        harm(copies[machine])
        with Group(2, *CUT, *(FLAGS if gpu else SMALL[2:])) as group:
            group.env = APART if gpu else {}
            for index, copy in enumerate(copies):
                group.start(index, "--load-format", "auto", "--model", copy, *(["--device", f"cuda:{2 * index}"] if gpu else []))
            for node in group.nodes:
                self.assertEqual(node.process.wait(WITHIN), code, node.said())
                last = node.said().splitlines()[-1]
                self.assertRegex(last, r"^baton: (rank \d|/)")
                self.assertIn(words, last)
                self.assertNotRegex(last, "told by|rank .: rank .:")
        for copy in copies:
            shutil.rmtree(copy, ignore_errors=True)

    def test_what_one_machine_cannot_read_ends_all_with_one_code_and_names_the_rank(self):
        for gpu in (False, True) if PLUGIN else (False,):
            for machine in (1, 0):
                for what, (harm, code, words) in self.damages().items():
                    with self.subTest(what=what, machine=machine, gpu=gpu):
                        self.on_two_machines(harm, machine, gpu, code, words)

    def test_a_number_that_one_rank_alone_reads_ends_all_with_its_tensor(self):
        harm, words = lambda copy: put(copy, *LAST_NUMBER, NAN), "rank 3: "
        for gpu in (False, True) if PLUGIN else (False,):
            with self.subTest(gpu=gpu):
                self.on_two_machines(harm, 1, gpu, 3, f"{LAST_NUMBER[0]}[255, 7] is nan")
        copy = shutil.copytree(self.good, self.folder / "copy")
        harm(copy)
        for device in ([], GPU) if PLUGIN else ([],):
            for backend in ([], MP):
                with self.subTest(device=device, backend=backend):
                    done = run(["worker", "--model", copy, "--port", 0, *SMALL, *device, *CUT, *backend], timeout=WITHIN)
                    self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
                    last = done.stderr.splitlines()[-1]
                    self.assertTrue(last.startswith(f"baton: {words}{copy / SHARDS[1]}: {LAST_NUMBER[0]}[255, 7] is nan"), last)

    def test_too_little_memory_for_kv_ends_every_machine_with_its_code(self):
        with Group(2, *CUT, "--kv-cache-memory", "4K") as group:
            for index in range(2):
                group.start(index)
            for node in group.nodes:
                self.assertEqual(node.process.wait(WITHIN), 5, node.said())
                self.assertIn("--kv-cache-memory", node.said().splitlines()[-1])


class Held:
    """A file whose opening waits, as on a file server that does not answer: a lease of this process on it."""

    def __init__(self, path):
        signal.signal(signal.SIGIO, signal.SIG_IGN)  # someone waits
        self.file = os.open(path, os.O_RDONLY)
        fcntl.fcntl(self.file, fcntl.F_SETLEASE, fcntl.F_WRLCK)

    def close(self):
        if self.file >= 0:
            os.close(self.file)
        self.file = -1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@unittest.skipUnless(PLUGIN, "no emulated plugin was built")
class StandsStill(unittest.TestCase):
    LIMIT = ["--rank-start-timeout-ms", 1500]
    SAID = r"(?m)^baton: the start has stood still for 1500 ms \(--rank-start-timeout-ms\): "

    def test_a_rank_that_does_not_answer_in_the_first_collective_ends_the_worker(self):
        flags = ["worker", "--model", TINY, "--load-format", "dummy", "--port", 0, *SMALL, *GPU, TP_FLAG, 2, "--one-shot-sum-bytes", 0, *self.LIMIT]
        for backend in ([], MP):
            for rank in (1, 0):
                with self.subTest(backend=backend, rank=rank):
                    done = run([*flags, *backend], env={"BATON_EMULATED_NCCL_HANG": f"{rank}:1"}, timeout=WITHIN)
                    self.assertEqual(done.returncode, LOST, done.stdout + done.stderr)
                    self.assertRegex(done.stderr, self.SAID + "rank 0 at warm-up 0 %")

    def test_a_rank_whose_first_collective_fails_ends_the_worker(self):
        flags = ["worker", "--model", TINY, "--load-format", "dummy", "--port", 0, *SMALL, *GPU, TP_FLAG, 2, "--one-shot-sum-bytes", 0]
        for backend in ([], MP):
            for rank in (1, 0):
                with self.subTest(backend=backend, rank=rank):
                    done = run([*flags, *backend], env={"BATON_EMULATED_NCCL_FAIL": f"{rank}:1"}, timeout=WITHIN)
                    self.assertEqual(done.returncode, LOST, done.stdout + done.stderr)
                    self.assertRegex(done.stderr, r"(?m)^baton: rank \d of 2, NCCL: (internal error|another rank has failed)")

    def test_a_rank_process_that_stands_still_while_it_starts_ends_the_worker_which_names_it(self):
        with self.worker(*MP) as (worker, log, held):
            self.wait_for(log, "worker: gRPC at")  # the ranks have met; they open the plugin
            rank = children_of(worker.pid)[0]
            os.kill(rank, signal.SIGSTOP)
            held.close()
            self.assertEqual(worker.wait(WITHIN), LOST, log.read_text())
            self.assertRegex(log.read_text(), self.SAID + "rank 1 does not answer$")
            gone([rank])

    def test_a_file_that_does_not_answer_ends_the_worker(self):
        for backend in ([], MP):
            with self.subTest(backend=backend), self.worker(*backend) as (worker, log, _):
                self.assertEqual(worker.wait(WITHIN), LOST, log.read_text())
                self.assertRegex(log.read_text(), self.SAID)

    def test_a_file_that_does_not_answer_on_one_machine_ends_all_with_its_rank(self):
        with self.plugin() as plugin, Held(plugin), Group(2, TP_FLAG, 2, *FLAGS, *self.LIMIT) as group:
            group.env = APART
            group.start(0)
            group.start(1, "--device-plugin", plugin, "--device", "cuda:1")
            for node in group.nodes:
                self.assertEqual(node.process.wait(WITHIN), LOST, node.said())
                self.assertIn("rank 1 does not answer", node.said().splitlines()[-1])

    @contextlib.contextmanager
    def plugin(self):
        with tempfile.TemporaryDirectory(prefix="baton-slow-") as folder:
            yield pathlib.Path(shutil.copy(PLUGIN, folder))

    @contextlib.contextmanager
    def worker(self, *args):
        """Of two ranks, whose plugin does not open; its log."""
        with self.plugin() as plugin, Held(plugin) as held:
            log = plugin.parent / "log"
            command = [BATON, "worker", "--model", TINY, "--load-format", "dummy", "--port", 0, *SMALL, "--device", "cuda", "--device-plugin", plugin,
                       TP_FLAG, 2, *self.LIMIT, *args]
            with open(log, "w") as out:
                worker = subprocess.Popen([*map(str, command)], stdout=out, stderr=out)
            try:
                yield worker, log, held
            finally:
                worker.kill()
                worker.wait()

    def wait_for(self, log, words):
        deadline = time.monotonic() + START_SECONDS
        while words not in log.read_text():
            self.assertLess(time.monotonic(), deadline, log.read_text())
            time.sleep(0.02)


if __name__ == "__main__":
    unittest.main()
