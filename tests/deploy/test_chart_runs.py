"""The chart's own command lines bring up a cluster that answers: every container is started as rendered, each on a host of its own; `helm test`
passes when prefill took part and fails when it did not; an upgrade of every pod under load fails no request."""
import base64
import contextlib
import http.client
import json
import os
import re
import signal
import ssl
import threading
import time
import unittest

import chart
from where import BATON, ROOT, needs, run
import hosts
import kubelet

VALUES = {
    "model": {"name": "tiny", "path": "tiny-llama", "volume": {"hostPath": {"path": str(ROOT / "tests" / "data")}}, "loadFormat": "dummy"},
    "router": {"replicas": 1},
    "drain": {"preStopSeconds": 1, "shutdownSeconds": 30, "gracePeriodSeconds": 46},
    "prefill": {"extraArgs": {"threads": 1}},
    "decode": {"extraArgs": {"threads": 1}},
}
NAMES = ["control", "router-a", "router-b", "prefill-a", "prefill-b", "decode-a", "decode-b", "test-1", "test-2"]


def full(role):
    return f"{chart.RELEASE}-baton-{role}"


class Load:
    """Requests one after another, from a thread on the control host, to a router that the service has. `failed` are those that did."""

    def __init__(self, cluster, key, tokens=16):
        self.cluster, self.key, self.tokens, self.failed, self.answered, self.end = cluster, key, tokens, [], 0, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *unused):
        self.end.set()
        self.thread.join()

    def run(self):
        with self.cluster.hosts.inside("control"):
            while not self.end.is_set():
                now = self.cluster.routers()
                address = now[self.answered % len(now)]
                try:
                    said = ask(address, self.key, f"Count to {self.answered}. " * 12, tokens=self.tokens)
                    assert said["choices"][0]["finish_reason"] == "length", said
                except (AssertionError, OSError, http.client.HTTPException, KeyError) as e:
                    self.failed.append(f"{address}: {type(e).__name__} {e}")
                self.answered += 1


def secret(name, files):
    """A Secret of the operator's own."""
    return {"kind": "Secret", "metadata": {"name": name}, "data": {key: base64.b64encode(file.read_bytes()).decode() for key, file in files.items()}}


def api_key(rendered):
    return base64.b64decode(next(o for o in rendered if o["metadata"]["name"] == full("api-keys"))["data"]["keys"]).decode()


def lost_workers(machines, router, key):
    """How many workers a router has lost without a goodbye."""
    with machines.inside("control"), contextlib.closing(http.client.HTTPConnection(machines.address(router), 8002, timeout=10)) as connection:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"})
        return sum(float(n) for n in re.findall(r"^baton_worker_losses_total\S* (\S+)$", connection.getresponse().read().decode(), re.M))


def ask(address, key, prompt, tls=None, tokens=16):
    connection = http.client.HTTPSConnection(address, 8000, timeout=30, context=tls) if tls else http.client.HTTPConnection(address, 8000, timeout=30)
    with contextlib.closing(connection):
        body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True})
        connection.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, f"{response.status} {text}"
        return json.loads(text)


