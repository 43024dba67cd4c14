#!/usr/bin/env python3
"""Router, prefill, decode and load generator on hosts of their own (network namespaces), under a good and bad networks: time
to the first token, output tokens/s, failed requests and what the KV's connection reached. Needs root.

  bench/cluster/three_hosts.py --model MODEL.gguf [--transports tcp,ucx-tcp] [--load-generator build/.../bench_serve_load]
                               [--json FILE]"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))
from hosts import HostCluster, Hosts, why_not  # noqa: E402

NETWORKS = [("good", {}), ("20 ms", {"delay": 0.01}), ("20 ms, 1 % loss", {"delay": 0.01, "loss": 0.01})]
CUT_SECONDS = 3


def measure(hosts, cluster, args):
    """One run of the load generator on the client's host."""
    out = cluster.dir / "load.json"
    url = f"http://{cluster.host}:{cluster.port}"
    run = hosts.run("client", [args.load_generator, "--url", url, "--model", "m", "--clients", "2", "--requests", args.requests,
                               "--prompt-words", args.words, "--max-tokens", "16", "--json", out], stdout=subprocess.PIPE, text=True)
    text, _ = run.communicate(timeout=600)
    assert run.returncode in (0, 1), text  # 1: some requests failed, which the figures say
    return json.loads(out.read_text())


def measure_cut(hosts, cluster, args):
    """As measure; a second after its start the decode host is cut off from everybody, for 3 s."""
    def cut():
        time.sleep(1)
        hosts.cut("decode")
        time.sleep(CUT_SECONDS)
        hosts.cut()

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        return measure(hosts, cluster, args)
    finally:
        thread.join()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--transports", default="tcp,ucx-tcp")
    parser.add_argument("--load-generator", default=str(ROOT / "build" / "release" / "bench" / "bench_serve_load"))
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--words", type=int, default=400)
    parser.add_argument("--json")
    args = parser.parse_args()
    if reason := why_not():
        sys.exit(f"three hosts: {reason}")
    rows = []
    with Hosts(["router", "prefill", "decode", "client"]) as hosts:
        for transport in args.transports.split(","):
            with HostCluster(hosts, model=args.model, dummy=False, worker_args=["--transport", transport, "--served-model-name", "m", "--no-enable-prefix-caching"],
                             router_args=["--local-prefill-max-tokens", 8, "--served-model-name", "m"]) as c:
                for network, impairment in NETWORKS:
                    with hosts.impaired(**impairment):
                        row = {"transport": transport, "network": network, **measure(hosts, c, args)}
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                row = {"transport": transport, "network": f"{CUT_SECONDS} s partition", **measure_cut(hosts, c, args)}
                rows.append(row)
                print(json.dumps(row), flush=True)
                for line in c.log_of("prefill").splitlines():
                    if found := re.search(r"is reached by .*", line):
                        print(f"{transport}: {found[0]}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
