"""Tables and pictures of the documentation, drawn from the code's own tables.

Theory of operation
-------------------
There are two kinds.  ``docs/protocol.md`` must be complete by itself, for a
reader who has nothing else, so its tables stand in the file, between a line
``<!-- drawn: NAME -->`` and a line ``<!-- end -->``.  Running this file as a
script draws them anew, and a test compares them with the code.  Everything
else (the page of limits, the pictures) is written into ``docs/_generated`` when
the documentation is built: as a Sphinx extension this file does that first.

The arrows of the picture of the states are not written down anywhere: the
dedup cache is brought into each state, given each input, and asked where it is.
"""

from __future__ import annotations

import dataclasses
import enum
import html
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trio_envserve.core import (
    call_table,
    errors,
    key_table,
    keyed,
    limits,
    lives,
    messages,
    request_table,
)  # fmt: skip
from trio_envserve.core.calls import Stage
from trio_envserve.core.dedup import DedupCache
from trio_envserve.core.endings import ENDINGS, RAISED
from trio_envserve.core.fields import Field
from trio_envserve.core.key_records import GenerationState
from trio_envserve.core.limit_rules import RULES
from trio_envserve.core.limits import (
    ClientLimits,
    KeyLimits,
    ServerLimits,
    WireLimits,
    WorkerLimits,
)
from trio_envserve.core.request_table import TABLE, RequestInput
from trio_envserve.core.requests import Ask, RequestState, RetainedOutcome, Session
from trio_envserve.core.terms import Verdict
from trio_envserve.lab.bench.chart import svg
from trio_envserve.lab.bench.report import markdown, targets

DOCS = Path(__file__).resolve().parent.parent
COLUMNS = (
    RequestState.NOT_SEEN,
    RequestState.WAITING,
    RequestState.RUNNING,
    RequestState.COMPLETED,
)

# What a cell of the dedup cache's table does, in words, by the name of its function.
CELL_WORDS: Mapping[str, str] = {
    "_enter": "enter, or refuse for now",
    "_coalesce": "coalesce",
    "_replay": "replay",
    "_conflict": "conflict",
    "_run": "run",
    "_complete": "complete and answer",
    "_stray": "ignore",
    "_ignore": "ignore",
    "_never": "–",  # noqa: RUF001  # a dash: cannot be
    "_finish_new": "finish",
    "_finish_waiting": "unqueue, finish",
    "_finish_running": "finish; stop the execution",
    "_finish_kept": "finish, free the outcome",
    "_lose": 'consent and allowance left: waiting; else completed, "worker lost"',
    "_expire_waiting": "completed",
    "_expire_running": "completed; stop the execution",
    "_answer": "completed; answer",
    "_turn_away": "forget: not seen",
}

# What a cell of the table of a key's generation does, in words.
GENERATION_WORDS: Mapping[str, str] = {
    "_never": "–",  # noqa: RUF001  # a dash: cannot be
    "_ignore": "ignore",
    "_open": "open a generation, or refuse; after a cancel that overtook it: cancelled",
    "_join": "one more waiter",
    "_replay": "replay",
    "_conflict": "refuse: conflict",
    "_unknown": "refuse: unknown key",
    "_watch": "wait, and do not count",
    "_show": "replay",
    "_leave": "counts no more; the last one: close, or retention begins",
    "_lose": "its caller counts on; the last one: the orphan deadline begins",
    "_withdraw": "its caller counts no more; the last one: close, or retention begins",
    "_remember": "remember it for the next ask",
    "_close": "close",
    "_run": "running",
    "_end": "its outcome is there: completed; answer all. None: waiting",
    "_end_late": "nothing of it runs any more",
    "_release": "forget; what is held may start",
    "_complete": "completed; answer all",
    "_fail": "answer all; close: nothing is retained",
    "_abandon": "lost callers count no more: close, or retention begins",
    "_end_unread": "close; who waits: cancelled",
    "_show_read": "completed; answer all",
    "_send_away": "answer all that it could not be read; retention begins",
}

