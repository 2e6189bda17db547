"""The verb ``rescore``, run as people run it."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Finished, forked, lines, run, until
from tests.endpoint import Answer, Ask, Endpoint, Reply, Status, serve

pytestmark = pytest.mark.real

ESSAYS = """
import datetime, os, pathlib, trio

class Essay:
    name = "essay"

    def inputs(self, n, seed):
        day = datetime.date(2024, 2, 29)
        return [{"topic": f"topic {i}", "n": i, "when": day, "tags": {"a"}} for i in range(n)]

    async def run_rollout(self, rollout):
        with open("asked", "a") as log: log.write("x")
        if rollout.input["n"] == 3:
            raise ValueError("no essay about this")
        answer = await rollout.ask([{"role": "user", "content": rollout.input["topic"]}],
                                   reference="word " * rollout.input["n"])
        return {"reward": 0.0, "completion": [answer.message]}

class Length(Essay):
    async def rescore(self, rollout, value):
        with open("scored", "a") as log: log.write(f"{rollout.input['n']}\\n")
        while pathlib.Path("held").exists() and rollout.input["n"] % 2:
            await trio.sleep(0.01)
        return len(value["completion"][-1]["content"].split()) / 10

class Judged(Essay):
    async def rescore(self, rollout, value):
        text = value["completion"][-1]["content"]
        mark = await rollout.ask([{"role": "user", "content": text}], endpoint="judge")
        return float(mark.text)

class Deadly(Length):
    rerun = False

    async def rescore(self, rollout, value):
        if rollout.input["n"] == 2:
            with open("killed", "a") as log: log.write("x")
            os.kill(os.getpid(), 9)
        return await super().rescore(rollout, value)

class Odd(Essay):
    async def rescore(self, rollout, value):
        odd = {0: float("nan"), 1: {"reward": "high", "why": "text"}}
        return odd.get(rollout.input["n"], 0.0)

class Words:
    name = "words"
    rollout = None

    @staticmethod
    def inputs(n, seed):
        return [{"prompt": f"Say {i}."} for i in range(n)]

    def reset(self):
        pass

    def oracle(self):
        return ["said"]

    def next_message(self, text):
        self.text = text

    def get_reward(self):
        judge = [{"role": "user", "content": self.text}]
        return float(self.rollout.ask_sync(judge, reference="0.5", endpoint="judge").text)

    def rescore(self, rollout, value):
        self.text = value["completion"][-1]["content"]
        return self.get_reward()
"""


HERE = ("--workers", "0", "--json")
"""All runs in the command's own process: nothing has to be started."""


EVALUATED: dict[tuple[str, ...], str] = {}
"""The file of each evaluation that was run."""


async def evaluated(
    folder: Path, *more: str, file: str = "a.jsonl"
) -> dict[tuple[int, int], dict[str, Any]]:
    """An evaluation of essays, two of whose rollouts ended in errors; it is run once."""
    (folder / "essays.py").write_text(ESSAYS)
    if more not in EVALUATED:
        asked = ("eval", "essays:Essay", "-n", "6", "--repeat", "2", "--output", file, *more)
        done = await run(folder, *asked, *HERE)
        assert (done.code, done.last["errors"]) == (4, 2), done.err
        EVALUATED[more] = (folder / file).read_text().replace(str(folder), "FOLDER")
        (folder / "asked").unlink()
    (folder / file).write_text(EVALUATED[more].replace("FOLDER", str(folder)))
    return by_name(folder / file)


async def rescored(folder: Path, environment: str, *more: str, file: str = "a.jsonl") -> Finished:
    """Score in the command's own process, unless it is to have workers."""
    here = () if "--workers" in more else ("--workers", "0")
    return await run(folder, "rescore", file, f"essays:{environment}", *more, *here, "--json")


def by_name(path: Path) -> dict[tuple[int, int], dict[str, Any]]:
    return {(one["index"], one["repeat"]): one for one in lines(path)}


def without(record: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in fields}


SCORED = ("reward", "rescored_from", "rescored_of", "run", "value")


