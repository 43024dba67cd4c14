"""A network switch in user space: forwards frames between TAP devices, late, not at all, or to nobody, as it is told. What tc's
netem does, for machines whose kernel lacks that module.

    switch.py FD…       the TAP devices; a line on stdin: DELAY_SECONDS LOSS_SHARE FORGET_SECONDS [DEVICE…]
                        DEVICE: indices that are cut off. FORGET: a TCP connection of which nothing came for so long is not known any
                        more, as to the address translators and firewalls of the world: its packets are dropped; 0: never
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
        self.delay, self.loss, self.forget, self.cut, self.random = 0.0, 0.0, 0.0, set(), random.Random(1)
        self.flows = {}  # both ends of a TCP connection -> when a packet of it came

    def configure(self, line):
        delay, loss, forget, *cut = line.split()
        self.delay, self.loss, self.forget, self.cut = float(delay), float(loss), float(forget), set(map(int, cut))

    def forgotten(self, frame, now):
        """Of IPv4; a SYN begins a connection."""
        if frame[12:14] != b"\x08\x00" or frame[23] != 6:
            return False
        tcp = 14 + 4 * (frame[14] & 15)
        flow = frozenset((frame[26:30] + frame[tcp:tcp + 2], frame[30:34] + frame[tcp + 2:tcp + 4]))
        begins = frame[tcp + 13] & 2
        if not begins and self.forget and now - self.flows.get(flow, 0) > self.forget:
            self.flows.pop(flow, None)
            return True
        self.flows[flow] = now
        return False

    def take(self, port, now):
        while True:
            try:
                frame = os.read(self.ports[port], MAX_FRAME)
            except BlockingIOError:
                return
            to, source = frame[:6], frame[6:12]
            self.known[source] = port
            if port in self.cut or self.random.random() < self.loss or self.forgotten(frame, now):
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
