"""The chart of the benchmark: requests a second of all sides, as SVG."""

from __future__ import annotations

import math
from typing import Any
from xml.sax.saxutils import escape

from tests.cost.report import number
from tests.cost.run import OURS, PEER, PLAIN

COLOURS = {OURS: "#2f6fb0", PLAIN: "#9aa3ab", PEER: "#d98032"}
LEFT, WIDTH, BAR, GAP, TOP, KEY = 300, 560, 13, 12, 52, 74
STYLE = (
    "text{font:12px sans-serif;fill:#777}.grid{stroke:#8886;stroke-width:.5}"
    ".spread{stroke:#444;stroke-width:1}"
)


def svg(record: dict[str, Any]) -> str:
    """A group of bars for each case of these sides, on a logarithmic scale, with the spread as a
    line; readable on light and dark pages."""
    loads = [
        (case["title"], {who: figures["per_s"] for who, figures in case["figures"].items()})
        for case in record["cases"]
        if "per_s" in case["figures"].get(OURS, {})
    ]
    most = max((figures["max"] for _, by in loads for figures in by.values()), default=1.0)
    decades = max(1, math.ceil(math.log10(most)))

    def x(value: float) -> float:
        return LEFT + WIDTH * max(0.0, math.log10(max(value, 1.0))) / decades

    parts = [_text(LEFT + WIDTH, 18, "requests a second", "end")]
    for index, (who, colour) in enumerate(COLOURS.items()):
        parts.append(_rect(LEFT + KEY * index, 8, 11, 11, colour))
        parts.append(_text(LEFT + KEY * index + 16, 18, who, "start"))
    y = float(TOP)
    for title, by in loads:
        sides = [(by[who], colour) for who, colour in COLOURS.items() if who in by]
        parts.append(_text(LEFT - 10, y + BAR * len(sides) / 2 + 4, title, "end"))
        for figures, colour in sides:
            end, low, high = (x(figures[each]) for each in ("median", "min", "max"))
            parts.append(_rect(LEFT, y, end - LEFT, BAR - 1, colour))
            parts.append(_line(low, high, y + BAR / 2 - 0.5, y + BAR / 2 - 0.5, "spread"))
            value = number(figures["median"])
            parts.append(_text(max(end, high) + 5, y + BAR - 3, value, "start"))
            y += BAR
        y += GAP
    for decade in range(decades + 1):
        at = x(10.0**decade)
        parts.append(_line(at, at, TOP - 8, y, "grid"))
        parts.append(_text(at, TOP - 14, f"{10**decade:,}", "middle"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 90} {y + 8:.0f}" '
        f'role="img" aria-label="requests a second"><style>{STYLE}</style>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}"/>'


def _line(x1: float, x2: float, y1: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
