"""A person at a terminal, and a server that answers as it is told: what `baton chat` is tested between."""
import fcntl
import http.server
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
import unicodedata

BATON = os.environ["BATON_BINARY"]
WAIT_SECONDS = 20


class Server:
    """OpenAI's API with one model, "demo". Each question is kept; `pieces` is what the next answers are made of."""

    def __init__(self):
        self.questions, self.pieces, self.finish, self.phase, self.broken = [], ["fine"], "stop", "", threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def send(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                if self.path == "/v1/models":
                    self.send(200, {"data": [{"id": "demo"}]})
                elif self.path == "/ready":
                    self.send(503 if outer.phase else 200, {"status": "x", "phase": outer.phase})
                else:
                    self.send(404, {"error": {"message": f"no {self.path}"}})

            def do_POST(self):
                question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.questions.append(question)
                self.close_connection = True
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                try:
                    for piece in outer.pieces:
                        if piece is None:  # an answer that does not end by itself
                            while self.connection.recv(1):
                                pass
                            raise BrokenPipeError
                        self.event({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
                    self.event({"choices": [{"delta": {}, "finish_reason": outer.finish}]})
                    self.event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
                    self.wfile.write(b"data: [DONE]\n\n")
                except OSError:
                    outer.broken.set()

            def event(self, data):
                self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")
                self.wfile.flush()

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda *_: None  # a client that leaves
        self.address = f"127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


class Screen:
    """The rows that a terminal shows, for the sequences that a line editor sends to an xterm."""

    def __init__(self, columns=80):
        self.columns, self.rows, self.row, self.column, self.pending = columns, [[]], 0, 0, ""

    def feed(self, text):
        self.pending += text
        while self.pending:
            if self.pending[0] == "\x1b":
                found = re.match(r"\x1b\[[?>]?([0-9;]*)([@-~])|\x1b[()=>][0-9B]?|\x1b[=>78M]", self.pending)
                if not found:
                    return
                self.pending = self.pending[found.end():]
                if found.group(2):
                    self.control(found.group(2), int(found.group(1).split(";")[0] or 1) if found.group(0)[2] not in "?>" else 0)
            else:
                self.put(self.pending[0])
                self.pending = self.pending[1:]

    def line(self):
        while len(self.rows) <= self.row:
            self.rows.append([])
        row = self.rows[self.row]
        row += [" "] * (self.column - len(row))
        return row

    def control(self, what, n):
        row = self.line()
        if what == "C":
            self.column += n
        elif what == "D":
            self.column = max(0, self.column - n)
        elif what == "G":
            self.column = n - 1
        elif what == "A":
            self.row = max(0, self.row - n)
        elif what == "B":
            self.row += n
        elif what == "K":
            del row[self.column:]
        elif what == "P":
            del row[self.column:self.column + n]
        elif what == "@":
            row[self.column:self.column] = [" "] * n
        elif what == "J":
            del row[self.column:]
            del self.rows[self.row + 1:]

    def put(self, c):
        if c == "\r":
            self.column = 0
        elif c == "\n":
            self.row += 1
        elif c == "\b":
            self.column = max(0, self.column - 1)
        elif c >= " ":
            width = 2 if unicodedata.east_asian_width(c) in "WF" else 1
            if self.column + width > self.columns:
                self.row, self.column = self.row + 1, 0
            row = self.line()
            row[self.column:self.column + width] = [c] + [""] * (width - 1)
            self.column += width

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.rows).rstrip()


class Terminal:
    """`baton chat` on a terminal of its own."""

    def __init__(self, *args, env=None):
        self.screen, self.raw = Screen(), b""
        pid, self.fd = pty.fork()
        if pid == 0:
            os.environ.update({"TERM": "xterm", **(env or {})})
            os.execv(BATON, [BATON, "chat", *args])
        self.pid, self.code = pid, None
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def type(self, text):
        os.write(self.fd, text.encode() if isinstance(text, str) else text)

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            return False
        self.raw += data
        end = len(self.raw)
        while end and self.raw[end - 1] & 0xc0 == 0x80 and len(self.raw) - end < 3:
            end -= 1
        if end and self.raw[end - 1] >= 0xc0:
            end -= 1  # the rest of a character is still to come
        else:
            end = len(self.raw)
        self.screen.feed(self.raw[:end].decode())
        self.raw = self.raw[end:]
        return True

    def wait(self, condition, what):
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"{what}; the screen:\n{self.screen.text()}"
            self.read(0.1)

    def shows(self, text):
        self.wait(lambda: text in self.screen.text(), f"never shown: {text!r}")

    def ends_with(self, text):
        self.wait(lambda: self.screen.text().endswith(text), f"does not end with {text!r}")

    def signal(self, number):
        os.kill(self.pid, number)

    def end(self):
        """The exit code."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                return self.code
            assert time.monotonic() < deadline, f"does not end; the screen:\n{self.screen.text()}"

    def close(self):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


def chat(*args, stdin=""):
    return subprocess.run([BATON, "chat", *args], input=stdin, capture_output=True, text=True, timeout=WAIT_SECONDS)
