"""A worker that the router is told to dial, and that answers its first call with bytes that never end or unpack without end. The router's memory
has a bound, and its other worker serves on."""
import contextlib
import pathlib
import socket
import struct
import threading
import time
import unittest
import zlib

from test_discovery import BODIES, Discovery, answer
from test_trust import frame

PREFACE_BYTES, HEADERS, DATA, CONTINUATION, END_HEADERS = 24, 1, 0, 9, 4
TYPE = b"\x88\0\x0ccontent-type\x10application/grpc"
HUGE = b"\0\1a\x7f\x81\xff\xff\xff\x07"  # a header of 2 GiB begins
SECONDS, MOST_GROWN = 3, 160 << 20  # of each attack; bytes, of which 16 MiB are what may come


def unpacks_to(size):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(b"\0" * size) + packer.flush()


def message(data, packed=0):
    return bytes([packed]) + struct.pack(">I", len(data)) + data


def small_headers(first):
    return b"".join(b"\0" + bytes([len(name)]) + name + b"\x1e" + b"v" * 30 for name in (b"k%d" % (first + i) for i in range(400)))


# What each sends first, to call 1, and then again and again.
ATTACKS = {
    "a header that is never over": (lambda s: frame(HEADERS, 0, s, HUGE), lambda s, i: frame(CONTINUATION, 0, s, b"x" * 16384) * 4),
    "trailers that are never over": (lambda s: frame(HEADERS, END_HEADERS, s, TYPE) + frame(HEADERS, 1, s, HUGE), lambda s, i: frame(CONTINUATION, 0, s, b"x" * 16384) * 4),
    "headers without number": (lambda s: frame(HEADERS, 0, s, b"\x88"), lambda s, i: frame(CONTINUATION, 0, s, small_headers(400 * i))),
    "a message that is too long": (lambda s: frame(HEADERS, END_HEADERS, s, TYPE) + frame(DATA, 0, s, b"\0\x3f\xff\xff\xff"), lambda s, i: frame(DATA, 0, s, b"x" * 16384) * 4),
    "frames that mean nothing": (lambda s: b"", lambda s, i: frame(0xFA, 0, s, b"x" * 16384) * 4),
    "settings": (lambda s: b"", lambda s, i: frame(4, 0, 0, b"") * 1000),
    "a message that unpacks to a gigabyte": (lambda s: frame(HEADERS, END_HEADERS, s, TYPE + b"\0\x0dgrpc-encoding\x04gzip")
                                             + b"".join(frame(DATA, 0, s, piece) for piece in pieces(message(unpacks_to(1 << 30), packed=1))), None),
}


def pieces(data, size=16384):
    return [data[at:at + size] for at in range(0, len(data), size)]


class HostileWorker:
    """Listens as a worker would, and does one thing to each connection that has called it."""

    def __init__(self, begin, again):
        self.begin, self.again, self.calls, self.ended = begin, again, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.over, self.threads = threading.Event(), [threading.Thread(target=self.listen)]

    def __enter__(self):
        self.threads[0].start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        self.listener.close()

    def listen(self):
        while not self.over.is_set():
            with contextlib.suppress(OSError):
                client, _ = self.listener.accept()
                self.threads.append(threading.Thread(target=self.attack, args=(client,)))
                self.threads[-1].start()

    def attack(self, client):
        client.settimeout(1)
        with client:
            try:
                client.sendall(frame(4, 0, 0, b"") + frame(4, 1, 0, b""))
                stream = self.called(client)
                self.calls += 1
                client.sendall(self.begin(stream))
                i = 0
                while not self.over.is_set():
                    with contextlib.suppress(TimeoutError):  # not read: we wait as an attacker would
                        client.sendall(self.again(stream, i)) if self.again else time.sleep(0.05)
                    i += 1
            except OSError:
                self.ended += 1

    def called(self, client):
        data = b""
        while True:
            at = PREFACE_BYTES
            while len(data) >= at + 9:
                size, kind, stream = int.from_bytes(data[at:at + 3], "big"), data[at + 3], int.from_bytes(data[at + 5:at + 9], "big")
                if kind == HEADERS:
                    return stream
                at += 9 + size
            more = client.recv(65536)
            if not more:
                raise ConnectionResetError
            data += more


def resident(pid, of="VmRSS"):
    line = next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(of))
    return int(line.split()[1]) << 10


class HostileWorkers(Discovery):
    def test_what_it_says_without_end_costs_the_router_little_and_others_nothing(self):
        good = self.worker("a")
        for name, (begin, again) in ATTACKS.items():
            with self.subTest(name), HostileWorker(begin, again) as evil, self.router("--worker", good.address, "--worker", evil.address) as router:
                router.wait_until(lambda: router.workers().get("a") == "ready", "the good worker")
                want, pid = answer(router, BODIES[0]), router.process.pid
                before, answers = resident(pid), 0
                router.wait_until(lambda: evil.calls > 0, "a call of the other")
                until = time.monotonic() + SECONDS
                while time.monotonic() < until:
                    self.assertEqual(answer(router, BODIES[0]), want)
                    answers += 1
                grown = resident(pid, "VmHWM") - before
                print(f"{name}: {grown >> 20} MiB more, {answers} answers, {evil.calls} calls, {evil.ended} ended")
                self.assertLess(grown, MOST_GROWN)
                self.assertEqual(router.workers()[evil.address], "connecting")


if __name__ == "__main__":
    unittest.main()
