"""Calls of code that is not ours: what comes out, and what is real."""

import asyncio
import signal
import threading

import pytest
import trio

from tests.worker import hostile_code
from trio_envserve import foreign


def fail(make):
    raise make()


@pytest.mark.parametrize("raised", sorted(set(hostile_code.RAISED) - {"StopIteration"}))
async def test_an_exception_of_code_is_its_result(raised):
    make = hostile_code.RAISED[raised]

    async def fail_awaited():
        await trio.lowlevel.checkpoint()
        raise make()

    kind = type(make())
    assert type(foreign.call(fail, make).error) is kind
    assert type((await foreign.acall(fail, make)).error) is kind
    assert type((await foreign.acall(fail_awaited)).error) is kind
    assert foreign.call(int, "3", base=8) == foreign.CodeResult(3)


def test_an_exception_of_code_under_asyncio_is_its_result():
    async def main():
        return await foreign.acall(fail, asyncio.CancelledError)

    assert type(asyncio.run(main()).error) is asyncio.CancelledError


async def test_a_real_cancel_is_for_its_scope_to_see():
    with trio.CancelScope() as scope:
        scope.cancel()
        ended = await foreign.acall(trio.sleep_forever)
        assert type(ended.error) is trio.Cancelled
        await trio.lowlevel.checkpoint()  # it is still cancelled
    assert scope.cancelled_caught


def test_ctrl_c_outside_of_trio_goes_on():
    """While a command imports an environment, say."""
    with pytest.raises(KeyboardInterrupt):
        foreign.call(signal.raise_signal, signal.SIGINT)
    ended = []
    thread = threading.Thread(target=lambda: ended.append(foreign.call(fail, KeyboardInterrupt)))
    thread.start()
    thread.join()
    assert type(ended[0].error) is KeyboardInterrupt


def test_ctrl_c_inside_of_trio_goes_to_its_main_task():
    async def main():
        ended = foreign.call(signal.raise_signal, signal.SIGINT)
        assert ended.error is None
        with pytest.raises(KeyboardInterrupt):
            await foreign.acall(trio.sleep_forever)
        return "seen"

    assert trio.run(main) == "seen"


def test_groups_are_looked_into_past_what_their_class_says():
    def hostile(*leaves):
        hides = property(lambda self: fail(SystemExit))
        return type("Hides", (BaseExceptionGroup,), {"exceptions": hides})("g", leaves)

    group = hostile(ValueError("a"), hostile(KeyboardInterrupt()))
    assert [type(leaf) for leaf in foreign.leaves(group)] == [ValueError, KeyboardInterrupt]
    assert foreign.holds_interrupt(group)
    assert not foreign.holds_interrupt(hostile(ValueError("a")))
    assert foreign.members_of(ValueError()) == ()


def test_text_is_plain_or_none():
    assert foreign.text(hostile_code.Text("x")) is None
    assert (
        type(foreign.text(type("S", (), {"__str__": lambda self: type("T", (str,), {})("t")})()))
        is str
    )
    assert foreign.text(3) == "3"
