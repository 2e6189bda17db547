"""What the router has read at once is passed on by the batch."""

import pytest

from trio_envserve.core import messages
from trio_envserve.core.messages import BATCH_ROWS
from trio_envserve.net import BATCH_MESSAGES, Frame
from trio_envserve.server.portions import PORTION_HEADER_BYTES, of_client, of_worker, portions


def batch_of(rows: int) -> list[Frame]:
    """A message of a client, of so many requests."""
    request = messages.Request(bytes(16), 0, bytes(16), None, 1, None)
    (frames,) = messages.in_batches([(request._replace(sequence=n), b"") for n in range(rows)])
    return [b"route", *frames]


@pytest.mark.parametrize(
    ("peers", "sizes"),
    [(0, [64] * 4), (1, [64] * 4), (3, [192, 64]), (4, [256]), (16, [256])],
)
def test_each_peer_gets_about_a_batch_of_each_portion(peers, sizes):
    assert (BATCH_MESSAGES, BATCH_ROWS) == (256, 64)
    batch: list[list[Frame]] = [[b"%d" % number] for number in range(BATCH_MESSAGES)]
    passed = list(portions(batch, peers))
    assert [len(portion) for portion in passed] == sizes
    assert [message for portion in passed for message in portion] == batch


@pytest.mark.parametrize(("peers", "sizes"), [(1, [1, 2, 1, 1]), (2, [3, 2])])
def test_the_rows_of_batches_count(peers, sizes):
    batch = [batch_of(rows) for rows in (64, 40, 24, 63, 2)]
    passed = list(portions(batch, peers))
    assert [len(portion) for portion in passed] == sizes
    assert [message for portion in passed for message in portion] == batch


def test_the_rows_of_a_workers_batches_count():
    outcome = messages.WorkerOutcome(bytes(16), 0, 0, 0, 0.1)
    (frames,) = messages.in_batches([(outcome._replace(number=n), b"") for n in range(40)])
    batch: list[list[Frame]] = [[b"w0-1", bytes(16), b"client", *frames]] * 3
    assert [len(portion) for portion in portions(batch, 1, of_worker)] == [1, 1, 1]
    beat: list[Frame] = [b"w0-1", bytes(16), messages.encode(messages.Beat(1, [], {}))]
    assert of_worker(beat) == beat[2]
    assert of_client([b"no frames"]) == b""


def test_a_portion_has_few_bytes_of_headers():
    """256 of 4 KiB each took a turn 60 ms; only longer ones were bounded."""
    batch: list[list[Frame]] = [[b"route", b"h" * 4096] for _ in range(12)]
    passed = list(portions(batch, 1))
    assert [len(portion) for portion in passed] == [4, 4, 4]
    assert [message for portion in passed for message in portion] == batch


def test_a_long_header_is_a_portion_of_its_own():
    long = PORTION_HEADER_BYTES + 1
    batch: list[list[Frame]] = [
        [b"route", b"h" * (long if n in (0, 3, 4) else 9)] for n in range(9)
    ]
    passed = list(portions(batch, 1))
    assert [len(portion) for portion in passed] == [1, 2, 1, 1, 4]
    assert [message for portion in passed for message in portion] == batch
    assert list(portions([], 1)) == []