# What a cell of the table of a client's call does, in words.
CALL_WORDS: Mapping[str, str] = {
    "_never": "–",  # noqa: RUF001  # a dash: cannot be
    "_ignore": "ignore",
    "_send": "give it an id, transmit",
    "_retransmit": "transmit again, unless it may be under way or is held",
    "_hold": "hold; what is queued waits, too",
    "_hold_for_key": "hold",
    "_retry": "transmit again",
    "_fail": "fail",
    "_defer": "queue again for the next server",
    "_answer": "give to the caller",
    "_receive": "gone; tell the server",
    "_cancel": "gone; tell the server if it has an id",
    "_give_up": "fail",
    "_expire": "expired; ask whether it ran",
    "_wait": "ask again, or fail once it has asked for long",
    "_cancelled": "fail, and say whether it ran",
    "_lose": "with a key: queue again; else fail",
    "_lose_proven": "with a key, or consent and allowance left: queue again; else fail",
    "_lose_expired": "fail",
    "_refuse": "fail",
    "_reissue": "queue again",
    "_settle_expired": "fail",
    "_close_queued": "fail",
    "_abandon": "fail",
}

# What a cell of the table of a worker's life does, in words.
LIFE_WORDS: Mapping[str, str] = {
    "_nothing": "ignore",
    "_never": "–",  # noqa: RUF001  # a dash: cannot be
    "_ready": "ready",
    "_heard": "note its loop and memory; no longer silent",
    "_retire": "retiring",
    "_recall": "ready, if it retires since fewer workers are enough",
    "_end": "ending; the slot is free",
    "_kill_unready": "ending; kill; the slot is free after a longer pause",
    "_kill": "ending; kill; the slot is free",
    "_kill_ending": "kill again",
    "_died_unready": "reaped; the slot is free after a longer pause",
    "_died_ready": "reaped; the slot is free, after a pause if it died soon",
    "_ended": "reaped",
    "_time_starting": "kill if silent or late for its hello; suspect if silent",
    "_time": "kill or suspect if silent; retire if too large",
    "_time_ending": "kill again after `stop_s`",
    "_time_reaped": "lost after `reap_settle_s`, and forgotten",
}

# Who sends the messages of which kinds, and what stands around their header.
LINKS: Sequence[tuple[range, str, str, str]] = (
    (range(16), "client to router", "", ""),
    (range(16, 32), "router to client", "", ""),
    (range(64, 80), "worker to router", "incarnation", "client"),
    (range(80, 96), "router to worker", "incarnation", ""),
)
WITH_BODY: Mapping[type, str] = {
    messages.Request: "body",
    messages.KeyedRequest: "body",
    messages.Outcome: "body",
    messages.Delta: "body",
    messages.Stats: "body",
    messages.Running: "body",
    messages.Stack: "body",
    messages.WorkerOutcome: "body",
    messages.WorkerDelta: "body",
    messages.Dispatch: "body",
}

