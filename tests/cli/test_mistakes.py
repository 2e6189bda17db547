"""Wrong usage of each verb: told in words, with an exit code, and nothing is started or changed.

The verbs run in this process: what is wrong is found before anything begins.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.commands import ROOT, process_restored
from tests.evals.report.results import failure, result, written
from trio_envserve.cli.interrupts import Interrupts
from trio_envserve.cli.options import DEFAULT_ADDRESS
from trio_envserve.cli.serve import ServeOptions
from trio_envserve.cli.verbs import VERBS, Verb, VerbCommand, group, load, options_of_verb, run
from trio_envserve.lab.demo.judge import EVENTS

INCIDENT = ROOT / "tests" / "recorder" / "incident.rec"
PROTOCOL = ROOT / "examples" / "kv_store.py"
NOWHERE = "tcp://127.0.0.1:9"
ANY = "--bind tcp://127.0.0.1:0"
HANG_S = 60.0
"""Far more than any verb takes to find a mistake."""

USAGE: dict[str, dict[str, str]] = {
    "": {
        "evla": "did you mean 'eval'",
        "run": "no command 'run'; did you mean 'eval' or 'serve'?",
        "stack": "did you mean 'status --stack'?",
        "keys": "did you mean 'key list'?",
        "key lits": "did you mean 'list'?",
    },
    "serve": {
        "arithmetc": "did you mean 'arithmetic'",
        "resoning-gym:countdown": "did you mean 'reasoning-gym'",
        "trio_envserve.envs.arithmetic:Arithmetik": "did you mean 'Arithmetic'",
        "trio_envserve.envs.arithmetik:Arithmetic": "arithmetic",
        "nosuchmodule:Thing": "No module named 'nosuchmodule'",
        "--wrokers 2": "--wrokers",
        "--workers many": "a number or a range such as 2..64, not 'many'",
        "--bind 127.0.0.1:1": "did you mean tcp://127.0.0.1:1",
        "--arg size": "--arg takes key=value",
        "--limit leese_s=1": "did you mean 'lease_s",
        "--limit lease_s=-1": "must be a positive number",
        "--limit window=1.5": "whole number",
        "--worker-env 0": "SLOT:KEY=VALUE",
        "--worker-env 1:A=B": "numbered from 0",
        f"{ANY} --log-dir file/logs": "cannot ",
        f"--record file {ANY}": "is no recording",
        f"--record no/a.rec {ANY}": "cannot record to",
        "--record-bodies": "--record-bodies needs --record FILE",
        "--bind tcp://0.0.0.0:0": "give a folder of keys (--curve DIR)",
        "--bind tcp://0.0.0.0:0 --http 127.0.0.1:0": "(--insecure)",
        "--bind tcp://0.0.0.0:0 --http 127.0.0.1:0 --token-file x": "(--insecure)",
        "--fence-s 5": "--fence-s needs --hosts-bind",
        "--hosts-bind tcp://127.0.0.1:0 --fence-s 0": "a number of seconds or none",
        "--hosts-bind tcp://0.0.0.0:0": "own workers for this one (--insecure)",
        f"{ANY} --token-file x": "--token-file needs --http",
        f"{ANY} --run-model random": "--run-model needs --http",
        f"{ANY} --http 127.0.0.1:0 --http-limit body=1": "did you mean 'body_",
        f"{ANY} --http 127.0.0.1:0 --http-limit body_bytes=0": "must be a positive",
        f"{ANY} --http 127.0.0.1:0 --insecure --token-file x": "give one",
        f"{ANY} --http 8080": "HOST:PORT expected",
        f"{ANY} --verifiers-limit runs=1": "--verifiers-limit needs --verifiers-bind",
        f"{ANY} --verifiers-bind tcp://127.0.0.1:0 --verifiers-limit x=1": "no limit 'x'",
        f"{ANY} --redeliver": "--redeliver needs --verifiers-bind",
        f"{ANY} --verifiers-bind 127.0.0.1:5000": "did you mean tcp://127.0.0.1:5000?",
        f"{ANY} --otlp-ratio 0.5": "--otlp-ratio needs --otlp URL",
        f"{ANY} --otlp 127.0.0.1:4318": "--otlp takes http://HOST:PORT",
        f"{ANY} --otlp http://127.0.0.1:4318 --otlp-ratio 2": "a number from 0 to 1, not 2",
        f"--door-only {NOWHERE}": "--door-only needs a door: --http",
        f"--door-only {NOWHERE} --http 127.0.0.1:0 --workers 2": "starts no server, which workers",
        "--door-only nowhere --http 127.0.0.1:0": "nowhere",
        f"--door-only {NOWHERE} --http 127.0.0.1:0 --door-curve no.key": "no.key: No such file",
        f"--door-only {NOWHERE} --http 0.0.0.0:0": "may be reached from other machines",
        "--config none.toml": "cannot read none.toml: No such file",
        "--config wrong.toml": "wrong.toml: no option 'wrokers'; did you mean 'workers'?",
        "--config door.toml": "door.toml, [http]: no option 'bidn'; did you mean 'bind'?",
        "--config text.toml": "text.toml, [http] is a table, not '127.0.0.1:0': write its options",
        "--config top.toml": "top.toml: no option 'drain_s': write drain_s = ... below a line [ser",
        "--config flag.toml": "[serve]: no option 'http': write bind = ... below a line [http]",
        "--config low.toml": "[http]: no option 'workers': write workers = ... above the first ta",
        "--config drain.toml": "drain.toml, [serve]: no option 'drian_s'; did you mean 'drain_s'?",
        "--log-level LOUD": "--log-level is one of DEBUG, INFO",
        "--transport zmpt": "one of zmtp, libzmq, not 'zmpt'; did you mean 'zmtp'?",
    },
    "join": {
        "nowhere": "nowhere",
        f"{NOWHERE} --offers gpu=many": "is no amount; write a number, such as gpu=1",
        f"{NOWHERE} no_such:Env": "no_such",
        f"{NOWHERE} --workers 1 --worker-env 1:A=b": "numbered",
    },
    "eval": {
        "": "ENV",
        "arithmetc": "did you mean 'arithmetic'",
        f"arithmetic --address {NOWHERE} --workers 2": "own server",
        "arithmetic --inputs nosuchfile": "nosuchfile",
        "arithmetic --output nosuch/dir.jsonl": "nosuch/dir.jsonl",
        "arithmetic --output mine.jsonl": "exists",
        "arithmetic --slice 7": "--slice takes START:STOP",
        "arithmetic --retry-errors": "give --output",
        "arithmetic -n 3 --slice 5: --workers 0": "only 3 inputs",
        "arithmetic --run r1": "own server forgets --run",
        "arithmetic --journal runs": "give --run NAME",
        "arithmetic --run '' --journal runs": "a name has 1 to 200 bytes",
        f"arithmetic --run r1 --address {NOWHERE} --journal runs": "own server",
        "arithmetic --model mime": "did you mean 'mine'",
        "arithmetic --model mine": "NO_SUCH_KEY (key_env) is not set",
        "arithmetic --model http://u:p@x/v1": "must not have a user or password",
        "arithmetic --endpoints none.toml": "none.toml does not exist",
        f"arithmetic --endpoints endpoints.toml --address {NOWHERE}": "`serve`",
        "birds.py:Judged": "no model has the role 'judge' (known: mine): name one in the request",
        "birds.py:Judged --role judge=orcale": "the role 'judge': unknown model endpoint 'orcale'",
        "birds.py:Judged --role jugde=oracle": "did you mean 'judge'",
        "birds.py:Judged --role judge": "--role takes ROLE=MODEL, such as judge=big, not 'judge'",
        "birds.py:Judged --role =oracle": "--role takes ROLE=MODEL",
        "birds.py:Judged --role judge=127.0.0.1:9/v1": "did you mean 'http://127.0.0.1:9/v1'",
    },
    "rescore": {
        "nosuch.jsonl birds.py:Birds": "nosuch.jsonl: there is no such file of results",
        "empty.jsonl birds.py:Birds": "empty.jsonl has no results",
        "bad.jsonl birds.py:Birds": "bad.jsonl, line 2: this is no result",
        "r.jsonl birds.py:Brids": "did you mean 'Birds'",
        "r.jsonl birds.py:Plain": "birds cannot score stored results: write a method rescore",
        "r.jsonl birds.py:Birds --output r.jsonl": "would write to the file that is",
        "r.jsonl birds.py:Birds --output link.jsonl": "would write to the file that is",
        "r.jsonl birds.py:Birds --role judge": "--role takes ROLE=MODEL, such as judge=",
        "r.jsonl birds.py:Birds --role judge=orcale": "the role 'judge': unknown model ",
        "r.jsonl birds.py:Birds --role a=oracle --role a=random": "two models for",
        "r.jsonl birds.py:Judged": "no model has the role 'judge' (known: mine): name one in",
        "r.jsonl birds.py:Judged --role jugde=oracle": "did you mean 'judge'",
        "r.jsonl birds.py:Birds --retry-errors": "give --output",
    },
    "show": {
        "nosuch.jsonl": "No such file",
        "rr.jsonl": "rr.jsonl: No such file or directory; did you mean 'r.jsonl'",
        "folder/rr.jsonl": "folder/rr.jsonl: No such file or directory",
        "bad.jsonl": "line 2: this is no result",
        "r.jsonl --number 2": "there are 1 such rollouts",
        "r.jsonl --worst --best": "give one",
    },
    "compare": {"r.jsonl bad.jsonl": "line 2: this is no result"},
    "report": {
        "nosuch.jsonl": "nosuch.jsonl: No such file",
        "empty.jsonl": "empty.jsonl has no results",
        "cut.jsonl": "cut.jsonl has no results",
        "bad.jsonl": "bad.jsonl, line 2: this is no result",
        "folder": "folder: Is a directory",
        "bad.parquet": "bad.parquet" if find_spec("pyarrow") else "Parquet needs the extra table",
        "r.jsonl --compare nosuch.jsonl": "nosuch.jsonl: No such file",
        "r.jsonl --compare failed.jsonl": "no input in common",
        "r.jsonl -o r.jsonl": "r.jsonl exists, and is no report",
        "r.jsonl -o folder": "folder exists, and is no report",
        "r.jsonl -o /dev/full": "/dev/full exists, and is no report",
    },
    "init": {
        "random": "a module of Python's own", "trio": "is a module already",
        "folder": "is a module already (a folder of that name)",
        "mine": "mine.py exists", "tested": "test_tested.py exists",
        "no_folder": "test_no_folder.py", "my-game": "must be like", "class": "must be like",
        "../x": "must be like", "Words": "must be like", "a.b": "must be like",
        "''": "must be like", "_": "must be like", "wörter": "must be like",
    },
    "validate": {
        "trio_envserve.envs.arithmetic:Arithmetik": "did you mean 'Arithmetic'",
        "arithmetic --inputs not-there": "not-there: No such file",
        "arithmetic --worker-python /no/python": "is not there",
    },
    "status": {
        "nonsense": "tcp://127.0.0.1:5555 or ipc:///path expected",
        f"{NOWHERE} tcp://127.0.0.1:8": "unexpected extra argument (tcp://127.0.0.1:8)",
        f"{NOWHERE} --ready --stack one": "give one",
        "--watch": "No such option",
    },
    "up": {
        "slurm arithmetic": "--hosts-bind: an address that its nodes reach",
        f"slurm arithmetic --hosts-{ANY[2:]} --hosts=0..2": "begins with 1",
        f"slurm arithmetic --hosts-{ANY[2:]} --hosts=0": "begins with 1",
    },
    "key list": {NOWHERE: "give it with --address"},
    "key attach": {"one --timeout 0": "--timeout is a number above 0, not 0"},
    "key cancel": {
        "": "Missing argument 'KEY...'",
        f"one {NOWHERE}": f"{NOWHERE} is an address, and no key: give it with --address",
    },
    "journal": {
        "list runs --repair": "--repair", "check runs key": "extra argument",
        "show runs": "Missing argument 'KEY'", "burn runs": "no command 'burn'",
        "ls runs": "did you mean 'list'?",
    },
    "curve": {
        "new keys one": "keys has a key one: revoke it first",
        "new keys two --out one.key": "one.key is there",
        "new keys two --out nosuch/two.key": "nosuch/two.key: No such file",
        "new file two": "file: File exists",
        "new file/keys two": "file/keys: Not a directory",
        "new keys ../two": "a NAME is letters",
        "new keys two --public x": "is no key",
        "new keys two --public x --out two.key": "no file is written with --public",
        "new keys two --role root": "root",
        "revoke keys two": "keys has no key two",
        "show nothing": "nothing/server.key: No such file",
        "show keys one": "extra argument",
    },
    "replay": {
        "nothing.rec": "cannot read nothing.rec: No such file",
        "file": "file is no recording",
        f"{INCIDENT} --at 1 --step 2": "--at or --step, not both",
        f"{INCIDENT} --at -1": "-1",
        f"{INCIDENT} --request 7": "a request is SESSION/SEQUENCE",
        f"{INCIDENT} --request 00000000/7": "no request 00000000/7 was seen",
    },
    "run-with": {
        "arithmetic": "Missing argument",
        "-- true": "Missing argument",
        "arithmetc -- true": "did you mean 'arithmetic'",
        "arithmetic --bind nonsense -- true": "nonsense",
    },
    "conform": {
        "": "give an ADDRESS",
        f"{NOWHERE} --worker-command x": "give an ADDRESS, or a --worker",
        "--worker-command x": "--input is needed",
        "--worker-command x --input {": "--input is not JSON",
        "--worker-command x --input 1 --long-input [": "--long-input is no",
        '--worker-command "\'" --input 1': "is not a command",
        "--worker-command x --input 1 --case nosuch": "no case matches",
        f"{NOWHERE} --case a-cancle-*": "no case matches",
        f"{NOWHERE} --limit queu=16": "did you mean 'queue",
        "nonsense": "tcp://127.0.0.1:5555 or ipc:///path expected",
    },
    "demo": {
        "--keep file/logs": "cannot ", "--keep /proc": "cannot ",
        "--keep folder": "logs of an earlier run",
    },
    "fuzz": {
        "--mutant silence-is-deth": "did you mean silence-is-death",
        "--runs 1 --seconds 1": "exclude each other",
        "--mutant all --runs 1": "its own number of runs",
        "--mutant all --harsh": "its own number of runs",
        "--trace": "one run",
        "--seed -1": "--seed",
        "--jobs 0": "--jobs",
        "--saved nosuchfile": "nosuchfile",
        "--saved object.json": "object.json is no saved failure",
        "--config crash": "--config is for --exhaustive",
        "--exhaustive --config smal": "did you mean small?",
        "--exhaustive --config xyz": "there are lost, cut",
        "--exhaustive --mutant silence-is-deaf": "did you mean silence-is-death",
        "--exhaustive --mutant window-is-not-kept": "choose one with --config",
        "--exhaustive --mutant all": "takes one mutant",
        "--exhaustive --seed 1": "--exhaustive has no seeds",
        "--exhaustive --config crash --protocol kv_store.py:STORE": "without --protocol",
        f"--protocol {PROTOCOL}:FORGETFULL": "did you mean FORGETFUL?",
        "--protocol nosuch.py:STORE": "no file nosuch.py",
        "--protocol nosuch:STORE": "no module 'nosuch'",
        "--protocol kv_store": "write file.py:NAME or package.module:NAME",
        f"--protocol {PROTOCOL}:STORE --harsh": "--protocol has no",
        f"--protocol {PROTOCOL}:STORE --mutant all": "--protocol has no",
    },
}  # fmt: skip

OTHERWISE: dict[str, dict[str, tuple[int, str]]] = {
    "report": {
        "r.jsonl -o nosuch/r.html": (5, "nosuch/r.html: No such file"),
        "r.jsonl -o /proc/r.html": (5, "/proc/r.html: No such file"),
    },
    "validate": {"arithmetic --arg sice=1": (3, "did you mean 'size'")},
    "eval": {
        "arithmetic --arg sice=3": (3, "did you mean 'size'"),
        f"arithmetic --arg sice=3 --address {NOWHERE}": (3, "did you mean 'size'"),
        "birds.py:Judged --role judge=http://127.0.0.1:9/v1": (3, "nothing was asked for"),
    },
    "rescore": {
        "r.jsonl birds.py:Birds --arg size=3": (3, "it takes: no arguments"),
        "r.jsonl birds.py:Others": (3, "r.jsonl has rollouts of birds, and birds.py:Others is oth"),
        "r.jsonl birds.py:Judged --role judge=http://127.0.0.1:9/v1": (3, "nothing was asked for"),
    },
    "journal": {
        "list nowhere": (3, "there is no"),
        "check folder": (3, "there is no"),
        "compact folder": (3, "there is no"),
    },
    "run-with": {
        "arithmetic -- nosuchcommand -x": (127, "command not found: nosuchcommand"),
        "arithmetic -- ./file": (126, "./file is not a program"),
    },
    "conform": {f"{NOWHERE} --wait-s 0.2": (3, f"no server to judge at {NOWHERE}")},
}
BIRDS = """
class Plain:
    name = "birds"
    def inputs(self, n, seed): return [{"q": seed + i} for i in range(n)]
    async def run_rollout(self, rollout): open("ran", "w")

