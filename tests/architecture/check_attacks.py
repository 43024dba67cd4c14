#!/usr/bin/env python3
"""Fails when the list of attacks in docs/security.md names a test that does not exist, skips a number, or has a row with
neither a test nor the words "no test", or when one of the first 24 has no test of real processes.

usage: check_attacks.py [ROOT]      --self-test breaks a list in each of these ways and checks that it is found
"""
import pathlib
import re
import sys

HEADING = "## Attacks"
OF_PROCESSES = 24  # the rows that must have such a test
NAMED = re.compile(r"`([\w/]+\.(?:cc|py))` `([\w.]+)`")
CPP = re.compile(r"\b(?:TYPED_)?TEST(?:_[FP])?\(\s*(\w+),\s*(\w+)\)")
PYTHON = re.compile(r"^ *def (test_\w+)\(", re.M)


def rows(text):
    """(number, tests, not shown) of each row of the list."""
    if HEADING not in text:
        return
    for line in text.split(HEADING, 1)[1].split("\n## ", 1)[0].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0].isdigit():
            yield int(cells[0]), cells[2], cells[3]


def tests_of(text, path):
    if path.endswith(".py"):
        return set(PYTHON.findall(text))
    return {f"{suite}.{name}" for suite, name in CPP.findall(text)}


def breaches(text, read):
    """`read`: the text of a file in tests/; None when there is none."""
    listed = list(rows(text))
    if not listed:
        return [f"no rows under '{HEADING}'"]
    found = []
    for expected, (number, tests, missing) in enumerate(listed, 1):
        if number != expected:
            found.append(f"row {number} stands where row {expected} belongs")
        named = NAMED.findall(tests)
        if len(named) != tests.count("`") // 4 or (tests and not named):
            found.append(f"row {number}: '{tests}' is no list of files and tests")
        if not named and "no test" not in missing:
            found.append(f"row {number} has no test and does not say so")
        if number <= OF_PROCESSES and not any(path.startswith("cluster/") for path, _ in named):
            found.append(f"row {number} has no test of real processes")
        for path, name in named:
            source = read(path)
            if source is None:
                found.append(f"row {number}: there is no tests/{path}")
            elif name not in tests_of(source, path):
                found.append(f"row {number}: there is no test {name} in tests/{path}")
    return found


def self_test():
    files = {"a.cc": "TEST_F(One, Two) {", "cluster/b.py": "    def test_three(self):"}.get
    head = HEADING + "\n| no. | attack | tests | not shown |\n|---|---|---|---|\n"
    both = "`a.cc` `One.Two`<br>`cluster/b.py` `test_three`"
    good = "".join(f"| {i} | x | {both} | |\n" for i in range(1, OF_PROCESSES + 1)) + f"| {OF_PROCESSES + 1} | y | | no test |\n"
    assert not breaches(head + good, files), breaches(head + good, files)
    for broken, what in [
        (good.replace("One.Two", "One.Three"), "no test One.Three"),
        (good.replace("test_three", "test_four"), "no test test_four"),
        (good.replace("a.cc", "c.cc"), "no tests/c.cc"),
        (good.replace("no test", ""), "does not say so"),
        (good.replace("<br>`cluster/b.py` `test_three`", "", 1), "row 1 has no test of real processes"),
        (good.replace("| 2 |", "| 3 |"), "where row 2 belongs"),
        (good.replace("`cluster/b.py` `test_three`", "`cluster/b.py`  `test_three`"), "no list of files"),
        ("", "no rows"),
    ]:
        found = breaches(head + broken, files)
        assert any(what in one for one in found), (what, found)


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit(0)
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")

    def read(path):
        file = root / "tests" / path
        return file.read_text() if file.is_file() else None

    text = (root / "docs" / "security.md").read_text()
    problems = breaches(text, read)
    print("\n".join(problems) or f"every test of {len(list(rows(text)))} attacks is there")
    sys.exit(1 if problems else 0)