@unittest.skipIf(hosts.why_not(), hosts.why_not())
@needs(chart.why_not())
class Runs(unittest.TestCase):
    def test_the_rendered_cluster_answers_and_an_upgrade_under_load_fails_nobody(self):
        rendered = chart.objects(VALUES)
        key = api_key(rendered)
        with hosts.Hosts(NAMES) as machines, kubelet.Kubelet(machines, "control", full("workers")) as cluster:
            old = {role: cluster.run(f"{role}-a", full(role), rendered) for role in ("router", "prefill", "decode")}
            for pod in old.values():
                pod.wait("startupProbe")
                self.assertTrue(pod.probe("livenessProbe"))
            self.assertFalse(old["router"].probe("readinessProbe"), "no worker is in the slices yet")
            cluster.publish()
            old["router"].wait()
            self.helm_test(cluster, "test-1", rendered)
            upgraded = self.upgraded(rendered)
            with Load(cluster, key) as load:
                for role in ("decode", "prefill", "router"):
                    self.replace(cluster, old[role], upgraded, surge=role != "prefill")
                answered = load.answered
                while load.answered < answered + 20:
                    load.end.wait(0.05)
            self.assertEqual(load.failed, [], f"of {load.answered}")
            self.assertGreater(load.answered, 30)
            print(f"    an upgrade of every pod: {load.answered} requests, none failed", flush=True)
            self.helm_test(cluster, "test-2", [*upgraded])

    def test_nodes_that_die_during_an_upgrade_fail_nobody(self):
        names = [*NAMES, "prefill-c", "decode-c"]
        rendered = chart.objects(chart.merged(VALUES, {"prefill": {"replicas": 2}, "decode": {"replicas": 2}}))
        key = api_key(rendered)
        with hosts.Hosts(names) as machines, kubelet.Kubelet(machines, "control", full("workers")) as cluster, contextlib.ExitStack() as stack:
            old = {name: cluster.run(name, full(name[:-2]), rendered) for name in ("router-a", "prefill-a", "prefill-c", "decode-a", "decode-c")}
            for pod in old.values():
                pod.wait("startupProbe")
            cluster.publish()
            old["router-a"].wait()
            loads = [stack.enter_context(Load(cluster, key, tokens=100)) for _ in range(4)]
            upgraded, lost = self.upgraded(rendered), []
            for role in ("decode", "prefill", "router"):
                if role != "router":  # a node drops off the network, which the slices go on naming; nothing says goodbye
                    lost.append(f"{role}-c")
                    machines.cut(*lost)
                self.replace(cluster, old[f"{role}-a"], upgraded, surge=role != "prefill")
                if role != "router":
                    self.until(lambda: lost_workers(machines, "router-a", key) >= len(lost), f"the router misses {lost}")
            answered = [load.answered for load in loads]
            self.until(lambda: all(load.answered > n + 5 for load, n in zip(loads, answered)), "requests after it")
            for load in loads:
                self.assertEqual(load.failed, [], f"of {load.answered}")
            print(f"    an upgrade in which two nodes died: {sum(load.answered for load in loads)} requests, none failed", flush=True)

    def until(self, condition, what, seconds=30):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.05)

    def upgraded(self, rendered, **values):
        """The chart with another value."""
        return [*(o for o in rendered if o["kind"] == "Secret"),  # which an upgrade finds in the cluster and keeps
                *(o for o in chart.objects({**VALUES, **(values or {"logFormat": "text"})}) if o["kind"] != "Secret")]

    def replace(self, cluster, pod, rendered, surge):
        """As the strategies say: with surge the new pod is ready before the old one goes."""
        host = pod.host.replace("-a", "-b")
        if not surge:
            self.assertEqual(pod.stop(), 0, pod.log.read_text()[-2000:])
        new = cluster.run(host, pod.name, rendered)
        new.wait("startupProbe")
        cluster.publish()
        new.wait()
        if surge:
            self.assertEqual(pod.stop(), 0, pod.log.read_text()[-2000:])

    def helm_test(self, cluster, host, rendered):
        pod = cluster.run(host, full("test"), rendered)
        code = pod.process.wait(60)
        said = pod.log.read_text()
        self.assertEqual(code, 0, said)
        self.assertIn("A prefill worker computed the prompt", said)

    def test_helm_test_fails_when_prefill_took_no_part(self):
        lazy = {**VALUES, "router": {"replicas": 1, "extraArgs": {"local-prefill-max-tokens": 1000000}}}
        rendered = chart.objects(lazy)  # decode workers compute every prompt themselves
        with hosts.Hosts(NAMES) as machines, kubelet.Kubelet(machines, "control", full("workers")) as cluster:
            for role in ("prefill", "decode", "router"):
                cluster.run(f"{role}-a", full(role), rendered).wait("startupProbe")
            cluster.publish()
            cluster.pods[-1].wait()
            pod = cluster.run("test-1", full("test"), rendered)
            self.assertEqual(pod.process.wait(60), 1, pod.log.read_text())
            self.assertIn("No prefill worker took part", pod.log.read_text())

    def test_workers_over_two_nodes_hand_over_and_a_group_ends_and_returns_together(self):
        spread = {"kind": "LeaderWorkerSet", "nodes": 2, "tensorParallelSize": 2}
        rendered = chart.objects(chart.merged(VALUES, {"prefill": spread, "decode": spread, "tls": {"http": {"mode": "generate"}}, "reductionWidth": 2}))
        with hosts.Hosts(NAMES) as machines, kubelet.Kubelet(machines, "control", full("workers")) as cluster:
            prefill, decode = (kubelet.Group(cluster, full(role), [f"{role}-a", f"{role}-b"], rendered) for role in ("prefill", "decode"))
            router = cluster.run("router-a", full("router"), rendered)
            for index in (1, 0):  # no order is promised
                prefill.run(index)
            for test in ("test-1", "test-2"):
                pods = [decode.run(index) for index in (1, 0)]
                for pod in [p for p in cluster.pods if p.labels["app.kubernetes.io/component"] in ("prefill", "decode")]:
                    pod.wait()
                    self.assertTrue(pod.probe("livenessProbe"))
                cluster.publish()
                router.wait()
                self.helm_test(cluster, test, rendered)  # by https
                os.kill(pods[0].pid(), signal.SIGKILL)  # its node dies: the set makes the group anew
                self.assertEqual(pods[1].process.wait(10), 7, pods[1].log.read_text()[-2000:])
                self.assertIn("rank 1", pods[1].log.read_text().splitlines()[-1])
                for pod in pods:
                    pod.process.wait(10)
                    cluster.pods.remove(pod)
                cluster.publish()

    def test_clients_show_a_certificate_where_values_ask_for_it(self):
        http = {"mode": "generate", "clientCaSecret": "clients", "clientCertSecret": "client"}
        with hosts.Hosts(NAMES) as machines, kubelet.Kubelet(machines, "control", full("workers")) as cluster:
            ours, theirs = cluster.folder / "ours", cluster.folder / "theirs"
            run([BATON, "certs", ours])
            run([BATON, "certs", theirs])
            rendered = [*chart.objects({**VALUES, "tls": {"http": http}}), secret("clients", {"ca.crt": ours / "ca.crt"}),
                        secret("client", {"tls.crt": ours / "client.crt", "tls.key": ours / "client.key"})]
            for role in ("prefill", "decode", "router"):
                cluster.run(f"{role}-a", full(role), rendered).wait("startupProbe")
            cluster.publish()
            cluster.pods[-1].wait()  # the kubelet's probes have no certificate
            self.assertTrue(cluster.pods[-1].probe("livenessProbe"))
            self.helm_test(cluster, "test-1", rendered)
            given = {o["metadata"]["name"]: o["data"] for o in rendered if o["kind"] == "Secret"}
            address, key = machines.address("router-a"), api_key(rendered)
            (cluster.folder / "public.crt").write_bytes(base64.b64decode(given[full("http-tls")]["ca.crt"]))
            with machines.inside("control"):
                for who, refused in ((None, True), (theirs, True), (ours, False)):
                    tls = ssl.create_default_context(cafile=cluster.folder / "public.crt")
                    tls.check_hostname = False  # asked by address
                    if who:
                        tls.load_cert_chain(who / "client.crt", who / "client.key")
                    with self.assertRaises(OSError) if refused else contextlib.nullcontext():
                        self.assertEqual(ask(address, key, "Who are you?", tls)["usage"]["completion_tokens"], 16)

    def test_generators_on_two_hosts_begin_together_and_are_one_report(self):
        begin = time.monotonic()
        rendered = chart.objects(VALUES)
        slow = 2 * (time.monotonic() - begin)  # the chart is rendered once more before they start
        index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        with hosts.Hosts(NAMES) as machines, kubelet.Kubelet(machines, "control", full("workers")) as cluster:
            for role in ("prefill", "decode", "router"):
                cluster.run(f"{role}-a", full(role), rendered).wait("startupProbe")
            cluster.publish()
            cluster.pods[-1].wait()
            start, pods = int(time.time() + 8 + slow), []
            job = self.upgraded(rendered, loadTest={"startAt": start, "numPrompts": 12, "requestRate": 12, "inputTokens": 64, "outputTokens": 8})
            for n in range(2):
                pods.append(kubelet.Pod(cluster, f"test-{n + 1}", full(f"load-{start}"), job, {index: str(n)}))
                cluster.pods.append(pods[-1])
            results = []
            for n, pod in enumerate(pods):
                self.assertEqual(pod.process.wait(90), 0, pod.log.read_text()[-2000:])
                results.append(cluster.folder / f"{n}.json")
                results[-1].write_text(pod.log.read_text())
            said = run([BATON, "bench", "--merge", *results, "--save-result", "--result-dir", cluster.folder, "--result-filename", "all.json"])
            merged, each = json.loads((cluster.folder / "all.json").read_text()), [json.loads(r.read_text()) for r in results]
            self.assertEqual((merged["completed"], [e["completed"] for e in each]), (24, [12, 12]), said)
            self.assertLess(abs(each[0]["started_at"] - each[1]["started_at"]), 1)

    def test_the_roles_of_a_disaggregated_set_serve_together_in_a_cluster_of_ipv6_addresses_alone(self):
        rendered = chart.objects(chart.merged(VALUES, {"prefill": {"kind": "DisaggregatedSet"}, "decode": {"kind": "DisaggregatedSet"},
                                                       "listenAddress": "::"}))
        with hosts.Hosts(NAMES, six=True) as machines, kubelet.Kubelet(machines, "control", full("workers")) as cluster:
            for role in ("prefill", "decode"):
                kubelet.Group(cluster, full(role), [f"{role}-a"], rendered).run(0).wait()
            router = cluster.run("router-a", full("router"), rendered)
            cluster.publish()
            router.wait()
            self.helm_test(cluster, "test-1", rendered)


if __name__ == "__main__":
    unittest.main()
