"""What one who knows the cluster's secret, and reads what goes to a landing port, gains there: old greetings prove nothing, a writer's words said
again give no request KV of another, whoever begins at a port and falls silent is ended, and others are answered all the while."""
import contextlib
import pathlib
import re
import secrets
import select
import socket
import struct
import tempfile
import threading
import unittest

import greeting
import grpc_call
from harness import HELD, free_port
from test_hostile_tls import Front, Others, until_closed
from test_key_holder import HEADERS
from test_tls import port_of, router, worker
from test_trust import PREFACE, frame

GREETING = 8 + 2 + 32 + 32  # bytes: magic, version and purpose, nonce, proof
HEADER = struct.Struct("<IIQQIIIIQ")  # of a frame: magic, kind, bytes of its payload, ticket, …
HELLO, MESSAGE, WRITE = 1, 2, 3  # kinds of frames
LANE_HELLO, OPEN, SELF_TEST = 2, 3, 13  # fields of a LaneMessage
HOST = "127.0.0.5"  # where the decode worker says that it takes KV
CALL = frame(1, 4, 1, HEADERS)  # its message does not come
OTHER_BYTES = bytes(255 - byte for byte in range(256))


def body(i):
    return {"model": "tiny-llama", "prompt": f"request {i} of a lazy dog " * 20, "max_tokens": 6, "temperature": 0}


class Said:
    """A frame that a writer has said."""

    def __init__(self, data):
        self.data, self.kind = data, HEADER.unpack_from(data)[1]
        self.fields = grpc_call.fields(data[HEADER.size + 8:]) if self.kind == MESSAGE else {}

    def damaged(self):
        return self.data[:HEADER.size] + self.data[HEADER.size:].translate(OTHER_BYTES)


