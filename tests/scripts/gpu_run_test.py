#!/usr/bin/env python3
"""bench/gpu/run.sh with programs that only pretend: one that crashes, one whose tests fail and one that hangs are named,
everything else runs, and the JSON is whole."""
import contextlib
import importlib.util
import json
import math
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULT = {"tests": 3, "failures": 0, "errors": 0, "time": "1s", "testsuites": []}
FAILURE = RESULT | {"failures": 1, "testsuites": [{"name": "Suite", "testsuite": [
    {"name": "Good"}, {"name": "Bad", "failures": [{"failure": "got 1, want 2", "type": ""}]}]}]}
CASE = {"kernel": "gemv", "shape": "1x2x3", "us": 2.0, "floor_us": 1.0, "right": True}



def program(result, then=""):
    """A test program that writes `result` where GoogleTest would, then does `then`."""
    return f"""#!/bin/bash
for argument; do
  case $argument in --gtest_output=json:*) printf %s {shlex.quote(json.dumps(result))} >"${{argument#*json:}}" ;; esac
done
{then}
"""


STEPS = {"rows": [{"what": "decodes", "batch": 1, "context": 20, "us": 4.0, "floor_us": 2.0, "tokens_per_s": 250000.0}]}
GOLDEN = """#!/bin/bash
echo golden >"$1"
echo "Add 4 words  as documented"
echo "MmaBf16 4 words  killed by signal 11 (Segmentation fault)"
exit 1
"""
MEASURED = {"device": "pretended", "emulated": True, "kernels": [CASE]}
ENGINE = f"""#!/bin/bash
while [ $# -gt 0 ]; do
  case $1 in --json) printf %s {shlex.quote(json.dumps(STEPS))} >"$2" ;; --kv) exit 1 ;; esac
  shift
done
"""
BENCH = f"""#!/bin/bash
printf %s {shlex.quote(json.dumps(MEASURED))} >"$2"
"""


def test_programs():
    lines = (ROOT / "bench/gpu/tests.txt").read_text().splitlines()
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build, self.out = pathlib.Path(folder.name) / "build", pathlib.Path(folder.name) / "out"
        self.build.mkdir()
        for name in test_programs():
            self.write(name, program(RESULT))
        self.write("bench_gpu_golden", GOLDEN)
        self.write("bench_gpu_dry", BENCH)
        self.write("bench_gpu_engine_dry", ENGINE)

    def write(self, name, text):
        (self.build / name).write_text(text)
        (self.build / name).chmod(0o755)

    def run_stages(self, *arguments):
        done = subprocess.run([ROOT / "bench/gpu/run.sh", "--emulated", self.build, "--out", self.out, *arguments],
                              capture_output=True, text=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
        path = self.out / "results.json"
        return done, json.loads(path.read_text()) if path.exists() else None

    def verdicts(self, results, stage):
        return {p["program"]: p["verdict"] for p in results["programs"] if p["stage"] == stage}

    def test_what_goes_wrong_is_named_and_ends_nothing_else(self):
        names = test_programs()
        self.write(names[1], program(RESULT, "kill -SEGV $$"))
        self.write(names[2], program(FAILURE, "exit 1"))
        self.write(names[3], program(RESULT, "exit 3"))
        done, results = self.run_stages()
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        tests = self.verdicts(results, "tests")
        self.assertEqual({n: tests.pop(n) for n in names[1:4]},
                         {names[1]: "killed by signal 11", names[2]: "FAILED", names[3]: "no device"})
        self.assertEqual(set(tests.values()), {"passed"})
        self.assertEqual(len(tests), len(names) - 3)
        failed = {t["program"]: t["failed"] for t in results["tests"] if t["failed"]}
        self.assertEqual(failed, {names[2]: [{"test": "Suite.Bad", "message": "got 1, want 2"}]})
        self.assertEqual(results["conformance"], {"micro_kernels": 2, "differ": ["MmaBf16"]})
        self.assertEqual([k["kernel"] for k in results["kernels"]], ["gemv"])
        self.assertEqual(self.verdicts(results, "engine"),
                         {"gpu_engine:deterministic": "passed", "gpu_engine:fast": "passed", "gpu_engine:fp8_kv": "FAILED"})
        self.assertEqual([row["us"] for row in results["engine"]["fast"]["rows"]], [4.0])
        self.assertEqual(self.verdicts(results, "handoff"), {"gpu_engine:handoff": "passed"})
        self.assertEqual(results["golden"], "golden\n")
        stages = {name: s["verdict"] for name, s in results["stages"].items()}
        self.assertEqual((stages["build"], stages["conformance"], stages["kernels"], stages["tests"]),
                         ("passed", "FAILED", "passed", "FAILED"))
        self.assertIn("sanitizer", stages)  # what came after ran

    def test_what_hangs_is_ended_and_what_no_time_is_left_for_is_named(self):
        last = test_programs()[-1]
        began = time.monotonic()
        self.run_stages()
        # What run.sh keeps for its report, and the least that it starts a program with; for all that does not hang what
        # it took on this machine now, and as much again for a machine that gets slower.
        report, least, took = 10, 5, math.ceil(time.monotonic() - began)
        enough = report + least + 3 + 2 * took
        self.write(last, program(RESULT, "exec sleep 1000"))
        done, results = self.run_stages("--seconds", str(enough))
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        tests = self.verdicts(results, "tests")
        self.assertRegex(tests.pop(last), r"^no end within \d+ s$")
        self.assertEqual(set(tests.values()), {"passed"})
        self.assertEqual(set(self.verdicts(results, "sanitizer").values()), {"left out, no time is left"})

    def test_one_stage_again_replaces_what_it_said(self):
        name = test_programs()[0]
        self.write(name, program(RESULT, "exit 1"))
        self.assertEqual(self.verdicts(self.run_stages("--stage", "tests")[1], "tests")[name], "FAILED")
        self.write(name, program(RESULT))
        done, results = self.run_stages("--stage", "tests")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.verdicts(results, "tests")[name], "passed")

    def test_several_stages_are_told_with_commas(self):
        done, results = self.run_stages("--stage", "kernels,conformance")
        self.assertEqual(set(results["stages"]), {"kernels", "conformance"}, done.stdout + done.stderr)

    def test_the_order_has_every_stage_once_in_calls_of_eight_minutes(self):
        said = subprocess.run([ROOT / "bench/gpu/run.sh", "--order"], capture_output=True, text=True, check=True).stdout
        calls = [dict(zip(words[0::2], words[1::2])) for words in (line.split()[2:] for line in said.splitlines())]
        self.assertLessEqual(len(calls), 3)
        for call in calls:
            self.assertLessEqual(int(call["--seconds"]), 480)
        stages = [stage for call in calls for stage in call["--stage"].split(",")]
        self.assertEqual(sorted(stages), sorted(set(stages)))
        done, results = self.run_stages()
        self.assertEqual(set(stages), set(results["stages"]) - {"build"} | {"report"})

    def test_a_stage_that_does_not_exist_is_bad_usage(self):
        for stages in ("nothing", "kernels,nothing"):
            self.assertEqual(self.run_stages("--stage", stages)[0].returncode, 2)

    def test_without_a_build_a_program_that_is_missing_is_named_and_nothing_is_compiled(self):
        (self.build / "bench_gpu_engine_dry").unlink()
        done, _ = self.run_stages("--stage", "build", "--no-build")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("gpu_engine is not built, and --no-build builds nothing", done.stderr)


