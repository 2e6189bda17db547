"""The command itself: its verbs by name, each imported when it is used."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import click

from ..logs import take_stderr
from .common import EPILOG, emit, say
from .interrupts import Interrupts
from .last_words import relay_standard_error


class Verb(NamedTuple):
    """The module of a verb, and its line in ``--help``."""

    module: str
    attribute: str
    help: str


VERBS = {
    "serve": Verb("serve", "serve", "Serve an environment at an address."),
    "join": Verb("join", "join", "Own workers on this machine for a server elsewhere."),
    "door": Verb("door", "door", "Open a door to a server, as a process of its own."),
    "eval": Verb("evaluate", "evaluate", "Run rollouts and sum up their rewards."),
    "show": Verb("show", "show", "Page through the rollouts in a file of results."),
    "compare": Verb("compare", "compare_files", "Compare two files of results, input by input."),
    "report": Verb("report", "report", "Make a page of a file of results, for a browser."),
    "init": Verb("init", "init", "Write a first environment, with a test."),
    "validate": Verb("validate", "validate", "Look an environment over before it is used."),
    "status": Verb("status", "status", "Show what a server is doing."),
    "up": Verb("up", "up", "Serve on hosts that Ray or Slurm starts."),
    "top": Verb("top", "top", "Watch a server: queue, rates, slowest rollouts, workers."),
    "stack": Verb("stack", "stack", "Show where the code of a rollout stands."),
    "keys": Verb("keys", "keys", "Show which keys a server knows."),
    "attach": Verb("attach", "attach", "Wait for the outcome of a key."),
    "cancel": Verb("end_key", "cancel", "Cancel the work of a key."),
    "forget": Verb("end_key", "forget", "Drop a key and its outcome."),
    "journal": Verb("journal", "journal", "Show or repair the journal of a server."),
    "curve": Verb("curve", "curve", "Make, show and revoke the keys of a server's clients."),
    "replay": Verb("replay", "replay", "Replay a recorded server, step by step."),
    "run-with": Verb("run_with", "run_with", "Run a command while an environment is served."),
    "conform": Verb("conform", "conform", "Judge any server by the protocol, from outside."),
    "demo": Verb("demo", "demo", "Run 1,000 rollouts while connections and processes fail."),
    "fuzz": Verb("fuzz", "fuzz", "Simulate thousands of systems under random faults."),
}


OTHER_WORDS: dict[str, tuple[str, ...]] = {
    "run": ("eval", "serve"), "start": ("serve",), "server": ("serve",), "test": ("validate",),
    "check": ("validate",), "ps": ("status", "top"), "list": ("keys", "status"),
    "logs": ("top", "status"), "kill": ("cancel",), "stop": ("cancel",), "delete": ("forget",),
    "rm": ("forget",), "new": ("init",), "create": ("init",), "diff": ("compare",),
    "view": ("show", "report"), "html": ("report",), "wait": ("attach",), "proxy": ("door",),
    "http": ("door",), "evaluate": ("eval",),
}  # fmt: skip
"""Verbs that others call so, with ours."""


@final
class LazyGroup(click.Group):
    """Imports a verb's module when the verb is used, and not before."""

    def __init__(self, *args: Any, verbs: Mapping[str, Verb], **options: Any) -> None:
        super().__init__(*args, **options)
        self._verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of their table."""
        return list(self._verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb.  Raises UsageError, with the near names, if there is none."""
        verb = self._verbs.get(cmd_name)
        if verb is None:
            meant = [name for name in OTHER_WORDS.get(cmd_name, ()) if name in self._verbs]
            near = meant or difflib.get_close_matches(cmd_name, self._verbs, n=2)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            ctx.fail(f"no command {cmd_name!r}{hint}")
        module = importlib.import_module(f"trio_envserve.cli.{verb.module}")
        command: click.Command = getattr(module, verb.attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in ``--help``, from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in self._verbs.items()])


@click.group(
    cls=LazyGroup,
    verbs=VERBS,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="trio-envserve", message="%(prog)s %(version)s")
def group() -> None:
    """An environment server for rollouts in which a retry is never a second run.

    \b
    Serve an environment and ask for rollouts from another terminal:
      trio-envserve serve arithmetic --workers 2
      trio-envserve eval arithmetic -n 100 --address tcp://127.0.0.1:5555
      trio-envserve status tcp://127.0.0.1:5555

    Each verb has --help, and --json for programs: exactly one object on the last
    line of standard output; progress and logs are on standard error.
    """  # noqa: D301  # click wants the character itself


def run(arguments: Sequence[str] | None, interrupts: Interrupts) -> int:
    """Parse and run; returns the exit code."""
    _search_here()
    given = list(sys.argv[1:] if arguments is None else arguments)
    own = given[: given.index("--")] if "--" in given else given
    log_json = "--log-json" in own
    if log_json:
        # Only a process of its own has its standard error to itself.
        real = relay_standard_error() if arguments is None else None
        take_stderr(as_json=True, descriptor=real)
    try:
        code: Any = group.main(
            args=None if arguments is None else list(arguments),
            prog_name="trio-envserve", standalone_mode=False, obj=interrupts,
        )  # fmt: skip
    except click.ClickException as error:
        if log_json:
            say(f"error: {error.format_message()}")
        else:
            error.show()
        if "--json" in own:
            about = {"type": type(error).__name__, "message": error.format_message()}
            emit({"error": about, "exit": error.exit_code})
        return error.exit_code
    except click.Abort:
        return 130
    return code if isinstance(code, int) else 0


def _search_here() -> None:
    """Find environments in the current folder, as ``python -m`` does."""
    try:
        here = os.getcwd()
    except OSError:
        return  # the folder was removed: nothing can be in it
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
