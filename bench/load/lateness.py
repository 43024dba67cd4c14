#!/usr/bin/env python3
"""How late `baton bench` sends: so many requests at so many per second to timed_stub.py, each on a core of its own.

  lateness.py [--requests 50000] [--rate 2000] [--real-time] [--json FILE] [-- FLAG OF BENCH...]

--real-time: the stub, too, before every other process of the machine (SCHED_FIFO, root), for one that others use. The stub's times
are known, so the table says also how far off the measured ones are.
"""
import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FIRST, GAP, TOKENS = 20, 5, 4  # ms, ms, of each answer


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--baton", default=str(ROOT / "build" / "baton"))
    p.add_argument("--requests", type=int, default=50000)
    p.add_argument("--rate", type=int, default=2000)
    p.add_argument("--real-time", action="store_true")
    p.add_argument("--json")
    p.add_argument("more", nargs="*")
    o = p.parse_args()

    def on(core, real_time=False):
        def begin():
            os.sched_setaffinity(0, {core})
            if real_time:
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
        return begin

    stub = subprocess.Popen([sys.executable, HERE / "timed_stub.py", "--first", str(FIRST), "--gap", str(GAP)], stdout=subprocess.PIPE,
                            text=True, preexec_fn=on(1, o.real_time))
    try:
        port = stub.stdout.readline().split()[1]
        with tempfile.TemporaryDirectory() as folder:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([o.baton, "bench", "--port", port, "--model", "stub", "--num-prompts", str(o.requests), "--request-rate", str(o.rate),
                            "--random-input-len", "32", "--random-output-len", str(TOKENS), "--disable-tqdm", "--save-result",
                            "--result-dir", folder, "--result-filename", "r.json", *o.more], check=True, stdout=subprocess.DEVNULL, preexec_fn=on(0))
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seen = json.loads((pathlib.Path(folder) / "r.json").read_text())
    finally:
        stub.terminate()
        stub.wait()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row = {"requests": o.requests, "rate": o.rate, "answered": seen["completed"], "seconds": seen["duration"],
           **{f"late_{q}_ms": seen[f"schedule_lag_{q}_ms"] for q in ("p50", "p99", "max")}, "cpu_us_per_request": 1e6 * cpu / o.requests,
           "ttft_off_ms": seen["median_ttft_ms"] - FIRST, "tpot_off_ms": seen["median_tpot_ms"] - GAP, "load_average": os.getloadavg()[0]}
    for key, value in row.items():
        print(f"{key:<20}{value:>12.3f}" if isinstance(value, float) else f"{key:<20}{value:>12}")
    if o.json:
        pathlib.Path(o.json).write_text(json.dumps(row, indent=1) + "\n")


if __name__ == "__main__":
    main()
