#!/usr/bin/env python3
"""What TLS costs the router: CPU time of a handshake and of a chunk of a stream, beside what it costs nginx, which passes the same
streams on, in the same run and with the same certificate.

  bench/tls_cost.py [--nginx NGINX] [--handshakes 300] [--streams 8] [--tokens 500] [--rounds 15] [--starts 3]
                    [--instructions] [--json FILE]

NGINX: Debian's `nginx-light` or `nginx`, installed or unpacked (`dpkg-deb -x`). A surcharge is CPU time of the server's processes with
TLS minus without it, for the same requests; the clients' share of the machine does not count. Rounds are short and many, each takes all
four in an order of its own, and a figure is the median over the rounds of the difference within one, so that what a machine does
meanwhile is in both; the interval beside the ratio has it in four of five drawings of the rounds (bootstrap). Two processes of the same
binary differ by some microseconds a chunk for as long as they live: so all servers are started anew `--starts` times, and the rounds are
shared out. `--instructions` counts
what the servers' processes execute instead (valgrind's callgrind; the kernel's part is not in it), which what else runs does not
change: few rounds do. A server that falls behind puts several chunks into one record, which is cheaper by the chunk: on a busy
machine nginx, which is behind the router, does so more often. So the clients count records, and a chunk's surcharge is given by the record
that carries it, too: that is what both do once."""
import argparse
import concurrent.futures
import contextlib
import itertools
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
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "cluster"))
from harness import BATON, TINY, Cluster, run  # noqa: E402

LIMIT = 1.2
IDLE_S = 0.4

CONFIG = """
worker_processes 1; daemon off; {processes} pid {dir}/pid; error_log {dir}/error.log;
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
    deadline = time.monotonic() + 120
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, f"nobody listens at port {port}"
            time.sleep(0.05)


def children(pid):
    return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Server:
    """An address, how it is spoken to, and what its processes have spent so far: seconds, or instructions."""

    def __init__(self, address, context, spent):
        host, port = address.rsplit(":", 1)
        self.address, self.context, self.spent = (host, int(port)), context, spent

    def connect(self):
        s = socket.create_connection(self.address, timeout=300)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return Records(s, self.context) if self.context else s


class Counted:
    """A process whose instructions are counted."""

    def __init__(self, dir, name, command):
        self.out, self.sum = pathlib.Path(dir, name + ".callgrind"), 0
        self.log = open(pathlib.Path(dir, name + ".log"), "w")
        self.process = subprocess.Popen(["valgrind", "--tool=callgrind", f"--callgrind-out-file={self.out}", *map(str, command)],
                                        stdout=self.log, stderr=self.log)

    def spent(self):
        """A dump has what was executed since the one before."""
        subprocess.run(["callgrind_control", "--dump", str(self.process.pid)], check=True, capture_output=True)
        for dump in self.out.parent.glob(self.out.name + ".*"):
            totals = [line for line in dump.read_text().splitlines() if line.startswith(("totals:", "summary:"))]
            self.sum += int(totals[-1].split()[1])
            dump.unlink()
        return self.sum

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.process.terminate()
        self.process.wait()
        self.log.close()


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
    """What a new connection with one small request takes, and 1."""
    def one(_):
        with server.connect() as s:
            s.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            got = b""
            while more := s.recv(4096):
                got += more
            assert b" 200 " in got.split(b"\r\n", 1)[0] + b" ", got
    idle, started, begun = spent_idle(server)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(count)))
    return (server.spent() - begun - idle * (time.monotonic() - started)) / count, 1


def spent_idle(server):
    """What a server spends each second without clients, and when that was looked at: time, and spent by then. Handshakes take longer than
    requests without, and streams three times as long in one round as in the next where others want the cores."""
    since, before = time.monotonic(), server.spent()
    time.sleep(IDLE_S)
    started, begun = time.monotonic(), server.spent()
    return (begun - before) / (started - since), started, begun


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
    """What a token takes, and tokens of a record (some have no text yet). The connections stand before: a handshake is not a chunk's, and streams
    that begin apart share fewer steps."""
    connections = [server.connect() for _ in range(streams)]
    for s in connections:
        s.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert s.recv(4096)
    idle, started, begun = spent_idle(server)
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        many, records = map(sum, zip(*pool.map(lambda i: stream(connections[i], tokens, seed * 1000 + i), range(streams))))
    return (server.spent() - begun - idle * (time.monotonic() - started)) / many, many / records


def surcharges(rounds):
    """{who: spent by the chunk, by the record} of rounds {(who, with TLS): (spent, chunks a record)}."""
    out = {}
    for who in ("baton", "nginx"):
        each = [r[who, True][0] - r[who, False][0] for r in rounds]
        by_record = [one * r[who, True][1] for one, r in zip(each, rounds)]
        out[who] = (statistics.median(each), statistics.median(by_record))
    return out


def ratios(rounds):
    baton, nginx = surcharges(rounds).values()
    return [b / n if n > 0 else float("inf") for b, n in zip(baton, nginx)]


def figures(rounds, unit):
    """What is printed: the surcharges, their ratio, and where four of five drawings of the rounds have it."""
    drawn = random.Random(1)
    many = [ratios(drawn.choices(rounds, k=len(rounds))) for _ in range(1000)]
    spread = [sorted(column) for column in zip(*many)]
    row = {who: {unit: each, unit + "_a_record": by_record, "a_record": statistics.median(r[who, True][1] for r in rounds)}
           for who, (each, by_record) in surcharges(rounds).items()}
    for name, ratio, column in zip(("ratio", "ratio_a_record"), ratios(rounds), spread):
        row[name], row[name + "_from"], row[name + "_to"] = ratio, column[100], column[899]
    return row


def configured(dir, router, plain, tls, processes):
    """nginx's arguments, and the file that they name."""
    file = dir / "nginx.conf"
    file.write_text(CONFIG.format(dir=dir, certs=dir / "certs", router=router, plain=plain, tls=tls, processes=processes))
    return ["-c", file, "-p", dir]


