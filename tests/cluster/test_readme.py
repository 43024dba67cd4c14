"""What README tells a newcomer to copy works as it stands there; only the port is another."""
import os
import re
import shutil
import subprocess
import unittest

from harness import BATON, ROOT, Cluster

README = (ROOT / "README.md").read_text()
VENV = ROOT / "build" / "venv" / "bin" / "python"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def commands():
    """The lines of every shell block, continued ones as one, without their comments."""
    for block in blocks("sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if line := re.sub(r"\s+# .*", "", line).strip():
                yield line


class Readme(unittest.TestCase):
    def test_every_command_is_there(self):
        targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
        seen = set()
        for line in commands():
            program, *rest = line.split()
            seen.add(program)
            if program == "make":
                self.assertIn(rest[0], targets, line)
            elif program == "build/baton":
                result = subprocess.run([BATON, "help", rest[0]], capture_output=True, text=True)
                self.assertEqual(result.returncode, 0, line)
            else:
                self.assertEqual(program, "curl", f"{line}: nobody has tried this")
        self.assertEqual(seen, {"make", "build/baton", "curl"})

    def test_every_command_in_the_table_of_processes_is_there(self):
        named = set(re.findall(r"`baton ([a-z]+)", README))
        self.assertGreaterEqual(named, {"serve", "worker", "router", "chat", "doctor"})
        for name in named - {"help"}:
            result = subprocess.run([BATON, "help", name], capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, name)

    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_the_curl_line_is_answered(self):
        lines = [line for line in commands() if line.startswith("curl")]
        self.assertTrue(lines)
        with Cluster() as c:
            for line in lines + [re.sub(r" -H '[^']*'", "", line) for line in lines]:  # the second time as people type it
                shell = line.replace("http://127.0.0.1:8000", c.url)
                self.assertNotEqual(shell, line, "README's port is --port's default")
                result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=120)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn('"choices"', result.stdout, shell)

    @unittest.skipUnless((VENV.parents[1] / ".requirements").exists(), "build/venv is not there (no package index?)")
    def test_the_python_block_is_answered(self):
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        with Cluster() as c:
            for block in blocks("python"):
                program = block.replace("http://127.0.0.1:8000", c.url)
                result = subprocess.run([VENV, "-c", program], capture_output=True, text=True, timeout=120, env=env)
                self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main()
