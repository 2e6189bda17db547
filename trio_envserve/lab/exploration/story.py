"""A way through the states as text: who did what, and what was on the wires.

The way is walked again, with the very machines, and told line by line: an arrow
that leads to a name is a message that arrives there, ``sends`` one that goes out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...core import messages
from ...core.ranges import Ranges
from .keyed_story import tell_of_keys
from .keyed_world import KeyWorld
from .search import Counterexample
from .state import DEAD, SystemState
from .step import Action
from .world import World

_HIDDEN = {
    "digest", "server", "stats", "epoch", "version", "message_bytes", "name", "client", "window",
    "pid", "environment", "duration_s", "nonce", "text",
}  # fmt: skip
_SPANS = {"finished", "pending", "missing", "numbers", "live", "cancelled", "seen"}


def tell(world: World | KeyWorld, found: Counterexample) -> list[str]:
    """The lines of a counterexample, violations last."""
    if isinstance(world, KeyWorld):
        return tell_of_keys(world, found)
    state = world.blank()
    lines: list[str] = []
    whole = (*found.path, *found.aftermath)
    for count, action in enumerate(whole, 1):
        after, violations = world.move(state, action)
        if count > found.opening or count == len(whole):
            if count == len(found.path) + 1:
                lines.append("      -- from here on nothing goes wrong any more --")
            lines += _step(world, max(0, count - found.opening), state, action, after)
        state = after
        if violations:
            break
    if found.opening < len(found.path) or found.aftermath:
        clients = ", ".join(f"c{c}" for c in range(len(state.clients)))
        workers = ", ".join(f"w{w}-1" for w in range(world.configuration.workers))
        lines.insert(0, f"      -- the server, {workers}, and {clients} are up and connected --")
    return lines + [f"VIOLATED {text}" for text in found.violations]


def _step(
    world: World, count: int, before: SystemState, action: Action, after: SystemState
) -> Iterator[str]:
    what = _says(world, before, action)
    yield f"{count:4}  {what}"
    for line in _consequences(world, before, after, action):
        yield f"          {line}"


def _says(world: World, state: SystemState, action: Action) -> str:
    """What an action is, in words."""
    name, *where = action
    if name in _OF_CLIENT:
        return _of_client(world, state, name, *where)
    if name in _OF_WORKER:
        return _of_worker(world, state, name, *where)
    return {
        "restart": "server is killed; another answers at its address",
        "open": "server knows that all before it is dead, and may start workers",
        "start": "server replaces a worker",
        "tick": "server ticks",
        "settle": f"server has waited long enough for the last words of {_shown(where)}",
        "silence": f"server has not heard {_shown(where)} for a long time",
        "stop": f"server sees {_shown(where)} ignore a cancel for a long time",
        "lease": f"server ends the lease of {_shown(where)}",
        "idle_lease": f"server ends the lease of {_shown(where)}, of which nobody knows",
        "deadline": f"server sees the deadline of {_shown(where)} pass",
        "forge": f"server <- somebody: another payload as {_shown(where)}",
    }[name]


_OF_CLIENT = {
    "up": "server <- {c}: {up}", "down": "{c} <- server: {down}", "late": "late: {late}",
    "ask": "{c} asks", "take": "{c}: the caller of call {0} takes its outcome",
    "connect": "{c} connects", "flush": "{c} acknowledges what its callers have",
    "scan": "{c} tries again what was refused for now", "ping": "{c} pings",
    "idle_ping": "{c} pings", "again": "{c} asks again whether call {0} ran",
    "cut": "{c} is cut off", "lose": "a message of {c}'s connection is lost ({0})",
    "stray": "a message of {c}'s connection is left behind ({0})",
    "cancel": "{c}: call {0} is cancelled", "limit": "{c}: the limit of call {0} passes",
    "despair": "{c} gives up a lost session", "close": "{c} is closed",
}  # fmt: skip


def _of_client(world: World, state: SystemState, name: str, c: int, *where: Any) -> str:
    part = state.clients[c]
    late = part.late[0][2:] if part.late else ()
    return _OF_CLIENT[name].format(
        *where, c=f"c{c}", up=_first(world, part.up), down=_first(world, part.down),
        late=_first(world, late),
    )  # fmt: skip


_OF_WORKER = {
    "wup": "server <- {w}: {up}", "wdown": "{w} <- server: {down}", "wlate": "late: {late}",
    "end": "{w}: execution {0} ends", "die": "{w} dies", "crash": "{w} crashes",
    "beat": "{w} beats", "idle_beat": "{w} beats", "wcut": "{w} is cut off, and back",
    "wlose": "a message of {w}'s connection is lost ({0})",
    "wstray": "a message of {w}'s connection is left behind ({0})", "reap": "{w} is reaped",
}  # fmt: skip


def _of_worker(world: World, state: SystemState, name: str, w: int, *where: Any) -> str:
    part = state.workers[w]
    late = part.late[0][1:] if part.late else ()
    shown = part.id.decode() + (" (of an earlier server)" if part.life < state.life else "")
    return _OF_WORKER[name].format(
        *where, w=shown, up=_first(world, part.up), down=_first(world, part.down),
        late=_first(world, late),
    )  # fmt: skip


def _consequences(
    world: World, before: SystemState, after: SystemState, action: Action
) -> Iterator[str]:
    """What is on the wires now that was not, and what runs or was told."""
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
    """What was put into a link, from which the first may have been taken."""
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
