#!/usr/bin/env python3
"""Writes a compile database in which every source has a command of its own, for clang-tidy and editors: CMake's has one command for
each batch of sources (cmake/fast_build.cmake), and names none of them.

usage: source_commands.py BUILD_FOLDER OUT_FOLDER
"""
import json
import pathlib
import re
import sys


def of_sources(entry):
    """The entries of a batch's sources; a source that is compiled by itself has its own."""
    if not re.search(r"/Unity/unity_\d+_cxx\.cxx$", entry["file"]):
        return [entry]
    sources = re.findall(r'^#include "(.*)"$', pathlib.Path(entry["file"]).read_text(), re.M)
    return [{**entry, "file": source, "command": entry["command"].replace(entry["file"], source)} for source in sources]


def main(build, out):
    entries = json.loads((build / "compile_commands.json").read_text())
    written = [one for entry in entries for one in of_sources(entry)]
    out.mkdir(parents=True, exist_ok=True)
    (out / "compile_commands.json").write_text(json.dumps(written, indent=1))


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
