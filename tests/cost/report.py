"""A run's record as tables: for people at the terminal, and for the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from tests.cost.cases import CASES
from tests.cost.run import OURS, PEER, PLAIN

Record: TypeAlias = "dict[str, Any]"
Rows: TypeAlias = "list[tuple[str, ...]]"

SHOWN = {
    "per_s": "requests/s", "mb_per_s": "MB/s", "p50_ms": "p50 ms", "p99_ms": "p99 ms",
    "router_us": "router CPU µs", "worker_us": "worker CPU µs", "client_us": "client CPU µs",
    "all_us": "all CPU µs",
}  # fmt: skip
"""Measures of sides, as their columns are headed."""

WORDS = {
    **SHOWN,
    "ends_us": "router and client CPU µs",
    "bytes_each": "bytes for each",
    "bytes_each_host": "bytes for each host",
    "sync_ms": "CPU ms for a sync",
    "cancel_us": "CPU µs for each cancelled",
    "core_percent": "% of a core",
    "early_us": "router CPU µs, early",
    "late_us": "router CPU µs, late",
    "fsync_ms": "ms of the disk for a sync",
    "ready_s": "seconds until it is ready",
    "server_cpu_s": "CPU seconds of the server",
}


def in_words(measure: str) -> str:
    """The heading of a measure."""
    return WORDS.get(measure, measure.replace("_", " "))


def number(value: float) -> str:
    """Three digits that count, thousands set apart."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if value else "0"


def spread(figures: Mapping[str, float]) -> str:
    """A median, and what it lies between."""
    if figures["n"] == 1:
        return number(figures["median"])
    return f"{number(figures['median'])} ({number(figures['min'])}-{number(figures['max'])})"


def is_special(case: Record) -> bool:
    """Whether it compares nothing."""
    return list(case["figures"]) == [OURS] and "per_s" not in case["figures"][OURS]


def load_rows(record: Record) -> Rows:
    """A row for each case and side; the first names the columns."""
    rows: Rows = [("case", "who", *SHOWN.values())]
    for case in record["cases"]:
        title = case["title"]
        for who, figures in {} if is_special(case) else case["figures"].items():
            if figures.keys() & SHOWN:
                cells = [spread(figures[m]) if m in figures else "" for m in SHOWN]
                rows.append((title, who, *cells))
                title = ""
    return rows


def special_rows(record: Record) -> Rows:
    """A row for each figure of the special cases."""
    rows: Rows = [("case", "figure", "median (min-max)")]
    for case in filter(is_special, record["cases"]):
        for measure, figures in case["figures"][OURS].items():
            rows.append((case["title"], in_words(measure), spread(figures)))
    return rows


def mark_rows(record: Record) -> Rows:
    """A row for each mark."""
    rows: Rows = [("case", "figure", "times that of", "wanted", "got", "reached")]
    for mark in record["marks"]:
        words = mark["case"], in_words(mark["measure"]), mark["against"] or "-", mark["wanted"]
        rows.append((*words, spread(mark["got"]), "yes" if mark["reached"] else "no"))
    return rows


def targets() -> str:
    """The targets as a table for a page of the documentation."""
    rows: Rows = [
        ("case", "figure", "times the peer's", "times the plain loop's", "itself, or times that of")
    ]
    for case in CASES:
        for measure in dict.fromkeys(mark.measure for mark in case.marks):
            wanted = {mark.against: mark.wanted for mark in case.marks if mark.measure == measure}
            peer, plain = wanted.pop(PEER, "-"), wanted.pop(PLAIN, "-")
            own = [f"{bound} {against}".strip() for against, bound in wanted.items()]
            title = f"`{case.name}`: {case.title}"
            rows.append((title, in_words(measure), peer, plain, own[0] if own else "-"))
    return table(rows)


def about(record: Record) -> str:
    """When, where and with what."""
    where, judged = record["machine"], record["judged"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    text = (
        f"{record['date']}; {where['processor']}, {where['cores']} cores, {where['system']}, "
        f"load {where['load_before']} before and {where['load_after']} after; {versions}; "
        f"{record['rounds']} rounds of {record['seconds']:g} s. "
        f"The environment's log: {judged.get('asked', 0):,} requests, "
        f"{judged.get('started_twice', 0)} started twice, {judged.get('lost', 0)} lost."
    )
    return " ".join([text, *(f"Note: {note}." for note in record["notes"])])


def markdown(record: Record) -> str:
    """All of it, for a terminal or a page of the documentation."""
    parts = [about(record)]
    for title, rows in (
        ("Targets", mark_rows(record)),
        ("Loads", load_rows(record)),
        ("Special cases", special_rows(record)),
    ):
        if len(rows) > 1:
            parts += [f"**{title}**", table(rows)]
    return "\n\n".join(parts) + "\n"


def table(rows: Rows) -> str:
    """A table of Markdown; the first row names the columns."""
    first, *rest = rows
    rule = tuple("---" for _ in first)
    return "\n".join(f"| {' | '.join(row)} |" for row in (first, rule, *rest))
