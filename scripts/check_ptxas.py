#!/usr/bin/env python3
"""Compares what ptxas reported with the committed table: no spills, no more registers than committed, the same shared
memory and the same PTX instruction counts, no loss of speed that ptxas warns of, no atomic sum of 64 bits in shared memory. Rows of an architecture that was not built are left alone.
usage: check_ptxas.py BUILD_DIR TABLE [--update-table]"""
import pathlib
import re
import subprocess
import sys

# What is counted in the PTX of a kernel.
INSTRUCTIONS = {
    "mma": r"\bmma\.sync",
    "ldmatrix": r"\bldmatrix\.",
    "cp_async": r"\bcp\.async\.c[ag]\.",
    "wgmma": r"\bwgmma\.mma_async",
    "tma": r"\bcp\.async\.bulk\.",
    "wide": r"\b(?:ld|st)\.(?:global|shared)?[.\w:]*\.(?:v4|v2)\.[bufs]\w*",
    "bytes": r"\b(?:ld|st)\.(?:volatile\.)?(?:global|shared)[.\w:]*\.[bus]8\b",
    "griddep": r"\bgriddepcontrol\.",
}
COLUMNS = ["arch", "kernel", "registers", "spill_bytes", "shared"] + list(INSTRUCTIONS)
SHARED = r"// px_shared (\d+)"  # PX_SHARED says how much a kernel declares


def demangle(names):
    out = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, map(short_name, out.splitlines())))


def short_name(line):
    """What stands before a kernel's parameter list, without the return type and our namespaces."""
    depth, end = 0, len(line)
    for i, c in enumerate(line):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            end = i
            break
    name = line[:end].replace("void ", "", 1)
    return re.sub(r"\(bool\)|\(int\)", "", re.sub(r"baton::(cuda|px)::", "", name)).replace(", ", ",")


def ptx_counts(text):
    counts = {}
    for part in re.split(r"\n(?=\.(?:visible|weak) \.entry|\.entry)", text):
        entry = re.search(r"\.entry (\w+)\(", part)
        if entry:
            counts[entry.group(1)] = {k: len(re.findall(p, part)) for k, p in INSTRUCTIONS.items()}
            counts[entry.group(1)]["shared"] = max(map(int, re.findall(SHARED, part)), default=0)
    return counts


def collect(build):
    """{(arch, kernel): row} of every log in the build folder, its PTX beside it."""
    rows = {}
    for log in sorted(build.glob("*.log")):
        arch = log.name.split(".")[-2]
        counts = ptx_counts(log.with_suffix(".ptx").read_text())
        found = re.findall(
            r"Compiling entry function '(\w+)' for '\w+'.*?(\d+) bytes spill stores, (\d+) bytes spill loads.*?"
            r"Used (\d+) registers([^\n]*)", log.read_text(), re.S)
        names = demangle([f[0] for f in found])
        for mangled, stores, loads, registers, rest in found:
            row = dict(counts.get(mangled, {}), registers=int(registers), spill_bytes=int(stores) + int(loads))
            static = re.search(r"(\d+) bytes smem", rest)
            row["shared"] = row.get("shared", 0) + (int(static.group(1)) if static else 0)
            rows[arch, names[mangled]] = row
    return rows


def complaints(build):
    """What ptxas says of a kernel's speed in words: wgmma that it makes wait for each other. And sums of 64 bits in shared memory,
    which are loops that try until nobody interferes."""
    for ptx in sorted(build.glob("*.ptx")):
        for part in re.split(r"\n(?=\.(?:visible|weak) \.entry|\.entry)", ptx.read_text()):
            found, entry = re.search(r"\b(?:atom|red)\.[\w.]*shared[\w.:]*\.add\.[us]64", part), re.search(r"\.entry (\w+)\(", part)
            if found and entry:
                yield f"{ptx.stem}: {short_name(demangle([entry.group(1)])[entry.group(1)])}: {found.group(0)}"
    for log in sorted(build.glob("*.log")):
        for line in log.read_text().splitlines():
            if "Potential Performance Loss" in line:
                yield f"{log.stem}: {line.split(':', 1)[1].strip()}"


def read_table(path):
    """The comment lines, and {(arch, kernel): row}."""
    notes, rows = [], {}
    for line in path.read_text().splitlines() if path.exists() else []:
        cells = line.split("\t")
        if line.startswith("#"):
            notes.append(line)
        elif cells[0] != COLUMNS[0]:
            rows[cells[0], cells[1]] = dict(zip(COLUMNS[2:], map(int, cells[2:])))
    return notes, rows


def write_table(path, notes, rows):
    lines = notes + ["\t".join(COLUMNS)]
    lines += ["\t".join([a, k] + [str(r.get(c, 0)) for c in COLUMNS[2:]]) for (a, k), r in sorted(rows.items())]
    path.write_text("\n".join(lines) + "\n")


def problems_of(rows, committed):
    for key, row in sorted(rows.items()):
        name, want = f"{key[1]} (sm_{key[0]})", committed.get(key)
        if row["spill_bytes"] > 0:
            yield f"{name}: {row['spill_bytes']} bytes of spills"
        if want is None:
            yield f"{name}: not in the table"
            continue
        if row["registers"] > want["registers"]:
            yield f"{name}: {row['registers']} registers, the table says {want['registers']}"
        for column in COLUMNS[4:]:
            if row.get(column, 0) != want.get(column, 0):
                yield f"{name}: {column} {row.get(column, 0)}, the table says {want.get(column, 0)}"
    built = {arch for arch, _ in rows}
    for arch, kernel in sorted(committed.keys() - rows.keys()):
        if arch in built:
            yield f"{kernel} (sm_{arch}): in the table, not built"


def main():
    build, table = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    rows = collect(build)
    if not rows:
        sys.exit("check_ptxas: no ptxas reports in " + str(build))
    notes, committed = read_table(table)
    if "--update-table" in sys.argv:
        built = {arch for arch, _ in rows}
        committed = {key: row for key, row in committed.items() if key[0] not in built} | rows
        write_table(table, notes, committed)
    problems = list(problems_of(rows, committed)) + list(complaints(build))
    for p in problems:
        print("check_ptxas:", p)
    top = max(rows.items(), key=lambda r: r[1]["registers"])
    print(f"check_ptxas: {len(rows)} kernels, {len(problems)} problems, most registers {top[1]['registers']} ({top[0][1]})")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
