"""Options that are declared once: from a program, a file and the command, by one record."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trio_envserve import ConfigError, WorkerRange
from trio_envserve.core.limits import KeyLimits, ServerLimits, WireLimits
from trio_envserve.net.keypairs import KeyPair
from trio_envserve.options import option, options_of, read_file, taken_beside, taken_by, values_of
from trio_envserve.server import ServerOptions, open_server
from trio_envserve.server.options import check_slots, completed, pairs, variables_by_slot


@dataclasses.dataclass(frozen=True)
class Bounded:
    """Options of every kind."""

    whole: int | None = option(None, "Some.", least=1)
    part: float = option(0.5, "Some.", above=0, most=1)
    name: str = option("", "A name.")
    mode: str = option("fast", "A mode.", choices=("fast", "slow"))
    flag: bool = option(False, "A flag.")
    names: tuple[str, ...] = option((), "Some names.")
    table: Mapping[str, Any] = option(dict, "A table.")
    told: object = option(None, "In a program only.", in_program=True)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("whole = 0", "whole is a whole number, 1 or more, not 0"),
        ("whole = 1.5", "whole is a whole number, 1 or more, not 1.5"),
        ("whole = true", "whole is a whole number, 1 or more, not True"),
        ("part = 0", "part is a number above 0 to 1, not 0"),
        ("part = nan", "part is a number above 0 to 1, not nan"),
        ('part = "half"', "part is a number above 0 to 1, not 'half'"),
        ("name = 1", "name is a text, not 1"),
        ('mode = "slwo"', "one of fast, slow, not 'slwo'; did you mean 'slow'?"),
        ('names = "ab"', "names is a list of texts, not 'ab'"),
        ("names = [1]", "names is a list of texts, not [1]"),
        ("table = 1", "table is a table, not 1"),
        ("flag = 1", "flag is true or false, not 1"),
        ("flga = true", "no option 'flga'; did you mean 'flag'?"),
        ("told = 1", "no option 'told'"),
    ],
)
def test_file_that_says_something_wrong_is_refused_with_what_may_stand_there(
    said: str, why: str, tmp_path: Path
):
    path = tmp_path / "options.toml"
    path.write_text(said)
    with pytest.raises(ConfigError) as raised:
        values_of(Bounded, read_file(path), path)
    assert str(raised.value).startswith(f"{path}: ")
    assert why in str(raised.value)


@pytest.mark.parametrize(("text", "why"), [(None, "No such file"), ("a = ", "is no TOML")])
def test_file_that_cannot_be_read_is_told(text: str | None, why: str, tmp_path: Path):
    path = tmp_path / "options.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_file(path)


def test_file_of_options_that_is_a_pipe_is_not_waited_for(tmp_path: Path):
    """The command hung in it."""
    os.mkfifo(tmp_path / "options.toml")
    with pytest.raises(ConfigError, match="is no regular file") as raised:
        read_file(tmp_path / "options.toml")
    assert "TOML" not in str(raised.value)


def test_function_of_a_record_has_its_signature_and_gets_what_is_given():
    @taken_by(Bounded)
    def doubled(options: Bounded) -> float:
        return 2 * options.part

    assert inspect.signature(doubled).parameters == inspect.signature(Bounded).parameters
    assert doubled(part=0.25) == 0.5
    wrong: dict[str, Any] = {"prat": 1}
    with pytest.raises(
        TypeError, match=r"^doubled\(\) has no option 'prat'; did you mean 'part'\?$"
    ):
        doubled(**wrong)

    @taken_beside(Bounded)
    def times(number: float, options: Bounded) -> float:
        return number * options.part

    assert times(3, part=0.5) == 1.5
    with pytest.raises(TypeError, match=r"^times\(\) has no option 'prat'"):
        times(3, **wrong)
    loosely: Any = times
    assert loosely(number=3, part=0.5) == 1.5
    with pytest.raises(TypeError, match=r"^times\(\) needs number: float$"):  # it said: 'options'
        loosely(part=0.5)


def test_every_option_of_a_server_has_words_and_is_an_argument_of_open_server():
    assert list(options_of(ServerOptions)) == list(inspect.signature(open_server).parameters)
    assert all(each.help.endswith(".") for each in options_of(ServerOptions).values())


def test_file_of_a_server_says_what_is_not_given(tmp_path: Path):
    path = tmp_path / "serve.toml"
    path.write_text(
        'environment = "arithmetic"\nworkers = "2..8"\nbind = "ipc:///run/a"\nfence_s = "none"\n'
        "[args]\nsize = 3\n[limits]\nlease_s = 9\nretention_s = 60\n[serve]\nhttp = 'a:1'\n"
    )
    found = completed(config=path, bind="ipc:///run/b", limits={"lease_s": 5, "header_bytes": 9000})
    assert found == {
        "environment": "arithmetic", "workers": WorkerRange(2, 8), "bind": "ipc:///run/b",
        "fence_s": None, "args": {"size": 3}, "limits": ServerLimits(lease_s=5),
        "keys": KeyLimits(retention_s=60), "wire": WireLimits(header_bytes=9000),
    }  # fmt: skip


def test_arguments_given_beside_a_file_leave_its_other_arguments(tmp_path: Path):
    """They took the place of all of them, without a word."""
    path = tmp_path / "serve.toml"
    path.write_text('environment = "arithmetic"\n[args]\nsize = 3\nsteps = 2\n')
    assert completed(config=path, args={"steps": 4})["args"] == {"size": 3, "steps": 4}
    assert completed(config=path, args={})["args"] == {"size": 3, "steps": 2}
    for replaced in ({"environment": "other:Env"}, {"worker_command": "node worker.js"}):
        assert "args" not in completed(config=path, **replaced)
        assert completed(config=path, args={"a": 1}, **replaced)["args"] == {"a": 1}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("wrokers = 2", "no option 'wrokers'; did you mean 'workers'?"),
        ('workers = "many"', "a number or a range such as 2..64, not 'many'"),
        ("[limits]\nretenton_s = 60", r"no limit 'retenton_s'; did you mean 'retention_s'"),
        ("[limits]\nxyz = 60", r"no limit 'xyz' (known: account_resources, "),
        ("[limits]\nwaiters = 1.5", "waiters is a whole number"),
        (
            'curve = "nowhere"',
            "nowhere/server.key: No such file or directory; `trio-envserve "
            "curve new nowhere NAME` makes it",
        ),
        ("limits = 3", "limits is a table, not 3"),
        ("worker_environ = 3", "worker_environ is a list, not 3"),
        ("journal = 3", "journal is a text, not 3"),
        ("args = 3", "args is a table, not 3"),
        ("fence_s = -1", "is a number of seconds or none, not -1"),
        ('config = "more.toml"', "a file of options names no other file, not 'more.toml'"),
    ],
)
def test_file_of_a_server_that_is_wrong_opens_nothing(said: str, why: str, tmp_path: Path):
    path = tmp_path / "serve.toml"
    path.write_text(said)
    with pytest.raises(ConfigError) as raised:
        open_server(config=path)
    assert why in str(raised.value)


def test_pairs_are_json_or_text():
    assert pairs("--arg", ["a=1", "b=x=y", 'c={"d": null}', "e="]) == {
        "a": 1, "b": "x=y", "c": {"d": None}, "e": "",
    }  # fmt: skip
    with pytest.raises(ConfigError, match="--arg takes key=value"):
        pairs("--arg", ["=1"])


def test_variables_of_slots_are_numbered_from_0():
    given = variables_by_slot("--worker-env", ["1:A=b=c", "1:B="])
    assert given == [{}, {"A": "b=c", "B": ""}]
    check_slots(given, WorkerRange(1, 2))
    with pytest.raises(ConfigError, match="the slots of 1 workers are numbered from 0"):
        check_slots(given, 1)
    with pytest.raises(ConfigError, match="takes SLOT:KEY=VALUE, not '1024:A=b'"):
        variables_by_slot("--worker-env", ["1024:A=b"])


def test_curve_of_a_server_may_be_a_folder_in_its_file(tmp_path: Path):
    pytest.importorskip("nacl")
    pair = KeyPair.new()
    (tmp_path / "server.key").write_text(f'secret = "{pair.secret}"\n')
    (tmp_path / "server.key").chmod(0o600)
    (tmp_path / "serve.toml").write_text(f'curve = "{tmp_path}"\n')
    assert completed(config=tmp_path / "serve.toml")["curve"].keys == pair
