"""Two releases in one cluster: the processes of one that speaks newer protocol versions join those of this one, pairs form
where both halves share a version for KV, and the cluster is upgraded process by process under load."""
import json
import os
import pathlib
import unittest
import urllib.request

from harness import BATON, run
from test_discovery import BODIES, Discovery, Load, answer
from test_metrics import total

OTHER = pathlib.Path(os.environ.get("BATON_OF_OTHER_VERSIONS", BATON.parent / "release/tests/cluster/baton_of_other_versions"))


def build(worker_protocol, kv_protocol):
    return OTHER, {"BATON_TEST_WORKER_PROTOCOL": worker_protocol, "BATON_TEST_KV_PROTOCOL": kv_protocol}


NEXT = build("1..2", "5..5")         # the release after this one, whose KV travels otherwise
AFTER_NEXT = build("2..3", "5..6")   # and the one after that, which has forgotten how this one speaks
BRIDGE = build("1..2", "4..5")       # one that speaks to both
TROUBLE = ("baton_handoff_opens_refused_total", "baton_kv_transfer_failures_total", "baton_handoff_recomputes_total",
           "baton_kv_digest_mismatches_total")


def details(router):
    with urllib.request.urlopen(router.admin + "/workers", timeout=10) as reply:
        return {w["name"]: w for w in json.load(reply)["workers"]}


def bytes_of(router, worker):
    """KV that it has sent or taken."""
    return total(router, "baton_kv_transfer_bytes_total", worker=worker)


class Front:
    """One address before routers: requests go to the one that is in service."""

    def __init__(self, router):
        self.router = router

    def __getattr__(self, name):
        return getattr(self.router, name)


class Versions(Discovery):
    def list(self, *workers):
        self.write("workers", "".join(f"{w.address}\n" for w in workers))

    def router(self, **kw):
        return super().router("--workers-file", self.path("workers"), "--local-prefill-max-tokens", 0, **kw)

    def take_out(self, router, worker):
        done = run(["drain", worker.name, "--url", router.admin])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_cluster_is_upgraded_under_load_and_nothing_fails_or_changes(self):
        p, d = self.worker("p", "prefill"), self.worker("d", "decode")
        self.list(p, d)
        with self.router() as old, Load(Front(old)) as load:
            newer = self.worker("p2", "prefill", build=NEXT)
            self.list(p, d, newer)  # nobody takes KV from it yet, and nobody waits for it
            old.wait_for({"p": "ready", "d": "ready", "p2": "unproven"})
            load.more()
            self.assertIn("waits for a worker that decodes and speaks KV protocol 5", details(old)["p2"]["detail"])
            newer = [newer, self.worker("d2", "decode", build=NEXT)]
            self.list(p, d, *newer)
            old.wait_for({"p": "ready", "d": "ready", "p2": "ready", "d2": "ready"})
            old.wait_until(lambda: load.more() or all(bytes_of(old, w) for w in ("p", "d", "p2", "d2")), "KV in both pairs")
            self.assertEqual([details(old)[w]["kv_protocol"] for w in ("p", "d", "p2", "d2")], ["4", "4", "5", "5"])
            self.take_out(old, p)
            load.more()  # d, whose prefill worker is gone, beside the newer pair
            self.take_out(old, d)
            self.list(*newer)
            old.wait_for({"p2": "ready", "d2": "ready"})
            p.close(), d.close()
            load.more()
            with self.router(build=NEXT) as new:
                new.wait_for({"p2": "ready", "d2": "ready"})
                load.router.router = new
                load.more()
                self.assertGreater(total(new, "baton_prefix_hit_tokens_predicted_total"), 0, "it knows what the workers have cached")
                last = [self.worker("p3", "prefill", build=AFTER_NEXT), self.worker("d3", "decode", build=AFTER_NEXT)]
                self.list(*newer, *last)
                new.wait_for({name: "ready" for name in ("p2", "d2", "p3", "d3")})
                new.wait_until(lambda: load.more() or all(bytes_of(new, w) for w in ("p3", "d3")), "KV in the newest pair")
                for router in (old, new):
                    for name in TROUBLE:
                        self.assertEqual(total(router, name), 0, name)
                load.over.set()
                for thread in load.threads:
                    thread.join(60)

    def test_old_and_new_halves_that_share_a_version_hand_over_both_ways_under_load(self):
        p, d = self.worker("p", "prefill"), self.worker("d", "decode")
        self.list(p, d)
        with self.router() as router, Load(router) as load:
            newer = {"p2": self.worker("p2", "prefill", build=BRIDGE), "d2": self.worker("d2", "decode", build=BRIDGE)}
            there = {"p": p, "d": d, **newer}
            self.list(*there.values())
            router.wait_for({name: "ready" for name in there})
            for prefill, decode in (("p2", "d"), ("p", "d2")):  # new with old, old with new
                out = [name for name in there if name not in (prefill, decode)]
                for name in out:
                    self.take_out(router, there[name])
                sent, taken = bytes_of(router, prefill), bytes_of(router, decode)
                router.wait_until(lambda: load.more() or (bytes_of(router, prefill) > sent and bytes_of(router, decode) > taken), f"KV from {prefill} to {decode}")
                hit = [router.post("/v1/completions", {**BODIES[0], "seed": 7}).json()["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
                self.assertGreater(hit[1], 0, "its prefix is found again")
                for name in out:
                    self.assertEqual(run(["drain", name, "--undo", "--url", router.admin]).returncode, 0)
                router.wait_for({name: "ready" for name in there})
            for name in TROUBLE:
                self.assertEqual(total(router, name), 0, name)

    def test_a_worker_that_shares_no_version_with_the_router_is_named_and_disturbs_nobody(self):
        p, d = self.worker("p", "prefill"), self.worker("d", "decode")
        far = self.worker("far", "prefill", build=AFTER_NEXT)
        self.list(far, p, d)
        with self.router() as router, Load(router) as load:
            why = "protocol: worker far of version "
            router.wait_until(lambda: why in router.log.read_text(), "the log names it")
            router.wait_for({"p": "ready", "d": "ready", far.address: "mismatch"})
            load.more()
            ready = router.get("/ready")
            self.assertEqual(ready.status, 200)
            self.assertRegex(ready.body, rf"{why}\S+ speaks 2..3, this router 1\b")
            self.assertEqual(router.log.read_text().count(why), 1)

    def test_halves_that_share_no_version_serve_without_handing_over_and_say_so(self):
        p, d = self.worker("p", "prefill", build=NEXT), self.worker("d", "decode")
        self.list(p, d)
        with self.router() as router:
            first = answer(router, BODIES[0])
            body = json.dumps({"prompt": BODIES[0]["prompt"]}).encode()
            router.wait_for({"p": "unproven", "d": "ready"})
            with urllib.request.urlopen(urllib.request.Request(router.admin + "/debug/route", body), timeout=10) as reply:
                self.assertEqual([o["worker"] for o in json.load(reply)["options"]], ["d"])
            self.list(p, d, self.worker("d2", "decode", build=build("1..2", "4..5")))
            router.wait_for({"p": "ready", "d": "ready", "d2": "ready"})  # a bridge: it takes KV from either
            with urllib.request.urlopen(urllib.request.Request(router.admin + "/debug/route", body), timeout=10) as reply:
                route = json.load(reply)
            self.assertIn("they share no version of the KV protocol (5 and 4)", [o["reason"] for o in route["out"]])
            self.assertEqual(answer(router, BODIES[0]), first)


if __name__ == "__main__":
    unittest.main()
