"""Boards and alerts: every alert is raised by what it is for and by nothing else; every metric that a board or rule names is in a live scrape; a
real Prometheus that scrapes a cluster under load evaluates every panel's query to data, and raises no alert; the boards keep Grafana's schema."""
import contextlib
import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

import alerts
import chart
from where import BATON, ROOT, missing, needs_tool, run, tool
from harness import Cluster, events, free_port

sys.path.insert(0, str(ROOT / "deploy" / "grafana"))
import boards  # noqa: E402
import draw  # noqa: E402

RULES = ROOT / "deploy" / "helm" / "baton" / "files" / "rules.yaml"
INTERVAL = "30s"  # what Grafana would put in the place of $__rate_interval
SECONDS = 60


def metrics_of(query):
    """The names of metrics in a query; what a rule of ours records is none."""
    return {n for n in re.findall(r"(?<![\w:\"$])((?:baton|vllm|http)[:_][a-z0-9_:]+)", query) if not n.startswith("baton:")}


def queries():
    """(board, panel, query) of every target, with Grafana's variables as it would set them."""
    for path in sorted(boards.OUT.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", INTERVAL).replace("$namespace", ".*").replace("$service", ".*")
                yield path.stem, panel["title"], query


def counted_twice(scrape, given):
    """Queries that add up what several routers say of one worker: its metrics want `max by (…)` before anything else."""
    of_workers = {name for name in re.findall(r'(?m)^([a-z][\w:]*){[^}]*\bworker="', scrape)}
    return [query for query in given for name in metrics_of(query) & of_workers
            for at in re.finditer(re.escape(name) + r"(?![\w:])", query)
            if not re.search(r"(max|min) by \([^)]*\) \((\w+\()?$", query[:at.start()])]


def kept(ours, theirs, where=""):
    """What Grafana's own model of a board did not take as it was written."""
    if isinstance(ours, dict):
        return [f for k, v in ours.items() for f in kept(v, theirs.get(k) if isinstance(theirs, dict) else None, f"{where}/{k}")]
    if isinstance(ours, list):
        pairs = list(zip(ours, theirs)) if isinstance(theirs, list) and len(theirs) == len(ours) else [(ours, None)] if ours else []
        return [where] if pairs and pairs[0][1] is None else [f for i, (a, b) in enumerate(pairs) for f in kept(a, b, f"{where}/{i}")]
    return [] if ours == theirs else [f"{where}: {ours!r} became {theirs!r}"]


class Boards(unittest.TestCase):
    def test_the_files_are_what_boards_py_writes(self):
        self.assertEqual({p.name: p.read_text() for p in boards.OUT.glob("*.json")}, {f"baton-{n}.json": boards.board(n) for n in boards.BOARDS})

    def test_every_panel_says_how_to_read_it(self):
        for name, (_, panels) in boards.BOARDS.items():
            self.assertEqual(len({p["title"] for p in panels}), len(panels), name)
            self.assertEqual([p["title"] for p in panels if not p["why"]], [], name)

    def test_grafana_takes_them_as_they_are(self):
        if chart.why_not():
            missing(chart.why_not())
        try:
            model = importlib.import_module("grafana_foundation_sdk.models.dashboard").Dashboard
            encoder = importlib.import_module("grafana_foundation_sdk.cog.encoder").JSONEncoder
        except ImportError as e:
            missing(f"no model of Grafana's boards here (scripts/deploy_tools.sh): {e}")
        for name in boards.BOARDS:
            ours = json.loads(boards.board(name))
            self.assertEqual(kept(ours, json.loads(encoder().encode(model.from_json(ours)))), [])
            ours["links"][0]["keepTimes"] = True
            self.assertEqual(len(kept(ours, json.loads(encoder().encode(model.from_json(ours))))), 1, "the check can fail")


@needs_tool("promtool")
class Rules(unittest.TestCase):
    def test_prometheus_takes_them(self):
        run([tool("promtool"), "check", "rules", RULES])

    def test_each_alert_says_why_it_matters_and_what_to_do(self):
        blocks = re.split(r"(?m)^      - alert: ", RULES.read_text())[1:]
        self.assertEqual([b.split("\n")[0] for b in blocks], list(alerts.RAISED))
        for block in blocks:
            for what in ("severity: (critical|warning)", 'summary: ".+"', 'why: ".+"', 'action: ".+"'):
                self.assertRegex(block, what)

    def test_each_alert_is_raised_by_what_it_is_for_and_a_healthy_cluster_raises_none(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(alerts.unit_tests(RULES))
            file.flush()
            run([tool("promtool"), "test", "rules", file.name])


@contextlib.contextmanager
def prometheus(folder, target):
    """A Prometheus that scrapes the cluster with the labels that an installation by the chart would have; yields a function that asks it."""
    port = free_port()
    config = folder / "prometheus.json"
    shutil.copy(RULES, folder / "rules.yaml")
    config.write_text(json.dumps({
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}, "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [{"job_name": "baton", "static_configs": [{"targets": [target], "labels": {"namespace": "llm", "service": "prod-baton-admin"}}]}]}))
    with open(folder / "prometheus.log", "w") as log:
        process = subprocess.Popen([tool("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                                    f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)

    def ask(path, **query):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.loads(answer.read())["data"]

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(20)


class Live(unittest.TestCase):
    @needs_tool("prometheus")
    def test_a_real_prometheus_finds_data_for_every_panel_and_every_rule(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-prometheus-"))
        self.addCleanup(shutil.rmtree, folder)
        run([BATON, "certs", folder / "tls"])
        tls = [f"--tls-{what}={folder}/tls/{file}" for what, file in (("cert", "server.crt"), ("key", "server.key"), ("ca", "ca.crt"))]
        with Cluster(args=["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 0, "--insecure-no-tls", *tls]) as c, prometheus(folder, f"{c.host}:{c.port}") as ask:
            todo = [(f"{board}: {panel}", query) for board, panel, query in queries()]
            rules = re.findall(r"(?m)^        expr: (.+)$", RULES.read_text())
            recorded = re.findall(r"(?m)^      - record: (.+)$", RULES.read_text())
            todo += [(f"rule {name}", name) for name in recorded]
            deadline = time.monotonic() + SECONDS
            while todo and time.monotonic() < deadline:
                self.load(c)
                with contextlib.suppress(OSError, ConnectionError):
                    todo = [(what, query) for what, query in todo if not ask("query", query=query)["result"]]
            self.assertEqual(todo, [], "these gave nothing")
            scraped = {line.split()[2] for line in c.get("/metrics").body.splitlines() if line.startswith("# TYPE ")}
            scraped |= {f"{name}{part}" for name in scraped for part in ("_bucket", "_sum", "_count")}
            named = set().union(*(metrics_of(q) for _, _, q in queries()), *(metrics_of(q) for q in rules))
            self.assertEqual(named - scraped, set(), "no scrape has these")
            self.assertEqual(counted_twice(c.get("/metrics").body, [query for _, _, query in queries()] + rules), [], "each router reports every worker")
            self.assertGreater(len(named), 40)
            self.assertEqual([a["labels"]["alertname"] for a in ask("alerts")["alerts"] if a["state"] == "firing"], [])
            text, empty = draw.page(ask, SECONDS)
            self.assertEqual(empty, [], "panels that are drawn without a line")
            self.assertEqual(text.count("<h2>"), sum(len(json.loads(path.read_text())["panels"]) for path in boards.OUT.glob("*.json")))
            if out := os.environ.get("BATON_BOARDS_PAGE"):  # to be looked at
                pathlib.Path(out).write_text(text)
            self.assertEqual(len([r for g in ask("rules")["groups"] for r in g["rules"] if r["health"] != "ok"]), 0)

    def load(self, c):
        """Prompts that repeat and that do not, one streamed, and one that is refused."""
        for prompt in ("the same words again " * 20, f"others {time.monotonic()} " * 20):
            self.assertEqual(c.post("/v1/completions", {"prompt": prompt, "max_tokens": 4}).status, 200)
        streamed = c.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello " * 40}], "max_tokens": 8, "stream": True})
        self.assertEqual(events(streamed.body)[-1], "[DONE]")
        self.assertEqual(c.post("/v1/completions", {"prompt": "x", "max_tokens": -1}).status, 400)


if __name__ == "__main__":
    unittest.main()
