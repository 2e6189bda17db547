"""The tables of the documentation, as the code has them."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from tests.attack.attacks import Hold
from tests.attack.wires import Attack
from tests.cost.report import markdown
from tests.oracles.digests import STORED as SIZES
from trio_envserve.cli.verbs import VERBS, Verb, explained, load, spelled
from trio_envserve.core import client, errors, limits, messages, pool
from trio_envserve.core.client import Stage
from trio_envserve.core.endings import ENDINGS, RAISED
from trio_envserve.core.limits import (
    RULES,
    ClientLimits,
    KeyLimits,
    ServerLimits,
    ToldTo,
    WireLimits,
    told_limits,
)
from trio_envserve.core.messages import Field
from trio_envserve.core.terms import Verdict
from trio_envserve.core.work import Refusal, Works, WorkState
from trio_envserve.lab.conformance.cases import VECTORS
from trio_envserve.lab.conformance.findings import Case
from trio_envserve.lab.exploration.configurations import Configuration
from trio_envserve.lab.mutants import MUTANTS
from trio_envserve.lab.simulation.plan import ANY
from trio_envserve.models.endpoints import Endpoint
from trio_envserve.options import options_of

DOCS = Path(__file__).resolve().parent.parent
# Action of a cell of the table of work, in words.
WORK_WORDS: Mapping[str, str] = {
    "_never": "–",  # noqa: RUF001  # a dash: cannot be
    "_ignore": "ignore",
    "_open": "open a work, or refuse",
    "_join": "one more ticket that counts",
    "_replay": "replay",
    "_clash": "refuse: conflict",
    "_unknown": "refuse: unknown key",
    "_watch": "a ticket that does not count",
    "_show": "replay",
    "_leave": "counts no more; the last one: close, or retention begins",
    "_quit": "counts no more in earlier sessions; the last one: close, or retention begins",
    "_lose": "its caller counts on for `orphan_s`, if that is not 0",
    "_close": "close",
    "_release": "waiting",
    "_run": "running",
    "_retry": 'consent and allowance left: waiting; else completed, "worker lost"',
    "_free": "nothing of it runs any more",
    "_remove": "gone; what is held may start",
    "_complete": "completed; answer all",
    "_expire": "completed, or closed if it never ran; answer all",
    "_abort": "completed; answer all; stop the execution",
    "_abandon": "lost callers count no more: close, or retention begins",
    "_disown": "close; who waits: cancelled",
    "_reveal": "completed; answer all",
    "_puzzle": "answer all that it could not be read; retention begins",
}

# Action of a cell of the table of a client's call, in words.
CALL_WORDS: Mapping[str, str] = {
    "_never": "–",  # noqa: RUF001  # a dash: cannot be
    "_ignore": "ignore",
    "_send": "give it an id, transmit",
    "_retransmit": "transmit again, unless it may be under way or is held",
    "_hold": "hold; if no request has room, what is queued waits, too",
    "_retry": "transmit again",
    "_fail": "fail",
    "_defer": "queue again for the next server",
    "_answer": "give to the caller",
    "_receive": "gone; tell the server",
    "_cancel": "gone; tell the server if it has an id",
    "_give_up": "fail",
    "_expire": "expired; ask whether it ran; left, if it asks for the work of a key",
    "_wait": "ask again, or fail once it has asked for long",
    "_let_go": "fail once the server may have answered; keep its place",
    "_lose_left": "fail, unless its caller was told",
    "_lose_unseen": "the same, unless it may be under way",
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

# Action of a cell of the table of a worker's life, in words.
LIFE_WORDS: Mapping[str, str] = {
    "_nothing": "ignore",
    "_never": "–",  # noqa: RUF001  # a dash: cannot be
    "_ready": "ready",
    "_alive": "note its loop and memory; no longer silent",
    "_held": "note by whom",
    "_retire": "retiring",
    "_recall": "ready, if it retires since fewer workers are enough",
    "_empty": "emptying; the slot is free",
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

# Ranges of kinds: sender and receiver, the frame before all, and one more before a header
# with a body.
LINKS: Sequence[tuple[range, str, str, str]] = (
    (range(16), "client to router", "", ""),
    (range(16, 32), "router to client", "", ""),
    (range(64, 80), "worker to router", "incarnation", "client"),
    (range(80, 96), "router to worker", "incarnation", ""),
)
WITH_BODY: Mapping[type, str] = {
    messages.Request: "body",
    messages.Outcome: "body",
    messages.Delta: "body",
    messages.QueryAnswer: "body",
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
    "namespace are empty or too long, or the digest with a key does not have 32 bytes. "
    "A bug of the client",
    "key-conflict": "under this key another input was asked, or the same with another consent; "
    "that work goes on. Take another key, or forget this one",
    "unknown-key": "nothing is known under this key, and this request may not start it: it "
    "attaches, or it is issued again. What was asked earlier may have run",
    "keys-full": "there is no room for another key besides those that are retained. It says "
    "nothing of known keys, nor of requests without one. Try again",
    "key-queue-full": "there is no room in the queue for the work of another key, or for the work "
    "of another namespace. It says the same. Try again",
    "commands-full": "no further command with an id of its own can be remembered. Try again",
    "early": "the request is issued again, nothing is known under its key, if it has one, and no "
    "worker has said yet whether the environment consents to that. Try again",
    "server-lost": "the request is issued again, a lost session may have run it, and consent or "
    "allowance for a further execution is missing",
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

# Makers of the codes of errors that travel in records; the client makes the others.
MADE_BY: Mapping[str, str] = {
    "outcome-not-encodable": "worker",
    "outcome-too-large": "worker, router", "refused": "worker; client, of `Refused`",
    "conflict": "client, of `Refused`", "key-conflict": "client, of `Refused`",
    "unknown-key": "client, of `Refused`", "deadline": "router", "worker-lost": "router",
    "interpreter-held": "router",
    "execution-limit": "router; worker",
    "environment-broken": "router", "not-durable": "router",
    "never-started": "router; client", "no-answer": "router; client",
    "cancelled": "worker, router",
}  # fmt: skip


def kind_of(cls: type) -> int:
    """The kind of a message class."""
    return messages.KINDS[cls]


def link_of(cls: type) -> tuple[str, list[str]]:
    """Sender and receiver of a message, and its frames as the sender sends them."""
    for kinds, who, before, extra in LINKS:
        if kind_of(cls) in kinds:
            frames = [before] if before else []
            if cls in WITH_BODY and extra:
                frames.append(extra)
            frames.append("header")
            return who, frames + ([WITH_BODY[cls]] if cls in WITH_BODY else [])
    raise AssertionError(f"{cls.__name__} has a kind outside of all links")


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
        return f"column<{field.cddl} / null>"
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


def work_table() -> str:
    """The table of work, in words."""
    return table_in_words(Works.TABLE, WorkState, WORK_WORDS)


def calls_table() -> str:
    """The table of a client's call, in words."""
    return table_in_words(client.TABLE, Stage, CALL_WORDS)


