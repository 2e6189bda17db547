"""What the router has read at once is passed on by the bundle."""

import pytest

from trio_envserve.net import BATCH_MESSAGES, BUNDLE_MESSAGES, Frame
from trio_envserve.server.portions import PORTION_HEADER_BYTES, portions


@pytest.mark.parametrize(
    ("peers", "sizes"),
    [(0, [32] * 8), (1, [32] * 8), (3, [96, 96, 64]), (8, [256]), (16, [256])],
)
def test_each_peer_gets_about_a_bundle_of_each_portion(peers, sizes):
    assert (BATCH_MESSAGES, BUNDLE_MESSAGES) == (256, 32)
    batch: list[list[Frame]] = [[b"%d" % number] for number in range(BATCH_MESSAGES)]
    passed = list(portions(batch, peers))
    assert [len(portion) for portion in passed] == sizes
    assert [message for portion in passed for message in portion] == batch


def test_a_portion_has_few_bytes_of_headers():
    """256 of 4 KiB each took a turn 60 ms; only longer ones were bounded."""
    batch: list[list[Frame]] = [[b"route", b"h" * 4096] for _ in range(12)]
    passed = list(portions(batch, 1))
    assert [len(portion) for portion in passed] == [5, 5, 2]
    assert [message for portion in passed for message in portion] == batch


def test_a_long_header_ends_its_portion():
    long = PORTION_HEADER_BYTES + 1
    batch: list[list[Frame]] = [[b"route", b"h" * (long if n in (3, 4) else 9)] for n in range(9)]
    passed = list(portions(batch, 1))
    assert [len(portion) for portion in passed] == [4, 1, 4]
    assert [message for portion in passed for message in portion] == batch
    assert list(portions([[b"no frames"]], 1)) == [[[b"no frames"]]]