async def test_rewards_are_new_and_everything_else_is_as_it_was(tmp_path: Path):
    before = await evaluated(tmp_path)
    file = (tmp_path / "a.jsonl").read_bytes()
    done = await rescored(tmp_path, "Length", "--output", "b.jsonl", "--workers", "2")
    assert done.code == 0, done.err
    assert (tmp_path / "a.jsonl").read_bytes() == file
    assert not (tmp_path / "asked").exists()
    after = by_name(tmp_path / "b.jsonl")
    assert after.keys() == before.keys()
    for name, old in before.items():
        new = after[name]
        assert without(new, *SCORED) == without(old, *SCORED)
        if old["error"] is None:
            assert (new["reward"], new["rescored_from"]) == (name[0] / 10, 0.0)
            assert without(new["value"], "reward") == without(old["value"], "reward")
        else:
            assert new["value"] is None
            assert "rescored_from" not in new
    figures = {name: done.last[name] for name in ("rescored", "failed_before", "errors", "changed")}
    assert figures == {"rescored": 10, "failed_before": 2, "errors": 0, "changed": 8}
    assert (done.last["mean_before"], done.last["mean_reward"]) == (0.0, 0.24)
    assert sorted((tmp_path / "scored").read_text().split()) == sorted(
        "001122445 5".replace(" ", "")
    )
    shown = await run(tmp_path, "show", "b.jsonl", "--best", "--number", "1", "--json")
    assert shown.last["rollout"]["rescored_from"] == 0.0
    shown = await run(tmp_path, "show", "b.jsonl", "--best", "--number", "1")
    assert "reward 0.5 (0 before it was scored anew)" in shown.out


async def test_results_of_another_file_are_scored_anew_and_never_reported_for_this_one(
    tmp_path: Path,
):
    await evaluated(tmp_path)
    await evaluated(tmp_path, "--model", "random", file="r.jsonl")
    asked = ("--output", "b.jsonl")
    assert (await rescored(tmp_path, "Length", *asked)).last["mean_reward"] == 0.24
    done = await rescored(tmp_path, "Length", *asked, file="r.jsonl")
    right = await rescored(tmp_path, "Length", file="r.jsonl")
    names = ("rescored", "mean_before", "mean_reward", "changed", "failed_before")
    assert [done.last[name] for name in names] == [right.last[name] for name in names]
    assert done.last["resumed"] == 2, "the failed ones are the same in both files"
    assert "b.jsonl has 10 results that do not say they are of the rollouts in" in done.err
    again = await rescored(tmp_path, "Length", *asked, file="r.jsonl")
    assert (again.last["resumed"], again.last["rescored"]) == (12, 10), again.err
    kept = lines(tmp_path / "r.jsonl")[:3]
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept))
    done = await rescored(tmp_path, "Length", *asked, file="few.jsonl")
    assert done.code == 2
    assert "b.jsonl exists, with 9 rollouts that the file that is read does not have" in done.err


async def test_a_rollout_that_was_run_again_is_scored_anew(tmp_path: Path):
    before = await evaluated(tmp_path)
    asked = ("--output", "b.jsonl")
    assert (await rescored(tmp_path, "Length", *asked)).last["failed_before"] == 2
    whole = ESSAYS.replace('raise ValueError("no essay about this")', "pass")
    (tmp_path / "essays.py").write_text(whole)
    again = ("eval", "essays:Essay", "-n", "6", "--repeat", "2", "--output", "a.jsonl")
    done = await run(tmp_path, *again, "--retry-errors", *HERE)
    assert done.last["errors"] == 0, done.err
    done = await rescored(tmp_path, "Length", *asked)
    figures = {name: done.last[name] for name in ("rescored", "failed_before", "resumed")}
    assert figures == {"rescored": 12, "failed_before": 0, "resumed": 10}, done.err
    after = by_name(tmp_path / "b.jsonl")
    assert [after[3, repeat]["reward"] for repeat in range(2)] == [0.3, 0.3]
    assert after.keys() == before.keys()


