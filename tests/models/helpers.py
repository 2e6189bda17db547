"""A model at a real endpoint, for as long as a block lasts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.endpoint import Answer, Endpoint, serve
from trio_envserve.models.endpoints import Endpoint as Where
from trio_envserve.models.http import HttpModel

HELLO = [{"role": "user", "content": "hello"}]
HANG_S = 300.0
"""Far more than anything here takes on a busy machine."""
NO_PAUSE = {"retry-after": "0"}


def scripted(*answers: Answer) -> Endpoint:
    """An endpoint that gives these answers in order, then the last one for ever."""
    return Endpoint(lambda ask: answers[min(ask.number, len(answers) - 1)])


@asynccontextmanager
async def opened(**where: Any) -> AsyncIterator[HttpModel]:
    """A model at an address, called ``mine``."""
    with trio.fail_after(HANG_S):
        model = HttpModel(Where(**where), "mine")
        yield model
        await model.aclose()


@asynccontextmanager
async def served(endpoint: Endpoint, **where: Any) -> AsyncIterator[HttpModel]:
    """A model at an endpoint that is served."""
    async with serve(endpoint) as url, opened(url=url, **where) as model:
        yield model
