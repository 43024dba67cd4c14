"""The log of a running cluster in JSON: every line of every process is one object, and a request is one line with its ids, stages and, of a
failure, the cause."""
import json
import os
import signal
import unittest

from harness import Cluster, not_reading
from storm import prompt

TO_FIRST_TOKEN = ["router_ms", "lost_ms", "reserve_ms", "queue_prefill_ms", "prefill_ms", "network_ms"]


def body(seed, **fields):
    return {"model": "tiny-llama", "prompt": prompt(seed, 60), "max_tokens": 8, "temperature": 0, "ignore_eos": True, **fields}


class Logs(unittest.TestCase):
    def lines(self, c):
        """Objects; `baton serve` itself says what it says to people."""
        return [json.loads(line) for line in c.log.read_text().splitlines() if line.startswith("{")]

    def of_requests(self, c, count):
        c.wait_until(lambda: len([o for o in self.lines(c) if "request_id" in o]) >= count, f"{count} lines of requests")
        return [o for o in self.lines(c) if "request_id" in o]

    def test_a_request_is_one_line_with_ids_stages_and_cause(self):
        with Cluster(args=["--prefill", 1, "--decode", 1, "--local-prefill-max-tokens", 8, "--log-format", "json"]) as c:
            answers = [c.post("/v1/completions", body(n)).json() for n in range(3)]
            with not_reading(c, body(9, max_tokens=1500, stream=True, n=8)) as client:
                client.recv(1000)
            found = self.of_requests(c, 4)
            self.assertEqual([o["finish_reason"] for o in found], ["length"] * 3 + ["abort"])
            for answer, line in zip(answers, found):
                self.assertTrue(line["request_id"].startswith(answer["id"].split("-")[1]), line)
                self.assertEqual((line["prompt_tokens"], line["completion_tokens"], line["cause"], line["attempts"]),
                                 (answer["usage"]["prompt_tokens"], 8, "", 1))
                self.assertEqual((line["prefill_worker"], line["worker"], line["process"]), ("prefill-0", "decode-0", "router"))
                self.assertTrue(all(line[stage] > 0 for stage in ("prefill_ms", "transfer_ms", "first_decode_ms", "decode_ms")), line)
                first = sum(line[stage] for stage in TO_FIRST_TOKEN)
                self.assertAlmostEqual(first, line["first_token_ms"], delta=0.1, msg="they add up")
            processes = {o["process"] for o in self.lines(c)}
            self.assertLessEqual({"router", "prefill-0", "decode-0"}, processes)

    def test_a_failure_says_its_cause_in_its_line(self):
        with Cluster(args=["--both", 1, "--log-format", "json", "--failover-wait-ms", 100]) as c:
            with not_reading(c, body(1, max_tokens=1500, stream=True, n=8)) as client:
                client.recv(1000)
                os.kill(c.workers("both")[0], signal.SIGKILL)
                (line,) = self.of_requests(c, 1)
            self.assertEqual((line["finish_reason"], line["level"]), ("error", "warning"))
            self.assertTrue(line["cause"], line)

    def test_a_full_disk_takes_lines_and_no_requests(self):
        with open("/dev/full", "w") as full, Cluster(args=["--both", 1], output=full) as c:
            lost = lambda: c.metric("baton_log_lines_lost_total")
            before = lost()
            self.assertGreater(before, 0)
            self.assertEqual([c.post("/v1/completions", body(n)).status for n in range(5)], [200] * 5)
            c.wait_until(lambda: lost() >= before + 5, "a line of each request is lost")
            said = [line for line in c.log.read_text().splitlines() if "cannot write the log" in line]
            self.assertEqual(set(said), {"baton: cannot write the log to standard output: No space left on device; lines are lost until it can be written"})
            self.assertLessEqual(len(said), 3, "once each: router, worker, and who started them")

    def test_a_reader_of_the_log_who_left_takes_no_requests(self):
        reads, writes = os.pipe()
        with open(writes, "w") as pipe, Cluster(args=["--both", 1], output=pipe) as c:
            os.close(reads)
            self.assertEqual([c.post("/v1/completions", body(n)).status for n in range(3)], [200] * 3)
            c.wait_until(lambda: c.metric("baton_log_lines_lost_total") >= 3, "a line of each request is lost")
            self.assertIn("cannot write the log to standard output: Broken pipe", c.log.read_text())

    def test_a_log_that_is_closed_is_no_other_file(self):
        closed = lambda: os.close(1)
        with Cluster(args=["--both", 1], preexec=closed) as c:
            for pid in [c.process.pid, *c.children()]:
                self.assertEqual(os.readlink(f"/proc/{pid}/fd/1"), "/dev/null")
            self.assertEqual(c.post("/v1/completions", body(0)).status, 200)


if __name__ == "__main__":
    unittest.main()
