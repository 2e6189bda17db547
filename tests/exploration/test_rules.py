"""What is left out of the forms: each with a reason, and nothing that is gone."""

from __future__ import annotations

import dataclasses

import pytest

from trio_envserve.core.client import ClientCore, _Line
from trio_envserve.core.limits import ClientLimits
from trio_envserve.core.ranges import Ranges
from trio_envserve.lab.exploration import names
from trio_envserve.lab.exploration.configurations import HOST_TABLE, Configuration
from trio_envserve.lab.exploration.judges import OF_JUDGES, Promises, TurnModel
from trio_envserve.lab.exploration.rules import FORMS, RULES
from trio_envserve.lab.exploration.systems import HOST_FORMS, system_of
from trio_envserve.lab.exploration.world import SERVER, TIME
from trio_envserve.retrylab.explore import Space
from trio_envserve.retrylab.values import Bag, Counted, form


def attributes(kind: type) -> set[str]:
    """Of dataclasses their fields; of the rest what an instance of a world has."""
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    system = system_of(Configuration(name="one"))
    space = Space(system, system.bounds)
    state, _ = space.begun(space.first()[0], 0)
    client, server, slot = (state.parts[name].local.make() for name in ("c0", "server", "w0"))
    client, router = client.core, server.router
    worker = slot.processes[b"w0-1"].core
    machines = [
        router, router.works, router.works.gate, router.sessions, router.queue, router.announced,
        router.pool, router.workforce, router.dispatches, client,
        client.calls, _Line(), client.sessions, client.pings, worker,
    ]  # fmt: skip
    return set(vars(next(each for each in machines if type(each) is kind)))


def attributes_with_hosts(kind: type) -> set[str]:
    """Fields of a dataclass, or the attributes of the one such object in a world with hosts."""
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    system = system_of(HOST_TABLE[0])
    space = Space(system, system.bounds)
    state, _ = space.begun(space.first()[0], 0)
    time, server, machine = (state.parts[name].local.make() for name in (TIME, SERVER, "h0"))
    host, hosts = machine.host, server.hosts
    parts = [time, server, machine, host, host._outbox, hosts, hosts.leases]
    return set(vars(next(each for each in parts if type(each) is kind)))


OF_HOSTS = {kind: rules for kind, rules in HOST_FORMS.items() if FORMS.get(kind) is not rules}


@pytest.mark.parametrize("kind", OF_HOSTS, ids=lambda kind: kind.__name__)
def test_a_rule_of_hosts_is_for_an_attribute_that_there_is(kind: type):
    rules = OF_HOSTS[kind]
    assert not callable(rules)
    assert set(rules) <= attributes_with_hosts(kind)
    assert all(rule.why for rule in rules.values())


@pytest.mark.parametrize("kind", OF_JUDGES, ids=lambda kind: kind.__name__)
def test_a_rule_of_judges_is_for_an_attribute_that_there_is(kind: type):
    judges = Promises(1), TurnModel(1, journaled=True, prompt=True)
    made = {type(each): vars(each) for each in judges}
    names = made[kind] if kind in made else getattr(kind, "__slots__", ())
    rules = OF_JUDGES[kind]
    assert not callable(rules)
    assert set(rules) <= set(names)


@pytest.mark.parametrize("kind", RULES, ids=lambda kind: kind.__name__)
def test_a_rule_is_for_an_attribute_that_there_is(kind: type):
    assert set(RULES[kind]) <= attributes(kind)
    assert all(rule.why for rule in RULES[kind].values())


def test_attribute_without_a_rule_counts():
    """An attribute that somebody adds makes states differ until it has a rule."""
    core = ClientCore(name="c0", new_id=names.Ids(names.nonce, 0), now_s=0.0, limits=ClientLimits())
    before = form(core, FORMS)
    core.__dict__["brand_new"] = 1
    assert form(core, FORMS) != before
    core.__dict__["brand_new"] = lambda: 7
    with pytest.raises(TypeError, match="function"):
        form(core, FORMS)


def test_spans_are_plain_and_numbers_that_count_on_are_counted():
    assert form(Ranges([1, 2, 5]), FORMS) == ("tuple", 1, 3, 5, 6)
    assert form({1}, FORMS) == ("set", Bag((1,)))
    core = ClientCore(name="c0", new_id=names.Ids(names.nonce, 0), now_s=0.0, limits=ClientLimits())
    assert ("probe", Counted("probe", "c0", 0)) in form(core.pings, FORMS)
