"""Resources: who may destroy what, and that nothing is left, whatever is lost, dies or restarts."""

from __future__ import annotations

from typing import Any

import pytest

from trio_envserve.core import scope
from trio_envserve.core.account import Account
from trio_envserve.core.errors import ProtocolError
from trio_envserve.core.executions import Execution
from trio_envserve.core.executions import Worker as Process
from trio_envserve.core.gate import Budget, Gate
from trio_envserve.core.journal import Closed, Journal, remains_of
from trio_envserve.core.limits import KeyLimits, ServerLimits
from trio_envserve.core.messages import (
    Clean,
    ResourceAnswer,
    ResourceIntended,
    ResourceStated,
)
from trio_envserve.core.scope import OpenResources, Resources, ResourceState, ToHolder

from .helpers import execution_on, worker_of

INTENDED, CREATED, LEFT, GONE = ResourceState
LIMITS = ServerLimits(resources=6, account_resources=4, execution_resources=2)


def process(number: int, host: str = "") -> Process:
    """The router's record of a worker."""
    made = worker_of(b"w%d" % number, incarnation=bytes([number]) * 16)
    made.host = host
    return made


def give_due(gate: Gate[ToHolder], resources: Resources) -> None:
    """Tell workers what waits no more for the journal."""
    for held, _ in gate.take_due():
        resources.tell(held)


class Machine:
    """The router's machine with some workers, and no links."""

    def __init__(self, *, journal: bool = False, limits: ServerLimits = LIMITS) -> None:
        self.journal, self.now_s = Journal(on=journal), 100.0
        self.told: list[tuple[Any, Any]] = []
        self.lines: list[str] = []
        self.gate: Gate[ToHolder] = Gate(self.journal, KeyLimits(), Budget())
        self.resources = Resources(
            b"e" * 16, limits, self.journal, self.gate, lambda *told: self.told.append(told),
            self.lines.append,
        )  # fmt: skip
        self.workers = [process(number) for number in range(2)]
        self.places = iter(range(1000))

    def runs(self, worker: int = 0, account: bytes = b"a" * 16) -> Execution:
        return execution_on(self.workers[worker], Account(id=account, name=""))

    def intend(self, execution: Execution | None, worker: int = 0, **more: Any) -> ResourceAnswer:
        """The answer to an intent; a journal saves it."""
        number = 0 if execution is None else execution.number
        intent = ResourceIntended(number, next(self.places), "sandbox", "m:f")
        intent = intent._replace(**more)
        self.resources.intend(self.workers[worker], execution, intent, self.now_s)
        self.save()
        answer: ResourceAnswer = self.told.pop()[1]
        return answer

    def save(self) -> None:
        self.journal.saved(self.journal.appended)
        give_due(self.gate, self.resources)

    def states(
        self, name: str, state: int, worker: int = 0, turn: int | None = None,
        handle: bytes = b"", why: str = "",
    ) -> None:  # fmt: skip
        said = ResourceStated(name, state, handle, why, turn)
        self.resources.stated(self.workers[worker], said, self.now_s)
        self.save()

    def gives(self, after_s: float = 0.0, *workers: int) -> list[Clean]:
        """The cleanings that are given when so much time has passed."""
        self.now_s += after_s
        self.told.clear()
        self.resources.give(self.now_s, [self.workers[each] for each in workers or (0, 1)])
        self.save()
        return [message for _, message in self.told if isinstance(message, Clean)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", ""),
        ("kind", "k" * 65),
        ("kind", "a\n"),
        ("destroy", "d" * 1025),
    ],
)
def test_intent_with_a_text_that_is_none_is_malformed(field: str, value: str):
    machine = Machine()
    with pytest.raises(ProtocolError, match="a resource with a text"):
        machine.intend(machine.runs(), 0, **{field: value})


@pytest.mark.parametrize(
    ("state", "handle", "why"),
    [
        (INTENDED, b"", "of a resource"), (4, b"", "of a resource"),
        (CREATED, bytes(scope.HANDLE_BYTES + 1), "4097 bytes of handle"),
    ],
)  # fmt: skip
def test_statement_of_another_state_or_with_a_large_handle_is_malformed(
    state: int, handle: bytes, why: str
):
    machine = Machine()
    with pytest.raises(ProtocolError, match=why):
        machine.states("n", state, handle=handle)


