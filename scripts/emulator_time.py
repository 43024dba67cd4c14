#!/usr/bin/env python3
"""How much of a run of ctest the tests took that run kernels on the emulator (ctest's label `emulator`), and which of them
took longest: ten minutes are theirs. Several tests run at once, so what is counted is their part of the run: its time by
the clock, shared out by what each test took.

usage: emulator_time.py BUILD LOG [--most SECONDS]      of build/release and build/ctest.log; beyond SECONDS it ends with 1"""
import argparse
import pathlib
import re

BAR_S = 600
SHOWN = 5
TEST = re.compile(r"^\s*\d+/\d+ Test\s+#\d+: (\S+) \.*\s*\D*?([\d.]+) sec\s*$", re.MULTILINE)
WHOLE = re.compile(r"^Total Test time \(real\) =\s+([\d.]+) sec", re.MULTILINE)
# By what CMake wrote: ctest itself empties its log when it is asked for its tests.
LABELS = re.compile(r"^set_tests_properties\((?:\[=*\[)?([^\s\]]+).*? LABELS \"([^\"]*)\"", re.MULTILINE)


def emulated(build):
    """Names of the tests with the label."""
    return {name for file in build.rglob("CTestTestfile.cmake") for name, labels in LABELS.findall(file.read_text())
            if "emulator" in labels.split(";")}


def report(names, log):
    """(the line, seconds of the run); of a run without such tests (None, 0)."""
    took = {name: float(seconds) for name, seconds in TEST.findall(log)}
    ran = sorted(((seconds, name) for name, seconds in took.items() if name in names), reverse=True)
    whole = WHOLE.search(log)
    if not ran or not whole:
        return None, 0
    alone = sum(seconds for seconds, _ in ran)
    part = float(whole[1]) * alone / max(sum(took.values()), 1e-9)
    longest = ", ".join(f"{name} {seconds:.0f}" for seconds, name in ran[:SHOWN])
    return (f"emulator: {len(ran)} of {len(names)} tests took {part:.0f} s of this run's {float(whole[1]):.0f}, of which "
            f"{BAR_S} are theirs; one after another {alone:.0f} s ({longest})", part)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("log", type=pathlib.Path)
    parser.add_argument("--most", type=float, metavar="SECONDS", help="more is an error")
    arguments = parser.parse_args()
    line, part = report(emulated(arguments.build), arguments.log.read_text(errors="replace"))
    if line:
        print(line)
    return arguments.most is not None and part > arguments.most


if __name__ == "__main__":
    raise SystemExit(int(main()))