# Every code of a refusal, with what is true when it comes and what to do then.
REFUSAL_WORDS: Mapping[str, str] = {
    "conflict": "the id was used for a request with another digest or another length of body, or "
    "that asked something else of a key; "
    "the first one is not disturbed. A bug of the client",
    "finished": "the client itself has said that it is done with this id; the outcome is "
    "forgotten. Whether it ran is not known any more",
    "window": "as many requests of this session as the window allows are not finished. Try again",
    "queue-full": "too many requests wait, in number or in bytes, of all or of this session. "
    "Try again",
    "refused": "the body is larger than `message_bytes`, or the allowance is 0, or key or "
    "namespace are empty or too long. A bug of the client",
    "key-conflict": "under this key another input was asked, or the same with another consent; "
    "that work goes on. Take another key, or forget this one",
    "unknown-key": "nothing is known under this key, and this request may not start it: it "
    "attaches, or it is issued again. What was asked earlier may have run",
    "keys-full": "there is no room for another key besides those that are retained. It says "
    "nothing of known keys, nor of requests without one. Try again",
    "key-queue-full": "there is no room in the queue for the work of another key, or for the work "
    "of another namespace. It says the same. Try again",
    "commands-full": "no further command with an id of its own can be remembered. Try again",
    "keys-early": "nothing is known under the key, the request is issued again, and no worker has "
    "said yet whether the environment consents to that. Try again",
    "journal": "the server's journal cannot save a new key, or its disk is far behind, and the "
    "text says why. It says nothing of other keys, nor of requests without one. Try again",
    "key-crowded": "as many requests wait for this key as may. Try again",
}
ERROR_WORDS: Mapping[str, str] = {
    "foreign-version": "the hello names another major version; `version` is the one spoken here. "
    "No version of this document ever changes the form of this message",
    "malformed": "the message is none that this document allows; nothing has changed",
    "no-session": "no room in all or for this connection: say hello again later; or the "
    "nonce's session has ended: say it with a fresh one",
}

# Which codes of errors travel in records, and who makes them; the others the client makes.
MADE_BY: Mapping[str, str] = {
    "outcome-not-encodable": "worker",
    "outcome-too-large": "worker, router", "refused": "worker; client, of `Refused`",
    "conflict": "client, of `Refused`", "key-conflict": "client, of `Refused`",
    "unknown-key": "client, of `Refused`", "deadline": "router", "worker-lost": "router",
    "execution-limit": "router",
    "environment-broken": "router", "not-durable": "router",
    "never-started": "router; client", "no-answer": "router; client",
    "cancelled": "worker, router",
}  # fmt: skip


def kind_of(cls: type) -> int:
    """The kind of a message class."""
    return messages.KINDS[cls]


def link_of(cls: type) -> tuple[str, list[str]]:
    """Who sends a message to whom, and its frames as the sender sends them."""
    for kinds, who, before, extra in LINKS:
        if kind_of(cls) in kinds:
            frames = [before] if before else []
            if cls in WITH_BODY and extra:
                frames.append(extra)
            frames.append("header")
            return who, frames + ([WITH_BODY[cls]] if cls in WITH_BODY else [])
    raise AssertionError(f"{cls.__name__} has a kind outside of all links")


# Where a layer stands in the picture from left to right, so that no line crosses a box.
# How high it stands follows from the rule.
COLUMN_OF_LAYER: Mapping[str, int] = {
    "net": 0, "client": 0, "core": 1, "testing": 0, "lab": 1, "cli": 1, "models": 2, "envs": 2,
    "worker": 2, "server": 2, "doors": 2, "evals": 0, "json_values": 1, "logs": 4,
}  # fmt: skip


# --- tables ------------------------------------------------------------------


def _flat(text: str) -> str:
    """A docstring as one line of markdown, without the markup of Sphinx."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)
    return " ".join(text.replace("``", "`").split())


def _rule_name(cls: type) -> str:
    """``WorkerHello`` as ``worker-hello``: the name of a rule in CDDL."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


def messages_cddl() -> str:
    """The headers of all messages, in CDDL (RFC 8610)."""
    lines = []
    link = ""
    for cls in messages.MESSAGES:
        who, _ = link_of(cls)
        if who != link:
            lines += ["" if link else None, f"; {who}"]
            link = who
        rows = cls in messages.BATCHED
        fields = [
            f"{'? ' if field.optional else ''}{name}: {_column(field) if rows else field.cddl}"
            for name, field in messages.FIELDS[cls]
        ]
        parts = [f"kind: {kind_of(cls)}", *["sizes: sizes"] * rows, *fields]
        lines.append(f"{_rule_name(cls)} = [{', '.join(parts)}]")
    return "\n".join(["```cddl", *(line for line in lines if line is not None), "```"])


def _column(field: Field) -> str:
    """A field of a kind that has batches."""
    if field.optional:
        return f"{field.cddl} / [1*{messages.BATCH_ROWS} {field.cddl} / null]"
    return f"column<{field.cddl}>"