class Birds(Plain):
    async def rescore(self, rollout, value): open("ran", "w")

class Judged(Birds):
    model_roles = ["judge"]

class Others(Birds):
    name = "others"
"""
CASES = [
    *((f"{verb} {words}", 2, why) for verb, rows in USAGE.items() for words, why in rows.items()),
    *((f"{verb} {words}", code, why)
      for verb, rows in OTHERWISE.items() for words, (code, why) in rows.items()),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are right, wrong, or in the way."""
    folder = tmp_path_factory.mktemp("mistakes")
    written(folder / "r.jsonl", [result(0)])
    written(folder / "failed.jsonl", [result(0, error=failure())])
    written(folder / "bad.jsonl", [result(0)], rest="nonsense\n")
    written(folder / "cut.jsonl", [], rest='{"index": 0')
    for name, text in {
        "file": "text\n", "object.json": "{}", "bad.parquet": "nonsense", "empty.jsonl": "",
        "mine.py": "mine", "mine.jsonl": "mine", "test_tested.py": "mine", "birds.py": BIRDS,
        "wrong.toml": "wrokers = 2", "door.toml": "[http]\nbidn = 1",
        "drain.toml": "[serve]\ndrian_s = 1", "text.toml": 'http = "127.0.0.1:0"',
        "top.toml": "drain_s = 1", "flag.toml": '[serve]\nhttp = "127.0.0.1:0"',
        "low.toml": "[http]\nworkers = 1",
        "endpoints.toml": '[mine]\nurl = "http://127.0.0.1:1/v1"\nkey_env = "NO_SUCH_KEY"\n',
    }.items():  # fmt: skip
        (folder / name).write_text(text)
    (folder / "test_no_folder.py").symlink_to("/no/such/folder/file")
    (folder / "link.jsonl").symlink_to("r.jsonl")
    (folder / "folder").mkdir()
    (folder / "folder" / EVENTS).write_text("mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["curve", "new", "keys", "one"], Interrupts()) == 0
    return folder


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is that of a command."""
    monkeypatch.chdir(folder)
    # A process has its title for ever.
    monkeypatch.setattr("trio_envserve.cli.evaluate.set_title", lambda _: None)
    monkeypatch.setattr(os, "_exit", sys.exit)
    # A verb that serves, because its mistake is not found, ends in order.
    guard = threading.Timer(HANG_S, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with process_restored(monkeypatch):
        guard.start()
        yield
        guard.cancel()


def ran(words: list[str]) -> Any:
    """The exit code of a command.  It does not wait for a thread that still looks for a mistake
    which its server has found: it exits."""
    try:
        return run(words, Interrupts())
    except SystemExit as ended:
        return ended.code


def seen(folder: Path) -> dict[str, int]:
    """All paths below, with their times, but for what Python keeps of modules."""
    paths = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {str(path): path.lstat().st_mtime_ns for path in paths}


@pytest.mark.parametrize(("words", "code", "why"), CASES, ids=[words for words, _, _ in CASES])
def test_mistake_is_told_in_words_and_changes_nothing(
    words: str, code: int, why: str, folder: Path, command: None, capfd: pytest.CaptureFixture[str]
):
    given = shlex.split(words)
    given.insert(given.index("--") if "--" in given else len(given), "--json")
    before = seen(folder)
    assert ran(given) == code
    out, err = capfd.readouterr()
    (line,) = out.splitlines()  # nothing was bound
    assert json.loads(line)["exit"] == code
    assert why in out + err
    assert "Traceback" not in err
    assert seen(folder) == before


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--http 127.0.0.1:0 --token-file missing", "cannot read the tokens"),
        ("--http 127.0.0.1:0 --token-file file", "chmod 600"),
        ("--http 127.0.0.1:0 --http-host a/b", "is not the name of a host"),
        ("--http 0.0.0.0:0", "may be reached from other machines"),
        ("--verifiers-bind tcp://0.0.0.0:0", "clients of verifiers have no keys"),
        ("--verifiers-bind memory:x", "tcp://127.0.0.1:5555 or ipc:///path expected"),
        ("--verifiers-bind ipc:///nosuch/door", "/nosuch is not a directory; create it first"),
    ],
)
def test_wrong_option_of_a_door_was_found_when_the_server_had_started(
    words: str, why: str, command: None, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.delattr("trio_envserve.cli.serve.open_server")
    assert ran(shlex.split(f"serve {ANY} {words} --json")) == 2
    assert why in capfd.readouterr().out


COMMANDS = [
    name if isinstance(found, Verb) else f"{name} {each}"
    for name, found in VERBS.items()
    for each in ([name] if isinstance(found, Verb) else found)
]
SCREEN = 24
"""Lines of a small terminal."""


@pytest.mark.parametrize("words", COMMANDS)
def test_help_of_a_verb_fits_a_screen_and_all_of_it_has_its_own_exit_codes(
    words: str, command: None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([*words.split(), "--help"], Interrupts()) == 0
    text = capfd.readouterr().out
    assert len(text.splitlines()) <= SCREEN, text
    assert max(map(len, text.splitlines())) <= 80, text
    assert "Example" in text
    assert "--help-all" in text
    assert run([*words.split(), "--help-all"], Interrupts()) == 0
    codes = capfd.readouterr().out.rpartition("Exit codes")[2]
    assert "  2 " in codes
    for other in ("eval:", "attach:", "report:", "status --ready:"):
        assert other not in codes


def test_help_of_the_command_lists_every_verb(command: None, capfd: pytest.CaptureFixture[str]):
    assert run(["--help"], Interrupts()) == 0
    listed = capfd.readouterr().out
    assert all(f"  {verb} " in listed for verb in VERBS)


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("status", [NOWHERE]), ("status", ["--slow", "3", NOWHERE]), ("top", [NOWHERE]),
        ("key list", ["--address", NOWHERE]), ("key attach", ["one", f"--address={NOWHERE}"]),
        ("key forget", ["--address", NOWHERE, "one", "two"]),
    ],
)  # fmt: skip
def test_address_without_which_a_verb_asks_where_serve_is_by_default(
    verb: str, words: list[str], monkeypatch: pytest.MonkeyPatch
):
    assert parsed(verb, words).address == NOWHERE
    left = [word for word in words if NOWHERE not in word and word != "--address"]
    for named, asked in ((NOWHERE, NOWHERE), ("", DEFAULT_ADDRESS)):  # run-with names its server
        monkeypatch.setenv("TRIO_ENVSERVE_ADDRESS", named)
        assert parsed(verb, left).address == asked
    assert (
        options_of_verb(ServeOptions)["bind"].default == DEFAULT_ADDRESS == "tcp://127.0.0.1:5555"
    )


def parsed(verb: str, arguments: list[str]) -> Any:
    """The record that a verb is called with by these words."""
    command: click.Command = group
    for name in verb.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    assert isinstance(command, VerbCommand)
    context = command.make_context(verb, [*arguments])
    return command.asked(command.given(context))


@pytest.mark.parametrize("verb", ["serve", "join", "up"])
def test_service_ends_with_130_while_it_loads_and_its_help_did_not_say_so(verb: str):
    found = VERBS[verb]
    assert isinstance(found, Verb)
    assert "130, 143  interrupted while it was loading" in (load(found).epilog or "")


def test_demo_without_a_folder_for_its_logs_ended_with_a_traceback(
    command: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    with monkeypatch.context() as patch:  # pytest has files there, too
        patch.setattr(tempfile, "tempdir", "/no/such/folder")
        assert ran(["demo"]) == 3
    _, err = capfd.readouterr()
    assert "no folder for the logs: " in err
    assert "set TMPDIR" in err
    assert "Traceback" not in err


@pytest.mark.real
@pytest.mark.parametrize("verb", ["status", "eval arithmetic -n 1", "serve"])
def test_command_that_may_open_few_files_says_so(verb: str, tmp_path: Path):
    words = f"ulimit -n 16 && exec {shlex.quote(sys.executable)} -m trio_envserve {verb} --json"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", words], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert (done.returncode, json.loads(done.stdout)["exit"]) == (2, 2)
    assert done.stderr == (
        "trio-envserve: 64 descriptors are needed, and this process may have 16 open: raise that "
        "limit (ulimit -n)\n"
    )
