#!/usr/bin/env python3
"""What failed in a run of ctest: of each test the lines that say why, without the rest of what it printed. A test that
ended without a word of its own shows its last lines.

usage: failures.py LOG      of build/release/Testing/Temporary/LastTest.log"""
import re
import sys

MOST_LINES = 60  # of a test
LAST_LINES = 25
BEGIN = re.compile(r"^\d+/\d+ Testing: (\S+)$")
# Where a framework begins to say what is wrong, and what comes after it.
FAULT = re.compile(r"^(?:\S+:\d+: Failure|(?:FAIL|ERROR): .*|.*(?:terminate called|Sanitizer:|Check failed|check failed).*)$")
OVER = re.compile(r"^(?:\[[ A-Z]{8,}.*|={20,}|Ran \d+ tests? in .*)$")


def tests(lines):
    """(name, its output, its verdict) of each."""
    name, output, verdict, within = None, [], "", False
    for line in lines:
        if found := BEGIN.match(line):
            name, output, within = found[1], [], False
        elif line == "Output:":
            within = True
        elif line.startswith("<end of output>"):
            within = False
        elif within:
            output.append(line)
        elif line.startswith("Test ") and not line.startswith("Test time"):
            yield name, output, line


def excerpt(output):
    out, speaks = [], False
    for line in output:
        if FAULT.match(line):
            speaks = True
        elif OVER.match(line):
            speaks = False
            if line.startswith("[  FAILED  ]") and line not in out:
                out.append(line)
        if speaks:
            out.append(line)
    return out[:MOST_LINES] or [line for line in output if line][-LAST_LINES:]


def report(lines):
    for name, output, verdict in tests(lines):
        if verdict in ("Test Passed.", "Test Skipped."):
            continue
        yield f"failed: {name} ({verdict.removeprefix('Test ').rstrip('.').lower()})"
        yield from (f"  {line}" for line in excerpt(output))


if __name__ == "__main__":
    with open(sys.argv[1], errors="replace") as log:
        for text in report(log.read().splitlines()):
            print(text)