class Heads:
    """A tensor of which only its heads are told."""

    def __init__(self, heads):
        self.shape = (1, heads)

    def repeat_interleave(self, times, dim):
        assert dim == 1
        return Heads(self.shape[1] * times)


class Cudnn(unittest.TestCase):
    """cuDNN's attention beside ours: with groups of query heads where it takes them, else it is called what it is."""

    def attention(self, takes_groups):
        spec = importlib.util.spec_from_file_location("libraries", ROOT / "bench/gpu/libraries.py")
        libraries = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(libraries)
        calls, allowed = [], []

        def attend(q, k, v, is_causal, enable_gqa):
            if enable_gqa and not takes_groups:
                raise RuntimeError("No available kernel")
            calls.append((allowed[-1], q.shape[1], k.shape[1], v.shape[1], enable_gqa))

        @contextlib.contextmanager
        def only(backends):
            allowed.append(backends)
            yield
        attention = types.SimpleNamespace(SDPBackend=types.SimpleNamespace(CUDNN_ATTENTION="cudnn"), sdpa_kernel=only)
        torch = types.SimpleNamespace(nn=types.SimpleNamespace(functional=types.SimpleNamespace(scaled_dot_product_attention=attend)))
        with unittest.mock.patch.dict(sys.modules, {"torch": types.ModuleType("torch"), "torch.nn": types.ModuleType("torch.nn"),
                                                    "torch.nn.attention": attention}):
            name, call = libraries.cudnn(torch, Heads(32), Heads(8), Heads(8), True)
            call()
        return name, calls

    def test_it_and_no_other_is_timed(self):
        name, calls = self.attention(True)
        self.assertEqual(name, "torch.cudnn")
        self.assertEqual(calls, [(["cudnn"], 32, 8, 8, True)] * 2)

    def test_without_groups_keys_are_repeated_and_the_name_says_so(self):
        name, calls = self.attention(False)
        self.assertEqual(name, "torch.cudnn, no groups")
        self.assertEqual(calls, [(["cudnn"], 32, 32, 32, False)] * 2)


if __name__ == "__main__":
    unittest.main()
