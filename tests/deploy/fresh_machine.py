"""A fresh Debian with the package on it, as docs/bare-metal.md says: runs inside namespaces of its own (mounts, processes, network),
so that nothing outlives it. Without a service manager, a unit is its own ExecStart line, run as the unit's user without
privileges; `systemctl` of the document does just that.

usage: unshare --mount --pid --fork --net --kill-child fresh_machine.py ROOT MODEL COMMAND...     prints what each command said"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

START_SECONDS = 120
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}


class Machine:
    def __init__(self, root):
        self.root, self.running = pathlib.Path(root), {}
        run = lambda *argv: subprocess.run(argv, check=True)  # noqa: E731
        run("mount", "--make-rprivate", "/")
        run("mount", "-t", "proc", "proc", self.root / "proc")
        run("mount", "--bind", "/dev", self.root / "dev")
        run("mount", "-t", "sysfs", "-o", "ro", "sysfs", self.root / "sys")
        run("mount", "-t", "tmpfs", "tmpfs", self.root / "run")
        run("ip", "link", "set", "lo", "up")

    def inside(self, *argv):
        return ["chroot", str(self.root), *argv]

    def shell(self, line):
        result = subprocess.run(self.inside("/bin/sh", "-c", line), env=ENVIRONMENT, stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return result.returncode, result.stdout

    def keys(self, unit):
        """The unit's file as pairs, with its instance in the place of %i."""
        name, instance = re.fullmatch(r"(baton-\w+)@(\w+)", unit).groups()
        text = (self.root / f"usr/lib/systemd/system/{name}@.service").read_text().replace("%i", instance)
        return [tuple(line.split("=", 1)) for line in text.splitlines() if re.match(r"[A-Z]\w+=", line)]

    def start(self, unit):
        keys = self.keys(unit)
        only = dict(keys)
        if not (self.root / only["AssertPathExists"].lstrip("/")).exists():
            raise RuntimeError(f"{unit}: {only['AssertPathExists']} is not there")
        folder = only["RuntimeDirectory"]
        code, out = self.shell(f"install -d -o {only['User']} -g {only['Group']} -m 0755 /run/{folder}")
        assert code == 0, out
        log = open(self.root / "var/log" / f"{unit}.log", "a")
        drop = ["setpriv", "--reuid", only["User"], "--regid", only["Group"], "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
        self.running[unit] = subprocess.Popen(self.inside(*drop, *only["ExecStart"].split()), env=ENVIRONMENT, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while "ExecStartPost" in only and not (self.root / "run" / folder / "ready").exists():
            if self.running[unit].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{unit} did not start:\n" + (self.root / "var/log" / f"{unit}.log").read_text()[-2000:])
            time.sleep(0.05)

    def stop(self, unit):
        """SIGTERM, and the exit code; later than the unit allows is an error. Its runtime folder goes, as systemd removes it."""
        process, keys = self.running.pop(unit), dict(self.keys(unit))
        process.terminate()
        code = process.wait(int(keys["TimeoutStopSec"]))
        shutil.rmtree(self.root / "run" / keys["RuntimeDirectory"])
        return code

    def systemctl(self, verb, *rest):
        units = [unit for unit in rest if unit.startswith("baton-")]
        codes = {}
        for unit in units:
            if verb in ("stop", "restart"):
                codes[unit] = self.stop(unit)
            if verb in ("enable", "start", "restart"):
                self.start(unit)
        return (0 if not any(codes.values()) else 1), json.dumps(codes)

    def command(self, line):
        if line.startswith("systemctl "):
            return self.systemctl(*line.split()[1:])
        return self.shell(line)


def main():
    root, *commands = sys.argv[1:]
    machine = Machine(root)
    said = []
    for line in commands:
        try:
            code, out = machine.command(line)
        except Exception as e:  # noqa: BLE001 - told to the test
            code, out = -1, f"{type(e).__name__}: {e}"
        said.append({"command": line, "code": code, "out": out})
        if code != 0:
            break
    logs = {p.name: p.read_text()[-3000:] for p in (machine.root / "var/log").glob("baton-*.log")}
    left = {unit: machine.stop(unit) for unit in list(machine.running)}
    print(json.dumps({"said": said, "logs": logs, "exit_codes": left}))


if __name__ == "__main__":
    os.umask(0o022)
    main()