def messages_table() -> str:
    """Every message: kind, frames, meaning."""
    lines = []
    link = ""
    for cls in messages.MESSAGES:
        who, frames = link_of(cls)
        if who != link:
            lines += ["", f"**{who.capitalize()}**", "", "| kind | message | frames | meaning |"]
            lines.append("|---|---|---|---|")
            link = who
        shown = ", ".join(frames)
        lines.append(f"| {kind_of(cls)} | {cls.__name__} | {shown} | {_flat(cls.__doc__ or '')} |")
    return "\n".join(lines[1:])


def state_table() -> str:
    """The table of the dedup cache, in words."""
    lines = ["| input | " + " | ".join(state.value for state in COLUMNS) + " | finished |"]
    lines.append("|---" * (len(COLUMNS) + 2) + "|")
    for row, cells in TABLE.items():
        words = [CELL_WORDS[cells[state].__name__] for state in COLUMNS]
        asks = row in (RequestInput.REQUEST, RequestInput.OTHER_DIGEST)
        last = "refuse: finished" if asks else "ignore"
        lines.append(f"| {row.value} | " + " | ".join(words) + f" | {last} |")
    return "\n".join(lines)


def calls_table() -> str:
    """The table of a client's call, in words."""
    return table_in_words(call_table.TABLE, Stage, CALL_WORDS)


def generations_table() -> str:
    """The table of a key's generation, in words."""
    return table_in_words(key_table.TABLE, GenerationState, GENERATION_WORDS)


def lives_table() -> str:
    """The table of a worker's life, in words."""
    return table_in_words(lives.TABLE, lives.Phase, LIFE_WORDS)


def table_in_words(table: Any, states: type[enum.Enum], words: Mapping[str, str]) -> str:
    """A row for each input, and what the cell of each state does."""
    lines = ["| input | " + " | ".join(state.value for state in states) + " |"]
    lines.append("|---" * (len(states) + 1) + "|")
    for row, cells in table.items():
        done = [words[cells[state].__name__] for state in states]
        lines.append(f"| {row.value} | " + " | ".join(done) + " |")
    return "\n".join(lines)


def shown_number(name: str, value: float | int | None) -> str:
    """A default for people: bytes in MiB, and the unit that ends the name."""
    if value is None:
        return "none"
    if name.endswith("_bytes") and value >= limits.KIB:
        return (
            f"{value / limits.MIB:g} MiB" if value >= limits.MIB else f"{value / limits.KIB:g} KiB"
        )
    if name.endswith("_s"):
        return f"{value:g} s"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def limits_table(cls: type) -> str:
    """The limits of one class: name, default, reason."""
    lines = ["| limit | default | why |", "|---|---|---|"]
    for field in dataclasses.fields(cls):
        why = field.metadata["why"]
        default: Any = field.default
        lines.append(f"| `{field.name}` | {shown_number(field.name, default)} | {why} |")
    return "\n".join(lines)


def all_limits() -> str:
    """The limits of all classes, under a heading each."""
    parts = []
    for cls, heading in (
        (WireLimits, "Wire: both sides"),
        (ServerLimits, "Server"),
        (KeyLimits, "Keys: of a server"),
        (ClientLimits, "Client"),
        (WorkerLimits, "Worker: told by the server"),
    ):
        parts += [f"**{heading}** (`{cls.__name__}`)", limits_table(cls)]
    return "\n\n".join(parts)


def http_limits() -> str:
    """The limits of the HTTP door, which needs an extra."""
    from trio_envserve.doors.http import HttpLimits

    return limits_table(HttpLimits)


def verifiers_limits() -> str:
    """The limits of the door for verifiers."""
    from trio_envserve.doors.verifiers import VerifiersLimits

    return limits_table(VerifiersLimits)


