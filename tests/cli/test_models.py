"""The options by which commands name models, where they are wrong."""

import dataclasses
import os
import re
from pathlib import Path

import pytest

from tests.cli.commands import run
from tests.connections import held_port
from trio_envserve.cli.common import NOT_STARTED
from trio_envserve.cli.evaluate import Eval
from trio_envserve.cli.options import WithEndpoints
from trio_envserve.core.errors import ConfigError
from trio_envserve.models.endpoints import FILE_VARIABLE

FILE = '[mine]\nurl = "http://127.0.0.1:1/v1"\nkey_env = "NO_SUCH_KEY"\n'


@pytest.mark.real
@pytest.mark.parametrize("named", [False, True])
async def test_eval_asked_a_model_that_nobody_serves_for_two_minutes(named, tmp_path):
    """It showed 0/20 done, 0 errors."""
    with held_port() as port:
        url = f"http://127.0.0.1:{port}/v1"
        (tmp_path / "endpoints.toml").write_text(f'[mine]\nurl = "{url}"\n')
        model = "mine" if named else url
        ran = await run(tmp_path, "eval", "arithmetic", "-n", "20", "--model", model)
    assert ran.code == NOT_STARTED
    assert f"the model {url} did not answer: ConnectError" in ran.err
    assert "nothing was asked for. Start the model, or give its address by --model" in ran.err
    assert "done, " not in ran.err
    ran.check_no_traceback()


def test_file_of_endpoints_is_named_to_workers_and_is_none_of_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(FILE_VARIABLE, "before")
    (tmp_path / "mine.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    WithEndpoints().name_endpoints()
    assert os.environ[FILE_VARIABLE] == "before"
    WithEndpoints(endpoints="mine.toml").name_endpoints()
    assert os.environ[FILE_VARIABLE] == str(tmp_path / "mine.toml")
    elsewhere = Eval(environment="arithmetic", address="tcp://somewhere:1")
    elsewhere.check()
    with pytest.raises(ConfigError, match="give it to `serve` there"):
        dataclasses.replace(elsewhere, endpoints="mine.toml").check()


# -- in roles ------------------------------------------------------------------------------

JUDGED = """
class Judged:
    model_roles = ["judge"]

    def inputs(self, n, seed): return [{"x": i} for i in range(n)]

    async def run_rollout(self, rollout):
        await rollout.ask([{"role": "user", "content": "Write."}], reference="An essay.")
        question = [{"role": "user", "content": "How good is it?"}]
        mark = await rollout.ask(question, reference="1", endpoint="judge")
        return {"reward": float(mark.text)}
"""


@pytest.mark.real
async def test_eval_counts_a_judges_calls_apart(tmp_path: Path):
    (tmp_path / "judged.py").write_text(JUDGED)
    ran = await run(
        tmp_path, "eval", "judged.py:Judged", "-n", "3", "--role", "judge=oracle", "--workers", "0"
    )
    assert ran.code == 0, ran.err
    assert re.search(r"^  judge: model calls +3$", ran.out, re.MULTILINE)
    assert re.search(r"^  model calls +3$", ran.out, re.MULTILINE)


@pytest.mark.real
async def test_validate_takes_the_model_of_a_role(tmp_path: Path):
    (tmp_path / "judged.py").write_text(JUDGED)
    asked = ("validate", "judged.py:Judged", "-n", "2", "--json")
    assert (await run(tmp_path, *asked, "--role", "judge=oracle")).last["ok"]
    without = await run(tmp_path, *asked)
    assert not without.last["ok"]
    assert "no model has the role 'judge'" in without.out
