"""The options by which commands name models, where they are wrong."""

import os

import click
import pytest
from click.testing import CliRunner

from tests.cli.commands import run
from tests.connections import held_port
from trio_envserve.cli.common import NOT_STARTED
from trio_envserve.cli.models import check_model, model_options
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


def test_the_file_is_named_to_workers_for_as_long_as_the_command_runs(tmp_path, monkeypatch):
    monkeypatch.setenv(FILE_VARIABLE, "before")
    (tmp_path / "mine.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    seen = []

    @click.command()
    @model_options
    def command(model: str, model_name: str) -> None:
        seen.append(os.environ[FILE_VARIABLE])
        check_model(model, "tcp://somewhere:1" if model == "random" else "")

    assert CliRunner().invoke(command, ["--endpoints", "mine.toml"]).exit_code == 0
    assert seen == [str(tmp_path / "mine.toml")]
    assert os.environ[FILE_VARIABLE] == "before"
    ran = CliRunner().invoke(command, ["--endpoints", "mine.toml", "--model", "random"])
    assert "give it to `serve` there" in str(ran.exception)
    assert CliRunner().invoke(command, ["--model", "random"]).exit_code == 0