def http_problems() -> str:
    """All codes of problems, with their status and what to do."""
    from trio_envserve.doors.http.problems import KINDS

    lines = ["| status | `code` | what it is | what to do |", "|---|---|---|---|"]
    for code, kind in KINDS.items():
        lines.append(f"| {kind.status} | `{code}` | {kind.title} | {kind.advice} |")
    return "\n".join(lines)


def metrics_table() -> str:
    """All metrics of the HTTP door, with the metric that bounds each."""
    from trio_envserve.doors.http.metric_table import METRICS, PREFIX

    lines = ["| metric | type | unit | meaning | bound |", "|---|---|---|---|---|"]
    for metric in METRICS:
        labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
        bound = f"`{PREFIX}{metric.bound}`" if metric.bound else ""
        meaning = re.sub(rf"\b({PREFIX}\w+)", r"`\1`", metric.meaning)
        name = f"`{metric.full_name}{labels}`"
        lines.append(f"| {name} | {metric.kind} | {metric.unit} | {meaning} | {bound} |")
    return "\n".join(lines)


def limit_rules_table() -> str:
    """Which limit must not be below which."""
    lines = ["| limit | at least | or else |", "|---|---|---|"]
    for rule in RULES:
        times = f"{rule.times} times " if rule.times > 1 else ""
        lines.append(f"| `{rule.large}` | {times}`{rule.small}` | {rule.why} |")
    return "\n".join(lines)


def refusals_table() -> str:
    """Every code of ``Refused`` and ``Error``."""
    for_now = {code for code, _, later in request_table.REFUSALS.values() if later}
    for_now |= {code for code, later in keyed.REFUSALS.values() if later} | {
        "key-queue-full",
        "keys-early",
        "journal",
    }
    lines = ["| message | code | `delay_s` | what it means |", "|---|---|---|---|"]
    for code, words in REFUSAL_WORDS.items():
        delay = "a number: for now" if code in for_now else "null: for good"
        lines.append(f"| Refused | `{code}` | {delay} | {words} |")
    lines += [f"| Error | `{code}` | | {words} |" for code, words in ERROR_WORDS.items()]
    return "\n".join(lines)


def outcome_codes_table() -> str:
    """The codes that the reference implementation knows, by verdict: those of errors."""
    lines = ["| code | verdict | made by | class | meaning |", "|---|---|---|---|---|"]
    for (code, verdict), cls in errors._CLASSES.items():
        words = _flat(cls.__doc__ or "") if cls.code == code else f"{ENDINGS[code].meaning}."
        maker = "worker" if code in RAISED else MADE_BY.get(code, "client")
        lines.append(f"| `{code}` | {verdict.name} | {maker} | `{cls.__name__}` | {words} |")
    return "\n".join(lines)


def endings_table() -> str:
    """How calls end without a result, for programs that act on it."""
    lines = ["| code | verdict | fault | mask | again | meaning |", "|---|---|---|---|---|---|"]
    lines += [
        f"| `{row.code}` | {row.verdict.value} | {row.fault.value} | {_yes(row.mask)} "
        f"| {_yes(row.again)} | {row.meaning} |"
        for row in ENDINGS.values()
    ]
    return "\n".join(lines)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def error_record_cddl() -> str:
    """The record of an error, in CDDL."""
    types = {
        "str": "tstr",
        "int": "uint",
        "float | None": "seconds / null",
        "Verdict": " / ".join(f'"{verdict.name}"' for verdict in Verdict),
    }
    lines = []
    for field in dataclasses.fields(errors.ErrorInfo):
        optional = "" if field.default is dataclasses.MISSING else "? "
        lines.append(f"  {optional}{field.name}: {types[str(field.type)]},")
    return "\n".join(["```cddl", "error-record = {", *lines, "  * tstr => any,", "}", "```"])


