"""A client written from docs/protocol.md alone: zmq, cbor2, the standard library.

``python raw_client.py ADDRESS`` asks for one rollout, has it replayed, and is
refused on a conflict and on an unknown session.  Prints one JSON object.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

import cbor2
import zmq

HELLO, REQUEST, FINISH, SYNC, GOODBYE = 0, 1, 2, 3, 6
WELCOME, OUTCOME, SYNCED, REFUSED, UNKNOWN = 16, 17, 18, 19, 20


class RawClient:
    def __init__(self, address):
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 250)
        self.socket.connect(address)
        nonce = os.urandom(16)
        hello = [HELLO, 2, nonce, 1, "raw", 1 << 28, nonce]
        (_, _, _, self.session, self.epoch, *_), _ = self.ask([hello], WELCOME)

    def ask(self, headers, wanted, *, body=None, again_ms=1000):
        """Send until a message of the wanted kind answers."""
        while True:
            for header in headers:
                frames = [cbor2.dumps(header)] + ([body] if header[0] == REQUEST else [])
                self.socket.send_multipart(frames)
            while self.socket.poll(again_ms):
                header, *rest = self.socket.recv_multipart()
                header = cbor2.loads(header)
                if header[0] == OUTCOME:
                    header, rest = rows(header, *rest)[0]  # one request, one outcome
                if header[0] == wanted:
                    return header, rest

    def request(self, sequence, body, wanted, *, session=None):
        digest = hashlib.sha256(body).digest()[:16]
        header = [REQUEST, None, session or self.session, sequence, digest, None, 2, None, None]
        return self.ask([header], wanted, body=body)


def rows(header, bodies):
    """The rows of a batch: each its kind and its fields, and its body."""
    kind, sizes, *columns = header
    if sizes is None:
        return [([kind, *columns], [bodies])]
    found = []
    for row, size in enumerate(sizes):
        fields = [each[row] if isinstance(each, list) else each for each in columns]
        found.append(([kind, *fields], [bodies[:size]]))
        bodies = bodies[size:]
    return found


def body_of(index):
    return cbor2.dumps(
        {
            "kind": "rollout", "input": {"index": index}, "sampling_args": {}, "max_retries": 0,
            "model": {"endpoint": "oracle", "name": ""}, "state_columns": ["answers"],
        }
    )  # fmt: skip


def main(address):
    client = RawClient(address)
    first = client.request(0, body_of(1), OUTCOME)
    again = client.request(0, body_of(1), OUTCOME)  # not finished yet: it is replayed
    conflict, _ = client.request(0, body_of(2), REFUSED)
    unknown, _ = client.request(1, body_of(1), UNKNOWN, session=os.urandom(16))
    finish = [FINISH, client.session, [0, 1]]
    sync = [SYNC, client.session, client.epoch, 1, 1, 1, []]
    synced, _ = client.ask([finish, sync], SYNCED)
    finished = conflict
    while finished[3] == "conflict":  # which comes twice where it was asked twice
        finished, _ = client.request(0, body_of(1), REFUSED)
    client.socket.send(cbor2.dumps([GOODBYE, client.session]))
    client.socket.close()
    zmq.Context.instance().term()
    print(
        json.dumps(
            {
                "status": first[0][3], "result": cbor2.loads(first[1][0]),
                "executions": first[0][6], "replayed": again == first,
                "conflict": conflict[3], "gone": unknown[2], "missing": synced[3],
                "finished": finished[3],
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
