"""The summary of an evaluation, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import short_type
from ..evals.plain import headline, plain_line
from ..evals.records import usage_words
from ..evals.statistics import bar
from ..evals.tally import PERCENTILES
from .render import Table

_WIDTH = 30
_MESSAGE = 70
_NAME = 40
_WORKER = 12


def summary_tables(summary: Mapping[str, Any], title: str) -> list[Table]:
    """The figures as tables."""
    tables = [
        Table(title, (), _figures(summary)),
        *_histograms(summary),
        _latencies(summary),
    ]
    if summary["errors_by"]:
        errors = [
            (e["class"], e["code"], e["verdict"], e["fault"], str(e["count"]))
            for e in summary["errors_by"]
        ]
        columns = ("class", "code", "what is known", "fault", "count")
        tables.append(Table("errors", columns, errors, left=(0, 1, 2, 3)))
        tables.append(_rollouts("failed rollouts", summary["failed"]))
    if summary["slowest"]:
        tables.append(_rollouts("slowest rollouts", summary["slowest"]))
    return tables


def _figures(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    reward, retries = summary["reward"], summary["retries"]
    rows = [
        ("results", str(summary["results"])),
        ("errors", _errors(summary)),
        ("mean reward", shown(summary["mean_reward"])),
    ]
    if summary["left_out_of_gradient"]:
        rows.insert(2, ("left out of the gradient", str(summary["left_out_of_gradient"])))
    if reward["std_error"] is not None:
        percent = f"{reward['confidence']:.0%} interval"
        rows += [
            (f"standard error, over {reward['inputs']} inputs", shown(reward["std_error"])),
            (percent, f"{shown(reward['low'])} to {shown(reward['high'])}"),
        ]
    if len(reward["pass_at"]) > 1:
        for k, each in reward["pass_at"].items():
            rows.append((f"pass@{k}, over {each['inputs']} inputs", shown(each["mean"])))
    left_out = {name: n for name, n in summary["rewards_left_out"].items() if name != "types" and n}
    if left_out:
        words = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in left_out.items())
        rows.append(("rewards left out", words))
    rows += [(usage_words(name), f"{n:,}") for name, n in summary["usage"].items() if n]
    if summary.get("resumed"):
        rows.append(("results that were there before", str(summary["resumed"])))
    rows += [
        ("seconds", f"{summary['seconds']:.2f}"),
        ("rollouts per second", f"{summary['rate']:.1f}"),
    ]
    again = {
        "retransmitted": "retransmitted", "reissued": "issued again after a lost server",
        "rerun": "executed more than once, by consent",
    }  # fmt: skip
    rows += [(words, str(retries[name])) for name, words in again.items() if retries[name]]
    return [(plain_line(name, _NAME), value) for name, value in rows]


def _errors(summary: Mapping[str, Any]) -> str:
    faults = ", ".join(f"{n} {fault}" for fault, n in summary["errors_by_fault"].items() if n)
    return f"{summary['errors']} ({faults})" if faults else str(summary["errors"])


def _histograms(summary: Mapping[str, Any]) -> list[Table]:
    reward = summary["reward"]["histogram"]
    named = [("rewards", reward)] if reward else []
    named += [(name, each["histogram"]) for name, each in summary["metrics"].items()]
    return [
        Table(plain_line(name, _NAME), (), _bars(bins), left=(0, 1)) for name, bins in named if bins
    ]  # fmt: skip


def _bars(bins: Sequence[Mapping[str, float]]) -> list[tuple[str, ...]]:
    most = max(each["number"] for each in bins)
    rows: list[tuple[str, ...]] = []
    for each in bins:
        low, high = each["low"], each["high"]
        label = f"{low:.4g}" if low == high else f"{low:.4g} … {high:.4g}"
        line = bar(each["number"], most, _WIDTH).ljust(_WIDTH)
        rows.append((label, line, f"{each['number']:.0f}"))
    return rows


def _latencies(summary: Mapping[str, Any]) -> Table:
    names = tuple(f"p{p}" for p in PERCENTILES)
    rows = [
        (what, *(shown(summary[key][name]) for name in names))
        for what, key in (("caller's wait", "took_s"), ("execution", "duration_s"))
    ]
    return Table("latency in seconds", ("", *names), rows)


def _rollouts(title: str, rollouts: Sequence[Mapping[str, Any]]) -> Table:
    columns: tuple[str, ...] = ("input", "repeat", "seconds", "worker")
    rows = [_which(one) for one in rollouts]
    if any(row[-1] for row in rows):
        return Table(title, (*columns, "error"), rows, left=(0, 3, 4))
    return Table(title, columns, [row[:-1] for row in rows], left=(0, 3))


def _which(one: Mapping[str, Any]) -> tuple[str, ...]:
    error = one["error"]
    what = ""
    if error is not None:
        what = f"{short_type(error['type']) or error['class']}: {error['message']}"
    message = plain_line(headline(what), _MESSAGE)
    worker = plain_line(one["worker"], _WORKER)
    return str(one["index"]), str(one["repeat"]), shown(one["duration_s"]), worker, message


def calls_words(usage: Mapping[str, float]) -> str:
    """Model calls as counted by a server: how many there were, and what went wrong."""
    odd = [
        f"{usage[name]:,.0f} {words}"
        for name, words in (("failed", "failed"), ("retries", "sent again"))
        if usage.get(name)
    ]
    calls = f"{usage.get('calls', 0):,.0f}"
    return f"{calls} ({', '.join(odd)})" if odd else calls


def tokens_words(usage: Mapping[str, float], seconds: float = 0.0) -> str:
    """Their tokens; with the seconds that they took, the rate at which they were written."""
    written = usage.get("completion_tokens", 0)
    rate = f" ({written / seconds:,.0f}/s)" if seconds and written else ""
    return f"{usage.get('prompt_tokens', 0):,.0f} read, {written:,.0f} written{rate}"


def shown(value: float | None) -> str:
    """A figure; ``-`` if there is none."""
    return "-" if value is None else f"{value:.4g}"