def test_cleaning_that_creates_is_malformed():
    machine = Machine()
    name = machine.intend(machine.runs()).name
    machine.states(name, LEFT)
    machine.gives()
    holder = next(n for n, each in enumerate(machine.workers) if each.cleanings)
    with pytest.raises(ProtocolError, match="created by its cleaning"):
        machine.states(name, CREATED, holder, turn=1)


def test_bounds_refuse_in_words():
    machine = Machine()
    one = machine.runs()
    assert [bool(machine.intend(one).refused) for _ in range(3)] == [False, False, True]
    refused = machine.intend(one).refused
    assert refused == "2 are held by its execution (execution_resources): wait until some are gone"
    for _ in range(2):
        machine.intend(machine.runs())
    assert "session or namespace" in machine.intend(machine.runs()).refused
    for _ in range(2):
        machine.intend(machine.runs(account=b"b" * 16))
    assert "the server (resources)" in machine.intend(machine.runs(account=b"c" * 16)).refused


def test_cancelled_and_ended_executions_get_no_resource():
    machine = Machine()
    execution = machine.runs()
    execution.is_wanted = False
    assert "nobody waits" in machine.intend(execution).refused
    assert "nobody waits" in machine.intend(None).refused


def test_failed_journal_refuses_and_answers_what_was_to_wait():
    machine = Machine(journal=True)
    execution = machine.runs()
    known = machine.intend(execution).name
    intent = ResourceIntended(0, 900, "sandbox", "m:f")
    machine.resources.intend(machine.workers[0], execution, intent, machine.now_s)
    said = ResourceStated(known, GONE, b"", "")
    machine.resources.stated(machine.workers[0], said, machine.now_s)
    machine.journal.fail("the disk is full", final=False)
    give_due(machine.gate, machine.resources)
    assert machine.told == []
    machine.journal.fail("the disk is gone", final=True)
    give_due(machine.gate, machine.resources)
    first, second = (message for _, message in machine.told)
    assert (first.name, first.refused) == ("", "the server's journal has failed: the disk is gone")
    assert second == ResourceAnswer(known, GONE, "")
    assert machine.resources.all == {}
    assert "the disk is gone" in machine.intend(execution).refused


def test_g13_a_doubled_intent_lost_what_was_created_when_the_journal_failed():
    machine = Machine(journal=True)
    execution, worker = machine.runs(), machine.workers[0]
    intent = ResourceIntended(0, 900, "sandbox", "m:f")
    machine.resources.intend(worker, execution, intent, machine.now_s)
    machine.journal.append(Closed, 7)
    machine.resources.intend(worker, execution, intent, machine.now_s)
    machine.journal.saved(1)
    give_due(machine.gate, machine.resources)
    machine.journal.fail("the disk is gone", final=True)
    give_due(machine.gate, machine.resources)
    first, second = (message for _, message in machine.told)
    assert first.name
    assert second == first
    assert list(machine.resources.all) == [first.name]


def test_g13_a_doubled_intent_was_let_create_what_was_never_written_down():
    """The journal failed, and the first answer stood behind as many others as one turn tells."""
    machine = Machine(journal=True)
    execution, worker = machine.runs(), machine.workers[0]
    intent = ResourceIntended(0, 900, "sandbox", "m:f")
    machine.resources.intend(worker, execution, intent, machine.now_s)
    machine.journal.fail("the disk is gone", final=True)
    machine.resources.intend(worker, execution, intent, machine.now_s)
    ((_, answer),) = machine.told
    assert (answer.name, "the disk is gone" in answer.refused) == ("", True)
    give_due(machine.gate, machine.resources)
    assert not machine.told[-1][1].name
    assert machine.resources.all == {}


def test_answers_to_a_dead_worker_are_dropped():
    machine = Machine(journal=True)
    worker, intent = machine.workers[0], ResourceIntended(0, 7, "sandbox", "m:f")
    machine.resources.intend(worker, machine.runs(), intent, 0.0)
    machine.resources.lost(worker, 0.0)
    machine.save()
    assert machine.told == []
    (clean,) = machine.gives(0.0, 1)
    assert clean.handle is None


