"""A run's record as tables: for people at the terminal, and for the documentation."""

from __future__ import annotations

from typing import Any, TypeAlias

from tests.cost.cases import ALL, CASES, MARKS, OURS, PEER_03, PEER_04, PLAIN

Record: TypeAlias = "dict[str, Any]"
Rows: TypeAlias = "list[tuple[str, ...]]"

SHOWN = (
    ("per_s", "requests/s"),
    ("mb_per_s", "MB/s"),
    ("p50_ms", "p50 ms"),
    ("router_us", "router CPU µs"),
    ("worker_us", "worker CPU µs"),
    ("client_us", "client CPU µs"),
)
"""Measures of loads, as they are headed."""


_WORDS = {
    **dict(SHOWN),
    "p99_ms": "p99 ms",
    "bytes_each": "bytes for each request",
    "sync_ms": "CPU ms for a sync",
    "cancel_us": "CPU µs for each cancelled",
    "core_percent": "% of a core",
    "early_us": "router CPU µs, early",
    "late_us": "router CPU µs, late",
    "late_over_early": "late over early",
    "plain_us": "CPU µs of all processes, without a key",
    "keyed_us": "with a key",
    "keyed_over_plain": "with a key over without",
    "curve_us": "CPU µs of client and router, with keys",
    "keyless_us": "without keys",
    "curve_over_keyless": "with keys over without",
    "least_over_keyless": "the least of its pairs",
    "most_over_keyless": "the largest of its pairs",
    "plain_per_s": "calls/s without a key",
    "keyed_per_s": "calls/s with a key, in the journal",
    "fsync_ms": "ms of the disk for a sync",
    "visible_us": "CPU µs with metrics, page and a viewer",
    "unseen_us": "without these",
    "visible_over_unseen": "with these over without",
    "read_p99_ms": "p99 ms while 200 read",
    "unread_p99_ms": "p99 ms while nobody reads",
    "read_over_unread": "the first over the second",
    "with_us": "CPU µs with a journal",
    "without_us": "without one",
    "with_over_without": "with a journal over without",
    "ready_s": "seconds until it is ready",
    "server_cpu_s": "CPU seconds of the server",
    "bare_per_s": "requests/s of a bare handler",
    "rate_over_bare": "rate over that of a bare handler",
    "server_us": "server CPU µs",
    "bare_us": "bare handler CPU µs",
}


def in_words(measure: str) -> str:
    """The heading of a measure."""
    return _WORDS.get(measure, measure.replace("_", " "))


def number(value: float) -> str:
    """Three digits that count, thousands set apart."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if value else "0"


def spread(figures: dict[str, float]) -> str:
    """A median, and what it lies between."""
    if figures["n"] == 1:
        return number(figures["median"])
    return f"{number(figures['median'])} ({number(figures['min'])}-{number(figures['max'])})"


def load_rows(record: Record) -> Rows:
    """A row for each case and contender; the first names the columns."""
    rows: Rows = [("case", "who", *(heading for _, heading in SHOWN))]
    for case in record["cases"]:
        if "per_s" not in case["figures"][OURS]:
            continue
        for who in ALL:
            figures = case["figures"].get(who)
            if figures:
                cells = [spread(figures[m]) if m in figures else "" for m, _ in SHOWN]
                rows.append((case["title"] if who == OURS else "", who, *cells))
    return rows


def special_rows(record: Record) -> Rows:
    """A row for each figure of the special cases."""
    rows: Rows = [("case", "figure", "median (min-max)")]
    for case in record["cases"]:
        if "per_s" in case["figures"][OURS]:
            continue
        for measure, figures in case["figures"][OURS].items():
            rows.append((case["title"], in_words(measure), spread(figures)))
    return rows


def mark_rows(record: Record) -> Rows:
    """A row for each mark."""
    rows: Rows = [("case", "figure", "times that of", "wanted", "got", "reached")]
    for mark in record["marks"]:
        rows.append(
            (
                mark["case"], in_words(mark["measure"]), mark["against"] or "-",
                mark["wanted"], spread(mark["got"]), "yes" if mark["reached"] else "no",
            )
        )  # fmt: skip
    return rows


def target_rows() -> Rows:
    """The targets: a row for each case and figure; the first names the columns."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for mark in MARKS:
        found.setdefault((mark.case, mark.measure), {})[mark.compared] = mark.wanted
    rows: Rows = [("case", "figure", "times either peer's", "times the plain loop's", "itself")]
    for (case, measure), wanted in found.items():
        peers, plain = wanted.pop(PEER_04, "-"), wanted.pop(PLAIN, "-")
        wanted.pop(PEER_03, None)  # the same for both
        own = wanted.pop("", "-")
        if wanted:
            ((other, bound),) = wanted.items()
            own = f"{bound} times that of {other.partition(', ')[2]}"
        rows.append((case, in_words(measure), peers, plain, own))
    return rows


def targets() -> str:
    """The same as a table for a page of the documentation, where cases have titles, too."""
    titles = {case.name: case.title for case in CASES}
    first, *rest = target_rows()
    return _table([first, *((f"`{case}`: {titles[case]}", *row) for case, *row in rest)])


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
    """All of it, for a page of the documentation."""
    parts = [about(record)]
    titles = ("Targets", "Loads", "Special cases")
    for title, rows in zip(titles, (mark_rows(record), load_rows(record), special_rows(record)),
                           strict=True):  # fmt: skip
        if len(rows) > 1:
            parts += [f"**{title}**", _table(rows)]
    return "\n\n".join(parts) + "\n"


def _table(rows: Rows) -> str:
    first, *rest = rows
    rule = tuple("---" for _ in first)
    return "\n".join(f"| {' | '.join(row)} |" for row in (first, rule, *rest))
