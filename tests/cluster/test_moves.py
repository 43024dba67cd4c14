"""A worker whose name goes from one address to another while a stream runs: it is no duplicate of itself."""
import json
import unittest
import urllib.request

from dns_server import AAAA, A, DnsServer
from harness import HeldStream
from test_discovery import BODIES, Discovery, answer


class Dns(Discovery):
    def test_a_name_that_goes_from_ipv4_to_ipv6_and_back_is_asked_there_at_once(self):
        """Its stream goes on at the old address, where the process is known by its name; it is no duplicate at the new one."""
        try:
            a = self.worker("a", host="::", args=("--insecure", "--advertise-host", "localhost"))
        except AssertionError as e:
            self.skipTest(f"no IPv6 here: {e}")
        old, new = f"127.0.0.1:{a.port}", f"[::1]:{a.port}"
        with DnsServer() as dns:
            dns.records = {("w.test", A): ["127.0.0.1"], ("w.test", AAAA): []}
            with self.router("--workers-dns", f"w.test:{a.port}", "--dns-server", dns.address, "--workers-dns-interval-ms", 200) as router:
                def at(address, state):
                    with urllib.request.urlopen(router.admin + "/workers", timeout=10) as reply:
                        return state in [w["state"] for w in json.load(reply)["workers"] if w["address"] == address]
                router.wait_until(lambda: at(old, "ready"), "it serves by IPv4")
                alone = answer(router, BODIES[0])
                with HeldStream(router) as stream:
                    for here, there, records in [(new, old, ([], ["::1"])), (old, new, (["127.0.0.1"], []))]:
                        dns.records = {("w.test", A): records[0], ("w.test", AAAA): records[1]}
                        router.wait_until(lambda h=here: at(h, "ready"), f"it serves at {here}")
                        self.assertEqual(answer(router, BODIES[0]), alone)
                        if here == new:
                            self.assertTrue(at(old, "draining"), "the stream runs there")
                    self.assertEqual(stream.rest()[-1], "[DONE]")


if __name__ == "__main__":
    unittest.main(verbosity=2)
