"""`baton flip`: a worker changes its role in place while requests run. None is refused, no answer changes, its weights and its
prefix cache stay, and its rank processes follow."""
import contextlib
import json
import os
import re
import signal
import threading
import unittest
import urllib.request

from harness import Cluster, HeldStream, in_parallel, run, texts
from test_disaggregated import LONG, wait_for_memory
from test_metrics import samples

BODIES = [{"model": "tiny-llama", "prompt": f"{i} {LONG[:200 + 70 * i]}", "max_tokens": 8 + 6 * i, "seed": i, "temperature": 0.8,
           "logprobs": 2, "ignore_eos": True} for i in range(6)]
TWO_OF_EACH = ["--prefill", 2, "--decode", 2, "--threads", 1, "--local-prefill-max-tokens", 8]


def workers(cluster):
    with urllib.request.urlopen(cluster.admin + "/workers", timeout=30) as reply:
        return json.load(reply)["workers"]


def of_role(cluster, role):
    return [w for w in workers(cluster) if w["role"] == role]


def busy(cluster):
    """One that decodes and has requests."""
    cluster.wait_until(lambda: any(w["requests"] for w in of_role(cluster, "decode")), "requests where they are decoded")
    return max(of_role(cluster, "decode"), key=lambda w: w["requests"])


def flip(cluster, worker, role, *args):
    return run(["flip", worker["address"], role, "--url", cluster.admin, *args], timeout=120)


def answers(cluster):
    return [cluster.post("/v1/completions", body).json()["choices"] for body in BODIES]


class Load:
    """Asks all bodies again and again until it is left; whatever is not the answer of before is kept."""

    def __init__(self, cluster, want, threads=3):
        self.cluster, self.want, self.wrong, self.count, self.over = cluster, want, [], 0, threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(threads)]

    def ask(self, i):
        while not self.over.is_set():
            try:
                reply = self.cluster.post("/v1/completions", BODIES[i % len(BODIES)])
                good = reply.status == 200 and reply.json()["choices"] == self.want[i % len(BODIES)]
                if not good:
                    self.wrong.append((reply.status, reply.body[:300]))
            except Exception as e:  # noqa: BLE001 - kept
                self.wrong.append(repr(e))
            self.count, i = self.count + 1, i + 1

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, kind, value, trace):
        self.over.set()
        for t in self.threads:
            t.join()


