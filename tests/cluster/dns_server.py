"""A DNS server for tests, on a free UDP port of loopback unless it is told another place: answers what it is told to, or nothing at all."""
import socket
import struct
import threading

A, AAAA, SRV = 1, 28, 33
NXDOMAIN = 3


def name_bytes(name):
    return b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split(".")) + b"\0"


class DnsServer:
    """`records`: (name, type) -> list of data: an address, or (port, target) of SRV. A name that has no records at all does
    not exist. Use as a context manager."""

    def __init__(self, host="127.0.0.1", port=0):
        self.records, self.silent, self.asked = {}, False, 0
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((host, port))
        self.address = f"[{host}]:" if ":" in host else f"{host}:"
        self.address += str(self.socket.getsockname()[1])
        self.thread = threading.Thread(target=self.serve)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self.socket.sendto(b"end", self.socket.getsockname()[:2])  # from its own network, whose thread this may not be in
        self.thread.join()
        self.socket.close()

    def serve(self):
        while True:
            query, client = self.socket.recvfrom(4096)
            if query == b"end":
                return
            self.asked += 1
            if not self.silent:
                self.socket.sendto(self.answer(query), client)

    def answer(self, query):
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode().lower())
            at += 1 + query[at]
        name, (kind, _) = ".".join(labels), struct.unpack("!HH", query[at + 1:at + 5])
        known = any(n == name for n, _ in self.records)
        answers = b""
        data = self.records.get((name, kind), [])
        for one in data:
            if kind == SRV:
                rdata = struct.pack("!HHH", 0, 0, one[0]) + name_bytes(one[1])
            else:
                rdata = socket.inet_pton(socket.AF_INET if kind == A else socket.AF_INET6, one)
            answers += b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 1, len(rdata)) + rdata
        head = query[:2] + struct.pack("!HHHHH", 0x8580 | (0 if known else NXDOMAIN), 1, len(data), 0, 0)
        return head + query[12:at + 5] + answers
