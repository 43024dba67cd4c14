"""One who knows the cluster's secret and lies: calls of a worker's port, and frames and messages of the KV port (kvtransfer/tcp/frame.h,
proto/lanes.proto), as a prefill worker that dials or as a decode worker that is dialled."""
import array
import contextlib
import ctypes
import os
import secrets
import select
import socket
import struct

import greeting
import grpc_call
from grpc_call import field
from harness import Beside

XXH3 = ctypes.CDLL("libxxhash.so.0").XXH3_64bits
XXH3.restype, XXH3.argtypes = ctypes.c_uint64, [ctypes.c_char_p, ctypes.c_size_t]
HELLO, MESSAGE, WRITE, FLUSH = 1, 2, 3, 4  # kinds of frames
LANE, LANE_HELLO, OPEN, CLOSED, GONE, CLOSED_ACK, SELF_TEST = 1, 2, 3, 6, 9, 12, 13  # fields of a LaneMessage
ASK, GRANT, FULL, SEEN = 1, 2, 3, 4  # steps of a self-test
WORKER = "/baton.v1.Worker/"
PROTOCOL = field(1, field(1, 1) + field(2, 1 << 20))


def frame(kind, payload=b"", size=None, slot=0, turn=0):
    """`size`: that the header says, of a payload that does not follow."""
    head = struct.pack("<IIQQIIII", 0x4e544142, kind, len(payload) if size is None else size, 0, 0, 0, slot, turn)
    return head + struct.pack("<Q", XXH3(head, len(head))) + payload


def hello(slots=0, slot_bytes=0):
    return frame(HELLO, struct.pack("<QQq", slots, slot_bytes, os.getpid()))


def message(body):
    return frame(MESSAGE, struct.pack("<Q", XXH3(body, len(body))) + body)


def messages(data):
    """The fields of each LaneMessage that has come."""
    out = []
    while len(data) >= 48:
        size = 48 + struct.unpack_from("<Q", data, 8)[0]
        if struct.unpack_from("<I", data, 4)[0] == MESSAGE:
            out.append(grpc_call.fields(data[56:size]))
        data = data[size:]
    return out


def self_test(step, **turn):
    return message(field(SELF_TEST, field(1, step) + field(2, field(1, turn.get("slot", 0)) + field(2, turn.get("turn", 1))) + field(3, turn.get("bytes", 0))))


class Session:
    """Calls of a worker's port, as its router makes them, which calls itself `name`."""

    def __init__(self, address, secret, name=""):
        self.name = field(2, name) if name else b""
        self.address, purpose, nonce = address, bytes([greeting.RPC]), secrets.token_bytes(32)
        answer = self.handshake(greeting.MAGIC + bytes([1]) + purpose + nonce)[26][0]
        theirs = answer[len(greeting.MAGIC) + 1:len(greeting.MAGIC) + 33]
        self.facts = self.handshake(theirs + greeting.proof(secret, b"greeting of a caller", purpose, nonce, theirs))
        self.token = greeting.proof(secret, b"session token", purpose, nonce, theirs)[:16].hex()
        self.landing = self.facts.get(23, [b""])[0]

    def handshake(self, words):
        code, said, messages = grpc_call.answers(self.address, WORKER + "Handshake", PROTOCOL + self.name + field(5, words))
        assert code == "OK", f"{code}: {said}"
        return messages[0]

    def call(self, method, message):
        """(code, message, the messages that came)."""
        return grpc_call.answers(self.address, WORKER + method, message, metadata=[f"baton-token: {self.token}"])

    def ways(self):
        """Of a decode worker: kind -> where it takes KV."""
        return dict(way.split(":", 1) for way in self.landing.decode().split("|")[2:])

    def machine(self):
        return self.landing.decode().split("|")[1]

    def lane_hello(self, incarnation="liar", tensor=1, stages=None, **other):
        """The LaneHello of a prefill worker that fits this decode worker, but for what is given."""
        f = self.facts
        body = field(1, 1 << 20) + field(9, 1) + field(2, incarnation) + field(3, other.get("model_digest", f[7][0])) + field(4, f[8][0]) + field(5, tensor)
        body += field(8, f.get(24, [b""])[0]) + field(7, other.get("numerics", b""))
        return message(field(LANE_HELLO, body + b"".join(field(6, layer) for layer in stages or self.stages())))

    def stages(self):
        groups = [grpc_call.fields(group) for group in grpc_call.fields(self.facts[8][0])[1]]
        return [0, max(layer for group in groups for layer in grpc_call.ints(group[1])) + 1]


def dials(ways, kind, secret):
    """A connection to a decode worker by `kind`, once its greeting is done."""
    if kind == "tcp":
        host, port = ways[kind].rsplit(":", 1)
        return greeting.greeted(host, int(port), secret, greeting.LANDING)
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(120)
    s.connect(b"\0baton-kv-" + ways[kind].encode())
    return greeting.greets(s, secret, greeting.LANDING)


def gives(s, data, descriptors):
    """Says `data` on a unix socket, with descriptors beside it."""
    s.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])


class FalseDecodeWorker(Beside):
    """Listens where a prefill worker is told to dial, greets whoever comes, and says what `act` says to it."""

    def __init__(self, machine, secret, act, kind="shm"):
        self.secret, self.act, self.came = secret, act, 0
        if kind == "tcp":
            self.listener = socket.create_server(("127.0.0.1", 0))
            where = "127.0.0.1:%d" % self.listener.getsockname()[1]
        else:
            where, self.listener = secrets.token_hex(16), socket.socket(socket.AF_UNIX)
            self.listener.bind(b"\0baton-kv-" + where.encode())
            self.listener.listen()
        self.landing = f"kv1|{machine}|{kind}:{where}".encode()

    def go_on(self):
        while not self.over.is_set():
            if select.select([self.listener], [], [], 0.05)[0]:
                client, _ = self.listener.accept()
                self.came += 1
                client.settimeout(30)
                with client, contextlib.suppress(OSError):
                    if self.secret:
                        greeting.is_greeted(client, self.secret, greeting.LANDING)
                    self.act(client)

    def __exit__(self, *_):
        super().__exit__()
        self.listener.close()

    def meet(self):
        """The message of a Relay by which a prefill worker is told of it."""
        return field(5, field(1, self.landing))
