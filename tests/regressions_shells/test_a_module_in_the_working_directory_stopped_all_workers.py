"""Workers are started by ``python -c``, which puts the working directory before the
standard library: a ``select.py`` or ``socket.py`` of the user's was imported in its
place, and no worker of a server that was started there got ready.
"""

import pytest
import trio

from tests.real.support import PATIENCE_S, open_calls, open_server

pytestmark = pytest.mark.real


async def test_the_start_of_a_worker_imports_nothing_from_there(judge, monkeypatch, tmp_path):
    for name in ("json", "select", "socket", "dataclasses"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('this is the wrong module')\n")
    monkeypatch.chdir(tmp_path)
    with trio.fail_after(PATIENCE_S):
        async with open_server(judge) as server, open_calls(server.address) as calls:
            await server.wait_ready()
            await calls.value(calls.start("a"))
