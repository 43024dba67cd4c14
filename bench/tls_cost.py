#!/usr/bin/env python3
"""What TLS costs the router: CPU time of a handshake and of a chunk of a stream, beside what it costs nginx, which passes the same
streams on, in the same run and with the same certificate.

  bench/tls_cost.py [--nginx NGINX] [--handshakes 100] [--streams 8] [--tokens 500] [--rounds 15] [--json FILE]

NGINX: Debian's `nginx-light` or `nginx`, installed or unpacked (`dpkg-deb -x`). A surcharge is CPU time of the server's processes with
TLS minus without it, for the same requests; the clients' share of the machine does not count. Rounds are short and many, each takes all
four in an order of its own, and a figure is made of the medians over the rounds; the interval beside the ratio has it in four of five
drawings of the rounds (bootstrap). A server that falls behind puts several chunks into one record, which is cheaper by the chunk: on a busy
machine nginx, which is behind the router, does so more often. So the clients count records, and a chunk's surcharge is given by the record
that carries it, too: that is what both do once."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster"))
from harness import Cluster, run  # noqa: E402

LIMIT = 1.2

CONFIG = """
worker_processes 1; daemon off; pid {dir}/pid; error_log {dir}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u;
  scgi_temp_path {dir}/s; ssl_certificate {certs}/server.crt; ssl_certificate_key {certs}/server.key; ssl_protocols TLSv1.3;
  ssl_session_tickets off; ssl_session_cache off; keepalive_timeout 60s;
  upstream router {{ server {router}; keepalive 32; }}
  server {{
    listen 127.0.0.1:{plain}; listen 127.0.0.1:{tls} ssl;
    location = /live {{ return 200 "{{}}"; }}
    location / {{ proxy_pass http://router; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host; proxy_buffering off; proxy_read_timeout 300s; }}
  }}
}}
"""


def cpu_seconds(pids):
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)  # the process's CPU clock: MAKE_PROCESS_CPUCLOCK(pid, SCHED)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def wait_for_port(port):
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, "nginx does not listen"
            time.sleep(0.05)


def children(pid):
    return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Server:
    """An address, how it is spoken to, and the processes whose time counts."""

    def __init__(self, address, context, pids):
        host, port = address.rsplit(":", 1)
        self.address, self.context, self.pids = (host, int(port)), context, pids

    def connect(self):
        s = socket.create_connection(self.address, timeout=300)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Records(s, self.context) if self.context else s


class Records:
    """A client's end of TLS, which counts the records of data that come."""

    DATA = 23

    def __init__(self, s, context):
        self.socket, self.count, self.rest, self.incoming, self.outgoing = s, 0, b"", ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self.do(self.tls.do_handshake)

    def do(self, what):
        while True:
            try:
                return what()
            except ssl.SSLWantReadError:
                self.flush()
                data = self.socket.recv(1 << 16)
                if not data:
                    self.incoming.write_eof()
                self.incoming.write(data)
                self.look(data)
            finally:
                self.flush()

    def flush(self):
        if self.outgoing.pending:
            self.socket.sendall(self.outgoing.read())

    def look(self, data):
        """A record: its kind, a version of 2 bytes, its length in 2 bytes, its body."""
        self.rest += data
        while len(self.rest) >= 5 and len(self.rest) >= (whole := 5 + int.from_bytes(self.rest[3:5], "big")):
            self.count += self.rest[0] == self.DATA
            self.rest = self.rest[whole:]

    def sendall(self, data):
        self.do(lambda: self.tls.write(data))

    def count_to_end(self):
        """Records of data until the server ends."""
        before = self.count
        while data := self.socket.recv(1 << 16):
            self.look(data)
        return self.count - before

    def recv(self, size):
        try:
            return self.do(lambda: self.tls.read(size))
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.socket.close()


def handshakes(server, count):
    """CPU seconds of a new connection with one small request, and 1."""
    def one(_):
        with server.connect() as s:
            s.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            got = b""
            while more := s.recv(4096):
                got += more
            assert b" 200 " in got.split(b"\r\n", 1)[0] + b" ", got
    before = cpu_seconds(server.pids)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(count)))
    return (cpu_seconds(server.pids) - before) / count, 1


def stream(s, tokens, seed):
    """Tokens of one stream over a connection that stands, and the records that brought them; without TLS, events. What TLS brings is
    counted and not decrypted: a client that works more takes the cores and caches of the server that is measured."""
    body = json.dumps({"model": "tiny-llama", "prompt": f"{seed} the quick brown fox", "max_tokens": tokens, "temperature": 0,
                       "ignore_eos": True, "stream": True}).encode()
    with s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body) + body)
        if isinstance(s, Records):
            return tokens, s.count_to_end()
        events, tail, data = 0, b"", b""
        while more := s.recv(1 << 16):
            data = tail + more
            events += data.count(b"data: ")
            tail = data[-5:] if not data.endswith(b"data: ") else b""
        assert events >= tokens * 0.5, f"{events} events of {tokens} tokens: {data[-400:]}"
        return tokens, events


