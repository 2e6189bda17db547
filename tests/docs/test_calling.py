"""At most once in front of somebody's own agent service, with as many calls as the page
on calling promises; its own session, a short one, is among the samples."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.connections import held_port
from tests.docs.test_samples import WAIT_S, beside, serving, write_files

pytest.importorskip("hypercorn")
pytest.importorskip("httpx2")

CALLS = 1000


@pytest.mark.real
@pytest.mark.slow
def test_a_thousand_calls_that_are_retried_at_will_are_a_thousand_posts(tmp_path: Path):
    write_files(tmp_path, "calling.md")
    with held_port() as agent_port, held_port() as http_port:
        agent, http = f"127.0.0.1:{agent_port}", f"127.0.0.1:{http_port}"
        serve = ["serve", f"http:http://{agent}/run", "--bind", "tcp://127.0.0.1:0"]
        with (
            beside([sys.executable, "agent.py", agent], tmp_path),
            serving([*serve, "--http", http], tmp_path),
        ):
            run = subprocess.run(
                [sys.executable, "callers.py", http, agent, str(CALLS)],
                cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False,
            )  # fmt: skip
    assert run.returncode == 0, run.stderr + run.stdout
    found = re.fullmatch(r"(\d+) calls, sent (\d+) times: (\d+) posts\n", run.stdout)
    assert found is not None, run.stdout
    calls, sent, posts = map(int, found.groups())
    assert calls == posts == CALLS
    assert sent > CALLS, "nothing was retried, so nothing was shown"
