#!/usr/bin/env python3
"""What the stages of run.sh left in OUT, as one table and one JSON. usage: report.py OUT"""
import json
import pathlib
import sys


def read_json(path):
    return json.loads(path.read_text()) if path.exists() else None


def conformance(out):
    path = out / "conformance.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    wrong = [line.split()[0] for line in lines if not line.endswith("as documented")]
    return dict(micro_kernels=len(lines), differ=wrong)


def tests(out):
    rows = []
    for path in sorted((out / "tests").glob("*.json")):
        try:
            result = json.loads(path.read_text())
        except ValueError:  # its program was killed while it wrote
            continue
        rows.append(dict(program=path.stem, tests=result["tests"], failures=result["failures"] + result["errors"], time=result["time"],
                         failed=list(failed_tests(result))))
    return rows


def programs(out):
    """How every program of a stage ended: its latest run."""
    path, rows = out / "programs.txt", {}
    for line in path.read_text().splitlines() if path.exists() else []:
        stage, name, seconds, verdict = line.split(" ", 3)
        rows[stage, name] = dict(stage=stage, program=name, seconds=int(seconds), verdict=verdict.replace("_", " "))
    return list(rows.values())


def failed_tests(result):
    """Name and first message of every test that failed."""
    for suite in result["testsuites"]:
        for test in suite["testsuite"]:
            for failure in test.get("failures", [])[:1]:
                yield dict(test=f"{suite['name']}.{test['name']}", message=failure["failure"][:400])


def stages(out):
    """The latest run of each stage."""
    path, rows = out / "stages.txt", {}
    for line in path.read_text().splitlines() if path.exists() else []:
        name, seconds, verdict = line.split(" ", 2)
        rows[name] = dict(seconds=int(seconds), verdict=verdict.replace("_", " "))
    return rows


def kernels(out):
    """Our times with the peers' of the same shape beside them."""
    ours, peers = read_json(out / "kernels.json"), read_json(out / "libraries.json")
    rows = ours["kernels"] if ours else []
    for row in rows:
        row["peers"] = {p["library"]: p["us"] for p in (peers or {}).get("rows", [])
                        if (p["kernel"], p["shape"]) == (row["kernel"], row["shape"])}
    return rows, {k: ours[k] for k in ("device", "emulated", "roofs") if k in ours} if ours else {}


def engine(out):
    """What whole steps of a model took, by how it ran."""
    return {path.stem.removeprefix("engine_"): read_json(path) for path in sorted(out.glob("engine_*.json"))}


def print_engine(runs):
    for name, run in runs.items():
        for r in run["rows"]:
            alone = f", one by one {r['one_by_one_us']:.1f}" if "one_by_one_us" in r else ""
            print(f"{'engine ' + name:22} {r['what']} {r['batch']}x{r['context']}: {r['us']:.1f} us{alone}, floor {r['floor_us']:.1f}, "
                  f"{r['tokens_per_s']:.1f} tokens/s{'' if r.get('right', True) else ', OTHER TOKENS THAN ALONE'}")


def main():
    out = pathlib.Path(sys.argv[1])
    rows, device = kernels(out)
    result = dict(device, stages=stages(out), programs=programs(out), conformance=conformance(out), tests=tests(out), kernels=rows, engine=engine(out))
    if (out / "device.csv").exists():
        result["driver"] = (out / "device.csv").read_text().splitlines()[-1]
    if (out / "golden.txt").exists():  # so that one file is all there is to bring back
        result["golden"] = (out / "golden.txt").read_text()
    (out / "results.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"{'kernel':22} {'shape':28} {'us':>10} {'floor us':>10} {'ratio':>7}  {'check':6} beside")
    for r in rows:
        beside = ", ".join(f"{name} {us:.2f} us" for name, us in r["peers"].items())
        ratio = r["us"] / max(r["floor_us"], 1e-6)
        print(f"{r['kernel']:22} {r['shape']:28} {r['us']:10.2f} {r['floor_us']:10.2f} {ratio:7.2f}  "
              f"{'right' if r['right'] else 'WRONG':6} {beside}")
    print_engine(result["engine"])
    for t in result["tests"]:
        print(f"{t['program']:40} {t['tests']:4} tests, {t['failures']} failed, {t['time']}")
        for f in t["failed"]:
            print(f"    {f['test']}: {f['message'].splitlines()[0] if f['message'] else ''}")
    c = result["conformance"]
    print(f"conformance: {c['micro_kernels']} micro-kernels, {len(c['differ'])} differ {' '.join(c['differ'])}")
    for p in result["programs"]:
        if p["verdict"] != "passed":
            print(f"{p['stage']} {p['program']}: {p['verdict']} after {p['seconds']} s")
    for name, s in result["stages"].items():
        print(f"stage {name:12} {s['seconds']:4} s  {s['verdict']}")
    print(f"written: {out / 'results.json'}" + (", an emulator's dry run: times mean nothing" if device.get("emulated") else ""))
    missing = [what for what, there in dict(kernels=rows, tests=result["tests"], conformance=c["micro_kernels"]).items() if not there]
    if missing:
        sys.exit(f"report: nothing of stage {', '.join(missing)} in {out}")


if __name__ == "__main__":
    main()
