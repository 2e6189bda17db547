"""Everything in the documentation that is drawn, and how it is renewed.

Theory of operation
-------------------
Pages must be whole where nothing builds them, as on a forge.  So what is drawn is in the
repository: tables in the pages, between a line ``<!-- drawn: NAME -->`` and a line
``<!-- end -->``, and pictures in ``docs/pictures``.  ``python -m docs.draw`` renews all of it,
and ``tests/docs/test_drawn.py`` fails until that is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tests.attack.attacks import ATTACKS, HELD
from tests.attack.judge import FINDINGS
from tests.conformance.caught import CAUGHT, WORKERS_CAUGHT
from tests.cost.report import targets
from trio_envserve.doors.limits import HttpLimits, VerifiersLimits
from trio_envserve.lab.conformance.cases import CASES
from trio_envserve.lab.conformance.workers import WORKER_CASES
from trio_envserve.lab.exploration.configurations import HOST_TABLE, KEY_TABLE, TABLE

from . import diagrams, reference, tables, terminals
from .benchmark import svg

DOCS = tables.DOCS
PICTURES = DOCS / "pictures"

TEXTS: Mapping[str, Callable[[], str]] = {
    "messages": tables.messages_table,
    "cddl": tables.messages_cddl,
    "error record": tables.error_record_cddl,
    "work": tables.work_table,
    "calls": tables.calls_table,
    "lives": tables.lives_table,
    "refusals": tables.refusals_table,
    "outcome codes": tables.outcome_codes_table,
    "endings": tables.endings_table,
    "result fields": reference.result_fields,
    "endpoint fields": tables.endpoint_table,
    "limits": tables.all_limits,
    "limit rules": tables.limit_rules_table,
    "command": tables.command_options,
    "http limits": partial(tables.limits_table, HttpLimits),
    "http problems": tables.http_problems,
    "verifiers limits": partial(tables.limits_table, VerifiersLimits),
    "metrics": tables.metrics_table,
    "checks": tables.checks_table,
    "vectors": tables.vectors_table,
    "mutants": tables.mutants_table,
    "cases": partial(tables.conformance_table, CASES),
    "broken servers": partial(tables.caught_table, CAUGHT),
    "worker cases": partial(tables.conformance_table, WORKER_CASES),
    "broken workers": partial(tables.caught_table, WORKERS_CAUGHT),
    "findings": partial(tables.findings_table, FINDINGS),
    "attacks": partial(tables.attacks_table, [*ATTACKS.values(), *HELD.values()]),
    "explored calls": partial(tables.explored_table, TABLE),
    "explored keys": partial(tables.explored_table, KEY_TABLE),
    "explored hosts": partial(tables.explored_table, HOST_TABLE),
    "benchmark targets": targets,
    "benchmark figures": tables.benchmark_figures,
    **{f"api {section}": partial(reference.drawn, section) for section in reference.SECTIONS},
}
"""Functions that draw the parts of pages, by the name there."""

DIAGRAMS: Mapping[str, Callable[[], str]] = {
    "states.svg": diagrams.states_svg,
    "layers.svg": diagrams.layers_svg,
    "benchmark.svg": lambda: svg(tables.benchmark()),
}
"""Pictures that are always drawn the same."""

_REGION = re.compile(r"(<!-- drawn: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def redrawn(text: str) -> str:
    """The text of a page with all that is drawn in it as the code has it now."""
    return _REGION.sub(lambda found: f"{found[1]}\n{TEXTS[found[2]]()}\n\n{found[4]}", text)


def regions(text: str) -> list[str]:
    """The names of what is drawn in a page."""
    return [found[2] for found in _REGION.finditer(text)]


def pages() -> list[Path]:
    """All pages of the documentation."""
    return sorted(DOCS.glob("*.md"))


def renew() -> Iterator[Path]:
    """Draw everything, and yield the files that are others than before."""
    PICTURES.mkdir(exist_ok=True)
    new = {page: redrawn(page.read_text(encoding="utf-8")) for page in pages()}
    new |= {PICTURES / name: draw() for name, draw in DIAGRAMS.items()}
    for name, picture in terminals.drawn().items():
        if terminals.words(_old(PICTURES / name)) != terminals.words(picture):
            new[PICTURES / name] = picture
    for path, text in new.items():
        if text != _old(path):
            path.write_text(text, encoding="utf-8")
            yield path


def _old(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""
