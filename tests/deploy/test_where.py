"""A tool or schema that scripts/deploy_tools.sh fetches and that is missing: a laptop skips its tests with the reason, the gate (CI=true)
fails."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import chart

HERE = pathlib.Path(__file__).resolve().parent
# The tests of one file, on a machine where nothing has been fetched and no tool is installed; `first` is imported before it is so.
BARE = """
import pathlib, sys, unittest
sys.path.insert(0, {here!r})
{first}
import where
where.tool = lambda name: None
where.TOOLS = pathlib.Path({nothing!r})
unittest.main(module={module!r}, argv=["bare"] + {names!r}, verbosity=2)
"""


class Missing(unittest.TestCase):
    def bare(self, module, names, ci, first=""):
        environment = {k: v for k, v in os.environ.items() if k != "CI"} | ({"CI": ci} if ci else {})
        with tempfile.TemporaryDirectory(prefix="baton-nothing-") as nothing:
            code = BARE.format(here=str(HERE), nothing=nothing, module=module, names=names, first=first)
            return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)

    def check(self, module, name, word, first=""):
        with self.subTest(f"{module} {name}"):
            for ci in ("", "false"):
                laptop = self.bare(module, [name], ci, first)
                self.assertEqual(laptop.returncode, 0, laptop.stderr)
                self.assertRegex(laptop.stderr, rf"skipped ['\"].*{word}.*scripts/deploy_tools\.sh")
            gate = self.bare(module, [name], "true", first)
            self.assertEqual(gate.returncode, 1, gate.stderr)
            self.assertRegex(gate.stderr, rf"AssertionError: .*{word}.* CI=true")

    def test_a_laptop_skips_and_the_gate_fails(self):
        for name in ("Chart", "Policy", "Refusals"):
            self.check("test_chart", name, "Helm engine")
        self.check("test_helm", "Helm", "Helm engine")
        self.check("test_chart_runs", "Runs", "Helm engine")
        self.check("test_monitoring", "Rules", "promtool")
        self.check("test_monitoring", "Boards.test_grafana_takes_them_as_they_are", "Helm engine")
        self.check("test_image", "Compose.test_no_container_may_more_than_it_must", "Helm engine")

    @unittest.skipIf(chart.why_not(), chart.why_not())
    def test_schemas_are_missing_while_the_engine_is_there(self):
        self.check("test_chart", "Chart.test_the_custom_resources_are_what_their_definitions_say", "schemas", "import chart")



if __name__ == "__main__":
    unittest.main(verbosity=2)
