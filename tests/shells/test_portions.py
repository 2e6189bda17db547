"""What the router has read at once is passed on by the bundle."""

import pytest

from trio_envserve.net import BATCH_MESSAGES, BUNDLE_MESSAGES, Frame
from trio_envserve.server.shell import _portions


@pytest.mark.parametrize(
    ("peers", "sizes"),
    [(0, [32] * 8), (1, [32] * 8), (3, [96, 96, 64]), (8, [256]), (16, [256])],
)
def test_each_peer_gets_about_a_bundle_of_each_portion(peers, sizes):
    assert (BATCH_MESSAGES, BUNDLE_MESSAGES) == (256, 32)
    batch: list[list[Frame]] = [[b"%d" % number] for number in range(BATCH_MESSAGES)]
    portions = list(_portions(batch, peers))
    assert [len(portion) for portion in portions] == sizes
    assert [message for portion in portions for message in portion] == batch
