"""Every limit is checked, has a reason, and the defaults agree with each other."""

from __future__ import annotations

import dataclasses
import math

import pytest

from trio_envserve.core.errors import ConfigError
from trio_envserve.core.limits import ClientLimits, ServerLimits, WireLimits, WorkerLimits

CLASSES = (WireLimits, ServerLimits, ClientLimits, WorkerLimits)
FIELDS = [(cls, field) for cls in CLASSES for field in dataclasses.fields(cls)]


@pytest.mark.parametrize(("cls", "field"), FIELDS, ids=lambda value: getattr(value, "name", ""))
def test_every_limit_has_a_reason(cls, field):
    assert len(field.metadata["why"]) > 10


@pytest.mark.parametrize(("cls", "field"), FIELDS, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("value", [0, -1, math.nan, "1", True, [1]])
def test_what_is_not_a_positive_number_is_refused_by_name(cls, field, value):
    with pytest.raises(ConfigError, match=rf"{cls.__name__}\.{field.name} must be a positive"):
        cls(**{field.name: value})


def test_none_is_a_value_only_where_it_is_the_default():
    assert ServerLimits(recycle_executions=None).recycle_executions is None
    assert ServerLimits(recycle_executions=3).recycle_executions == 3
    with pytest.raises(ConfigError):
        ServerLimits(window=None)  # type: ignore[arg-type]  # that is the point


def test_what_a_worker_is_told_is_what_its_server_says():
    server = ServerLimits()
    for field in dataclasses.fields(WorkerLimits):
        if hasattr(server, field.name):
            assert getattr(WorkerLimits(), field.name) == getattr(server, field.name)
    assert WorkerLimits().threads == server.worker_capacity


def test_the_defaults_agree_with_each_other():
    wire, server, client = WireLimits(), ServerLimits(), ClientLimits()
    # A client that pings is never taken for a silent one, nor a worker that beats.
    assert client.ping_s * 10 < server.lease_s
    assert server.pulse_s * 10 < server.silence_report_s < server.silence_kill_s
    assert server.cancel_grace_s < server.cancel_kill_s
    assert server.tick_s <= server.reap_settle_s
    assert server.restart_pause_s < server.restart_pause_max_s
    # A full window can be stated: two edges of at most nine bytes for each request.
    assert server.window * 2 * 9 + 1024 < wire.header_bytes
    # The largest message fits into an empty queue, and what one asks for may be granted.
    assert wire.message_bytes <= server.queue_bytes * server.session_share
    assert client.max_executions <= server.max_executions
    assert client.probe_s < client.reconnect_s
