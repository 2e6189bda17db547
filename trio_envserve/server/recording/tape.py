"""The tape: it stands before a router, notes each input and hands it on.

Theory of operation
-------------------
An input is noted before the router has it, so that one which makes the router
raise is the last one on the tape.  What the router draws meanwhile follows it.
The effects are folded into a hash, of which a check is noted every few steps.

Nothing here waits: records collect in memory until :meth:`Tape.drain`, which a
writer calls.  If it comes too seldom (a disk that does not take it) the tape
lets inputs go, notes how many, and begins anew with a state.  A new file begins
with a state, too, as soon as that is small enough to be written in one go.

The tape is not worth a server: what cannot be noted ends the tape with a
reason (:attr:`Tape.failed`), and the inputs are handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import cbor2

from ...core.closing import ClosingStage
from ...core.limits import ServerLimits
from ...core.router import Router
from ...core.terms import Body, Epoch
from . import records, snapshot
from .masks import Masks
from .records import EffectsHash

CHECK_STEPS = 16
"""Between checks of the effects: how far off a replay can say where it went apart."""


class Inputs(Protocol):
    """All that a shell may do to a router.  A router offers it, and a tape."""

    starting: str
    shell_stats: Callable[[], dict[str, Any]]

    def take(self) -> list[Any]:
        """See :class:`~trio_envserve.core.router.Router`; so for all of these."""
        ...

    def open_pool(self, dead_epochs: Collection[Epoch], now_s: float) -> None: ...  # noqa: D102

    def client_message(  # noqa: D102
        self, route: bytes, frames: Sequence[Body], now_s: float
    ) -> None: ...

    def worker_message(self, frames: Sequence[Body], now_s: float) -> None: ...  # noqa: D102

    def pulse(  # noqa: D102
        self, worker: bytes, now_s: float, lag_s: float, memory_bytes: int, where: str
    ) -> None: ...

    def spawned(self, worker: bytes, pid: int) -> None: ...  # noqa: D102

    def exited(self, worker: bytes, now_s: float, how: str) -> None: ...  # noqa: D102

    def tick(self, now_s: float) -> None: ...  # noqa: D102

    def close(  # noqa: D102
        self,
        now_s: float,
        stage: ClosingStage = ClosingStage.DRAINING,
        drain_s: float | None = None,
    ) -> None: ...

    def flushed(self, now_s: float) -> None: ...  # noqa: D102


class MakeRouter(Protocol):
    """Makes the router, given its source of ids."""

    def __call__(self, *, new_id: Callable[[], bytes]) -> Router: ...  # noqa: D102


class NewFile:
    """Among the parts of a tape: what follows goes to a new file."""


NEW_FILE = NewFile()


class Tape(Inputs):
    """Notes what goes into a router.

    ``make``: makes the router.  ``key``: a fresh secret that masks ids.
    ``about``: what is known of the server, plain data; the header of each file
    has it, beside what a replay needs.
    """

    def __init__(
        self, make: MakeRouter, *, new_id: Callable[[], bytes],
        key: bytes, now_s: float, slots: int, pulses: bool, bodies: bool = False,
        about: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.failed = ""
        """Why nothing is noted any more; empty while it is."""
        self.step = 0
        self._new_id = new_id
        self._masks = Masks(key)
        self._hash = EffectsHash(self._masks)
        self._bodies = bodies
        self._now_s = now_s
        self._parts: list[bytes | NewFile] = []
        self._waiting_bytes = 0
        self._file = 0
        self._file_bytes = 0
        self._checked = 0
        self._lost = False
        """Inputs are let go, since too many records wait."""
        self._wants_state = False
        self._in_client_message = False
        self._asked_stats: Callable[[], dict[str, Any]] = dict
        self.full: Callable[[], object] = lambda: None
        """Called when much waits to be drained."""
        self.router = router = make(new_id=self._drawn)
        self.limits: ServerLimits = router.limits
        self._header_bytes = router.wire.header_bytes
        self._about = {
            **about, "epoch": router.epoch, "slots": slots, "pulses": pulses, "bodies": bodies,
            "began_s": now_s, "limits": _as_dict(router.limits), "wire": _as_dict(router.wire),
        }  # fmt: skip
        self._head()

    # -- what a writer calls --------------------------------------------------

    def drain(self) -> list[bytes | NewFile]:
        """All that was noted since the last call, in order."""
        parts, self._parts = self._parts, []
        self._waiting_bytes = 0
        return parts

    def end(self) -> None:
        """The server ends in order: no input comes any more."""
        if self._lost:
            self._mark((records.GAP, self.step))
        else:
            self._check()
        self._mark((records.END, self.step))

    def fail(self, why: str) -> None:
        """Note nothing any more."""
        self.failed = self.failed or why

    # -- inputs ---------------------------------------------------------------

    @property
    def starting(self) -> str:
        """Why no worker is started yet."""
        return self.router.starting

    @starting.setter
    def starting(self, text: str) -> None:
        self._input(records.STARTING, self._now_s, text)
        self.router.starting = text

    @property
    def shell_stats(self) -> Callable[[], dict[str, Any]]:
        """What the shell counts."""
        return self._asked_stats

    @shell_stats.setter
    def shell_stats(self, ask: Callable[[], dict[str, Any]]) -> None:
        self._asked_stats = ask
        self.router.shell_stats = self._stats

    def take(self) -> list[Any]:
        """The router's effects; between two takes the state is at rest."""
        effects = self.router.take()
        if self.failed:
            return effects
        if self._lost:
            self._catch_up()
        elif effects:
            try:
                self._hash.add(effects)
            except Exception as error:  # an effect that nobody foresaw: no harm to the server
                self.fail(f"{type(error).__name__}: {error}")
            if self.step - self._checked >= CHECK_STEPS:
                self._check()
        if self._lost:
            return effects
        if self._file_bytes >= self.limits.record_file_bytes:
            self._turn()
        elif self._wants_state:
            self._state()
        return effects

    def client_message(self, route: bytes, frames: Sequence[Body], now_s: float) -> None:
        """Noted whatever it is; a body by its length, unless bodies are recorded."""
        if not self.failed:
            noted = [self._header(frames[0]), *map(self._body, frames[1:])] if frames else []
            self.step += 1
            self._now_s = now_s
            self._keep(records.client_record(now_s, route, noted))
        self._in_client_message = True
        try:
            self.router.client_message(route, frames, now_s)
        except Exception as error:
            self._raised(error)
            raise
        finally:
            self._in_client_message = False

    def worker_message(self, frames: Sequence[Body], now_s: float) -> None:
        """As of a client."""
        if not self.failed:
            self.step += 1
            self._now_s = now_s
            self._keep(records.worker_record(now_s, self._worker_frames(frames)))
        try:
            self.router.worker_message(frames, now_s)
        except Exception as error:
            self._raised(error)
            raise

    def pulse(
        self, worker: bytes, now_s: float, lag_s: float, memory_bytes: int, where: str
    ) -> None:
        """Noted and handed on, as all that follow."""
        self._input(records.PULSE, now_s, worker, lag_s, memory_bytes, where)
        self._call(self.router.pulse, worker, now_s, lag_s, memory_bytes, where)

    def spawned(self, worker: bytes, pid: int) -> None:
        """A process was started."""
        self._input(records.SPAWNED, self._now_s, worker, pid)
        self._call(self.router.spawned, worker, pid)

    def exited(self, worker: bytes, now_s: float, how: str) -> None:
        """A process was reaped."""
        self._input(records.EXITED, now_s, worker, how)
        self._call(self.router.exited, worker, now_s, how)

    def tick(self, now_s: float) -> None:
        """Time has passed."""
        self._input(records.TICK, now_s)
        self._call(self.router.tick, now_s)

    def open_pool(self, dead_epochs: Collection[Epoch], now_s: float) -> None:
        """Workers may be started."""
        self._input(records.OPEN_POOL, now_s, sorted(dead_epochs))
        self._call(self.router.open_pool, dead_epochs, now_s)

    def close(
        self, now_s: float, stage: ClosingStage = ClosingStage.DRAINING,
        drain_s: float | None = None,
    ) -> None:  # fmt: skip
        """Closing begins, or is hurried."""
        self._input(records.CLOSE, now_s, stage.value, drain_s)
        self._call(self.router.close, now_s, stage, drain_s)

    def flushed(self, now_s: float) -> None:
        """What waited for clients has left."""
        self._input(records.FLUSHED, now_s)
        self._call(self.router.flushed, now_s)

    # -- noting ---------------------------------------------------------------

    def _input(self, code: int, now_s: float, *arguments: Any) -> None:
        self.step += 1
        self._now_s = now_s
        self._note((code, now_s, *arguments))

    def _call(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception as error:
            self._raised(error)
            raise

    def _raised(self, error: Exception) -> None:
        """The router has a flaw, and here is what shows it."""
        text = str(error).encode("utf-8", "replace").decode()
        self._note((records.RAISED, type(error).__name__, text))

    def _drawn(self) -> bytes:
        identifier = self._new_id()
        self._note((records.DRAW, self._masks[identifier]))
        return identifier

    def _stats(self) -> dict[str, Any]:
        stats = self._asked_stats()
        if self._in_client_message:  # else somebody else asks, and no effect has it
            self._note((records.STATS, stats))
        return stats

    def _note(self, record: Sequence[Any]) -> None:
        if not self.failed:
            self._keep(self._encoded(record))

    def _encoded(self, record: Sequence[Any]) -> bytes:
        try:
            return cbor2.dumps(record)
        except Exception as error:  # whatever is no plain data; text that is no Unicode
            self.fail(f"a record cannot be encoded: {error}")
            return b""

    def _keep(self, data: bytes) -> None:
        if self._lost or self._waiting_bytes >= self.limits.record_buffer_bytes:
            self._lost = True
            return
        self._parts.append(data)
        self._file_bytes += len(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= self.limits.record_buffer_bytes // 8:
            self.full()

    def _mark(self, record: Sequence[Any]) -> None:
        """These are few, and are kept however much waits."""
        if not self.failed:
            data = self._encoded(record)
            self._parts.append(data)
            self._file_bytes += len(data)

    def _header(self, frame: Body) -> bytes | int:
        """A header, masked.  One that is too long is refused for its length."""
        size = len(frame)
        return self._masks.header(bytes(frame)) if size <= self._header_bytes else size

    def _body(self, frame: Body) -> bytes | int:
        return bytes(frame) if self._bodies else len(frame)

    def _worker_frames(self, frames: Sequence[Body]) -> list[bytes | int]:
        """Worker, incarnation and header; of an outcome also two that are not looked into."""
        count = len(frames)
        if count not in (3, 5):  # refused for that
            return [bytes(frames[0]), *map(len, frames[1:])]
        incarnation = bytes(frames[1]) if len(frames[1]) == 16 else b""
        start = [bytes(frames[0]), self._masks[incarnation] if incarnation else len(frames[1])]
        if count == 3:
            return [*start, self._header(frames[2])]
        return [*start, len(frames[2]), self._header(frames[3]), self._body(frames[4])]

    # -- marks ----------------------------------------------------------------

    def _check(self) -> None:
        self._checked = self.step
        self._mark((records.CHECK, self.step, self._hash.digest()))

    def _head(self) -> None:
        """The first record of a file."""
        about = {**self._about, "file": self._file, "step": self.step, "now_s": self._now_s}
        self._mark((records.HEADER, records.NAME, records.FORMAT, about))
        self._file_bytes = 0

    def _turn(self) -> None:
        """Go on in a new file."""
        self._check()
        self._parts.append(NEW_FILE)
        self._file += 1
        self._wants_state = True
        self._head()
        self._state()

    def _state(self) -> None:
        """Note the whole state, if that does not take too long."""
        router = self.router
        if snapshot.size(router) > self.limits.record_state_objects or router.force.out:
            return
        self._check()
        self._wants_state = False
        try:
            frozen = snapshot.freeze(router, self._masks, bodies=self._bodies)
        except snapshot.SnapshotError as error:
            self.fail(str(error))
            return
        before = self._file_bytes
        self._mark((records.STATE, self.step, self._now_s, frozen))
        self._file_bytes = before  # a file is not full by what it begins with
        self._hash.reset()

    def _catch_up(self) -> None:
        """After inputs were let go: go on once the writer has caught up."""
        if not self._waiting_bytes:
            self._lost = False
            self._mark((records.GAP, self.step))
            self._checked = self.step
            self._wants_state = True


def _as_dict(limits: Any) -> dict[str, Any]:
    return {name: getattr(limits, name) for name in limits.__dataclass_fields__}
