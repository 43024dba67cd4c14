"""What the tests of deploy/ share: the project's folders, the machine's tools, and one reason for each that is missing."""
import fcntl
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "cluster"))

BUILD = pathlib.Path(os.environ.get("BATON_BUILD", ROOT / "build" / "release"))
BATON = pathlib.Path(os.environ.get("BATON_BINARY", ROOT / "build" / "baton"))
TOOLS = ROOT / "build" / "deploy-tools"  # what scripts/deploy_tools.sh has fetched
TINY = ROOT / "tests" / "data" / "tiny-llama"


def wait_for_tools():
    """The gate fetches them while it builds: until that is done, nobody can say that one is missing."""
    if os.environ.get("CI") == "true" and (TOOLS / ".lock").exists():
        with open(TOOLS / ".lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)


wait_for_tools()


def model():
    """The demo model's file, or None when this machine has not fetched it."""
    path = pathlib.Path(subprocess.run([ROOT / "scripts" / "fetch_model.sh", "--path"], capture_output=True, text=True,
                                       check=True).stdout.strip())
    return path if path.exists() else None


def tool(name):
    """The program's path: fetched, or the machine's; None when there is neither."""
    fetched = TOOLS / "bin" / name
    return str(fetched) if fetched.exists() else shutil.which(name)


def missing(reason):
    """Ends a test that lacks what scripts/deploy_tools.sh fetches: skipped on a laptop, failed in the gate, which calls no check done that
    did not run."""
    if os.environ.get("CI") == "true":
        raise AssertionError(f"{reason}: skipped elsewhere, a failure where CI=true")
    raise unittest.SkipTest(reason)


def needs(reason):
    """Decorates a test or a class of tests: `reason` says what it lacks of scripts/deploy_tools.sh, "" when nothing is missing()."""
    def decorate(tests):
        if not reason:
            return tests
        if isinstance(tests, type):
            tests.setUpClass = classmethod(lambda cls: missing(reason))
            return tests
        return functools.wraps(tests)(lambda *unused: missing(reason))
    return decorate


def needs_tool(name):
    return needs("" if tool(name) else f"{name} is not installed (scripts/deploy_tools.sh)")


def run(argv, **kw):
    """A command that must succeed; its output."""
    result = subprocess.run([str(a) for a in argv], capture_output=True, text=True, **kw)
    assert result.returncode == 0, f"{argv}: exit {result.returncode}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}"
    return result.stdout


def index_is_away(text):
    """Whether apt-get failed because nobody answered, which is a reason to skip; anything else is a fault."""
    return re.search(r"Could not resolve|Could not connect|Failed to fetch|Unable to connect|Unable to locate package|Network is unreachable", text)


def shell_lines(document):
    """The commands of a document's shell blocks, in order, without their comments."""
    for block in re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / document).read_text(), re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if line := re.sub(r"(^|\s+)# .*", "", line).strip():
                yield line
