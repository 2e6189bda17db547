"""What the router has read at once is passed on by the batch, and does not hold the loop."""

import itertools

import pytest
import trio

from trio_envserve import WireLimits, open_server
from trio_envserve.core import messages
from trio_envserve.core.messages import BATCH_ROWS
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import RouterEffect
from trio_envserve.core.router_inputs import ClientMessage, RouterInput
from trio_envserve.net import BATCH_MESSAGES, Frame, MemoryNetwork
from trio_envserve.server.portions import PORTION_HEADER_BYTES, of_client, of_worker, portions


def batch_of(rows: int) -> list[Frame]:
    """A message of a client, of so many requests."""
    request = messages.Request(bytes(16), 0, bytes(16), None, 1, None)
    (frames,) = messages.in_batches([(request._replace(sequence=n), b"") for n in range(rows)])
    return [b"route", *frames]


def check(batch: list[list[Frame]], peers: int, sizes: list[int]) -> None:
    """A batch is passed on in portions of these sizes, whole and in order."""
    passed = list(portions(batch, peers))
    assert [len(portion) for portion in passed] == sizes
    assert [message for portion in passed for message in portion] == batch


@pytest.mark.parametrize(
    ("peers", "sizes"),
    [(0, [64] * 4), (1, [64] * 4), (3, [192, 64]), (4, [256]), (16, [256])],
)
def test_each_peer_gets_about_a_batch_of_each_portion(peers, sizes):
    assert (BATCH_MESSAGES, BATCH_ROWS) == (256, 64)
    check([[b"%d" % number] for number in range(BATCH_MESSAGES)], peers, sizes)


@pytest.mark.parametrize(("peers", "sizes"), [(1, [1, 2, 1, 1]), (2, [3, 2])])
def test_the_rows_of_batches_count(peers, sizes):
    check([batch_of(rows) for rows in (64, 40, 24, 63, 2)], peers, sizes)


def test_the_rows_of_a_workers_batches_count():
    outcome = messages.WorkerOutcome(bytes(16), 0, 0, 0, 0.1)
    (frames,) = messages.in_batches([(outcome._replace(number=n), b"") for n in range(40)])
    batch: list[list[Frame]] = [[b"w0-1", bytes(16), b"client", *frames]] * 3
    assert [len(portion) for portion in portions(batch, 1, of_worker)] == [1, 1, 1]
    beat: list[Frame] = [b"w0-1", bytes(16), messages.encode(messages.Beat(b"", 1, 0, [], {}))]
    assert of_worker(beat) == beat[2]
    assert of_client([b"no frames"]) == b""


def test_a_portion_has_few_bytes_of_headers():
    """256 of 4 KiB each took a turn 60 ms; only longer ones were bounded."""
    check([[b"route", b"h" * 4096] for _ in range(12)], 1, [4, 4, 4])


def test_a_long_header_is_a_portion_of_its_own():
    lengths = [PORTION_HEADER_BYTES + 1 if n in (0, 3, 4) else 9 for n in range(9)]
    check([[b"route", b"h" * length] for length in lengths], 1, [1, 2, 1, 1, 4])
    check([], 1, [])


async def test_long_headers_held_the_loop_for_half_a_second(monkeypatch: pytest.MonkeyPatch):
    """A statement of a window full of gaps takes 50 ms, and ten of them came in a turn."""
    network = MemoryNetwork()
    seen: list[str] = []
    take = Router.take

    def taken(self: Router, given: RouterInput) -> list[RouterEffect]:
        if isinstance(given, ClientMessage):
            seen.append("taken")
        return take(self, given)

    async def others() -> None:
        while True:
            seen.append("others")
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Router, "take", taken)
    said = messages.encode(messages.Finish(bytes(16), list(range(10_000))))
    assert len(said) > PORTION_HEADER_BYTES
    with trio.fail_after(60):
        async with (
            open_server("arithmetic", workers=0, network=network, bind="memory:s") as server,
            network.open_dealer(server.address, limits=WireLimits()) as dealer,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(others)
            for _ in range(10):
                assert dealer.send_nowait([said])
            while seen.count("taken") < 10:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    # Tasks take their steps in any order: the last of a turn may be the first of the next.
    assert max(len(list(same)) for kind, same in itertools.groupby(seen) if kind == "taken") <= 2
