"""A storm of `baton drain`, `--undo` and `baton flip` while requests run, workers die and the router starts again: no request is refused,
no answer changes, and what operators see is what they ordered last."""
import http.client
import json
import os
import random
import signal
import unittest
import urllib.error
import urllib.request

from harness import Cluster, run
from test_flip import Load, answers, workers

CLUSTER = ["--prefill", 2, "--decode", 3, "--threads", 1, "--local-prefill-max-tokens", 8]
DRAINED = "an operator drains it (baton drain)"
CHANGES = "it changes its role (baton flip)"
# What an order may be refused for.
REASONS = ("is the last that decodes", "it changes its role already, to ", "it is not connected", "it changes its role now, and takes requests then")
ORDERS, BETWEEN_LOOKS = 60, 6


class Operator:
    """Orders by chance, and what they must have come to."""

    def __init__(self, cluster, seed):
        self.cluster, self.dice = cluster, random.Random(seed)
        self.drained, self.counts, self.said = set(), {}, []
        self.restarts_due = 0  # of whom the router must have heard before another worker may die

    def post(self, path, **order):
        body = json.dumps(order).encode()
        request = urllib.request.Request(self.cluster.admin + path, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                now, status = json.load(reply), reply.status
        except urllib.error.HTTPError as e:
            now, status = json.load(e)["error"]["message"], e.code
        self.said.append((path, order, status, now if status != 200 else (now["role"], now["state"], now.get("detail"))))
        done = status == 200
        assert done or (status == 409 and any(reason in now for reason in REASONS)), self.said[-1]
        kind = path.rsplit("/", 1)[1] + ("" if done else ", refused")
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return now if done else None

    def order(self):
        worker = self.dice.choice(workers(self.cluster))
        address = worker["address"]
        what = self.dice.choices(("drain", "resume", "flip", "kill"), (4, 4, 4, 1))[0]
        if what == "kill":
            if not self.may_lose_one():
                return
            self.restarts_due = sum(w["restarts"] for w in workers(self.cluster)) + 1
            pids = self.cluster.workers("prefill") + self.cluster.workers("decode")
            os.kill(self.dice.choice(pids), signal.SIGKILL)
        elif what == "flip":
            self.post("/workers/flip", worker=address, role=self.dice.choice(("prefill", "decode")), timeout_ms=self.dice.choice((0, 0, 50)))
        elif self.post(f"/workers/{what}", worker=address) is not None:
            (self.drained.add if what == "drain" else self.drained.discard)(address)
            now = next(w for w in workers(self.cluster) if w["address"] == address)
            assert (now["detail"] == DRAINED) == (what == "drain") or now["state"] not in ("ready", "draining"), (what, now, self.said)

    def may_lose_one(self):
        """Whoever dies leaves one behind that decodes: a second death before the first is mended is more than is promised."""
        now = workers(self.cluster)
        decode = [w for w in now if w["role"] == "decode" and w["takes_requests"]]
        mended = sum(w["restarts"] for w in now) >= self.restarts_due  # a death is seen some milliseconds later
        return len(decode) >= 2 and mended and all(w["state"] in ("ready", "draining") for w in now)

    def look(self):
        """Every change of a role comes to an end, and then whoever is drained was so by the last order."""
        def settled():
            now = workers(self.cluster)
            return (all("flip" not in w or w["flip"]["stage"] in ("done", "failed") for w in now)
                    and all(w["takes_requests"] or (w["address"] in self.drained and w["detail"] == DRAINED) for w in now))
        self.cluster.wait_until(settled, f"what was ordered last; drained are {self.drained}; said {self.said[-12:]}", seconds=60)
        for w in workers(self.cluster):
            assert (w["detail"] == DRAINED) == (w["address"] in self.drained), (w, self.said)
            flip = w.get("flip")
            # One that was killed since has the role of its command line.
            assert not flip or flip["stage"] != "done" or w["role"] == flip["to"] or w["restarts"] > 0, w


class Orders(unittest.TestCase):
    def test_a_storm_of_orders_is_obeyed_and_no_client_sees_it(self):
        for seed in (1, 2):
            with self.subTest(seed=seed), Cluster(args=CLUSTER) as c:
                want, operator = answers(c), Operator(c, seed)
                for half in range(2):
                    with Load(c, want) as load:
                        for i in range(ORDERS // 2):
                            operator.order()
                            if i % BETWEEN_LOOKS == BETWEEN_LOOKS - 1:
                                operator.look()
                        operator.look()
                        c.wait_until(lambda: load.count > 10 or load.wrong, "more than ten requests that lived through it")
                    self.assertEqual(load.wrong, [], operator.said)
                    if half == 0:
                        self.restart_router(c, operator)
                print(f"seed {seed}: {operator.counts}; {load.count} requests in the second half")
                for kind in ("drain", "resume", "flip"):
                    self.assertGreater(operator.counts.get(kind, 0), 5, operator.counts)
                for w in workers(c):
                    operator.post("/workers/resume", worker=w["address"])
                operator.drained.clear()
                operator.look()
                self.assertEqual(answers(c), want)

    def restart_router(self, c, operator):
        """It has forgotten who was drained; roles are the workers' own."""
        before = {w["address"]: w["role"] for w in workers(c)}
        os.kill(c.pid_of("router"), signal.SIGKILL)
        operator.drained.clear()
        operator.restarts_due = 0

        def back():
            try:
                return all(w["takes_requests"] for w in workers(c))
            except (OSError, http.client.HTTPException):
                return False
        c.wait_until(back, "the router that starts again", seconds=60)
        self.assertEqual({w["address"]: w["role"] for w in workers(c)}, before)

    def test_an_undone_change_leaves_no_drain_behind_and_a_drain_outlives_a_change(self):
        with Cluster(args=CLUSTER) as c:
            operator = Operator(c, 0)
            worker = next(w["address"] for w in workers(c) if w["role"] == "prefill")

            def now():
                return next(w for w in workers(c) if w["address"] == worker)
            # A drain, then a change of the role: undone is the drain with it.
            operator.post("/workers/drain", worker=worker)
            operator.post("/workers/flip", worker=worker, role="decode", timeout_ms=0)
            operator.post("/workers/resume", worker=worker)
            operator.look()
            self.assertTrue(now()["takes_requests"])
            # A change, then a drain: it holds when the change is over.
            other = "prefill" if now()["role"] == "decode" else "decode"
            operator.post("/workers/flip", worker=worker, role=other, timeout_ms=0)
            operator.post("/workers/drain", worker=worker)
            operator.drained.add(worker)
            operator.look()
            self.assertEqual((now()["role"], now()["detail"]), (other, DRAINED))
            back = run(["drain", worker, "--undo", "--url", c.admin])
            self.assertEqual(back.returncode, 0, back.stderr)
            operator.drained.clear()
            operator.look()
            self.assertTrue(now()["takes_requests"])


if __name__ == "__main__":
    unittest.main()
