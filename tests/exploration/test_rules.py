"""What is left out of the forms: each with a reason, and nothing that is gone."""

from __future__ import annotations

import dataclasses

import pytest

from trio_envserve.core.client import ClientCore
from trio_envserve.core.limits import ClientLimits
from trio_envserve.core.ranges import Ranges
from trio_envserve.lab.exploration import names
from trio_envserve.lab.exploration.canonical import Newest, lower, renamings
from trio_envserve.lab.exploration.configurations import Configuration
from trio_envserve.lab.exploration.forms import form
from trio_envserve.lab.exploration.leaves import Bag, Counted
from trio_envserve.lab.exploration.rules import RULES
from trio_envserve.lab.exploration.world import World

NONE = Newest({}, {})


def attributes(kind: type) -> set[str]:
    """Of dataclasses their fields; of the rest what an instance of a world has."""
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    world = World(Configuration(name="one"))
    router = world.routers.machine(world.routers.new(0))
    client = world.clients.machine(world.clients.new(0))
    worker = world.workers.machine(world.workers.new(names.incarnation(0, b"w0-1")))
    machines = [
        router, router.cache, router.dispatcher, router.dispatcher.deadlines, router.queue,
        router.announced, router.pool, router.workforce, router.dispatcher.dispatches, router.keys,
        router.keys.commands, router.dispatcher.keyed, router.dispatcher.keyed.answers, client,
        client.calls, client.calls._retries, client.sessions, client.pings, worker,
    ]  # fmt: skip
    return set(vars(next(each for each in machines if type(each) is kind)))


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_a_rule_is_for_an_attribute_that_there_is(kind: type):
    assert set(RULES[kind]) <= attributes(kind)
    assert all(rule.why for rule in RULES[kind].values())


def test_what_has_no_rule_counts():
    """An attribute that somebody adds makes states differ until it has a rule."""
    core = ClientCore(name="c0", new_id=names.Nonces(0), now_s=0.0, limits=ClientLimits())
    before = form(core)
    core.__dict__["brand_new"] = 1
    assert form(core) != before
    core.__dict__["brand_new"] = World(Configuration(name="one"))
    with pytest.raises(TypeError, match="no form for World"):
        form(core)


def test_plain_values():
    assert form([1, ("two", None), {"three": b"3"}]) == (1, (b"two", None), ((b"three", b"3"),))
    assert form(Ranges([1, 2, 5])) == ("ranges", 1, 3, 5, 6)
    assert form({1}) == Bag((1,))


def test_names_are_exchanged_wherever_they_are():
    renaming = next(
        each for each in renamings(2, 2) if each.clients == (1, 0)
        and each.slots == (1, 0)
    )  # fmt: skip
    session = names.session(0, names.nonce(0, 1))
    assert renaming.of(session) == names.session(0, names.nonce(1, 1))
    assert renaming.of(names.incarnation(1, b"w0-3")) == names.incarnation(1, b"w1-3")
    assert renaming.of(names.route(0, 7)) == names.route(1, 7)
    assert renaming.of(names.epoch(1)) == names.epoch(1)
    assert lower((b"w1-1", Bag((b"c1", b"c0"))), renaming, NONE) == (
        b"w0-1", ("bag", b"c0", b"c1"),
    )  # fmt: skip


def test_counted_numbers_become_distances():
    renaming = renamings(1, 1)[0]
    newest = Newest({("probe", 0): 7}, {"probe": 3})
    assert lower(Counted("probe", 0, 6), renaming, newest) == ("probe", 1)
    assert lower(Counted("probe", 0, 1), renaming, newest) == ("probe", 3)
    assert lower(Counted("beat", 0, 1), renaming, newest) == ("beat", None)
