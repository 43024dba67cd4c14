#!/usr/bin/env python3
"""What a client with a right key, on the router's own machine, takes from others by floods of the gRPC port.

  bench/key_holder_flood.py [--seconds 5] [--connections 8] [--flood NAME]… [--source 127.0.0.1] [--args ARG…] [--baton BINARY] [--json FILE]

For each flood a cluster of its own with two keys. Two clients of one key ask over HTTP without end, first alone; then the other key's
connections send as fast as they are read, and dial again when one is ended. Printed: how much the router's memory grew at most, the
answers of others a second before, during and after, and what was sent."""
import argparse
import json
import multiprocessing
import pathlib
import select
import socket
import struct
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster"))
import grpc_call  # noqa: E402
import harness  # noqa: E402

RIGHT, OTHER = "sk-right", "sk-other"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BODY = {"model": "tiny-llama", "prompt": "one two three", "max_tokens": 8, "temperature": 0}
PIECE, WINDOW, MOST_STREAMS = 16384, 65535, 300


def h2(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name, value):
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


HEADERS = (b"\x83\x86" + literal(b":path", b"/baton.v1.Generation/Generate") + literal(b":authority", b"a") + literal(b"te", b"trailers")
           + literal(b"content-type", b"application/grpc") + literal(b"authorization", b"Bearer " + RIGHT.encode()))
SMALL = grpc_call.field(2, "a b c d " * 8)
LARGE = 2_000_000


def message(data):
    return b"\0" + len(data).to_bytes(4, "big") + data


def resets(headers, later, data, count=60000):
    out = []
    for n in range(1, 2 * count, 2):
        out.append(h2(1, 4, n, headers if n == 1 else later) + h2(0, 1, n, message(data)) + h2(3, 0, n, b"\0\0\0\x08"))
    return b"".join(out)


def short():
    """Headers by their index in the table: path 64, authority and te as literals."""
    table = [b":path", b":authority", b"te", b"content-type", b"authorization"]
    values = [b"/baton.v1.Generation/Generate", b"a", b"trailers", b"application/grpc", b"Bearer " + RIGHT.encode()]
    first = b"\x83\x86" + b"".join(b"\x40" + literal(k, v)[1:] for k, v in zip(table, values))
    return first, b"\x83\x86" + bytes(0x80 | i for i in (66, 65, 64, 63, 62))


class Blind:
    """Sends what was made before, whatever is said."""

    def __init__(self, make):
        self.make, self.data = make, None

    def start(self):
        self.data = self.data or PREFACE + h2(4, 0, 0) + self.make()
        return memoryview(self.data)

    def more(self, conn):
        return b""

    def heard(self, conn, data):
        pass


class Large:
    """Messages of two megabytes, as far as windows let them come; each is given up before its last piece, or `kept`: beside small calls.
    `at_once`: of so many calls."""

    def __init__(self, at_once, kept=False):
        self.at_once, self.kept = at_once, kept

    def start(self):
        return memoryview(PREFACE + h2(4, 0, 0))

    def more(self, conn):
        state = conn.setdefault("state", {"window": WINDOW, "first": WINDOW, "next": 1, "streams": {}, "in": b""})
        out = b""
        while sum(one[2] > 0 for one in state["streams"].values()) < self.at_once and len(state["streams"]) < MOST_STREAMS:
            out += h2(1, 4, state["next"], HEADERS)
            state["streams"][state["next"]] = [state["first"], b"\0" + LARGE.to_bytes(4, "big"), LARGE + 5]
            state["next"] += 2
        for n, one in list(state["streams"].items()):
            size = min(PIECE, state["window"], one[0], one[2])
            if size > 0 and one[2] - size > 0:
                piece = (one[1] + b"x" * size)[:size]
                out += h2(0, 0, n, piece)
                one[1], one[0], one[2] = one[1][size:], one[0] - size, one[2] - size
                state["window"] -= size
            if one[2] <= PIECE and self.kept and one[2] > 0:
                out += h2(1, 4, state["next"], HEADERS) + h2(0, 1, state["next"], message(SMALL))
                state["next"], state["window"], one[2] = state["next"] + 2, state["window"] - len(SMALL) - 5, 0
            elif one[2] <= PIECE and not self.kept:
                out += h2(3, 0, n, b"\0\0\0\x08")
                del state["streams"][n]
        return out

    def heard(self, conn, data):
        state = conn.get("state")
        if state is None:
            return
        data = state["in"] + data
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
            size, kind, flags, stream = int.from_bytes(data[:3], "big"), data[3], data[4], int.from_bytes(data[5:9], "big")
            body = data[9:9 + size]
            if kind == 8:
                n = int.from_bytes(body, "big")
                if stream == 0:
                    state["window"] += n
                elif stream in state["streams"]:
                    state["streams"][stream][0] += n
            elif kind == 4 and not flags & 1:
                for i in range(0, size, 6):
                    if body[i:i + 2] == b"\0\4":
                        first = int.from_bytes(body[i + 2:i + 6], "big")
                        for one in state["streams"].values():
                            one[0] += first - state["first"]
                        state["first"] = first
            elif kind in (1, 3) and (kind == 3 or flags & 1):
                state["streams"].pop(stream, None)
            data = data[9 + size:]
        state["in"] = data


