"""Greets a port of ours as one who knows the cluster's secret (common/trust/greeting.h): what a stolen secret is worth, and what is not."""
import hashlib
import hmac
import secrets
import socket
import struct

MAGIC = b"BATONHI\n"
LANDING, RANKS, RPC = 1, 2, 3  # kinds of ports


def proof(secret, label, *parts):
    proven = b"".join(struct.pack("<Q", len(p)) + p for p in (label, *parts))
    return hmac.new(secret, proven, hashlib.sha256).digest()


def receive(s, count):
    data = b""
    while len(data) < count:
        more = s.recv(count - len(data))
        if not more:
            raise ConnectionResetError(f"closed after {len(data)} of {count} bytes")
        data += more
    return data


def dial(host, port, timeout=120):
    s = socket.create_connection((host, port), timeout=timeout)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def greeted(host, port, secret, purpose):
    """A connection whose greeting is done."""
    return greets(dial(host, port), secret, purpose)


def greets(s, secret, purpose):
    """`s`, a connection that the caller dialled, once its greeting is done."""
    nonce = secrets.token_bytes(32)
    s.sendall(MAGIC + bytes([1, purpose]) + nonce)
    answer = receive(s, len(MAGIC) + 1 + 64)
    theirs = answer[len(MAGIC) + 1:len(MAGIC) + 33]
    told = proof(secret, b"greeting of a callee", bytes([purpose]), nonce, theirs)
    assert answer[len(MAGIC) + 33:] == told, "the port has another secret"
    s.sendall(proof(secret, b"greeting of a caller", bytes([purpose]), nonce, theirs))
    return s


def is_greeted(s, secret, purpose):
    """`s`, a connection that was dialled to the caller's own port, once its greeting is done."""
    theirs, nonce = receive(s, len(MAGIC) + 2 + 32)[len(MAGIC) + 2:], secrets.token_bytes(32)
    s.sendall(MAGIC + bytes([1]) + nonce + proof(secret, b"greeting of a callee", bytes([purpose]), theirs, nonce))
    assert receive(s, 32) == proof(secret, b"greeting of a caller", bytes([purpose]), theirs, nonce), "the caller has another secret"
    return s
