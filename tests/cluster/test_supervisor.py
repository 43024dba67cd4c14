"""`baton serve` keeps its processes running: a router that dies comes back where it was, a worker that has run once is started again
whatever ends it, and nobody waits for a stopped one."""
import contextlib
import os
import shutil
import signal
import tempfile
import time
import unittest

from harness import TINY, Cluster, HeldStream, run

LONG = "the quick brown fox jumps over the lazy dog " * 18
RESTART_SECONDS = 1.0  # from the router's death to the first answer; on a machine where a cluster starts in less
END_SECONDS = 5.0      # of a cluster in which nothing runs


def ask(cluster, **fields):
    return cluster.post("/v1/completions", {"model": "tiny-llama", "prompt": LONG, "max_tokens": 8, "temperature": 0, **fields})


def cached(reply):
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


class RouterDies(unittest.TestCase):
    @contextlib.contextmanager
    def cluster(self, *args):
        """It, and the seconds that its router may take to be back here."""
        begin = time.monotonic()
        with Cluster(args=args) as c:
            yield c, max(RESTART_SECONDS, time.monotonic() - begin)

    def kill_router(self, c):
        """Seconds until it answers again, and that answer."""
        pid = c.pid_of("router")
        os.kill(pid, signal.SIGKILL)
        start = time.monotonic()
        reply = [None]

        def serves():
            reply[0] = ask(c)
            return reply[0].status == 200

        c.wait_until(serves, "the router serves again", 20)
        took = time.monotonic() - start
        self.assertNotEqual(c.pid_of("router"), pid)
        return took, reply[0]

    def test_it_serves_again_on_the_same_ports_and_knows_what_is_cached_where(self):
        with self.cluster("--both", 2) as (c, most):
            before = [ask(c), ask(c)][1]
            self.assertGreater(cached(before), 100)
            workers = {pid for pid, name in c.children().items() if name == "worker"}
            index = c.metric("baton_router_index_units")
            took, after = self.kill_router(c)
            print(f"router back after {took:.2f} s of {most:.2f}")
            self.assertLess(took, most)
            self.assertEqual(after.json()["choices"], before.json()["choices"])
            self.assertEqual(cached(after), cached(before), "the router asked the worker that has the prompt")
            self.assertGreaterEqual(c.metric("baton_router_index_units"), index)
            self.assertEqual({pid for pid, name in c.children().items() if name == "worker"}, workers, "workers stay")

    def test_pairs_of_workers_are_found_again(self):
        with self.cluster("--prefill", 1, "--decode", 1) as (c, most):
            want = ask(c).json()["choices"]
            took, after = self.kill_router(c)
            self.assertLess(took, most)
            self.assertEqual(after.json()["choices"], want)

    def test_every_death_doubles_the_pause(self):
        with Cluster() as c:
            for pause in ("0.2", "0.4", "0.8"):
                self.kill_router(c)
                self.assertIn(f"router ended with 137; restart in {pause} s", c.log.read_text())

    def test_no_restart_ends_all_with_the_routers_code(self):
        with Cluster(args=["--no-restart"]) as c:
            os.kill(c.pid_of("router"), signal.SIGKILL)
            self.assertEqual(c.process.wait(20), 137)
            self.assertIn("router ended with exit code 137", c.log.read_text())

    def test_what_ran_when_it_died_is_freed_on_the_workers(self):
        with Cluster() as c:
            c.wait_until(lambda: c.metric("vllm:kv_cache_usage_perc") == 0, "the canary's blocks are free", 10)
            with HeldStream(c):
                c.wait_until(lambda: c.metric("vllm:kv_cache_usage_perc") > 0, "it runs")
                self.kill_router(c)
            c.wait_until(lambda: c.sequences() == 0, "cancelled on the worker", 10)
            c.wait_until(lambda: c.metric("vllm:kv_cache_usage_perc") == 0, "its blocks are free", 10)


class WorkerDies(unittest.TestCase):
    def test_what_ends_its_first_start_for_good_is_waited_for_later(self):
        with tempfile.TemporaryDirectory() as folder:
            model = shutil.copytree(TINY, f"{folder}/tiny-llama")
            config, away = f"{model}/config.json", f"{folder}/config.json"
            os.rename(config, away)
            never = run(["serve", model, "--port", 0, "--load-format", "dummy"])
            self.assertEqual(never.returncode, 3, never.stderr)
            os.rename(away, config)
            with Cluster(model) as c:
                want = ask(c).json()["choices"]
                os.rename(config, away)
                os.kill(c.pid_of("worker"), signal.SIGKILL)
                c.wait_until(lambda: "worker-0 ended with 3; restart in" in c.log.read_text(), "its model is not there")
                os.rename(away, config)
                c.wait_until(lambda: ask(c).status == 200, "the worker serves again", 60)
                self.assertEqual(ask(c).json()["choices"], want)


class StoppedChildren(unittest.TestCase):
    def check(self, c, pids):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        self.assertEqual(c.stop(), 0)
        self.assertLess(time.monotonic() - start, END_SECONDS)

    def test_a_stopped_worker_is_not_waited_for(self):
        for role in ("prefill", "decode"):
            with self.subTest(role), Cluster(args=["--prefill", 1, "--decode", 1]) as c:
                self.check(c, c.workers(role))

    def test_a_stopped_router_is_not_waited_for(self):
        with Cluster() as c:
            self.check(c, [c.pid_of("router")])

    def test_all_stopped(self):
        with Cluster() as c:
            self.check(c, list(c.children()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
