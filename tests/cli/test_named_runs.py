"""``eval --run NAME``: what was asked for once is joined or taken, and not run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import lines, run, served
from tests.cli.test_evaluate import ECHO

pytestmark = pytest.mark.real

OWN = ("--journal", "runs", "--workers", "0", "--json")


@pytest.fixture(autouse=True)
def echo(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    (tmp_path / "fails").write_text("")


def ran(folder: Path) -> list[str]:
    return (folder / "ran").read_text().split()


async def test_a_run_is_gone_on_with_by_what_the_server_has(tmp_path: Path):
    ask = ("eval", "echo:Echo", "--run", "r1", *OWN)
    assert (await run(tmp_path, *ask, "-n", "3")).code == 0
    more = await run(tmp_path, *ask, "-n", "5", "--repeat", "2")
    assert (more.code, more.last["results"], more.last["resumed"]) == (0, 10, 0), more.err
    assert more.last["run_name"] == "r1"
    assert sorted(ran(tmp_path)) == sorted([str(n) for n in range(5)] * 2)
    listed = await run(tmp_path, "journal", "runs", "ls", "--json")
    keys = {row["key"] for row in listed.last["keys"]}
    assert keys == {f"r1/{index}/{repeat}" for index in range(5) for repeat in range(2)}


async def test_a_file_and_a_run_go_on_together(tmp_path: Path):
    ask = ("eval", "echo:Echo", "-n", "6", "--run", "r1", "--output", "r.jsonl", *OWN)
    assert (await run(tmp_path, *ask)).code == 0
    whole = (tmp_path / "r.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "r.jsonl").write_text("".join(whole[:2]) + whole[2][:20])
    done = await run(tmp_path, *ask)
    assert (done.code, done.last["results"], done.last["resumed"]) == (0, 6, 2), done.err
    assert sorted(one["index"] for one in lines(tmp_path / "r.jsonl")) == list(range(6))
    assert len(ran(tmp_path)) == 6


async def test_another_evaluation_under_the_name_is_refused_in_words(tmp_path: Path):
    ask = ("eval", "echo:Echo", "-n", "3", "--run", "r1", *OWN)
    assert (await run(tmp_path, *ask)).code == 0
    for other in ("--rerun",), ("--seed", "1"), ("--sampling", "temperature=1"):
        done = await run(tmp_path, *ask, *other)
        assert done.code == 2
        assert "under the name 'r1' the server knows another evaluation" in done.err
        done.check_no_traceback()
    assert len(ran(tmp_path)) == 3


async def test_an_error_is_told_again_and_run_again_only_if_that_is_asked_for(tmp_path: Path):
    (tmp_path / "fails").write_text("1")
    text = ECHO.replace("read_text():", "read_text() or str(rollout.input) == "
                        "pathlib.Path('fails').read_text():")  # fmt: skip
    (tmp_path / "echo.py").write_text(text)
    ask = ("eval", "echo:Echo", "-n", "3", "--run", "r1", "--output", "r.jsonl", *OWN)
    assert (await run(tmp_path, *ask)).last["errors"] == 1
    (tmp_path / "fails").write_text("")
    (tmp_path / "r.jsonl").rename(tmp_path / "elsewhere")
    told = await run(tmp_path, *ask)
    assert (told.code, told.last["errors"]) == (4, 1)
    assert len(ran(tmp_path)) == 3
    again = await run(tmp_path, *ask, "--retry-errors")
    assert (again.code, again.last["results"], again.last["resumed"]) == (0, 3, 2), again.err
    assert sorted(ran(tmp_path)) == ["0", "1", "1", "2"]
    listed = await run(tmp_path, "journal", "runs", "ls", "r1/1", "--json")
    assert [row["key"] for row in listed.last["keys"]] == ["r1/1/0", "r1/1/0/again-1"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "the server has no journal: when it ends"),
        (("--journal", "runs", "--limit", "generations=8", "--limit", "retention_s=1"),
         "the server keeps 8 keys at most, and this run has 9"),
    ],
)  # fmt: skip
async def test_server_that_keeps_less_than_a_run_needs_is_told_of(
    tmp_path: Path, options: tuple[str, ...], why: str
):
    async with served(tmp_path, "echo:Echo", *options) as (_, address):
        ask = ("eval", "echo:Echo", "-n", "9", "--run", "r1", "--address", address, "--json")
        done = await run(tmp_path, *ask)
        assert (done.code, done.last["results"]) == (0, 9), done.err
        assert why in done.err


GROUPS = """
class Groups:
    def inputs(self, n, seed): return list(range(n))
    async def run_rollout(self, rollout): return {"reward": -1.0}
    async def run_group(self, rollouts):
        with open("ran", "a") as log: log.write(f"{rollouts[0].input}\\n")
        return [{"reward": 0.5} for each in rollouts]
"""


async def test_a_group_has_one_key(tmp_path: Path):
    (tmp_path / "groups.py").write_text(GROUPS)
    ask = ("eval", "groups:Groups", "-n", "2", "--repeat", "3", "--group", "--run", "g", *OWN)
    for _ in range(2):
        done = await run(tmp_path, *ask)
        assert (done.code, done.last["results"]) == (0, 6), done.err
    assert sorted(ran(tmp_path)) == ["0", "1"]
    listed = await run(tmp_path, "journal", "runs", "ls", "--json")
    assert {row["key"] for row in listed.last["keys"]} == {"g/0/group", "g/1/group"}
