"""What docs/kubernetes.md and docs/security.md tell operators to type and to write works as it stands there. Commands that need an API server
or a container engine are held to what can be known without: the chart that they name renders, the file that they load is the one that is made.
The commands of docs/bare-metal.md are run by test_package.py, on a fresh machine."""
import contextlib
import json
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

import chart
from where import BATON, ROOT, needs, run, shell_lines, tool
from harness import Cluster

MAKE = (ROOT / "Makefile").read_text()
ELSEWHERE = {  # without an API server or an engine not run here, and why that is enough
    "helm test": "the pod that it starts is run by test_chart_runs.py",
    "helm rollback": "an upgrade to the values before, which test_chart_runs.py makes pod by pod",
    "docker load": "the archive is read by test_image.py",
    "kubectl -n": "the Job's pods are run, and their logs merged, by test_chart_runs.py",
    "for i": "the same",
}


def text(document):
    return (ROOT / "docs" / document).read_text()


def values(document):
    import yaml
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text(document), re.M | re.S)]


@needs(chart.why_not())
class Kubernetes(unittest.TestCase):
    def test_every_command_is_run_or_known(self):
        run_here, told = set(), set()
        for line in shell_lines("kubernetes.md"):
            words = line.split()
            name = " ".join(words[:2])
            if words[0].startswith("start="):
                self.assertGreater(int(run(["bash", "-c", f"{line}; echo $start"])), time.time())
            elif words[0] == "baton":
                flags = {word for word in words if word.startswith("--")}
                self.assertEqual({f for f in flags if f not in run([BATON, "help", words[1]])}, set(), line)
            elif words[0] == "make":
                self.assertRegex(MAKE, rf"(?m)^{words[1]}:", line)
            elif name in ("helm install", "helm upgrade"):
                self.renders(words)
                run_here.add(name)
            else:
                self.assertIn(name, ELSEWHERE, f"{line}: nobody has tried this")
                told.add(name)
        self.assertEqual((run_here, told), ({"helm install", "helm upgrade"}, set(ELSEWHERE)))

    def renders(self, words):
        release, folder, space = words[2], words[3], words[words.index("-n") + 1]
        self.assertTrue((ROOT / folder / "Chart.yaml").exists(), words)
        given = values("kubernetes.md")[0]
        for key, value in re.findall(r"--set (\S+?)=(\S+)", " ".join(words)):
            for part in reversed(key.split(".")):
                value = {part: int(value.replace("$start", "1900000000")) if isinstance(value, str) else value}
            given = chart.merged(given, value)
        self.assertGreater(len(chart.objects(given, name=release, namespace=space)), 10)
        if helm := tool("helm"):
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(re.search(r"^```yaml\n(.*?)^```", text("kubernetes.md"), re.M | re.S)[1])
                file.flush()
                run([helm, "template", release, ROOT / folder, "-n", space, "--kube-version", "1.31.0", "-f", file.name])

    def test_every_piece_of_values_renders_over_the_first(self):
        first, *others = values("kubernetes.md")
        self.assertGreaterEqual(len(others), 2)
        for over in others:
            over = {**over, "reductionWidth": 8, **({"decode": {**over["decode"], "resources": {"limits": {"cpu": "8", "memory": "8Gi"}}}}
                                                    if "decode" in over else {})}
            self.assertGreater(len(chart.objects(chart.merged(first, over))), 10)

    def test_what_is_loaded_is_what_make_writes(self):
        for archive in re.findall(r"build/image/\S+\.tar", text("kubernetes.md")):
            self.assertIn(archive.strip("`"), MAKE)

    def test_inline_commands_name_what_there_is(self):
        for target in re.findall(r"`make ([a-z-]+)`", text("kubernetes.md")):
            self.assertRegex(MAKE, rf"(?m)^{target}:")

    def test_values_that_are_named_are_values(self):
        import yaml
        known = yaml.safe_load((chart.CHART / "values.yaml").read_text())
        named = [path for path in re.findall(r"`([a-z]\w+(?:\.\w+)+)`", text("kubernetes.md")) if path.split(".")[0] in known]
        self.assertGreater(len(named), 8)
        for path in named:
            at = known
            for key in path.split("."):
                self.assertIn(key, at, path)
                at = at[key]


class EveryDocument(unittest.TestCase):
    def test_a_command_that_is_shown_is_one_of_the_programs_with_its_flags(self):
        """Also where no test runs it: other machines, models that are not here."""
        flags, tried = {}, 0
        for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
            for line in shown(path.read_text()):
                if not (found := re.match(r"(?:build/)?baton ([a-z]+)\b(.*)", line)):
                    continue
                command, rest = found.groups()
                if command not in flags:
                    flags[command] = set(re.findall(r"--([a-z][a-z0-9-]*)", run([BATON, "help", command])))
                given = {re.sub(r"^(prefill|decode|both)\.", "", flag) for flag in re.findall(r"(?:^|\s)--([a-z][a-z0-9.-]*)", rest)}
                self.assertEqual(given - flags[command], set(), f"{path.name}: {line}")
                tried += 1
        self.assertGreater(tried, 30)

    def test_a_body_that_curl_is_shown_with_is_json(self):
        bodies = [body for path in sorted((ROOT / "docs").glob("*.md")) for body in re.findall(r"^curl [^']*(?:'[^'{]*'[^']*)*-d '({.*?})'", path.read_text(), re.M | re.S)]
        self.assertGreaterEqual(len(bodies), 3)
        for body in bodies:
            self.assertTrue(json.loads(body), body)


def shown(document):
    """The lines of a document's blocks of commands, continued ones as one, without their comments."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", document, re.M | re.S):
        if language in ("", "sh"):
            yield from (re.sub(r"\s+# .*", "", line).strip() for line in block.replace("\\\n", " ").splitlines())


class Security(unittest.TestCase):
    def test_the_secret_that_is_shown_is_taken_and_a_line_of_keys_is_read(self):
        self.assertEqual(list(shell_lines("security.md")), [], "a command that nobody has tried")
        (keys,) = re.findall(r"^```\n(sk-.*?)^```", text("security.md"), re.M | re.S)
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            folder = pathlib.Path(name)
            (folder / "keys").write_text(keys.replace("…", "0123456789abcdef"))
            (folder / "secret").write_bytes(subprocess.run(re.search(r"`(openssl rand [^`]+)`", text("security.md"))[1].split(), check=True,
                                                           capture_output=True).stdout)
            (folder / "secret").chmod(0o600)
            c = stack.enter_context(Cluster(args=["--both", 1, "--api-key-file", folder / "keys", "--cluster-secret-file", folder / "secret"]))
            key = keys.split()[0].replace("…", "0123456789abcdef")
            self.assertEqual(c.get("/v1/models").status, 401)
            self.assertEqual(c.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status, 200)
            self.assertRegex(c.get("/metrics").body, r'baton_key_requests_total{[^}]*key="alice"')

    def test_flags_that_are_named_are_flags(self):
        known = {flag for who in ("router", "worker", "serve") for flag in re.findall(r"--([a-z][a-z0-9-]+)", run([BATON, "help", who]))}
        for document in ("security.md", "kubernetes.md", "bare-metal.md", "tls.md"):
            named = set(re.findall(r"`--([a-z][a-z-]+)", text(document))) - {"url", "grpc", "undo"}
            self.assertEqual(named - known, set(), document)


if __name__ == "__main__":
    unittest.main()
