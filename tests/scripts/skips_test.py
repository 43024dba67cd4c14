#!/usr/bin/env python3
"""What `make test` says of skipped tests: each is found in what GoogleTest and unittest print, and counted once."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "skips.py"
LOG = """1/3 Testing: unit
[ RUN      ] Bf16.Golden
../../tests/golden_test.cc:106: Skipped
no bf16 here

[  SKIPPED ] Bf16.Golden (3 ms)
[ RUN      ] All/Contract.Holds/one
../../tests/golden_test.cc:10: Skipped
no bf16 here
[  SKIPPED ] All/Contract.Holds/one, where GetParam() = "one" (0 ms)
[ RUN      ] Bf16.Passes
[       OK ] Bf16.Passes (0 ms)
[ RUN      ] Bf16.Wordless
[  SKIPPED ] Bf16.Wordless (0 ms)
[  SKIPPED ] 3 tests, listed below:
[  SKIPPED ] Bf16.Golden
[  SKIPPED ] All/Contract.Holds/one
[2026-01-01 00:00:00.000] [info] 1 tensors are no part of the text model and are skipped
2/3 Testing: cluster
test_it_streams (__main__.Answers.test_it_streams)
Words about it. ... skipped 'the demo model is not in the cache'
test_clients (__main__.Clients.test_clients) ... skipped "build/venv isn't there"
test_passes (__main__.Clients.test_passes) ... ok
"""
EXPECTED = """skipped 1: build/venv isn't there (Clients.test_clients)
skipped 2: no bf16 here (Bf16.Golden, All/Contract.Holds/one)
skipped 1: no reason given (Bf16.Wordless)
skipped 1: the demo model is not in the cache (Answers.test_it_streams)
5 tests skipped (3 of GoogleTest, 2 of unittest)
"""


class Skips(unittest.TestCase):
    def report(self, log):
        with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
            file.write(log)
            file.flush()
            return subprocess.run([sys.executable, str(SCRIPT), file.name], capture_output=True, text=True, check=True).stdout

    def test_each_is_counted_once_with_its_reason(self):
        self.assertEqual(self.report(LOG), EXPECTED)

    def test_none(self):
        self.assertEqual(self.report("[       OK ] A.B (0 ms)\n"), "0 tests skipped\n")

    def test_as_the_frameworks_print_it(self):
        """Not as somebody remembers it: unittest itself, with and without words about the test."""
        code = ("import unittest\nclass C(unittest.TestCase):\n"
                "    @unittest.skip('why')\n    def test_a(self): pass\n"
                "    @unittest.skip('why')\n    def test_b(self):\n        '''Words.'''\n"
                "    def test_c(self):\n        with self.subTest(1): self.skipTest('inner')\n"
                "unittest.main(verbosity=2)\n")
        log = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
        self.assertEqual(self.report(log), "skipped 1: inner (C.test_c)\nskipped 2: why (C.test_a, C.test_b)\n"
                                           "3 tests skipped (3 of unittest)\n", log)


if __name__ == "__main__":
    unittest.main(verbosity=2)
