"""A worker against any order of a router's messages.

The machine is the router: it numbers dispatches, stops some, asks for announced outcomes or does
not want them, is replaced by another one, and hears what the worker sends.  It judges by what the
shell was told to do, and by each beat.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trio_envserve.core import messages
from trio_envserve.core.limits import ServerLimits
from trio_envserve.core.messages import Dispatch, Fetch, Retire, RouterChanged, Stop
from trio_envserve.core.ranges import Ranges
from trio_envserve.core.terms import Status
from trio_envserve.core.worker import (
    BeatDue,
    BeginRun,
    CancelRun,
    EnvironmentReady,
    Exit,
    OutcomeMade,
    RouterMessage,
    ToRouter,
    WorkerCore,
)

MINE, OTHER = b"i" * 16, b"o" * 16
SESSION = b"s" * 16
PAYLOADS = st.sampled_from((b"small", b"announced: it is large"))


class WorkerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.core = WorkerCore(MINE, limits=ServerLimits(announce_bytes=10))
        self.core.take(EnvironmentReady(1, "environment", False))
        self.next = 0
        self.epoch = b""
        self.told = 0
        """Messages of this router."""
        self.sent = 1
        """Messages to it, from the hello on."""
        self.hellos = 0
        self.running: set[int] = set()
        self.cancelled: set[int] = set()
        self.held: set[int] = set()
        """Those whose outcomes were announced, and not sent."""
        self.outcomes: set[int] = set()
        self.announced: list[int] = []
        """Announcements of this step."""

    # -- the wire ---------------------------------------------------------------

    def send(self, message, *body, incarnation=MINE):
        self.told += incarnation == MINE
        self.hear(self.core.take(RouterMessage((incarnation, messages.encode(message), *body))))

    def hear(self, effects):
        self.announced = []
        for effect in effects:
            match effect:
                case BeginRun(number=number):
                    assert number == self.next - 1, "runs what was not told"
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
        message = messages.decode(frames[len(frames) // 2], most_bytes=1 << 16)
        self.sent += not isinstance(message, messages.UNCOUNTED)
        match message:
            case messages.WorkerOutcome(number=number):
                assert number not in self.outcomes, "an outcome is sent twice"
                assert number not in self.running
                self.outcomes.add(number)
                self.held.discard(number)
            case messages.Announced(number=number):
                self.announced.append(number)
                self.held.add(number)
            case messages.WorkerHello():
                self.hellos += 1
                self.sent = 1
                assert message.epoch == self.epoch
            case messages.Beat():
                live = Ranges(sorted(self.running | self.held)).flat()
                assert message == messages.Beat(self.epoch, self.told, self.sent, live, {})

    # -- the router ---------------------------------------------------------------

    @rule()
    def dispatch(self):
        self.next += 1
        self.send(Dispatch(SESSION, self.next - 1, self.next - 1, "client"), b"body")
        assert self.next - 1 in self.running

    @rule(data=st.data())
    @precondition(lambda self: self.next)
    def stop(self, data):
        number = data.draw(st.integers(0, self.next - 1))
        self.send(Stop([number, number + 1]))
        assert number in self.cancelled or number not in self.running

    @rule(data=st.data(), is_wanted=st.booleans())
    @precondition(lambda self: self.held)
    def fetch(self, data, is_wanted):
        number = data.draw(st.sampled_from(sorted(self.held)))
        spans = [number, number + 1]
        self.send(Fetch(spans, []) if is_wanted else Fetch([], spans))
        assert (number in self.outcomes) is is_wanted
        self.held.discard(number)

    @rule(epoch=st.binary(min_size=16, max_size=16))
    def another_takes_over(self, epoch):
        hellos, held = self.hellos, set(self.held)
        self.epoch, self.told = epoch, -1
        self.send(RouterChanged(epoch))
        assert self.hellos == hellos + 1
        assert sorted(self.announced) == sorted(held), "what is held is not said again, once"

    @rule(message=st.sampled_from((Stop([0, 3]), Fetch([0, 9], []), Retire())))
    def to_another_incarnation(self, message):
        fenced = self.core.fenced
        self.send(message, incarnation=OTHER)
        self.send(Dispatch(SESSION, 0, self.next, "client"), b"body", incarnation=OTHER)
        assert self.core.fenced == fenced + 2

    # -- the environment ------------------------------------------------------------

    @rule(data=st.data(), status=st.sampled_from(Status), payload=PAYLOADS)
    @precondition(lambda self: self.running)
    def ends(self, data, status, payload):
        number = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(number)
        self.hear(self.core.take(OutcomeMade(number, status, payload, 0.1)))
        assert number in self.outcomes | self.held

    @rule()
    def beats(self):
        self.hear(self.core.take(BeatDue({})))

    @invariant()
    def runs_what_it_says(self):
        assert set(self.core.running) == self.running
        assert self.core.malformed == 0


WorkerMachine.TestCase.settings = settings()
TestWorker = WorkerMachine.TestCase
