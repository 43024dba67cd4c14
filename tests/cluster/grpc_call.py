"""A call of gRPC without a library of it: curl speaks HTTP/2, and what a message of few fields takes of protobuf is here."""
import subprocess
import tempfile
import urllib.parse

CODES = {0: "OK", 3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 5: "NOT_FOUND", 8: "RESOURCE_EXHAUSTED", 12: "UNIMPLEMENTED", 13: "INTERNAL", 14: "UNAVAILABLE"}


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    """A field of a message: an int, or bytes or a text with its length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def call(address, method, message, seconds=30):
    """(code, message) of a call whose answer is of no interest."""
    with tempfile.NamedTemporaryFile() as body:
        body.write(b"\0" + len(message).to_bytes(4, "big") + message)
        body.flush()
        done = subprocess.run(["curl", "-sS", "--max-time", str(seconds), "--http2-prior-knowledge", "-H", "content-type: application/grpc", "-H", "te: trailers",
                               "--data-binary", f"@{body.name}", "-D", "-", "-o", "/dev/null", f"http://{address}{method}"], capture_output=True, text=True, timeout=seconds + 30)
    headers = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    if "grpc-status" not in headers:
        raise AssertionError(f"no gRPC answer of {address}: {done.stderr or done.stdout}")
    return CODES.get(int(headers["grpc-status"]), headers["grpc-status"]), urllib.parse.unquote(headers.get("grpc-message", ""))
