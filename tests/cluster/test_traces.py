"""Traces: a collector of the test's own takes what the router posts. A request is one trace with its stages, below the caller's
span; a collector that is away costs spans, never a request."""
import contextlib
import http.server
import json
import re
import socket
import ssl
import threading
import unittest

from harness import Cluster
from test_disaggregated import LONG, PAIR
from test_tls import Certs

CALLER, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes OTLP over HTTP in JSON and keeps the spans, with `certs` over TLS. `status`: of its answers."""

    def __init__(self, certs=None):
        self.spans, self.paths, self.status, self.arrived = [], set(), 200, threading.Condition()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with collector.arrived:
                    collector.paths.add((self.path, self.headers["Content-Type"]))
                    if collector.status == 200:
                        for resource in body["resourceSpans"]:
                            for scope in resource["scopeSpans"]:
                                collector.spans += scope["spans"]
                    collector.arrived.notify_all()
                self.send_response(collector.status)
                self.end_headers()
                self.wfile.write(b"{}")

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certs:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(certs.dir / "server.crt", certs.dir / "server.key")
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{'https' if certs else 'http'}://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def wait(self, done, what):
        with self.arrived:
            assert self.arrived.wait_for(lambda: done(self.spans), 30), f"{what}: {[s['name'] for s in self.spans]}"
            return list(self.spans)


def attributes(span):
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


def body(**fields):
    return {"model": "tiny-llama", "prompt": LONG, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}


class Traces(unittest.TestCase):
    def test_a_handed_over_request_is_one_trace_below_its_callers_span(self):
        with Collector() as collector, Cluster(args=[*PAIR, "--otlp-traces-endpoint", collector.url]) as c:
            reply = c.post("/v1/completions", body(), headers={"traceparent": f"00-{CALLER}-{PARENT}-01"}).json()
            spans = {s["name"]: s for s in collector.wait(lambda have: any(s["name"] == "decode.generate" for s in have), "a request's spans")}
            self.assertEqual(collector.paths, {("/v1/traces", "application/json")})
            root = spans["llm_request"]
            self.assertEqual((root["traceId"], root["parentSpanId"], root["kind"]), (CALLER, PARENT, 2))
            for name in ("router", "reserve", "prefill.compute", "decode.generate"):
                self.assertEqual((spans[name]["traceId"], spans[name]["parentSpanId"]), (CALLER, root["spanId"]), name)
                self.assertLessEqual(int(root["startTimeUnixNano"]), int(spans[name]["startTimeUnixNano"]), name)
                self.assertGreaterEqual(int(root["endTimeUnixNano"]), int(spans[name]["endTimeUnixNano"]), name)
            length = lambda span: (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e6
            self.assertAlmostEqual(length(spans["prefill.compute"]), reply["timings"]["prefill_ms"], places=2)
            said = attributes(root)
            self.assertEqual(int(said["gen_ai.usage.input_tokens"]), reply["usage"]["prompt_tokens"])
            self.assertEqual(int(said["gen_ai.usage.output_tokens"]), 4)
            self.assertEqual((said["baton.prefill_worker"], said["baton.decode_worker"]), ("prefill-0", "decode-0"))
            self.assertNotIn(LONG[:20], json.dumps(collector.spans))
            c.wait_until(lambda: c.metric("baton_trace_spans_total") >= len(spans), "the spans are counted", 10)

    def test_what_a_request_asked_for_and_used_is_in_its_span(self):
        with Collector() as collector, Cluster(args=["--both", 1, "--otlp-traces-endpoint", collector.url]) as c:
            asked = body(max_tokens=5, n=2, temperature=0.5, top_p=0.25, seed=3)
            replies = [c.post("/v1/completions", asked).json() for _ in range(2)]
            roots = lambda spans: sorted((s for s in spans if s["name"] == "llm_request"), key=lambda s: int(s["startTimeUnixNano"]))
            spans = roots(collector.wait(lambda have: len(roots(have)) == 2, "both requests"))
            self.assertGreater(replies[1]["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
            for reply, said in zip(replies, map(attributes, spans)):
                usage = reply["usage"]
                want = {"gen_ai.usage.input_tokens": usage["prompt_tokens"], "gen_ai.usage.output_tokens": usage["completion_tokens"],
                        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"], "gen_ai.usage.reasoning.output_tokens": 0,
                        "gen_ai.request.max_tokens": 5, "gen_ai.request.n": 2, "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 0.25, "baton.attempts": 1}
                self.assertEqual({name: float(said[name]) for name in want}, want)
                self.assertEqual(said["baton.finish_reason"], "length")
                self.assertTrue(said["gen_ai.request.id"].startswith(reply["id"].removeprefix("cmpl-")), said)

    def test_a_collector_that_refuses_or_comes_later_costs_no_request(self):
        with Collector() as collector, Cluster(args=["--both", 1, "--otlp-traces-endpoint", f"{collector.url}/in/here"]) as c:
            collector.status = 503
            self.assertEqual(c.post("/v1/completions", body()).status, 200)
            with collector.arrived:
                self.assertTrue(collector.arrived.wait_for(lambda: collector.paths, 30))
            self.assertEqual({path for path, _ in collector.paths}, {"/in/here"})
            c.wait_until(lambda: "the collector of traces" in c.log.read_text(), "the log says so", 10)
            collector.status = 200
            collector.wait(lambda have: any(s["name"] == "llm_request" for s in have), "what failed is sent again")

    def test_spans_that_a_collector_never_takes_keep_no_others_waiting(self):
        with Collector() as collector, Cluster(args=["--both", 1, "--otlp-traces-endpoint", collector.url]) as c:
            failed = lambda: float(re.search(r'baton_trace_spans_total\{[^}]*result="failed"[^}]*\} (\S+)', c.get("/metrics").body).group(1))
            collector.status = 400
            self.assertEqual(c.post("/v1/completions", body()).status, 200)
            c.wait_until(lambda: failed() > 0, "they are given up", 10)
            self.assertIn("answers 400", c.log.read_text())
            given_up, collector.status = failed(), 200
            self.assertEqual(c.post("/v1/completions", body()).status, 200)
            collector.wait(lambda have: any(s["name"] == "llm_request" for s in have), "the next ones")
            self.assertEqual(sum(s["name"] == "llm_request" for s in collector.spans), 1, "what was refused is not sent again")
            self.assertEqual(failed(), given_up)

    def test_a_collector_whose_answers_never_end_keeps_no_router_from_ending(self):
        over, asked = threading.Event(), threading.Event()

        def drip(connection):
            with connection:
                connection.recv(65536)
                asked.set()
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not over.wait(0.2):
                    with contextlib.suppress(OSError):
                        connection.sendall(b" ")

        def serve():
            while not over.is_set():
                with contextlib.suppress(OSError):
                    threads.append(threading.Thread(target=drip, args=(server.accept()[0],)))
                    threads[-1].start()

        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.2)
            threads = [threading.Thread(target=serve)]
            threads[0].start()
            try:
                with Cluster(args=["--both", 1, "--otlp-traces-endpoint", "http://127.0.0.1:%d" % server.getsockname()[1]]) as c:
                    self.assertEqual(c.post("/v1/completions", body()).status, 200)
                    self.assertTrue(asked.wait(30))
                    self.assertEqual(c.stop(), 0)
                    self.assertNotIn("did not stop in time", c.log.read_text())
            finally:
                over.set()
                for thread in threads:
                    thread.join(60)

    def test_a_collector_over_tls_is_believed_by_the_authority_that_is_named(self):
        with Certs(["127.0.0.1"]) as certs, Certs(["127.0.0.1"]) as others, Collector(certs) as collector:
            args = ["--both", 1, "--otlp-traces-endpoint", collector.url, "--otlp-traces-ca"]
            with Cluster(args=[*args, certs.ca]) as c:
                self.assertEqual(c.post("/v1/completions", body()).status, 200)
                collector.wait(lambda have: any(s["name"] == "llm_request" for s in have), "a request's spans")
            collector.spans.clear()
            with Cluster(args=[*args, others.ca]) as c:
                self.assertEqual(c.post("/v1/completions", body()).status, 200)
                c.wait_until(lambda: "the collector of traces" in c.log.read_text() and "TLS" in c.log.read_text(), "it is not believed", 10)
                self.assertEqual(collector.spans, [])

    def test_a_caller_that_keeps_no_trace_gets_none_and_others_do(self):
        with Collector() as collector, Cluster(args=["--both", 1, "--otlp-traces-endpoint", collector.url]) as c:
            c.post("/v1/completions", body(), headers={"traceparent": f"00-{CALLER}-{PARENT}-00"})
            c.post("/v1/completions", body())
            spans = collector.wait(lambda have: any(s["name"] == "llm_request" for s in have), "the other request's spans")
            self.assertNotIn(CALLER, {s["traceId"] for s in spans})


if __name__ == "__main__":
    unittest.main()