def vectors_table() -> str:
    """The test vectors, for people.  ``docs/vectors.json`` has them for programs."""
    vectors = json.loads((DOCS / "vectors.json").read_text())
    lines = ["| message | header | meaning |", "|---|---|---|"]
    lines += [
        f"| {each['message']} | `{each['header']}` | {each['meaning']} |"
        for each in vectors["messages"]
    ]
    lines += ["", "Refused:", "", "| header | why |", "|---|---|"]
    lines += [f"| `{each['header'] or ' '}` | {each['why']} |" for each in vectors["malformed"]]
    lines += ["", "Batches, without their bodies:", "", "| message | header | rows |"]
    lines += ["|---|---|---|"]
    lines += [
        f"| {each['message']} | `{each['frames'][-2]}` | {each['meaning']} |"
        for each in vectors["batches"]
    ]
    lines += ["", "Refused, of requests:", "", "| header | bodies | why |", "|---|---|---|"]
    lines += [
        f"| `{each['frames'][0]}` | `{each['frames'][1] or ' '}` | {each['why']} |"
        for each in vectors["no_batches"]
    ]
    lines += ["", "Headers at the bounds, as the limits are by default:", ""]
    lines += ["| begins with | then | times | ends with | |", "|---|---|---|---|---|"]
    lines += [
        f"| `{each['begin']}` | `{each['item'] or ' '}` | {each['times']:,} "
        f"| `{each['end'] or ' '}` | {each['why'] or 'is taken'} |"
        for each in vectors["header_bounds"]
    ]
    lines += ["", "Values (bodies):", "", "| bytes | value |", "|---|---|"]
    lines += [f"| `{each['bytes']}` | {each['meaning']} |" for each in vectors["values"]]
    lines += ["", "Bodies at the bounds, as the limits are by default:", ""]
    lines += ["| begins with | then | times | |", "|---|---|---|---|"]
    lines += [
        f"| `{each['begin'][:60]}{'…' * (len(each['begin']) > 60)}` | `{each['item'] or ' '}` "
        f"| {each['times']:,} | {each['why'] or 'is taken'} |"
        for each in vectors["bounds"]
    ]
    return "\n".join(lines)


def checks_table() -> str:
    """The tests that are named after a guarantee, by file."""
    tests = DOCS.parent / "tests"
    found: dict[int, dict[str, int]] = {number: {} for number in range(1, 12)}
    for path in sorted(tests.rglob("test_*.py")):
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE):
            guarantee = re.search(r"_g(1[01]|[1-9])(?:_|$)", name)
            if guarantee is not None:
                files = found[int(guarantee[1])]
                file = path.relative_to(tests.parent).as_posix()
                files[file] = files.get(file, 0) + 1
    lines = ["| guarantee | tests |", "|---|---|"]
    for number, files in found.items():
        shown = ", ".join(f"`{file}` ({count})" for file, count in files.items())
        lines.append(f"| G{number} | {shown} |")
    return "\n".join(lines)


DRAWN: Mapping[str, Callable[[], str]] = {
    "messages": messages_table,
    "cddl": messages_cddl,
    "error record": error_record_cddl,
    "states": state_table,
    "generations": generations_table,
    "refusals": refusals_table,
    "outcome codes": outcome_codes_table,
    "limits": all_limits,
    "vectors": vectors_table,
}

