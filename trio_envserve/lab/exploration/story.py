"""A way through the states as text: who did what, and what was on the wires.

The way is walked again, with the very machines, and told line by line: an arrow
that leads to a name is a message that arrives there, ``sends`` one that goes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...core import messages
from ...core.key_records import KeyAct
from ...core.ranges import Ranges
from .actions import CLIENT, SERVER, Action, BaseStep
from .explored import Explored
from .hosted_step import HostsStep
from .hosted_story import OPENING, tell_step
from .hosted_world import HostsWorld
from .keyed_state import KeyState
from .keyed_step import KINDS as KEY_KINDS
from .keyed_step import KeyStep
from .moves import KINDS, Move
from .search import Counterexample
from .state import DEAD, ClientPart, SystemState, WorkerPart
from .world import World

_HIDDEN = {
    "digest", "server", "stats", "epoch", "version", "message_bytes", "name", "client", "window",
    "pid", "environment", "duration_s", "nonce", "text",
}  # fmt: skip
_SPANS = {"finished", "pending", "missing", "numbers", "live", "cancelled", "seen"}


def tell(world: Explored[Any], found: Counterexample) -> list[str]:
    """The lines of a counterexample, violations last."""
    state, lines = world.blank(), []
    if found.opening < len(found.path) or found.aftermath:
        lines.append(f"      -- {_opening(world)} --")
    whole = (*found.path, *found.aftermath)
    for count, action in enumerate(whole, 1):
        step = world.step(state)
        step.take(action)
        after = step.state()
        if count > found.opening or count == len(whole):
            if count == len(found.path) + 1:
                lines.append("      -- from here on nothing goes wrong any more --")
            says, *follows = _told(step, state, action, after)
            lines.append(f"{max(0, count - found.opening):4}  {says}")
            lines += (f"          {line}" for line in follows)
        state = after
        if step.judge.violations:
            break
    return lines + [f"VIOLATED {text}" for text in found.violations]


def _told(step: BaseStep[Any], before: Any, action: Action, after: Any) -> Iterator[str]:
    """An action in words, and what follows from it."""
    if isinstance(step, Move):
        yield _says(step.world, before, action)
        yield from _consequences(step.world, before, after, action)
    elif isinstance(step, KeyStep):
        yield _says_of_keys(action)
        yield from _follows(step, before, after)
    elif isinstance(step, HostsStep):
        yield from tell_step(step.world, before, action, after)


def _opening(world: Explored[Any]) -> str:
    if isinstance(world, HostsWorld):
        return OPENING
    if not isinstance(world, World):
        return "the server, a worker, and the callers are up and connected"
    workers = ", ".join(f"w{w}-1" for w in range(world.configuration.workers))
    clients = ", ".join(f"c{c}" for c in range(world.configuration.clients))
    return f"the server, {workers}, and {clients} are up and connected"


# -- in words ---------------------------------------------------------------------


def _says(world: World, state: SystemState, action: Action) -> str:
    name, *where = action
    kind = KINDS[name]
    if kind.machine == SERVER:
        return kind.says.format(where=_shown(where))
    index, *places = where
    part: ClientPart | WorkerPart
    if kind.machine == CLIENT:
        part, me = state.clients[index], f"c{index}"
    else:
        part = state.workers[index]
        me = part.id.decode() + (" (of an earlier server)" if part.life < state.life else "")
    late = [each[-1] for each in part.late]
    return kind.says.format(
        *places, me=me, up=_first(world, part.up), down=_first(world, part.down),
        late=_first(world, late),
    )  # fmt: skip


def _says_of_keys(action: Action) -> str:
    name, *where = action
    act = KeyAct(where[0]).name.lower() if name in ("command", "copy") else ""
    return KEY_KINDS[name].says.format(*(_shown([each]) for each in where), act=act)


# -- what follows -----------------------------------------------------------------


def _follows(step: KeyStep, before: KeyState, after: KeyState) -> Iterator[str]:
    """The executions that begin, or are to stop, and the answers to callers."""
    ran = {} if before.worker is None else {run.number: run for run in before.worker.runs}
    for run in () if after.worker is None else after.worker.runs:
        if run.number not in ran:
            yield f"execution {run.number} begins, of generation {_shown([run.key])}"
        elif run.cancelled and not ran[run.number].cancelled:
            yield f"execution {run.number} is to stop"
    for to, told in step.judge.heard.items():
        request = to[1] if to[0] == "cancel" else to
        yield f"{_shown(request[:1])}, {request[1]} is told: {_shown(told)}"


def _consequences(
    world: World, before: SystemState, after: SystemState, action: Action
) -> Iterator[str]:
    """The messages that are new on the wires, and what runs or was told."""
    for c, (was, now) in enumerate(zip(before.clients, after.clients, strict=True)):
        for number in _sent(was.up, now.up, taken=action[:2] in (("up", c), ("lose", c))):
            yield f"c{c} sends {describe(world, number)}"
        for number in _sent(was.down, now.down, taken=action[:2] == ("down", c)):
            yield f"server sends c{c} {describe(world, number)}"
    old = {(part.life, part.id): part for part in before.workers}
    for part in after.workers:
        prior = old.get((part.life, part.id))
        name = part.id.decode()
        up, down, runs = (prior.up, prior.down, prior.runs) if prior else ((), (), ())
        taken = action[0] in ("wup", "wdown") and before.workers[action[1]] is prior
        for number in _sent(up, part.up, taken=taken and action[0] == "wup"):
            yield f"{name} sends {describe(world, number)}"
        for number in _sent(down, part.down, taken=taken and action[0] == "wdown"):
            yield f"server sends {name} {describe(world, number)}"
        for run in part.runs:
            if run.number not in {each.number for each in runs}:
                yield f"{name} runs {run.key.decode()} as {run.number}"
        if (
            prior is not None
            and prior.core != DEAD
            and part.core == DEAD
            and action[0] == "restart"
        ):
            yield f"{name} dies with it"
    for one, other in zip(before.past.calls, after.past.calls, strict=True):
        if other.told != one.told and other.told != "over":
            yield f"the caller of {other.key.decode()} is told: {other.told}"


def _sent(was: Sequence[int], now: Sequence[int], *, taken: bool) -> Sequence[int]:
    """The messages that were put into a link, from which the first may have been taken."""
    left = was[1:] if taken else was
    return now[len(left) :] if tuple(now[: len(left)]) == tuple(left) else ()


def _first(world: World, numbers: Sequence[int]) -> str:
    return describe(world, numbers[0]) if numbers else "nothing"


def describe(world: World, number: int) -> str:
    """A message by number, as text."""
    message = world.mail.message[number]
    if message is None:
        return "something"
    fields = [
        f"{name}={_value(name, value)}"
        for name, value in zip(message._fields, message, strict=True)
        if name not in _HIDDEN and value is not None
    ]
    body = world.mail.frames[number][-1]
    if isinstance(message, messages.Request):
        fields.append(f"body={body.decode()}")
    return f"{type(message).__name__}({', '.join(fields)})"


def _value(name: str, value: Any) -> str:
    if isinstance(value, bytes):
        return _shown([value])
    if name in _SPANS and isinstance(value, list):
        return repr(list(Ranges.from_flat(value)))
    return repr(value)


def _shown(where: Sequence[Any]) -> str:
    """Ids and numbers without their padding."""
    return " ".join(
        each.decode("ascii", "replace").rstrip(".-") if isinstance(each, bytes) else str(each)
        for each in where
    )
