"""A network switch in user space: forwards frames between TAP devices, late, not at all, or to nobody, as it is told. What tc's
netem does, for machines whose kernel lacks that module.

    switch.py FD…       the TAP devices; a line on stdin: DELAY_SECONDS LOSS_SHARE [DEVICE…]   (indices that are cut off)
"""
import heapq
import os
import random
import select
import sys

MAX_FRAME = 1 << 16


class Switch:
    def __init__(self, ports):
        self.ports, self.known, self.due, self.number = ports, {}, [], 0
        self.delay, self.loss, self.cut, self.random = 0.0, 0.0, set(), random.Random(1)

    def configure(self, line):
        delay, loss, *cut = line.split()
        self.delay, self.loss, self.cut = float(delay), float(loss), set(map(int, cut))

    def take(self, port, now):
        while True:
            try:
                frame = os.read(self.ports[port], MAX_FRAME)
            except BlockingIOError:
                return
            to, source = frame[:6], frame[6:12]
            self.known[source] = port
            if port in self.cut or self.random.random() < self.loss:
                continue
            targets = [self.known[to]] if to in self.known else [p for p in range(len(self.ports)) if p != port]
            if self.delay == 0:
                self.deliver(targets, frame)
            else:
                self.number += 1
                heapq.heappush(self.due, (now + self.delay, self.number, targets, frame))

    def deliver(self, targets, frame):
        for port in targets:
            if port not in self.cut:
                try:
                    os.write(self.ports[port], frame)
                except OSError:
                    pass  # its queue is full, or it is down: a lost frame

    def run(self, clock):
        for port in self.ports:
            os.set_blocking(port, False)
        index = {fd: i for i, fd in enumerate(self.ports)}
        while True:
            wait = None if not self.due else max(0.0, self.due[0][0] - clock())
            ready, _, _ = select.select([sys.stdin, *self.ports], [], [], wait)
            now = clock()
            while self.due and self.due[0][0] <= now:
                self.deliver(*heapq.heappop(self.due)[2:])
            for source in ready:
                if source is not sys.stdin:
                    self.take(index[source], now)
                    continue
                line = sys.stdin.readline()
                if not line:
                    return
                self.configure(line)
                print("ok", flush=True)


if __name__ == "__main__":
    import time
    Switch([int(fd) for fd in sys.argv[1:]]).run(time.monotonic)
