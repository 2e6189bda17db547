"""What the cases about workers ask for, in a worker that may be broken on purpose."""

from __future__ import annotations

from contextlib import ExitStack

import trio

from trio_envserve.lab.mutants import find


async def answer(rollout):
    """An input that succeeds, one that fails, and one that waits to be cancelled."""
    match rollout.input:
        case "fail":
            raise ValueError("as it was asked to")
        case "wait":
            await trio.sleep_forever()
    return rollout.input


_broken = ExitStack()  # not closed: a worker stays as it is


def mutant(name: str):
    """The same; its worker is this mutant from now on."""
    _broken.enter_context(find(name).applied())
    return answer
