"""What tests of values share that take long to encode and decode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from tests.memory import echo, pair
from trio_envserve import Client, turns


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any value is large."""
    monkeypatch.setattr(turns, "_TURN_S", 0.0)


@asynccontextmanager
async def patient_pair(environment: Any = echo) -> AsyncIterator[Client]:
    """A client of this environment, in real time, since values are encoded by threads."""
    with trio.fail_after(120):
        async with pair(environment) as (_, client):
            yield client
