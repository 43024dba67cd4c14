"""A call of gRPC without a library of it: curl speaks HTTP/2, and what a message of few fields takes of protobuf is here."""
import struct
import subprocess
import tempfile
import urllib.parse

CODES = {0: "OK", 3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 5: "NOT_FOUND", 7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED", 12: "UNIMPLEMENTED", 13: "INTERNAL", 14: "UNAVAILABLE",
         16: "UNAUTHENTICATED"}


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    """A field of a message: an int, a float, or bytes or a text with its length."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def read_varint(data, at):
    number, shift = 0, 0
    while True:
        byte = data[at]
        number, shift, at = number | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return number, at


def fields(data):
    """What `field` makes: number → its values in order, ints or bytes (also of fixed size)."""
    out, at = {}, 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value, at = read_varint(data, at)
        else:
            size, at = (8, at) if key & 7 == 1 else (4, at) if key & 7 == 5 else read_varint(data, at)
            value, at = data[at:at + size], at + size
        out.setdefault(key >> 3, []).append(value)
    return out


def ints(values):
    """Those of a repeated int field, packed or not."""
    out = []
    for value in values:
        at = 0
        while isinstance(value, bytes) and at < len(value):
            number, at = read_varint(value, at)
            out.append(number)
        out += [value] if isinstance(value, int) else []
    return out


def answers(address, method, message, seconds=30, **how):
    """(code, message, the messages that came) of a call. `how`: as for call."""
    with tempfile.NamedTemporaryFile() as out:
        code, said = call(address, method, message, seconds, out.name, **how)
        data, at, messages = out.read(), 0, []
        while at < len(data):
            size = int.from_bytes(data[at + 1:at + 5], "big")
            messages.append(fields(data[at + 5:at + 5 + size]))
            at += 5 + size
    return code, said, messages


def call(address, method, message, seconds=30, output="/dev/null", source=None, key=None, rate=None, metadata=()):
    """(code, message) of a call on a connection of its own, with one message, or a list of them. `output`: the file for its answer; `source`: the address that it dials from;
    `key`: its API key; `rate`: bytes a second that it sends at most; `metadata`: more headers, "name: value"."""
    with tempfile.NamedTemporaryFile() as body:
        for one in message if isinstance(message, list) else [message]:
            body.write(b"\0" + len(one).to_bytes(4, "big") + one)
        body.flush()
        done = subprocess.run(["curl", "-sS", "--max-time", str(seconds), "--http2-prior-knowledge", *(["--interface", source] if source else []), *(["--limit-rate", str(rate)] if rate else []), "-H", "content-type: application/grpc", "-H", "te: trailers", *(["-H", f"authorization: Bearer {key}"] if key else []), *(word for line in metadata for word in ("-H", line)),
                               "--data-binary", f"@{body.name}", "-D", "-", "-o", output, f"http://{address}{method}"], capture_output=True, text=True, timeout=seconds + 30)
    headers = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    if "grpc-status" not in headers:
        raise AssertionError(f"no gRPC answer of {address}: {done.stderr or done.stdout}")
    return CODES.get(int(headers["grpc-status"]), headers["grpc-status"]), urllib.parse.unquote(headers.get("grpc-message", ""))
