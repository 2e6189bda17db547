"""A worker written from docs/protocol.md alone: cbor2 and the standard library.

Started by ``worker_command``, it answers every dispatch with its request's input, the
number of the dispatch and what it was told at its start, until it is retired.  Inputs
``{"do": ...}`` make it misbehave.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time

import cbor2

HELLO, BROKEN, BEAT, OUTCOME, ANNOUNCED = 64, 65, 66, 67, 70
DISPATCH, STOP, CHANGED, RETIRE, START, FETCH = 80, 81, 82, 83, 84, 85
MORE, LONG = 1, 2
MOST_NUMBERS = 65_536
MALFORMED = (cbor2.CBORError, ValueError, TypeError, LookupError)


def numbers(spans):
    pairs = list(zip(spans[::2], spans[1::2], strict=True))
    if sorted(set(spans)) != spans or sum(b - a for a, b in pairs) > MOST_NUMBERS:
        raise ValueError("no spans, or too many numbers")
    return {n for a, b in pairs for n in range(a, b)}


def spans(members):
    edges = [n for n in members if n - 1 not in members]
    return sorted(edges + [n + 1 for n in members if n + 1 not in members])


def rows(sizes, *columns_and_bodies):
    """The rows of a batch: each its fields, and its body."""
    *columns, bodies = columns_and_bodies
    if sizes is None:
        return [(columns, bodies)]
    if not 0 < len(sizes) <= 64 or sum(sizes) != len(bodies):
        raise ValueError("no batch")
    found = []
    for row, size in enumerate(sizes):
        if any(isinstance(each, list) and len(each) != len(sizes) for each in columns):
            raise ValueError("columns of other lengths")
        fields = [each[row] if isinstance(each, list) else each for each in columns]
        found.append((fields, bodies[:size]))
        bodies = bodies[size:]
    return found


class Link:
    """Messages over the first descriptor."""

    def __init__(self, descriptor):
        self.socket = socket.socket(fileno=descriptor)
        self.stream = self.socket.makefile("rb")

    def send(self, *frames):
        data = b""
        for index, frame in enumerate(frames):
            more = MORE if index < len(frames) - 1 else 0
            if len(frame) < 256:
                data += bytes([more, len(frame)]) + frame
            else:
                data += bytes([more | LONG]) + len(frame).to_bytes(8, "big") + frame
        self.socket.sendall(data)

    def receive(self):
        frames, more = [], 1
        while more:
            flags = self.stream.read(1)
            if not flags:
                sys.exit("the server is gone")
            size = int.from_bytes(self.stream.read(8 if flags[0] & LONG else 1), "big")
            frames.append(self.stream.read(size))
            more = flags[0] & MORE
        return frames

    def has_more(self, wait_s):
        # What the file object holds already is not seen by select.
        self.socket.setblocking(False)
        try:
            held = self.stream.peek(1)
        finally:
            self.socket.setblocking(True)
        return bool(held) or bool(select.select([self.socket], [], [], wait_s)[0])


def live(descriptor, heartbeat_s):
    """The heartbeat thread, which ends the process with its server."""
    signs = socket.socket(fileno=descriptor)
    while True:
        signs.sendall(b'{"lag_s": 0.0, "memory_bytes": 0, "where": ""}\n')
        if select.select([signs], [], [], heartbeat_s)[0] and not signs.recv(1024):
            os.kill(os.getpid(), signal.SIGKILL)


def refusal(code, message):
    return {"code": code, "verdict": "DID_NOT_RUN", "message": message}


class RawWorker:
    def __init__(self):
        self.link = Link(int(os.environ["TRIO_ENVSERVE_LINK_FD"]))
        self.incarnation, header, body = self.link.receive()
        kind, _, self.worker = cbor2.loads(header)[:3]
        assert kind == START
        self.told = cbor2.loads(body)
        self.beat_s = self.told["limits"]["beat_s"]
        signs = int(os.environ["TRIO_ENVSERVE_SIGNS_FD"])
        if not self.told["args"].get("silent"):
            heartbeat_s = self.told["limits"]["heartbeat_s"]
            threading.Thread(target=live, args=(signs, heartbeat_s), daemon=True).start()
        self.epoch, self.received, self.sent = b"", 0, 0
        self.held = {}
        """Frames and announcement of each announced outcome."""

    def say(self, *header):
        self.send(self.incarnation, cbor2.dumps(header))

    def send(self, *frames):
        self.sent += 1
        self.link.send(*frames)

    def run(self):
        if self.told["args"].get("broken"):
            self.say(BROKEN, {"message": "there is no data"})
            sys.exit(3)
        self.hello()
        beat_at = 0.0
        while True:
            if time.monotonic() >= beat_at:
                self.beat()
                beat_at = time.monotonic() + self.beat_s
            if not self.link.has_more(self.beat_s):
                continue
            incarnation, *frames = self.link.receive()
            if incarnation == self.incarnation:
                with contextlib.suppress(*MALFORMED):
                    self.take(*frames)

    def hello(self):
        capacity = self.told["limits"]["worker_capacity"] or 8
        self.say(HELLO, 2, os.getpid(), "raw", False, capacity, self.epoch)

    def beat(self):
        beat = [BEAT, self.epoch, self.received, self.sent, spans(self.held), {}]
        self.link.send(self.incarnation, cbor2.dumps(beat))

    def take(self, header, *body):
        kind, *fields = cbor2.loads(header)
        if len(body) != (kind == DISPATCH):
            raise ValueError("a frame is missing, or too many")
        if kind == RETIRE:
            sys.exit()
        if kind == DISPATCH:
            for row, one in rows(*fields, body[0]):
                self.received += 1
                self.execute(one, *row)
            return
        self.received += 1
        if kind == CHANGED:
            self.epoch, self.received, self.sent = fields[0], 0, 0
            self.hello()
            for _, announcement in self.held.values():
                self.say(*announcement)
            self.beat()
        elif kind == FETCH:
            self.fetch(numbers(fields[0]), numbers(fields[1]))

    def execute(self, body, session, sequence, number, client, traceparent=None, late_s=None):
        try:
            asked, status = cbor2.loads(body)["input"], 0
        except MALFORMED:
            asked, status = None, 1
        match asked:
            case {"do": "break the framing"}:
                self.link.socket.sendall(b"no frame at all")
                return
            case {"do": "close the link"}:
                self.link.stream.close()
                self.link.socket.close()
                time.sleep(1000)
            case {"do": "send signs", "line": str(line)}:
                os.write(int(os.environ["TRIO_ENVSERVE_SIGNS_FD"]), line.encode())
            case {"do": "speak as others", "incarnations": list(known)}:
                forged = cbor2.dumps([BEAT, b"", 0, 0, [], {"forged": 1}])
                for other in known:
                    if other != self.incarnation:
                        self.link.send(other, forged)
            case {"do": "tell"}:
                asked = {
                    "worker": self.worker, "environment": self.told["environment"],
                    "args": self.told["args"], "pid": os.getpid(), "group": os.getpgid(0),
                    "pipe": signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN,
                    "lock": os.readlink(f"/proc/self/fd/{os.environ['TRIO_ENVSERVE_LOCK_FD']}"),
                }  # fmt: skip
        value = {"echo": asked, "number": number}
        if late_s is not None:
            value["late_s"] = late_s
        if status:
            value = refusal("refused", "it cannot be read")
        header = cbor2.dumps([OUTCOME, None, session, sequence, number, status, 0.0])
        payload = cbor2.dumps(value)
        frames = [self.incarnation, client.encode(), header, payload]
        if len(payload) > self.told["limits"]["announce_bytes"]:
            announcement = [ANNOUNCED, session, sequence, number, len(payload)]
            self.held[number] = frames, announcement
            self.say(*announcement)
        else:
            self.send(*frames)

    def fetch(self, wanted, unwanted):
        for number in wanted & set(self.held):
            self.send(*self.held.pop(number)[0])
        for number in unwanted & set(self.held):
            del self.held[number]


if __name__ == "__main__":
    RawWorker().run()