def lives_table() -> str:
    """The table of a worker's life, in words."""
    return table_in_words(pool.TABLE, pool.Phase, LIFE_WORDS)


def table_in_words(table: Any, states: type[enum.Enum], words: Mapping[str, str]) -> str:
    """Row for each input, with the action of the cell of each state."""
    check_words(table, words)
    lines = ["| input | " + " | ".join(state.value for state in states) + " |"]
    lines.append("|---" * (len(states) + 1) + "|")
    for row, cells in table.items():
        done = [words[cells[state].__name__] for state in states]
        lines.append(f"| {row.value} | " + " | ".join(done) + " |")
    return "\n".join(lines)


def check_words(table: Any, words: Mapping[str, str]) -> None:
    """Words of cells that are not in the table any more are an error; so are cells without."""
    used = {cell.__name__ for cells in table.values() for cell in cells.values()}
    if used != {*words}:
        raise ValueError(f"cells and words differ: {sorted(used ^ {*words})}")


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


def told_words() -> str:
    """The limits of a server that its workers and hosts are told."""
    workers = told_limits(ToldTo.WORKER)
    hosts = [name for name in told_limits(ToldTo.HOST) if name not in workers]
    shown = [", ".join(f"`{name}`" for name in names) for names in (workers, hosts)]
    return f"Workers are told {shown[0]}; hosts {shown[1]}, too."


