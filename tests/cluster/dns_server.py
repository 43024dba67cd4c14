"""A DNS server for tests, on a free port of loopback unless it is told another place: answers what it is told to, or nothing at all. What is
longer than 512 bytes is cut where it goes by UDP, and whole by TCP."""
import contextlib
import errno
import socket
import struct
import threading

A, CNAME, AAAA, SRV = 1, 5, 28, 33
TRUNCATED, MOST_BY_UDP = 0x0200, 512
NXDOMAIN = 3


def name_bytes(name):
    """Of a name, or of a list of labels, which may have dots in them."""
    labels = name if isinstance(name, list) else [label for label in name.split(".") if label]
    return b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0"


def port_of_both_kinds(host, port):
    """Sockets for UDP and TCP bound to one port. What the system gives as free for one kind may be taken for the other: then the next."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        by_udp, by_tcp = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_STREAM)
        try:
            by_tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            by_udp.bind((host, port))
            by_tcp.bind(by_udp.getsockname()[:2])
            return by_udp, by_tcp
        except OSError as e:
            by_udp.close()
            by_tcp.close()
            if port or e.errno != errno.EADDRINUSE:
                raise


class DnsServer:
    """`records`: (name, type) -> list of data: an address, or (port, target) or (priority, weight, port, target) of SRV; of CNAME the
    name, whose own records come with it. A name that has no records at all does not exist. Use as a context manager."""

    def __init__(self, host="127.0.0.1", port=0):
        self.records, self.silent, self.asked, self.by_tcp, self.names = {}, False, 0, 0, set()
        self.socket, self.listener = port_of_both_kinds(host, port)
        self.address = f"[{host}]:" if ":" in host else f"{host}:"
        self.address += str(self.socket.getsockname()[1])
        self.listener.listen()
        self.threads = [threading.Thread(target=self.serve), threading.Thread(target=self.serve_tcp)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind, value, trace):
        self.socket.sendto(b"end", self.socket.getsockname()[:2])  # from its own network, whose thread this may not be in
        self.listener.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()
        self.socket.close()
        self.listener.close()

    def serve(self):
        while True:
            query, client = self.socket.recvfrom(4096)
            if query == b"end":
                return
            self.asked += 1
            if not self.silent:
                answer = self.answer(query)
                if len(answer) > MOST_BY_UDP:
                    flags, = struct.unpack("!H", answer[2:4])
                    answer = answer[:2] + struct.pack("!HHHHH", flags | TRUNCATED, 1, 0, 0, 0) + query[12:]
                self.socket.sendto(answer, client)

    def serve_tcp(self):
        """A query of each connection and then more, until it ends."""
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            client.settimeout(5)
            with client, contextlib.suppress(OSError, struct.error):
                while True:
                    size, = struct.unpack("!H", client.recv(2, socket.MSG_WAITALL))
                    query = client.recv(size, socket.MSG_WAITALL)
                    self.by_tcp += 1
                    if not self.silent:
                        answer = self.answer(query)
                        client.sendall(struct.pack("!H", len(answer)) + answer)

    def answer(self, query):
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode().lower())
            at += 1 + query[at]
        name, (kind, _) = ".".join(labels), struct.unpack("!HH", query[at + 1:at + 5])
        self.names.add(name)
        known = any(n == name for n, _ in self.records)
        answers, count, owner = b"", 0, b"\xc0\x0c"
        while (name, CNAME) in self.records and count < 64:
            name = self.records[(name, CNAME)][0]
            answers += owner + struct.pack("!HHIH", CNAME, 1, 1, len(name_bytes(name))) + name_bytes(name)
            count, owner = count + 1, name_bytes(name)
        for one in self.records.get((name, kind), []):
            if kind == SRV:
                priority, weight, port, target = one if len(one) == 4 else (0, 0, *one)
                rdata = struct.pack("!HHH", priority, weight, port) + name_bytes(target)
            else:
                rdata = socket.inet_pton(socket.AF_INET if kind == A else socket.AF_INET6, one)
            answers += owner + struct.pack("!HHIH", kind, 1, 1, len(rdata)) + rdata
            count += 1
        head = query[:2] + struct.pack("!HHHHH", 0x8580 | (0 if known else NXDOMAIN), 1, count, 0, 0)
        return head + query[12:at + 5] + answers
