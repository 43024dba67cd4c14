"""Discovery by odd words. DNS: hundreds of SRV targets, more than fits a datagram, long and odd names, chains of aliases. Kubernetes: events
that are none."""
import contextlib
import json
import pathlib
import re
import unittest
import urllib.request

from api_server import ApiServer, endpoint
from dns_server import CNAME, SRV, A, DnsServer
from test_discovery import BODIES, Discovery, Load, answer

SERVICE = "_grpc._tcp.pool.test"
TARGETS = 300


def listed(router):
    with urllib.request.urlopen(router.admin + "/workers", timeout=30) as reply:
        return {w["address"] for w in json.load(reply)["workers"]}


class OddDns(Discovery):
    @contextlib.contextmanager
    def served(self, records, interval_ms=200):
        """A router whose workers DNS names, by `records`; and the server."""
        with DnsServer() as dns:
            dns.records = records
            with self.router("--workers-dns", SERVICE, "--dns-server", dns.address, "--workers-dns-interval-ms", interval_ms) as router:
                yield router, dns

    def test_three_hundred_targets_come_whole_and_their_names_have_no_search_domain(self):
        w = self.worker("w", host="127.0.0.2")
        # Nobody serves at the others, which are behind ports that the system gives nobody.
        records = {(SERVICE, SRV): [(i % 7, i % 5, 9, f"w{i}.pool.test") for i in range(TARGETS)] + [(w.port, "real.test")],
                   ("real.test", A): ["127.0.0.2"]}
        records.update({(f"w{i}.pool.test", A): [f"127.3.{i // 250}.{i % 250 + 1}"] for i in range(TARGETS)})
        with self.served(records) as (router, dns):
            want = {f"127.3.{i // 250}.{i % 250 + 1}:9" for i in range(TARGETS)} | {f"127.0.0.2:{w.port}"}
            router.wait_until(lambda: listed(router) == want, "301 workers", seconds=30)
            self.assertGreater(dns.by_tcp, 0, "the answer is longer than a datagram may be")
            self.assertEqual({name for name in dns.names if not re.fullmatch(r"w\d+\.pool\.test|real\.test|_grpc\._tcp\.pool\.test", name)}, set())
            self.assertNotIn("[warning] --workers-dns", router.log.read_text())
            answer(router, BODIES[0])
            dns.records[(SERVICE, SRV)] = [(w.port, "real.test")]
            router.wait_until(lambda: listed(router) == {f"127.0.0.2:{w.port}"}, "that 300 have left", seconds=30)

    def test_targets_that_are_none_names_that_are_odd_and_aliases(self):
        w = self.worker("w", host="127.0.0.2")
        longest = ".".join(["a" * 63, "b" * 63, "c" * 63, "d" * 56, "test"])  # 253 octets, the most there may be
        self.assertEqual(len(longest), 253)
        odd = ["dot.in label", "new\nline", "test"]
        chain = [f"alias{i}.test" for i in range(6)]
        records = {(SERVICE, SRV): [(0, "."), (9, "."), (0, "real.test"), (9, longest), (9, odd), (65535, 65535, 9, "nowhere.test"), (w.port, chain[0])],
                   (longest, A): ["127.4.0.1"], (".".join(odd), A): ["127.4.0.2"], ("real.test", A): ["127.0.0.2"]}
        records.update({(chain[i], CNAME): [chain[i + 1]] for i in range(5)})
        records[(chain[5], CNAME)] = ["real.test"]
        with self.served(records, interval_ms=600000) as (router, dns):
            answer(router, BODIES[0])  # of a worker that was found in the first round
        with self.served(records) as (router, dns):
            router.wait_until(lambda: f"127.0.0.2:{w.port}" in listed(router), "the worker behind six aliases")
            answer(router, BODIES[0])
            router.wait_until(lambda: "127.4.0.1:9" in listed(router), "the longest name")
            self.assertLessEqual(listed(router), {f"127.0.0.2:{w.port}", "127.4.0.1:9", "127.4.0.2:9"})
            text = router.log.read_text()
            self.assertIn("what was known stays", text, "names that have no address are told of")
            self.assertNotIn("\nline", text, "no name of a stranger's ends a line")
            # A service that says it is none changes nothing, and an alias that leads to itself ends.
            dns.records[(SERVICE, SRV)] = [(0, ".")]
            router.wait_until(lambda: "there is no such service" in router.log.read_text(), "a service that is none")
            answer(router, BODIES[0])
            dns.records.update({(SERVICE, SRV): [(9, "round.test")], ("round.test", CNAME): ["round.test"]})
            router.wait_until(lambda: "round.test" in router.log.read_text(), "the alias that leads to itself")
            dns.records[(SERVICE, SRV)] = [(w.port, "real.test")]
            router.wait_until(lambda: listed(router) == {f"127.0.0.2:{w.port}"}, "the service as it was")
            answer(router, BODIES[0])


