"""Resources between a router and its workers: from the intent to the end."""

from __future__ import annotations

import pytest

from trio_envserve.core import messages, scope
from trio_envserve.core.closing import ClosingStage
from trio_envserve.core.messages import ResourceIntended
from trio_envserve.core.router_inputs import CloseAsked, Exited, Restored, Tick
from trio_envserve.core.scope import ResourceState
from trio_envserve.core.terms import Status
from trio_envserve.lab.mutants import find

from .helpers import FIRST, OTHER, Pair
from .keyed import Journaled, fail

_, CREATED, LEFT, GONE = ResourceState


def created(pair: Pair) -> str:
    """The name of a resource of the newest execution, which is created."""
    name = pair.want(0)
    pair.resource_is(0, CREATED, pair.runs[-1][0], handle=b"handle")
    return name


def counts(pair: Pair) -> tuple[int, ...]:
    return tuple(pair.router.resources.counts().values())


def states(pair: Pair) -> list[str]:
    """The states of all resources, as the statistics have them."""
    return [each["state"] for each in pair.router.stats()["resources_held"]]


def test_resource_gets_a_name_is_created_and_gone_before_its_outcome():
    pair = Pair.asked()
    assert created(pair).endswith("-0")
    assert states(pair) == ["held"]
    pair.resource_is(0, GONE)
    assert counts(pair) == (0, 0, 0, 1)
    pair.end()
    assert pair.result(0) == b"outcome"
    assert pair.cleanings == []


def test_g13_outcome_waits_until_the_end_of_a_resource_is_answered():
    pair = Journaled.running()
    pair.want(0)
    pair.disk()
    pair.resource_is(0, GONE)
    pair.end()
    (worker,) = pair.workers.values()
    assert (pair.answers, len(worker.running)) == ([], 1)
    pair.disk()
    assert not worker.running
    assert pair.result(0) == b"outcome"
    assert counts(pair) == (0, 0, 0, 1)


def test_g13_outcome_that_overtakes_the_end_of_a_resource_is_seen():
    mutant = find("an-outcome-overtakes-the-end-of-a-resource")
    with mutant.applied(), pytest.raises(AssertionError):
        test_g13_outcome_waits_until_the_end_of_a_resource_is_answered()


def test_what_an_execution_has_left_is_given_to_a_worker():
    pair = Pair.asked(workers=2)
    name = created(pair)
    pair.end()
    ((_, clean),) = pair.cleanings
    assert (clean.name, clean.turn, clean.handle) == (name, 1, b"handle")
    assert states(pair) == ["cleaning"]
    pair.clean()
    assert counts(pair) == (0, 0, 0, 1)


def test_what_an_announced_outcome_has_left_is_given_to_a_worker():
    pair = Pair.asked(server={"kept_bytes": 1})
    created(pair)
    with pair.losing(messages.Fetch):
        pair.end(payload=bytes(100_000))
    assert states(pair) == ["cleaning"]
    assert pair.want(1) == "", "its code has ended"
    late = ResourceIntended(pair.runs[-1][1].number, 1, "sandbox", "module:destroy", None)
    pair.from_worker(late)
    assert len(pair.router.resources.all) == 1, "nor does the router believe a worker"


def test_resource_of_a_dead_worker_is_given_to_another():
    pair = Pair.asked(workers=2)
    name = pair.want(0)
    pair.die()
    ((worker, clean),) = pair.cleanings
    assert (worker, clean.name, clean.handle) == (OTHER, name, None)
    pair.die(OTHER)
    pair.advance(12.0)
    assert [clean.turn for _, clean in pair.cleanings] == [1, 2]


def test_g13_workers_that_died_together_cost_a_resource_a_try():
    """It was given to one that was dead, and whose end was not told yet."""
    pair = Pair.asked(workers=3)
    name = created(pair)
    first = pair.runs[0][0]
    dead = sorted(pair.workers, key=lambda each: each != first)
    for worker in dead:
        pair.router_takes(Exited(worker, pair.now_s, "signal 9"), Tick(pair.now_s))
    pair.advance(0.5, step_s=0.1)
    ((worker, clean),) = pair.cleanings
    assert (clean.name, worker in dead) == (name, False)
    (held,) = pair.router.stats()["resources_held"]
    assert (held["tries"], held["why"]) == (0, "")
    pair.clean()
    assert counts(pair) == (0, 0, 0, 1)