def chunks(server, streams, tokens, seed):
    """CPU seconds of a token, and tokens of a record (some have no text yet). The connections stand before: a handshake is not a chunk's, and streams
    that begin apart share fewer steps."""
    connections = [server.connect() for _ in range(streams)]
    for s in connections:
        s.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert s.recv(4096)
    before = cpu_seconds(server.pids)
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        many, records = map(sum, zip(*pool.map(lambda i: stream(connections[i], tokens, seed * 1000 + i), range(streams))))
    return (cpu_seconds(server.pids) - before) / many, many / records


def surcharges(rounds):
    """{who: microseconds by the chunk, by the record} of rounds {(who, with TLS): (seconds, chunks a record)}."""
    def median(key, i):
        return statistics.median(r[key][i] for r in rounds)
    out = {}
    for who in ("baton", "nginx"):
        each = (median((who, True), 0) - median((who, False), 0)) * 1e6
        out[who] = (each, each * median((who, True), 1))
    return out


def ratios(rounds):
    baton, nginx = surcharges(rounds).values()
    return [b / n if n > 0 else float("inf") for b, n in zip(baton, nginx)]


def figures(rounds):
    """What is printed: the surcharges, their ratio, and where four of five drawings of the rounds have it."""
    drawn = random.Random(1)
    many = [ratios(drawn.choices(rounds, k=len(rounds))) for _ in range(1000)]
    spread = [sorted(column) for column in zip(*many)]
    row = {who: {"microseconds": each, "microseconds_a_record": by_record, "a_record": statistics.median(r[who, True][1] for r in rounds)}
           for who, (each, by_record) in surcharges(rounds).items()}
    for name, ratio, column in zip(("ratio", "ratio_a_record"), ratios(rounds), spread):
        row[name], row[name + "_from"], row[name + "_to"] = ratio, column[100], column[899]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nginx", default="nginx")
    parser.add_argument("--handshakes", type=int, default=100)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    args = parser.parse_args()
    dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-tls-cost-"))
    certs = dir / "certs"
    assert run(["certs", certs]).returncode == 0
    context = ssl.create_default_context(cafile=certs / "ca.crt")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    flags = ["--both", 1, "--max-num-seqs", args.streams]
    cert = ["--tls-cert", certs / "server.crt", "--tls-key", certs / "server.key"]
    nginx = None
    try:
        with Cluster(args=flags) as plain, Cluster(args=[*flags, *cert], ca=certs / "ca.crt") as tls:
            ports = {"plain": free_port(), "tls": free_port()}
            (dir / "nginx.conf").write_text(CONFIG.format(dir=dir, certs=certs, router=f"{plain.host}:{plain.port}", **ports))
            nginx = subprocess.Popen([args.nginx, "-c", str(dir / "nginx.conf"), "-p", str(dir)])
            wait_for_port(ports["tls"])
            workers = children(nginx.pid)
            servers = {("baton", False): Server(f"{plain.host}:{plain.port}", None, [plain.pid_of("router")]),
                       ("baton", True): Server(f"{tls.host}:{tls.port}", context, [tls.pid_of("router")]),
                       ("nginx", False): Server(f"127.0.0.1:{ports['plain']}", None, workers),
                       ("nginx", True): Server(f"127.0.0.1:{ports['tls']}", context, workers)}
            kinds = {"handshake": lambda s, n: handshakes(s, args.handshakes), "chunk": lambda s, n: chunks(s, args.streams, args.tokens, n)}
            out = {"cores": os.cpu_count(), "rounds": args.rounds, "limit": LIMIT}
            for kind, measure in kinds.items():
                for s in servers.values():
                    measure(s, 0)  # warms up
                rounds = []
                for n in range(1, args.rounds + 1):
                    order = random.Random(n).sample(list(servers), len(servers))
                    rounds.append({key: measure(servers[key], n) for key in order})
                row = out[kind] = figures(rounds)
                print(f"{kind:10} " + "  ".join(f"{who} {row[who]['microseconds']:7.2f} us, {row[who]['microseconds_a_record']:7.2f} a record of "
                                                f"{row[who]['a_record']:.2f}" for who in ("baton", "nginx")) +
                      "".join(f"  {name} {row[name]:.2f} ({row[name + '_from']:.2f} … {row[name + '_to']:.2f})" for name in ("ratio", "ratio_a_record")) +
                      f", at most {LIMIT}", flush=True)
            out["load"] = os.getloadavg()[0]
    finally:
        if nginx is not None:
            nginx.terminate()
            nginx.wait()
        shutil.rmtree(dir, ignore_errors=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
