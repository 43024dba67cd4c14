#!/usr/bin/env python3
"""CPU that a stranger's frames cost the router at its gRPC port.

  bench/grpc_attack_cpu.py [--seconds 5] [--connections 40] [--attack NAME] [--baton BINARY] [--json FILE]

For each attack one address (127.0.0.2 and up, which have the limits of an address) holds so many connections, sends on all of them as fast
as they take it and dials again when one is closed. Printed: the router's CPU, less what it takes alone, as a share of a core, in all
and for a connection and 8 KiB."""
import argparse
import json
import pathlib
import select
import socket
import struct
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster"))
import harness  # noqa: E402

KEY = "sk-of-the-clients"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FIRST_STREAMS = 2000


def h2(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name, value):
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


def call(path, more=b"", authority=b"\x01\x01a"):
    """POST, http, path, authority, te, content-type."""
    return b"\x83\x86\x04" + bytes((len(path),)) + path + authority + literal(b"te", b"trailers") + b"\x0f\x10\x10application/grpc" + more


GUESS = literal(b"authorization", b"Bearer sk-guessed")
EMPTY = b"\0\0\0\0\0"


def calls(headers, message=None, resets=False):
    out = []
    for n in range(1, 2 * FIRST_STREAMS, 2):
        out.append(h2(1, 5 if message is None else 4, n, headers))
        if message is not None:
            out.append(h2(0, 1, n, message))
        if resets:
            out.append(h2(3, 0, n, b"\0\0\0\x08"))
    return b"".join(out)


# name -> what is sent once on a connection, and what then goes on without end
ATTACKS = {
    "says nothing": (b"", b""),
    "SETTINGS": (b"", h2(4, 0, 0) * 400),
    "SETTINGS that change the table": (b"", (h2(4, 0, 0, b"\0\x01\0\0\0\0") + h2(4, 0, 0, b"\0\x01\0\0\x10\0")) * 200),
    "PINGs": (b"", h2(6, 0, 0, b"12345678") * 400),
    "PING answers": (b"", h2(6, 1, 0, b"12345678") * 400),
    "WINDOW_UPDATEs": (b"", h2(8, 0, 0, b"\0\0\0\x01") * 400),
    "PRIORITY": (b"", h2(2, 0, 1, b"\0\0\0\0\x01") * 400),
    "frames of an unknown kind": (b"", h2(200, 0, 0, b"x") * 400),
    "CONTINUATION without end": (h2(1, 0, 1, b"\x83\x86"), h2(9, 0, 1, b"") * 400),
    "calls without :authority": (calls(call(b"/a", authority=b"")), b""),
    "calls of another method": (calls(b"\x82\x86\x84\x41\x01a"), b""),
    "resets": (calls(call(b"/a"), resets=True), b""),
    "calls that nobody serves": (calls(call(b"/a")), b""),
    "guesses of a key": (calls(call(b"/baton.v1.Generation/GetModel", GUESS), EMPTY), b""),
    "health": (calls(call(b"/grpc.health.v1.Health/Check"), EMPTY), b""),
}


class Attacker:
    """One address. `run` returns (connections made, bytes sent)."""

    def __init__(self, address, port, attack, connections):
        self.source, self.to, self.attack, self.count = address, ("127.0.0.1", port), attack, connections
        self.poll, self.open, self.made, self.sent = select.epoll(), {}, 0, 0

    def dial(self):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.bind((self.source, 0))
        s.setblocking(False)
        s.connect_ex(self.to)
        first, again = self.attack
        self.open[s.fileno()] = [s, memoryview(PREFACE + h2(4, 0, 0) + first if first or again else b""), again]
        self.poll.register(s, select.EPOLLIN | select.EPOLLOUT)
        self.made += 1

    def drop(self, number):
        self.poll.unregister(number)
        self.open.pop(number)[0].close()

    def serve(self, number, what):
        one = self.open[number]
        try:
            if what & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR) and not one[0].recv(1 << 16):
                return self.drop(number)
            if what & select.EPOLLOUT:
                if not one[1]:
                    one[1] = memoryview(one[2])
                if not one[1]:
                    return self.poll.modify(number, select.EPOLLIN)
                sent = one[0].send(one[1])
                self.sent, one[1] = self.sent + sent, one[1][sent:]
        except BlockingIOError:
            pass
        except OSError:
            self.drop(number)

    def run(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for _ in range(min(10, self.count - len(self.open))):
                self.dial()
            for number, what in self.poll.poll(0.05):
                self.serve(number, what)
        for number in list(self.open):
            self.drop(number)
        return self.made, self.sent


def cpu_seconds(pid):
    return time.clock_gettime(~pid << 3 | 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--connections", type=int, default=40)
    parser.add_argument("--attack", choices=sorted(ATTACKS), action="append")
    parser.add_argument("--baton")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.baton:
        harness.BATON = pathlib.Path(args.baton)
    with tempfile.TemporaryDirectory(prefix="baton-attack-") as folder:
        keys = pathlib.Path(folder, "keys")
        keys.write_text(KEY + "\n")
        with harness.Cluster(args=["--threads", 1, "--api-key-file", keys]) as c:
            router = next(p for p in pathlib.Path("/proc").iterdir() if p.name.isdigit() and is_router(p, c.process.pid))
            pid, port = int(router.name), int(c.grpc.rsplit(":", 1)[1])
            before = cpu_seconds(pid)
            time.sleep(args.seconds)
            idle = (cpu_seconds(pid) - before) / args.seconds
            rows = {}
            for i, (name, attack) in enumerate(ATTACKS.items()):
                if args.attack and name not in args.attack:
                    continue
                before, at = cpu_seconds(pid), time.monotonic()
                made, sent = Attacker(f"127.0.0.{2 + i}", port, attack, args.connections).run(args.seconds)
                time.sleep(0.3)
                used = cpu_seconds(pid) - before - idle * (time.monotonic() - at)
                row = {"cores": used / args.seconds, "connections": made, "MB": sent / 1e6, "ms_per_connection": 1e3 * used / made,
                       "ms_per_8KiB": 1e3 * used / max(1, sent / 8192)}
                rows[name] = {k: round(v, 3) for k, v in row.items()}
                print(f"{name:32s} {rows[name]}", flush=True)
            if args.json:
                pathlib.Path(args.json).write_text(json.dumps({"seconds": args.seconds, "connections_held": args.connections, "attacks": rows}, indent=1) + "\n")


def is_router(process, parent):
    try:
        line = (process / "cmdline").read_bytes().split(b"\0")
        return b"router" in line[1:2] and int((process / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent
    except OSError:
        return False


if __name__ == "__main__":
    main()
