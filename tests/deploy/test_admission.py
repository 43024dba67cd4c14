"""What a cluster does with the chart's objects beyond their schemas: names and labels that it refuses, or takes and then makes no pods of; what a
rollout waits for; what pods find in their environment; which pods admission, meshes and taints let run."""
import re
import unittest

import chart
from test_chart import MINIMAL
from where import needs

LABEL, SERVICE = 63, r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$"
GENERATED = {"StatefulSet": 11, "LeaderWorkerSet": 15, "DisaggregatedSet": 25}  # what controllers add to the name in a label of the pods
STARTS = 1900000000


def over(**values):
    return chart.merged(MINIMAL, values)


def texts(o):
    """Every map of labels, annotations or selectors in an object."""
    if isinstance(o, dict):
        for key, value in o.items():
            if key in ("labels", "annotations", "matchLabels") or (key == "selector" and o.get("clusterIP", o.get("type"))):
                yield value or {}
            yield from texts(value)
    elif isinstance(o, list):
        for each in o:
            yield from texts(each)


@needs(chart.why_not())
class Names(unittest.TestCase):
    def test_the_longest_name_that_is_taken_has_pods_in_every_kind(self):
        for kind, added in {"Deployment": 0, **GENERATED}.items():
            given = over(fullnameOverride="a" * 50, prefill={"kind": kind}, decode={"kind": kind}, loadTest={"startAt": STARTS})
            if added:
                given = chart.merged(given, {"fullnameOverride": self.longest(given, kind)})
            for o in chart.objects(given):
                name = o["metadata"]["name"]
                if o["kind"] in GENERATED:
                    roles = [f"-{role['name']}" for role in o["spec"].get("roles", [])] or [""]
                    self.assertLessEqual(max(map(len, roles)) + len(name) + GENERATED[o["kind"]], LABEL, name)
                elif o["kind"] == "Service":
                    self.assertRegex(name, SERVICE)
                elif o["kind"] == "Job":
                    self.assertLessEqual(len(name), LABEL)
                for labels in texts(o):
                    self.assertLessEqual(max(map(len, labels.values()), default=0), max(LABEL, len(str(labels.get("baton/names", "")))), name)

    def longest(self, given, kind):
        """The name that the refusal of a longer one asks for."""
        from helm_python.errors import HelmError
        with self.assertRaises(HelmError) as caught:
            chart.files(given)
        self.assertIn(f"prefill has 58 characters, but a {kind} of that name could make no pods", str(caught.exception))
        return "a" * int(re.search(r"fullnameOverride to (\d+) characters", str(caught.exception))[1])

    def test_a_release_whose_name_no_service_may_have_is_refused_and_another_name_helps(self):
        from helm_python.errors import HelmError
        for release in ("7b", "qwen.prod"):
            with self.assertRaisesRegex(HelmError, f'the release is called "{release}", but a Service'):
                chart.files(MINIMAL, name=release)
            self.assertGreater(len(chart.objects(over(fullnameOverride="qwen"), name=release)), 10)

    def test_labels_are_text_whatever_release_and_namespace_are_called(self):
        given = over(fullnameOverride="qwen", nameOverride="null", prefill={"autoscaling": {"enabled": True}}, autoscaler={"type": "hpa"},
                     loadTest={"startAt": STARTS}, tls={"http": {"mode": "generate"}})
        for o in chart.objects(given, name="123", namespace="1e3"):
            for labels in texts(o):
                self.assertEqual({key: value for key, value in labels.items() if not isinstance(value, str)}, {}, o["metadata"]["name"])
            for who in o.get("subjects", []):
                self.assertEqual(who["namespace"], "1e3")


