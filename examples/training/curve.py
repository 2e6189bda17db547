"""Draw the curves of recorded runs.

    python curve.py RECORD.json > CURVE.svg

The record has, by the name of a trainer, what ``--out`` of its program wrote.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 640, 300
LEFT, TOP, RIGHT, BOTTOM = 44, 16, 16, 40
COLOURS = ("#2a6f97", "#c05621")


def drawn(record: dict[str, dict[str, Any]]) -> str:
    """The picture as SVG: reward by step."""
    most = max(len(run["rewards"]) for run in record.values())
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(step: float, reward: float) -> str:
        return f"{LEFT + across * step / most:.1f},{TOP + down * (1 - reward):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" role="img">',
        "<title>Mean reward of each step of training</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for tenth in range(0, 11, 2):
        x, y = place(0, tenth / 10).split(",")
        end = WIDTH - RIGHT
        parts.append(f'<line x1="{x}" y1="{y}" x2="{end}" y2="{y}" stroke="#ddd"/>')
        right = f'x="{LEFT - 6}" y="{float(y) + 4:.1f}" text-anchor="end" fill="#555"'
        parts.append(f"<text {right}>{tenth / 10:.1f}</text>")
    for step in range(0, most + 1, 50):
        x, y = place(step, 0).split(",")
        below = f'x="{x}" y="{float(y) + 16:.1f}" text-anchor="middle" fill="#555"'
        parts.append(f"<text {below}>{step}</text>")
    middle = f'x="{LEFT + across / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle" fill="#555"'
    parts.append(f"<text {middle}>step of training</text>")
    for number, (name, run) in enumerate(record.items()):
        points = " ".join(place(step, reward) for step, reward in enumerate(run["rewards"], 1))
        colour = COLOURS[number]
        line = f'fill="none" stroke="{colour}" stroke-width="1.5"'
        parts.append(f'<polyline points="{points}" {line}/>')
        corner = f'x="{WIDTH - RIGHT - 8}" y="{HEIGHT - BOTTOM - 30 + 18 * number}"'
        parts.append(f'<text {corner} text-anchor="end" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    sys.stdout.write(drawn(json.loads(Path(sys.argv[1]).read_text())))
