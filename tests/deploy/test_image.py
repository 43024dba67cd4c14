"""The container image: the same twice, small, without rights, listed; and compose.yaml's router, prefill and decode worker run from it and
answer with a real model."""
import base64
import contextlib
import functools
import http.client
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

import chart  # the folder of fetched packages
import compose
from test_package import build_package
from where import ROOT, TOOLS, index_is_away, model, needs, needs_tool, run, tool
import hosts
import kubelet
from test_chart_runs import NAMES, VALUES, ask, full

sys.path.insert(0, str(ROOT / "deploy" / "container"))
import build_image  # noqa: E402

build_image.files_of = functools.cache(build_image.files_of)  # of packages that do not change; the archive itself another process builds

MOST_BYTES = 250 * 10**6
PLUGIN = os.environ.get("BATON_EMULATED_PLUGIN", "")
COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
RULES = ROOT / "deploy" / "helm" / "baton" / "files" / "rules.yaml"
ENGINE = ["podman", "podman-compose", "crun", "curl"]
QUESTION = {"messages": [{"role": "user", "content": "Say in one sentence what a relay race is. " * 12}], "max_tokens": 8, "temperature": 0}
VARIABLES = {"MODEL": "model.gguf", "BATON_API_KEY": "a-key-of-ours"}


def why_not():
    if not all(map(shutil.which, ("dpkg-shlibdeps", "file", "apt-get"))):
        return "no apt-get, dpkg-dev or file here: images are made of Debian's packages"
    release = pathlib.Path("/etc/debian_version")
    return "" if release.exists() and release.read_text().startswith("12") else "not Debian 12, whose packages an image is made of"


def why_not_run():
    if os.geteuid() != 0:
        return "containers on hosts of their own need root (namespaces)"
    return ("" if model() else "the demo model is not here") or hosts.why_not() or chart.why_not()


