"""Starts real Baton processes for a test, talks to them over loopback, and proves that nothing is left running."""
import contextlib
import http.client
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATON = pathlib.Path(os.environ.get("BATON_BINARY", ROOT / "build" / "baton"))
TINY = ROOT / "tests" / "data" / "tiny-llama"
SMOLLM2 = pathlib.Path(
    subprocess.run([ROOT / "scripts" / "fetch_model.sh", "--path"], capture_output=True, text=True, check=True).stdout.strip())
START_SECONDS = 120
STOP_SECONDS = 60
# What a worker holds of handoffs: all zero when nothing is under way.
HELD = ["baton_landing_slots_granted", "baton_landing_slots_quarantined", "baton_handoff_jobs", "baton_handoff_reserved_tokens",
        "baton_leaked_kv_blocks"]


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


def events(body):
    """The data of each server-sent event, in order."""
    return [e[len("data: "):] for e in body.split("\n\n") if e.startswith("data: ")]


def texts(data):
    """The text of each choice of a streamed completion, from the data of its events, of which [DONE] is the last."""
    assert data[-1] == "[DONE]", data[-1]
    out = {}
    for choice in (choice for d in data[:-1] for choice in json.loads(d).get("choices", ())):
        out[choice["index"]] = out.get(choice["index"], "") + choice["text"]
    return [text for _, text in sorted(out.items())]


class Cluster:
    """`baton serve` with a model. Use as a context manager; leaving it stops the cluster and checks the clean end."""

    output = preexec = None

    def __init__(self, model=TINY, args=(), dummy=True, env=None, ca=None, output=None, preexec=None):
        """`ca`: the authorities of a router that speaks TLS, PEM. `output`: where standard output goes, in place of the log.
        `preexec`: called in the process."""
        self.output, self.preexec = output, preexec
        self.tls = ssl.create_default_context(cafile=ca) if ca else None
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-test-"))
        self.log = self.dir / "log"
        self.ready = self.dir / "ready"
        self.env = {**os.environ, "BATON_CACHE_DIR": os.environ.get("BATON_CACHE_DIR", ""), **(env or {})}
        if not self.env["BATON_CACHE_DIR"]:
            del self.env["BATON_CACHE_DIR"]
        self.command = [str(BATON), "serve", str(model), "--port", "0", "--grpc-port", "0", "--admin-port", "0", "--ready-file", str(self.ready)]
        if dummy:
            self.command += ["--load-format", "dummy"]
        self.command += [str(a) for a in args]
        self.process = None

    def __enter__(self):
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=self.output or log, stderr=log, env=self.env, preexec_fn=self.preexec)
        deadline = time.monotonic() + START_SECONDS
        try:
            while not self.ready.exists():
                if self.process.poll() is not None:
                    raise RuntimeError(f"exit {self.process.returncode} before ready:\n{self.log.read_text()}")
                if time.monotonic() > deadline:
                    raise RuntimeError(f"not ready after {START_SECONDS} s:\n{self.log.read_text()}")
                time.sleep(0.02)
            values = dict(line.split("=", 1) for line in self.ready.read_text().split())
            self.url = values["BATON_HTTP"].strip("'")
            self.grpc = values["BATON_GRPC"].strip("'")
            self.host, self.port = self.url.split("://")[1].rsplit(":", 1)
            self.admin = values["BATON_ADMIN"].strip("'")
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind, value, trace):
        """The error of the test itself is the one that is raised; what goes wrong while cleaning up after it is printed."""
        try:
            if self.process.poll() is None:
                if kind is not None:
                    self.wake()
                code = self.stop()
                assert code == 0, f"exit {code} after SIGTERM:\n{self.log.read_text()[-4000:]}"
        except Exception as e:  # noqa: BLE001 - printed, or raised
            if kind is None:
                raise
            print(f"while stopping the cluster after {kind.__name__}: {e}")
        finally:
            if kind is not None:
                print(self.log.read_text()[-4000:])
            shutil.rmtree(self.dir, ignore_errors=True)

    def stop(self, timeout=None):
        """SIGTERM; the exit code. Fails when a process of the cluster outlives it; no process does after that."""
        timeout = timeout or STOP_SECONDS
        children = self.children()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill(children)
            raise AssertionError(f"did not stop in {timeout} s:\n{self.log.read_text()[-4000:]}") from None
        left = {pid: name for pid, name in children.items() if state(pid) not in ("Z", "gone")}
        self.kill(left)
        assert not left, f"left running after exit {code}: {left}\n{self.log.read_text()[-4000:]}"
        return code

    def wake(self):
        """A child that the test has stopped goes on: it could not end otherwise."""
        for pid in self.children():
            if state(pid) == "T":
                os.kill(pid, signal.SIGCONT)

    def kill(self, children=None):
        """Ends the cluster's processes at once, stopped ones too."""
        for pid in self.children() if children is None else children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def children(self):
        """pid -> command of the cluster's processes."""
        out = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == self.process.pid:
                    argv = (entry / "cmdline").read_bytes().decode().split("\0")
                    out[int(entry.name)] = argv[1] if len(argv) > 1 else ""  # one that has ended has none
        return out

    def workers(self, role):
        """Process ids of the workers of a role, in the order of their names."""
        def argv(pid):
            with contextlib.suppress(OSError):
                return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            return []
        found = {pid: argv(pid) for pid, name in self.children().items() if name == "worker"}
        out = [(line[line.index("--worker-id") + 1], pid) for pid, line in found.items() if line[2:4] == ["--role", role]]
        assert out, f"no worker of role {role}"
        return [pid for _, pid in sorted(out)]

    def pid_of(self, role):
        return next(pid for pid, name in self.children().items() if name == role)

    def connection(self, timeout=120):
        if self.tls:
            return http.client.HTTPSConnection(self.host, int(self.port), timeout=timeout, context=self.tls)
        return http.client.HTTPConnection(self.host, int(self.port), timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=120):
        connection = self.connection(timeout)
        try:
            data = body if isinstance(body, (bytes, str, type(None))) else json.dumps(body)
            if isinstance(data, str):
                data = data.encode()
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read().decode())
        finally:
            connection.close()

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body, **kw)

    def metric(self, name):
        """Sum over label sets of a metric in /metrics."""
        total, found = 0.0, False
        for line in self.get("/metrics").body.splitlines():
            if line.startswith(name) and line[len(name):len(name) + 1] in ("{", " "):
                total, found = total + float(line.rsplit(" ", 1)[1]), True
        assert found, f"no metric {name}"
        return total

    def sequences(self):
        """Of all workers: those that run, and those whose readers take nothing."""
        return self.metric("vllm:num_requests_running") + self.metric("baton_sequences_unread")

    def wait_until(self, condition, what, seconds=30):
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if condition():
                    return
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}\n{self.log.read_text()[-3000:]}"
            time.sleep(0.02)


