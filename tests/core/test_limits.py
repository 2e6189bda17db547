"""Every limit is checked, has a reason, and the defaults agree with each other."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest

from trio_envserve.core import limits
from trio_envserve.core.errors import ConfigError
from trio_envserve.core.limits import (
    RULES,
    ClientLimits,
    KeyLimits,
    ServerLimits,
    ToldTo,
    WireLimits,
    check_together,
    limits_of_peer,
    limits_to_tell,
)

NAMED: dict[str, Any] = {
    cls.__name__: cls for cls in (WireLimits, ServerLimits, KeyLimits, ClientLimits)
}
FIELDS = [(cls, field) for cls in NAMED.values() for field in dataclasses.fields(cls)]


NO_LIMITS: tuple[Any, ...] = (0, -1, math.nan, math.inf, 10**400, "1", True, [1])


def test_every_limit_has_a_reason():
    assert [field.name for _, field in FIELDS if len(field.metadata["why"]) < 11] == []


@pytest.mark.parametrize(("cls", "field"), FIELDS, ids=lambda value: getattr(value, "name", ""))
def test_what_is_not_a_positive_number_is_refused_by_name(cls, field):
    for value in NO_LIMITS:
        with pytest.raises(ConfigError, match=rf"{cls.__name__}\.{field.name} must be a positive"):
            cls(**{field.name: value})


@pytest.mark.parametrize("cls", NAMED.values())
def test_limit_that_there_is_not_is_told_with_the_near_name(cls):
    """Python's own words have none."""
    name = dataclasses.fields(cls)[0].name
    with pytest.raises(TypeError, match=rf"no option 'x{name}'; did you mean '{name}'\?$"):
        cls(**{f"x{name}": 1})


def test_none_is_a_value_only_where_it_is_the_default():
    assert ServerLimits(recycle_executions=None).recycle_executions is None
    assert ServerLimits(recycle_executions=3).recycle_executions == 3
    with pytest.raises(ConfigError):
        ServerLimits(window=None)  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("peer", ToldTo)
def test_limits_that_a_peer_is_told_come_back_and_the_rest_is_as_by_default(peer: ToldTo):
    server = ServerLimits(beat_s=7.0, worker_capacity=3, stop_s=9.0, lease_s=99.0)
    record = limits_to_tell(server, peer)
    assert {"lease_s", "stop_s"} & record.keys() == ({"stop_s"} if peer is ToldTo.HOST else set())
    found = limits_of_peer({**record, "of_a_later_version": "?"}, peer)
    assert found == ServerLimits(**record)
    assert (found.beat_s, found.worker_capacity, found.lease_s) == (7.0, 3, ServerLimits().lease_s)
    assert limits_of_peer({}, peer) == ServerLimits()
    with pytest.raises(ConfigError, match="beat_s must be a positive number"):
        limits_of_peer({"beat_s": "soon"}, peer)


def refused(*limits: Any) -> str:
    """Why these limits are not taken together; empty if they are."""
    try:
        check_together(*limits)
    except ConfigError as error:
        return str(error)
    return ""


def changed(rule, large: float, small: float):
    """Limits with the two fields of a rule set."""
    values: dict[str, dict[str, float]] = {}
    for name, value in ((rule.large, large), (rule.small, small)):
        owner, field = name.split(".")
        default = getattr(NAMED[owner](), field)
        values.setdefault(owner, {})[field] = type(default)(value)
    return [NAMED[owner](**fields) for owner, fields in values.items()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.large}-{rule.small}")
def test_limits_that_contradict_each_other_were_taken(rule, monkeypatch):
    """A lease that one late tick ends, a kill before its report, a heartbeat slower than
    both: each was run with."""
    monkeypatch.setattr(limits, "RULES", (rule,))  # one at a time
    check_together(*changed(rule, rule.times * 10, 10))
    text = refused(*changed(rule, rule.times * 10 - 1, 10))
    assert f"{rule.large} ({rule.times * 10 - 1}" in text
    assert f"{rule.small} (10" in text
    assert rule.why in text
    large, small = re.findall(r"=([0-9.]+) or", text)
    check_together(*changed(rule, float(large), 10))
    check_together(*changed(rule, rule.times * 10 - 1, float(small)))


def test_a_rule_about_limits_that_are_not_there_is_left_out():
    check_together(WireLimits(header_bytes=20))
    with pytest.raises(ConfigError, match="window"):
        check_together(WireLimits(header_bytes=20), ServerLimits())


def test_what_to_write_instead_is_a_number_that_can_be_read():
    with pytest.raises(ConfigError, match=r"write lease_s=2.0 or more, or awake_step_s=0.005 or"):
        check_together(ServerLimits(lease_s=0.01))
    with pytest.raises(ConfigError, match=r"header_bytes=1200000 or more, or window=19660 or less"):
        check_together(ServerLimits(window=60_000), WireLimits())


def test_the_defaults_agree_with_each_other():
    wire, server, client, keys = WireLimits(), ServerLimits(), ClientLimits(), KeyLimits()
    check_together(wire, server, client, keys)
    # A client that pings is never taken for a silent one, nor a worker that beats.
    assert max(client.ping_s, client.idle_ping_s) * 10 < server.lease_s
    assert server.heartbeat_s * 10 < server.silence_report_s < server.silence_kill_s
    assert server.cancel_grace_s < server.cancel_kill_s
    assert server.tick_s <= server.reap_settle_s
    assert server.restart_pause_s < server.restart_pause_max_s
    # A full window can be stated: two edges of at most nine bytes for each request.
    assert server.window * 2 * 9 + 1024 < wire.header_bytes
    # The largest message fits into an empty queue, and what one asks for may be granted.
    assert wire.message_bytes <= server.queue_bytes * server.session_share
    assert client.max_executions <= server.max_executions
    assert client.probe_s < client.reconnect_s
    # A caller that is back after a lost lease finds its work.
    assert client.ping_s * 10 < keys.orphan_s <= keys.retention_s
