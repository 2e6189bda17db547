"""Pages that are one file of HTML: what they share, and how they are put together.

Theory of operation
-------------------
Nothing that a page needs is loaded: style and scripts stand in it, and so does uPlot (MIT
licence, in its file), which draws the charts.  The policy of a page names them by their
hashes, so that no text which it shows can be a script, whatever it says.  What a page shows
stands in it as JSON in elements that are no scripts, or comes later.

A page has its own HTML, style and script.  It gets ``shared.css`` before its style and
``parts.js`` before its script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.resources import files
from typing import Any, Final, NamedTuple

_FOLDER: Final = files(__package__)
_LOADS_NOTHING: Final = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'"
_HARMFUL: Final = re.compile("[<>&\u2028\u2029\ud800-\udfff]")
"""Characters that could end the element, or are no JavaScript or no UTF-8."""


class Page(NamedTuple):
    """A page without what it shows."""

    text: str
    policy: str
    """Content-Security-Policy of the page."""


def assemble(html: str, *, style: str, script: str) -> Page:
    """Put a page together.

    In ``html``, ``/*style*/``, ``/*uplot*/`` and ``/*script*/`` are the places of these, each
    the whole content of its element, and ``{policy}`` that of the policy, for a page that has
    no headers.
    """
    style = _read("shared.css") + style
    uplot = _read("uplot-1.6.32.js")
    script = _read("parts.js") + script
    policy = (
        f"{_LOADS_NOTHING}; style-src {_hash(style)}; script-src {_hash(uplot)} {_hash(script)}"
    )
    text = html.replace("{policy}", policy)
    for slot, content in (("style", style), ("uplot", uplot), ("script", script)):
        text = text.replace(f"/*{slot}*/", content)
    return Page(text, policy)


def data_text(value: Any) -> str:
    """A value as JSON that may stand in an element of type ``application/json``: it can
    neither end the element nor be read as HTML.  ValueError for what JSON lacks."""
    written = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _HARMFUL.sub(lambda found: f"\\u{ord(found[0]):04x}", written)


def _read(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