def test_resource_that_fails_three_times_is_stuck_and_told():
    machine = Machine()
    name = machine.intend(machine.runs()).name
    for _ in range(2):
        machine.states(name, CREATED, handle=b"handle")
    machine.states(name, LEFT, why="the provider\nis down")
    for turn in (1, 2, 3):
        (clean,) = machine.gives(scope.PAUSE_S * (turn - 1))
        assert clean == Clean(name, turn, "sandbox", "m:f", 30.0, b"handle")
        holder = next(n for n, each in enumerate(machine.workers) if each.cleanings)
        machine.states(name, LEFT, holder, turn, why="it is down")
        assert machine.gives() == []
    assert machine.gives(1000.0) == []
    (record,) = machine.resources.records(machine.now_s)
    assert (record["state"], record["tries"], record["worker"]) == ("stuck", 3, "")
    assert tuple(machine.resources.counts().values()) == (1, 0, 1, 0)
    assert "another worker is to" in machine.lines[0]
    assert "is stuck after 3 tries: worker w" in machine.lines[-1]


def test_another_worker_has_the_next_try():
    machine = Machine()
    name = machine.intend(machine.runs()).name
    machine.states(name, LEFT)
    machine.gives()
    first = next(n for n, each in enumerate(machine.workers) if each.cleanings)
    machine.states(name, LEFT, first, 1)
    machine.gives(scope.PAUSE_S)
    assert not machine.workers[first].cleanings
    assert machine.workers[1 - first].cleanings


def of_hosts(*hosts: str, journal: bool = False) -> Machine:
    """A machine whose workers are on these hosts."""
    machine = Machine(journal=journal)
    for worker, host in zip(machine.workers, hosts, strict=True):
        worker.host = host
    return machine


def finds(machine: Machine, *hosts: str) -> None:
    machine.resources.find_hosts(lambda: hosts, machine.now_s)
    machine.save()


@pytest.mark.parametrize("here", [1, None])
def test_g13_resource_of_a_host_is_given_to_none_of_another_host(here: int | None):
    """It found nothing there, and the resource was told as destroyed."""
    machine = of_hosts("a", "b")
    name = machine.intend(machine.runs(), here=here).name
    machine.resources.lost(machine.workers[0], machine.now_s)
    finds(machine, "a", "b")
    given = machine.gives(0.0, 1)
    assert [each.name for each in given] == ([] if here else [name])
    if here:
        assert [each["state"] for each in machine.resources.records(0.0)] == ["waiting"]
        machine.workers[0] = process(7, "a")
        assert [each.name for each in machine.gives()] == [name]
        assert list(machine.workers[0].cleanings) == [name]


@pytest.mark.parametrize(("host", "where"), [("a", "the host a"), ("", "the server's own machine")])
def test_g13_resource_of_a_host_that_is_gone_is_stuck_until_that_is_there_again(
    host: str, where: str
):
    machine = of_hosts(host, "b")
    name = machine.intend(machine.runs(), here=1).name
    machine.resources.lost(machine.workers[0], machine.now_s)
    for _ in range(2):
        finds(machine, "b")
    assert machine.gives(1000.0, 1) == []
    (record,) = machine.resources.records(machine.now_s)
    assert (record["state"], record["tries"]) == ("stuck", 0)
    assert record["why"] == f"only a worker of {where} can destroy it, and there is none any more"
    assert tuple(machine.resources.counts().values()) == (1, 0, 1, 0)
    (line,) = machine.lines
    assert line == (
        f"resources stuck: 1; only a worker of {where} can destroy them, and there is none any "
        "more; start that again, with the same name, or destroy them there by hand: "
        f"resource {name} (sandbox) of request 61616161#0 (m:f)"
    )
    finds(machine, "b", host)
    assert tuple(machine.resources.counts().values()) == (1, 1, 0, 0)
    assert [each.name for each in machine.gives(0.0, 0)] == [name]


def test_g10_lost_host_was_told_in_a_line_for_each_of_its_resources():
    machine = of_hosts("a", "b")
    names = [
        machine.intend(machine.runs(account=bytes([each]) * 16), here=1).name
        for each in range(scope.LOST_SHOWN + 2)
    ]
    machine.resources.lost(machine.workers[0], machine.now_s)
    finds(machine, "b")
    (line,) = machine.lines
    assert line.startswith(f"resources stuck: {len(names)}; only a worker of the host a can ")
    shown = [each for each in names if f"{each} (sandbox)" in line]
    assert shown == names[: scope.LOST_SHOWN]
    assert line.endswith("(m:f) and 2 more")
    assert machine.resources.counts()["resources_stuck"] == len(names)