def all_limits() -> str:
    """The limits of all classes, under a heading each."""
    parts = []
    for cls, heading in (
        (WireLimits, "Wire: both sides"),
        (ServerLimits, "Server"),
        (KeyLimits, "Keys: of a server"),
        (ClientLimits, "Client"),
    ):
        parts += [f"**{heading}** (`{cls.__name__}`)", limits_table(cls)]
        parts += [told_words()] * (cls is ServerLimits)
    return "\n\n".join(parts)


def command_options() -> str:
    """Every verb of the command with its options, by their groups."""
    parts = []
    for name, found in VERBS.items():
        verbs = {name: found} if isinstance(found, Verb) else found
        for word, verb in verbs.items():
            command = load(verb)
            usage = " ".join(command.collect_usage_pieces(click.Context(command)))
            said = name if word == name else f"{name} {word}"
            parts += [f"## `{said}`", verb.help, f"`trio-envserve {said} {usage}`"]
            lines = ["| option | meaning |", "|---|---|"]
            for group, options in command.groups(whole=True).items():
                lines += [f"| **{group}** | |"] * bool(group)
                for each in options:
                    flags = spelled(each).replace("|", "\\|")
                    lines.append(f"| `{flags}` | {explained(each, whole=True)} |")
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


def http_problems() -> str:
    """All codes of problems, with their status and what to do."""
    from trio_envserve.doors.http.problems import KINDS

    lines = ["| status | `code` | what it is | what to do |", "|---|---|---|---|"]
    for code, kind in KINDS.items():
        lines.append(f"| {kind.status} | `{code}` | {kind.title} | {kind.advice} |")
    return "\n".join(lines)


def metrics_table() -> str:
    """All metrics of the HTTP door, with the metric that bounds each."""
    from trio_envserve.doors.http.metrics import METRICS, PREFIX

    lines = ["| metric | type | unit | meaning | bound |", "|---|---|---|---|---|"]
    for metric in METRICS:
        labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
        bound = f"`{PREFIX}{metric.bound}`" if metric.bound else ""
        meaning = re.sub(rf"\b({PREFIX}\w+)", r"`\1`", metric.meaning)
        name = f"`{metric.full_name}{labels}`"
        lines.append(f"| {name} | {metric.kind} | {metric.unit} | {meaning} | {bound} |")
    return "\n".join(lines)


def limit_rules_table() -> str:
    """Limits that must not be below others."""
    lines = ["| limit | at least | or else |", "|---|---|---|"]
    for rule in RULES:
        times = f"{rule.times} times " if rule.times > 1 else ""
        lines.append(f"| `{rule.large}` | {times}`{rule.small}` | {rule.why} |")
    return "\n".join(lines)


def refusals_table() -> str:
    """Every code of ``Refused`` and ``Error``."""
    for_now = {code for code, _, later in (each.value for each in Refusal) if later}
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
    """Endings of calls without a result, for programs that act on them."""
    lines = ["| code | verdict | fault | mask | again | meaning |", "|---|---|---|---|---|---|"]
    lines += [
        f"| `{row.code}` | {row.verdict.value} | {row.fault.value} | {_yes(row.mask)} "
        f"| {_yes(row.again)} | {row.meaning} |"
        for row in ENDINGS.values()
    ]
    return "\n".join(lines)


