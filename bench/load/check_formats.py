#!/usr/bin/env python3
"""What `baton bench --save-as` writes, read by the tools whose formats these are.

  check_formats.py --guidellm FILE      with a Python that has guidellm: its report class validates it and exports tables of it
  check_formats.py --inference-perf DIR with one that finds inference_perf: its validators look for numbers that do not agree
"""
import argparse
import json
import pathlib
import tempfile


def read_guidellm(path):
    from guidellm.benchmark.schemas.report import GenerativeBenchmarksReport
    report = GenerativeBenchmarksReport.load_file(path)
    for b in report.benchmarks:
        m = b.metrics
        print(f"{b.config.strategy.type_}: {m.request_totals.successful} answered, {m.request_totals.errored} not; "
              f"TTFT {m.time_to_first_token_ms.successful.mean:.2f} ms, between tokens {m.inter_token_latency_ms.successful.mean:.2f} ms, "
              f"{m.output_tokens_per_second.successful.mean:.1f} tok/s")
        # The library computes these of each request itself: they must be what the report says.
        for ours, theirs in [(m.time_to_first_token_ms, "time_to_first_token_ms"), (m.inter_token_latency_ms, "inter_token_latency_ms"),
                             (m.time_per_output_token_ms, "time_per_output_token_ms"), (m.request_latency, "request_latency")]:
            values = [v for r in b.requests.successful if (v := getattr(r, theirs)) is not None]
            mean = sum(values) / len(values)
            if abs(mean - ours.successful.mean) > 1e-3 * abs(mean):
                raise SystemExit(f"{theirs}: {ours.successful.mean} in the report, {mean} of its requests")
    with tempfile.TemporaryDirectory() as folder:
        report.save_file(pathlib.Path(folder) / "again.json")


def read_inference_perf(folder):
    from inference_perf.reportgen import validation
    from inference_perf.utils import ReportFile
    files = [ReportFile(name=p.stem, contents=json.loads(p.read_text())) for p in sorted(pathlib.Path(folder).glob("*.json"))]
    found = validation.validate_reports(files).get_contents()
    print(json.dumps(found, indent=1, default=str))
    if any(group["errors"] or group["warnings"] for group in [found["global"], *found["reports"].values()]):
        raise SystemExit("its validators found something")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--guidellm")
    p.add_argument("--inference-perf")
    o = p.parse_args()
    if o.guidellm:
        read_guidellm(o.guidellm)
    if o.inference_perf:
        read_inference_perf(o.inference_perf)


if __name__ == "__main__":
    main()