def test_g13_next_router_gives_a_resource_of_a_host_to_none_of_another_host():
    machine = of_hosts("a", "b", journal=True)
    name = machine.intend(machine.runs(), here=1).name
    other = of_hosts("a", "b", journal=True)
    other.resources.restore(remains_of(machine.journal.take()).resources.values(), other.now_s)
    other.resources.earlier_dead(other.now_s)
    assert other.gives(0.0, 1) == []
    assert [each.name for each in other.gives(0.0, 0)] == [name]


def test_worker_has_few_cleanings_at_once():
    limits = ServerLimits()
    machine = Machine(limits=limits)
    execution = machine.runs()
    for _ in range(scope.CLEANINGS_MOST + 3):
        machine.intend(execution)
    machine.resources.end(execution, machine.now_s)
    assert len(machine.gives(0.0, 1)) == scope.CLEANINGS_MOST
    assert machine.gives(0.0, 1) == []
    states = [each["state"] for each in machine.resources.records(0.0)]
    assert states.count("cleaning") == scope.CLEANINGS_MOST
    assert states.count("waiting") == 3


def test_cleaning_that_does_not_end_retires_its_worker_and_stays_its_own():
    machine = Machine()
    name = machine.intend(machine.runs()).name
    machine.states(name, LEFT)
    machine.gives()
    (worker,) = [each for each in machine.workers if each.cleanings]
    assert list(machine.resources.overdue(machine.now_s + 39.0)) == []
    assert list(machine.resources.overdue(machine.now_s + 40.0)) == [worker]
    assert list(machine.resources.overdue(machine.now_s + 41.0)) == []
    assert machine.gives(100.0) == []
    assert tuple(machine.resources.counts().values()) == (1, 1, 0, 0)
    machine.states(name, GONE, machine.workers.index(worker), 1)
    assert tuple(machine.resources.counts().values()) == (0, 0, 0, 1)


def test_g13_statement_about_what_is_gone_is_answered_when_that_is_safe():
    """It comes again to a router that takes its worker over, and was answered at once."""
    machine = Machine(journal=True)
    name = machine.intend(machine.runs()).name
    said = ResourceStated(name, GONE, b"", "")
    for _ in range(2):
        machine.resources.stated(machine.workers[0], said, machine.now_s)
    assert machine.told == []
    machine.save()
    assert [told for _, told in machine.told] == 2 * [ResourceAnswer(name, GONE, "")]


def test_g13_statement_of_another_than_the_holder_changes_nothing():
    machine = Machine()
    name = machine.intend(machine.runs()).name
    machine.states(name, GONE, 1)
    assert name in machine.resources.all
    machine.states(name, LEFT)
    machine.gives()
    holder = next(n for n, each in enumerate(machine.workers) if each.cleanings)
    machine.states(name, GONE, holder)
    assert name in machine.resources.all, "that was no statement about its cleaning"


def test_g13_next_router_has_what_was_left_as_nobodys_and_sends_a_cleaning_again():
    machine = Machine(journal=True)
    name = machine.intend(machine.runs()).name
    machine.states(name, LEFT)
    records = machine.journal.take()
    (left,) = remains_of(records).resources.values()
    assert left.incarnation == b""
    (clean,) = machine.gives(0.0, 0)
    other = Machine(journal=True)
    left_now = remains_of([*records, *machine.journal.take()]).resources
    other.resources.restore(left_now.values(), 0.0)
    other.resources.take_back(other.workers[0], 0.0)
    assert other.told == [(other.workers[0], clean)]


def test_execution_that_ended_by_report_gives_on_what_the_journal_has_of_it():
    machine = Machine(journal=True)
    name = machine.intend(machine.runs()).name
    other = Machine(journal=True)
    other.resources.restore(remains_of(machine.journal.take()).resources.values(), 0.0)
    other.resources.take_back(other.workers[0], 0.0)
    assert [each.name for each in other.gives()] == [name]


# -- the worker's side ------------------------------------------------------------------


