#!/usr/bin/env python3
"""What `make test` says of failed tests: ctest itself runs some that fail, in every way in which they do."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "failures.py"
NOISE = "print('\\n'.join('[info] bytes taken' for _ in range(500)))"
GTEST = (NOISE + "; print('[ RUN      ] A.Holds\\n../../tests/a_test.cc:12: Failure\\nValue of: x\\n  Actual: false\\n"
         "[  FAILED  ] A.Holds (1 ms)\\n[ RUN      ] A.Passes\\n[       OK ] A.Passes (0 ms)'); raise SystemExit(1)")
UNITTEST = ("import unittest\nclass C(unittest.TestCase):\n  def test_sum(self): self.assertEqual(1 + 1, 3)\n"
            "  def test_error(self): raise OSError('no such thing')\n  def test_good(self): print('a good one')\nunittest.main()")
CRASH = NOISE + "; import os; print('the last word', flush=True); os.abort()"


class Failures(unittest.TestCase):
    def report(self, **programs):
        """What is said after ctest has run these."""
        with tempfile.TemporaryDirectory() as folder:
            lines = []
            for name, code in programs.items():
                path = pathlib.Path(folder) / f"{name}.py"
                path.write_text(code)
                lines.append(f'add_test({name} "{sys.executable}" "{path}")')
            (pathlib.Path(folder) / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")
            subprocess.run(["ctest", "-j3"], cwd=folder, capture_output=True)
            log = pathlib.Path(folder) / "Testing" / "Temporary" / "LastTest.log"
            return subprocess.run([sys.executable, str(SCRIPT), str(log)], capture_output=True, text=True, check=True).stdout

    def test_a_failed_expectation_is_shown_without_the_noise(self):
        said = self.report(good="print('all is well')", bad=GTEST)
        self.assertEqual(said, "failed: bad (failed)\n  ../../tests/a_test.cc:12: Failure\n  Value of: x\n    Actual: false\n"
                               "  [  FAILED  ] A.Holds (1 ms)\n")

    def test_an_assertion_and_an_error_of_unittest(self):
        said = self.report(cluster=UNITTEST)
        self.assertIn("FAIL: test_sum", said)
        self.assertIn("AssertionError: 2 != 3", said)
        self.assertIn("ERROR: test_error", said)
        self.assertIn("OSError: no such thing", said)
        self.assertNotIn("a good one", said)

    def test_a_crash_shows_the_last_words(self):
        said = self.report(crashes=CRASH)
        self.assertIn("the last word", said)
        self.assertLess(len(said.splitlines()), 30)

    def test_nothing_failed(self):
        self.assertEqual(self.report(good="print('FAIL: only printed')"), "")


if __name__ == "__main__":
    unittest.main()
