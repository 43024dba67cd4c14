#!/usr/bin/env python3
"""What the cluster secret costs: CPU of router and workers for a request, and for a byte of KV, with --cluster-secret-file and without.

  bench/secret_cost.py [--rounds 40] [--json FILE]

Two clusters of a prefill and a decode worker (KV over TCP) run side by side, one with the secret. Rounds of the same requests alternate
between them, and who begins alternates; the figures are the median over the rounds of (CPU with / CPU without), with the range that holds
the median in 95 of 100 draws of rounds, and the ratio of the lower quartiles of their rounds, which others on the machine disturb less. A third cluster without the secret, against the second, says what such a figure is worth. The
CPU that each takes alone is left out. Short requests: 8 tokens in, 16 out, on a connection of the client that stays. Long ones: prompts
of about 1,800 tokens that no cache holds, one token out."""
import argparse
import contextlib
import http.client
import json
import pathlib
import random
import secrets
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster"))
from harness import TINY  # noqa: E402
from test_tls import Process, port_of, worker  # noqa: E402


def cpu_seconds(pid):
    return time.clock_gettime(~pid << 3 | 2)


class Cluster(contextlib.ExitStack):
    def __init__(self, flags):
        super().__init__()
        of_a_worker = ["--port", 0, "--transport", "tcp", "--threads", 1, *flags]
        workers = [self.enter_context(worker("--role", role, *of_a_worker)) for role in ("prefill", "decode")]
        at = [flag for w in workers for flag in ("--worker", port_of(w))]
        front = self.enter_context(Process("router", "--model", TINY, *at, "--port", 0, "--grpc-port", 0, "--admin-port", 0, "--log-requests=false",
                                           "--local-prefill-max-tokens", 0, *flags))
        host, port = front.value("BATON_HTTP").split("//")[1].rsplit(":", 1)
        self.http = http.client.HTTPConnection(host, int(port), timeout=60)
        self.pids = [p.process.pid for p in (*workers, front)]
        self.idle = 0.0  # CPU in a second

    def used(self):
        return sum(cpu_seconds(pid) for pid in self.pids)

    def complete(self, **body):
        self.http.request("POST", "/v1/completions", json.dumps({"temperature": 0, "ignore_eos": True, **body}), {"Content-Type": "application/json"})
        reply = self.http.getresponse()
        text = reply.read()
        assert reply.status == 200, text

    def kv_bytes(self):
        self.http.request("GET", "/metrics")
        lines = self.http.getresponse().read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("baton_kv_transfer_bytes_total{") and 'role="decode"' in line)

    def round(self, requests):
        """CPU that these requests took."""
        before, at = self.used(), time.monotonic()
        for body in requests:
            self.complete(**body)
        return self.used() - before - self.idle * (time.monotonic() - at)


def compared(one, other, rounds, make):
    """The figures of their CPU, and the CPU of `other` for a request."""
    ones, others = [], []
    for i in range(rounds):
        requests = make()
        spent = {}
        for cluster in (one, other) if i % 2 else (other, one):
            spent[cluster] = cluster.round(requests)
        ones.append(spent[one] / len(requests))
        others.append(spent[other] / len(requests))
    return figures(ones, others), statistics.median(others)


def figures(ones, others):
    ratios = [a / b for a, b in zip(ones, others)]
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    quartiles = [statistics.quantiles(some, n=4)[0] for some in (ones, others)]
    return {"median": round(statistics.median(ratios), 4), "from": round(medians[50], 4), "to": round(medians[1949], 4),
            "lower quartiles": round(quartiles[0] / quartiles[1], 4)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json")
    args = parser.parse_args()
    words = random.Random(2)

    def short():
        return [{"prompt": [words.randrange(3, 500) for _ in range(8)], "max_tokens": 16} for _ in range(50)]

    def long():
        return [{"prompt": [words.randrange(3, 500) for _ in range(1800)], "max_tokens": 1} for _ in range(4)]

    with tempfile.TemporaryDirectory(prefix="baton-secret-") as folder, contextlib.ExitStack() as stack:
        secret = pathlib.Path(folder, "secret")
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        with_it = stack.enter_context(Cluster(["--cluster-secret-file", secret]))
        without, without_too = (stack.enter_context(Cluster([])) for _ in range(2))
        clusters = with_it, without, without_too
        for cluster in clusters:
            for _ in range(2):
                cluster.round(short() + long())
        before, at = [c.used() for c in clusters], time.monotonic()
        time.sleep(5)
        for c, used in zip(clusters, before):
            c.idle = (c.used() - used) / (time.monotonic() - at)
        out = {"what": __doc__.splitlines()[0], "rounds": args.rounds, "idle_cores": [round(c.idle, 4) for c in clusters]}
        for name, make in ("short", short), ("long", long):
            moved = without.kv_bytes()
            ratios, cost = compared(with_it, without, args.rounds, make)
            moved = (without.kv_bytes() - moved) / args.rounds / len(make())
            control, _ = compared(without_too, without, args.rounds, make)
            out[name] = {"with / without": ratios, "without / without": control, "cpu_us_of_a_request": round(1e6 * cost),
                         "kv_bytes_of_a_request": round(moved), "cpu_ns_of_a_kv_byte": round(1e9 * cost / moved, 3) if moved else None}
            print(name, json.dumps(out[name]), flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