async def test_same_command_goes_on_and_scores_nothing_twice(tmp_path: Path):
    await evaluated(tmp_path)
    (tmp_path / "held").write_text("")
    asked = ("rescore", "a.jsonl", "essays:Length", "--output", "b.jsonl", *HERE)
    async with forked(tmp_path, *asked) as running:
        await until(lambda: (tmp_path / "b.jsonl").exists() and len(lines_so_far(tmp_path)) == 8)
        running.signal(signal.SIGINT)
        stopped = await running.wait()
    assert stopped.code == 130
    assert stopped.last["rescored"] == 6
    assert stopped.last["interrupted"]
    assert "the same command goes on from there" in stopped.err
    (tmp_path / "held").unlink()
    done = await run(tmp_path, *asked)
    assert (done.code, done.last["resumed"], done.last["rescored"]) == (0, 8, 10), done.err
    assert len(lines(tmp_path / "b.jsonl")) == 12
    counted = Counter((tmp_path / "scored").read_text().split())
    assert {n: counted[n] for n in "024"} == {"0": 2, "2": 2, "4": 2}
    again = await run(tmp_path, *asked)
    assert (again.last["resumed"], again.last["rescored"]) == (12, 10)
    assert len(lines(tmp_path / "b.jsonl")) == 12


def lines_so_far(folder: Path) -> list[bytes]:
    return (folder / "b.jsonl").read_bytes().split(b"\n")[:-1]


async def test_a_judge_that_is_down_was_a_reward_of_zero(tmp_path: Path):
    await evaluated(tmp_path)

    def refuses(ask: Ask) -> Answer:
        return Status(500) if ask.messages[0]["content"].startswith("word") else Reply("0.5")

    answers = [refuses]
    async with serve(Endpoint(lambda ask: answers[-1](ask))) as url:
        (tmp_path / "endpoints.toml").write_text(f'[judge]\nurl = "{url}"\n')
        done = await rescored(tmp_path, "Judged", "--output", "b.jsonl")
        assert (done.code, done.last["errors"], done.last["rescored"]) == (4, 8, 2), done.err
        assert "the judge (endpoint 'judge') failed: the model judge answered 500" in done.err
        failed = [one for one in lines(tmp_path / "b.jsonl") if one["error"]]
        for one in failed:
            if one["index"] == 3:
                continue
            assert (one["error"]["code"], one["error"]["fault"]) == ("model-unavailable", "engine")
            assert (one["reward"], one["rescored_from"]) == (None, 0.0)
        answers.append(lambda ask: Reply("0.75"))
        more = await rescored(tmp_path, "Judged", "--output", "b.jsonl")
        assert (more.code, more.last["errors"], more.last["resumed"]) == (4, 8, 12)
        more = await rescored(tmp_path, "Judged", "--output", "b.jsonl", "--retry-errors")
    assert (more.code, more.last["errors"], more.last["failed_before"]) == (0, 0, 2), more.err
    assert more.last["usage"]["judge.calls"] == 10
    assert len(lines(tmp_path / "b.jsonl")) == 12 + 8
    rewards = {name: one["reward"] for name, one in by_name(tmp_path / "b.jsonl").items()}
    assert Counter(rewards.values()) == {0.75: 8, 0.5: 2, None: 2}


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("print('printed')", 0, "printed"),
        ("os._exit(7)", 3, "essays:Length: the process that loads it: it exited with status 7"),
    ],
)
async def test_module_of_a_scorer_printed_into_the_output_or_ended_the_command_without_a_word(
    tmp_path: Path, line: str, code: int, said: str
):
    await evaluated(tmp_path)
    (tmp_path / "essays.py").write_text(ESSAYS + line)
    done = await rescored(tmp_path, "Length", "--workers", "1")
    assert (done.code, said in done.err) == (code, True), done.err
    assert len(done.out.splitlines()) == 1


async def test_a_scorer_that_killed_its_worker_ran_again(tmp_path: Path):
    await evaluated(tmp_path)
    done = await rescored(tmp_path, "Deadly", "--output", "b.jsonl", "--workers", "1",
                          "--capacity", "1")  # fmt: skip
    assert (done.code, done.last["errors"], done.last["rescored"]) == (4, 2, 8), done.err
    assert (tmp_path / "killed").read_text() == "xx"
    lost = [one for one in by_name(tmp_path / "b.jsonl").values() if one["index"] == 2]
    assert {one["error"]["code"] for one in lost} == {"worker-lost"}
    assert [one["reward"] for one in lost] == [None, None]