_REGION = re.compile(r"(<!-- drawn: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def redrawn(text: str) -> str:
    """The text of a page with all its drawn tables as the code has them now."""
    return _REGION.sub(lambda found: f"{found[1]}\n{DRAWN[found[2]]()}\n\n{found[4]}", text)


def regions(text: str) -> list[str]:
    """The names of the tables that a page has drawn."""
    return [found[2] for found in _REGION.finditer(text)]


# --- the picture of the states -------------------------------------------------


def _prepared(state: RequestState, *, rerun: bool) -> tuple[DedupCache, Session]:
    """A cache whose request 0 is in this state."""
    cache = DedupCache(b"e" * 16, ServerLimits())
    session = cache.open(b"s" * 16, b"n" * 16, "drawn", b"route", 1, 0.0)
    assert session is not None
    ask = Ask(b"d" * 16, b"body", rerun, 2)
    for each, arg in (
        (RequestInput.REQUEST, ask),
        (RequestInput.DISPATCH, object()),
        (RequestInput.OUTCOME, _kept()),
    ):
        if session.state(0) is state:
            break
        cache.step(session, 0, each, arg)
    assert session.state(0) is state
    return cache, session


def arrows() -> dict[tuple[RequestState, RequestState], list[str]]:
    """Which inputs lead from one state to another, found by trying."""
    ask = Ask(b"d" * 16, b"body", None, 2)
    found: dict[tuple[RequestState, RequestState], list[str]] = {}
    for row, cells in TABLE.items():
        arg: Any = {
            RequestInput.REQUEST: ask,
            RequestInput.OTHER_DIGEST: ask,
            RequestInput.DISPATCH: object(),
        }.get(row)
        if row in (RequestInput.OUTCOME, RequestInput.ANSWERED):
            arg = _kept()
        elif row in (RequestInput.WORKER_DEAD, RequestInput.DEADLINE):
            arg = _no_outcome
        for state in COLUMNS:
            if cells[state] is request_table._never:
                continue
            for rerun in (False, True):
                cache, session = _prepared(state, rerun=rerun)
                cache.step(session, 0, row, arg)
                after = session.state(0)
                label = row.value
                if row is RequestInput.WORKER_DEAD:
                    label += ", consent left" if rerun else ", no consent"
                if after is not state and label not in found.setdefault((state, after), []):
                    found[state, after].append(label)
    return found


def _no_outcome(entry: Any) -> RetainedOutcome:
    return _kept()


def _kept() -> RetainedOutcome:
    return RetainedOutcome.made(messages.Outcome(b"s" * 16, 0, 0, "", None, 0), b"")


_STYLE = (
    "text{font-family:sans-serif;font-size:13px;fill:#1c2733}"
    ".box{fill:#e8f0fa;stroke:#2b5f9e;stroke-width:1.5}"
    ".arrow{fill:none;stroke:#5a6b7d;stroke-width:1.5;marker-end:url(#head)}"
    ".small{font-size:11px;fill:#3d4d5c}"
)
_HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#5a6b7d"/></marker></defs>'
)


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style>{_HEAD}"
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _text(x: float, y: float, lines: Sequence[str], small: bool = True) -> str:
    css = ' class="small"' if small else ""
    return "".join(
        f'<text x="{x:g}" y="{y + 13 * row:g}" text-anchor="middle"{css}>{html.escape(line)}</text>'
        for row, line in enumerate(lines)
    )


def states_svg() -> str:
    """The states of a request and what leads from one to another."""
    step, box, middle = 190, 96, 300
    order = (*COLUMNS, RequestState.FINISHED)
    x = {state: 70 + step * index for index, state in enumerate(order)}
    parts = []
    for (start, stop), labels in arrows().items():
        span = order.index(stop) - order.index(start)
        if span == 1:
            parts.append(
                f'<path class="arrow" d="M{x[start] + box / 2} {middle}H{x[stop] - box / 2 - 2}"/>'
            )
            parts.append(_text((x[start] + x[stop]) / 2, middle + 34, labels))
            continue
        back = span < 0
        # The longer an arc, the higher, so that labels of others find room below it.
        height, side = (100, 1) if back else (30 + 66 * span, -1)
        edge = middle + side * 20
        apex = middle + side * height
        from_x, to_x = x[start] + (-14 if back else 14), x[stop] + (14 if back else -14)
        parts.append(
            f'<path class="arrow" d="M{from_x} {edge}C{from_x} {apex} {to_x} {apex} '
            f'{to_x} {edge + side * 2}"/>'
        )
        text_y = middle + side * (20 + (height - 20) * 0.75)
        text_y += 16 if back else -4 - 13 * (len(labels) - 1)
        parts.append(_text((from_x + to_x) / 2, text_y, labels))
    for state in order:
        parts.append(
            f'<rect class="box" x="{x[state] - box / 2}" y="{middle - 20}" width="{box}" '
            f'height="40" rx="8"/>'
        )
        parts.append(_text(x[state], middle + 5, [state.value], small=False))
    title = "The states of a request"
    return _svg(x[RequestState.FINISHED] + 70, middle + 125, title, parts)


