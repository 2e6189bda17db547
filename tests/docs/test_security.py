"""Each claim of the page on security has a test, which is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")
NAMED = re.findall(r"\| `([\w/]+\.py)::(\w+)` \|", PAGE)


assert len(NAMED) == PAGE.count("::") > 10


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_the_test_of_a_claim_is_there(path: str, name: str):
    assert f"def {name}(" in (TESTS / path).read_text(encoding="utf-8")
