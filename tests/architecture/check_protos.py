#!/usr/bin/env python3
"""Fails on a field of proto/ that nothing documents: neither a comment on its line nor one on the line above.

usage: check_protos.py [ROOT]      --self-test plants such a field and checks that it is found
"""
import pathlib
import re
import sys

FIELD = re.compile(r"^\s+(?:optional |repeated )?(?:map<[^>]*>|[\w.]+) \w+ = \d+;(.*)$")


def undocumented(text):
    """(line number, line) of every field without a comment."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        field = FIELD.match(line)
        if field and "//" not in field[1] and not (i > 0 and lines[i - 1].strip().startswith("//")):
            yield i + 1, line.strip()


def self_test():
    good = "message A {\n  int32 a = 1;  // tokens\n  // seconds\n  repeated B b = 2;\n  reserved 3;\n}\nenum E {\n  E_X = 0;\n}\n"
    assert not list(undocumented(good))
    for field in ("string c = 4;", "optional uint32 c = 4;", "repeated A.B c = 4;", "map<int32, float> c = 4;"):
        assert len(list(undocumented(good.replace("  reserved 3;", f"  {field}")))) == 1, field


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit(0)
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    files = sorted((root / "proto").glob("*.proto"))
    assert files, f"no protos in {root}"
    found = [f"{path.relative_to(root)}:{number}: {line}" for path in files for number, line in undocumented(path.read_text())]
    print("\n".join(found) or f"every field of {len(files)} files is documented")
    sys.exit(1 if found else 0)
