"""The pictures of terminals are drawn from real runs, and show what their page says."""

from __future__ import annotations

import html
import importlib.util
import re
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest
import trio

pytest.importorskip("rich")

DOCS = Path(__file__).parent.parent.parent / "docs"

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
async def test_the_pictures_show_real_runs(tmp_path: Path):
    spec = importlib.util.spec_from_file_location("_drawn", DOCS / "_ext" / "drawn_from_runs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        with trio.fail_after(120):
            drawn = await module.pictures(tmp_path)
    finally:
        del sys.modules[spec.name]
    assert drawn.keys() == SHOWN.keys()
    page = (DOCS / "evaluating.md").read_text(encoding="utf-8")
    for name, words in SHOWN.items():
        assert f"_generated/{name}" in page
        xml.etree.ElementTree.fromstring(drawn[name])
        assert "font-face" not in drawn[name]
        text = " ".join(re.sub(r"<[^>]*>", "", html.unescape(drawn[name])).split())
        for word in words:
            assert word in text, (name, word)
