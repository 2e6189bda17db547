"""The pages that the conformance suite is held against."""

from __future__ import annotations

import re
from pathlib import Path

_DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = _DOCS / "conformance.md"
PROTOCOL = _DOCS / "protocol.md"


def headings() -> list[str]:
    """The headings of the protocol document, in order."""
    return re.findall(r"^##+ (.+)$", PROTOCOL.read_text(encoding="utf-8"), re.MULTILINE)
