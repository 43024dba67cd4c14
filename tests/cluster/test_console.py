"""The event stream, `baton top` and the console before a real prefill and decode worker."""
import contextlib
import http.client
import json
import os
import pathlib
import pty
import signal
import struct
import subprocess
import tempfile
import threading
import time
import unittest
from urllib.parse import urlparse

from browser import CHROMIUM, Browser
from harness import BATON, ROOT, Cluster, in_parallel, run
from storm import prompt
from test_disaggregated import PAIR

RECORDING = ROOT / "tests" / "data" / "console" / "pair.jsonl"
ORDER = ["received", "tokenized", "placed", "reserving", "reserved", "prefill", "prefilled", "first_token", "transfer", "finished"]


def completion(seed=0, words=90, **fields):
    return {"model": "tiny-llama", "prompt": prompt(seed, words), "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}


@contextlib.contextmanager
def listening(cluster):
    """(events so far, wait for one that fits): a reader of /events on a thread of its own."""
    where = urlparse(cluster.admin)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    assert answer.status == 200 and answer.getheader("Content-Type") == "text/event-stream", answer.status
    events = []

    def read():
        with contextlib.suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
            for line in iter(answer.fp.readline, b""):
                if line.startswith(b"data: "):
                    events.append(json.loads(line[6:]))

    thread = threading.Thread(target=read)
    thread.start()

    def wait(fits, what):
        found = lambda: next((e for e in list(events) if fits(e)), None)
        cluster.wait_until(found, what)
        return found()

    try:
        yield events, wait
    finally:
        connection.sock.shutdown(2)
        thread.join()
        connection.close()


# Of the numbers on top, those whose label and what stands beside it share some place.
COVERED = """[...document.querySelectorAll('.number')].filter(card => {
  const aside = card.querySelector('.aside'), words = document.createRange();
  if (!aside) return false;
  words.selectNodeContents(card.querySelector('.label'));
  const a = words.getBoundingClientRect(), b = aside.getBoundingClientRect();
  return a.right > b.left && b.right > a.left && a.bottom > b.top && b.bottom > a.top;
}).map(card => card.textContent)"""


class Console(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(args=PAIR).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__(None, None, None)

    def test_a_requests_events_come_in_order_and_its_stages_are_those_of_the_answer(self):
        c = self.cluster
        with listening(c) as (events, wait):
            wait(lambda e: e["event"] == "state" and e["links"], "the prefill worker has met the decode worker")
            answer = c.post("/v1/completions", completion(1))
            said = answer.json()
            end = wait(lambda e: e.get("stage") == "finished" and e["id"].startswith(answer.headers["X-Request-Id"]), "the request's end")
            mine = [e for e in events if e.get("id") == end["id"] and e["stage"] != "tokens"]
            self.assertEqual([e["stage"] for e in mine], ORDER)
            times = [e["at_ms"] for e in mine]
            self.assertEqual(times, sorted(times))
            self.assertEqual(end["timings"], said["timings"])
            self.assertLessEqual(sum(said["timings"][k] for k in ("queue_prefill_ms", "prefill_ms", "transfer_ms", "queue_decode_ms", "decode_ms")),
                                 end["at_ms"] * 1.05 + 5, "the stages are within the request")
            self.assertEqual([m[0] for m in end["marks"]], ORDER[:-1])
            self.assertEqual((end["prefill_worker"], end["worker"]), ("prefill-0", "decode-0"))
            transfer = end["transfer"]
            self.assertEqual(transfer["bytes"] % said["usage"]["prompt_tokens"], 0, "whole tokens' KV")
            self.assertIn(transfer["transport"], ("shm", "tcp", "ucx-shm"))
            self.assertGreater(transfer["self_test_gigabytes_per_second"], 0)
            why = next(e for e in mine if e["stage"] == "placed")["why"]
            self.assertTrue(any(o["chosen"] for o in why["options"]))
            state = wait(lambda e: e["event"] == "state" and e["workers"][0].get("steps_per_s") is not None, "a state with rates")
            self.assertEqual({w["role"] for w in state["workers"]}, {"prefill", "decode"})
            self.assertEqual(state["links"][0]["from"], "prefill-0")
            self.assertGreater(state["workers"][0]["kv"]["blocks"], 0)

    def test_top_prints_a_frame_records_and_shows_its_recording(self):
        c = self.cluster
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory) / "run.jsonl"
            recorder = subprocess.Popen([str(BATON), "top", "--url", c.admin, "--record", str(file), "--seconds", "20"], stdin=subprocess.DEVNULL)
            c.wait_until(lambda: file.exists() and file.stat().st_size > 0, "the recording begins")
            self.assertEqual({r.status for r in in_parallel([lambda i=i: c.post("/v1/completions", completion(i)) for i in range(4)])}, {200})
            c.wait_until(lambda: file.read_text().count('"stage":"finished"') >= 4, "four ends are recorded")
            recorder.send_signal(signal.SIGINT)
            self.assertEqual(recorder.wait(30), 0)
            once = run(["top", "--url", c.admin, "--once"])
            self.assertEqual((once.returncode, once.stderr), (0, ""))
            for text in (once.stdout, run(["top", "--replay", file, "--once"]).stdout):
                for word in ("tiny-llama", "prefill-0", "decode-0", "KV LINK", "FINISHED", "length", "ready"):
                    self.assertIn(word, text)
                self.assertNotIn("\x1b", text, "no terminal, no escape codes")

    def test_top_takes_a_terminal_follows_its_size_and_leaves_with_q(self):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execv(str(BATON), [str(BATON), "top", "--url", self.cluster.admin, "--interval-ms", "50"])
        shown = b""

        def read_until(word):
            nonlocal shown
            deadline = time.monotonic() + 20
            while word not in shown:
                self.assertLess(time.monotonic(), deadline, shown[-500:])
                shown += os.read(terminal, 65536)

        import fcntl
        import termios
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        read_until(b"decode-0")
        self.assertTrue(shown.startswith(b"\x1b[?1049h"), "the other screen")
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 3, 20, 0, 0))
        rows, deadline = 30, time.monotonic() + 20
        while rows > 3:  # the first frames that come may have been drawn before the terminal shrank
            self.assertLess(time.monotonic(), deadline, f"{rows} rows where there are three")
            read_until(b"\x1b[J")
            frame, shown = shown.split(b"\x1b[J", 1)
            rows = frame.rsplit(b"\x1b[H", 1)[1].count(b"\r\n") + 1
        os.write(terminal, b"q")
        read_until(b"\x1b[?1049l")
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        os.close(terminal)

    @unittest.skipUnless(CHROMIUM, "no Chromium is installed (apt-get install chromium)")
    def test_the_page_draws_a_live_cluster_and_its_playground_answers(self):
        c = self.cluster
        with Browser() as b:
            b.open(c.admin + "/console")
            b.wait("typeof model !== 'undefined' && model.state && document.querySelectorAll('#cluster svg g').length >= 3", "router and two workers are drawn")
            c.post("/v1/completions", completion(7))
            b.wait("[...model.requests.values()].some(r => r.finished && r.prefill_worker) && document.querySelectorAll('#waterfall rect').length >= 5", "a waterfall")
            b.run("$('prompt').value = 'Hello'; $('max-tokens').value = 5; ask(); 0")
            b.wait("$('pace').textContent.includes('tokens') && !talk.stop && $('answer').textContent.length > 0", "the playground's answer and its pace")
            b.run("showPace({began: 0, first: 100, last: 100.2, chunks: 2, tokens: 11, timings: {first_decode_ms: 20, decode_ms: 80}}, true); 0")
            self.assertEqual(b.run("$('pace').textContent"), "first token 100 ms · 11 tokens · 100 tokens/s", "what comes at once was drawn before")
            b.press("?")
            self.assertTrue(b.run("$('keys').open"))
            self.assertEqual(b.problems, [])

    @unittest.skipUnless(CHROMIUM, "no Chromium is installed (apt-get install chromium)")
    def test_the_page_shows_a_recording_wide_and_narrow_light_and_dark(self):
        text = json.dumps(RECORDING.read_text())
        for width, dark in ((1280, False), (768, False), (390, True), (320, False)):
            with self.subTest(width=width), Browser(width=width, dark=dark) as b:
                b.open(self.cluster.admin + "/console")
                b.wait("typeof openRecording !== 'undefined' && model.state", "the page is there")
                b.run(f"openRecording({text}); player.running = false; seek(player.ended); 0")
                self.assertNotIn("cut", b.wait("$('played').textContent", "how far it is"))
                b.wait("document.querySelectorAll('.request[role=option]').length >= 10 && document.querySelectorAll('#waterfall rect').length >= 5", "the recording's requests")
                self.assertLessEqual(b.run("document.documentElement.scrollWidth"), width, "nothing is wider than the page")
                self.assertEqual(b.run(COVERED), [], "a number's words cover each other")
                self.assertEqual(b.run("document.documentElement.dataset.theme"), "dark" if dark else "light")
                b.run(f"openRecording({text}.trimEnd().slice(0, -9)); player.running = false; seek(player.ended); 0")
                b.wait(f"$('played').textContent.endsWith(': line {len(RECORDING.read_text().splitlines())} is cut')", "a recording that ends in the middle of a line")
                self.assertEqual(b.run("window.alert = text => { window.said = text; }; openRecording('{\"event\": \"state\", \"t\": 1}'); window.said"),
                                 "Line 1 of the recording: it is no state")
                self.assertEqual(b.problems, [])


