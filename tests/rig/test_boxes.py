"""Boxes of rollouts, made by a provider of its own, while server and workers are killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rig.boxes import PROVIDER, judged
from tests.rig.rig import EVENTS
from tests.rig.test_runs import play


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(("hosts", "kills"), [(0, 6), (2, 12)])
async def test_g13_boxes_are_removed_once_whoever_is_killed(tmp_path: Path, hosts: int, kills: int):
    words = f"--rollouts 120 --kills {kills} --seed 1 --hosts {hosts}"
    figures = await play(tmp_path, "boxes", words)
    assert (figures["problems"], figures["exit"]) == ([], 0)
    assert (figures["rollouts"], figures["kills"]) == (120, kills)
    assert figures["made"] == figures["removed"] >= 120


MADE = ["makes", "a", 1, 0.0]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([MADE], "box a was never removed"),
        ([MADE, ["removes", "a", 1, 1.0], ["removed", "a", 1, 2.0]], ""),
        (
            [MADE, ["removes", "a", 1, 1.0], ["removes", "a", 2, 2.0], ["removed", "a", 1, 3.0]],
            "box a was removed by 2 while 1 had, which went on",
        ),
        (
            [MADE, ["removes", "a", 1, 1.0], ["removed", "a", 1, 2.0], ["removes", "a", 1, 3.0]],
            "box a was removed twice by 1",
        ),
        (
            [
                MADE, ["removes", "a", 1, 1.0], ["removed", "a", 1, 2.0],
                ["removes", "a", 2, 3.0], ["removed", "a", 2, 4.0],
            ],
            "",
        ),
        (
            [MADE, ["removes", "a", 2, 1.0], ["removed", "a", 2, 2.0], ["makes", "a", 1, 3.0]],
            "",
        ),
    ],
)  # fmt: skip
def test_g13_log_of_a_provider_is_judged(lines: list[Any], problem: str, tmp_path: Path):
    (tmp_path / "boxes").mkdir()
    (tmp_path / PROVIDER).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / EVENTS).write_text('{"kind": "phase", "actor": "end", "what": {}}\n')
    assert judged(tmp_path / EVENTS)["problems"] == [problem] * bool(problem)
