#!/usr/bin/env python3
"""An OpenAI server that computes nothing: each completion is streamed on a schedule of its own, a token every --gap ms after
the first at --first ms, whatever else is asked meanwhile. What a load generator says of it can be held against what is known.

  timed_stub.py [--port 0] [--first 50] [--gap 10]

Prints "port N" once it listens. Input tokens are the prompt's words; output tokens are max_tokens.
"""
import argparse
import asyncio
import json

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value):
    return chunk(b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n")


TOKEN = event({"id": "stub", "object": "text_completion", "model": "stub",
               "choices": [{"index": 0, "text": " word", "finish_reason": None}]})
LAST = event({"id": "stub", "object": "text_completion", "model": "stub",
              "choices": [{"index": 0, "text": " word", "finish_reason": "length"}]})


class Connection(asyncio.Protocol):
    first = gap = 0.0

    def connection_made(self, transport):
        self.transport, self.buffer = transport, b""

    def data_received(self, data):
        self.buffer += data
        while True:
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
            if len(rest) < length:
                return
            self.buffer = rest[length:]
            self.answer(head.split(b" ", 2)[1], rest[:length])

    def answer(self, path, body):
        if path != b"/v1/completions":
            text = json.dumps({"object": "list", "data": [{"id": "stub", "object": "model"}]}).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
            return
        asked = json.loads(body)
        tokens, prompt = asked["max_tokens"], asked["prompt"]
        words = len(prompt) if isinstance(prompt, list) else len(prompt.split())
        end = event({"id": "stub", "object": "text_completion", "model": "stub", "choices": [],
                     "usage": {"prompt_tokens": words, "completion_tokens": tokens, "total_tokens": words + tokens}})
        end += chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time() + self.first, self.write, loop.time() + self.first, HEAD, tokens, end)

    def write(self, due, before, left, end):
        if self.transport.is_closing():
            return
        if left == 1:
            self.transport.write(before + LAST + end)
            return
        self.transport.write(before + TOKEN)
        due += self.gap  # by the schedule, not by when the last one was written
        asyncio.get_running_loop().call_at(due, self.write, due, b"", left - 1, end)


async def serve(args):
    Connection.first, Connection.gap = args.first / 1e3, args.gap / 1e3
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", args.port, backlog=4096)
    print("port", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--port", type=int, default=0)
    p.add_argument("--first", type=float, default=50, help="ms to the first token")
    p.add_argument("--gap", type=float, default=10, help="ms between tokens")
    try:
        asyncio.run(serve(p.parse_args()))
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
