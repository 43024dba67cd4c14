#!/usr/bin/env python3
"""Fails when what crosses between a worker and its device plugin (kernels/plugin/device_plugin.h and every header of ours that it
includes) is not what kPluginVersion was raised for: a plugin that was built before would be taken, and called through tables of another layout.
Comments do not count, nor how much space there is. kernels/plugin/interface.txt has the version and the digest.

usage: check_plugin.py [ROOT] [--update]      --update raises the version when the headers differ; --self-test plants changes
"""
import hashlib
import pathlib
import re
import sys

HEADER = "kernels/plugin/device_plugin.h"
RECORD = "kernels/plugin/interface.txt"
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
VERSION = re.compile(r"(constexpr int kPluginVersion = )(\d+);")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def crossing(read, first=HEADER):
    """The headers of the tree that `first` includes, and it; `read` gives a file's text, or None where there is none (abseil's)."""
    found, left = {}, [first]
    while left:
        path = left.pop()
        text = None if path in found else read(path)
        if text is not None:
            found[path] = text
            left += INCLUDE.findall(text)
    return found


def digest(headers):
    meant = {path: " ".join(COMMENT.sub(" ", VERSION.sub("", text)).split()) for path, text in headers.items()}
    return hashlib.sha256("\n".join(f"{path} {meant[path]}" for path in sorted(meant)).encode()).hexdigest()


def wrong(headers, record):
    """What is to be said, or nothing."""
    version, now = VERSION.search(headers[HEADER])[2], digest(headers)
    if record.split() == [version, now]:
        return ""
    if record.split()[1:] == [now]:
        return f"{RECORD} is of version {record.split()[0]}, kPluginVersion is {version}"
    return (f"headers that cross between a worker and its plugin ({', '.join(sorted(headers))}) are not those of version {version}: "
            "raise it (check_plugin.py --update)")


def self_test():
    files = {HEADER: '#include "absl/a.h"\n#include "kernels/ops.h"\nconstexpr int kPluginVersion = 3;\n',
             "kernels/ops.h": '#include "kernels/ops.h"\nstruct A { int a; };  // one\n', "kernels/other.h": "int b;\n"}
    headers = crossing(files.get)
    assert set(headers) == {HEADER, "kernels/ops.h"}, headers
    record = f"3 {digest(headers)}\n"
    assert not wrong(headers, record)
    same = {**headers, "kernels/ops.h": '#include "kernels/ops.h"\nstruct A {\n  int a;  // another\n};\n'}
    assert not wrong(same, record), "comments and spaces"
    for changed in ("struct A { int b; };", "struct A { int a; int b; };", 'struct A { int a; };\n#include "kernels/other.h"'):
        assert "raise it" in wrong({**headers, "kernels/ops.h": changed}, record), changed
    assert "is of version 3" in wrong({**headers, HEADER: headers[HEADER].replace("3", "4")}, record)


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit(0)
    update = "--update" in sys.argv
    root = pathlib.Path(next((a for a in sys.argv[1:] if a != "--update"), "."))
    headers = crossing(lambda path: (root / path).read_text() if (root / path).exists() else None)
    says = wrong(headers, (root / RECORD).read_text())
    if says and update:
        if "raise it" in says:
            text = VERSION.sub(lambda m: f"{m[1]}{int(m[2]) + 1};", headers[HEADER])
            (root / HEADER).write_text(text)
            headers[HEADER] = text
        (root / RECORD).write_text(f"{VERSION.search(headers[HEADER])[2]} {digest(headers)}\n")
        says = ""
    print(says or f"{len(headers)} headers are those of the plugin's version {VERSION.search(headers[HEADER])[2]}")
    sys.exit(1 if says else 0)