class Flips(unittest.TestCase):
    def test_both_ways_under_load_nothing_is_refused_and_no_answer_changes(self):
        with Cluster(args=TWO_OF_EACH) as c:
            want = answers(c)
            prefill, decode = of_role(c, "prefill")[0], of_role(c, "decode")[0]
            with Load(c, want) as load:
                for worker, role in ((prefill, "decode"), (decode, "prefill"), (prefill, "prefill"), (decode, "decode")):
                    done = flip(c, worker, role)
                    self.assertEqual(done.returncode, 0, done.stderr + c.log.read_text()[-2000:])
                    self.assertRegex(done.stdout, rf"{worker['name']}: serves as {role}; \d+ ms until nothing ran, "
                                                  r"\d+ ms for the change, \d+ ms in all")
                    now = next(w for w in workers(c) if w["address"] == worker["address"])
                    self.assertEqual((now["role"], now["takes_requests"], now["flip"]["stage"]), (role, True, "done"))
                    self.assertNotEqual(now["incarnation"], worker["incarnation"])
                    seen = load.count
                    c.wait_until(lambda: load.count > seen + 6, "requests after the change")
            self.assertEqual(load.wrong, [])
            self.assertEqual(answers(c), want)
            for counter in ("baton_worker_losses_total", "baton_worker_restarts_total", "baton_retries_total", "baton_migrations_total"):
                self.assertEqual(c.metric(counter), 0, f"{counter}: nothing was lost, nothing started, and no request was sent in vain")
            self.assertNotRegex(c.log.read_text(), r"\[warning\].*changes its role")
            wait_for_memory(c, "four flips")

    def test_weights_and_prefix_cache_stay(self):
        with Cluster(args=["--prefill", 1, "--decode", 1, "--threads", 1, "--local-prefill-max-tokens", 0]) as c:
            want = answers(c)
            (prefill,), loads = of_role(c, "prefill"), c.log.read_text().count("loading the model took")
            self.assertEqual(flip(c, prefill, "decode").returncode, 0)
            self.assertEqual(flip(c, prefill, "prefill").returncode, 0)
            self.assertEqual(c.log.read_text().count("loading the model took"), loads)
            hit = c.post("/v1/completions", BODIES[5]).json()
            self.assertEqual(hit["choices"], want[5])
            self.assertGreater(hit["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_the_last_that_decodes_is_refused_and_the_last_that_prefills_is_not(self):
        with Cluster(args=["--prefill", 1, "--decode", 1, "--threads", 1]) as c:
            want = answers(c)
            (decode,), (prefill,) = of_role(c, "decode"), of_role(c, "prefill")
            refused = flip(c, decode, "prefill")
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(f"worker {decode['name']} is the last that decodes", refused.stderr)
            self.assertEqual(flip(c, decode, "decode").returncode, 0, "it has that role: nothing to do")
            self.assertEqual(flip(c, prefill, "decode").returncode, 0)
            self.assertEqual(answers(c), want)
            nobody = run(["flip", "nobody", "decode", "--url", c.admin])
            self.assertIn("no worker has the name or address", nobody.stderr)
            self.assertNotEqual(run(["flip", prefill["address"], "both", "--url", c.admin]).returncode, 0)

    def test_one_that_is_killed_while_it_changes_costs_no_request(self):
        with Cluster(args=TWO_OF_EACH) as c:
            want = answers(c)
            with Load(c, want) as load, HeldStream(c, prompt=LONG) as stream:
                alone = c.post("/v1/completions", stream.body).json()["choices"]
                decode = busy(c)
                told = []
                order = threading.Thread(target=lambda: told.append(flip(c, decode, "prefill")))
                order.start()
                c.wait_until(lambda: any(w.get("flip") for w in workers(c)), "the order")
                os.kill(c.workers("decode")[int(decode["name"].removeprefix("decode-"))], signal.SIGKILL)
                order.join()
                self.assertEqual(texts(stream.rest()), [choice["text"] for choice in alone])
                c.wait_until(lambda: all(w["takes_requests"] for w in workers(c)), "that it is back")
            self.assertEqual(load.wrong, [])
            if told[0].returncode != 0:  # else it had changed before it died
                self.assertRegex(told[0].stderr, "has not become prefill: ")
            self.assertEqual(answers(c), want)

    def test_what_runs_too_long_stops_the_change_and_goes_on(self):
        with Cluster(args=TWO_OF_EACH) as c:
            c.wait_until(lambda: all(w["takes_requests"] for w in workers(c)), "both that decode: the last one is not flipped")
            with HeldStream(c, prompt=LONG) as stream:
                late = flip(c, busy(c), "prefill", "--timeout-ms", 50)
                self.assertNotEqual(late.returncode, 0)
                self.assertRegex(late.stderr, r"has not become prefill: after \d+ ms \d+ requests still run there")
                self.assertEqual(texts(stream.rest()), [choice["text"] for choice in c.post("/v1/completions", stream.body).json()["choices"]])
            c.wait_until(lambda: all(w["takes_requests"] for w in workers(c)), "that it takes requests")

    def test_a_busy_worker_is_told_to_change_when_its_requests_are_over(self):
        """Until then it takes what was sent to it before the order: the router waits, and the worker hears nothing of it."""
        with Cluster(args=TWO_OF_EACH) as c:
            want = answers(c)
            with HeldStream(c, prompt=LONG) as stream:
                worker = busy(c)
                with self.ordered(c, worker, "prefill") as told:
                    c.wait_until(lambda: self.now(c, worker).get("flip"), "the order")
                    for _ in range(3):  # hundreds of looks at who has changed
                        self.assertEqual(answers(c), want, "of the other one that decodes")
                        now = self.now(c, worker)
                        self.assertEqual((now["flip"]["stage"], now["role"], now["takes_requests"]), ("drains", "decode", False))
                        self.assertNotIn("worker: changes its role from", c.log.read_text())
                    alone = c.post("/v1/completions", stream.body).json()["choices"]
                    self.assertEqual(texts(stream.rest()), [choice["text"] for choice in alone])
            self.changed(c, worker, "prefill", told)
            self.assertEqual(answers(c), want)

    def test_a_changed_worker_has_no_request_before_a_canary_has_gone_through_it(self):
        with Cluster(args=[*TWO_OF_EACH, "--heartbeat-timeout-ms", 60000]) as c:
            want = answers(c)
            worker, other = of_role(c, "prefill")
            through = c.workers("prefill")[int(other["name"].removeprefix("prefill-"))]  # which its canary goes
            os.kill(through, signal.SIGSTOP)
            with self.ordered(c, worker, "decode") as told:
                try:
                    c.wait_until(lambda: told or "canary" in (self.now(c, worker)["detail"] or ""), "the worker in its new role")
                    now = self.now(c, worker)
                    self.assertEqual((now["role"], now["state"], now["flip"]["stage"], now["takes_requests"], told), ("decode", "unproven", "returns", False, []))
                finally:
                    os.kill(through, signal.SIGCONT)
            self.changed(c, worker, "decode", told)
            self.assertEqual(answers(c), want)

    def now(self, c, worker):
        return next(w for w in workers(c) if w["address"] == worker["address"])

    @contextlib.contextmanager
    def ordered(self, c, worker, role):
        """A `baton flip` under way; in what it gives is how it ended, once it has. Left when it has, or at once by a failure."""
        told = []
        order = threading.Thread(target=lambda: told.append(flip(c, worker, role)), daemon=True)
        order.start()
        yield told
        order.join()

    def changed(self, c, worker, role, told):
        """And no request had to go elsewhere for it."""
        (done,) = told
        self.assertEqual(done.returncode, 0, done.stderr + c.log.read_text()[-2000:])
        self.assertIn(f"{worker['name']}: serves as {role}", done.stdout)
        self.assertRegex(c.log.read_text(), rf"(?s)worker {worker['name']}: changes its role to {role}: returns.*worker {worker['name']}: proven by a canary"
                                            rf".*worker {worker['name']}: changes its role to {role}: done")
        for counter in ("baton_retries_total", "baton_migrations_total", "baton_worker_losses_total", "baton_handoff_recomputes_total"):
            self.assertEqual((counter, c.metric(counter)), (counter, 0))

    def test_its_rank_processes_follow(self):
        ranks = ["--tensor-parallel-size", 2, "--distributed-executor-backend", "mp"]
        with Cluster(args=["--prefill", 1, "--decode", 2, "--threads", 2, "--local-prefill-max-tokens", 0, *ranks]) as c:
            want = answers(c)
            worker = of_role(c, "decode")[0]
            with Load(c, want, threads=2) as load:
                for role in ("prefill", "decode"):
                    done = flip(c, worker, role)
                    self.assertEqual(done.returncode, 0, done.stderr + c.log.read_text()[-3000:])
                    in_parallel([lambda b=b: c.post("/v1/completions", b) for b in BODIES])
            self.assertEqual(load.wrong, [])
            self.assertEqual(answers(c), want)
            moved = re.findall(r'^baton_kv_rank_bytes_total\{.*rank="1".*\} (.*)$', c.get("/metrics").body, re.M)
            self.assertTrue(any(float(one) > 0 for one in moved), moved)
            wait_for_memory(c, "two flips")

    def test_any_cut_of_ranks_changes_its_role_under_load(self):
        """Stages on one side, parts in stages on the other, which trade places. At one --reduction-width all answer bit for bit what one rank answers."""
        width = ["--threads", 1, "--reduction-width", 2]
        with Cluster(args=width) as alone:
            want = answers(alone)
        cuts = ["--prefill.pipeline-parallel-size", 2, "--decode.pipeline-parallel-size", 2, "--decode.tensor-parallel-size", 2,
                "--decode.distributed-executor-backend", "mp"]
        with Cluster(args=["--prefill", 1, "--decode", 2, "--local-prefill-max-tokens", 0, *width, *cuts]) as c:
            self.assertEqual(answers(c), want)
            (stages,), parts = of_role(c, "prefill"), of_role(c, "decode")[0]
            with Load(c, want, threads=2) as load:
                for worker, role in ((parts, "prefill"), (stages, "decode"), (stages, "prefill"), (parts, "decode")):
                    done = flip(c, worker, role)
                    self.assertEqual(done.returncode, 0, done.stderr + c.log.read_text()[-3000:])
                    print(done.stdout.splitlines()[-1], flush=True)
                    self.assertRegex(done.stdout, rf"{worker['name']}: serves as {role}; .* \d+ ms in all")
                    now = next(w for w in workers(c) if w["address"] == worker["address"])
                    self.assertEqual((now["role"], now["takes_requests"]), (role, True))
                    if (worker, role) == (stages, "decode"):  # now only the parts in stages hand over, from every rank
                        sent = self.sent(c, parts)
                        self.assertEqual(len(sent), 4, sent)
                        c.wait_until(lambda: all(now > before for now, before in zip(self.sent(c, parts), sent)), f"each rank sends KV: {sent}", 60)
                    seen = load.count
                    c.wait_until(lambda: load.count > seen + 6, "requests after the change", 60)
            self.assertEqual(load.wrong, [])
            self.assertEqual(answers(c), want)
            for counter in ("baton_worker_losses_total", "baton_kv_digest_mismatches_total", "baton_handoff_recomputes_total"):
                self.assertEqual((counter, c.metric(counter)), (counter, 0))
            wait_for_memory(c, "four flips")

    def sent(self, c, worker):
        """Bytes of KV that each rank of a worker that prefills has sent."""
        return [value for have, value in samples(c, "baton_kv_rank_bytes_total") if (have["worker"], have["role"]) == (worker["name"], "prefill")]


if __name__ == "__main__":
    unittest.main()
