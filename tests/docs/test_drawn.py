"""What is drawn in the documentation is what the code says, and is in the repository.

After a change of what is drawn (messages, limits, options, errors, endings, metrics, public
names and their docstrings, ...) run ``python -m docs.draw``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import draw

SHOWS_NOTHING = re.compile(r"^(?:```|:::)\{.*|(?:^|\s)\{\w+\}`.*", re.MULTILINE)
HOW = "is not what the code says; to renew it, run: python -m docs.draw"


@pytest.mark.parametrize("page", draw.pages(), ids=lambda page: page.name)
def test_drawn_part_of_a_page_is_what_the_code_says(page: Path):
    text = page.read_text(encoding="utf-8")
    new = draw.redrawn(text)
    changed = [line for line in new.splitlines() if line not in text.splitlines()]
    assert new == text, f"docs/{page.name} {HOW}\nnew: {changed[:3]}"


@pytest.mark.parametrize("name", sorted(draw.DIAGRAMS))
def test_diagram_is_what_the_code_says(name: str):
    picture = draw.PICTURES / name
    assert picture.read_text(encoding="utf-8") == draw.DIAGRAMS[name](), f"{picture.name} {HOW}"


def test_everything_drawn_is_on_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in draw.pages())
    assert set(draw.regions(text)) == set(draw.TEXTS)
    shown = set(re.findall(r"\]\(pictures/([\w.-]+)\)", text))
    assert shown == {picture.name for picture in draw.PICTURES.iterdir()}


def test_table_that_differs_is_seen():
    text = (draw.DOCS / "limits.md").read_text(encoding="utf-8")
    changed = text.replace("| `lease_s` | 600 s |", "| `lease_s` | 300 s |")
    assert changed != text
    assert draw.redrawn(changed) == text


@pytest.mark.parametrize("page", draw.pages(), ids=lambda page: page.name)
def test_page_has_nothing_that_a_forge_does_not_show(page: Path):
    assert not SHOWS_NOTHING.findall(page.read_text(encoding="utf-8"))
