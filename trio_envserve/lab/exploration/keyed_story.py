"""A way through the states of a key as text: who did what, and who was told what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...core.key_records import KeyAct
from .keyed_state import KeyState
from .keyed_step import KeyStep
from .keyed_world import KeyWorld
from .search import Counterexample
from .step import Action

_SAYS = {
    "back": "c{0} opens a session", "ask": "c{0} asks: {1}",
    "again": "c{0} asks again what it asked in an earlier session; proven over: {1}",
    "withdraw": "c{0} wants nothing of what it asked in an earlier session",
    "attach": "c{0} attaches", "command": "{act} by key: {1}",
    "copy": "{act} by key comes again: {1}", "repeat": "c{0} sends request {1} again",
    "cancel": "c{0} gives up request {1}", "take": "the caller of c{0}'s request {1} has it",
    "goodbye": "c{0} says goodbye", "gone": "c{0}'s process dies",
    "lease": "the server ends the lease of {1}", "open": "the server may start workers",
    "start": "the server starts a worker", "settle": "the server takes {0} for dead",
    "limit": "the deadline of {0}, {1} passes", "close": "the server closes: {0}",
    "unwanted": "nobody has waited for so long that the deadline for orphans, or the "
    "retention, ends",
    "expire": "the oldest command is forgotten", "end": "execution {0} ends; with a result: {1}",
    "crash": "the worker crashes", "die": "the worker exits", "reap": "the worker is reaped",
    "sync": "groups of the journal become safe: {0}",
    "fall": "the server falls; groups of the journal that were not safe and are there: {0}",
}  # fmt: skip


def tell_of_keys(world: KeyWorld, found: Counterexample) -> list[str]:
    """The lines of a counterexample, violations last."""
    state = world.blank()
    lines = ["      -- the server, a worker, and the callers are up and connected --"]
    for count, action in enumerate(found.path, 1):
        step = world.step(state)
        step.take(action)
        after = step.state()
        if count > found.opening or count == len(found.path):
            lines.append(f"{max(0, count - found.opening):4}  {_says(action)}")
            lines += (f"          {line}" for line in _follows(step, state, after))
        state = after
    return lines + [f"VIOLATED {text}" for text in found.violations]


def _says(action: Action) -> str:
    name, *where = action
    act = KeyAct(where[0]).name.lower() if name in ("command", "copy") else ""
    return _SAYS[name].format(*map(_shown, where), act=act)


def _shown(what: Any) -> str:
    return what.decode().rstrip(".-") if isinstance(what, bytes) else str(what)


def _follows(step: KeyStep, before: KeyState, after: KeyState) -> Iterator[str]:
    ran = {} if before.worker is None else {run.number: run for run in before.worker.runs}
    for run in () if after.worker is None else after.worker.runs:
        if run.number not in ran:
            yield f"execution {run.number} begins, of generation {_shown(run.key)}"
        elif run.cancelled and not ran[run.number].cancelled:
            yield f"execution {run.number} is to stop"
    for to, told in step.judge.heard.items():
        request = to[1] if to[0] == "cancel" else to
        yield f"{_shown(request[0])}, {request[1]} is told: {' '.join(map(_shown, told))}"
