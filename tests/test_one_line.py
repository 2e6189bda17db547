"""Declared once: a line in a copy of the package is seen wherever its kind is shown."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent

OPTION = (
    "    tea_s: float | None = option(\n"
    '        None, "Seconds that tea takes.", above=0, common=True, group="Tea"\n    )\n'
)
LIMIT = '    cups: int = limit(3, "cups that are drunk at most", told=ToldTo.WORKER)\n'
COUNTER = '    naps: int = counter("naps_taken", "Naps that were taken.")\n'
FIELD = "    mood: Count = None\n"
ERROR = (
    '        row("too-tired", failed, environment, True, True, "the environment is tired", True),\n'
)

LINES = (
    ("server/options.py", OPTION, "    capacity: int | None"),
    ("core/limits.py", LIMIT, "    lease_s: float"),
    ("core/status.py", COUNTER, "    more: Mapping[str, Any] = dataclasses.field("
     'default_factory=dict)\n    """Counters of a later version."""'),
    ("core/messages.py", FIELD, "\n\nclass Goodbye(NamedTuple)"),
    ("core/endings.py", ERROR, '        row("scorer-failed"'),
)  # fmt: skip
"""File, line, and the place before which it is put."""

LOOK = """
import inspect, json
from click.testing import CliRunner
from docs.draw import reference, tables
from trio_envserve import ConfigError, ServerLimits, ServerStats, open_server
from trio_envserve.cli.verbs import group
from trio_envserve.core import messages
from trio_envserve.core.errors import ErrorInfo, ProtocolError, error_from_info
from trio_envserve.core.limits import ToldTo, limits_to_tell
from trio_envserve.core.router import Router
from trio_envserve.core.terms import Verdict
from trio_envserve.doors.http.metrics import METRICS, ScrapedValues
from trio_envserve.doors.http.problems import KINDS
from trio_envserve.server.options import completed

def shown(*words):
    return CliRunner().invoke(group, words).output

def taken(mood):
    query = messages.Query(1, "keys", None, None, mood)
    try:
        return messages.decode(messages.encode(query), most_bytes=1000).mood
    except ProtocolError as error:
        return str(error)

try:
    open_server(config="serve.toml")
except ConfigError as error:
    in_file = str(error)
router = Router(epoch=bytes(16), slots=1, now_s=0.0, new_id=lambda: bytes(16))
router.works.counters.naps = 7
stats = ServerStats.of(router.stats())
naps = next(each for each in METRICS if each.name == "naps_taken")
tired = error_from_info(ErrorInfo("too-tired", Verdict.RAN_AND_FAILED, "it yawned"))
print(json.dumps({
    "options": [str(inspect.signature(open_server)), in_file, shown("serve", "--tea-s", "0"),
                shown("serve", "--help"), shown("run-with", "--help"), reference.drawn("serve"),
                tables.command_options()],
    "limits": [shown("serve", "--limit", "cups=0"), tables.all_limits(),
               completed(limits={"cups": 5})["limits"].cups,
               limits_to_tell(ServerLimits(), ToldTo.WORKER)["cups"]],
    "counters": [stats.cache.naps, stats.to_record()["cache"]["naps"],
                 [value for _, value in naps.read(ScrapedValues(None, stats))],
                 reference.drawn("serve"), tables.metrics_table()],
    "fields": [taken(5), taken(None), taken("cross"), tables.messages_cddl()],
    "errors": [type(tired).__name__, tired.code, tired.fault.value, tired.mask, tired.again,
               KINDS["too-tired"].title, tables.endings_table(), tables.http_problems(),
               tables.outcome_codes_table()],
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy of the package with one line more of each kind shows of it."""
    pytest.importorskip("docs.draw", exc_type=ImportError)
    folder = tmp_path_factory.mktemp("copy")
    package = folder / "trio_envserve"
    shutil.copytree(ROOT / "trio_envserve", package)  # and what is compiled, but for these files
    for file, line, place in LINES:
        text = (package / file).read_text()
        assert text.count(place) == 1, file
        (package / file).write_text(text.replace(place, line + place))
    (folder / "serve.toml").write_text("tea_s = -1\n")
    done = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=folder, stdout=subprocess.PIPE, check=True,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def test_option_of_one_line_is_in_program_file_command_help_and_docs(found):
    program, in_file, wrong, serve, run_with, reference, command = found["options"]
    assert "tea_s: 'float | None' = None" in program
    assert in_file == "serve.toml: tea_s is a number of seconds above 0, not -1"
    assert "--tea-s is a number of seconds above 0, not 0.0" in wrong
    for text in (serve, run_with):
        assert "--tea-s SECONDS" in text
        assert "Seconds that tea takes." in text
    assert "| `tea_s` | `float \\| None` | `None` | Seconds that tea takes. |" in reference
    assert command.count("| `--tea-s SECONDS` | Seconds that tea takes. |") == 2


def test_limit_of_one_line_is_in_program_command_workers_and_docs(found):
    wrong, limits, given, told = found["limits"]
    assert "ServerLimits.cups must be a positive whole number, not 0" in wrong
    assert "| `cups` | 3 | cups that are drunk at most |" in limits
    assert "Workers are told `cups`, " in limits
    assert (given, told) == (5, 3)


def test_counter_of_one_line_is_counted_and_in_record_metrics_and_docs(found):
    typed, plain, metric, reference, metrics = found["counters"]
    assert (typed, plain, metric) == (7, 7, [7])
    assert "| `naps` | `int` | `0` | Naps that were taken. |" in reference
    assert "| `trio_envserve_naps_taken_total` | counter |  | Naps that were taken. |" in metrics


def test_field_of_one_line_is_written_read_checked_and_in_the_protocol(found):
    number, nothing, wrong, cddl = found["fields"]
    assert (number, nothing, wrong) == (5, None, "Query.mood is not uint")
    assert "mood" in cddl[cddl.index("\nquery = ") :].partition("]")[0]


def test_error_of_one_line_is_raised_answered_and_in_the_docs(found):
    kind, *acted_on, title, endings, problems, outcomes = found["errors"]
    assert (kind, acted_on) == ("RolloutFailed", ["too-tired", "environment", True, True])
    assert title == "The environment is tired"
    assert "| `too-tired` | " in endings
    assert "`too-tired` | The environment is tired" in problems
    assert "| `too-tired` | RAN_AND_FAILED | worker | `RolloutFailed` |" in outcomes
