"""Several workers behind one address, as a Kubernetes Service with an address of its own puts them: a router's orders reach the
worker that it greeted, or none."""
import json
import unittest
import urllib.request

from balancer import Balancer
from test_discovery import BODIES, Discovery, Load, answer


class OneAddress(Discovery):
    def balancer(self, choose):
        balancer = Balancer(lambda number: [choose(number)]).__enter__()
        self.addCleanup(balancer.__exit__)
        return f"{balancer.host}:{balancer.port}", balancer.cut

    def secret(self):
        self.path("secret").write_text("a secret that every process of this cluster knows\n")
        self.path("secret").chmod(0o600)
        return ["--cluster-secret-file", str(self.path("secret"))]

    def detail(self, router):
        with urllib.request.urlopen(router.admin + "/workers", timeout=10) as reply:
            return " ".join(w["detail"] or "" for w in json.load(reply)["workers"])

    def split(self, args, reason):
        a, b = self.worker("a", args=args), self.worker("b", args=args)
        others = [a.port]  # where all connections but the first go
        address, cut = self.balancer(lambda number: others[0] if number else a.port)
        with self.router("--worker", address, *args) as router:
            others[0] = b.port
            cut()
            router.wait_until(lambda: reason in self.detail(router), "operators see what is wrong")
            router.wait_until(lambda: router.get("/ready").status == 503, "it serves nobody")
            self.assertIn(reason, router.log.read_text())
            others[0] = a.port
            router.wait_until(lambda: router.get("/ready").status == 200, "one worker behind the address is as good as any")
            for body in BODIES:
                answer(router, body)

    def test_the_relay_reaches_another_worker_than_the_greeting(self):
        self.split([], "several workers stand behind one address")

    def test_the_same_with_a_secret(self):
        self.split(self.secret(), "has greeted another one behind the same address")

    def test_connections_that_take_turns_end_with_one_worker_and_nothing_is_lost(self):
        a, b = self.worker("a"), self.worker("b")
        address, _ = self.balancer(lambda number: (a.port, b.port)[number % 2])
        with self.router("--worker", address) as router, Load(router) as load:  # a second try reached who was greeted
            self.assertIn("several workers stand behind one address", router.log.read_text())
            load.more(12)


if __name__ == "__main__":
    unittest.main(verbosity=2)