class TopAlone(unittest.TestCase):
    def test_a_dead_server_a_wrong_port_and_a_broken_recording_are_said_at_once(self):
        dead = run(["top", "--url", "http://127.0.0.1:9", "--once"], timeout=10)
        self.assertEqual(dead.returncode, 6, dead.stderr)
        self.assertIn("127.0.0.1:9", dead.stderr)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as broken:
            broken.write(RECORDING.read_text().splitlines()[0] + "\nnot json\n")
            broken.flush()
            said = run(["top", "--replay", broken.name])
            self.assertEqual(said.returncode, 3)
            self.assertIn(f"{broken.name}:2:", said.stderr)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as cut:
            cut.write(RECORDING.read_text().rstrip()[:-9])
            cut.flush()
            shown = run(["top", "--replay", cut.name, "--once"])
            self.assertEqual((shown.returncode, shown.stderr), (0, ""))
            self.assertIn("decode-0", shown.stdout)
            self.assertIn(f"line {len(RECORDING.read_text().splitlines())} of the recording is cut\n", shown.stdout)
        self.assertEqual(run(["top", "--replay", "/nowhere"]).returncode, 3)

    def test_the_apis_port_is_said_to_be_the_wrong_one(self):
        with Cluster() as c:
            wrong = run(["top", "--url", c.url, "--once"])
            self.assertEqual(wrong.returncode, 2, wrong.stderr)
            self.assertIn("--admin-port", wrong.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
