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
    from guidellm.schemas import DistributionSummary
    report = GenerativeBenchmarksReport.load_file(path)
    for b in report.benchmarks:
        m = b.metrics
        print(f"{b.config.strategy.type_}: {m.request_totals.successful} answered, {m.request_totals.errored} not; "
              f"TTFT {m.time_to_first_token_ms.successful.mean:.2f} ms, between tokens {m.inter_token_latency_ms.successful.mean:.2f} ms, "
              f"{m.output_tokens_per_second.successful.mean:.1f} tok/s")
        # The library makes these of the requests itself, with the weights that it gives them: they must be what the report says.
        start, end = b.scheduler_metrics.measure_start_time, b.scheduler_metrics.measure_end_time
        answered = b.requests.successful
        for ours, theirs in [
                (m.time_to_first_token_ms, DistributionSummary.from_values([r.time_to_first_token_ms for r in answered])),
                (m.inter_token_latency_ms, DistributionSummary.from_values([(r.inter_token_latency_ms or 0.0, r.output_tokens - 1.0) for r in answered])),
                (m.time_per_output_token_ms, DistributionSummary.from_values([(r.time_per_output_token_ms, float(r.output_tokens)) for r in answered])),
                (m.request_latency, DistributionSummary.from_values([r.request_latency for r in answered])),
                (m.requests_per_second, DistributionSummary.rate_distribution_from_timings([r.request_end_time for r in answered], start, end)),
                (m.request_concurrency, DistributionSummary.concurrency_distribution_from_timings(
                    [(r.request_start_time, r.request_end_time) for r in answered], start, end))]:
            over_time = ours in (m.requests_per_second, m.request_concurrency)  # the edges of what comes at once are not the same
            for figure in ("mean", "count") if over_time else ("mean", "std_dev", "min", "max", "count"):
                a, c = getattr(ours.successful, figure), getattr(theirs, figure)
                if abs(a - c) > 2e-3 * max(abs(c), theirs.mean):
                    raise SystemExit(f"{figure}: {a} in the report, {c} of its requests: {theirs}")
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