@unittest.skipIf(why_not(), why_not())
class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="baton-image-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.package = build_package(cls.folder / "package")
        cls.archive = cls.folder / "baton.tar"
        program = ROOT / "deploy" / "container" / "build_image.py"
        said = subprocess.run([sys.executable, program, cls.package, cls.archive, "--cache", TOOLS / "packages"], capture_output=True, text=True)
        if said.returncode != 0 and index_is_away(said.stderr):
            raise unittest.SkipTest("no packages for an image: the package index is away")
        assert said.returncode == 0, said.stderr
        print(f"    {said.stdout.strip()}", flush=True)
        cls.blobs = cls.folder / "blobs"
        with tarfile.open(cls.archive) as tar:
            tar.extractall(cls.blobs, filter="data")
        (cls.load,) = json.loads((cls.blobs / "manifest.json").read_text())
        cls.config = json.loads((cls.blobs / cls.load["Config"]).read_text())["config"]
        cls.root = cls.folder / "root"
        (cls.layer,) = cls.load["Layers"]
        with tarfile.open(cls.blobs / cls.layer) as tar:
            cls.members = {m.name: m for m in tar}
            tar.extractall(cls.root, filter="fully_trusted")

    def packed_again(self):
        """Baton's package as another run of cpack would make it: the same files, later."""
        tree, out = self.folder / "again", self.folder / "again.deb"
        run(["dpkg-deb", "-R", self.package, tree])
        for path in tree.rglob("*"):
            os.utime(path, (2e9, 2e9), follow_symlinks=False)
        run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, out])
        return out

    def packages(self):
        """Name -> file of the packages that the image was made of."""
        listed = json.loads(pathlib.Path(f"{self.archive}.spdx.json").read_text())["packages"]
        return {p["name"]: build_image.archive(p["name"], p["versionInfo"], TOOLS / "packages")
                for p in listed if p["SPDXID"].startswith("SPDXRef-deb-") and p["name"] != "baton"}

    def test_a_second_build_has_the_same_digest(self):
        again = self.packed_again()
        self.assertNotEqual(again.read_bytes(), self.package.read_bytes(), "of the same program, at another time")
        raw = build_image.layer(self.packages(), again)
        whole = json.loads((self.blobs / self.load["Config"]).read_text())
        self.assertEqual([build_image.digest(raw)], whole["rootfs"]["diff_ids"])
        (image,) = json.loads((self.blobs / "index.json").read_text())["manifests"]
        manifest = json.loads((self.blobs / "blobs" / "sha256" / image["digest"][7:]).read_text())
        self.assertEqual([self.layer], ["blobs/sha256/" + layer["digest"][7:] for layer in manifest["layers"]])
        with open(self.blobs / self.layer, "rb") as packed:
            self.assertEqual(packed.read(10)[4:8], bytes(4), "gzip's own time")

    def test_it_is_small_and_has_no_package_manager(self):
        self.assertLess(sum(m.size for m in self.members.values()), MOST_BYTES)
        self.assertEqual(sorted(n for n in self.members if n.startswith("usr/bin/")), [f"usr/bin/{p}" for p in ("[", "baton", "baton-tools", "dash", "sh", "sleep", "test")])

    def test_nobody_becomes_root_in_it(self):
        self.assertEqual(self.config["User"], "10001:10001")
        self.assertEqual([n for n, m in self.members.items() if m.mode & 0o6000], [])
        self.assertEqual({n for n, m in self.members.items() if m.uid or (m.mode & 0o002 and not m.issym())}, {"tmp", "run/baton", "etc/baton/tls"})

    def test_its_list_of_contents_is_within_and_beside_it_and_names_versions(self):
        beside = json.loads(pathlib.Path(f"{self.archive}.spdx.json").read_text())
        self.assertEqual(beside, json.loads((self.root / "usr/share/baton/sbom.spdx.json").read_text()))
        names = {p["name"]: p for p in beside["packages"]}
        self.assertLessEqual({"baton", "libc6", "libgrpc++1.51", "libspdlog1.10", "tokenizers", "minijinja"}, set(names))
        self.assertTrue(all(p["versionInfo"] and p["externalRefs"] for p in names.values()))
        copyrights = {n.split("/")[3] for n in self.members if n.startswith("usr/share/doc/") and n.endswith("/copyright")}
        self.assertLessEqual({"baton", "libc6", "libssl3"}, copyrights, "licences come along")

    def test_every_library_that_it_loads_is_within(self):
        said = run(["chroot", self.root, "/usr/lib64/ld-linux-x86-64.so.2", "--list", "/usr/bin/baton"]) if os.geteuid() == 0 else "libc.so.6"
        self.assertNotIn("not found", said)
        self.assertIn("libc.so.6", said)

    @unittest.skipIf(why_not_run(), why_not_run())
    def test_what_compose_starts_answers_with_a_real_model(self):
        models = self.folder / "models"
        models.mkdir()
        os.link(model(), models / "model.gguf") if os.stat(model()).st_dev == os.stat(models).st_dev else shutil.copy(model(), models / "model.gguf")
        services = compose.load(COMPOSE.read_text(), {**VARIABLES, "MODELS": str(models)})["services"]
        certificates = self.folder / "certificates"
        certificates.mkdir()
        os.chown(certificates, 10001, 10001)
        names = ["certificates", "prefill", "decode", "router"]
        self.assertEqual(set(names), {name for name, service in services.items() if "profiles" not in service})
        with hosts.Hosts(names) as machines, contextlib.ExitStack() as stack:
            known = [f"{machines.address(name)} {name}" for name in names]

            def start(name):
                spec = compose.specification(services[name], self.config, {"certificates": certificates}, known)
                root = self.folder / f"{name}.root"
                root.mkdir()
                spec.update(root=str(root), image=str(self.root))
                file = self.folder / f"{name}.json"
                file.write_text(json.dumps(spec))
                log = stack.enter_context(open(self.folder / f"{name}.log", "w"))
                process = machines.run(name, ["unshare", "--mount", "--pid", "--fork", "--kill-child", sys.executable,
                                              pathlib.Path(__file__).with_name("pod.py"), file], stdout=log, stderr=log)
                stack.callback(process.wait)
                stack.callback(process.kill)
                return process

            self.assertEqual(start("certificates").wait(30), 0, (self.folder / "certificates.log").read_text())
            processes = [start(name) for name in names[1:]]
            with machines.inside("certificates"):
                said = self.ask(machines.address("router"), processes)
            self.assertEqual(said["choices"][0]["finish_reason"], "length")
            self.assertIn("transfer_ms", said["timings"], "the prefill worker took part")
            self.assertTrue(said["choices"][0]["message"]["content"].strip())

    @unittest.skipIf(why_not_run(), why_not_run())
    @needs("" if all(map(shutil.which, ENGINE)) else f"{', '.join(ENGINE)}: one is not installed (scripts/deploy_tools.sh --root)")
    def test_a_container_engine_starts_compose_as_it_stands_and_it_answers(self):
        folder = self.folder / "engine"
        (folder / "models").mkdir(parents=True)
        shutil.copy(model(), folder / "models" / "model.gguf")
        (folder / "question").write_text(json.dumps(QUESTION))
        names = ["certificates", "prefill", "decode", "router"]
        given = {**os.environ, **VARIABLES, "MODELS": str(folder / "models"), "IMAGE": "localhost/baton:0.1.0"}
        program = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", pathlib.Path(__file__).with_name("engine.sh")]
        done = subprocess.run([*map(str, program), folder, self.archive, COMPOSE, *names], env=given, capture_output=True, text=True, timeout=240)
        if done.returncode == 77:
            raise unittest.SkipTest(done.stdout.strip())
        logs = "\n".join(file.read_text()[-1500:] for file in folder.glob("*.log"))
        self.assertEqual(done.returncode, 0, f"{done.stdout}{done.stderr}\n{logs}")
        answer = (folder / "answer").read_text()
        self.assertTrue(answer, f"no answer; /ready said: {(folder / 'ready').read_text()[-500:]}\n{done.stderr}\n{logs}")
        said = json.loads(answer)
        self.assertIn("transfer_ms", said.get("timings", {}), f"the prefill worker took part\n{said}\n{logs}")
        self.assertTrue(said["choices"][0]["message"]["content"].strip())
        self.assertIn("ready in", (folder / "prefill.log").read_text(), "an engine keeps what a container says")

    @unittest.skipIf(why_not_run(), why_not_run())
    def test_the_charts_pods_run_from_it_and_its_helm_test_passes(self):
        rendered = chart.objects(VALUES)
        with hosts.Hosts(NAMES) as machines, kubelet.Kubelet(machines, "control", full("workers"), image=self.root) as cluster:
            for role in ("prefill", "decode", "router"):
                cluster.run(f"{role}-a", full(role), rendered).wait("startupProbe")
            cluster.publish()
            cluster.pods[-1].wait()
            pod = cluster.run("test-1", full("test"), rendered)
            self.assertEqual(pod.process.wait(60), 0, pod.log.read_text())
            for pod in [p for p in cluster.pods if p.process.poll() is None]:
                self.assertEqual(pod.stop(), 0, pod.log.read_text()[-2000:])

    @unittest.skipUnless(PLUGIN and os.path.exists(PLUGIN), "no emulated plugin was built")
    @unittest.skipIf(why_not_run(), why_not_run())
    def test_with_the_plugin_it_serves_from_a_gpu(self):
        packages, plugin = self.packages(), pathlib.Path(PLUGIN)  # the emulator's: it needs no driver
        raw = build_image.layer(packages, self.package, plugin)
        self.assertEqual(build_image.digest(raw), build_image.digest(build_image.layer(packages, self.package, plugin)), "a second build")
        files, _ = build_image.image(raw, "0.1.0", cuda=True)
        (load,) = json.loads(files["manifest.json"])
        config = json.loads(files[load["Config"]])["config"]
        self.assertEqual((load["RepoTags"], config["Labels"]["org.opencontainers.image.title"]), (["baton-cuda:0.1.0"], "baton-cuda"))
        self.assertIn("NVIDIA_DRIVER_CAPABILITIES=compute,utility", config["Env"])
        self.assertEqual(config["User"], "10001:10001")
        root = self.folder / "cuda"
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            self.assertLess(sum(m.size for m in tar), MOST_BYTES)
            tar.extractall(root, filter="fully_trusted")
        listed = {p["name"]: p["versionInfo"] for p in json.loads((root / "usr/share/baton/sbom.spdx.json").read_text())["packages"]}
        self.assertEqual(listed["nvidia-cuda-runtime"], "13.0.96")
        values = {**VALUES, "model": {**VALUES["model"], "maxModelLen": 576}, "prefill": {"replicas": 0}, "decode": {"replicas": 0},
                  "both": {"replicas": 1, "device": "cuda", "kvCacheMemory": 8 << 20, "extraArgs": {"threads": 1, "max-num-seqs": 4},
                           "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "1", "memory": "4Gi"}}}}
        rendered = chart.objects(values)
        with hosts.Hosts(NAMES) as machines, kubelet.Kubelet(machines, "control", full("workers"), image=root) as cluster:
            worker, router = (cluster.run(f"{host}-a", full(role), rendered) for host, role in (("decode", "both"), ("router", "router")))
            worker.wait()
            cluster.publish()
            router.wait()
            key = base64.b64decode(next(o for o in rendered if o["metadata"]["name"] == full("api-keys"))["data"]["keys"]).decode()
            with machines.inside("control"):
                said = ask(machines.address("router-a"), key, "Who runs last?")
            self.assertEqual(said["usage"]["completion_tokens"], 16)
            self.assertIn("ISA emulated", worker.log.read_text())

    def ask(self, address, processes, seconds=60):
        headers = {"Authorization": f"Bearer {VARIABLES['BATON_API_KEY']}", "Content-Type": "application/json"}
        deadline = time.monotonic() + seconds
        while True:
            text = ""
            with contextlib.suppress(OSError), contextlib.closing(http.client.HTTPConnection(address, 8000, timeout=30)) as connection:
                connection.request("GET", "/ready")
                text = connection.getresponse().read().decode()
            if '"ready"' in text:
                break
            logs = "\n".join(p.read_text()[-1500:] for p in self.folder.glob("*.log"))
            self.assertTrue(time.monotonic() < deadline and all(p.poll() is None for p in processes), f"not ready: {text}\n{logs}")
            time.sleep(0.1)
        with contextlib.closing(http.client.HTTPConnection(address, 8000, timeout=60)) as connection:
            for wrong in ({}, headers):
                connection.request("POST", "/v1/chat/completions", json.dumps(QUESTION), wrong)
                response = connection.getresponse()
                said = response.read().decode()
                self.assertEqual(response.status, 200 if wrong else 401, said)
        return json.loads(said)


class Compose(unittest.TestCase):
    @needs("" if shutil.which("docker-compose") else "docker-compose is not installed (scripts/deploy_tools.sh --root)")
    def test_its_own_tool_takes_it_alone_with_monitoring_and_with_tls(self):
        import yaml
        given = {**os.environ, **VARIABLES, "MODELS": "/models", "HTTP_TLS": "/certificate"}
        compose_tool = ["docker-compose", "-f", COMPOSE]
        plain = yaml.safe_load(run([*compose_tool, "config"], env=given))["services"]
        self.assertEqual({name: service.get("profiles") for name, service in plain.items()},
                         {"certificates": None, "prefill": None, "decode": None, "router": None, "prometheus": ["monitoring"], "grafana": ["monitoring"]})
        secured = yaml.safe_load(run([*compose_tool, "-f", COMPOSE.with_name("tls.yaml"), "--profile", "monitoring", "config"], env=given))["services"]
        self.assertIn("--insecure-no-tls", plain["router"]["command"])
        self.assertNotIn("--insecure-no-tls", secured["router"]["command"])
        self.assertIn("/certificate:/etc/baton/http-tls:ro", secured["router"]["volumes"])
        self.assertIn("/models:/models:ro", secured["router"]["volumes"], "the first file's stay")
        self.assertIn(f"{COMPOSE.parent}/prometheus-https.yml:/etc/prometheus/prometheus.yml:ro", secured["prometheus"]["volumes"])

    @needs(chart.why_not())
    def test_images_of_others_are_pinned_and_what_they_mount_is_here(self):
        import yaml
        services = compose.load(COMPOSE.read_text(), {**VARIABLES, "MODELS": "/m"})["services"]
        for name in ("prometheus", "grafana"):
            self.assertRegex(services[name]["image"], r":v?[0-9.]+@sha256:[0-9a-f]{64}$")
            for volume in services[name]["volumes"]:
                source = volume.split(":")[0]
                self.assertTrue(not source.startswith(".") or (COMPOSE.parent / source).exists(), source)
        for file in (COMPOSE.parent / "grafana").rglob("*.yaml"):
            self.assertEqual(yaml.safe_load(file.read_text())["apiVersion"], 1)

    @needs_tool("promtool")
    def test_prometheus_takes_its_files(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("prometheus.yml", "prometheus-https.yml"):
                text = (COMPOSE.parent / name).read_text().replace("/etc/prometheus/rules.yaml", str(RULES))
                file = pathlib.Path(folder) / name
                file.write_text(text)
                self.assertIn("SUCCESS", run([tool("promtool"), "check", "config", file]))

    @needs(chart.why_not())
    def test_what_must_be_said_is_asked_for(self):
        for name in ("MODELS", "MODEL", "BATON_API_KEY"):
            given = {k: v for k, v in {**VARIABLES, "MODELS": "/m"}.items() if k != name}
            with self.assertRaisesRegex(KeyError, name):
                compose.load(COMPOSE.read_text(), given)

    @needs(chart.why_not())
    def test_no_container_may_more_than_it_must(self):
        for name, service in compose.load(COMPOSE.read_text(), {**VARIABLES, "MODELS": "/m"})["services"].items():
            self.assertTrue(service["read_only"], name)
            self.assertEqual(service["cap_drop"], ["ALL"], name)
            self.assertTrue(all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name)


if __name__ == "__main__":
    unittest.main()
