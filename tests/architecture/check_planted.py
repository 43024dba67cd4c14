#!/usr/bin/env python3
"""Fails on a planted bug of the product (common/planted_bug.h) that no test puts in force: nobody knows whether it would be
noticed.

usage: check_planted.py [ROOT]      --self-test leaves one out and checks that it is found
"""
import pathlib
import re
import sys

ASKED = re.compile(r"\bPlantedBug\(([^()]*)\)")
TEXT = re.compile(r'"([^"\n]*)"')
OTHERS = {"build", "tests", "bench", "docs", "scripts"}


def asked_for(text):
    """Names that the code asks for."""
    return {name for argument in ASKED.findall(text) for name in TEXT.findall(argument)}


def put_in_force(text):
    """What a test names otherwise than by asking."""
    return set(TEXT.findall(ASKED.sub("", text)))


def texts(root, folders):
    for folder in folders:
        for path in sorted([*folder.rglob("*.cc"), *folder.rglob("*.h")]):
            yield path.relative_to(root), path.read_text()


def forgotten(product, tests):
    """'path: name' of every bug that no test names. Both: (path, text) of each file."""
    planted = set().union(*(put_in_force(text) for _, text in tests))
    return [f"{path}: no test plants \"{name}\"" for path, text in product for name in sorted(asked_for(text) - planted)]


def self_test():
    product = [("a.cc", 'if (PlantedBug("one") || PlantedBug(x ? "two"\n : "three")) f();')]
    test = 'Values("one", "three"); if (PlantedBug("two")) g();'
    assert forgotten(product, [("t.cc", test)]) == ['a.cc: no test plants "two"'], forgotten(product, [("t.cc", test)])
    assert not forgotten(product, [("t.cc", test + ' Plant("two");')])


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit(0)
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    folders = [path for path in sorted(root.iterdir()) if path.is_dir() and path.name not in OTHERS and path.name[0] != "."]
    product = list(texts(root, folders))
    names = set().union(*(asked_for(text) for _, text in product))
    assert names, f"no planted bugs in {root}"
    found = forgotten(product, list(texts(root, [root / "tests"])))
    print("\n".join(found) or f"tests plant every one of {len(names)} bugs")
    sys.exit(1 if found else 0)