def endpoint_table() -> str:
    """The fields of an endpoint in the file of endpoints."""
    lines = ["| field | meaning | default |", "|---|---|---|"]
    for name, each in options_of(Endpoint).items():
        default = json.dumps(each.default).removesuffix(".0")
        shown = "" if each.default in ("", (), None) else f"`{default}`"
        lines.append(f"| `{name}` | {each.help} | {each.shown or shown} |")
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
    """The test vectors, for people.  ``vectors.json`` has them for programs."""
    vectors = VECTORS
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
    """The files of the tests that are named after a guarantee."""
    tests = DOCS.parent / "tests"
    found: dict[int, list[str]] = {number: [] for number in range(1, 14)}
    for path in sorted(tests.rglob("test_*.py")):
        names = re.findall(r"^ *(?:async )?def test_\w+", path.read_text(), re.MULTILINE)
        told = {each for name in names for each in re.findall(r"_g(1[0-3]|[1-9])(?:_|$)", name)}
        for number in told:
            found[int(number)].append(f"`{path.relative_to(tests.parent).as_posix()}`")
    lines = ["| guarantee | tests |", "|---|---|"]
    lines += [f"| G{number} | {', '.join(files)} |" for number, files in found.items()]
    return "\n".join(lines)


def explored_table(configurations: Iterable[Configuration]) -> str:
    """What each explored configuration has, and how many states: none where it has not been
    searched to its end."""
    sizes = json.loads(SIZES.read_text(encoding="utf-8"))["explored"]
    lines = ["| name | what it has | states | transitions | depth |", "|---|---|---:|---:|---:|"]
    for each in configurations:
        row = sizes.get(each.name, {})
        figures = [f"{row[name]:,}" if row else "" for name in ("states", "transitions", "depth")]
        lines.append(f"| `{each.name}` | {each.describe()} | {' | '.join(figures)} |")
    return "\n".join(lines)


def benchmark() -> dict[str, Any]:
    """The record that the page of the benchmark shows."""
    record: dict[str, Any] = json.loads((DOCS / "benchmark.json").read_text(encoding="utf-8"))
    return record


def benchmark_figures() -> str:
    """Figures of the benchmark's record."""
    return markdown(benchmark())


def conformance_table(cases: Sequence[Case]) -> str:
    """Cases of the conformance suite."""
    lines = ["| case | says | section | |", "|---|---|---|---|"]
    for case in cases:
        proxy = " (proxy)" if case.faults else ""
        place = re.sub(r"[^\w\- ]", "", case.section.lower()).replace(" ", "-")
        lines.append(
            f"| `{case.name}`{proxy} | {case.line} | [{case.section}](protocol.md#{place}) "
            f"| {case.guarantee} |"
        )
    return "\n".join(lines)


def caught_table(caught: Mapping[str, str]) -> str:
    """Variants that are broken on purpose, with the case of the suite that fails."""
    lines = ["| mutant | case that fails |", "|---|---|"]
    return "\n".join(lines + [f"| `{name}` | `{case}` |" for name, case in caught.items()])


def findings_table(findings: Mapping[str, str]) -> str:
    """The findings of the judge of attacks."""
    lines = ["| finding | good if |", "|---|---|"]
    return "\n".join(lines + [f"| `{name}` | {good} |" for name, good in findings.items()])


def attacks_table(attacks: Sequence[Attack | Hold]) -> str:
    """All attacks."""
    lines = ["| attack | victim | what it does | about |", "|---|---|---|---|"]
    lines += [f"| `{a.name}` | {PLACES[a.at]} | {a.what} | `{a.about}` |" for a in attacks]
    return "\n".join(lines)


PLACES: Final = {
    "front": "server", "http": "its door for HTTP", "verifiers": "its door for verifiers",
    "client": "client",
}  # fmt: skip


def mutants_table() -> str:
    """Every mutant of the core."""
    lines = ["| mutant | what goes wrong | caught by |", "|---|---|---|"]
    for mutant in MUTANTS:
        by = "any" if mutant.guarantees == ANY else ", ".join(mutant.guarantees)
        lines.append(f"| `{mutant.name}` | {mutant.prose} | {by} |")
    return "\n".join(lines)