def test_worker_remembers_few_cleanings_and_runs_none_twice():
    known = OpenResources()
    for number in range(scope.REMEMBERED + 1):
        assert known.clean(Clean(f"r{number}", 1, "k", "d", 1.0))
        assert not known.clean(Clean(f"r{number}", 1, "k", "d", 1.0))
        known.cleaned(ResourceStated(f"r{number}", LEFT, b"", "", 1))
    assert not known.clean(Clean(f"r{number}", 1, "k", "d", 1.0))
    assert known.clean(Clean(f"r{number}", 2, "k", "d", 1.0))
    assert known.clean(Clean("r0", 1, "k", "d", 1.0)), "it is long over"


def test_g13_cleaning_that_is_under_way_is_never_forgotten():
    """It takes long, and thousands of others pass meanwhile: another router sends it again."""
    known = OpenResources()
    slow = Clean("slow", 1, "k", "d", 30.0)
    assert known.clean(slow)
    for number in range(scope.REMEMBERED + 1):
        known.clean(Clean(f"r{number}", 1, "k", "d", 1.0))
        known.cleaned(ResourceStated(f"r{number}", GONE, b"", "", 1))
    assert not known.clean(slow)


def test_worker_ignores_answers_that_are_no_news():
    known = OpenResources()
    for answer in (
        ResourceAnswer("n", GONE, ""), ResourceAnswer("n", GONE, "", None, 1),
        ResourceAnswer("n", INTENDED, "", 3),
    ):  # fmt: skip
        assert known.answered(answer) is None
    assert known.state(3, GONE, b"", "") is None
    known.intend(ResourceIntended(0, 3, "k", "d"))
    assert known.state(3, GONE, b"", "") is None, "it has no name"
    known.answered(ResourceAnswer("n", INTENDED, "", 3))
    known.state(3, CREATED, b"h", "")
    assert known.answered(ResourceAnswer("n", GONE, "")) is None
    known.answered(ResourceAnswer("n", CREATED, ""))
    known.state(3, LEFT, b"", "it is down")
    known.answered(ResourceAnswer("n", LEFT, ""))
    assert not known.open, "the router has it now"
    result = ResourceStated("n", GONE, b"", "", 2)
    known.cleaned(result)
    known.answered(ResourceAnswer("n", GONE, "", None, 1))
    assert [*known.again()][-1] == result


def test_another_router_is_told_of_intents_without_a_name_and_of_all_statements():
    known = OpenResources()
    for place in (3, 4, 5):
        known.intend(ResourceIntended(0, place, "k", "d"))
    for place, name in ((4, "n"), (5, "m")):
        known.answered(ResourceAnswer(name, INTENDED, "", place))
    said = known.state(4, CREATED, b"h", "")
    known.answered(ResourceAnswer("n", CREATED, ""))
    assert not known.open[4].waits
    assert [*known.again()] == [ResourceIntended(0, 3, "k", "d"), said]
    assert known.open[4].waits, "its answer says that the other router has it"


def test_g10_answers_about_many_resources_take_steps_of_one_each():
    """A worker with a thousand rollouts that are cancelled at once gets all answers in one turn."""

    class Counted(dict[int, Any]):
        steps = 0

        def items(self) -> Any:
            Counted.steps += len(self)
            return super().items()

        def values(self) -> Any:
            Counted.steps += len(self)
            return super().values()

    known = OpenResources()
    known.open = Counted()
    for number in range(100):
        known.intend(ResourceIntended(number, number, "k", "d"))
        known.answered(ResourceAnswer(f"n{number}", INTENDED, "", number))
        known.state(number, GONE, b"", "")
    for number in range(100):
        assert known.waits(number)
        known.answered(ResourceAnswer(f"n{number}", GONE, ""))
        assert not known.waits(number)
        known.end_of(number)
    assert (len(known.open), Counted.steps) == (0, 0)


def test_outcome_waits_for_each_resource_of_its_execution():
    known = OpenResources()
    for place in (3, 4):
        known.intend(ResourceIntended(0, place, "k", "d"))
        known.answered(ResourceAnswer(f"n{place}", INTENDED, "", place))
        known.state(place, GONE, b"", "")
    for place in (3, 4):
        assert known.waits(0)
        known.answered(ResourceAnswer(f"n{place}", GONE, ""))
    assert not known.waits(0)
