"""Pictures of terminals are drawn from real runs, and those on disk show what a new run does."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree
from pathlib import Path

import pytest
import trio

pytest.importorskip("rich")

from docs.draw import DOCS, PICTURES, terminals

SHOWN = {
    "eval-live.svg": [
        "rollouts", "of 60", "left", "mean", "model calls", "environment", "w0-1", "w1-1",
    ],
    "eval-summary.svg": [
        "mean reward", "standard error, over 29 inputs", "pass@2", "model calls", "turns",
        "ValueError: 74 is not played here", "slowest rollouts",
    ],
    "show.svg": ["1 of 60", "reward 0.142857", "[assistant]", "Lower."],
    "compare.svg": ["95% interval", "reward", "before.jsonl: guessing, oracle", "changed most"],
}  # fmt: skip


@pytest.mark.real
async def test_pictures_of_terminals_show_real_runs(tmp_path: Path):
    with trio.fail_after(120):
        new = await terminals.pictures(tmp_path)
    page = (DOCS / "evaluating.md").read_text(encoding="utf-8")
    assert new.keys() == SHOWN.keys()
    for name, words in SHOWN.items():
        assert f"](pictures/{name})" in page
        old = (PICTURES / name).read_text(encoding="utf-8")
        assert terminals.words(old) == terminals.words(new[name]), f"{name}: python -m docs.draw"
        for picture in (old, new[name]):
            xml.etree.ElementTree.fromstring(picture)
            assert "font-face" not in picture
            text = " ".join(re.sub(r"<[^>]*>", "", html.unescape(picture)).split())
            for word in words:
                assert word in text, (name, word)