def state(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return "gone"


def free_port(*hosts):
    """A port that is free at these addresses of this machine (127.0.0.1), and that the system gives nobody who asks for any."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(10000, max(first, 20000))
        with contextlib.suppress(OSError), contextlib.ExitStack() as held:
            for host in hosts or ("127.0.0.1",):
                held.enter_context(socket.create_server((host, port)))
            return port


def tree_seed():
    """A number by which tests draw what they run: the same for the same files in git, another for others; 0 without git."""
    found = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD^{tree}"], capture_output=True, text=True)
    return int(found.stdout.strip() or "0", 16)


def cpu_computes_bfloat16():
    flags = set(pathlib.Path("/proc/cpuinfo").read_text().split())
    return bool(flags & {"avx512_bf16", "amx_bf16"})


def in_parallel(calls):
    """Runs the calls at once on threads; their results in order. The first exception is raised."""
    results, errors = [None] * len(calls), []

    def run(i):
        try:
            results[i] = calls[i]()
        except Exception as e:  # noqa: BLE001 - raised below
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


def not_reading(cluster, body, key=None):
    """A client that has sent its request, with its API key, and reads nothing of the answer."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.connect((cluster.host, int(cluster.port)))
    if cluster.tls:
        s = cluster.tls.wrap_socket(s, server_hostname=cluster.host)
    data = json.dumps(body).encode()
    who = f"Authorization: Bearer {key}\r\n" if key else ""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{who}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    s.sendall(head.encode() + data)
    return s


class HeldStream:
    """A streamed completion in the middle of its answer: its text is more than all buffers hold, and nobody reads on before rest()."""

    def __init__(self, cluster, key=None, **fields):
        self.body = {"model": "tiny-llama", "prompt": "one two three", "max_tokens": 1000, "temperature": 0, "ignore_eos": True, "n": 4,
                     "logprobs": 20, **fields}
        self.socket = not_reading(cluster, {**self.body, "stream": True}, key)
        self.socket.settimeout(60)
        self.response = http.client.HTTPResponse(self.socket)
        self.response.begin()
        assert self.response.status == 200, self.response.read()
        self.first = self.response.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.response.close()  # else the connection stays
        self.socket.close()

    def rest(self):
        """The data of every event of the stream, once it has ended."""
        return events((self.first + self.response.read()).decode())


class Beside:
    """Does something on a thread of its own from enter to exit: `go_on`, which ends when `over` is set."""

    def __enter__(self):
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.go_on)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def run(args, timeout=60, env=None, **how):
    """A `baton` command that ends by itself. `how`: more of what subprocess.run takes."""
    return subprocess.run([str(BATON), *map(str, args)], capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})}, **how)
