"""A worker whose ranks are on several machines (here: processes on addresses of their own): the same bytes as one machine gives, machines
started in any order, and the end of all when one is lost, with exit code 7 within 5 seconds; who does not belong is refused."""
import contextlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from harness import BATON, START_SECONDS, STOP_SECONDS, TINY, Cluster, HeldStream, free_port, in_parallel, run, state
from test_flip import Load, answers
from test_parallel import children_of
from test_promise_a import answer, requests

WIDTH = ["--threads", 1, "--reduction-width", 4]
TP, PP = "--tensor-parallel-size", "--pipeline-parallel-size"
LOST = 7  # the exit code
WITHIN = 5  # seconds


class Node:
    """`baton worker` on one machine."""

    def __init__(self, group, index, args=()):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-node-"))
        self.log, self.ready = self.dir / "log", self.dir / "ready"
        flags = ["--model", TINY, "--load-format", "dummy", "--nnodes", group.count, "--node-rank", index, "--master-addr", group.host_of(0),
                 "--master-port", group.port, "--cluster-secret-file", group.secret, "--host", group.host_of(index), "--worker-id",
                 f"node-{index}", "--ready-file", self.ready, "--hash-key-file", group.key, *WIDTH, *group.args, *args]
        with open(self.log, "w") as log, group.on_machine(index):
            self.process = subprocess.Popen([str(BATON), "worker", *map(str, flags)], stdout=log, stderr=log, env={**os.environ, **group.env})

    def said(self):
        return self.log.read_text()

    def await_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while not self.ready.exists():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.02)
        self.address = self.ready.read_text().split("'")[1]
        return self.address

    def await_text(self, text):
        deadline = time.monotonic() + START_SECONDS
        while text not in self.said():
            assert time.monotonic() < deadline, f"{text!r} is not in:\n{self.said()}"
            time.sleep(0.02)


