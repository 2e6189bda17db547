"""The mark ``@apart``: rewards of classes with tools, computed in processes of their own."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from tests.envs import marked
from tests.envs.scripted import a_rollout
from tests.sandboxes.provided import provider_or_skip
from tests.worker.helpers import opened, request
from trio_envserve import apart
from trio_envserve.core.errors import ConfigError
from trio_envserve.envs import load
from trio_envserve.envs.apart import limits_of
from trio_envserve.worker.failures import EnvironmentFailure, code_of

pytestmark = [pytest.mark.real]


async def rewarded(kind: Any, **given: Any) -> Any:
    async with opened(load(kind), threads=4) as runner:
        asked = request(given, state_columns=("pid",))
        return await runner.run(asked, request_id="ab#0")


@pytest.mark.parametrize(
    "kind", [marked.Marked, marked.OnAsyncio, marked.InMainThread, marked.Judging]
)
async def test_reward_is_computed_apart_with_a_copy_of_the_object(kind: type):
    result = await rewarded(kind)
    assert result["rewards"] == {"reward": 1.0, "apart": 1.0}
    assert result["state"] == {"pid": os.getpid()}  # what it changed there is not seen here


async def test_reward_of_a_class_with_a_sandbox_is_computed_apart():
    provider_or_skip("bubblewrap")
    assert (await rewarded(marked.Sandboxed))["rewards"]["apart"] == 1.0


async def test_reward_of_a_static_method_is_computed_apart():
    assert (await rewarded(marked.Static))["reward"] != os.getpid()


WHY = {
    "hang": ("apart-timeout", r"Marked.get_reward took longer than 10 s .*marked.py., line"),
    "leave": ("apart-died", r"the process in which Marked.get_reward ran died: .* status 1"),
    "raise": ("scorer-failed", r"get_reward\(\) raised ValueError: no such answer"),
    "keep a lock": ("scorer-failed", r"its attribute 'lock' cannot be pickled .*__getstate__"),
}


async def test_reward_that_is_not_there_says_why():
    async with opened(load(marked.Marked), threads=4) as runner:
        for do, (code, text) in WHY.items():
            with pytest.raises(EnvironmentFailure, match=text) as caught:
                await runner.run(request({"do": do}), request_id="ab#0")
            assert code_of(caught.value) == code, do


async def test_reward_of_a_class_in_a_file_whose_name_is_taken_is_computed_apart(tmp_path: Path):
    """Such a module has a name by which nothing can be imported."""
    path = tmp_path / "json.py"
    path.write_text(inspect.getsource(marked))
    result = await rewarded(f"{path}:Marked")
    assert result["rewards"]["apart"] == 1.0


def test_marked_method_is_the_plain_method_where_it_is_called():
    made = marked.Marked()
    made.reset()
    assert made.get_reward() == {"reward": 1.0, "apart": 0.0}


def test_mark_without_limits_has_those_of_calls_apart():
    @apart
    def get_reward(self: Any) -> float:
        return 1.0

    found = limits_of(get_reward)
    assert found is not None
    assert found == (5.0, None)


async def a_coroutine() -> None:
    """Not to be marked."""


@pytest.mark.parametrize("method", [a_coroutine, staticmethod(len), property(len), int, "text"])
def test_mark_of_what_is_no_plain_method_is_refused(method: Any):
    with pytest.raises(TypeError, match=r"@apart marks a plain method"):
        apart(method)


def test_mark_with_wrong_limits_is_refused():
    with pytest.raises(ValueError, match="timeout_s is a number above zero, not 0"):
        apart(timeout_s=0)


class MarkedTool(marked.Marked):
    @apart
    def search(self, text: str) -> str:
        """Search.

        Args:
            text: What to look for.
        """
        return text


class MarkedRunner:
    async def run_rollout(self, rollout: Any) -> Any:
        return self.score()

    @apart
    def score(self) -> float:
        return 1.0


def test_marks_that_would_do_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"MarkedTool.search is marked @apart, and only get_rew"):
        load(MarkedTool)
    with pytest.raises(ConfigError, match=r"MarkedRunner.score .*await rollout.apart\(function"):
        load(MarkedRunner)


async def test_missing_library_is_named_when_the_class_is_loaded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("trio_envserve.envs.apart.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'trio-envserve\[apart\]'"):
        load(marked.Marked)

    async def body(rollout: Any) -> Any:
        return await rollout.apart(len, ())

    async with opened(load(body), threads=1) as runner:
        with pytest.raises(EnvironmentFailure, match=r"pip install 'trio-envserve\[apart\]'"):
            await runner.run(request(), request_id="ab#0")


async def test_rollout_that_no_worker_runs_has_no_processes():
    with pytest.raises(RuntimeError, match="no worker runs this rollout"):
        await a_rollout().apart(len, ())
    with pytest.raises(RuntimeError, match="no worker runs this rollout"):
        a_rollout().apart_sync(len, ())
