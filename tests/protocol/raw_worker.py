"""A worker written from docs/protocol.md alone: zmq, cbor2, the standard library.

``python raw_worker.py ADDRESS WORKER INCARNATION-IN-HEX`` answers every dispatch
with its request's input and the number of the dispatch, until it is retired.
"""

from __future__ import annotations

import sys
import time

import cbor2
import zmq

HELLO, BEAT, OUTCOME, MISSING, DECLINED = 64, 66, 67, 68, 69
DISPATCH, STOP, STATE, RETIRE = 80, 81, 82, 83
BEAT_S = 0.2


def numbers(spans):
    return {n for a, b in zip(spans[::2], spans[1::2], strict=True) for n in range(a, b)}


def spans(members):
    edges = [n for n in members if n - 1 not in members]
    return sorted(edges + [n + 1 for n in members if n + 1 not in members])


class RawWorker:
    def __init__(self, address, worker, incarnation):
        self.incarnation = incarnation
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.set(zmq.ROUTING_ID, worker)
        self.socket.set(zmq.LINGER, 250)
        self.socket.connect(address)
        self.seen, self.stopped, self.kept = set(), set(), {}
        self.beat, self.heard = 0, False

    def say(self, *header):
        self.socket.send_multipart([self.incarnation, cbor2.dumps(header)])

    def run(self):
        beat_at = 0.0
        while True:
            if time.monotonic() >= beat_at:
                if not self.heard:
                    self.say(HELLO, 1, 0, "raw", False)
                self.beat += 1
                self.say(BEAT, self.beat, spans(self.seen), {})
                beat_at = time.monotonic() + BEAT_S
            if not self.socket.poll(int(BEAT_S * 1000)):
                continue
            frames = self.socket.recv_multipart()
            for incarnation, header, *body in [frames] if frames[1:] else cbor2.loads(frames[0])[1]:
                if incarnation == self.incarnation:
                    self.take(*cbor2.loads(header), body=body)

    def take(self, kind, *fields, body):
        if kind == RETIRE:
            self.socket.close()
            sys.exit()
        if kind == DISPATCH and fields[2] not in self.seen:
            self.execute(body[0], *fields)
        elif kind == STOP:
            self.stopped |= numbers(fields[0]) - self.seen
        elif kind == STATE:
            self.repair(*fields)

    def execute(self, body, session, sequence, number, client):
        self.seen.add(number)
        cancelled = number in self.stopped
        value = {"echo": cbor2.loads(body)["input"], "number": number}
        error = {"code": "cancelled", "verdict": "DID_NOT_RUN", "message": "it never began"}
        header = cbor2.dumps([OUTCOME, session, sequence, number, 2 if cancelled else 0, 0.0])
        payload = cbor2.dumps(error if cancelled else value)
        self.kept[number] = [self.incarnation, client.encode(), header, payload], self.beat
        self.socket.send_multipart(self.kept[number][0])

    def repair(self, beat, next_number, live, cancelled):
        self.heard, live, cancelled = True, numbers(live), numbers(cancelled)
        self.kept = {n: kept for n, kept in self.kept.items() if n >= next_number or n in live}
        for number, (frames, after_beat) in list(self.kept.items()):
            if number in live and after_beat < beat:
                self.kept[number] = frames, self.beat
                self.socket.send_multipart(frames)
        absent = live - self.seen
        if declined := absent & cancelled:
            self.seen |= declined
            self.say(DECLINED, spans(declined))
        if missing := absent - cancelled:
            self.say(MISSING, spans(missing))


if __name__ == "__main__":
    RawWorker(sys.argv[1], sys.argv[2].encode(), bytes.fromhex(sys.argv[3])).run()
