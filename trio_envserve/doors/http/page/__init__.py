"""The live page: one file of HTML, made when the door is loaded.

The script and the style are in it, and so is uPlot (MIT licence, in its file), which draws the
charts; nothing else is loaded.  The policy in :data:`HEADERS` names them by their hashes, so
that no text which the page shows can be a script, whatever it says.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Final

_FOLDER = files(__package__)


def _read(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_UPLOT = _read("uplot-1.6.32.js")
_SCRIPT = _read("live.js")
_STYLE = _read("live.css")

PAGE: Final = (
    _read("live.html")
    .replace("/*style*/", _STYLE)
    .replace("/*uplot*/", _UPLOT)
    .replace("/*script*/", _SCRIPT)
    .encode()
)
"""The page, as it is sent."""

_POLICY = (
    f"default-src 'none'; connect-src 'self'; img-src data:; style-src {_hash(_STYLE)}; "
    f"script-src {_hash(_UPLOT)} {_hash(_SCRIPT)}; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)

HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
)
"""Those that go with it."""
