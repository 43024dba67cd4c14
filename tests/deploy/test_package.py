"""The Debian package: what is in it, its units, and that it installs, answers, upgrades and purges on a fresh Debian, by the commands
of docs/bare-metal.md."""
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

import yaml_keys
from where import BATON, BUILD, ROOT, TOOLS, index_is_away, model, run, shell_lines, tool

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
MOST_EXPOSED = 20  # of 100, as `systemd-analyze security` counts
BASE = pathlib.Path(os.environ.get("BATON_DEBIAN_ROOT", TOOLS / "debian"))


def build_package(folder):
    cpack = os.environ.get("BATON_CPACK") or shutil.which("cpack")
    run([cpack, "--config", BUILD / "CPackConfig.cmake", "-B", folder])
    (package,) = pathlib.Path(folder).glob("*.deb")
    return package


def why_no_fresh_machine():
    if os.geteuid() != 0:
        return "a fresh Debian needs root (chroot, namespaces)"
    if not (BASE / "etc" / "debian_version").exists():
        return "no Debian root (scripts/deploy_tools.sh --root)"
    if model() is None:
        return "the demo model is not here"
    return "" if subprocess.run(["unshare", "--mount", "--pid", "--fork", "--net", "true"], capture_output=True).returncode == 0 else \
        "namespaces are not permitted"


@unittest.skipUnless(shutil.which("dpkg-shlibdeps") and shutil.which("file"), "dpkg-dev or file is not installed")
class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="baton-package-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.package = build_package(cls.folder.name)

    def field(self, name):
        return run(["dpkg-deb", "-f", self.package, name]).strip()

    def test_its_version_is_the_programs(self):
        self.assertIn(self.field("Version"), run([BATON, "version"]))

    def test_its_dependencies_are_the_libraries_that_the_program_loads(self):
        depends = {re.split(r"[ (]", d.strip())[0] for d in self.field("Depends").split(",")}
        self.assertGreaterEqual(depends, {"libc6", "libgrpc++1.51", "libssl3", "libprotobuf32", "passwd"})
        self.assertFalse([d for d in depends if d.endswith("-dev") or d.startswith("python")], "nothing that only building needs")

    def test_it_has_the_program_the_units_the_examples_and_nothing_else(self):
        names = {line.split()[-1][2:] for line in run(["dpkg-deb", "-c", self.package]).splitlines() if not line.endswith("/")}
        expected = {"usr/bin/baton", "usr/bin/baton-tools", "usr/lib/sysusers.d/baton.conf", "usr/lib/systemd/system/baton.target"}
        expected |= {f"usr/lib/systemd/system/{u.name}" for u in UNITS}
        expected |= {f"usr/share/doc/baton/examples/{e.name}" for e in (ROOT / "deploy" / "examples").iterdir()}
        expected |= {f"usr/share/doc/baton/{d}" for d in ("copyright", *(p.name for p in (ROOT / "docs").glob("*.md")))}
        self.assertEqual(names, expected)
        self.assertLess(self.package.stat().st_size, 20 << 20, "the program is stripped")

    @unittest.skipIf(why_no_fresh_machine(), why_no_fresh_machine())
    def test_a_fresh_debian_installs_it_answers_restarts_and_purges(self):
        root = pathlib.Path(self.folder.name) / "root"
        self.addCleanup(lambda: subprocess.run(["rm", "-rf", "--one-file-system", root], check=True))
        run(["cp", "-a", BASE, root])
        self.install(root)
        shutil.copy(model(), root / "root" / "MODEL.gguf")
        shutil.copy(self.package, root / "root" / self.package.name)
        lines = [re.sub(r"\./build/package/\S+\.deb", f"/root/{self.package.name}", line) for line in shell_lines("bare-metal.md")]
        lines = [line.replace("MODEL.gguf", "/root/MODEL.gguf", 1).replace("baton chat", "baton chat -m Hi --max-tokens 4 --temperature 0")
                 for line in lines if not line.startswith("make ")]
        self.assertTrue(any(line.startswith("systemctl restart") for line in lines))
        long = "Count the words of this sentence, please. " * 30
        lines += ["until [ -e /run/baton-router-main/ready ]; do sleep 0.1; done", "baton chat -m Hi --max-tokens 4 --temperature 0",
                  f"baton chat -m '{long}' --max-tokens 4 --stats", "systemctl stop baton-router@main baton-prefill@0 baton-decode@0",
                  "apt-get purge -y baton", "test ! -e /etc/baton -a ! -e /usr/bin/baton", "! getent passwd baton && ! getent group baton",
                  "test -s /var/lib/baton/models/model.gguf"]
        told, logs = self.booted(root, lines) or self.stood_in(root, lines)
        self.assertEqual([(t["command"], t["code"]) for t in told], [(line, 0) for line in lines], f"{told[-1]}\n{logs}")
        answers = [t["out"] for t in told if t["command"].startswith("baton chat")]
        self.assertTrue(answers[0].strip())
        self.assertEqual(answers[0], answers[1], "after every process was restarted")
        self.assertRegex(answers[2], r"\[stages: .*transfer", "the prefill worker took part")
        self.assertNotRegex(logs, r"UCX +(WARN|ERROR)|\[error\]|status=\d+/[A-Z]{4}", "nothing that a unit forbids is missed")

    def booted(self, root, lines):
        """A real systemd runs the commands and the units as they are. None where none comes up."""
        trial = root / "root" / "trial"
        trial.mkdir()
        for n, line in enumerate(lines):
            (trial / str(n)).write_text(line + "\n")
        program = ["unshare", "--mount", "--pid", "--fork", "--net", "--uts", "--ipc", "--cgroup", "--kill-child",
                   pathlib.Path(__file__).with_name("boot_machine.sh"), root]
        with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as machine:
            try:
                begun = time.monotonic()
                while not (trial / "done").exists():
                    waited = time.monotonic() - begun
                    if machine.poll() is not None or (waited > 20 and not (trial / "started").exists()):
                        print("    no systemd came up here: its units' command lines alone are run", flush=True)
                        return None
                    self.assertLess(waited, 240, "the commands take too long")
                    time.sleep(0.1)
            finally:
                machine.kill()
        print("    under a systemd of its own", flush=True)
        read = lambda n, kind: (trial / f"{n}.{kind}").read_text()  # noqa: E731
        told = [{"command": line, "code": int(read(n, "code")), "out": read(n, "out")} for n, line in enumerate(lines)
                if (trial / f"{n}.code").exists()]
        return told, (trial / "journal").read_text()

    def stood_in(self, root, lines):
        program = [sys.executable, pathlib.Path(__file__).with_name("fresh_machine.py"), root, *lines]
        result = json.loads(run(["unshare", "--mount", "--pid", "--fork", "--net", "--kill-child", *program], timeout=280))
        return result["said"], "\n".join(result["logs"].values())

    def install(self, root):
        """The package's dependencies, from the index, as `apt-get install` of a fresh machine would fetch them."""
        shutil.copy(self.package, root / "root" / self.package.name)
        archives = TOOLS / "archives"
        archives.mkdir(parents=True, exist_ok=True)
        line = (f"mount --bind {archives} {root}/var/cache/apt/archives && mount -t proc proc {root}/proc && mount --bind /dev {root}/dev && "
                f"chroot {root} env -i $PROXIES PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "
                f"apt-get install -y --no-install-recommends /root/{self.package.name}")
        proxies = " ".join(f"{k}={v}" for k, v in os.environ.items() if k.lower() in ("http_proxy", "https_proxy", "no_proxy"))
        result = subprocess.run(["unshare", "--mount", "--pid", "--fork", "bash", "-c", line], env={**os.environ, "PROXIES": proxies},
                                capture_output=True, text=True)
        if result.returncode != 0 and index_is_away(result.stderr):
            self.skipTest("the package index is away")
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])


