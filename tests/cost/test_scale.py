"""A small run of what measures how much one router carries."""

from __future__ import annotations

import sys

import pytest
import trio

from tests.cost.scale import Options, run

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

SMALL = Options(hosts=4, clients=40, few=5, calls=100, in_flight=400)


async def test_all_clients_and_hosts_are_in_and_all_that_is_in_flight_is_cancelled(tmp_path):
    with trio.fail_after(180):
        found = await run(SMALL, tmp_path)
    assert (found["sessions"], found["hosts"]) == (40, 4)
    assert found["of each client"]["descriptors"] == 1
    assert found["in flight"]["rollouts"] == 400
    assert found["in flight"]["ended otherwise"] == 0
    # How fast it is depends on the machine, and is not judged here.
    assert not [text for text in found["problems"] if "p99" not in text and "took" not in text]
