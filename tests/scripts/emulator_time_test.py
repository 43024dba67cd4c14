#!/usr/bin/env python3
"""What `make test` says of the emulator's time: tests with its label only, their part of the run, the longest first, and an error where
it is more than was allowed."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "emulator_time.py"
TESTS = """add_test(short "true")
set_tests_properties([=[short]=] PROPERTIES LABELS "unit;emulator")
add_test(long "true")
set_tests_properties(long PROPERTIES LABELS "emulator")
add_test(left_out "true")
set_tests_properties(left_out PROPERTIES LABELS "emulator")
add_test(another "true")
set_tests_properties(another PROPERTIES LABELS "unit")
"""
LOG = """Test project /somewhere
    Start 1: short
 1/3 Test  #1: short ............................   Passed    2.50 sec
 2/3 Test #22: another ..........................***Failed   85.00 sec
 3/3 Test  #3: long .............................   Passed   12.50 sec

Label Time Summary:
emulator    =  15.00 sec*proc (2 tests)

Total Test time (real) =  50.00 sec
"""


class EmulatorTime(unittest.TestCase):
    def run_with(self, log, *arguments):
        with tempfile.TemporaryDirectory() as build:
            pathlib.Path(build, "CTestTestfile.cmake").write_text(TESTS)
            pathlib.Path(build, "ctest.log").write_text(log)
            return subprocess.run([sys.executable, SCRIPT, build, build + "/ctest.log", *arguments], text=True,
                                  capture_output=True)

    def test_is_the_part_of_what_has_its_label(self):
        run = self.run_with(LOG)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(run.stdout, "emulator: 2 of 3 tests took 8 s of this run's 50, of which 600 are theirs; one after "
                                     "another 15 s (long 12, short 2)\n")

    def test_beyond_what_is_allowed_is_an_error(self):
        self.assertEqual(self.run_with(LOG, "--most", "7.4").returncode, 1)
        self.assertEqual(self.run_with(LOG, "--most", "7.6").returncode, 0)

    def test_of_a_run_without_such_tests_is_nothing(self):
        run = self.run_with(LOG.replace("long", "longer").replace("short", "shorter"), "--most", "1")
        self.assertEqual((run.returncode, run.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
