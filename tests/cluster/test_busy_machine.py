"""A machine that has no time for a grammar: the client hears so (429), and has its answer when it asks again, beside streams that go on as
if nothing were. The cluster has one core, and shares it with processes that want all of it."""
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

from harness import Cluster
from token_index import Stream

MODEL = "tiny-llama"
BURNING = 20  # beside them what stands back has some 0.5 % of the core: 20 ms of the 3.8 s after which a client hears of it
VALUES = [f"Größe № {i} щит и меч" for i in range(10_000)]  # some 100 ms of a core
GRAMMAR = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "guided_json": {"enum": VALUES}, "max_tokens": 100, "seed": 3}


def on_one_core(pid, core):
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task), {core})


@contextlib.contextmanager
def burning(core):
    """Ends when all of them have ended."""
    all_of_them = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BURNING)]
    try:
        for one in all_of_them:
            on_one_core(one.pid, core)
        yield
    finally:
        for one in all_of_them:
            one.send_signal(signal.SIGKILL)
            one.wait()


class BusyMachine(unittest.TestCase):
    def test_a_grammar_that_had_no_time_is_served_when_it_is_asked_again(self):
        core = max(os.sched_getaffinity(0))
        bodies = [{"model": MODEL, "prompt": f"{i}. The quick brown fox", "max_tokens": 1500, "ignore_eos": True, "seed": i, "stream": True,
                   "stream_options": {"include_usage": True}} for i in range(4)]
        with Cluster(args=["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 2]) as c:
            want = [Stream(c, body) for body in bodies]
            for stream in want:
                stream.run()
            for pid in [c.process.pid, *c.children()]:
                on_one_core(pid, core)
            begun = [threading.Event() for _ in bodies]
            streams = [Stream(c, body, lambda count, event=event: event.set()) for body, event in zip(bodies, begun)]
            threads = [threading.Thread(target=stream.run) for stream in streams]
            for thread in threads:
                thread.start()
            for event in begun:
                self.assertTrue(event.wait(60))
            with burning(core):
                first = c.post("/v1/chat/completions", GRAMMAR)
            self.assertEqual(first.status, 429, first.body)
            error = first.json()["error"]
            self.assertIn("`guided_json` has had ", error["message"])
            self.assertEqual((error["type"], int(first.headers["Retry-After"])), ("rate_limit_error", 1), first.body)
            replies = [first]
            while (reply := replies[-1]).status == 429 and len(replies) < 60:
                time.sleep(int(reply.headers["Retry-After"]))  # as a client does
                replies.append(c.post("/v1/chat/completions", GRAMMAR))
            self.assertEqual(reply.status, 200, reply.body)
            self.assertIn(json.loads(reply.json()["choices"][0]["message"]["content"]), VALUES)
            for thread in threads:
                thread.join()
            self.assertEqual([stream.seen() for stream in streams], [stream.seen() for stream in want])
            print(f"\n    {len(replies)} times asked; {error['message']}", flush=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
