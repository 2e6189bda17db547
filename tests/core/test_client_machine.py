"""A client against a server that says anything at any time, true or not.

The machine is callers, network and server at once.  What it says of sessions and
sequences is mostly plausible, and never has to be right: what it asserts is what a client
owes its callers and its server whatever it hears.
"""

import itertools
from collections import defaultdict

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trio_envserve.core import error_records, messages
from trio_envserve.core.client import (
    Answer,
    CallsCancelled,
    CallSubmitted,
    ClientClosed,
    ClientCore,
    ClientInput,
    ClientTick,
    Connected,
    Disconnected,
    Fail,
    OutcomeReceived,
    ServerMessage,
    Terms,
    ToServer,
)
from trio_envserve.core.errors import ErrorInfo
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.requests import grant
from trio_envserve.core.terms import Body, Status, Verdict

EPOCHS = (b"e" * 16, b"f" * 16)
READY = {"status": "healthy", "reason": "", "rerun": False}
STATUSES = st.sampled_from((READY, {**READY, "rerun": True}, {**READY, "status": "stopping"}, {}))
ERRORS = st.builds(
    ErrorInfo, st.sampled_from(("rollout-failed", "worker-lost", "stopping", "timeout")),
    st.sampled_from(Verdict), st.just("as the server says"),
)  # fmt: skip


class ClientMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        ids = itertools.count(1)
        self.core = ClientCore(name="machine", new_id=lambda: b"%016d" % next(ids), now_s=0.0)
        self.sessions: list[bytes] = []
        self.gone: set[bytes] = set()
        """Sessions of which the server has said that nothing runs any more."""
        self.nonce = b""
        self.probe = 0
        self.most: dict[int, int] = {}
        self.waiting: set[int] = set()
        """Calls whose callers still wait."""
        self.answered: set[int] = set()
        """Calls with an outcome that the caller has not got in hands yet."""
        self.requests: dict[tuple[bytes, int], tuple[Body, ...]] = {}
        self.ids: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
        self.granted: dict[tuple[bytes, int], int] = {}
        """The most executions that a server may start for each request."""
        self.finished: dict[bytes, Ranges] = defaultdict(Ranges)
        self.unrun: set[tuple[bytes, int]] = set()
        """Ids of which a stopping server has said that they never ran: they are spent."""
        self.expired: set[tuple[bytes, int]] = set()
        """Ids whose caller's limit has passed: the server was asked whether they ran."""

    # -- what the client does ---------------------------------------------------

    def take(self, given: ClientInput) -> None:
        for effect in self.core.take(given):
            match effect:
                case ToServer(frames=frames):
                    assert self.core.link.connected, "sends without a connection"
                    self.to_server(frames)
                case Answer(call=call):
                    assert call in self.waiting, "an answer that nobody waits for"
                    self.waiting.discard(call)
                    self.answered.add(call)
                case Fail(call=call, info=info):
                    assert call in self.waiting, "ended twice, or after its outcome"
                    self.waiting.discard(call)
                    own = info.code in ("closed", "server-unreachable") or (
                        info.code == "never-started" and "transmitted" in info.message
                    )
                    if own and info.verdict is Verdict.DID_NOT_RUN:
                        assert self.unrun.issuperset(self.ids[call]), "was sent, so it may have run"
        for call in self.waiting | self.answered:
            for session, sequence in self.ids[call][-1:]:
                if session in self.gone or (session, sequence) in self.unrun | self.expired:
                    continue
                assert sequence not in self.finished[session], "finished before it was received"

    def to_server(self, frames: tuple[Body, ...]) -> None:
        message = messages.decode(frames[0], most_bytes=1 << 16)
        match message:
            case messages.Hello():
                assert not self.core.closed
                self.nonce = message.nonce
            case messages.Request():
                self.request(message, frames)
            case messages.Finish():
                self.finished[message.session].update(Ranges.from_flat(message.finished))
            case messages.Cancel():
                self.finished[message.session].add(message.sequence)
                self.expired.add((message.session, message.sequence))
            case messages.Sync():
                self.probe = max(self.probe, message.probe)
                pending = Ranges.from_flat(message.pending)
                assert len(pending) <= 4 + 1, "more than the window"
                self.finished[message.session].update(pending.gaps(message.next))

    def request(self, message: messages.Request, frames: tuple[Body, ...]) -> None:
        assert not self.core.closed
        key = (message.session, message.sequence)
        assert message.sequence not in self.finished[message.session]
        assert self.requests.setdefault(key, frames) == frames, "one id, two requests (G6)"
        call = int(frames[1])
        if key in self.ids[call]:
            return
        assert call in self.waiting, "asks for what nobody waits for"
        before = [each for each in self.ids[call] if each not in self.unrun]
        self.ids[call].append(key)
        assert message.allowance == self.most[call], "another allowance (G6)"
        earlier = message.earlier or 0
        started = sum(self.granted[each] for each in before)
        assert started <= earlier <= message.allowance, "more than the caller allowed (G2)"
        left = message.allowance - earlier
        self.granted[key] = min(left, 1) if message.rerun is False else grant(left) if left else 0
        if before:
            assert before[-1][0] in self.gone, "again, without proof that nothing runs (G1)"

    # -- callers ------------------------------------------------------------------

    @rule(
        rerun=st.sampled_from((None, True, False)),
        most=st.integers(1, 3),
        limit_s=st.sampled_from((None, None, 5.0)),
    )
    def submit(self, rerun, most, limit_s):
        call = len(self.most)
        self.waiting.add(call)
        self.most[call] = most
        self.take(CallSubmitted(call, b"%d" % call, self.now_s, Terms(rerun, most, limit_s)))

    @rule(data=st.data())
    @precondition(lambda self: self.answered)
    def received(self, data):
        call = data.draw(st.sampled_from(sorted(self.answered)))
        self.answered.discard(call)
        self.take(OutcomeReceived(call, self.now_s))

    @rule(data=st.data())
    @precondition(lambda self: self.waiting)
    def cancel(self, data):
        call = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.discard(call)
        self.take(CallsCancelled((call,), self.now_s))

    @rule()
    @precondition(lambda self: self.now_s > 40.0)
    def close(self):
        self.take(ClientClosed(self.now_s))
        assert not self.waiting, "closed, and somebody still waits"

    # -- the network, and time ------------------------------------------------------

    @rule()
    @precondition(lambda self: not self.core.link.connected)
    def connects(self):
        self.take(Connected(self.now_s))

    @rule()
    @precondition(lambda self: self.core.link.connected)
    def disconnects(self):
        self.take(Disconnected(self.now_s, "cut"))

    @rule(step_s=st.sampled_from((0.0, 0.05, 0.3, 1.1, 3.0)), late=st.booleans())
    def time_passes(self, step_s, late):
        self.now_s += step_s
        self.take(ClientTick(self.now_s, step_s if late else 0.0))

    # -- the server -------------------------------------------------------------------

    def say(self, message, *body):
        self.take(ServerMessage((messages.encode(message), *body), self.now_s))

    def draw_id(self, data) -> tuple[bytes, int]:
        """An id that was asked for, or nearly one."""
        known = data.draw(st.sampled_from(sorted(self.requests) or [(b"?" * 16, 0)]))
        return known[0], known[1] + data.draw(st.sampled_from((0, 0, 0, 0, 1)))

    @rule(epoch=st.sampled_from(EPOCHS), status=STATUSES, ours=st.booleans())
    def welcome(self, epoch, status, ours):
        session = b"s%015d" % len(self.sessions)
        before = self.core.sessions.current
        nonce = self.nonce if ours and self.nonce else b"n" * 16
        self.say(messages.Welcome(2, nonce, session, epoch, 4, 1 << 20, status))
        if self.core.sessions.current is not before:
            assert nonce == self.nonce, "takes a welcome that is not its own"
            self.sessions.append(session)

    @rule(data=st.data(), status=st.sampled_from(Status), error=ERRORS)
    def outcome(self, data, status, error):
        session, sequence = self.draw_id(data)
        body = b"result" if status is Status.RESULT else error_records.encode(error)
        executions = data.draw(st.integers(0, 2))
        if status is not Status.RESULT and error.code == "stopping" and not executions:
            self.unrun.add((session, sequence))
        self.say(messages.Outcome(session, sequence, status, "w0-1", 0.1, executions), body)

    @rule(data=st.data(), status=STATUSES)
    @precondition(lambda self: self.sessions)
    def synced(self, data, status):
        session = data.draw(st.sampled_from(self.sessions))
        start = data.draw(st.integers(0, 5))
        missing = data.draw(st.sampled_from(([], [], [start, start + 2], [0, 1 << 60])))
        probe = data.draw(st.integers(max(0, self.probe - 2), self.probe))
        self.say(messages.Synced(session, probe, missing, status))

    @rule(
        data=st.data(), code=st.sampled_from(("conflict", "finished", "window", "refused")),
        full=st.sampled_from((None, b"", b"default", b"other")),
    )  # fmt: skip
    def refused(self, data, code, full):
        session, sequence = self.draw_id(data)
        delay_s = 0.2 if code == "window" else None
        self.say(messages.Refused(session, sequence, code, "no", delay_s, full))

    @rule(
        data=st.data(), gone=st.booleans(), epoch=st.sampled_from(EPOCHS), settled=st.booleans()
    )  # fmt: skip
    @precondition(lambda self: self.sessions)
    def unknown(self, data, gone, epoch, settled):
        session = data.draw(st.sampled_from(self.sessions))
        if gone:
            self.gone.add(session)
            if settled:
                self.unrun |= {key for key in self.requests if key[0] == session}
        self.say(messages.Unknown(session, gone, epoch, settled))

    @rule(data=st.data(), started=st.booleans())
    def cancelled(self, data, started):
        session, sequence = self.draw_id(data)
        self.say(messages.Cancelled(session, sequence, started))

    @rule(garbage=st.binary(max_size=20))
    def garbage(self, garbage):
        self.take(ServerMessage((garbage,), self.now_s))

    # -- always -----------------------------------------------------------------------

    @invariant()
    def holds_what_it_owes(self):
        assert set(self.core.calls.live) == self.waiting | self.answered


TestClient = ClientMachine.TestCase