def paced_model(dir, layers):
    """The tests' model with weights enough that a step takes some milliseconds: servers keep up, and a record has one token."""
    model = dir / TINY.name
    shutil.copytree(TINY, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": layers}))
    return model


def stop(process):
    process.terminate()
    process.wait()


def by_the_clock(stack, args, dir, cert, context):
    model, flags = paced_model(dir, 8), ["--both", 1, "--max-num-seqs", args.streams, "--threads", 1]
    plain = stack.enter_context(Cluster(model, flags))
    tls = stack.enter_context(Cluster(model, [*flags, *cert], ca=dir / "certs" / "ca.crt"))
    ports = {"plain": free_port(), "tls": free_port()}
    conf = configured(dir, f"{plain.host}:{plain.port}", ports["plain"], ports["tls"], "")
    nginx = subprocess.Popen([args.nginx, *map(str, conf)])
    stack.callback(stop, nginx)
    wait_for_port(ports["tls"])
    clock = lambda pids: lambda: cpu_seconds(pids) * 1e6
    workers = children(nginx.pid)
    return {("baton", False): Server(f"{plain.host}:{plain.port}", None, clock([plain.pid_of("router")])),
            ("baton", True): Server(f"{tls.host}:{tls.port}", context, clock([tls.pid_of("router")])),
            ("nginx", False): Server(f"127.0.0.1:{ports['plain']}", None, clock(workers)),
            ("nginx", True): Server(f"127.0.0.1:{ports['tls']}", context, clock(workers))}


def under_valgrind(stack, args, dir, cert, context):
    """One worker, two routers that are counted, and one more, which nginx is in front of."""
    log = stack.enter_context(open(dir / "log", "w"))
    names = ["worker", "behind", "plain", "tls", "nginx plain", "nginx tls"]
    here, model = dict(zip(names, [free_port() for _ in names])), paced_model(dir, 24)

    def command(name, *more):
        own = ["worker", "--load-format", "dummy", "--max-num-seqs", args.streams, "--port", here[name]] if name == "worker" else \
            ["router", "--worker", f"127.0.0.1:{here['worker']}", "--port", here[name], "--grpc-port", -1, "--admin-port", 0]
        return list(map(str, [BATON, own[0], "--model", model, *own[1:], *more]))

    for name in ("worker", "behind"):
        stack.callback(stop, subprocess.Popen(command(name), stdout=log, stderr=log))
    conf = configured(dir, f"127.0.0.1:{here['behind']}", here["nginx plain"], here["nginx tls"], "master_process off;")
    nginx = stack.enter_context(Counted(dir, "nginx", [args.nginx, *conf])).spent
    plain = stack.enter_context(Counted(dir, "plain", command("plain"))).spent
    tls = stack.enter_context(Counted(dir, "tls", command("tls", *cert))).spent
    for name in here:
        wait_for_port(here[name])
    for name in ("behind", "plain", "tls"):
        wait_for_worker(here[name], context if name == "tls" else None)
    return {("baton", False): Server(f"127.0.0.1:{here['plain']}", None, plain),
            ("baton", True): Server(f"127.0.0.1:{here['tls']}", context, tls),
            ("nginx", False): Server(f"127.0.0.1:{here['nginx plain']}", None, nginx),
            ("nginx", True): Server(f"127.0.0.1:{here['nginx tls']}", context, nginx)}


def wait_for_worker(port, context):
    """A router serves once it has met its worker."""
    deadline = time.monotonic() + 120
    while True:
        url = f"http{'s' if context else ''}://localhost:{port}/ready"
        try:
            return urllib.request.urlopen(url, timeout=60, context=context).close()
        except OSError as e:
            assert time.monotonic() < deadline, f"{url}: {e}"
            time.sleep(0.2)


def measure(args, start):
    """`start(stack)`: the four servers, which end with the stack."""
    kinds = {"handshake": lambda s, n: handshakes(s, args.handshakes), "chunk": lambda s, n: chunks(s, args.streams, args.tokens, n)}
    unit, short = ("instructions", "") if args.instructions else ("microseconds", " us")
    out = {"cores": os.cpu_count(), "rounds": args.rounds, "starts": args.starts, "limit": LIMIT}
    rounds = {kind: [] for kind in kinds}
    for n in range(args.starts):
        with contextlib.ExitStack() as stack:
            servers = start(stack)
            for kind, run_of in kinds.items():
                for s in servers.values():
                    run_of(s, 0)  # warms up
                for i in range(n, args.rounds, args.starts):
                    order = random.Random(i + 1).sample(list(servers), len(servers))
                    rounds[kind].append({key: run_of(servers[key], i + 1) for key in order})
    for kind in kinds:
        row = out[kind] = figures(rounds[kind], unit)
        each = [f"{who} {row[who][unit]:7.2f}{short}, {row[who][unit + '_a_record']:7.2f} a record of {row[who]['a_record']:.2f}"
                for who in ("baton", "nginx")]
        ratio = [f"{name} {row[name]:.2f} ({row[name + '_from']:.2f} … {row[name + '_to']:.2f})" for name in ("ratio", "ratio_a_record")]
        print(f"{kind:10} " + "  ".join(each + ratio) + f", at most {LIMIT}", flush=True)
    out["load"] = os.getloadavg()[0]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nginx", default="nginx")
    parser.add_argument("--handshakes", type=int, default=300)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--starts", type=int, default=3, help="how often the servers are started anew")
    parser.add_argument("--instructions", action="store_true", help="count instructions instead of CPU time")
    parser.add_argument("--json")
    args = parser.parse_args()
    dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-tls-cost-"))
    certs = dir / "certs"
    assert run(["certs", certs]).returncode == 0
    context = ssl.create_default_context(cafile=certs / "ca.crt")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    cert = ["--tls-cert", certs / "server.crt", "--tls-key", certs / "server.key"]
    try:
        start = under_valgrind if args.instructions else by_the_clock
        starts = itertools.count()

        def start_in_a_folder(stack):
            folder = dir / str(next(starts))
            folder.mkdir()
            (folder / "certs").symlink_to(certs)
            return start(stack, args, folder, cert, context)
        out = measure(args, start_in_a_folder)
    finally:
        shutil.rmtree(dir, ignore_errors=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
