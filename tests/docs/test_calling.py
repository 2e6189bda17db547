"""At most once in front of somebody's own agent service, with as many calls as the page
on calling promises; its own session, a short one, is among the samples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.connections import held_port
from tests.docs.test_samples import beside, run, serving, write_files

pytest.importorskip("h11")
pytest.importorskip("httpx2")

CALLS = 1000


@pytest.mark.real
@pytest.mark.slow
async def test_a_thousand_calls_that_are_retried_at_will_are_a_thousand_posts(tmp_path: Path):
    write_files(tmp_path, "calling.md")
    with held_port() as agent_port, held_port() as http_port:
        agent, http = f"127.0.0.1:{agent_port}", f"127.0.0.1:{http_port}"
        serve = ["serve", f"http:http://{agent}/run", "--bind", "tcp://127.0.0.1:0"]
        async with beside(tmp_path, "agent.py", agent), serving(tmp_path, *serve, "--http", http):
            done = await run(tmp_path, "callers.py", http, agent, str(CALLS))
    assert done.code == 0, done
    found = re.fullmatch(r"(\d+) calls, sent (\d+) times: (\d+) posts\n", done.out)
    assert found is not None, done.out
    calls, sent, posts = map(int, found.groups())
    assert calls == posts == CALLS
    assert sent > CALLS, "nothing was retried, so nothing was shown"