@needs(chart.why_not())
class Pods(unittest.TestCase):
    def test_none_sees_the_services_of_its_namespace_as_variables(self):
        for path in chart.VALUES:
            for name, _, spec in chart.pods(chart.objects(chart.values(path))):
                self.assertIs(spec.get("enableServiceLinks"), False, f"{path.stem} {name}: a Service called baton-port would be a flag")

    def test_a_rollout_is_not_given_up_while_a_model_loads(self):
        for path in chart.VALUES:
            rendered = chart.objects(chart.values(path))
            loading = [c["startupProbe"]["periodSeconds"] * c["startupProbe"]["failureThreshold"] for _, _, spec in chart.pods(rendered)
                       for c in spec["containers"] if c["name"] == "worker"]
            for o in (o for o in rendered if o["kind"] == "Deployment"):
                own = o["spec"]["template"]["spec"]["containers"][0]
                longest = max(loading) if own["name"] == "router" else own["startupProbe"]["periodSeconds"] * own["startupProbe"]["failureThreshold"]
                self.assertGreater(o["spec"].get("progressDeadlineSeconds", 600), longest, f"{path.stem} {o['metadata']['name']}")

    def test_probes_have_more_time_than_a_busy_machine_takes_to_start_a_program(self):
        for name, _, spec in chart.pods(chart.objects(MINIMAL)):
            for c in spec["containers"]:
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    if "exec" in c.get(probe, {}):
                        self.assertGreaterEqual(c[probe].get("timeoutSeconds", 1), 5, f"{name} {probe}")

    def test_what_values_give_to_pods_all_have_and_the_test_runs_where_routers_may(self):
        given = over(podLabels={"team": "search"}, podAnnotations={"sidecar.istio.io/inject": "false"}, loadTest={"startAt": STARTS},
                     image={"pullSecrets": [{"name": "pull"}]},
                     router={"tolerations": [{"key": "pool", "operator": "Exists"}], "nodeSelector": {"pool": "llm"}, "priorityClassName": "serving",
                             "initContainers": [{"name": "wait", "image": "x"}]})
        rendered = chart.objects(given)
        for name, labels, spec in chart.pods(rendered):
            self.assertEqual((labels.get("team"), spec.get("imagePullSecrets")), ("search", [{"name": "pull"}]), name)
        templates = [o for o in rendered if o["kind"] == "Pod"] + [o["spec"]["template"] for o in rendered if o["kind"] in ("Deployment", "Job")]
        self.assertEqual([t["metadata"].get("annotations", {}).get("sidecar.istio.io/inject") for t in templates], ["false"] * 5)
        specs = {name: spec for name, _, spec in chart.pods(rendered)}
        for key in ("tolerations", "nodeSelector", "priorityClassName"):
            self.assertEqual(specs["prod-baton-test"].get(key), specs["prod-baton-router"][key])
        self.assertNotIn("initContainers", specs["prod-baton-test"])


@needs(chart.why_not())
class Reach(unittest.TestCase):
    def test_kv_reaches_every_rank_that_is_a_process(self):
        """Ranks that are processes of one pod take KV at 9101 and the ports behind it."""
        for backend, ports in (("mp", (9101, 9104)), ("threads", ("landing", None))):
            given = over(decode={"tensorParallelSize": 4, "extraArgs": {"distributed-executor-backend": backend}}, reductionWidth=4)
            (policy,) = (o for o in chart.objects(given) if o["kind"] == "NetworkPolicy" and o["metadata"]["name"].endswith("-workers"))
            port = policy["spec"]["ingress"][1]["ports"][0]
            self.assertEqual((port["port"], port.get("endPort")), ports)

    def test_a_wildcard_is_asked_for_by_a_name_that_it_covers(self):
        given = over(tls={"http": {"mode": "certManager", "issuerRef": {"name": "ca"}, "dnsNames": ["*.llm.example.com"]}},
                     monitoring={"serviceMonitor": {"enabled": True}}, networkPolicy={"monitoring": [{"podSelector": {}}]})
        rendered = {o["kind"]: o for o in chart.objects(given)}
        self.assertEqual(rendered["Certificate"]["spec"]["dnsNames"], ["*.llm.example.com"])
        self.assertEqual(rendered["ServiceMonitor"]["spec"]["endpoints"][0]["tlsConfig"]["serverName"], "baton.llm.example.com")
        self.assertIn("--tls-server-name baton.llm.example.com\n", rendered["Pod"]["spec"]["containers"][0]["args"][0])


@needs(chart.why_not())
class Autoscaling(unittest.TestCase):
    SIGNALS = {"prefill": {"autoscaling": {"enabled": True, "waitSeconds": 2.5}}, "decode": {"autoscaling": {"enabled": True, "tpotSeconds": 0.05}}}

    def test_both_autoscalers_look_at_every_signal_that_values_name(self):
        keda = chart.objects(over(**self.SIGNALS, autoscaler={"prometheusUrl": "http://p:9090"}))
        triggers = {o["metadata"]["name"]: {t["name"]: t["metadata"]["threshold"] for t in o["spec"]["triggers"]} for o in keda if o["kind"] == "ScaledObject"}
        self.assertEqual(triggers, {"prod-baton-prefill": {"queued-tokens": "8192", "predicted-wait": "2.5"},
                                    "prod-baton-decode": {"kv-usage": "0.8", "tpot": "0.05"}})
        hpa = chart.objects(over(**self.SIGNALS, autoscaler={"type": "hpa"}))
        metrics = {o["metadata"]["name"]: {m["external"]["metric"]["name"]: m["external"]["target"].get("value", m["external"]["target"].get("averageValue"))
                                           for m in o["spec"]["metrics"]} for o in hpa if o["kind"] == "HorizontalPodAutoscaler"}
        self.assertEqual(metrics, {"prod-baton-prefill": {"baton:queued_tokens:sum": "8192", "baton:queued_seconds:predicted": "2500m"},
                                   "prod-baton-decode": {"baton:kv_cache_usage:avg": "800m", "baton:tpot_seconds:p95_5m": "50m"}})
        recorded = (chart.CHART / "files" / "rules.yaml").read_text()
        for names in metrics.values():
            for name in names:
                self.assertIn(f"- record: {name}\n", recorded)


if __name__ == "__main__":
    unittest.main()