def test_g13_resource_of_this_machine_waits_for_its_workers():
    pair = Pair.asked()
    pair.want(0, here=True)
    (resource,) = pair.router.resources.all.values()
    assert resource.host == ""
    pair.die()
    pair.advance(12.0)
    assert counts(pair) == (1, 1, 0, 0)
    assert pair.router.workforce.hosts() == {""}


def test_cancelled_execution_wants_no_resource():
    pair = Pair.asked()
    pair.cancel(0)
    assert pair.want(0) == ""
    assert pair.stated[-1][1].refused == "the rollout was cancelled, or has ended"


def test_resource_of_an_unknown_worker_is_ignored():
    pair = Pair(hello=False)
    pair.from_worker(ResourceIntended(0, 0, "k", "m:f"))
    assert counts(pair) == (0, 0, 0, 0)


def test_worker_whose_cleaning_does_not_end_retires():
    pair = Pair.asked(workers=2, beats=True)
    created(pair)
    pair.end()
    worker = pair.cleanings[-1][0]
    pair.advance(41.0)
    assert pair.exits == [worker]
    assert [each.text for each in pair.reports if "come to an end" in each.text]
    pair.die(worker)
    pair.advance(6.0)
    assert pair.cleanings[-1][0] != worker


LIMITS = {"drain_s": 60.0, "stop_s": 3.0, "cancel_kill_s": 90.0}


def test_server_that_closes_lets_what_it_destroys_end():
    pair = Pair.asked(server=LIMITS, workers=2, beats=True)
    created(pair)
    pair.give(CloseAsked(pair.now_s))
    pair.advance(1.0)
    assert pair.exits == [], "another worker may have to destroy it"
    pair.end()
    pair.receive(0)
    assert pair.draining()
    assert pair.router.status()["closing"]["resources"] == 1
    pair.clean()
    assert not pair.draining()
    pair.advance(1.0)
    assert sorted(pair.exits) == [FIRST, OTHER]


def test_worker_that_only_destroys_a_resource_kept_its_place_meanwhile():
    pair = Pair.asked(server={"recycle_executions": 1})
    created(pair)
    pair.end()
    pair.submit()
    pair.advance(1.0)
    assert [worker for worker, _ in pair.runs] == [b"w0-1", b"w0-2"]
    assert pair.exits == []
    pair.clean()
    pair.advance(0.5)
    assert pair.exits == [b"w0-1"]


def test_worker_beside_its_place_destroys_what_nobody_else_can_in_a_server_that_closes():
    pair = Pair.asked(server={"recycle_executions": 1, "drain_s": 100.0})
    created(pair)
    pair.auto_hello = False
    pair.end()
    pair.advance(0.5)
    pair.clean("no answer")
    pair.close()  # its successor, which starts, is killed
    pair.advance(scope.PAUSE_S + 1.0)
    assert [worker for worker, _ in pair.cleanings] == [b"w0-1"] * 2
    pair.clean()
    pair.advance(0.5)
    assert (counts(pair), pair.exits) == ((0, 0, 0, 1), [b"w0-1"])


def test_server_that_closes_waits_for_no_resource_once_no_worker_is_left():
    pair = Pair.asked(server=LIMITS, beats=True)
    created(pair)
    pair.give(CloseAsked(pair.now_s))
    pair.die()
    pair.receive(0)
    pair.advance(1.0)
    assert counts(pair) == (1, 1, 0, 0)
    assert not pair.draining()