async def test_rescoring_twice_has_the_reward_before(tmp_path: Path):
    await evaluated(tmp_path)
    await rescored(tmp_path, "Length", "--output", "b.jsonl")
    asked = ("Judged", "--role", "judge=random", "--output")
    refused = await rescored(tmp_path, *asked, "b.jsonl")
    assert (refused.code, "of another evaluation" in refused.err) == (2, True)
    done = await rescored(tmp_path, *asked, "c.jsonl", file="b.jsonl")
    assert done.code == 0, done.err
    after = by_name(tmp_path / "c.jsonl")
    assert {after[index, 0]["rescored_from"] for index in (1, 2)} == {0.1, 0.2}
    assert done.last["mean_before"] == 0.24


async def test_means_of_a_rescoring_were_of_different_rollouts_where_a_reward_was_no_number(
    tmp_path: Path,
):
    await evaluated(tmp_path)
    file = tmp_path / "a.jsonl"
    whole = lines(file)
    for one in whole:  # the two inputs whose new reward is none had one before
        one["reward"] = float(one["index"] < 2) if one["error"] is None else None
    file.write_text("".join(f"{json.dumps(one)}\n" for one in whole))
    done = await rescored(tmp_path, "Odd")
    figures = {name: done.last[name] for name in ("mean_before", "mean_reward", "higher", "lower")}
    assert figures == {"mean_before": 0.0, "mean_reward": 0.0, "higher": 0, "lower": 0}
    assert "2 rewards are nan and count for no mean" in done.err
    # A mapping whose reward is no number is no score.
    assert (done.code, done.last["errors"], done.last["rescored"]) == (4, 2, 8), done.err
    shown = await run(tmp_path, "rescore", "a.jsonl", "essays:Odd", "--workers", "0")
    assert "rewards left out" in shown.out
    assert "2 nan" in shown.out


async def test_rollouts_of_a_class_are_scored_by_its_judge(tmp_path: Path):
    (tmp_path / "essays.py").write_text(ESSAYS)
    asked = ("eval", "essays:Words", "-n", "4", "--output", "a.jsonl", "--role", "judge=oracle")
    done = await run(tmp_path, *asked, "--workers", "0", "--json")
    assert (done.code, done.last["mean_reward"]) == (0, 0.5), done.err
    assert done.last["usage"]["judge.calls"] == done.last["usage"]["calls"] == 4
    endpoint = Endpoint(lambda ask: Reply("0.25"))
    async with serve(endpoint) as url:
        done = await rescored(tmp_path, "Words", "--role", f"judge={url}", "--workers", "2")
    assert (done.code, done.last["mean_reward"], done.last["lower"]) == (0, 0.25, 4), done.err
    assert {ask.messages[0]["content"] for ask in endpoint.asks} == {"said"}


async def test_rollouts_of_groups_are_scored_one_by_one(tmp_path: Path):
    await evaluated(tmp_path, "--group")
    done = await rescored(tmp_path, "Length")
    assert (done.code, done.last["rescored"], done.last["output"]) == (0, 10, None), done.err


async def test_a_last_line_that_is_cut_is_left_out(tmp_path: Path):
    await evaluated(tmp_path)
    file = tmp_path / "a.jsonl"
    file.write_bytes(file.read_bytes()[:-30])
    done = await rescored(tmp_path, "Length")
    assert done.code == 0
    assert done.last["rollouts"] == 11
    assert "the last line is not whole, and is left out" in done.err


async def test_a_table_is_scored_into_a_table(tmp_path: Path):
    pytest.importorskip("pyarrow")
    await evaluated(tmp_path)
    asked = ("eval", "essays:Essay", "-n", "6", "--output", "a.parquet", "--workers", "0")
    await run(tmp_path, *asked, "--json")
    done = await rescored(tmp_path, "Length", "--output", "b.parquet", file="a.parquet")
    assert (done.code, done.last["rescored"]) == (0, 5), done.err
    twice = await rescored(tmp_path, "Length", file="b.parquet")
    assert (twice.code, twice.last["changed"], twice.last["mean_before"]) == (0, 0, 0.24)
    own = await rescored(tmp_path, "Length", "--output", "a.parquet", file="a.parquet")
    assert (own.code, "would write to the file" in own.err) == (2, True)
