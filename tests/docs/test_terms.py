"""The table of terms names what is in the code, and each term once."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
TERMS = (DOCS / "terms.md").read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """The cells of a page's tables, without heads and rules."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "term"]


def named_in_code() -> list[str]:
    return [name for row in rows(TERMS) for name in re.findall(r"`([\w.]+)`", row[2])]


def look_up(name: str) -> Any:
    """A module of the package, or what is in one."""
    path = f"trio_envserve.{name}"
    try:
        return importlib.import_module(path)
    except ImportError:
        owner, _, attribute = name.rpartition(".")
        return getattr(look_up(owner), attribute)


@pytest.mark.parametrize("name", sorted(set(named_in_code())))
def test_what_the_terms_name_is_in_the_code(name: str):
    look_up(name)


def test_a_name_that_is_not_in_the_code_is_seen():
    with pytest.raises(AttributeError):
        look_up("core.requests.NoSuchClass")


def test_each_term_is_there_once_and_easy_to_find():
    terms = [row[0] for row in rows(TERMS)]
    assert terms == sorted(set(terms))
    assert all(meaning for _, meaning, *_ in rows(TERMS))


def test_the_protocol_means_the_same_by_its_words():
    page = (DOCS / "protocol.md").read_text(encoding="utf-8")
    words = page.split("\n## Words\n")[1].split("\n## ")[0]
    meanings = {term: meaning for term, meaning, *_ in rows(TERMS)}
    assert rows(words)
    for term, meaning in rows(words):
        assert meanings[term] == meaning, term
