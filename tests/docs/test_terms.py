"""The table of terms names what is in the code, and each term once."""

from __future__ import annotations

import importlib
import re
import tokenize
from pathlib import Path
from token import NAME
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCS, PACKAGE = ROOT / "docs", ROOT / "trio_envserve"
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


OF_SEVERAL_CLASSES = {
    "Ask": "retrylab and the trial of a user's code are two kits, each with its own ask",
    "Fault": "retrylab's is what strikes a system, the package's is whose fault an error is",
    "Outcome": "a caller gets what the message of that name says",
}
"""Names that several classes have, since users know each of them, with the reason."""


def test_a_search_for_the_name_of_a_class_finds_one():
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in re.findall(r"^class ([A-Z]\w*)", path.read_text("utf-8"), re.MULTILINE):
            found.setdefault(name, []).append(path.relative_to(PACKAGE).as_posix())
    several = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert several.keys() == OF_SEVERAL_CLASSES.keys(), several


WITHDRAWN = {
    "desk", "felt", "heard", "keeper", "nought", "place", "room", "said", "taker", "tenure",
}  # fmt: skip
"""Words that once named things of this project, each of them several."""

THEIRS = {
    ("net/zmtp/curve.py", "open_in_place"): "in place: without a copy",
    ("net/zmtp/curve.py", "seal_in_place"): "in place: without a copy",
}
"""Names with such a word in its usual meaning, with what it means."""

LABORATORY = ("lab/", "retrylab/", "testing/")
"""Events of a run are called heard and said there."""


def withdrawn_in(name: str) -> bool:
    """Whether a name has a withdrawn word, in the singular or the plural."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]+|[a-z]+", name)
    return any(word.lower().removesuffix("s") in WITHDRAWN for word in words)


def test_withdrawn_words_name_nothing_that_ships():
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if file.startswith(LABORATORY):
            continue
        with path.open("rb") as code:
            names = [each.string for each in tokenize.tokenize(code.readline) if each.type == NAME]
        found |= {(file, name) for name in [path.stem, *names] if withdrawn_in(name)}
    assert found == THEIRS.keys()


@pytest.mark.parametrize("name", ["heard_s", "NoPlace", "NO_ROOM", "_takers", "said"])
def test_withdrawn_word_within_a_name_is_seen(name: str):
    assert withdrawn_in(name)
    assert not withdrawn_in("replaced_bathrooms")
