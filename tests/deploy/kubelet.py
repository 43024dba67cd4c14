"""Starts the pods of a rendered chart on hosts that are network namespaces, with what a cluster gives them: addresses, Secrets, volumes, the
service account's token, probes, slices of the workers' service, preStop and SIGTERM at the end."""
import base64
import contextlib
import functools
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

import chart
from api_server import ApiServer, endpoint
from where import BATON

PROGRAMS = {**{f"/usr/bin/{name}": str(pathlib.Path(BATON).with_name(name)) for name in ("baton", "baton-tools")}, **{f"/usr/bin/{name}": shutil.which(name) for name in ("sh", "test", "sleep")}}
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
START_SECONDS = 60


def certificate(folder, address):
    cert, key = folder / "api.crt", folder / "api.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-keyout",
                    key, "-out", cert, "-subj", "/CN=api", "-addext", f"subjectAltName=IP:{address}"], check=True, capture_output=True)
    return cert, key


def size_of(volume):
    """What an emptyDir in memory may hold."""
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", volume.get("sizeLimit", "1Gi")).groups()
    return {"size": int(number) << {"Ki": 10, "Mi": 20, "Gi": 30}[unit]} if volume.get("medium") == "Memory" else {}


class Group:
    """A worker over the pods of several hosts, as a LeaderWorkerSet makes it: what it tells each of its containers."""

    def __init__(self, cluster, name, hosts, rendered):
        self.cluster, self.name, self.hosts, self.rendered = cluster, name, hosts, rendered
        self.leader = f"{name}-0.{name}.{cluster.namespace}"

    def run(self, index):
        """The pod of that index; the one with 0 leads."""
        host = self.hosts[index]
        pod = Pod(self.cluster, host, self.name + ("-rank" if index else ""), self.rendered, {
            "LWS_LEADER_ADDRESS": self.leader, "LWS_GROUP_SIZE": str(len(self.hosts)), "LWS_WORKER_INDEX": str(index)},
            [f"{self.cluster.hosts.address(self.hosts[0])} {self.leader}"] if index else [])
        self.cluster.pods.append(pod)
        return pod


class Pod:
    """A running container of a host; `container` is its part of the chart, `told` the environment that a controller adds, `known` lines of
    /etc/hosts beside the cluster's."""

    def __init__(self, cluster, host, name, rendered, told=None, known=()):
        self.cluster, self.host, self.name, self.told, self.known = cluster, host, name, told or {}, list(known)
        (self.labels, self.spec), = [(labels, spec) for n, labels, spec in chart.pods(rendered) if n == name]
        self.container, = self.spec["containers"]
        self.secrets = {o["metadata"]["name"]: o["data"] for o in rendered if o["kind"] == "Secret"}
        self.address, self.terminating = cluster.hosts.address(host), False
        self.ready = False  # it has passed its readiness probe
        self.log = cluster.folder / f"{host}.log"
        self.process = self.start()

    def environment(self):
        known = {"metadata.name": self.host, "status.podIP": self.address, **self.told}
        env = {"PATH": "/usr/bin", "KUBERNETES_SERVICE_HOST": self.cluster.api_address, "KUBERNETES_SERVICE_PORT": str(self.cluster.api.port),
               **self.told}
        for variable in self.container.get("env", []):
            value = variable.get("value")
            env[variable["name"]] = value if value is not None else known[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        return env

    def volumes(self):
        sources = {v["name"]: v for v in self.spec["volumes"]}
        for m in self.container["volumeMounts"]:
            v = sources[m["name"]]
            if "secret" in v:
                files = self.secrets[v["secret"]["secretName"]]
                yield {"path": m["mountPath"], "files": {i["path"]: files[i["key"]] for i in v["secret"]["items"]} if "items" in v["secret"] else files}
            elif "hostPath" in v:
                yield {"path": m["mountPath"], "bind": v["hostPath"]["path"]}
            else:
                yield {"path": m["mountPath"], "empty": True, **size_of(v["emptyDir"])}
        if self.spec.get("automountServiceAccountToken", True):
            token, ca = base64.b64encode(b"token-of-the-pod").decode(), base64.b64encode(self.cluster.api_ca.read_bytes()).decode()
            yield {"path": ACCOUNT, "files": {"token": token, "ca.crt": ca}}

    def start(self):
        env = self.environment()
        words = self.container["command"] + self.container.get("args", [])
        argv = [re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], word) for word in words]
        root = self.cluster.folder / f"{self.host}.root"
        root.mkdir(exist_ok=True)  # a pod that is there again
        image = {"image": str(self.cluster.image)} if self.cluster.image else {"programs": PROGRAMS}
        spec = {"root": str(root), **image, "volumes": list(self.volumes()), "hosts": self.cluster.names() + self.known, "argv": argv, "env": env,
                "user": self.spec["securityContext"]["runAsUser"]}
        file = self.cluster.folder / f"{self.host}.json"
        file.write_text(json.dumps(spec))
        with open(self.log, "w") as log:
            return self.cluster.hosts.run(self.host, ["unshare", "--mount", "--pid", "--fork", "--kill-child", sys.executable,
                                                      pathlib.Path(__file__).with_name("pod.py"), file], stdout=log, stderr=log)

    def pid(self):
        """The container's first process, as this machine counts."""
        return int(pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def inside(self, command):
        """Whether a command of a probe or a hook succeeds in the container; in one that has just begun, or ended, none does."""
        try:
            pid = self.pid()
        except (OSError, IndexError):
            return False
        return subprocess.run(["nsenter", "--target", str(pid), "--mount", "--root", "--", *command], capture_output=True).returncode == 0

    def probe(self, which):
        if self.process.poll() is not None:
            return False
        p = self.container[which]
        if "exec" in p:
            return self.inside(p["exec"]["command"])
        port = {q["name"]: q["containerPort"] for q in self.container["ports"]}
        if "tcpSocket" in p:
            return self.cluster.connects(self.address, port[p["tcpSocket"]["port"]])
        ask = p["httpGet"]
        return self.cluster.get(self.address, port[ask["port"]], ask["path"], ask.get("scheme") == "HTTPS") == 200

    def wait(self, which="readinessProbe"):
        deadline = time.monotonic() + START_SECONDS
        while not self.probe(which):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.host}: {which} does not pass (exit {self.process.poll()}):\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)
        self.ready = self.ready or which == "readinessProbe"

    def stop(self):
        """As a pod ends: no endpoint any more, preStop, SIGTERM, and SIGKILL after the grace period, which is a failure."""
        self.terminating = True
        self.cluster.publish()
        if "lifecycle" in self.container:
            assert self.inside(self.container["lifecycle"]["preStop"]["exec"]["command"]), "preStop failed"
        os.kill(self.pid(), signal.SIGTERM)
        code = self.process.wait(self.spec["terminationGracePeriodSeconds"])
        self.cluster.pods.remove(self)
        self.cluster.publish()
        return code