# --- the picture of the layers -------------------------------------------------


def may_import() -> dict[str, set[str]]:
    """The rule of the layers, as the test has it."""
    path = DOCS.parent / "tests" / "test_layers.py"
    spec = importlib.util.spec_from_file_location("_drawn_layers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its classes look themselves up there
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    rule: dict[str, set[str]] = module.MAY_IMPORT
    return {layer: {one.partition(".")[0] for one in may} - {layer} for layer, may in rule.items()}


def _heights(rule: Mapping[str, set[str]]) -> dict[str, int]:
    heights: dict[str, int] = {}
    for layer, below in rule.items():  # the rule is in order: the test sees to it
        heights[layer] = 1 + max((heights[one] for one in below), default=-1)
    return heights


def _needed(rule: Mapping[str, set[str]], layer: str) -> set[str]:
    """Below a layer, what is not below something else that is (fewer lines)."""
    below = rule[layer]
    return {one for one in below if not any(one in rule[other] for other in below)}


def layers_svg() -> str:
    """The layers, and which may import which."""
    rule = may_import()
    heights = _heights(rule)
    rows = max(heights.values()) + 1
    gap, box_w, box_h = 78, 110, 38
    place = {
        layer: (75 + 130 * COLUMN_OF_LAYER.get(layer, 3), 30 + gap * (rows - 1 - height))
        for layer, height in heights.items()
    }
    parts = []
    for layer in rule:
        from_x, from_y = place[layer]
        for one in sorted(_needed(rule, layer)):
            to_x, to_y = place[one]
            parts.append(
                f'<path class="arrow" d="M{from_x:g} {from_y + box_h:g}L{to_x:g} {to_y - 2:g}"/>'
            )
    for layer, (x, y) in place.items():
        parts.append(
            f'<rect class="box" x="{x - box_w / 2:g}" y="{y:g}" width="{box_w}" '
            f'height="{box_h}" rx="8"/>'
        )
        parts.append(_text(x, y + 24, [layer], small=False))
    title = "The layers: an arrow points to what a layer may import"
    return _svg(150 + 130 * max(COLUMN_OF_LAYER.values()), 40 + gap * rows, title, parts)


# --- as an extension, and as a script ------------------------------------------


def benchmark() -> dict[str, Any]:
    """The record that the page of the benchmark shows."""
    record: dict[str, Any] = json.loads((DOCS / "benchmark.json").read_text(encoding="utf-8"))
    return record


GENERATED: Mapping[str, Callable[[], str]] = {
    "limits.md": all_limits,
    "limit_rules.md": limit_rules_table,
    "http_limits.md": http_limits,
    "http_problems.md": http_problems,
    "metrics.md": metrics_table,
    "verifiers_limits.md": verifiers_limits,
    "states.md": state_table,
    "calls.md": calls_table,
    "lives.md": lives_table,
    "outcome_codes.md": outcome_codes_table,
    "endings.md": endings_table,
    "checks.md": checks_table,
    "states.svg": states_svg,
    "layers.svg": layers_svg,
    "benchmark.svg": lambda: svg(benchmark()),
    "benchmark_figures.md": lambda: markdown(benchmark()),
    "benchmark_targets.md": targets,
}


def generate(directory: Path) -> None:
    """Write everything that is drawn when the documentation is built."""
    directory.mkdir(exist_ok=True)
    for name, draw in GENERATED.items():
        (directory / name).write_text(draw(), encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """As Sphinx calls an extension."""
    app.connect("builder-inited", lambda app: generate(Path(app.srcdir) / "_generated"))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def main() -> None:
    """Draw the tables of docs/protocol.md anew."""
    page = DOCS / "protocol.md"
    page.write_text(redrawn(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