@pytest.mark.parametrize("is_journaled", [False, True])
def test_server_that_closes_tells_what_it_leaves(is_journaled: bool):
    pair = Journaled.running(server=LIMITS) if is_journaled else Pair.asked(server=LIMITS)
    for number in range(33):
        pair.want(number)
    pair.give(CloseAsked(pair.now_s, ClosingStage.ENDING))
    pair.settle()
    (line,) = [each.text for each in pair.reports if each.text.startswith("resources left: 33;")]
    then = "the next server with this journal" if is_journaled else "destroy them by hand"
    assert then in line
    assert line.endswith("-31 (sandbox) and 1 more")


def test_cancelled_execution_whose_outcome_waits_for_the_journal_costs_no_worker():
    """Its code has ended, and nothing else is left to do but to answer its worker."""
    pair = Journaled.running(beats=True)
    pair.want(0)
    pair.disk()
    pair.resource_is(0, CREATED, handle=b"handle")
    (execution,) = pair.router.workforce.workers[FIRST].live.values()
    pair.router.dispatches.stop([execution], pair.router.awake_s)
    pair.resource_is(0, GONE)
    pair.end()
    pair.advance(100.0)
    assert pair.kills == []
    pair.disk()
    pair.advance(1.0)
    assert (pair.kills, counts(pair)) == ([], (0, 0, 0, 1))
    assert not pair.router.workforce.workers[FIRST].live


def test_next_server_destroys_what_the_journal_has_once_all_is_proven_dead():
    pair = Journaled.running()
    assert pair.want(0) == "", "its intent is not safe"
    pair.disk()
    name = pair.stated[-1][1].name
    pair.resource_is(0, CREATED, handle=b"handle")
    other = Journaled(ready=False)
    other.router_takes(Restored(pair.records, other.now_s))
    other.advance(3.0)
    assert states(other) == ["unknown"]
    other.auto_hello = True
    other.open_pool()
    other.advance(1.0)
    assert other.cleanings == [], "that it is given is not safe"
    other.disk()
    ((_, clean),) = other.cleanings
    assert (clean.name, clean.handle) == (name, b"handle")
    other.clean()
    other.disk()
    third = Journaled(ready=False)
    third.router_takes(Restored([*pair.records, *other.records], third.now_s))
    assert states(third) == []


def test_resources_of_a_lost_journal_are_answered():
    pair = Journaled.running()
    assert pair.want(0) == ""
    fail(pair, final=True)
    pair.settle()
    assert "the disk is full" in pair.stated[-1][1].refused


def test_g13_what_was_intended_before_a_takeover_is_not_entered_anew():
    """A host sends the next router again what may not be safe: also the intent of a resource that
    is gone.  It was entered anew, and destroyed twice."""
    pair = Journaled.running()
    pair.want(0)
    intent = ResourceIntended(pair.runs[-1][1].number, 0, "sandbox", "module:destroy", None)
    pair.disk()
    pair.resource_is(0, GONE)
    pair.disk()
    pair.take_over([0, 1], records=pair.records, settles=False)
    pair.from_worker(intent)
    assert not pair.router.resources.all
    pair.settle()
    pair.beat()
    assert (counts(pair), pair.kills) == ((0, 0, 0, 0), [])


def test_next_server_learns_from_the_workers_it_takes_over_what_they_hold():
    pair = Journaled.running()
    assert pair.want(0) == ""
    pair.disk()
    left, pair.records = pair.records, []
    pair.take_over([0, 1], records=left)
    assert states(pair) == ["held"]
    assert [each.executions for each in pair.router.works.generations.values()] == [1]
    pair.resource_is(0, CREATED, handle=b"handle")
    (resource,) = pair.router.resources.all.values()
    assert resource.handle == b"handle"
    pair.resource_is(0, GONE)
    pair.disk()
    pair.end(status=Status.CANCELLED)
    assert counts(pair) == (0, 0, 0, 1)


def test_next_server_sends_a_cleaning_again_which_runs_once():
    pair = Journaled.running()
    pair.want(0)
    pair.disk()
    pair.end()
    pair.disk()
    assert len(pair.cleanings) == 1
    left, pair.records = pair.records, []
    pair.take_over([], records=left)
    assert len(pair.cleanings) == 1
    pair.clean()
    pair.disk()
    assert counts(pair) == (0, 0, 0, 1)
