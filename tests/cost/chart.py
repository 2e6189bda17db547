"""The chart: throughput of the contenders, side by side, as SVG."""

from __future__ import annotations

import math
from typing import Any
from xml.sax.saxutils import escape

from tests.cost.cases import ALL, OURS
from tests.cost.report import number

_COLOURS = dict(
    zip(ALL, ("#2f6fb0", "#8fb8de", "#9aa3ab", "#c9cfd4", "#d98032", "#ecc196"), strict=True)
)
_LEFT, _WIDTH, _BAR, _GAP, _TOP, _KEY = 300, 560, 13, 12, 52, 74


def svg(record: dict[str, Any]) -> str:
    """A group of bars for each load, on a logarithmic scale, with the spread as a
    line; readable on light and dark pages."""
    loads = [case for case in record["cases"] if "per_s" in case["figures"][OURS]]
    most = max((f["per_s"]["max"] for c in loads for f in c["figures"].values()), default=1.0)
    decades = max(1, math.ceil(math.log10(most)))

    def x(value: float) -> float:
        return _LEFT + _WIDTH * max(0.0, math.log10(max(value, 1.0))) / decades

    parts: list[str] = []
    y = float(_TOP)
    for case in loads:
        height = _BAR * len(case["figures"])
        parts.append(_text(_LEFT - 10, y + height / 2 + 4, case["title"], "end"))
        for who in ALL:
            if who in case["figures"]:
                parts += _bar(x, y, who, case["figures"][who]["per_s"])
                y += _BAR
        y += _GAP
    for decade in range(decades + 1):
        at = x(10.0**decade)
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP - 8}" y2="{y:.1f}" class="grid"/>'
        )
        parts.append(_text(at, _TOP - 14, f"{10**decade:,}", "middle"))
    legend = [
        f'<rect x="{_LEFT + _KEY * i}" y="8" width="11" height="11" fill="{_COLOURS[who]}"/>'
        + _text(_LEFT + _KEY * i + 16, 18, who, "start")
        for i, who in enumerate(ALL)
    ]
    parts.append(_text(_LEFT + _WIDTH, 18, "requests a second", "end"))
    width, bottom = _LEFT + _WIDTH + 90, y + 8
    style = (
        "text{font:12px sans-serif;fill:#777}.grid{stroke:#8886;stroke-width:.5}"
        ".spread{stroke:#444;stroke-width:1}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom:.0f}" '
        f'role="img" aria-label="requests a second"><style>{style}</style>\n'
        + "\n".join([*legend, *parts])
        + "\n</svg>\n"
    )


def _bar(x: Any, y: float, who: str, figures: dict[str, float]) -> list[str]:
    end, middle = x(figures["median"]), y + _BAR / 2 - 0.5
    low, high = x(figures["min"]), x(figures["max"])
    return [
        f'<rect x="{_LEFT}" y="{y:.1f}" width="{end - _LEFT:.1f}" height="{_BAR - 1}" '
        f'fill="{_COLOURS[who]}"/>',
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle:.1f}" y2="{middle:.1f}" '
        'class="spread"/>',
        _text(max(end, high) + 5, y + _BAR - 3, number(figures["median"]), "start"),
    ]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