FLOODS = {
    "small calls": Blind(lambda: resets(HEADERS, HEADERS, SMALL)),
    "empty calls": Blind(lambda: resets(HEADERS, HEADERS, b"")),
    "short calls": Blind(lambda: resets(*short(), b"")),
    "calls not given up": Blind(lambda: b"".join(h2(1, 4, n, HEADERS) + h2(0, 1, n, message(b"")) for n in range(1, 120000, 2))),
    "large messages": Large(8),
    "one large message at a time": Large(1),
    "messages that never end": Large(2, kept=True),
}


def flood(name, port, source, connections, seconds, out):
    what, poll, live = FLOODS[name], select.epoll(), {}
    made = sent = 0
    what.start()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        while len(live) < connections:
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.bind((source, 0))
            try:
                s.connect(("127.0.0.1", port))
            except OSError:
                s.close()
                break
            s.setblocking(False)
            live[s.fileno()] = {"socket": s, "out": what.start()}
            poll.register(s, select.EPOLLIN | select.EPOLLOUT)
            made += 1
        for number, event in poll.poll(0.02):
            conn = live[number]
            try:
                if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                    data = conn["socket"].recv(1 << 16)
                    if not data:
                        raise OSError
                    what.heard(conn, data)
                if event & select.EPOLLOUT:
                    if not conn["out"]:
                        conn["out"] = memoryview(what.more(conn))
                    if conn["out"]:
                        n = conn["socket"].send(conn["out"][:1 << 18])
                        sent, conn["out"] = sent + n, conn["out"][n:]
            except BlockingIOError:
                pass
            except OSError:
                poll.unregister(number)
                live.pop(number)["socket"].close()
    out.put((made, sent))


def resident(pid):
    line = next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) << 10


class Others:
    def __init__(self, cluster, count=2):
        self.cluster, self.over, self.done, self.wrong = cluster, threading.Event(), 0, []
        self.slowest = 0
        self.threads = [threading.Thread(target=self.ask) for _ in range(count)]

    def ask(self):
        connection = self.cluster.connection()
        while not self.over.is_set():
            began = time.monotonic()
            connection.request("POST", "/v1/completions", json.dumps(BODY), {"Content-Type": "application/json", "Authorization": f"Bearer {OTHER}"})
            reply = connection.getresponse()
            text = reply.read()
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.done += 1
            if reply.status != 200:
                self.wrong.append((reply.status, text[:200]))

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for t in self.threads:
            t.join()

    def rate(self, seconds):
        done = self.done
        time.sleep(seconds)
        return (self.done - done) / seconds


def measure(name, args, keys):
    with harness.Cluster(args=["--threads", 1, "--api-key-file", keys, *args.args]) as c, Others(c) as others:
        c.wait_until(lambda: others.done > 20, "answers")
        pid, port = c.pid_of("router"), int(c.grpc.rsplit(":", 1)[1])
        others.rate(1)
        alone, base, others.slowest = others.rate(args.seconds), resident(pid), 0
        queue = multiprocessing.Queue()
        attacker = multiprocessing.Process(target=flood, args=(name, port, args.source, args.connections, args.seconds + 1.5, queue))
        attacker.start()
        most, done, at, until = base, others.done, time.monotonic(), time.monotonic() + args.seconds + 1.5
        while time.monotonic() < until:
            most = max(most, resident(pid))
            time.sleep(0.02)
        during = (others.done - done) / (time.monotonic() - at)
        made, sent = queue.get()
        attacker.join()
        slowest = others.slowest
        after = others.rate(args.seconds)
        reasons = [line for line in c.get("/metrics", headers={"Authorization": f"Bearer {OTHER}"}).body.splitlines() if line.startswith("baton_http_connections_closed_total")]
        return {"grown_MiB": (most - base) >> 20, "after_MiB": (resident(pid) - base) >> 20, "alone": round(alone, 1), "during": round(during, 1),
                "after": round(after, 1), "slowest_ms": round(1000 * slowest), "connections": made, "sent_MB": round(sent / 1e6, 1),
                "wrong": len(others.wrong), "closed": [r.split("reason=")[1] for r in reasons]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--flood", choices=sorted(FLOODS), action="append")
    parser.add_argument("--source", default="127.0.0.1")
    parser.add_argument("--baton")
    parser.add_argument("--json")
    parser.add_argument("--args", nargs="*", default=[])
    args = parser.parse_args()
    if args.baton:
        harness.BATON = pathlib.Path(args.baton)
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        keys = pathlib.Path(folder, "keys")
        keys.write_text(f"{RIGHT}\n{OTHER}\n")
        for name in args.flood or FLOODS:
            rows[name] = measure(name, args, keys)
            print(f"{name:28s} {rows[name]}", flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
