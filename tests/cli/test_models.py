"""The options by which commands name models, where they are wrong."""

import os
from pathlib import Path

import pytest

from tests.cli.commands import run
from tests.connections import held_port
from trio_envserve.cli.common import NOT_STARTED
from trio_envserve.cli.evaluate import check_model
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
    check_model("random", "", "mine.toml")
    check_model("random", "tcp://somewhere:1", "")
    with pytest.raises(ConfigError, match="give it to `serve` there"):
        check_model("random", "tcp://somewhere:1", "mine.toml")
