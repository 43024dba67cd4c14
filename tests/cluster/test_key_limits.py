"""What one key, one name and one web page may: the limits of a key file, --allowed-hosts and --allowed-origins, of a running cluster."""
import pathlib
import re
import tempfile
import unittest

import grpc_call
from harness import Cluster

BODY = {"model": "tiny-llama", "prompt": "one two three", "max_tokens": 4, "temperature": 0, "ignore_eos": True}


class KeyLimits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        keys = pathlib.Path(folder, "keys")
        keys.write_text("# the clients\nsk-few name=few requests-per-minute=3\nsk-short name=short tokens-per-minute=60\nsk-free name=free\nsk-list name=list requests-per-minute=3\nsk-last name=last priority=5\n")
        cls.cluster = cls.enterClassContext(Cluster(args=["--api-key-file", keys, "--allowed-hosts", "llm.example,other.example", "--allowed-origins", "https://ui.example"]))

    def ask(self, key, headers=None, **fields):
        return self.cluster.post("/v1/completions", {**BODY, **fields}, headers={"Authorization": f"Bearer {key}", **(headers or {})})

    def count(self, name, key):
        found = re.findall(rf'^{name}{{[^}}]*key="{key}"[^}}]*}} (\S+)$', self.cluster.get("/metrics").body, re.M)
        return sum(map(float, found))

    def refused(self, reply, text):
        self.assertEqual(reply.status, 429, reply.body)
        self.assertIn(text, reply.json()["error"]["message"])
        self.assertTrue(1 <= int(reply.headers["Retry-After"]) <= 61, reply.headers)

    def test_requests_a_minute(self):
        self.assertEqual([self.ask("sk-few").status for _ in range(3)], [200] * 3)
        text = 'The API key "few" may use 3 requests per minute. There is room again in '
        self.refused(self.ask("sk-few"), text)
        self.refused(self.cluster.post("/v1/chat/completions", {"model": "tiny-llama", "messages": [{"role": "user", "content": "hi"}]}, headers={"Authorization": "Bearer sk-few"}), text)
        code, said = grpc_call.call(self.cluster.grpc, "/baton.v1.Generation/Generate", grpc_call.field(2, "a b c"), key="sk-few")
        self.assertEqual(code, "RESOURCE_EXHAUSTED", said)
        self.assertEqual(self.ask("sk-free").status, 200, "another key has its own")
        self.assertEqual(self.cluster.post("/tokenize", {"model": "tiny-llama", "prompt": "a"}, headers={"Authorization": "Bearer sk-few"}).status, 200, "generates nothing")
        self.assertEqual((self.count("baton_key_requests_total", "few"), self.count("baton_key_refused_total", "few")), (3, 3))

    def test_a_list_that_no_minute_has_room_for(self):
        reply = self.ask("sk-list", prompt=["a"] * 4)
        self.assertEqual(reply.status, 400, reply.body)
        self.assertNotIn("Retry-After", reply.headers)
        self.assertIn('A list of 4 prompts is 4 requests, and the API key "list" may use 3 requests per minute: send at most 3', reply.json()["error"]["message"])
        self.assertEqual(self.ask("sk-list", prompt=["a"] * 3).status, 200, "nothing was taken")

    def test_tokens_a_minute(self):
        long = self.ask("sk-short", max_tokens=200)
        self.assertEqual((long.status, long.json()["usage"]["completion_tokens"]), (200, 200), "an answer is never cut")
        reply = self.ask("sk-short")
        self.assertEqual(reply.status, 429)
        self.assertIn('The API key "short" may use 60 tokens per minute. There is room again in 1', reply.json()["error"]["message"])
        self.assertGreater(int(reply.headers["Retry-After"]), 100, "whoever has used more waits longer")
        self.assertEqual(self.count("baton_key_tokens_total", "short"), long.json()["usage"]["total_tokens"])
        self.assertEqual(self.ask("sk-free").status, 200)

    def test_who_is_no_key_and_what_a_name_is_not(self):
        for key in ("sk-fe", "few", "sk-few name=few", "#", "name=few", ""):
            self.assertEqual(self.ask(key).status, 401, key)

    def test_hosts_and_origins(self):
        port = self.cluster.port
        for host, status in [("llm.example", 200), (f"LLM.example:{port}", 200), ("other.example", 200), ("localhost", 200), (f"127.0.0.1:{port}", 200),
                             ("evil.example", 403), ("llm.example.evil.example", 403), ("xllm.example", 403)]:
            with self.subTest(host=host):
                reply = self.ask("sk-free", {"Host": host})
                self.assertEqual(reply.status, status, reply.body)
                self.assertEqual(status == 403, "--allowed-hosts" in reply.body)
        for origin, status in [("https://ui.example", 200), ("https://evil.example", 403), ("http://ui.example", 403), ("https://ui.example.evil", 403), ("null", 403), (self.cluster.url, 200)]:
            with self.subTest(origin=origin):
                reply = self.ask("sk-free", {"Origin": origin})
                self.assertEqual(reply.status, status, reply.body)
                self.assertEqual(reply.headers.get("Access-Control-Allow-Origin"), origin if status == 200 else None)
                self.assertEqual(status == 403, "--allowed-origins" in reply.body)
        asked = {"Origin": "https://ui.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
        reply = self.cluster.request("OPTIONS", "/v1/completions", headers=asked)
        self.assertEqual((reply.status, reply.headers.get("Access-Control-Allow-Origin")), (204, "https://ui.example"))
        self.assertEqual(self.cluster.request("OPTIONS", "/v1/completions", headers={**asked, "Origin": "https://evil.example"}).status, 403)


if __name__ == "__main__":
    unittest.main(verbosity=2)
