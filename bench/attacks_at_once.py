#!/usr/bin/env python3
"""What the clients of a cluster keep of their throughput while strangers attack every port of it at once.

  bench/attacks_at_once.py [--rounds 6] [--seconds 4] [--clients 4] [--rate 20] [--one-address] [--only PORT] [--attack NAME] [--costs] [--json FILE]

A cluster with API keys and its cluster secret; clients with a key ask without end. Attackers come from addresses of their own on
loopback (127.0.0.2 and up; with --one-address all from the clients' own, 127.0.0.1), each attack `--rate` times a second, in a process
of its own. Windows with and without them follow one
another; the figure is the median over the pairs of (tokens with attackers / tokens without). Attackers take CPU of the same machine:
how much is said beside it, and a second control, in which they attack a port of nobody's with the same work, takes that out. Ends with
1 when the clients keep less than nine tenths of what they keep beside the control, or when one of them was answered wrongly.

With --costs nobody asks, and one attack follows the other: what a connection of each costs the cluster's processes, in microseconds of a core."""
import argparse
import json
import multiprocessing
import os
import pathlib
import random
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster"))
from harness import Cluster  # noqa: E402

KEEP = 0.9
KEY = "sk-of-the-clients"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def h2(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def post(path, body, extra=b"", length=None):
    return (b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n" %
            (path, extra, len(body) if length is None else length)) + body


def many_headers(count):
    return b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"x-%d: y\r\n" % i for i in range(count))


AUTH = b"Authorization: Bearer sk-guessed\r\n"
SETTINGS = PREFACE + h2(4, 0, 0)


def resets(headers, before=SETTINGS):
    return before + b"".join(h2(1, 5, n, headers) + h2(3, 0, n, b"\0\0\0\x08") for n in range(1, 201, 2))


