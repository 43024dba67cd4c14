"""A prefill worker that is frozen for ever while it holds the whole landing ring of a decode worker on shared memory stops
nobody else, for ever: what is asked meanwhile and later is answered with the bits of one worker alone."""
import os
import pathlib
import signal
import threading
import time
import unittest

from harness import Cluster, in_parallel
from storm import prompt
from test_disaggregated import HANDOFF, wait_for_memory
from test_flip import workers
from test_metrics import samples, total
from test_promise_a import answer

ASKED = 48
# Of a decode worker: nothing of a handoff is held.
HELD = ["baton_landing_slots_granted", "baton_landing_slots_quarantined", "baton_handoff_tickets", "baton_handoff_reserved_tokens",
        "baton_leaked_kv_blocks"]


def bodies(first, count):
    return [{"model": "tiny-llama", "prompt": prompt(5000 + i, 60), "max_tokens": 12, "temperature": 0.8, "seed": i, "ignore_eos": True}
            for i in range(first, first + count)]


def stop_all_threads(pid):
    """Returns when none of them runs any more: what others do next, it cannot answer."""
    os.kill(pid, signal.SIGSTOP)
    stats = lambda: [path.read_text() for path in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")]
    deadline = time.monotonic() + 10
    while any(stat.rsplit(")", 1)[1].split()[0] != "T" for stat in stats()):
        assert time.monotonic() < deadline, f"process {pid} does not stop"


def stop_while_it_owes(cluster, pid, worker, also=lambda: True):
    """Stops a worker while the router waits for something of it, and `also` is so."""
    def owes():
        return also() and any(w["requests"] for w in workers(cluster) if w["name"] == worker)

    def stands_still():
        if not owes():
            return False
        stop_all_threads(pid)
        if owes() and owes():  # what it had said before is heard
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    cluster.wait_until(stands_still, f"{worker} stands still while it is waited for")


def most_jobs(cluster):
    """Prefill legs that are not over, at the worker that has most."""
    return max((value for labels, value in samples(cluster, "baton_handoff_jobs") if labels["role"] == "prefill"), default=0)


def all_computed(cluster):
    """No prompt waits or is computed: every lane was asked for."""
    return total(cluster, "baton_queue_depth", stage="queue_prefill") + total(cluster, "baton_queue_depth", stage="prefill") == 0


def settled(cluster, ask):
    """What `ask` returns, once the reports tell of KV that moved since and of no leg."""
    moved = lambda: total(cluster, "baton_kv_transfer_bytes_total", role="prefill")
    before, answer = moved(), ask()
    tickets = lambda: total(cluster, "baton_handoff_tickets", role="decode")
    cluster.wait_until(lambda: moved() > before and most_jobs(cluster) == tickets() == 0, "its leg is over in the reports")
    return answer


class FrozenWriter(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.taken = 0
        cls.alone = cls.enterClassContext(Cluster(args=["--threads", 1]))

    def freeze(self, c):
        """Asks, and stops a prefill worker in a moment in which it holds every slot: the worker, the number of the first prompt
        and the threads that ask. Every prompt is new, so that decode has none of them in its cache. Each prefill worker gets half
        of the prompts (by predicted time, one that was frozen before would get too few to fill the ring)."""
        frozen, other = c.workers("prefill")
        (decode,) = c.workers("decode")
        stop, go_on = stop_all_threads, (lambda pid: os.kill(pid, signal.SIGCONT))
        for _ in range(8):  # all of it must be over before the router misses one of the three
            first, got = self.take(), {}
            c.wait_until(lambda: most_jobs(c) == 0, "the reports tell of no leg of before", 20)
            stop(frozen), stop(other)  # legs wait in their sockets, and decode gives tickets
            asking = [threading.Thread(target=lambda i=i, b=b: got.__setitem__(i, answer(c, b))) for i, b in enumerate(bodies(first, ASKED))]
            for thread in asking:
                thread.start()
            full, why = False, ""
            try:
                c.wait_until(lambda: total(c, "baton_handoff_tickets", role="decode") == ASKED, "every request has a ticket", 2)
                stop(decode), go_on(frozen)  # its Opens wait in decode's socket
                c.wait_until(lambda: most_jobs(c) >= self.tickets and all_computed(c), "one has asked for more than the whole ring", 2)
                stop(frozen), go_on(decode)  # the other would have its share
                c.wait_until(lambda: total(c, "baton_landing_slots_free", role="decode") == 0, "its lanes hold every slot", 2)
                full = total(c, "baton_worker_up") == 3
                why = "a worker was missed before"
                go_on(other)
            except AssertionError as e:
                why = str(e).splitlines()[0]
            if full:
                return frozen, first, got, asking
            go_on(decode), go_on(frozen), go_on(other)
            for thread in asking:
                thread.join()
        self.fail(f"the ring was never full: {why}")

    def take(self):
        """The number of the first of some new prompts."""
        self.taken += ASKED
        return self.taken - ASKED

    def right(self, first):
        return in_parallel([lambda b=b: answer(self.alone, b) for b in bodies(first, ASKED)])

    def round(self, c, name):
        frozen, first, got, asking = self.freeze(c)
        started = time.monotonic()
        for thread in asking:
            thread.join(max(0, started + 40 - time.monotonic()))
        self.assertEqual(len(got), ASKED, f"{name}: answered in {time.monotonic() - started:.1f} s\n{c.log.read_text()[-3000:]}")
        print(f"    {name}: {ASKED} answers in {time.monotonic() - started:.1f} s", flush=True)
        self.assertEqual([got[i] for i in range(ASKED)], self.right(first), name)
        c.wait_until(lambda: not any(total(c, held, role="decode") for held in HELD), f"{name}: memory is back", 12)
        self.assertGreater(total(c, "baton_handoff_rings_written_off_total"), 0)
        for state in "frozen", "on again":
            if state == "on again":
                os.kill(frozen, signal.SIGCONT)
                c.wait_until(lambda: total(c, "baton_worker_up") == 3, "it is back", 20)
            first = self.take()
            later = in_parallel([lambda b=b: answer(c, b) for b in bodies(first, ASKED)])
            self.assertEqual(later, self.right(first), f"{name}, while it is {state}")
        wait_for_memory(c, f"{name}: the frozen worker goes on")

    def check(self, tickets, *more):
        """`tickets`: that take the whole ring."""
        self.tickets = tickets
        with Cluster(args=["--prefill", 2, "--decode", 1, "--threads", 1, "--route-policy", "round-robin", *HANDOFF, *more]) as c:
            try:
                for name in "the first", "once more":  # it goes on, and is frozen again
                    self.round(c, name)
            finally:
                for pid in [*c.workers("prefill"), *c.workers("decode")]:
                    os.kill(pid, signal.SIGCONT)

    def test_with_default_flags(self):
        self.check(16)

    def test_with_a_small_ring(self):
        self.check(2, "--landing-slots", 2, "--landing-slot-bytes", 65536)


if __name__ == "__main__":
    unittest.main(verbosity=2)