class Group:
    """The machines of one worker."""

    def __init__(self, count, *args):
        self.count, self.args, self.env, self.nodes = count, args, {}, []
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-group-"))
        self.secret, self.key = self.dir / "secret", self.dir / "key"
        self.secret.write_text(secrets.token_hex(32))
        self.secret.chmod(0o600)
        self.key.write_text("0" * 64)
        self.port = free_port()

    def host_of(self, index):
        return f"127.0.0.{index + 1}"

    def on_machine(self, _index):
        return contextlib.nullcontext()

    def start(self, index, *args):
        self.nodes.append(Node(self, index, args))
        return self.nodes[-1]

    def start_all(self):
        for index in range(self.count):
            self.start(index)
        addresses = [node.await_ready() for node in self.nodes]
        return addresses[0]

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        for node in self.nodes:
            if kind is not None:
                print(f"── {node.log}\n{node.said()[-3000:]}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(node.process.pid, signal.SIGKILL)
            node.process.wait()
            shutil.rmtree(node.dir, ignore_errors=True)
        shutil.rmtree(self.dir, ignore_errors=True)

    def router(self, *workers, args=()):
        return Router(self, workers, args)

    def ends_lost(self, nodes, since, words):
        for node in nodes:
            left = WITHIN - (time.monotonic() - since)
            code = node.process.wait(max(left, 0.1))
            assert code == LOST, f"exit code {code}:\n{node.said()}"
            assert words in node.said().splitlines()[-1], f"{words!r} is not in the last line of:\n{node.said()}"


class Router(Cluster):
    def __init__(self, group, workers, args):
        super().__init__()
        self.command = [str(BATON), "router", "--model", str(TINY), "--port", "0", "--grpc-port", "0", "--admin-port", "0",
                        *(f"--worker={w}" for w in workers), "--hash-key-file", str(group.key), "--cluster-secret-file", str(group.secret),
                        "--ready-file", str(self.ready), *map(str, args)]


class Nodes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.bodies = requests(12, seed=29)
        with Cluster(args=WIDTH) as c:
            cls.alone = [answer(c, body) for body in cls.bodies]

    def check(self, c, group):
        for round_name in ("cold", "with prefix hits"):
            got = in_parallel([lambda b=b: answer(c, b) for b in self.bodies])
            for body, want, have in zip(self.bodies, self.alone, got):
                self.assertEqual(have, want, f"{group.args}, {round_name}: {body}")

    def test_two_machines_answer_what_one_rank_answers_and_end_together(self):
        for args in ([TP, 2], [PP, 2], [TP, 2, PP, 2]):
            with self.subTest(args=args), Group(2, *args) as group:
                worker = group.start_all()
                with group.router(worker) as c:
                    self.check(c, group)
                for node in reversed(group.nodes):
                    node.process.send_signal(signal.SIGTERM)
                self.assertEqual([node.process.wait(STOP_SECONDS) for node in group.nodes], [0, 0], group.nodes[1].said())

    def test_four_machines_in_any_order(self):
        with Group(4, TP, 4) as group:
            started = [group.start(index) for index in (3, 1, 2)]
            for node in started:
                node.await_text("goes to 127.0.0.1")
            zero = group.start(0)
            worker = zero.await_ready()
            with group.router(worker) as c:
                self.check(c, group)

    def test_every_machine_answers_probes_and_scrapes_from_its_start(self):
        port = free_port("127.0.0.1", "127.0.0.2")
        with Group(2, TP, 2, "--status-port", port) as group:

            def get(index, path):
                try:
                    with urllib.request.urlopen(f"http://{group.host_of(index)}:{port}{path}", timeout=5) as reply:
                        return reply.status, reply.read().decode()
                except urllib.error.HTTPError as e:
                    return e.code, e.read().decode()

            for index in (1, 0):  # the first waits for the second
                group.start(index).await_text("/live, /ready and /metrics at http://")
                self.assertEqual(get(index, "/live")[0], 200)
                status, body = get(index, "/ready")
                if index == 1:
                    self.assertEqual((status, json.loads(body)["phase"]), (503, "waits for the other machines"))
            for index, node in ((0, group.nodes[1]), (1, group.nodes[0])):
                node.await_ready()
                self.assertIn(f"BATON_STATUS='http://{group.host_of(index)}:{port}'", node.ready.read_text())
                status, body = get(index, "/ready")
                self.assertEqual((status, json.loads(body)["machine"]), (200, index))
                self.assertIn(f'baton_machine_ready{{worker="node-{index}",machine="{index}"}} 1\n', get(index, "/metrics")[1])

    def test_a_machine_that_is_killed_ends_the_others(self):
        for victim, words in ((1, "rank 1 is gone"), (0, "rank 0 is gone")):
            with self.subTest(victim=victim), Group(2, TP, 2) as group:
                group.start_all()
                since = time.monotonic()
                group.nodes[victim].process.kill()
                group.ends_lost([group.nodes[1 - victim]], since, words)

    def test_a_machine_that_stands_still_ends_the_others_while_nothing_runs(self):
        for victim in (1, 0):
            with self.subTest(victim=victim), Group(3, PP, 3) as group:
                group.start_all()
                since = time.monotonic()
                group.nodes[victim].process.send_signal(signal.SIGSTOP)
                group.ends_lost([n for i, n in enumerate(group.nodes) if i != victim], since,
                                f"rank {victim} has shown no sign of life for ")

    def test_a_rank_process_that_is_killed_ends_all_machines(self):
        with Group(2, TP, 4) as group:
            group.start_all()
            victim = children_of(group.nodes[1].process.pid)[0]
            since = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            group.ends_lost(group.nodes, since, "rank 3")

    def test_a_group_that_is_lost_under_load_ends_and_another_takes_its_place(self):
        with Group(2, TP, 2) as group:
            worker = group.start_all()
            with group.router(worker) as c:
                with HeldStream(c):
                    group.nodes[1].process.kill()
                    group.ends_lost([group.nodes[0]], time.monotonic(), "is gone")
                old, group.nodes = group.nodes, []
                port = worker.rsplit(":", 1)[1]
                for index in range(2):
                    group.start(index, *(["--port", port] if index == 0 else []))
                group.nodes[0].await_ready()
                c.wait_until(lambda: c.post("/v1/completions", self.bodies[0]).status == 200, "the new group serves")
                self.assertEqual(answer(c, self.bodies[0]), self.alone[0])
                group.nodes += old

    def test_flags_that_differ_end_every_machine_with_both_values(self):
        for flag, zero, one in (("--block-size", 16, 32), ("--landing-slots", 32, 16), ("--cuda-graph-sizes", "1,2", "1,4")):
            with self.subTest(flag=flag), Group(2, TP, 2, "--role", "decode") as group:
                group.start(0, flag, zero)
                group.start(1, flag, one)
                for node in group.nodes:
                    self.assertEqual(node.process.wait(START_SECONDS), 2, node.said())
                    self.assertIn(f"rank 1 of 2 has {flag} {one}, rank 0 has {flag} {zero}", node.said().splitlines()[-1])

    def test_another_secret_is_refused_where_it_dialled_and_the_group_meets_all_the_same(self):
        with Group(2, TP, 2) as group:
            group.start(0)
            other = group.dir / "other"
            other.write_text(secrets.token_hex(32))
            other.chmod(0o600)
            stranger = group.start(1, "--cluster-secret-file", other)
            self.assertEqual(stranger.process.wait(START_SECONDS), 4, stranger.said())
            self.assertIn("the peer has another cluster secret", stranger.said().splitlines()[-1])
            group.start(1)
            group.nodes[0].await_ready()

    def test_a_machine_that_comes_twice_says_what_it_waits_for_and_disturbs_nobody(self):
        with Group(2, TP, 2) as group:
            worker = group.start_all()
            with group.router(worker) as c:
                with Load(c, answers(c)) as load:
                    again = group.start(1, "--port", 0)
                    again.await_text(f"waits for rank 0 at 127.0.0.1:{group.port}")
                    self.assertRegex(again.said(), r"Connection refused \(it has not started, or its group is whole\)")
                    seen = load.count
                    c.wait_until(lambda: load.count > seen + 6, "requests beside it")
                self.assertEqual(load.wrong, [])
                self.assertEqual(answer(c, self.bodies[0]), self.alone[0])

    def test_a_leader_worker_sets_variables_are_taken(self):
        with Group(2, TP, 2) as group:
            places = ["--nnodes", "--node-rank", "--master-addr", "--master-port"]
            for index in range(2):
                group.env = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": str(index), "LWS_LEADER_ADDRESS": "localhost",
                             "BATON_MASTER_PORT": str(group.port)}
                node = Node.__new__(Node)
                node.dir = pathlib.Path(tempfile.mkdtemp(prefix="baton-node-"))
                node.log, node.ready = node.dir / "log", node.dir / "ready"
                flags = ["--model", TINY, "--load-format", "dummy", "--cluster-secret-file", group.secret, "--ready-file", node.ready,
                         "--hash-key-file", group.key, *WIDTH, *group.args]
                self.assertFalse(set(places) & set(map(str, flags)))
                with open(node.log, "w") as log:
                    node.process = subprocess.Popen([str(BATON), "worker", *map(str, flags)], stdout=log, stderr=log,
                                                    env={**os.environ, **group.env})
                group.nodes.append(node)
            group.nodes[0].await_ready()
            group.nodes[1].await_ready()
            self.assertIn("machine 1 of 2, ranks 1 to 1, goes to localhost", group.nodes[1].said())

    def test_what_cannot_be_is_refused_with_its_flag(self):
        base = ["worker", "--model", TINY, "--load-format", "dummy"]
        two = ["--nnodes", 2, "--master-addr", "127.0.0.1", "--cluster-secret-file", "/dev/null"]
        for flags, words in (([*two], "--nnodes 2: must be a divisor of the worker's 1 ranks"),
                             ([*two, TP, 2, "--node-rank", 2], "--node-rank 2: must be less than --nnodes 2"),
                             ([*two[:2], TP, 2], "--master-addr"),
                             ([*two[:4], TP, 2], "--cluster-secret-file"),
                             ([*two, TP, 4, "--role", "decode", "--landing-port", 65535], "--landing-port 65535: the 2 rank processes"),
                             (["--node-rank", 1], "--node-rank 1: must be less than --nnodes 1")):
            with self.subTest(flags=flags):
                done = run([*base, *flags])
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(words, done.stderr)

    def test_a_place_that_is_told_in_part_is_not_guessed(self):
        for told in ({"LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "127.0.0.1"}, {"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "127.0.0.1"},
                     {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}):
            with self.subTest(told=told):
                done = run(["worker", "--model", TINY, "--load-format", "dummy"], env=told)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("a number, a number and a host name are expected", done.stderr)


if __name__ == "__main__":
    unittest.main()
