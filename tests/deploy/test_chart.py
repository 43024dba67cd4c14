"""The chart as text: lint, renders of ten value files, the schemas of Kubernetes and of the custom resources, what every pod must have, and
values that contradict each other. test_chart.py --write writes the goldens anew."""
import functools
import json
import re
import shutil
import subprocess
import sys
import unittest

import chart
import definitions
from where import BATON, ROOT, TOOLS, needs, run

MODULES = TOOLS / "node" / "node_modules"
KUBERNETES = ["1.27", "1.36"]  # the oldest that the chart takes, and a new one
BUILT_IN = {"v1", "batch/v1", "apps/v1", "policy/v1", "autoscaling/v2", "networking.k8s.io/v1", "rbac.authorization.k8s.io/v1"}
SETS = {"LeaderWorkerSet", "DisaggregatedSet"}
MINIMAL = {"model": {"path": "m.gguf", "volume": {"persistentVolumeClaim": {"claimName": "models"}}}}


@functools.cache
def flags_of(command):
    return set(re.findall(r"--([a-z][a-z0-9-]+)", run([BATON, "help", command])))


@needs(chart.why_not())
class Chart(unittest.TestCase):
    def each(self):
        for path in chart.VALUES:
            with self.subTest(path.name):
                yield path, chart.values(path)

    def test_lint_finds_nothing_in_any_value_file(self):
        from helm_python.chart import lint
        self.assertGreaterEqual(len(chart.VALUES), 10)
        for _, given in self.each():
            report = lint(chart.CHART, given, strict=True)
            self.assertEqual([m for m in report["messages"] if m["severity"] > 1] + report["errors"], [])

    def test_every_value_file_renders_as_it_did(self):
        whole = chart.text(chart.values(chart.CHART.parents[2] / "tests" / "deploy" / "values" / f"{chart.FULL}.yaml"))
        for path, given in self.each():
            rendered = chart.text(given)
            rendered = rendered if path.stem == chart.FULL else chart.change(whole, rendered)
            golden = chart.GOLDEN / f"{path.stem}.txt"
            if "--write" in sys.argv:
                golden.write_text(rendered)
            self.assertEqual(rendered.splitlines(), golden.read_text().splitlines(), "if it should: test_chart.py --write")

    def test_kubernetes_takes_every_object(self):
        taken = set()  # most value files change a few objects only
        for _, given in self.each():
            ours = {json.dumps(o, sort_keys=True): o for o in chart.objects(given) if o["apiVersion"] in BUILT_IN}
            self.assertGreater(len(ours), 8)
            for version in KUBERNETES:
                for o in (o for whole, o in ours.items() if whole not in taken):
                    definitions.kubernetes().validate(o, version, strict=True)
            taken |= set(ours)

    @needs("" if shutil.which("node") and MODULES.exists() else "no schemas of custom resources here (scripts/deploy_tools.sh, with npm)")
    def test_the_custom_resources_are_what_their_definitions_say(self):
        custom = [o for _, given in self.each() for o in chart.objects(given) if o["apiVersion"] not in BUILT_IN and o["kind"] not in SETS]
        self.assertEqual(self.faults(custom), "")
        self.assertEqual({o["kind"] for o in custom}, {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute", "Certificate"})
        (broken,) = (o for o in chart.objects(chart.values(chart.VALUES[0].with_name("gateway.yaml"))) if o["kind"] == "HTTPRoute")
        broken["spec"]["rules"][0]["timeouts"]["request"] = "soon"
        self.assertIn("HTTPRoute", self.faults([broken]), "the check can fail")

    @needs("" if definitions.FILES else "no definition of LeaderWorkerSets here (scripts/deploy_tools.sh)")
    def test_sets_over_nodes_and_the_pods_in_them_are_what_their_definitions_say(self):
        seen = {}
        for _, given in self.each():
            sets = [o for o in chart.objects(given) if o["kind"] in SETS]
            self.assertEqual(definitions.faults(sets), [])
            seen |= {o["kind"]: o for o in sets}
            for name, labels, spec in chart.pods(sets):
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
                definitions.kubernetes().validate(pod, KUBERNETES[-1], strict=True)
        self.assertEqual(set(seen), SETS)
        seen["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["restart"] = "Never"
        seen["DisaggregatedSet"]["spec"]["roles"].pop()
        said = "\n".join(definitions.faults(seen.values()))
        self.assertIn("'restart' was unexpected", said, "the check can fail")
        self.assertIn("DisaggregatedSet spec/roles", said, "the check can fail")

    def faults(self, custom):
        program = ROOT / "tests" / "deploy" / "check_custom.js"
        return run(["node", program, MODULES], input=json.dumps(custom))


@needs(chart.why_not())
class Policy(unittest.TestCase):
    """What a cluster's admission would ask of every pod."""

    def test_no_pod_may_more_than_it_must(self):
        for path in chart.VALUES:
            rendered = chart.objects(chart.values(path))
            for name, _, spec in chart.pods(rendered):
                with self.subTest(f"{path.stem} {name}"):
                    self.assertTrue(spec["securityContext"]["runAsNonRoot"])
                    self.assertGreater(spec["securityContext"]["runAsUser"], 0)
                    self.assertEqual(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault")
                    self.assertFalse({"hostNetwork", "hostPID", "hostIPC"} & set(spec))
                    for c in spec["containers"]:
                        security = c["securityContext"]
                        self.assertFalse(security["allowPrivilegeEscalation"])
                        self.assertTrue(security["readOnlyRootFilesystem"])
                        self.assertEqual(security["capabilities"]["drop"], ["ALL"])
                        self.assertLessEqual(set(security["capabilities"].get("add", [])), {"IPC_LOCK"})
                        self.assertIn("cpu", c["resources"]["limits"])
                        self.assertIn("memory", c["resources"]["limits"])
                        if spec.get("restartPolicy") != "Never":
                            self.assertLessEqual({"startupProbe", "livenessProbe", "readinessProbe"}, set(c))

    def test_a_pod_is_killed_later_than_its_drain_ends(self):
        for path in chart.VALUES:
            for name, _, spec in chart.pods(chart.objects(chart.values(path))):
                (c,) = spec["containers"]
                drain = [a for a in c.get("args", []) if a.startswith("--shutdown-timeout-ms=")]
                if drain:
                    pause = int(c.get("lifecycle", {"preStop": {"exec": {"command": ["0"]}}})["preStop"]["exec"]["command"][-1])
                    self.assertGreaterEqual(spec["terminationGracePeriodSeconds"], pause + int(drain[0].split("=")[1]) / 1000 + 15, name)

    def test_only_routers_hold_a_token_and_it_reads_slices_of_one_namespace(self):
        rendered = chart.objects(MINIMAL)
        self.assertFalse({"ClusterRole", "ClusterRoleBinding"} & {o["kind"] for o in rendered})
        (role,) = (o for o in rendered if o["kind"] == "Role")
        self.assertEqual(role["rules"], [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}])
        for name, labels, spec in chart.pods(rendered):
            self.assertEqual(spec.get("automountServiceAccountToken", True), labels["app.kubernetes.io/component"] == "router", name)

    def test_every_flag_is_one_of_the_programs(self):
        for path in chart.VALUES:
            for name, labels, spec in chart.pods(chart.objects(chart.values(path))):
                (c,) = spec["containers"]
                if c["command"][0] != "/usr/bin/baton":
                    continue
                used = {a[2:].split("=")[0] for a in c["args"]}
                self.assertEqual(used - flags_of(c["command"][1]), set(), f"{path.stem} {name}")


# Values over the smallest ones -> what the refusal must say: the value to change.
REFUSED = [
    ({"model": {"path": ""}}, "model.path is empty"),
    ({"model": {"volume": {}}}, "model.volume must be one volume source"),
    ({"model": {"volume": {"hostPath": {"path": "/m"}}}}, "it has 2"),
    ({"model": {"path": "/m.gguf"}}, "/model/path"),
    ({"decode": {"replicas": 0}}, "decode.replicas is 0"),
    ({"prefill": {"replicas": 0}}, "prefill.replicas is 0"),
    ({"prefill": {"replicas": 0}, "decode": {"replicas": 0}}, "are all 0"),
    ({"router": {"replicas": 0}}, "/router/replicas"),
    ({"router": {"service": {"spec": {"type": "LoadBalancer"}}}}, "router.service.spec has type, which the chart sets"),
    ({"fullnameOverride": "Qwen_2"}, "/fullnameOverride"),
    ({"prefil": {"replicas": 2}}, "prefil"),
    ({"decode": {"tensorParallelSize": 3}}, "/decode/tensorParallelSize"),
    ({"decode": {"tensorParallelSize": 4}, "reductionWidth": 2}, "reductionWidth is 2, but decode.tensorParallelSize is 4"),
    ({"decode": {"device": "cuda"}}, "decode.device is cuda, but decode.resources.limits has no nvidia.com/gpu"),
    ({"both": {"replicas": 1, "device": "cuda"}}, "no nvidia.com/gpu"),
    ({"drain": {"gracePeriodSeconds": 50}}, "drain.gracePeriodSeconds is 50, but preStopSeconds + shutdownSeconds + 15 = 75"),
    ({"tls": {"mode": "secret"}}, "tls.existingSecret is empty"),
    ({"tls": {"mode": "certManager"}}, "tls.issuerRef is empty"),
    ({"tls": {"existingSecret": "certs"}}, "set tls.mode to secret"),
    ({"tls": {"mode": "none"}}, "/tls/mode"),
    ({"apiKeys": {"existingSecret": "keys", "values": ["12345678"]}}, "keep one"),
    ({"rdma": {"required": True}}, "rdma.enabled is false"),
    ({"route": {"enabled": True}}, "route.parentRefs is empty"),
    ({"prefill": {"autoscaling": {"enabled": True}}}, "autoscaler.prometheusUrl is empty"),
    ({"decode": {"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 2}}}, "minReplicas is 5, above maxReplicas 2"),
    ({"decode": {"autoscaling": {"kvUsage": 80}}}, "/decode/autoscaling/kvUsage"),
    ({"router": {"extraArgs": {"insecure": True}}}, "everybody would be trusted"),
    ({"decode": {"extraArgs": {"test-kv-fault-rate": 0.1}}}, "breaks things on purpose"),
    ({"decode": {"extraArgs": {"tensor-parallel-size": 2}}}, "which the chart sets"),
    ({"router": {"extraArgs": {"api-key": "x"}}}, "which the chart sets"),
    ({"decode": {"env": [{"name": "BATON_INSECURE", "value": "true"}]}}, "decode.env has BATON_INSECURE: pods listen on the network"),
    ({"prefill": {"env": [{"name": "BATON_TEST_KV_FAULT_RATE", "value": "1"}]}}, "breaks things on purpose"),
    ({"decode": {"resources": {"limits": None}}}, "limits"),
    ({"monitoring": {"podMonitor": {"enabled": True}}}, "networkPolicy.monitoring is empty: Prometheus could not reach"),
    ({"monitoring": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}, "networkPolicy": {"monitoring": [{"podSelector": {}}]}},
     "would scrape each router twice"),
    ({"monitoring": {"serviceMonitor": {"enabled": True}}}, "networkPolicy.monitoring is empty: Prometheus could not reach"),
    # ---- ranks and nodes
    ({"decode": {"nodes": 2, "tensorParallelSize": 2}, "reductionWidth": 2}, "set decode.kind to LeaderWorkerSet"),
    ({"decode": {"kind": "LeaderWorkerSet", "nodes": 3, "tensorParallelSize": 4}, "reductionWidth": 4}, "= 4 ranks cannot be spread evenly"),
    ({"decode": {"kind": "LeaderWorkerSet", "nodes": 4, "tensorParallelSize": 2}}, "decode.nodes is 4, but tensorParallelSize 2 × pipelineParallelSize 1 = 2"),
    ({"decode": {"kind": "LeaderWorkerSet", "nodes": 2, "tensorParallelSize": 16}}, "decode has 8 ranks on each of 2 nodes, but decode.resources.limits.cpu is 4"),
    ({"both": {"replicas": 1, "device": "cuda", "tensorParallelSize": 2, "resources": {"limits": {"nvidia.com/gpu": 1}}}},
     "both has 2 ranks on each of 1 nodes, but both.resources.limits has nvidia.com/gpu: 1"),
    ({"decode": {"exclusiveTopology": "rack"}}, "decode.exclusiveTopology is set, but decode.kind is Deployment"),
    ({"decode": {"kind": "DisaggregatedSet"}}, "decode.kind is DisaggregatedSet, but prefill.kind is Deployment"),
    ({"both": {"replicas": 1, "kind": "DisaggregatedSet"}}, "/both/kind"),
    ({"prefill": {"kind": "DisaggregatedSet", "autoscaling": {"enabled": True}}, "decode": {"kind": "DisaggregatedSet"},
      "autoscaler": {"type": "hpa"}}, "whose roles cannot be scaled one by one"),
    ({"decode": {"extraArgs": {"nnodes": 2}}}, "which the chart sets"),
    # ---- memory, RDMA
    ({"decode": {"resources": {"requests": {"memory": "16Gi"}}}}, "decode.resources.requests.memory is 16Gi, above its limit 8Gi"),
    ({"prefill": {"resources": {"requests": {"cpu": 4.5}}}}, "prefill.resources.requests.cpu is 4.5, above its limit 4"),
    ({"router": {"resources": {"limits": {"cpu": "500m"}}}}, "router.resources.requests.cpu is 1, above its limit 500m"),
    ({"shmSize": "8Gi"}, "shmSize is 8Gi, but prefill.resources.limits.memory is 8Gi"),
    ({"shmSize": "much"}, '"much" is no quantity of memory'),
    ({"rdma": {"enabled": True, "resources": None}}, "rdma.resources is empty"),
    ({"shmSize": "0"}, "shmSize is 0, which would be no limit at all"),
    ({"decode": {"kvCacheMemory": 8 << 30}}, "decode.kvCacheMemory is 8589934592, which is 8589934592 bytes for each of 1 nodes, but decode.resources.limits.memory is 8Gi"),
    ({"shmSize": "64Mi", "both": {"replicas": 1, "device": "cuda", "tensorParallelSize": 2, "resources": {"limits": {"nvidia.com/gpu": 2}}}},
     "both has 2 GPUs in a pod, and NCCL keeps its buffers in /dev/shm"),
    ({"rdma": {"enabled": True, "resources": {"rdma/ib": 0}}}, "/rdma/resources"),
    ({"decode": {"resources": {"limits": {"cpu": "four"}}}}, '"four" is no quantity of CPUs'),
    ({"model": {"volume": {"persistentVolumeClaim": None, "emptyDir": {}}}}, "model.volume is an emptyDir, but router.initContainers is empty"),
    ({"apiKeys": {"existingSecret": "Keys_1"}}, "/apiKeys/existingSecret"),
    ({"router": {"allowedOrigins": ["chat.example.com"]}}, "/router/allowedOrigins/0"),
    ({"autoscaler": {"prometheusUrl": "prometheus:9090"}}, "/autoscaler/prometheusUrl"),
    # ---- names, labels, ports
    ({"podLabels": {"app.kubernetes.io/component": "x"}}, "podLabels has app.kubernetes.io/component, which the chart sets"),
    ({"commonLabels": {"helm.sh/chart": "x"}}, "commonLabels has helm.sh/chart, which the chart sets"),
    ({"podAnnotations": {"example.com/cost": 5}}, "/podAnnotations/example.com"),
    ({"router": {"service": {"ports": {"http": 443, "grpc": 443}}}}, "are both 443"),
    ({"podDisruptionBudget": {"maxUnavailable": 0}}, "/podDisruptionBudget/maxUnavailable"),
    ({"decode": {"kind": "StatefulSet"}, "fullnameOverride": "a-name-that-has-forty-six-letters-and-no-more0"}, "-decode has 53 characters, but a StatefulSet"),
    # ---- TLS to clients
    ({"tls": {"http": {"mode": "secret"}}}, "tls.http.existingSecret is empty"),
    ({"tls": {"http": {"mode": "secret", "existingSecret": "public"}}}, "tls.http.dnsNames is empty"),
    ({"tls": {"http": {"existingSecret": "public"}}}, "set tls.http.mode to secret"),
    ({"tls": {"http": {"mode": "certManager", "dnsNames": ["a.example"]}}}, "tls.http.issuerRef is empty"),
    ({"tls": {"http": {"mode": "generate"}}, "route": {"enabled": True, "parentRefs": [{"name": "public"}]}}, "speaks plain text to routers"),
    ({"router": {"extraArgs": {"http-tls-cert": "x"}}}, "which the chart sets"),
    ({"tls": {"http": {"clientCaSecret": "clients", "clientCertSecret": "me"}}}, "nobody shows a certificate in plain text"),
    ({"tls": {"http": {"mode": "generate", "clientCaSecret": "clients"}}}, "tls.http.clientCertSecret is empty"),
    ({"tls": {"http": {"mode": "generate", "clientCertSecret": "me"}}}, "nobody would ask for that certificate"),
    ({"router": {"extraArgs": {"tls-client-ca": "x"}}}, "which the chart sets"),
]


@needs(chart.why_not())
class Refusals(unittest.TestCase):
    def test_the_smallest_values_are_taken(self):
        self.assertGreater(len(chart.objects(MINIMAL)), 10)

    def test_values_that_contradict_each_other_are_refused_with_the_one_to_change(self):
        from helm_python.errors import HelmError
        for over, said in REFUSED:
            with self.subTest(json.dumps(over)):
                with self.assertRaises(HelmError) as caught:
                    chart.files(chart.merged(MINIMAL, over))
                self.assertIn(said, str(caught.exception))


if __name__ == "__main__":
    unittest.main(argv=[a for a in sys.argv if a != "--write"])
