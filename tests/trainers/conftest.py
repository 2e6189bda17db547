"""A server of the cases that a trainer's adapter may meet."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.faces import TrioThread
from tests.trainers import made
from trio_envserve import open_server


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with TrioThread() as thread:
        with thread.opened(open_server(made.Cases(), workers=0)) as server:
            yield server.address
