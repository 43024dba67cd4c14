"""Attacks on a worker's ports, against real processes with their default flags. The attacker knows the cluster's secret, or is a stranger where
that is what he would need it for. Each time the processes live, others are answered as before, memory has a bound, and the refusal is a line."""
import contextlib
import fcntl
import mmap
import os
import pathlib
import re
import secrets
import select
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

import grpc_call
import liar
from grpc_call import field
from harness import HELD, Cluster
from test_hostile_tls import Front, Others, until_closed
from test_hostile_worker import resident
from test_tls import port_of, router, worker

MIB = 1 << 20
UCX_LIAR = os.environ.get("BATON_UCX_LIAR")
SLOT_CLAIMS = [(1, 2**64 - 4095), (2, 2**63), (2**64 - 1, 1), (1 << 17, 4096), (1, 2 << 30)]  # products that wrap, or are too much
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
BODY = {"model": "tiny-llama", "prompt": "request of a lazy dog " * 20, "max_tokens": 6, "temperature": 0}
ESCAPES = "evil\n[error] all is lost\x1b[2J\r"


def ids(count):
    return b"".join(struct.pack("<i", 5) for _ in range(count))


def after_its_greeting(s):
    """What a port says behind its own greeting, until it closes."""
    return until_closed(s)[len(liar.hello()):]


