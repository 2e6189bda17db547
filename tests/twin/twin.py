"""The twin: today's router and the one of the table of work, given the same inputs.

The old router decides what happens; the new one is given each input too, and its effects must
be the same for each destination, in order.  Sessions that the old one opens for the work of a
namespace have other ids there than the accounts of the new one: these are translated.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from typing import Any, ClassVar

from trio_envserve.core import key_table, messages
from trio_envserve.core.key_records import GenerationState
from trio_envserve.core.messages import AskKeys, AskRunning, AskStack, KnownKeys, Running, Stack
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.router import Router as Old
from trio_envserve.core.router_effects import (
    AskWorker,
    Closed,
    Flush,
    Load,
    Report,
    RouterEffect,
    Save,
    TellStats,
    ToClient,
    ToWorker,
)
from trio_envserve.core.router_inputs import ClientMessage, RouterInput, WorkerMessage
from trio_envserve.core.routing import Router as New
from trio_envserve.core.terms import ID_BYTES


def _ignored(keys: object, generation: None, command: object, now_s: float) -> tuple[()]:
    Twin.named["a cancel of a key that was never seen is not remembered"] += 1
    return ()


key_table.TABLE[key_table.KeyInput.CANCEL][GenerationState.ABSENT] = _ignored


class Differs(AssertionError):
    """The twins differ."""


class Twin(Old):
    """The old router, which drives; the new one beside it."""

    steps = 0
    """Inputs of all twins."""
    named: ClassVar[Counter[str]] = Counter()
    """Differences that are on purpose, with how often each was seen."""

    def __init__(self, *, new_id: Any, **options: Any) -> None:
        self._drawn: deque[bytes] = deque()
        self._own: dict[bytes, bytes] = {}
        """The accounts' ids, by the ids of the old router's own sessions."""

        def draw() -> bytes:
            self._drawn.append(new_id())
            return self._drawn[-1]

        super().__init__(new_id=draw, **options)
        self.new = New(new_id=self._drawn.popleft, **options)
        self._open_own = self.cache.open_own
        self.cache.open_own = self._opened  # type: ignore[method-assign]
        self.is_over = False
        self.history: deque[Any] = deque(maxlen=40)

    def _opened(
        self, session_id: bytes, nonce: bytes, name: str, namespace: bytes, now_s: float
    ) -> Any:
        self._drawn.remove(session_id)
        self._drawn.remove(nonce)
        self._own[session_id] = hashlib.blake2b(
            self.epoch + namespace, digest_size=ID_BYTES
        ).digest()
        return self._open_own(session_id, nonce, name, namespace, now_s)

    def take(self, given: RouterInput) -> list[RouterEffect]:
        effects = super().take(given)
        if self.is_over:
            return effects
        if self._is_left_out(given):
            self._drawn.clear()
            return effects
        type(self).steps += 1
        self.history.append(given)
        theirs = self.new.take(self._translated(given))
        old, new = self._by_destination(effects), self._by_destination(theirs)
        for destination in {*old, *new}:
            if sorted(old[destination], key=repr) != sorted(new[destination], key=repr):
                if self._is_bound(old, new):
                    return effects
                raise Differs(self._say(destination, old[destination], new[destination]))
        if self._drawn:
            raise Differs(f"the old one drew {len(self._drawn)} ids more")
        if self.behind != self.new.behind:
            raise Differs(f"behind: {self.behind}, {self.new.behind}")
        return effects

    def _is_bound(self, old: dict[Any, list[Any]], new: dict[Any, list[Any]]) -> bool:
        """Whether one of them has refused for now what the other has let in."""
        said = [
            {
                each[0].code
                for key, out in side.items()
                if key[0] == "client"
                for each in out
                if isinstance(each[0], messages.Refused)
            }
            for side in (old, new)
        ]
        for code in ("key-queue-full", "keys-full", "queue-full"):
            if (code in said[0]) is not (code in said[1]):
                self.named[f"{code}: the bounds of a namespace are weighed once"] += 1
                self.is_over = True
        reports = {each.text for side in (old, new) for each in side["report"]}
        both = {each.text for each in old["report"]} & {each.text for each in new["report"]}
        if reports - both and all(
            "lease ended" in text or "no session" in text for text in reports - both
        ):
            self.named["a namespace takes no session's place"] += 1
            self.is_over = True
        return self.is_over

    def _is_left_out(self, given: RouterInput) -> bool:
        if not isinstance(given, ClientMessage):
            return False
        try:
            message = messages.read(given.frames, most_bytes=self.wire.header_bytes)[0][0]
        except Exception:  # the routers say what is wrong with it
            return False
        return isinstance(message, AskKeys | AskRunning | AskStack | messages.AskStats)

    def _translated(self, given: RouterInput) -> RouterInput:
        if not isinstance(given, WorkerMessage):
            return given
        frames = [self._with_accounts(bytes(frame)) for frame in given.frames]
        return given._replace(frames=frames)

    def _with_accounts(self, frame: bytes) -> bytes:
        for own, account in self._own.items():
            frame = frame.replace(own, account)
        return frame

    def _by_destination(self, effects: list[RouterEffect]) -> dict[Any, list[Any]]:
        found: dict[Any, list[Any]] = defaultdict(list)
        for effect in effects:
            match effect:
                case ToClient():
                    if isinstance(effect.message, KnownKeys | Running | Stack):
                        continue
                    found["client", effect.route].append(
                        (effect.message, None if effect.body is None else bytes(effect.body))
                    )
                case ToWorker():
                    self._to_worker(found["worker", effect.worker], effect)
                case TellStats():
                    found["stats"].append((effect.route, effect.probe))
                case Save():
                    found["save"] += [self._record(each) for each in effect.records]
                    found["save"].append(effect.upto)
                case Load():
                    found["load"].append(effect)
                case Report(_, text) if "(keys of " in text and text.endswith("lease ended"):
                    self.named["a namespace has no session whose lease could end"] += 1
                case Report():
                    found["report"].append(effect)
                case AskWorker():
                    pass
                case Flush() | Closed():
                    found["closing"].append(effect)
                case _:
                    found["pool"].append(effect)
        for key in found:
            if key[0] == "worker":
                found[key] = [
                    (kind, Ranges(sorted(body)).flat()) if kind == "stop" else (kind, body)
                    for kind, body in found[key]
                ]
        return found

    def _to_worker(self, into: list[Any], effect: ToWorker) -> None:
        if isinstance(effect.message, messages.Stop):
            numbers = set(Ranges.from_flat(effect.message.numbers))
            if into and into[-1][0] == "stop":
                into[-1][1].update(numbers)
            else:
                into.append(("stop", numbers))
            return
        into.append(
            (effect.incarnation, tuple(self._with_accounts(bytes(f)) for f in effect.frames))
        )

    def _record(self, record: Any) -> Any:
        if hasattr(record, "frames"):
            return record._replace(
                frames=tuple(self._with_accounts(bytes(each)) for each in record.frames)
            )
        return record

    def _say(self, destination: Any, old: list[Any], new: list[Any]) -> str:
        lines = [f"to {destination}:"]
        lines += [f"  both {each!r:.300}" for each in old if each in new]
        lines += [f"  old  {each!r:.600}" for each in old if each not in new]
        lines += [f"  new  {each!r:.600}" for each in new if each not in old]
        lines += [f"  after {_short(each)}" for each in list(self.history)[-12:]]
        return "\n".join(lines)


def _short(given: Any) -> str:
    if isinstance(given, ClientMessage | WorkerMessage):
        frames = given.frames if isinstance(given, ClientMessage) else given.frames[2:]
        try:
            said = messages.read(frames, most_bytes=1 << 20)
            return f"{given[0]!r:.30} {said!r:.400} at {given.now_s:.3f}"
        except Exception as error:
            return f"{given!r:.200} {error}"
    return f"{given!r:.300}"
