#!/usr/bin/env python3
"""What a run of ctest skipped, and why: one line a reason with the tests it kept from running, then the sum. GoogleTest and
unittest call a skipped test passed, and so does ctest: nobody would see it otherwise.

usage: skips.py LOG      of build/release/Testing/Temporary/LastTest.log"""
import collections
import re
import sys

GTEST = re.compile(r"^\[  SKIPPED \] (\S+?)(?:, where .*)? \(\d+ ms\)$")
# A test's name, perhaps its words or what it printed on lines of their own, then the verdict.
UNITTEST = re.compile(r"^\s*(\w+) \((?:\w+\.)*(\w+)\.\1\)")
UNITTEST_SKIPPED = re.compile(r"(?:^|\.\.\. )skipped (['\"])(.*)\1$")


def skipped(lines):
    """(kind, test, reason) of every test that was skipped."""
    reason, test = None, "?"
    for i, line in enumerate(lines):
        if line.endswith(": Skipped") and i + 1 < len(lines):
            reason = lines[i + 1].strip()
        elif found := GTEST.match(line):
            yield "GoogleTest", found[1], reason or "no reason given"
            reason = None
        if found := UNITTEST.match(line):
            test = f"{found[2]}.{found[1]}"
        if found := UNITTEST_SKIPPED.search(line):
            yield "unittest", test, found[2]


def report(lines):
    by_reason, kinds = collections.defaultdict(list), collections.Counter()
    for kind, test, reason in skipped(lines):
        by_reason[reason].append(test)
        kinds[kind] += 1
    for reason, tests in sorted(by_reason.items()):
        names = ", ".join(tests[:3]) + (f" and {len(tests) - 3} more" if len(tests) > 3 else "")
        yield f"skipped {len(tests)}: {reason} ({names})"
    of = ", ".join(f"{count} of {kind}" for kind, count in sorted(kinds.items()))
    yield f"{sum(kinds.values())} tests skipped" + (f" ({of})" if kinds else "")


if __name__ == "__main__":
    with open(sys.argv[1], errors="replace") as log:
        print("\n".join(report(log.read().splitlines())))
