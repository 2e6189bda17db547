"""A worker against any order of a router's messages, repeated, late or out of turn.

The machine is the router: it numbers dispatches, stops some, states what it holds, and
hears what the worker sends; any of its messages may be lost, and be sent again.  It
judges by what the shell was told to do.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trio_envserve.core import messages
from trio_envserve.core.messages import Dispatch, Retire, Statement, Stop
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.terms import Status
from trio_envserve.core.worker import (
    BeatDue,
    BeginRun,
    CancelRun,
    Exit,
    OutcomeMade,
    RouterMessage,
    ToRouter,
    WorkerCore,
)

MINE, OTHER = b"i" * 16, b"o" * 16
SESSION = b"s" * 16
LOST, ONCE, TWICE = 0, 1, 2
TIMES = st.sampled_from((ONCE, ONCE, ONCE, LOST, TWICE))


class WorkerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = WorkerCore(MINE, header_bytes=1 << 16)
        self.next = 0
        self.beat = 0
        self.wanted: set[int] = set()
        """What the router wants an outcome of."""
        self.stopped: set[int] = set()
        self.told_to_stop: set[int] = set()
        """Those of which a stop has arrived."""
        self.ran: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.running: set[int] = set()
        self.outcomes: dict[int, object] = {}
        self.declined: set[int] = set()

    # -- the wire ---------------------------------------------------------------

    def send(self, message, *body, times=ONCE, incarnation=MINE):
        for _ in range(times):
            before = set(self.running)
            self.hear(self.core.take(RouterMessage((incarnation, messages.encode(message), *body))))
            if incarnation == OTHER:
                assert self.running == before

    def hear(self, effects):
        for effect in effects:
            match effect:
                case BeginRun(number=number):
                    assert number not in self.ran, "runs a number twice"
                    assert number not in self.told_to_stop, "runs what was stopped before"
                    assert number not in self.declined, "runs what it has declined"
                    self.ran[number] = 1
                    self.running.add(number)
                case CancelRun(number=number):
                    assert number in self.running
                    assert number not in self.cancelled, "cancels twice"
                    self.cancelled.add(number)
                case Exit():
                    pass
                case ToRouter(frames=frames):
                    self.from_worker(frames)

    def from_worker(self, frames):
        assert frames[0] == MINE
        if len(frames) == 4:  # with the socket's worker id: five
            outcome = messages.decode(frames[2], most_bytes=1 << 16)
            assert isinstance(outcome, messages.WorkerOutcome)
            number = outcome.number
            assert number not in self.running
            assert self.outcomes.setdefault(number, frames) == frames, "two outcomes that differ"
            return
        message = messages.decode(frames[1], most_bytes=1 << 16)
        match message:
            case messages.Missing():
                missing = set(Ranges.from_flat(message.numbers))
                assert not missing & (set(self.ran) | self.declined | set(self.outcomes))
                assert missing <= self.wanted
            case messages.Declined():
                declined = set(Ranges.from_flat(message.numbers))
                assert not declined & set(self.ran), "declines what it ran"
                self.declined |= declined
                self.wanted -= declined
            case messages.Beat():
                assert set(self.ran) <= set(Ranges.from_flat(message.seen))

    # -- the router ---------------------------------------------------------------

    def dispatch_of(self, number):
        return Dispatch(SESSION, number, number, "client")

    @rule(times=TIMES)
    def dispatch(self, times):
        number = self.next
        self.next += 1
        self.wanted.add(number)
        self.send(self.dispatch_of(number), b"body", times=times)

    @rule(data=st.data(), times=TIMES)
    @precondition(lambda self: self.next)
    def dispatch_again(self, data, times):
        number = data.draw(st.integers(0, self.next - 1))
        self.send(self.dispatch_of(number), b"body", times=times)

    @rule(data=st.data(), times=TIMES)
    @precondition(lambda self: self.wanted)
    def stop(self, data, times):
        number = data.draw(st.sampled_from(sorted(self.wanted)))
        self.stopped.add(number)
        if times:
            self.told_to_stop.add(number)
        self.send(Stop([number, number + 1]), times=times)

    @rule(times=TIMES)
    def state(self, times):
        """What the router holds; what came of it is in its hands by now, or is lost."""
        if times:
            self.told_to_stop |= self.stopped & self.wanted & self.running
        before = {n for n in self.wanted if n not in self.core.seen}
        repair = Statement(
            self.beat, self.next, Ranges(self.wanted).flat(),
            Ranges(self.stopped & self.wanted).flat(),
        )  # fmt: skip
        self.send(repair, times=times)
        if times:
            unwanted = self.running - self.wanted
            assert unwanted <= self.cancelled, "goes on with what nobody wants"
            assert self.stopped & self.wanted & self.running <= self.cancelled
            assert self.core.acknowledged
            assert not {n for n in before & self.stopped if n in self.wanted}, "never declined"

    @rule(data=st.data())
    @precondition(lambda self: set(self.outcomes) & self.wanted)
    def receives(self, data):
        """An outcome has reached the router, which needs that execution no more."""
        self.wanted.discard(data.draw(st.sampled_from(sorted(set(self.outcomes) & self.wanted))))

    @rule(message=st.sampled_from((Stop([0, 3]), Statement(0, 5, [], []), Retire())))
    def to_another_incarnation(self, message):
        fenced = self.core.fenced
        self.send(message, incarnation=OTHER)
        self.send(self.dispatch_of(self.next), b"body", incarnation=OTHER)
        assert self.core.fenced == fenced + 2

    # -- the environment ------------------------------------------------------------

    @rule(data=st.data(), status=st.sampled_from(Status))
    @precondition(lambda self: self.running)
    def ends(self, data, status):
        number = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(number)
        self.hear(self.core.take(OutcomeMade(number, status, b"payload", 0.1)))
        assert number in self.outcomes

    @rule()
    def beats(self):
        self.beat += 1
        self.hear(self.core.take(BeatDue({})))

    @rule()
    def every_loss_is_repaired(self):
        """Two beats that are answered: nothing that the router wants stays unknown."""
        sent = dict.fromkeys(self.outcomes.keys() & self.wanted)
        for _ in range(2):
            self.beats()
            self.told_to_stop |= self.stopped & self.wanted & self.running
            live, stopped = Ranges(self.wanted).flat(), Ranges(self.stopped & self.wanted).flat()
            frames = (MINE, messages.encode(Statement(self.beat, self.next, live, stopped)))
            for effect in self.core.take(RouterMessage(frames)):
                self.hear([effect])
                if isinstance(effect, ToRouter) and len(effect.frames) == 4:
                    outcome = messages.decode(effect.frames[2], most_bytes=1 << 16)
                    assert isinstance(outcome, messages.WorkerOutcome)
                    sent.pop(outcome.number, None)
                if isinstance(effect, ToRouter) and len(effect.frames) == 2:
                    message = messages.decode(effect.frames[1], most_bytes=1 << 16)
                    if isinstance(message, messages.Missing):
                        for number in Ranges.from_flat(message.numbers):
                            self.send(self.dispatch_of(number), b"body")
        assert not sent, "an outcome that the router wants was not sent again"
        assert self.wanted <= self.running | set(self.outcomes)

    @invariant()
    def runs_what_it_says(self):
        assert set(self.core.running) == self.running
        assert self.core.malformed == 0


WorkerMachine.TestCase.settings = settings()
TestWorker = WorkerMachine.TestCase
