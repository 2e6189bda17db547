"""The live page: one file of HTML, put together when the door is loaded."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from ....pages import assemble

_FOLDER: Final = files(__package__)


def _read(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


_ASSEMBLED: Final = assemble(_read("live.html"), style=_read("live.css"), script=_read("live.js"))

PAGE: Final = _ASSEMBLED.text.encode()
"""The page, as it is sent."""

HEADERS: Final = (
    (
        b"content-security-policy",
        f"{_ASSEMBLED.policy}; connect-src 'self'; frame-ancestors 'none'".encode(),
    ),
    (b"referrer-policy", b"no-referrer"),
)
"""Those that go with it."""
