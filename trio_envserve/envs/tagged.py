"""Parts of a text between two marks, found in one pass.

A regular expression for this takes quadratic time for a text with many first marks and
no second one, which a model can write.
"""

from __future__ import annotations


def tagged(text: str, tag: str) -> list[str]:
    """The texts between ``<tag>`` and ``</tag>``, each from the first mark on."""
    return [inner for _, inner in _split(text, tag) if inner is not None]


def without(text: str, tag: str) -> str:
    """The text without such parts and their marks."""
    return "".join(outer for outer, _ in _split(text, tag))


def _split(text: str, tag: str) -> list[tuple[str, str | None]]:
    """The text in pairs: what stands outside, and the part after it if there is one."""
    begin, end, at = f"<{tag}>", f"</{tag}>", 0
    pairs: list[tuple[str, str | None]] = []
    while True:
        start = text.find(begin, at)
        stop = text.find(end, start + len(begin)) if start >= 0 else -1
        if stop < 0:
            return [*pairs, (text[at:], None)]
        pairs.append((text[at:start], text[start + len(begin) : stop]))
        at = stop + len(end)
