"""Pairs that ask for keys, without a journal and with one; strangers ask for them, too."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import cbor2

from trio_envserve.core import error_records, messages
from trio_envserve.core.archive import Archive
from trio_envserve.core.client import CallKey
from trio_envserve.core.journal import Completed, Record
from trio_envserve.core.key_records import KeyAct, KeyName, input_digest
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.router import Router
from trio_envserve.core.router_effects import Load, Save, ToWorker
from trio_envserve.core.router_inputs import Loaded, PoolOpened, Restored, Saved, SaveFailed
from trio_envserve.core.terms import Verdict
from trio_envserve.core.work import WorkState

from .helpers import NAME, STRANGER, Pair, decoded, identifier

OTHER = identifier(77)
"""The token of another caller."""


class Keyed(Pair):
    """A pair that asks for keys; strangers ask for them, too."""

    keys = KeyLimits(retention_s=20.0, orphan_s=20.0)

    def __init__(self, *, keys: KeyLimits | None = None, **how: Any) -> None:
        self.keys = keys or self.keys
        super().__init__(**how)

    @classmethod
    def asked(cls, **how: Any) -> Self:
        """A pair whose client has asked for a key."""
        pair = cls(**how)
        pair.call()
        return pair

    def new_router(self) -> Router:
        self.options = {**self.options, "keys": self.keys}  # type: ignore[misc]  # of this one
        return super().new_router()

    def call(self, body: bytes = b"body", name: KeyName = NAME, **how: Any) -> int:
        digest = input_digest(body, how.get("rerun"))
        return self.submit(body, key=CallKey(KeyAct.ASK, name, digest), **how)

    def about(self, act: KeyAct, name: KeyName = NAME, **how: Any) -> int:
        return self.submit(b"", key=CallKey(act, name, tag=self.ids()), **how)

    def request(
        self, session: bytes, sequence: int = 0, body: bytes = b"body", *,
        act: KeyAct = KeyAct.ASK, name: KeyName = NAME, tag: int | bytes | None = None,
        earlier: int | None = None, deadline_s: float | None = None, rerun: bool | None = None,
        allowance: int = 4,
    ) -> None:  # fmt: skip
        """Of a stranger."""
        request = messages.Request(
            session, sequence, input_digest(body, rerun), rerun, allowance, deadline_s, None,
            None, *name, int(act) or None, tag, earlier,
        )  # fmt: skip
        self.tell(request, body, route=STRANGER)

    def payload(self, session: bytes, sequence: int = 0) -> bytes:
        """Of the outcome of a stranger's request."""
        kept = self.router.sessions.known[session].tickets[sequence].kept
        assert kept is not None
        return bytes(kept.payload)

    def answered(self, session: bytes, sequence: int) -> Any:
        """The answer to a stranger's command."""
        return cbor2.loads(self.payload(session, sequence))

    def verdict_of(self, session: bytes, sequence: int = 0) -> Verdict:
        """Of the error that ended a stranger's request."""
        return error_records.decode(self.payload(session, sequence)).verdict


def generation(pair: Keyed, number: int = 0) -> WorkState:
    found = pair.router.works.generations.get(number)
    return WorkState.CLOSED if found is None else found.state


class Journaled(Keyed):
    """A pair whose server has a journal."""

    options: ClassVar[dict[str, Any]] = {"journaled": True}

    def __init__(self, **how: Any) -> None:
        self.records: list[Record] = []
        """All that were given to the disk."""
        self.to_workers: list[messages.Message] = []
        super().__init__(**how)

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, Save):
            self.records += effect.records
            assert effect.upto == len(self.records)
            return
        if isinstance(effect, ToWorker):
            self.to_workers.append(decoded(effect.frames[1:]))
        super()._carry_out(effect)

    @classmethod
    def running(cls, **how: Any) -> Self:
        """A pair that runs the work of a key, which is safe."""
        pair = cls.asked(**how)
        pair.disk()
        return pair

    def disk(self, upto: int | None = None) -> None:
        """So many records are safe; all, if no number is given."""
        while True:
            known = len(self.records)
            self.router_takes(Saved(known if upto is None else upto, self.now_s))
            if upto is not None or len(self.records) == known:
                return


class AtDisk(Journaled):
    """A pair whose server reads outcomes from its journal."""

    keys = KeyLimits(retention_s=64.0, orphan_s=20.0)
    options: ClassVar[dict[str, Any]] = {"journaled": True, "resting": True}

    def __init__(self, **how: Any) -> None:
        self.loads: list[int] = []
        """What was asked of the disk, and was not read yet."""
        super().__init__(**how)

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, Load):
            self.loads.append(effect.number)
        else:
            super()._carry_out(effect)

    @property
    def resting(self) -> Archive:
        assert self.router.works.archive is not None
        return self.router.works.archive

    def run_one(self, body: bytes = b"body", name: KeyName = NAME, payload: bytes = b"out") -> None:
        """A call, from its submission to the acknowledgement."""
        number = self.call(body, name)
        self.disk()
        self.end(payload=payload)
        self.disk()
        self.receive(number)
        self.advance(1.0)

    @classmethod
    def rested(cls, **how: Any) -> Self:
        """A pair whose only key is at rest."""
        pair = cls(**how)
        pair.run_one()
        return pair

    def read(self, why: str = "") -> None:
        """All that was asked is read; or nothing can be, for this reason."""
        loads, self.loads = self.loads, []
        outcomes = {each.number: each.frames for each in self.records if type(each) is Completed}
        for number in loads:
            frames = () if why else outcomes[number]
            self.give(Loaded(number, frames, why, self.now_s))
        self.settle()


def crashed(pair: Journaled, safe: int | None = None, *, rerun: bool = False) -> Journaled:
    """Another server, with so much of the journal of the first one; all, if no number is
    given.  Somebody is attached to the key."""
    pair.disk()
    return crashed_with(pair.records[:safe], rerun=rerun)


def crashed_with(records: list[Record], *, rerun: bool = False) -> Journaled:
    other = Journaled(ready=False, rerun=rerun)
    other.auto_hello = True
    other.router_takes(Restored(records, other.now_s), PoolOpened((), other.now_s))
    other.request(other.stranger(), act=KeyAct.ATTACH)
    return other


def told(pair: Journaled) -> tuple[messages.Outcome, bytes]:
    """What the attached one was told."""
    outcome = pair.heard()
    assert isinstance(outcome, messages.Outcome)
    (kept,) = [e.kept for s in pair.router.sessions.known.values() for e in s.tickets.values()]
    assert kept is not None
    return outcome, bytes(kept.frames[1])


def fail(pair: Journaled, *, final: bool = False) -> None:
    pair.router_takes(SaveFailed("the disk is full", final, pair.now_s))
