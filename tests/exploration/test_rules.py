"""What is left out of the forms: each with a reason, and nothing that is gone."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from trio_envserve.core.client import ClientCore, _Line
from trio_envserve.core.limits import ClientLimits
from trio_envserve.core.ranges import Ranges
from trio_envserve.lab.exploration import names
from trio_envserve.lab.exploration.configurations import HOST_TABLE, Configuration
from trio_envserve.lab.exploration.judges import OF_JUDGES, Promises, TurnModel
from trio_envserve.lab.exploration.rules import FORMS
from trio_envserve.lab.exploration.systems import HOST_FORMS, system_of
from trio_envserve.lab.exploration.world import SERVER, TIME
from trio_envserve.retrylab.explore import Space
from trio_envserve.retrylab.values import Bag, Counted, form


@functools.cache
def machines() -> dict[type, set[str]]:
    """Attributes of machines, in systems without hosts and with them, and of judges."""
    made: list[object] = [_Line(), Promises(1), TurnModel(1, journaled=True, prompt=True)]
    for asked, others in ((Configuration(name="one"), ("c0", "w0")), (HOST_TABLE[0], (TIME, "h0"))):
        system = system_of(asked)
        space = Space(system, system.bounds)
        state, _ = space.begun(space.first()[0], 0)
        server, one, other = (state.parts[name].local.make() for name in (SERVER, *others))
        made += [server, one, other]
        if asked.hosts:
            made += [other.host, other.host._outbox, server.hosts, server.hosts.leases]
            continue
        router, client = server.router, one.core
        made += [
            router, router.works, router.works.gate, router.sessions, router.queue,
            router.announced, router.pool, router.workforce, router.dispatches, client,
            client.calls, client.sessions, client.pings, other.processes[b"w0-1"].core,
        ]  # fmt: skip
    return {type(each): set(vars(each)) for each in made if hasattr(each, "__dict__")}


EACH = {**HOST_FORMS, **OF_JUDGES}


@pytest.mark.parametrize("kind", EACH, ids=lambda kind: kind.__name__)
def test_rule_is_for_an_attribute_that_there_is(kind: type):
    rules = EACH[kind]
    if callable(rules):
        return
    if dataclasses.is_dataclass(kind):
        there = {field.name for field in dataclasses.fields(kind)}
    else:
        there = machines().get(kind) or set(getattr(kind, "__slots__", ()))
    assert set(rules) <= there
    assert all(rule.why for rule in rules.values())


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
