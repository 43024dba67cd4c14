#!/usr/bin/env python3
"""Compares what ptxas reported with the committed table: no spills (TUNED; elsewhere no more than committed), no more
registers than committed, the same PTX instruction counts. Rows of an architecture that was not built are left alone. usage: check_ptxas.py BUILD_DIR TABLE [--update-table]"""
import collections
import pathlib
import re
import subprocess
import sys

COLUMNS = ["arch", "kernel", "registers", "spill_bytes", "static_shared", "mma", "ldmatrix", "cp_async", "wgmma"]
TUNED = {"90a", "80"}
INSTRUCTIONS = {"mma": r"\bmma\.sync", "ldmatrix": r"\bldmatrix\.", "cp_async": r"\bcp\.async\.c", "wgmma": r"\bwgmma\.mma"}


def demangle(names):
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    short = []
    for line in out.splitlines():
        # A kernel's name is what stands before its parameter list, without the return type and our namespaces.
        depth, end = 0, len(line)
        for i, c in enumerate(line):
            depth += (c == "<") - (c == ">")
            if c == "(" and depth == 0:
                end = i
                break
            if c == "(" and line[i:].startswith("(baton::"):
                continue
        name = line[:end].replace("void ", "", 1)
        short.append(re.sub(r"\(bool\)|\(int\)", "", re.sub(r"baton::(cuda|px)::", "", name)).replace(", ", ","))
    return dict(zip(names, short))


def ptx_counts(text):
    counts = {}
    for part in re.split(r"\n(?=\.(?:visible|weak) \.entry|\.entry)", text):
        entry = re.search(r"\.entry (\w+)\(", part)
        if entry:
            counts[entry.group(1)] = {k: len(re.findall(p, part)) for k, p in INSTRUCTIONS.items()}
    return counts


def collect(build):
    rows = {}
    for log in sorted(build.glob("*.log")):
        arch = log.name.split(".")[-2]
        text = log.read_text()
        counts = ptx_counts(log.with_suffix(".ptx").read_text())
        found = re.findall(
            r"Compiling entry function '(\w+)' for '\w+'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?"
            r"Used (\d+) registers([^\n]*)", text, re.S)
        names = demangle([f[0] for f in found])
        for mangled, stores, loads, registers, rest in found:
            shared = re.search(r"(\d+) bytes smem", rest)
            row = dict(registers=int(registers), spill_bytes=int(stores) + int(loads), static_shared=int(shared.group(1)) if shared else 0)
            row.update(counts.get(mangled, {}))
            rows[arch, names[mangled]] = row
    return rows


def main():
    build, table = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    rows = collect(build)
    built = {arch for arch, _ in rows}
    if not rows:
        sys.exit("check_ptxas: no ptxas reports in " + str(build))
    notes = collections.OrderedDict()
    committed = {}
    if table.exists():
        for line in table.read_text().splitlines():
            if line.startswith("#"):
                notes[line] = None
                continue
            cells = line.split("\t")
            if cells[0] != "arch":
                committed[cells[0], cells[1]] = dict(zip(COLUMNS[2:], map(int, cells[2:])))
    if "--update-table" in sys.argv:
        committed = {key: row for key, row in committed.items() if key[0] not in built} | rows
        lines = list(notes) + ["\t".join(COLUMNS)]
        lines += ["\t".join([a, k] + [str(r.get(c, 0)) for c in COLUMNS[2:]]) for (a, k), r in sorted(committed.items())]
        table.write_text("\n".join(lines) + "\n")
    problems = []
    for key, row in sorted(rows.items()):
        name = f"{key[1]} (sm_{key[0]})"
        want = committed.get(key)
        if row["spill_bytes"] > (want["spill_bytes"] if want and key[0] not in TUNED else 0):
            problems.append(f"{name}: {row['spill_bytes']} bytes of spills")
        if want is None:
            problems.append(f"{name}: not in the table")
            continue
        if row["registers"] > want["registers"]:
            problems.append(f"{name}: {row['registers']} registers, the table says {want['registers']}")
        for column in COLUMNS[4:]:
            if row.get(column, 0) != want.get(column, 0):
                problems.append(f"{name}: {column} {row.get(column, 0)}, the table says {want.get(column, 0)}")
    problems += [f"{k} (sm_{a}): in the table, not built" for a, k in sorted(committed.keys() - rows.keys()) if a in built]
    for p in problems:
        print("check_ptxas:", p)
    top = max(rows.items(), key=lambda r: r[1]["registers"])
    print(f"check_ptxas: {len(rows)} kernels, {len(problems)} problems, most registers {top[1]['registers']} ({top[0][1]})")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