class Kubelet:
    """The hosts' pods, and the API server that tells routers of the workers. Leaving kills what is left. `image`: an unpacked layer; without
    it, pods see this machine's libraries and the few programs that the image has, too."""

    def __init__(self, hosts, api_host, service, namespace=chart.NAMESPACE, image=None):
        self.image = image
        self.hosts, self.api_host, self.service, self.namespace, self.pods = hosts, api_host, service, namespace, []
        self.api_address = hosts.address(api_host)

    def __enter__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-kubelet-"))
        self.api_ca, key = certificate(self.folder, self.api_address)
        with self.hosts.inside(self.api_host):
            self.api = ApiServer((self.api_ca, key), "token-of-the-pod", namespace=self.namespace, service=self.service,
                                 host=self.api_address)
        self.api.__enter__()
        return self

    def __exit__(self, kind, value, trace):
        for pod in self.pods:
            if kind is not None:
                print(f"── {pod.host}\n{pod.log.read_text()[-3000:]}")
            with contextlib.suppress(OSError, IndexError):
                os.kill(pod.pid(), signal.SIGKILL)
            pod.process.kill()
            pod.process.wait()
        self.api.__exit__(None, None, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, host, name, rendered):
        pod = Pod(self, host, name, rendered)
        self.pods.append(pod)
        return pod

    def names(self):
        """What a cluster's DNS would say of the routers' service: lines of /etc/hosts."""
        return [f"{pod.address} {pod.name}" for pod in self.pods if pod.name.endswith("-router") and not pod.terminating]

    def routers(self):
        """Where the routers' service sends requests."""
        return [pod.address for pod in self.pods if pod.name.endswith("-router") and pod.ready and not pod.terminating]

    def publish(self):
        """The slice of the workers' service, from the pods' readiness."""
        workers = [pod for pod in self.pods if pod.labels.get("baton/worker") == "true"]
        ready = {pod.host: pod.probe("readinessProbe") for pod in workers}
        self.api.put("workers-1", [endpoint(p.address, p.host, ready=ready[p.host] and not p.terminating, serving=ready[p.host],
                                            terminating=p.terminating) for p in workers], 9100)

    def connects(self, address, port):
        with self.hosts.inside(self.api_host), contextlib.suppress(OSError):
            socket.create_connection((address, port), timeout=5).close()
            return True
        return False

    def get(self, address, port, path, https=False):
        """The status; a kubelet believes any certificate."""
        with self.hosts.inside(self.api_host), contextlib.suppress(OSError, http.client.HTTPException):
            kind = functools.partial(http.client.HTTPSConnection, context=ssl._create_unverified_context()) if https else http.client.HTTPConnection
            with contextlib.closing(kind(address, port, timeout=5)) as connection:
                connection.request("GET", path)
                return connection.getresponse().status
        return 0