# POST, http, :path /a, :authority a, te, content-type
CALL = b"\x83\x86\x04\x02/a\x01\x01a\0\x02te\x08trailers\x0f\x10\x10application/grpc"
# name -> (port, bytes, whether the connection is held open, bytes that follow once something has come)
ATTACKS = {
    "connects and says nothing": ("http", b"", True),
    "half a request line": ("http", b"GET /v1/mod", True),
    "headers without end": ("http", many_headers(600), False),
    "guesses a key": ("http", post(b"/v1/completions", b"{}", AUTH), False),
    "a huge body without a key": ("http", post(b"/v1/completions", b"x" * 65536, length=1 << 30), False),
    "two framings": ("http", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", False),
    "asks for health in a pipeline": ("http", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50, False),
    "another host's name": ("http", b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", False),
    "noise to HTTP": ("http", bytes(random.Random(1).randbytes(4096)), False),
    "connects to gRPC and says nothing": ("grpc", b"", True),
    "a gRPC connection that is held": ("grpc", SETTINGS, True),
    "rapid resets": ("grpc", resets(CALL), False),
    "rapid resets of what is no call": ("grpc", resets(b"\x82\x86\x84\x41\x01a"), False),
    "rapid resets after our SETTINGS": ("grpc", SETTINGS, False, h2(4, 1, 0) + resets(CALL, b"")),
    "SETTINGS without end": ("grpc", SETTINGS + h2(4, 0, 0) * 500, False),
    "PINGs without end": ("grpc", SETTINGS + h2(6, 0, 0, b"12345678") * 500, False),
    "noise to gRPC": ("grpc", bytes(random.Random(2).randbytes(4096)), False),
    "orders a drain at the admin port": ("admin", post(b"/workers/drain", b'{"worker": "decode-0"}', AUTH), False),
    "watches events without a key": ("admin", b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n", True),
    "slow headers at the admin port": ("admin", b"GET /console HTTP/1.1\r\nHost:", True),
    "a worker's port with no greeting": ("worker", SETTINGS + h2(1, 4, 1, b"\x83\x86\x84\x41\x01a"), True),
    "noise to a worker": ("worker", bytes(random.Random(3).randbytes(4096)), False),
    "a landing port, silent": ("landing", b"", True),
    "a landing port, a greeting of noise": ("landing", b"BATONHI\n" + bytes(random.Random(4).randbytes(248)), True),
    "a landing port, a frame of 4 GiB": ("landing", b"\xff" * 256, False),
}


def attack(name, address, number, ports, rate, running, made):
    """One stranger: connections at a pace, the last 200 of those that he holds."""
    port, data, holds, *then = ATTACKS[name]
    held, at = [], time.monotonic()
    while True:
        running.wait()
        at = max(at + 1 / rate, time.monotonic() - 1)
        time.sleep(max(0.0, at - time.monotonic()))
        s = socket.socket()
        try:
            s.settimeout(0.2)
            s.bind((address, 0))
            s.connect(("127.0.0.1", random.choice(ports[port])))
            if data:
                s.sendall(data)
            for more in then:
                s.recv(4096)
                s.sendall(more)
            if not holds:
                s.recv(4096)
        except OSError:
            pass
        made[number] += 1
        held.append(s)
        while len(held) > (200 if holds else 0):
            held.pop(0).close()


def strangers(ports, args, running, made):
    address = lambda i: "127.0.0.1" if args.one_address else f"127.0.0.{2 + i}"
    threads = [threading.Thread(target=attack, args=(name, address(i), i, ports, args.rate, running, made), daemon=True)
               for i, name in enumerate(ATTACKS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def listening(pid):
    """Ports of 127.0.0.1 at which a process listens."""
    inodes = set()
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(fd)
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    out = set()
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        field = line.split()
        if field[3] == "0A" and field[9] in inodes:
            out.add(int(field[1].split(":")[1], 16))
    return out


class Clients:
    """Ask without end; `tokens` are those of whole answers, `wrong` what was none."""

    def __init__(self, cluster, count):
        self.cluster, self.tokens, self.wrong, self.over = cluster, 0, [], threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(i,), daemon=True) for i in range(count)]

    def ask(self, i):
        body = {"model": "tiny-llama", "prompt": f"{i} the quick brown fox", "max_tokens": 48, "temperature": 0, "ignore_eos": True}
        while not self.over.is_set():
            try:
                reply = self.cluster.post("/v1/completions", body, headers={"Authorization": f"Bearer {KEY}"}, timeout=30)
                if reply.status != 200:
                    self.wrong.append(reply.status)
                self.tokens += 48
            except OSError as e:
                self.wrong.append(repr(e))


def cpu_seconds(pid):
    return time.clock_gettime(~pid << 3 | 2)


def nobody():
    """A server that reads and closes: the attackers' own work alone."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)

    def serve():
        while True:
            s, _ = listener.accept()
            s.settimeout(0.05)
            try:
                s.recv(4096)
            except OSError:
                pass
            s.close()
    process = multiprocessing.Process(target=serve, daemon=True)
    process.start()
    return process, listener.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rate", type=float, default=20)
    parser.add_argument("--one-address", action="store_true", help="strangers come from the clients' address")
    parser.add_argument("--only", choices=sorted({port for port, *_ in ATTACKS.values()}), help="attacks at this port alone")
    parser.add_argument("--attack", choices=sorted(ATTACKS), help="this attack alone")
    parser.add_argument("--costs", action="store_true", help="of each attack by itself")
    parser.add_argument("--json")
    args = parser.parse_args()
    for name in [name for name, (port, *_) in ATTACKS.items() if (args.only and port != args.only) or args.attack not in (None, name)]:
        del ATTACKS[name]
    with tempfile.TemporaryDirectory(prefix="baton-attacks-") as folder:
        keys = pathlib.Path(folder, "keys")
        keys.write_text(KEY + "\n")
        flags = ["--prefill", 1, "--decode", 1, "--threads", 1, "--api-key-file", keys, "--local-prefill-max-tokens", 0]
        with Cluster(args=flags) as c:
            port_of = lambda url: int(url.rsplit(":", 1)[1])
            workers = {role: listening(c.workers(role)[0]) for role in ("prefill", "decode")}
            grpc_of = {w: port_of(address) for w, address in addresses(c).items()}
            landing = workers["decode"] - set(grpc_of.values())
            ports = {"http": [int(c.port)], "grpc": [port_of(c.grpc)], "admin": [port_of(c.admin)], "worker": list(grpc_of.values()),
                     "landing": list(landing)}
            if args.costs:
                return costs(c, args, ports)
            decoy, decoy_port = nobody()
            held = measure(c, args, {"attacks": ports, "control": {name: [decoy_port] for name in ports}})
            decoy.kill()
    return 0 if held else 1


def addresses(cluster):
    request = urllib.request.Request(cluster.admin + "/workers", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return {w["name"]: w["address"] for w in json.load(reply)["workers"]}


def costs(cluster, args, ports):
    pids = list(cluster.children())

    def burnt():
        return sum(map(cpu_seconds, pids)), time.monotonic()

    def rate(before, now):
        return (now[0] - before[0]) / (now[1] - before[1])
    time.sleep(args.seconds)  # it has just begun
    begin = burnt()
    time.sleep(args.seconds)
    idle, each = rate(begin, burnt()), {}
    for i, name in enumerate(ATTACKS):
        running, made = multiprocessing.Event(), multiprocessing.Array("L", 1, lock=False)
        address = "127.0.0.1" if args.one_address else f"127.0.0.{2 + i}"
        stranger = multiprocessing.Process(target=attack, args=(name, address, 0, ports, args.rate, running, made), daemon=True)
        stranger.start()
        running.set()
        while made[0] == 0:
            time.sleep(0.01)
        begin, first = burnt(), made[0]
        time.sleep(args.seconds)
        end = burnt()
        each[name] = 1e6 * (rate(begin, end) - idle) * (end[1] - begin[1]) / max(1, made[0] - first)
        stranger.kill()
        stranger.join()
        print(f"{name:40} {each[name]:7.0f} us of a core", flush=True)
    out = {"us_of_a_core": each, "idle_cores": idle, "rate": args.rate, "one_address": args.one_address, "load": os.getloadavg()[0]}
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(out, indent=1) + "\n")
    return 0


def measure(cluster, args, targets):
    crowds = {}
    for name, ports in targets.items():
        running, made = multiprocessing.Event(), multiprocessing.Array("L", len(ATTACKS), lock=False)
        process = multiprocessing.Process(target=strangers, args=(ports, args, running, made), daemon=True)
        process.start()
        crowds[name] = (process, running, made)
    clients = Clients(cluster, args.clients)
    for t in clients.threads:
        t.start()

    def window():
        before, since = clients.tokens, time.monotonic()
        time.sleep(args.seconds)
        return (clients.tokens - before) / (time.monotonic() - since)

    window()  # warms up
    ratios, rates, cpu = {name: [] for name in crowds}, {name: [] for name in crowds}, {name: 0.0 for name in crowds}
    for n in range(args.rounds):
        for name in list(crowds) if n % 2 else list(crowds)[::-1]:
            process, running, made = crowds[name]
            alone = window()
            begun, burnt, since = sum(made), cpu_seconds(process.pid), time.monotonic()
            running.set()
            beside = window()
            running.clear()
            ratios[name].append(beside / alone)
            rates[name].append((sum(made) - begun) / (time.monotonic() - since))
            cpu[name] += (cpu_seconds(process.pid) - burnt) / (time.monotonic() - since)
    clients.over.set()
    for t in clients.threads:
        t.join(60)
    for process, _, _ in crowds.values():
        process.kill()
    kept = {name: statistics.median(r) for name, r in ratios.items()}
    out = {"attacks": len(ATTACKS), "connections_per_s": statistics.median(rates["attacks"]), "rounds": args.rounds, "cores": os.cpu_count(),
           "kept": kept, "ratios": ratios, "attackers_cores": {k: v / args.rounds for k, v in cpu.items()},
           "kept_of_control": kept["attacks"] / kept["control"], "limit": KEEP, "one_address": args.one_address, "wrong_answers": clients.wrong[:5],
           "load": os.getloadavg()[0]}
    print(json.dumps(out, indent=1))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(out, indent=1) + "\n")
    return out["kept_of_control"] >= KEEP and not clients.wrong


if __name__ == "__main__":
    sys.exit(main())
