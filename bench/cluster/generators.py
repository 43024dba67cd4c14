#!/usr/bin/env python3
"""Generators of load on several hosts (network namespaces) that begin together, against a router, prefill and decode worker on hosts of their own:
one merged report, what each host computed and what its network carried. Needs root.

  bench/cluster/generators.py --model MODEL.gguf [--generators 2] [--requests 40] [--rate 4] [--transport tcp] [--json FILE]"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))
from harness import BATON  # noqa: E402
from hosts import DEVICE, HostCluster, Hosts, why_not  # noqa: E402

AHEAD = 3  # seconds until all begin
TICKS = os.sysconf("SC_CLK_TCK")


def network(hosts, host):
    """Bytes that came and went."""
    said = subprocess.run(["ip", "netns", "exec", hosts.netns(host), "cat", "/proc/net/dev"], capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in said.splitlines() if line.strip().startswith(f"{DEVICE}:"))
    fields = line.split(":")[1].split()
    return {"received": int(fields[0]), "sent": int(fields[8])}


def cpu_seconds(hosts, host):
    """Of all processes on the host that run now."""
    total = 0
    for pid in subprocess.run(["ip", "netns", "pids", hosts.netns(host)], capture_output=True, text=True, check=True).stdout.split():
        try:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def generate(hosts, cluster, names, args):
    """Files of the generators' results; all begin at one time."""
    start, out, running = time.time() + AHEAD, [], []
    for seed, name in enumerate(names):
        out.append(cluster.dir / f"{name}.json")
        running.append(hosts.run(name, [BATON, "bench", "--base-url", f"http://{cluster.host}:{cluster.port}", "--model", "m", "--seed", seed,
                                        "--start-at", start, "--num-prompts", args.requests, "--request-rate", args.rate, "--random-input-len",
                                        args.input, "--random-output-len", args.output, "--disable-tqdm", "--save-detailed", "--result-dir",
                                        cluster.dir, "--result-filename", out[-1].name], stdout=subprocess.DEVNULL))
    codes = [process.wait(600) for process in running]
    assert codes == [0] * len(names), codes
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--generators", type=int, default=2)
    parser.add_argument("--requests", type=int, default=40, help="of each generator")
    parser.add_argument("--rate", default="4", help="of each generator, a second")
    parser.add_argument("--input", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--output", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--transport", default="tcp", help="of KV; auto would find that the hosts share a memory")
    parser.add_argument("--json")
    args = parser.parse_args()
    if reason := why_not():
        sys.exit(f"generators: {reason}")
    servers, names = ["router", "prefill", "decode"], [f"load-{n}" for n in range(args.generators)]
    with Hosts(servers + names) as hosts, HostCluster(
            hosts, model=args.model, dummy=False, worker_args=["--served-model-name", "m", "--transport", args.transport],
            router_args=["--local-prefill-max-tokens", 8, "--served-model-name", "m"]) as cluster:
        before = {name: (network(hosts, name), cpu_seconds(hosts, name)) for name in servers + names}
        files = generate(hosts, cluster, names, args)
        nodes = {}
        for name, (net, cpu) in before.items():
            after = network(hosts, name)
            nodes[name] = {key: after[key] - net[key] for key in net} | ({"cpu_s": round(cpu_seconds(hosts, name) - cpu, 2)} if name in servers else {})
        merged = cluster.dir / "all.json"
        print(subprocess.run([BATON, "bench", "--merge", *files, "--save-result", "--result-dir", cluster.dir, "--result-filename", merged.name],
                             capture_output=True, text=True, check=True).stdout)
        result = json.loads(merged.read_text())
    print(f"{'host':<10}{'CPU s':>8}{'sent MB':>10}{'received MB':>13}{'sent MB/s':>11}")
    for name, node in nodes.items():
        cpu = f"{node['cpu_s']:.1f}" if "cpu_s" in node else ""
        print(f"{name:<10}{cpu:>8}{node['sent'] / 1e6:>10.2f}{node['received'] / 1e6:>13.2f}{node['sent'] / 1e6 / result['duration']:>11.2f}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"result": result, "nodes": nodes}, indent=1) + "\n")


if __name__ == "__main__":
    main()