class OddEvents(Discovery):
    def test_after_an_event_that_is_none_slices_are_listed_again(self):
        a, b = self.worker("a", host="127.0.0.2"), self.worker("b", host="127.0.0.3")
        self.path("token").write_text("one")
        with ApiServer(token="one") as api:
            api.put("s1", [endpoint("127.0.0.2", ready=True)], a.port)
            with self.router("--workers-kubernetes", "ns/svc", "--kubernetes-api", api.url, "--kubernetes-token-file", self.path("token")) as router:
                router.wait_for({"a": "ready"})
                for i, line in enumerate(("{no json", "[]", '{"type": 7, "object": {}}', '{"type": "ADDED", "object": {"metadata": 1}}')):
                    router.wait_until(lambda: api.watched == i + 1, "the watch behind the latest list")
                    lists = sum("watch" not in query for _, query, _ in api.asked)
                    api.put("s1", [endpoint("127.0.0.2" if i % 2 else "127.0.0.3", ready=True)], a.port if i % 2 else b.port, told=False)
                    api.say(line)
                    router.wait_for({"a": "ready"} if i % 2 else {"b": "ready"})
                    self.assertEqual(sum("watch" not in query for _, query, _ in api.asked), lists + 1, f"{line}: once")
                    answer(router, BODIES[0])

    def test_endpoints_that_flap_disturb_nobody_and_are_dialled_once(self):
        a, b = self.worker("a", host="127.0.0.2"), self.worker("b", host="127.0.0.3")
        self.path("token").write_text("one")
        up, away = [endpoint("127.0.0.3", ready=True)], [endpoint("127.0.0.3", ready=False, serving=False)]
        with ApiServer(token="one") as api:
            api.put("s1", [endpoint("127.0.0.2", ready=True)], a.port)
            api.put("s2", up, b.port)
            with self.router("--workers-kubernetes", "ns/svc", "--kubernetes-api", api.url, "--kubernetes-token-file", self.path("token")) as router, Load(router) as load:
                router.wait_for({"a": "ready", "b": "ready"})
                for _ in range(4):
                    api.put("s2", away, b.port)
                    router.wait_for({"a": "ready", "b": "draining"})
                    load.more(2)
                    api.put("s2", up, b.port)
                    router.wait_for({"a": "ready", "b": "ready"})
                    api.delete("s2")
                    router.wait_for({"a": "ready", "b": "draining"})
                    api.put("s3", up, b.port)  # in another slice, and in both for a moment
                    api.put("s2", up, b.port)
                    api.delete("s3")
                    router.wait_for({"a": "ready", "b": "ready"})
                    load.more(2)
                for i in range(200):  # faster than anybody can follow; the last word counts
                    api.put("s2", up if i % 2 else away, b.port)
                router.wait_for({"a": "ready", "b": "ready"})
                load.more()
                self.assertEqual(router.log.read_text().count(f"worker {b.address}: joins"), 1)
                self.assertEqual(router.metric("baton_worker_losses_total"), 0)

    def test_a_server_of_which_nothing_is_heard_is_asked_for_a_sign_of_life_within_ten_seconds(self):
        a = self.worker("a", host="127.0.0.2")
        self.path("token").write_text("one")
        with ApiServer(token="one") as api:
            api.put("s1", [endpoint("127.0.0.2", ready=True)], a.port)
            with self.router("--workers-kubernetes", "ns/svc", "--kubernetes-api", api.url, "--kubernetes-token-file", self.path("token")) as router:
                router.wait_until(lambda: api.watched == 1, "it watches")
                rows = (line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:])
                timers = [row[5].split(":") for row in rows if row[2] == f"0100007F:{api.port:04X}" and row[3] == "01"]
                seconds = [int(when, 16) / 100 for kind, when in timers if kind == "02"]  # of keep-alives
                self.assertTrue(seconds, timers)
                self.assertLessEqual(min(seconds), 10)


if __name__ == "__main__":
    unittest.main()
