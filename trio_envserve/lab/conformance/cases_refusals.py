"""Cases about refusals, for now and for good, and the least client there is."""

from __future__ import annotations

import trio

from ...core import messages
from .bench import Bench, skip_unless
from .findings import CaseFailed, case, check
from .peer import Peer

LARGEST_WINDOW = 20_000
"""A larger window is not filled."""

AGAIN_S = 0.05


@case("Refusals", "G9")
async def an_allowance_of_nothing_is_refused(bench: Bench, peer: Peer) -> None:
    """A request that allows no execution is refused for good, and has not been seen."""
    asked = bench.echo()
    peer.transmit(0, asked, allowance=0)
    await peer.refused_for_good(0, "refused")
    await peer.misses([0, 1], 1, [0, 1], "it was never seen")
    await bench.ran(asked, 0, "it did not run")


@case("Refusals", "G2")
async def an_allowance_of_any_size_is_taken(bench: Bench, peer: Peer) -> None:
    """More executions may be allowed than the server grants."""
    peer.transmit(0, bench.echo(), allowance=2**62)
    await peer.result(0)


@case("Refusals", "G8")
async def a_full_window_refuses_for_now(bench: Bench, peer: Peer) -> None:
    """Past the window a request is refused with a delay, and taken under the same id later."""
    window = peer.window
    skip_unless(window <= LARGEST_WINDOW, f"the window is {window}; {LARGEST_WINDOW} is filled")
    held = bench.wait()
    peer.transmit(0, held)
    for sequence in range(1, window):
        peer.transmit(sequence, held)
    asked = bench.echo("at last")
    sent = peer.transmit(window, asked)
    refused, _ = await peer.next(
        messages.Refused, "a refusal of the request past the window",
        lambda each: each.sequence == window,
    )  # fmt: skip
    check(refused.code in ("window", "queue-full"), "the code 'window'", refused)
    check(refused.delay_s is not None, "for now: a delay", refused)
    peer.send(messages.Finish(peer.session, [0, window]))
    with trio.move_on_after(peer.patience_s):
        while not any(each.sequence == window for each, _ in peer.all(messages.Outcome)):
            peer.again(sent)
            await peer.barrier()
            await trio.sleep(AGAIN_S)
    value = await peer.result(window, "its outcome, once there is room")
    check(value["value"] == "at last", "its own outcome", value)
    await bench.ran(asked, 1, "it ran once")


@case("A minimal client", "G2")
async def a_client_that_only_repeats_itself_is_served(bench: Bench, peer: Peer) -> None:
    """Hello until welcome, the same request again and again, finish: that is enough."""
    asked = bench.wait(seconds=0.3)
    sent = peer.transmit(0, asked)
    peer.patience_s, patience_s = AGAIN_S, peer.patience_s
    outcome = None
    with trio.move_on_after(patience_s):
        while outcome is None:
            try:
                outcome = await peer.outcome(0)
            except CaseFailed:
                peer.again(sent)
    peer.patience_s = patience_s
    check(outcome is not None and outcome.message.status == 0, "its outcome", outcome)
    peer.finish(0)
    peer.again(sent)
    await peer.refused(0, "finished")
    await bench.ran(asked, 1, "it ran once")
