"""One step where callers share a key: an action, and all that follows from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import cbor2

from ...core import error_records, messages
from ...core.key_records import KeyAct, Tag, input_digest
from ...core.terms import Status
from . import names
from .actions import CLIENT, SERVER, WORKER, Action, BaseStep, Kind
from .keyed_judge import KeyJudge, KeyPast, Told
from .keyed_state import INPUT, OTHER, KeyState, Row, Said, session_of, token
from .state import DEAD, Running, WorkerPart

if TYPE_CHECKING:
    from .keyed_world import KeyWorld

NAMESPACE, KEY = b"a", b"k"
MOST_BYTES = 1 << 20

KINDS: Final[Mapping[str, Kind]] = {
    "back": Kind(CLIENT, "c{0} opens a session"),
    "ask": Kind(CLIENT, "c{0} asks: {1}"),
    "again": Kind(CLIENT, "c{0} asks again what it asked in an earlier session; proven over: {1}"),
    "withdraw": Kind(CLIENT, "c{0} wants nothing of what it asked in an earlier session"),
    "attach": Kind(CLIENT, "c{0} attaches", "attaches"),
    "command": Kind(CLIENT, "{act} by key: {1}", "commands"),
    "copy": Kind(CLIENT, "{act} by key comes again: {1}", "copies"),
    "repeat": Kind(CLIENT, "c{0} sends request {1} again", "repeats"),
    "cancel": Kind(CLIENT, "c{0} gives up request {1}", "cancels"),
    "take": Kind(CLIENT, "the caller of c{0}'s request {1} has it"),
    "goodbye": Kind(CLIENT, "c{0} says goodbye", "goodbyes"),
    "gone": Kind(CLIENT, "c{0}'s process dies", "deaths"),
    "lease": Kind(SERVER, "the server ends the lease of {1}"),
    "open": Kind(SERVER, "the server may start workers"),
    "start": Kind(SERVER, "the server starts a worker"),
    "settle": Kind(SERVER, "the server takes {0} for dead", given="settle"),
    "limit": Kind(SERVER, "the deadline of {0}, {1} passes", "limits"),
    "close": Kind(SERVER, "the server closes: {0}", "closes"),
    "unwanted": Kind(
        SERVER, "nobody has waited for so long that the deadline for orphans, or the retention, "
        "ends",
    ),
    "expire": Kind(SERVER, "the oldest command is forgotten"),
    "end": Kind(WORKER, "execution {0} ends; with a result: {1}"),
    "crash": Kind(WORKER, "the worker crashes", "crashes"),
    "die": Kind(WORKER, "the worker exits"),
    "reap": Kind(WORKER, "the worker is reaped"),
    "sync": Kind(SERVER, "groups of the journal become safe: {0}"),
    "fall": Kind(
        SERVER, "the server falls; groups of the journal that were not safe and are there: {0}",
        "falls",
    ),
}  # fmt: skip
"""By name; in words by all of its places."""


class KeyStep(BaseStep[KeyState]):
    """A method for each action that is more than an input."""

    KINDS: ClassVar = KINDS
    judge: KeyJudge

    def __init__(self, world: KeyWorld, state: KeyState) -> None:
        super().__init__(world.configuration, state.left)
        self._world = world
        self._router, self._worker, callers, self._commands, _, past = state[:6]
        self._disk, self._life = state.disk, state.life
        self._callers = list(callers)
        asked = world.configuration
        self.judge = self._judge(past, asked.consent, asked.allowance)

    def _judge(self, past: KeyPast, consent: bool, allowance: int) -> KeyJudge:
        return KeyJudge(past, consent, allowance)

    def take(self, action: Action) -> None:
        """Let it happen, and look whether it is what the model says."""
        super().take(action)
        worker, live, free = self._worker, dict[int, bool](), False
        if worker is not None and worker.core != DEAD and not worker.doomed:
            live = {run.number: run.cancelled for run in self._of_generations(worker)}
            free = len(live) < 2
        self.judge.settle(live, free)
        for wrong in self._world.routers.info[self._router].wrong:
            self.judge.violation("G8", wrong)

    def state(self) -> KeyState:
        """The state after it."""
        return KeyState(
            self._router, self._worker, tuple(self._callers), self._commands, self.left,
            self.judge.past(), self._disk, self._life,
        )  # fmt: skip

    def _of_generations(self, worker: WorkerPart) -> Iterator[Running]:
        """Its executions, by the number of the generation."""
        for run in worker.runs:
            yield run._replace(number=int(run.key))

    def _session(self, c: int) -> bytes:
        return session_of(c, self._callers[c], self._life)

    # -- callers --------------------------------------------------------------------

    def _back(self, c: int) -> None:
        """A process of this caller opens a session."""
        caller = self._callers[c]
        self._callers[c] = caller = caller._replace(sessions=caller.sessions + 1, here=True, next=0)
        nonce = names.nonce(c, caller.sessions)
        self._client(c, messages.Hello(1, nonce, 1, names.client_name(c), MOST_BYTES))

    def _ask(self, c: int, input: bytes) -> None:
        caller = self._callers[c]
        if input == OTHER:
            self._spend("others")
        else:
            self._callers[c] = caller._replace(asked=caller.asked + 1)
        request = self._session(c), caller.next
        self.judge.asked(request, token(c), input)
        self._request(c, KeyAct.ASK, input)

    def _again(self, c: int, gone: bool) -> None:
        """Issue again what it asked in a session that is over."""
        caller = self._callers[c]
        self._callers[c] = caller._replace(lost=False)
        request = self._session(c), caller.next
        self.judge.asked(request, token(c), INPUT, 1, gone)
        self._request(c, KeyAct.ASK, INPUT, earlier=1, gone=gone)

    def _withdraw(self, c: int) -> None:
        caller = self._callers[c]
        self._callers[c] = caller._replace(lost=False)
        self.judge.withdrew((self._session(c), caller.next), token(c))
        self._request(c, KeyAct.WITHDRAW)
        self._take(c, caller.next)

    def _attach(self, c: int) -> None:
        self.judge.attached((self._session(c), self._callers[c].next))
        self._request(c, KeyAct.ATTACH)

    def _command(self, act: int, tag: Tag) -> None:
        if isinstance(tag, bytes):
            self._commands = (*self._commands, (act, tag))
        self._by_key(act, tag)

    def _copy(self, act: int, tag: bytes) -> None:
        """A command comes once more, in whatever session."""
        self._by_key(act, tag)

    def _by_key(self, act: int, tag: Tag) -> None:
        """By the first who is there: whose it is matters to nobody."""
        c = next((c for c, caller in enumerate(self._callers) if caller.here), 0)
        if not self._callers[c].here:
            self._back(c)
        caller = self._callers[c]
        request = self._session(c), caller.next
        self.judge.commanded(request, act, tag, forget=act == KeyAct.FORGET)
        self._request(c, KeyAct(act), tag=tag)
        self._take(c, request[1])

    def _request(
        self, c: int, act: KeyAct, body: bytes = b"", tag: Tag = b"", *, earlier: int | None = None,
        gone: bool = True,
    ) -> None:  # fmt: skip
        caller, asked = self._callers[c], self._world.configuration
        message = messages.KeyedRequest(
            self._session(c), caller.next, input_digest(body, asked.consent), asked.consent,
            asked.allowance, 60.0 if asked.limits and act is KeyAct.ASK else None, token(c), act,
            NAMESPACE, KEY, tag, earlier, gone,
        )  # fmt: skip
        number = self._world.mail.number((messages.encode(message), body))
        self._callers[c] = caller._replace(
            next=caller.next + 1, said=(*caller.said, Said(caller.next, number, body))
        )
        self._send(c, number)

    def _repeat(self, c: int, sequence: int) -> None:
        """A transmission comes again."""
        caller = self._callers[c]
        said = next(each for each in caller.said if each.sequence == sequence)
        self.judge.repeated((self._session(c), sequence), said.told)
        self._send(c, said.message)

    def _cancel(self, c: int, sequence: int) -> None:
        session = self._session(c)
        self.judge.cancelled((session, sequence))
        self._client(c, messages.KeyedCancel(session, sequence))
        self._drop(c, sequence)

    def _take(self, c: int, sequence: int) -> None:
        """Its caller has what it was told."""
        session = self._session(c)
        self.judge.left((session, sequence))
        self._drop(c, sequence)
        self._client(c, messages.Finish(session, [sequence, sequence + 1]))

    def _drop(self, c: int, sequence: int) -> None:
        caller = self._callers[c]
        said = tuple(each for each in caller.said if each.sequence != sequence)
        self._callers[c] = caller._replace(said=said)

    def _goodbye(self, c: int) -> None:
        session = self._session(c)
        self._callers[c] = self._callers[c]._replace(here=False, said=())
        self.judge.said_goodbye(session)
        self._client(c, messages.Goodbye(session))

    def _gone(self, c: int) -> None:
        """Its process dies, and its session stays until the lease ends."""
        caller = self._callers[c]
        self._leave(c, (*caller.left, self._session(c)))

    def _lease(self, c: int, session: bytes) -> None:
        """A lease ends: of the session in use, or of one that was left."""
        caller = self._callers[c]
        if session in caller.left:
            left = tuple(each for each in caller.left if each != session)
            self._callers[c] = caller._replace(left=left)
        else:
            self._spend("leases")
            self._leave(c, caller.left)
        self.judge.lost(session)
        self._server("lease", session)

    def _leave(self, c: int, left: tuple[bytes, ...]) -> None:
        caller = self._callers[c]
        lost = caller.lost or any(s.input == INPUT and s.told is None for s in caller.said)
        self._callers[c] = caller._replace(here=False, said=(), lost=lost, left=left)

    # -- the server -------------------------------------------------------------------

    def _open(self) -> None:
        self._server("open", ())

    def _start(self, slot: int) -> None:
        self._server("start", slot)

    def _limit(self, session: bytes, sequence: int) -> None:
        self.judge.out_of_time((session, sequence))
        self._server("deadline", session, sequence)

    def _unwanted(self) -> None:
        self.judge.unwanted()
        self._server("unwanted")

    def _expire(self) -> None:
        self.judge.expired()
        self._server("command")

    def _close(self, stage: str) -> None:
        self.judge.closed(cancelling=stage == "CANCELLING")
        self._server("close", stage)

    def _client(self, c: int, message: Any) -> None:
        self._send(c, self._world.mail.number((messages.encode(message),)))

    def _send(self, c: int, number: int) -> None:
        self._server("client", names.route(c, self._callers[c].sessions), number)

    def _server(self, *given: Any) -> None:
        """The router's machine steps, and all follows that follows at once."""
        self._router, effects = self._world.routers.step(self._router, given)
        for effect in effects:
            match effect:
                case ("client", _, message):
                    self._told(message)
                case ("worker", _, message):
                    self._dispatched(message)
                    self._work("message", message)
                case ("spawn", worker, incarnation):
                    self._worker = WorkerPart(worker, 0, self._world.workers.new(incarnation))
                    self._work("hello")
                case ("kill", _):
                    assert self._worker is not None
                    self._worker = self._worker._replace(doomed=True)
                case ("lost", _):
                    self._lost()
                case ("save", rows):
                    self._write(rows)
                case ("crash", text):
                    self.judge.violation("CRASH", text)

    def _write(self, rows: tuple[Row, ...]) -> None:
        """Records are written to the journal, if there is one."""

    def _told(self, number: int) -> None:
        """A caller hears it."""
        header, frames = self._world.mail.message[number], self._world.mail.frames[number]
        match header:
            case messages.Outcome():
                told = told_of(header, frames[1])
            case messages.Refused():
                told = ("refused", header.code)
            case messages.Cancelled():
                to = "cancel", (header.session, header.sequence)
                self.judge.told(to, ("left", header.started))
                return
            case _:
                return
        self.judge.told((header.session, header.sequence), told)
        c = names.owner(header.session)
        caller = self._callers[c]
        if not caller.here or header.session != self._session(c):
            return
        said = (s._replace(told=told) if s.sequence == header.sequence else s for s in caller.said)
        over = told[0] == "refused"
        self._callers[c] = caller._replace(
            said=tuple(s for s in said if not (over and s.sequence == header.sequence))
        )

    # -- the worker -------------------------------------------------------------------

    def _dispatched(self, number: int) -> None:
        """Count a dispatch as a run, whether or not the worker gets to it."""
        message = self._world.mail.message[number]
        if not isinstance(message, messages.Dispatch):
            return
        worker, body = self._worker, self._world.mail.frames[number][2]
        assert worker is not None
        self.judge.started(message.sequence, body, [int(run.key) for run in worker.runs])
        run = Running(message.number, b"%d" % message.sequence, message.session, cancelled=False)
        self._worker = worker._replace(runs=(*worker.runs, run))

    def _work(self, *given: Any) -> None:
        """The worker's machine steps, if it lives."""
        worker = self._worker
        if worker is None or worker.core == DEAD:
            return
        core, effects = self._world.workers.step(worker.core, given)
        self._worker = worker._replace(core=core)
        for effect in effects:
            worker = self._worker
            match effect:
                case ("router", message):
                    self._server("worker", worker.id, message)
                case ("cancel", number):
                    self._worker = worker.told_to_stop(number)
                case ("exit",):
                    self._worker = worker._replace(doomed=True)
                case ("crash", text):
                    self.judge.violation("CRASH", text)

    def _end(self, number: int, result: bool) -> None:
        """Environment code ends: with a result, or, if it was told to, without."""
        assert self._worker is not None
        run, self._worker = self._worker.ended(number)
        generation = int(run.key)
        payload = b"%d@%d" % (generation, number)
        self.judge.ended(generation, ("result", payload))
        status = Status.RESULT if result else Status.CANCELLED
        self._work("ended", number, int(status), payload)
        self._work("beat")  # and the router says that it has the outcome

    def _crash(self) -> None:
        self._die()

    def _die(self) -> None:
        assert self._worker is not None
        self._worker = self._worker._replace(core=DEAD, doomed=False)

    def _reap(self) -> None:
        assert self._worker is not None
        self._worker = self._worker._replace(reaped=True)
        self._server("exited", self._worker.id)

    def _lost(self) -> None:
        """Its executions are proven over."""
        assert self._worker is not None
        for run in self._worker.runs:
            self.judge.ended(int(run.key), None)
        self._worker = None


def told_of(outcome: messages.Outcome, payload: bytes) -> Told:
    """The answer of an outcome to who waited."""
    if outcome.status == Status.RESULT:
        if payload[:1].isdigit():
            return "result", payload
        record = cbor2.loads(payload)
        return "said", record["generation"], record["started"], record.get("finished", False)
    code = error_records.decode(payload).code
    if outcome.status == Status.CANCELLED:
        return "cancelled", code != "never-started"
    return "error", code