class Units(unittest.TestCase):
    @unittest.skipUnless(tool("systemd-analyze"), "systemd-analyze is not installed")
    def test_systemd_finds_no_fault_in_them(self):
        with tempfile.TemporaryDirectory() as folder:
            for unit in [*UNITS, ROOT / "deploy" / "systemd" / "baton.target"]:
                text = unit.read_text().replace("/usr/bin/baton ", f"{BATON} ")  # which is not installed here
                pathlib.Path(folder, unit.name.replace("@.", "@0.")).write_text(text)
            for file in sorted(pathlib.Path(folder).iterdir()):
                result = subprocess.run([tool("systemd-analyze"), "verify", "--man=no", file], capture_output=True, text=True)
                ours = [line for line in result.stderr.splitlines() if "baton" in line]
                self.assertEqual((result.returncode, ours), (0, []), result.stderr)

    @unittest.skipUnless(tool("systemd-analyze"), "systemd-analyze is not installed")
    def test_they_may_do_little(self):
        for unit in UNITS:
            result = subprocess.run([tool("systemd-analyze"), "security", "--offline=true", f"--threshold={MOST_EXPOSED}", unit],
                                    capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, f"{unit.name}: {result.stdout[-300:]}{result.stderr}")

    def test_they_kill_later_than_the_program_cuts_off(self):
        for unit in UNITS:
            command = "router" if "router" in unit.name else "worker"
            cut_off = re.search(r"--shutdown-timeout-ms MS=(\d+)", run([BATON, "help", command])).group(1)
            self.assertGreaterEqual(int(re.search(r"TimeoutStopSec=(\d+)", unit.read_text()).group(1)), int(cut_off) / 1000 + 15)


class Examples(unittest.TestCase):
    def test_every_key_is_a_flag_also_those_commented_out(self):
        for example in (ROOT / "deploy" / "examples").iterdir():
            flags = set(re.findall(r"--([a-z][a-z-]+)", run([BATON, "help", "router" if "router" in example.name else "worker"])))
            keys = yaml_keys.of(example.read_text())
            self.assertIn("tls-cert", keys, "those commented out are read, too")
            self.assertEqual(keys - flags, set(), example.name)

    def test_every_key_of_the_document_is_a_flag(self):
        text = (ROOT / "docs" / "bare-metal.md").read_text()
        flags = set(re.findall(r"--([a-z][a-z-]+)", run([BATON, "help", "router"]) + run([BATON, "help", "worker"])))
        blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.M | re.S)
        self.assertEqual(len(blocks), 2)
        for block in blocks:
            self.assertEqual(yaml_keys.of(block) - flags, set())


if __name__ == "__main__":
    unittest.main()