def memory(size, seals):
    fd = os.memfd_create("liar", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


class Rows(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        cls.dir = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cls.secret = secrets.token_hex(32).encode()
        file = cls.dir / "secret"
        file.write_bytes(cls.secret)
        file.chmod(0o600)
        cls.flags = ["--cluster-secret-file", file]
        cls.prefill = stack.enter_context(worker("--role", "prefill", *cls.flags))
        cls.decode = stack.enter_context(worker("--role", "decode", *cls.flags))
        cls.router = stack.enter_context(router(port_of(cls.prefill), "--worker", port_of(cls.decode), "--local-prefill-max-tokens", 8, *cls.flags))
        cls.front = Front(cls.router)
        cls.front.wait_until(lambda: cls.front.post("/v1/completions", BODY).status == 200, "it serves")
        cls.want = cls.front.post("/v1/completions", BODY).json()["choices"]
        cls.to_prefill, cls.to_decode = (liar.Session(port_of(w), cls.secret) for w in (cls.prefill, cls.decode))

    def setUp(self):
        self.most_grown = 96 * MIB
        self.pids = {w: w.process.pid for w in (self.prefill, self.decode, self.router)}
        self.before = {w: resident(pid, "VmHWM") for w, pid in self.pids.items()}
        self.said = {w: len(w.log.read_text()) for w in self.pids}

    def tearDown(self):
        """Whatever was tried: nobody died, nobody was forgotten, and nothing is left of it."""
        for w, pid in self.pids.items():
            self.assertIsNone(w.process.poll(), w.log.read_text()[-2000:])
            self.assertLess(resident(pid, "VmHWM") - self.before[w], self.most_grown)
        reply = self.front.post("/v1/completions", BODY)
        self.assertEqual((reply.status, reply.status == 200 and reply.json()["choices"]), (200, self.want), reply.body)
        self.front.wait_until(lambda: all(self.front.metric(name) == 0 for name in HELD), "nothing is left")

    def new_log(self, process):
        return process.log.read_text()[self.said[process]:]

    def logged(self, process, *texts):
        process.until(lambda: all(text in self.new_log(process) for text in texts), " and ".join(texts))

    def ways(self):
        return self.to_decode.ways()

    def dials(self, kind):
        return liar.dials(self.ways(), kind, self.secret)

    # ---- S1, S2: landing memory that is not what it says

    def test_s1_slots_whose_sizes_wrap_are_believed_by_neither_side(self):
        for kind in ("tcp", "shm"):
            for slots, size in SLOT_CLAIMS:
                with self.subTest(kind, slots=slots), self.dials(kind) as s:
                    s.sendall(liar.hello(slots, size))
                    self.assertEqual(after_its_greeting(s), b"")
        self.logged(self.decode, "at most 65536 of 1073741824")
        for kind in ("tcp", "shm"):
            def grants(s, kind=kind):
                page = memory(4096, SEALS)
                data = liar.hello(2, 2**63) + liar.self_test(liar.GRANT, bytes=MIB)
                liar.gives(s, data, [page]) if kind == "shm" else s.sendall(data)
                os.close(page)
                until_closed(s)
            with self.subTest(kind), liar.FalseDecodeWorker(self.to_decode.machine(), self.secret, grants, kind) as false:
                self.assertEqual(self.to_prefill.call("Relay", false.meet())[0], "OK")
                self.prefill.until(lambda f=false: f.came, "the prefill worker dials")
                self.logged(self.prefill, f"no way to the decode worker works: {kind}", "at most 65536 of 1073741824")

    def test_s2_no_file_of_a_peers_choice_is_mapped(self):
        mine = self.dir / "not-yours"
        mine.write_bytes(b"precious" * 512)
        kinds = [(lambda: os.open(mine, os.O_RDWR), "no sealed memory"), (lambda: memory(4096, fcntl.F_SEAL_SEAL), "no sealed memory"),
                 (lambda: memory(8192, SEALS), "has 8192 bytes, its greeting says 4096"), (lambda: os.open("/dev/zero", os.O_RDWR), "no sealed memory")]
        for make, why in kinds:
            def shows(s, make=make):
                given = make()
                liar.gives(s, liar.hello(1, 4096) + liar.self_test(liar.GRANT, bytes=4096), [given])
                os.close(given)
                mapped.extend(self.mapped_until_closed(s))
            mapped, before = [], len(self.prefill.log.read_text())
            with self.subTest(why), liar.FalseDecodeWorker(self.to_decode.machine(), self.secret, shows) as false:
                self.to_prefill.call("Relay", false.meet())
                self.prefill.until(lambda b=before, w=why: w in self.prefill.log.read_text()[b:], why)
                with self.dials("shm") as s:
                    shows(s)
            self.assertEqual(mapped, [])

        def is_told():  # of an address the log has a line a second
            with self.dials("shm") as s:
                shows(s, make=kinds[0][0])
            return "no sealed memory" in self.new_log(self.decode)
        self.decode.until(is_told, "no sealed memory")
        self.assertEqual(mine.read_bytes(), b"precious" * 512)

    def mapped_until_closed(self, s):
        """What of ours stands in the memory of a process before it closes the connection."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            maps = "\n".join(pathlib.Path(f"/proc/{pid}/maps").read_text() for pid in self.pids.values())
            if found := [line for line in maps.splitlines() if "not-yours" in line or "memfd:liar" in line or "/dev/zero" in line]:
                return found
            if select.select([s], [], [], 0.05)[0]:
                try:
                    if not s.recv(1 << 16):
                        return []
                except ConnectionError:
                    return []
        return ["it was not refused"]

    # ---- S3: memory for who has not greeted, or does not read

    def test_s3_a_header_of_48_bytes_takes_no_memory(self):
        host, port = self.ways()["tcp"].rsplit(":", 1)
        with contextlib.ExitStack() as stack:
            for kind, size in [(liar.MESSAGE, 16 * MIB), (liar.WRITE, 1 << 62), (liar.FLUSH, 16 * MIB), (liar.HELLO, 16 * MIB)]:
                for _ in range(16):
                    known, stranger = self.dials("tcp"), socket.create_connection((host, int(port)), timeout=120)
                    for s in (known, stranger):
                        stack.enter_context(s)
                        s.sendall(liar.frame(kind, size=size))
                        self.assertEqual(after_its_greeting(s), b"")
        self.logged(self.decode, "no greeting came first")

    def test_s3_writes_without_end_and_answers_that_nobody_reads(self):
        with self.dials("tcp") as s:
            s.sendall(liar.hello() + liar.frame(liar.WRITE, size=1 << 62))
            self.assertEqual(after_its_greeting(s), b"")
        self.most_grown = 224 * MIB  # 64 are kept, and their headers; all would be 600
        with self.dials("tcp") as s, self.assertRaises(ConnectionError):
            s.sendall(liar.hello())
            flushes = liar.frame(liar.FLUSH) * 20000
            for _ in range(200):
                s.sendall(flushes)
        self.logged(self.decode, "4611686018427387904 bytes, at most 1048576", "the peer does not read")

    # ---- S4: calls of a worker by a stranger, and by another router

    def test_s4_a_stranger_calls_nothing_and_a_router_ends_no_leg_of_another(self):
        key = field(1, "of one router")

        def refused(w, method, message, metadata=()):
            for _ in range(20):
                with contextlib.suppress(AssertionError):  # it may be refused before curl has sent its message
                    return grpc_call.call(port_of(w), liar.WORKER + method, message, metadata=metadata)[0]
            return "no answer"
        for w in (self.prefill, self.decode):
            for i, method in enumerate(("Watch", "Relay", "Reserve", "Prefill", "Cancel", "Drain", "Flip")):
                with self.subTest(method, worker=port_of(w)):
                    metadata = ["baton-token: " + "0" * 32] if i % 2 else []
                    self.assertEqual(refused(w, method, field(1, key), metadata), "UNAUTHENTICATED")
            self.assertEqual(refused(w, "Handshake", liar.PROTOCOL + field(3, b"k" * 32)), "PERMISSION_DENIED")
        one, again, other, third = (liar.Session(port_of(self.decode), self.secret, name) for name in ("router-a", "router-a", "router-b", ""))
        reserve = field(1, key) + field(2, 64) + field(3, 4) + field(5, 1) + field(6, 60000)

        def cancelled(session):
            code, said, messages = session.call("Cancel", field(1, key))
            self.assertEqual(code, "OK", said)
            return messages[0].get(1) == [1]

        def ticket(session):
            return session.call("Reserve", reserve)[2][0][1][0]
        mine = ticket(one)
        self.assertFalse(cancelled(third))
        self.assertNotEqual(ticket(other), mine, "nobody is told another's ticket")
        self.assertTrue(cancelled(other))
        self.assertEqual(ticket(one), mine, "it stands")
        self.assertTrue(cancelled(again), "the router that greets again is the same")

    # ---- S7: plans for millions of ranks

    def prefill_request(self, tensor, stages=None, request="of a liar"):
        reserved = field(1, field(1, 77) + field(2, "x")) + field(3, self.to_decode.facts[8][0]) + field(4, self.to_decode.landing) + field(7, 5000)
        reserved += field(9, MIB) + field(10, 16) + field(11, tensor) + b"".join(field(12, layer) for layer in stages or self.to_decode.stages())
        return field(1, field(1, request) + field(3, 1)) + field(2, reserved) + field(3, ids(64)) + field(4, 64) + field(6, field(13, 4) + field(14, 1))

    def test_s7_a_ticket_for_millions_of_ranks_is_refused_at_once(self):
        for tensor, why in [(1 << 22, "tensor parallel size 4194304"), (1 << 30, "tensor parallel size 1073741824"), ((1 << 32) - 1, "is not positive")]:
            with self.subTest(tensor=tensor):
                code, said, _ = self.to_prefill.call("Prefill", self.prefill_request(tensor))
                self.assertEqual(code, "INVALID_ARGUMENT")
                self.assertIn(why, said)
        with self.dials("tcp") as s:
            s.sendall(liar.hello() + self.to_decode.lane_hello(tensor=1 << 22))
            s.shutdown(socket.SHUT_WR)
            until_closed(s)

    def test_s7_a_plan_for_each_of_many_epochs_is_not_kept(self):
        key = field(1, "epochs of a liar")
        _, _, messages = self.to_decode.call("Reserve", field(1, key) + field(2, 64) + field(3, 4) + field(5, 1) + field(6, 60000))
        ticket = grpc_call.fields(messages[0][1][0])
        number, before = ticket[1][0], resident(self.pids[self.decode])
        with self.dials("tcp") as s:
            s.sendall(liar.hello() + self.to_decode.lane_hello(tensor=4))
            for first in range(1, 50001, 500):
                s.sendall(b"".join(liar.message(field(liar.LANE, field(1, number) + field(2, epoch)) + field(liar.OPEN, field(1, 99) + b"\x11" + ticket[3][0] + b"\x19" + ticket[4][0]))
                                   for epoch in range(first, first + 500)))
            s.shutdown(socket.SHUT_WR)
            self.assertIn(b"plan", until_closed(s))
        self.assertEqual(self.to_decode.call("Cancel", field(1, key))[0], "OK")
        self.assertLess(resident(self.pids[self.decode]) - before, 24 * MIB)

    # ---- S8: another's ticket

    def test_s8_whoever_guesses_a_ticket_hears_the_same_of_all_and_changes_none(self):
        key = field(1, "not of a liar")
        _, _, messages = self.to_decode.call("Reserve", field(1, key) + field(2, 64) + field(3, 4) + field(5, 1) + field(6, 60000))
        number = grpc_call.fields(messages[0][1][0])[1][0]
        guessed = b"\x11" + b"\1" * 8 + b"\x19" + bytes(8)  # the secret's halves
        for kind in ("tcp", "shm"):
            with self.subTest(kind), self.dials(kind) as s, Others(self.front) as others:
                self.guess(s, number, guessed)
                self.assertEqual(others.failures, [])
        code, _, messages = self.to_decode.call("Cancel", field(1, key))
        self.assertEqual((code, messages[0].get(1)), ("OK", [1]), "it is still there")

    def guess(self, s, number, guessed):
        s.sendall(liar.hello() + self.to_decode.lane_hello())
        for ticket in (number, number + 1, number + 100000):
            for epoch in (1, 2, 2**32 - 1):
                lane = field(liar.LANE, field(1, ticket) + field(2, epoch))
                s.sendall(liar.message(lane + field(liar.OPEN, field(1, 99) + guessed)) + liar.message(lane + field(liar.CLOSED, field(1, 1) + guessed)))
        data, heard = b"", []
        while sum(liar.GONE in one for one in heard) < 9:
            more = s.recv(1 << 16)
            self.assertTrue(more, heard)
            data += more
            heard = liar.messages(data)
        self.assertEqual([one[liar.GONE] for one in heard if liar.GONE in one], [[field(1, "unknown ticket")]] * 9)
        self.assertLessEqual(set().union(*heard), {liar.LANE, liar.GONE, liar.CLOSED_ACK})

    def test_s8_whoever_writes_everywhere_in_shared_memory_changes_no_answer(self):
        def answer(i, salt):
            reply = self.front.post("/v1/completions", {**BODY, "prompt": f"request {i} of a lazy dog " * 20, "cache_salt": salt})
            self.assertEqual(reply.status, 200, reply.body)
            return reply.json()["choices"]
        asked, over = [], threading.Event()
        with self.dials("shm") as s:
            s.sendall(liar.hello() + self.to_decode.lane_hello())
            given = []
            while not given:
                data, given, _, _ = socket.recv_fds(s, 1 << 16, 4)
                self.assertTrue(data or given)
            size = os.fstat(given[0]).st_size
            with mmap.mmap(given[0], size) as slots:
                def writes():
                    while not over.is_set():
                        for at in range(0, size, 4096):
                            slots[at + 600:at + 616] = b"not of the model"
                thread = threading.Thread(target=writes)
                thread.start()
                try:
                    self.front.wait_until(lambda: asked.append(answer(len(asked), "attacked")) or len(asked) >= 4 and
                                          self.front.metric("baton_kv_digest_mismatches_total") > 0, "what it writes is met", 60)
                finally:
                    over.set()
                    thread.join()
            os.close(given[0])
        self.assertEqual(asked, [answer(i, "undisturbed") for i in range(len(asked))])

    # ---- S14: the self-test of the KV port

    def test_s14_who_asks_for_the_self_test_and_falls_silent_keeps_no_worker_out(self):
        with contextlib.ExitStack() as stack:
            for _ in range(60):
                for kind in ("tcp", "shm"):
                    s = stack.enter_context(self.dials(kind))
                    s.sendall(liar.hello() + liar.self_test(liar.ASK))
            fresh = stack.enter_context(worker("--role", "prefill", *self.flags))
            session = liar.Session(port_of(fresh), self.secret)
            fresh.until(fresh.ready.exists, "it has loaded")
            self.assertEqual(session.call("Relay", field(5, field(1, self.to_decode.landing)))[0], "OK")
            fresh.until_logged("is reached by shm")

    def test_s14_who_asks_for_the_self_test_again_and_again_keeps_no_worker_out(self):
        over = threading.Event()

        def asks(s, tests):
            """`tests`: whether it goes on with its test whenever it has its turn, for ever."""
            data, heard = b"", 0
            s.settimeout(0.2)
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    data += s.recv(1 << 16)
                s.sendall(liar.self_test(liar.ASK))
                said = [grpc_call.fields(one[liar.SELF_TEST][0]) for one in liar.messages(data) if liar.SELF_TEST in one]
                for one in said[heard:] if tests else []:
                    turn = grpc_call.fields(one[2][0])
                    s.sendall(liar.self_test(liar.FULL, slot=turn[1][0], turn=turn[2][0] + (one[1] == [liar.SEEN])))
                heard = len(said)
            granted.append(heard)
        granted, threads = [], []
        with contextlib.ExitStack() as stack:
            for kind in ("tcp", "shm"):
                for tests in (False, True):
                    s = stack.enter_context(self.dials(kind))
                    s.sendall(liar.hello())
                    threads.append(threading.Thread(target=asks, args=(s, tests)))
                    threads[-1].start()
            try:
                fresh = stack.enter_context(worker("--role", "prefill", *self.flags))
                session = liar.Session(port_of(fresh), self.secret)
                fresh.until(fresh.ready.exists, "it has loaded")
                self.assertEqual(session.call("Relay", field(5, field(1, self.to_decode.landing)))[0], "OK")
                fresh.until_logged("is reached by shm")
            finally:
                over.set()
                for thread in threads:
                    thread.join()
        self.assertEqual(len(granted), 4, "all went on to the end")
        self.assertGreater(max(granted), 2, "they had it, again and again")

    # ---- S15: where a prefill worker dials

    def test_s15_a_stranger_has_nobody_dialled_and_a_peer_no_words(self):
        heard = []
        with liar.FalseDecodeWorker(self.to_decode.machine(), None, lambda s: heard.append(s.recv(4096)), "tcp") as false:
            for metadata in ([], ["baton-token: " + "0" * 32]):
                with contextlib.suppress(AssertionError):  # it may be refused before curl has sent its message
                    self.assertEqual(grpc_call.call(port_of(self.prefill), liar.WORKER + "Relay", false.meet(), metadata=metadata)[0], "UNAUTHENTICATED")
            self.logged(self.prefill, "127.0.0.1 is refused: a call of no session")
            self.assertEqual(self.to_prefill.call("Relay", false.meet())[0], "OK")
            self.prefill.until(lambda: heard, "whoever has greeted is heard")
            self.assertEqual(false.came, 1, "and nobody else")
        self.assertEqual((heard[0][:8], len(heard[0])), (liar.greeting.MAGIC, 42), "nothing is said but the greeting's call")

    # ---- S16: what a peer says in the log

    def test_s16_words_of_a_peer_are_one_line_without_control_characters(self):
        for i in range(40):
            with self.dials("tcp") as s:
                s.sendall(liar.hello() + self.to_decode.lane_hello(incarnation=ESCAPES, model_digest=ESCAPES * (1 + i % 2 * 500), numerics=ESCAPES))
                s.sendall(liar.message(field(liar.SELF_TEST, field(1, 5) + field(7, ESCAPES * 500))))
                s.shutdown(socket.SHUT_WR)
                until_closed(s)
        self.logged(self.decode, "evil")
        def grants(s):
            s.sendall(liar.hello(4, MIB) + liar.message(field(liar.SELF_TEST, field(1, liar.GRANT) + field(3, 64) + field(7, ESCAPES))))
            until_closed(s)
        with liar.FalseDecodeWorker(self.to_decode.machine(), self.secret, grants, "tcp") as false:
            self.to_prefill.call("Relay", false.meet())
            self.prefill.until(lambda: false.came, "the prefill worker dials")
        for process in (self.decode, self.prefill):
            for line in self.new_log(process).splitlines():
                self.assertFalse(line.startswith("[error] all is lost"), line)
                self.assertRegex(line, r"^[^\x00-\x1f\x7f]*$")
                self.assertLess(len(line), 17000)

    # ---- S21: what is multiplied

    def attach(self, choices, request="many"):
        return field(1, field(1, field(1, request)) + field(2, 1) + field(4, ids(8)) + field(5, 8) + field(7, field(13, 4) + field(14, 1)) + field(14, choices))

    def test_s21_a_refused_attach_of_millions_of_choices_is_answered_by_one_message(self):
        self.most_grown = 256 * MIB  # of which the numbers themselves, unpacked, are 64
        with Others(self.front) as others:
            for choices in (b"\1" * (8 * MIB), b"\1\0" * (4 * MIB)):
                code, said, messages = self.to_decode.call("Relay", self.attach(choices))
                self.assertEqual(code, "OK", said)
                entries = [entry for message in messages for entry in message.get(2, [])]
                self.assertEqual(len(messages), 1)
                self.assertLess(sum(len(entry) for entry in entries), 256 << 10)
        self.assertEqual(others.failures, [])

    def test_s21_cancels_without_end_are_not_remembered(self):
        cancels = [b"".join(field(3, field(1, f"{i}-{j}-" + "x" * 200) + field(2, 1)) for j in range(1000)) for i in range(60)]
        before = resident(self.pids[self.decode])
        self.assertEqual(self.to_decode.call("Relay", cancels)[0], "OK")
        self.assertLess(resident(self.pids[self.decode]) - before, 24 * MIB)


class UcxRows(unittest.TestCase):
    @unittest.skipUnless(UCX_LIAR, "built without UCX")
    def test_s24_what_a_peer_claims_over_ucx_is_bounded_and_others_are_served(self):
        args = ["--prefill", 1, "--decode", 1, "--transport", "ucx-tcp", "--local-prefill-max-tokens", 8]
        with Cluster(args=args) as c:
            want = c.post("/v1/completions", BODY).json()["choices"]
            address = re.search(r"takes KV at \S*ucx-tcp:([0-9a-f]+)", c.log.read_text())[1]
            pid = c.workers("decode")[0]
            before = resident(pid, "VmHWM")
            for what, why in [("memory", "1 landing slots of 9223372036854775808 bytes, at most 65536 of 1073741824"), ("write", "a write of 4611686018427387904 bytes, slots here have "),
                              ("message", "a message of 16777217 bytes, at most 16777216"), ("writes", "more than 1024 writes are here in part")]:
                with self.subTest(what), subprocess.Popen([UCX_LIAR, address, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as liar_:
                    self.assertEqual(liar_.stdout.readline(), b"said\n")
                    c.wait_until(lambda w=why: w in c.log.read_text(), why)
                    self.assertEqual(c.post("/v1/completions", BODY).json()["choices"], want)
                    liar_.stdin.close()
                    liar_.wait(60)
                self.assertEqual(c.post("/v1/completions", {**BODY, "prompt": what + BODY["prompt"]}).status, 200)
            self.assertEqual(c.workers("decode")[0], pid, "nobody died")
            self.assertIn("is reached by ucx-tcp", c.log.read_text())
            self.assertLess(resident(pid, "VmHWM") - before, 96 * MIB)


if __name__ == "__main__":
    unittest.main(verbosity=2)