class Between:
    """Stands between prefill and decode worker and passes all on, a frame at a time. `heard` is called with a connection's number and each frame
    that has gone to the latter, `answered` when something has come back."""

    def __init__(self, port):
        self.port, self.greetings, self.said, self.over = port, [], [], threading.Event()
        self.deaf()
        self.listener = socket.create_server((HOST, port))
        self.threads = [threading.Thread(target=self.listen)]
        self.threads[0].start()

    def deaf(self):
        self.heard, self.answered = lambda number, frame: None, lambda number: None

    def listen(self):
        while not self.over.is_set():
            if select.select([self.listener], [], [], 0.1)[0]:
                client, _ = self.listener.accept()
                self.greetings.append(b"")
                self.said.append([])
                self.threads.append(threading.Thread(target=self.carry, args=(client, len(self.said) - 1)))
                self.threads[-1].start()

    def carry(self, client, number):
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)) as worker:
            rest = b""
            while not self.over.is_set():
                for end in select.select([client, worker], [], [], 0.1)[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    if end is worker:
                        client.sendall(data)
                        self.answered(number)
                        continue
                    greets = GREETING - len(self.greetings[number])
                    self.greetings[number] += data[:greets]
                    worker.sendall(data[:greets])
                    rest = self.pass_on(number, rest + data[greets:], worker)

    def pass_on(self, number, data, worker):
        """The part of a frame that is left."""
        while len(data) >= HEADER.size and len(data) >= (size := HEADER.size + HEADER.unpack_from(data)[2]):
            said, data = Said(data[:size]), data[size:]
            self.said[number].append(said)
            worker.sendall(said.data)
            self.heard(number, said)
        return data

    def close(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        self.listener.close()


class Thief:
    """Connections of his own, which say what others have said."""

    def __init__(self, between, secret):
        self.between, self.secret, self.open, self.waiting, self.told, self.ended = between, secret, {}, {}, [], 0
        self.one_at_a_time, self.closed = threading.Lock(), False  # connections are heard on threads of their own

    def dial(self):
        return greeting.greeted("127.0.0.1", self.between.port, self.secret, greeting.LANDING)

    def all_of(self, number):
        """What was said on a connection, from its beginning."""
        with self.dial() as s, contextlib.suppress(ConnectionError):
            for said in list(self.between.said[number]):
                s.sendall(said.data)
            s.shutdown(socket.SHUT_WR)
            until_closed(s)

    def hear(self, number, said):
        """Writes while their slots are granted, damaged; messages once the first of their kind is answered."""
        if SELF_TEST in said.fields:
            return
        if said.kind == WRITE:
            self.say(number, said.damaged(), WRITE)
        else:
            self.waiting.setdefault(number, []).append(said)

    def answered(self, number):
        for said in self.waiting.pop(number, ()):
            self.say(number, said.data, *said.fields)

    def say(self, number, data, *kinds):
        with self.one_at_a_time:
            if not self.closed:
                self.say_alone(number, data, *kinds)

    def say_alone(self, number, data, *kinds):
        try:
            if number not in self.open:
                self.open[number] = self.dial()
                first = [said for said in self.between.said[number] if said.kind == HELLO or LANE_HELLO in said.fields]
                data = b"".join(said.data for said in first) + data
            s = self.open[number]
            s.sendall(data)
            self.told += kinds
            while select.select([s], [], [], 0)[0]:
                if not s.recv(1 << 16):
                    raise ConnectionResetError
        except OSError:
            if number in self.open:
                self.open.pop(number).close()
            self.ended += 1

    def close(self):
        with self.one_at_a_time:
            self.closed = True
            for s in self.open.values():
                s.close()
            self.open.clear()


class StolenSecret(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        cls.secret = secrets.token_hex(32).encode()
        file = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()), "secret")
        file.write_bytes(cls.secret)
        file.chmod(0o600)
        flags = ["--cluster-secret-file", file]
        by_tcp = [*flags, "--transport", "tcp", "--threads", 1]
        cls.between = Between(free_port("127.0.0.1", HOST))
        stack.callback(cls.between.close)
        cls.prefill = stack.enter_context(worker("--role", "prefill", *by_tcp))
        cls.decode = stack.enter_context(worker("--role", "decode", "--landing-port", cls.between.port, "--advertise-host", HOST,
                                                "--no-enable-prefix-caching", *by_tcp))
        cls.rpc = port_of(cls.decode).replace(HOST, "127.0.0.1")
        cls.router = stack.enter_context(router(port_of(cls.prefill), "--worker", cls.rpc, "--local-prefill-max-tokens", 8,
                                                "--read-timeout-ms", 4000, "--keep-alive-ms", 2000, *flags))
        cls.front = Front(cls.router)
        cls.front.wait_until(lambda: cls.front.post("/v1/completions", body(0)).status == 200, "it serves")

    def answers(self):
        replies = [self.front.post("/v1/completions", body(i)) for i in range(12)]
        self.assertEqual([reply.status for reply in replies], [200] * len(replies), replies[-1].body)
        return [reply.json()["choices"] for reply in replies]

    def test_what_a_writer_said_is_worth_nothing_a_second_time(self):
        between, front = self.between, self.front
        want = self.answers()
        thief = Thief(between, self.secret)
        self.addCleanup(thief.close)
        with Others(front) as others:
            for old in between.greetings:
                self.greets_in_vain(old)
            for number in list(range(len(between.said))) * 3:
                thief.all_of(number)
            between.heard, between.answered = thief.hear, thief.answered
            self.assertEqual(self.answers(), want)
            between.deaf()
            self.assertEqual(thief.ended, 0, "he is heard to the end")
            self.assertLessEqual({WRITE, OPEN}, set(thief.told))
            thief.close()
            self.assertEqual(self.answers(), want)
        self.assertEqual(others.failures, [])
        self.assertEqual(front.metric("baton_kv_digest_mismatches_total"), 0)
        front.wait_until(lambda: all(front.metric(name) == 0 for name in HELD), "nothing is left")
        for process in (self.prefill, self.decode, self.router):
            self.assertLess(len(re.findall(r"\[(?:warning|error)\]", process.log.read_text())), 60, "few lines")

    def greets_in_vain(self, old):
        with greeting.dial("127.0.0.1", self.between.port) as s:
            s.sendall(old[:GREETING - 32])
            greeting.receive(s, 8 + 1 + 64)
            s.sendall(old[GREETING - 32:])
            self.assertEqual(until_closed(s), b"")

    def test_whoever_falls_silent_is_ended_and_others_are_answered(self):
        landing = [greeting.greeted("127.0.0.1", self.between.port, self.secret, greeting.LANDING) for _ in range(2)]
        landing[1].sendall(self.between.said[0][0].data[:20])
        places = {name: address.split("://")[-1].rsplit(":", 1) for name, address in
                  {"http": self.front.url, "admin": self.front.admin, "grpc": self.front.grpc, "worker": self.rpc}.items()}
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        words = [("http", head, b"HTTP/1.1 408 "), ("http", head + b"Content-Length: 9\r\n\r\n{", b"HTTP/1.1 408 "), ("admin", head, b"HTTP/1.1 408 "),
                 ("grpc", PREFACE[:10], b""), ("grpc", PREFACE, b""), ("grpc", PREFACE + CALL, b""), ("worker", PREFACE[:10], b"")]
        with contextlib.ExitStack() as stack, Others(self.front) as others:
            silent = [(s, "landing", b"") for s in landing]
            for name, word, told in words:
                silent.append((greeting.dial(places[name][0], int(places[name][1])), name, told))
                silent[-1][0].sendall(word)
            for s, name, told in silent:
                with self.subTest(port=name), s:
                    self.assertTrue(until_closed(s).startswith(told))
            before = others.answers
            self.front.wait_until(lambda: others.answers > before + 2, "others are answered")
        self.assertEqual(others.failures, [])
        self.decode.until_logged("landing: 127.0.0.1 is refused: no greeting within 2 s")
        self.router.until_logged("grpc port: a connection of 127.0.0.1 is refused (unfinished-call)")


if __name__ == "__main__":
    unittest.main(verbosity=2)
