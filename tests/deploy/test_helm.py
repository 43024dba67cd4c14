"""Helm itself: finds nothing to say about the chart, renders what its engine alone renders, says refusals, and packs a chart that is whole."""
import os
import pathlib
import subprocess
import tarfile
import tempfile
import unittest

import chart
from object_server import ObjectServer
from test_chart import MINIMAL, REFUSED
from where import BATON, needs, needs_tool, run, tool

RENDER = ["-n", chart.NAMESPACE, "--kube-version", "1.31.0"]


def helm(*arguments, **kw):
    return run([tool("helm"), *arguments], **kw)


def named(objects):
    """(kind, name) -> object; of what is drawn at random, its keys."""
    out = {(o["kind"], o["metadata"]["name"]): o for o in objects if o}
    return {name: {**o, "data": sorted(o["data"])} if o["kind"] == "Secret" else o for name, o in out.items()}


def as_yaml(given):
    import yaml
    return yaml.safe_dump(given)


def read(text):
    import yaml
    return named(yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


@needs(chart.why_not())
@needs_tool("helm")
class Helm(unittest.TestCase):
    def test_lint_finds_nothing_without_values_and_with_any_of_ours(self):
        for given in ([], *(["--strict", "-f", path] for path in chart.VALUES)):
            with self.subTest(given):
                said = helm("lint", chart.CHART, *given)
                self.assertNotRegex(said, r"\[(WARNING|ERROR)\]")

    def test_it_renders_what_the_engine_alone_renders(self):
        for path in chart.VALUES:
            with self.subTest(path.name):
                self.assertEqual(read(helm("template", chart.RELEASE, chart.CHART, *RENDER, "-f", path)), named(chart.objects(chart.values(path))))

    def test_a_chart_that_it_has_packed_is_the_same_and_has_the_programs_version(self):
        with tempfile.TemporaryDirectory() as folder:
            helm("package", chart.CHART, "-d", folder)
            (packed,) = pathlib.Path(folder).iterdir()
            version = packed.stem.removeprefix("baton-")
            self.assertEqual(run([BATON, "version"]).split()[1], version)
            with tarfile.open(packed) as tar:
                self.assertEqual({m.name.removeprefix("baton/") for m in tar} - {".helmignore"},
                                 {str(p.relative_to(chart.CHART)) for p in chart.CHART.rglob("*") if p.is_file() and p.name != ".helmignore"})
            path = chart.VALUES[0]
            self.assertEqual(*(read(helm("template", chart.RELEASE, what, *RENDER, "-f", path)) for what in (packed, chart.CHART)))

    def test_it_says_each_refusal_in_a_sentence(self):
        for over, said in REFUSED:
            with self.subTest(str(over)):
                done = subprocess.run([tool("helm"), "template", chart.RELEASE, chart.CHART, *RENDER, "-f", "-"], capture_output=True, text=True,
                                      input=as_yaml(chart.merged(MINIMAL, over)))
                self.assertNotEqual(done.returncode, 0)
                older = said[1:].replace("/", ".") if said.startswith("/") else said  # how older ones write the path of a value
                self.assertTrue(said in done.stderr or older in done.stderr, f"{said}: {done.stderr}")

    def test_a_kubernetes_that_is_too_old_is_refused(self):
        done = subprocess.run([tool("helm"), "template", "x", chart.CHART, "--kube-version", "1.26.0", "-f", chart.VALUES[0]], capture_output=True, text=True)
        self.assertIn("requires kubeVersion: >=1.27.0-0", done.stderr)

    def test_an_upgrade_and_a_rollback_keep_what_the_first_install_made_up_and_an_uninstall_leaves_nothing(self):
        with ObjectServer() as api, tempfile.TemporaryDirectory() as folder:
            at = ["-n", chart.NAMESPACE, "--kube-apiserver", api.url, "--kube-token", "none"]
            nowhere = {**os.environ, "HOME": folder, "KUBECONFIG": f"{folder}/none"}

            def put(command, **values):
                helm(command, chart.RELEASE, chart.CHART, *at, "-f", "-", "--disable-openapi-validation",
                     input=as_yaml(chart.merged(MINIMAL, values)), env=nowhere)
                return {name: dict(o["data"]) for name, o in api.found("Secret").items()}

            args = lambda: api.found("Deployment")["prod-baton-router"]["spec"]["template"]["spec"]["containers"][0]["args"]  # noqa: E731
            made = put("install")
            self.assertEqual(set(made), {f"prod-baton-{name}" for name in ("tls", "cluster-secret", "api-keys", "hash-key")})
            self.assertIn("port-forward service/prod-baton-router", helm("get", "notes", chart.RELEASE, *at, env=nowhere))
            upgraded = put("upgrade", logFormat="text", tls={"http": {"mode": "generate"}})
            edge = upgraded.pop("prod-baton-http-tls")
            self.assertEqual(upgraded, made)
            self.assertIn("--log-format=text", args())
            self.assertEqual(put("upgrade", tls={"http": {"mode": "generate"}})["prod-baton-http-tls"], edge)
            with self.assertRaisesRegex(AssertionError, "dnsNames are llm.example now, but the certificate in Secret prod-baton-http-tls is for prod-baton-router"):
                put("upgrade", tls={"http": {"mode": "generate", "dnsNames": ["llm.example"]}})
            helm("rollback", chart.RELEASE, "1", *at, env=nowhere)
            self.assertIn("--log-format=json", args())
            self.assertEqual({name: o["data"] for name, o in api.found("Secret").items()}, made)
            helm("uninstall", chart.RELEASE, *at, env=nowhere)
            self.assertEqual(api.objects, {})


if __name__ == "__main__":
    unittest.main()
