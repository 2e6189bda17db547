"""Text of others, made harmless for a terminal.

An environment, a model or a file may put anything into a name, a message or a result: sequences
that move the cursor, set the title or answer questions, characters that turn the direction of
writing around or break the line.  Characters that a terminal might act on are shown as escapes.
"""

from __future__ import annotations

import re

_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def plain_text(text: str) -> str:
    """``text`` with all that a terminal might act on escaped.  Line ends and tabs stay."""
    return _HARMFUL.sub(_escaped, text.replace("\r\n", "\n"))


def plain_line(text: str, most: int | None = None) -> str:
    """The plain text on one line of at most ``most`` characters."""
    if most is not None and len(text) > most:
        text = text[: most - 1] + "…"
    return plain_text(text).replace("\n", "\\n").replace("\t", " ")


def cut_middle(text: str, most: int, note: str) -> str:
    """At most ``most`` characters of a text, its beginning and its end, with a note of how many are
    left out between them."""
    left_out = len(text) - most
    if left_out <= 0:
        return text
    tail = most // 2
    head, end = text[: most - tail], text[len(text) - tail :]
    return f"{head}\n[… {left_out:,} characters, {note} …]\n{end}"


def headline(text: str) -> str:
    """The first line of a message in which a word stands.  One that ends with a colon has the
    next one behind it: some libraries begin a message with a line end and a ruler."""
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalnum, line))]
    if len(lines) > 1 and lines[0].endswith(":"):
        return f"{lines[0]} {lines[1]}"
    return lines[0] if lines else text.strip()


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
