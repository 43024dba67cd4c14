"""Hosts for a test: network namespaces joined by a switch in user space (switch.py), through which every packet between two
of them is delayed, lost or cut. Everything is removed at the end, also after a failure."""
import contextlib
import ctypes
import fcntl
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import time

from harness import BATON, START_SECONDS, TINY, Cluster

SUBNET = "10.213.7"
SUBNET6 = "fd00:213:7:"
DEVICE = "net0"
MTU = 9000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
CLONE_NEWNET = 0x40000000


def ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def in_netns(name):
    """This thread's sockets and devices are made there. Threads and processes that start inside inherit it."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        assert libc.setns(there, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        yield
    finally:
        assert libc.setns(own, CLONE_NEWNET) == 0
        os.close(own)
        os.close(there)


def tap(netns):
    """A TAP device in a network namespace, open here."""
    with in_netns(netns):
        fd = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def why_not():
    """Why hosts cannot be made here; "" when they can."""
    probe = f"bt-probe-{os.getpid()}"
    try:
        ip("netns", "add", probe)
        os.close(tap(probe))
        ip("netns", "exec", probe, "true")  # mounts the namespace's own /sys, which UCX reads; not in a chroot
        return ""
    except FileNotFoundError as e:
        return f"no iproute2 or no TUN device: {e}"
    except subprocess.CalledProcessError as e:
        return f"network namespaces: {e.stderr.strip()}"
    except OSError as e:
        return f"network namespaces or TAP devices: {e}"
    finally:
        if shutil.which("ip"):
            subprocess.run(["ip", "netns", "del", probe], capture_output=True)


class Hosts:
    """`names` are hosts at SUBNET.1, .2 …, or at SUBNET6:1, :2 … and nowhere else; use as a context manager."""

    def __init__(self, names, six=False):
        self.tag = f"bt{os.getpid()}"
        self.names, self.six, self.switch = list(names), six, None
        self.delay, self.loss, self.forget, self.cut_off = 0.0, 0.0, 0.0, []

    def netns(self, name):
        return f"{self.tag}-{name}"

    def address(self, name):
        number = self.names.index(name) + 1
        return f"{SUBNET6}:{number:x}" if self.six else f"{SUBNET}.{number}"

    def __enter__(self):
        fds = []
        try:
            for name in self.names:
                ip("netns", "add", self.netns(name))
                fds.append(tap(self.netns(name)))
                net = ["/64", "nodad"] if self.six else ["/24"]
                ip("-n", self.netns(name), "addr", "add", f"{self.address(name)}{net[0]}", "dev", DEVICE, *net[1:])
                ip("-n", self.netns(name), "link", "set", DEVICE, "mtu", str(MTU), "up")
                ip("-n", self.netns(name), "link", "set", "lo", "up")
            program = pathlib.Path(__file__).with_name("switch.py")
            self.switch = subprocess.Popen([sys.executable, program, *map(str, fds)], pass_fds=fds, text=True,
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.configure()
            return self
        except BaseException:
            self.__exit__(None, None, None)
            raise
        finally:
            for fd in fds:
                os.close(fd)

    def __exit__(self, kind, value, trace):
        for name in map(self.netns, self.names):
            with contextlib.suppress(Exception):
                pids = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
                for pid in map(int, pids):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        if self.switch is not None:
            self.switch.stdin.close()
            self.switch.wait(10)
            self.switch.stdout.close()
            self.switch = None
        for name in map(self.netns, self.names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def configure(self):
        ports = " ".join(str(self.names.index(name)) for name in self.cut_off)
        self.switch.stdin.write(f"{self.delay} {self.loss} {self.forget} {ports}\n")
        self.switch.stdin.flush()
        assert self.switch.stdout.readline() == "ok\n", "the switch is gone"

    def run(self, name, command, **kw):
        return subprocess.Popen(["ip", "netns", "exec", self.netns(name), *map(str, command)], **kw)

    def cut(self, *names):
        """These hosts hear nobody and nobody hears them; none: all are joined again."""
        self.cut_off = list(names)
        self.configure()

    @contextlib.contextmanager
    def impaired(self, delay=0.0, loss=0.0):
        """Every packet is `delay` seconds late, a share of `loss` is lost."""
        self.delay, self.loss = delay, loss
        self.configure()
        try:
            yield
        finally:
            self.delay, self.loss = 0.0, 0.0
            self.configure()

    @contextlib.contextmanager
    def forgetful(self, after):
        """A TCP connection that is idle for `after` seconds is forgotten on the way: its packets arrive nowhere."""
        self.forget = after
        self.configure()
        try:
            yield
        finally:
            self.forget = 0.0
            self.configure()

    def inside(self, name):
        return in_netns(self.netns(name))


class HostCluster(Cluster):
    """Router, one prefill and one decode worker, each on a host of its own. Requests come from the thread's own host: see
    Hosts.inside."""

    def __init__(self, hosts, model=TINY, worker_args=(), router_args=(), dummy=True):
        super().__init__(model=model)
        self.hosts, self.worker_args, self.router_args = hosts, [str(a) for a in worker_args], [str(a) for a in router_args]
        self.model, self.dummy, self.parts = str(model), dummy, {}

    def start(self, host, command):
        with open(self.dir / f"{host}.log", "w") as log:
            self.parts[host] = self.hosts.run(host, [BATON, *command], stdout=log, stderr=log, env=self.env)

    def __enter__(self):
        for host in ("decode", "prefill"):
            self.start(host, ["worker", "--role", host, "--host", self.hosts.address(host), "--port", 7000, "--insecure",
                              "--model", self.model, "--threads", 1, *(["--load-format", "dummy"] if self.dummy else []),
                              *self.worker_args])
        router = self.hosts.address("router")
        self.start("router", ["router", "--model", self.model, "--host", router, "--port", 8000, "--grpc-port", 8001,
                              "--admin-port", 8002, "--insecure", "--public-metrics", "--ready-file", self.ready,
                              f"--worker={self.hosts.address('decode')}:7000", f"--worker={self.hosts.address('prefill')}:7000",
                              *self.router_args])
        deadline = time.monotonic() + START_SECONDS
        while not self.ready.exists():
            dead = [name for name, part in self.parts.items() if part.poll() is not None]
            if dead or time.monotonic() > deadline:
                text = self.logs()
                self.__exit__(None, None, None)
                raise RuntimeError(f"did not start ({dead}):\n{text}")
            time.sleep(0.05)
        self.host, self.port = router, 8000
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(self.logs())
        for part in self.parts.values():
            if part.poll() is None:
                part.send_signal(signal.SIGTERM)
        for part in self.parts.values():
            try:
                part.wait(20)
            except subprocess.TimeoutExpired:
                part.kill()
                part.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def logs(self):
        return "\n".join(f"── {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.dir.glob("*.log")))

    def log_of(self, host):
        return (self.dir / f"{host}.log").read_text()
