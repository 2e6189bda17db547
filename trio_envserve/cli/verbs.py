"""The command: its verbs by name, each imported when it is used, and made of a record of options.

Theory of operation
-------------------
A verb is an async function of a record and a :class:`~.common.StopRequest`, or a plain one of a
record alone, which is called in a thread.  The record's fields are its options
(:mod:`trio_envserve.options`), so nothing else lists them: :class:`VerbCommand`
draws from it what click parses, what help shows, and what a file of configuration may say of the
verb.

``--help`` fits a screen: one sentence of each option that people often need.  ``--help-all`` has
everything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib
import inspect
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast, final

import click
from click.core import ParameterSource

from ..core.errors import ConfigError
from ..evals.files import NotWritten
from ..logs import take_stderr
from ..near import did_you_mean
from ..options import Option, option, options_of, read_file, values_of
from ..server.options import SERVE, ServerOptions
from .common import UNWRITTEN, Result, StopRequest, epilog, run_verb
from .interrupts import Interrupts
from .last_words import relay_standard_error
from .render import emit, put_no_more, say

if TYPE_CHECKING:
    _ParamType: TypeAlias = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # click 8.1 has no parameter for it

R = TypeVar("R", bound="VerbOptions")
Main: TypeAlias = Callable[[R, StopRequest], Awaitable[Result]] | Callable[[R], Result]

SHOWN_EXAMPLES = 2
"""Most examples in ``--help``."""
_PART = "part"


class Verb(NamedTuple):
    """The module of a verb, and its line in ``--help``."""

    module: str
    attribute: str
    help: str


VERBS: dict[str, Verb | dict[str, Verb]] = {
    "serve": Verb("serve", "serve", "Serve an environment at an address."),
    "eval": Verb("evaluate", "evaluate", "Run rollouts and sum up their rewards."),
    "show": Verb("results", "show", "Page through the rollouts in a file of results."),
    "rescore": Verb("rescore", "rescore", "Score the rollouts in a file of results anew."),
    "compare": Verb("results", "compare_files", "Compare two files of results, input by input."),
    "report": Verb("results", "report", "Make a page of a file of results, for a browser."),
    "status": Verb("status", "status", "Show what a server is doing, and where a rollout stands."),
    "top": Verb("status", "top", "Watch a server: queue, rates, slowest rollouts, workers."),
    "init": Verb("init", "init", "Write a first environment, with a test."),
    "validate": Verb("validate", "validate", "Look an environment over before it is used."),
    "run-with": Verb("run_with", "run_with", "Run a command while an environment is served."),
    "join": Verb("join", "join", "Own workers on this machine for a server elsewhere."),
    "up": Verb("up", "up", "Serve on hosts that Ray or Slurm starts."),
    "key": {
        "list": Verb("key", "list_keys", "Show which keys a server knows."),
        "attach": Verb("key", "attach", "Wait for the outcome of a key."),
        "cancel": Verb("key", "cancel", "Cancel the work of keys."),
        "forget": Verb("key", "forget", "Drop keys and their outcomes."),
    },
    "journal": {
        "list": Verb("journal", "list_kept", "Show the keys and resources in a journal."),
        "show": Verb("journal", "show", "Show a key with its input and outcome."),
        "export": Verb("journal", "export", "Print all keys so, one a line."),
        "check": Verb("journal", "check", "Say whether all is as it was saved, or mend it."),
        "compact": Verb("journal", "compact", "Give back the room of what was forgotten."),
        "adopt": Verb("journal", "adopt", "Take over a journal from elsewhere."),
    },
    "curve": {
        "new": Verb("curve", "new", "Make a key of a client."),
        "show": Verb("curve", "show", "Show the keys of a server and its clients."),
        "revoke": Verb("curve", "revoke", "Take a key away."),
    },
    "replay": Verb("replay", "replay", "Replay a recorded server, step by step."),
    "conform": Verb("conform", "conform", "Judge any server by the protocol, from outside."),
    "demo": Verb("demo", "demo", "Run 1,000 rollouts while connections and processes fail."),
    "fuzz": Verb("fuzz", "fuzz", "Simulate thousands of systems under random faults."),
}
GROUPS = {
    "key": "List, attach to, cancel and forget the keys of a server.",
    "journal": "Show or repair the journal of a server.",
    "curve": "Make, show and revoke the keys of a server's clients.",
}


OTHER_WORDS: dict[str, tuple[str, ...]] = {
    "run": ("eval", "serve"), "start": ("serve",), "server": ("serve",), "test": ("validate",),
    "check": ("validate",), "ps": ("status", "top"), "list": ("key list", "status"),
    "keys": ("key list",), "attach": ("key attach",), "cancel": ("key cancel",),
    "forget": ("key forget",), "stack": ("status --stack",), "door": ("serve --door-only",),
    "logs": ("top", "status"), "kill": ("key cancel",), "stop": ("key cancel",),
    "delete": ("key forget",), "rm": ("key forget",), "new": ("init",), "create": ("init",),
    "diff": ("compare",), "view": ("show", "report"), "html": ("report",),
    "wait": ("key attach",), "proxy": ("serve --door-only",), "http": ("serve --http",),
    "evaluate": ("eval",), "score": ("rescore",), "judge": ("rescore",), "ls": ("list",),
}  # fmt: skip
"""Verbs that others call so, with ours."""


# -- what all verbs are asked -----------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerbOptions:
    """The options of every verb."""

    as_json: bool = option(
        False, "Print a JSON object as the last line of output.", flag="--json",
        common=True, in_program=True,
    )  # fmt: skip


class SharedOptions(NamedTuple):
    """The options of another record that a verb has, too."""

    record: Any
    names: tuple[str, ...]
    """Those of them; empty: all that a file can say."""
    defaults: Mapping[str, Any]
    """Defaults of this verb."""
    table: str = ""
    """Their table in a file, and the beginning of their names here; they need its ``bind``."""

    def options(self) -> dict[str, Option]:
        """Them, by their names in the verb."""
        found = {}
        for name, each in options_of(self.record).items():
            if name in self.names if self.names else not each.in_program:
                needs = "" if name in self.defaults else each.needs
                if self.table and name != "bind":
                    needs = f"{self.table}_bind"
                found[self.named(name)] = dataclasses.replace(
                    each, name=self.named(name), default=self.defaults.get(name, each.default),
                    needs=needs, flag=each.flags,
                )  # fmt: skip
        return found

    def named(self, name: str) -> str:
        """The name of a field in the verb."""
        return f"{self.table}_{name}" if self.table else name

    def taken(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Its values among those of the verb, by its own names."""
        names = {self.named(name): name for name in options_of(self.record)}
        return {names[name]: values[name] for name in self.options() if name in values}


def server_options(*names: str, **defaults: Any) -> Any:
    """A field that holds these options of :class:`ServerOptions`, as far as they are given; with
    ``defaults`` of this verb."""
    return _part(SharedOptions(ServerOptions, names, defaults))


def door_options(record: Any, table: str) -> Any:
    """A field that holds the options of a door, as far as they are given."""
    return _part(SharedOptions(record, (), {"bind": None}, table))


def _part(part: SharedOptions) -> Any:
    return dataclasses.field(default_factory=dict, metadata={_PART: part})


def verb(
    record: type[R], codes: Mapping[int, str] = MappingProxyType({}), *, name: str = "",
    interrupted: str = "interrupted (Ctrl-C, SIGTERM)",
) -> Callable[[Main[R]], VerbCommand]:  # fmt: skip
    """A decorator that makes a verb of a function of this record.

    Args:
        record: Its options.
        codes: Its exit codes beside 0 and 2, or other words for these.
        name: Its name, if that is not the function's.
        interrupted: When it ends with 130 or 143.
    """

    def decorate(main: Main[R]) -> VerbCommand:
        text = epilog(codes, interrupted=interrupted)
        return VerbCommand(name or main.__name__.replace("_", "-"), record, main, text)

    return decorate


@final
class _Value(_ParamType):
    """The value of an option, of one text."""

    def __init__(self, about: Option) -> None:
        self.name = about.name
        self._about = about

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:  # fmt: skip
        """Read it.  UsageError says what may stand there."""
        about = self._about
        numbers: dict[str, Callable[[str], Any]] = {"int": int, "float": float}
        try:
            given = numbers[about.kind](value) if about.kind in numbers else value
        except ValueError:
            given = value
        where = about.flags if not about.argument else about.name.upper()
        try:
            return about.value_of(given, where)
        except ConfigError as error:
            raise click.UsageError(str(error), ctx) from None


@final
class VerbCommand(click.Command):
    """A verb that is made of a record."""

    def __init__(self, name: str, record: Any, main: Main[Any], epilog: str) -> None:
        self._record, self._verb = record, main
        self.options = options_of_verb(record)
        params = [_param(each) for each in self.options.values()]
        doc = _for_click(inspect.cleandoc(main.__doc__ or ""))
        super().__init__(name, help=doc, epilog=epilog, params=params, add_help_option=False)
        for flags, whole in ((["-h", "--help"], False), (["--help-all"], True)):
            shown = partial(self._show_help, whole=whole)
            self.params.append(
                click.Option(
                    flags,
                    is_flag=True,
                    is_eager=True,
                    expose_value=False,
                    callback=shown,
                    help="Show everything." if whole else "Show the most important.",
                )
            )

    # -- asking -------------------------------------------------------------------

    def invoke(self, ctx: click.Context) -> int:
        """Run the verb with its record; returns the exit code."""
        given = self.given(ctx)
        config = given.get("config")

        async def main(stop: StopRequest) -> Result:
            asked, verb = self.asked(given), self._verb
            if inspect.iscoroutinefunction(verb):
                result: Result = await verb(asked, stop)
            else:
                result = await stop.leave_behind(cast(Callable[[Any], Result], verb), asked)
            return result

        if config is None:
            self._check_needs(ctx, given)
        return run_verb(main, as_json=bool(given.get("as_json")))

    def given(self, ctx: click.Context) -> dict[str, Any]:
        """The options that the command line gives."""
        return {
            name: ctx.params[name]
            for name in self.options
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }

    def _check_needs(self, ctx: click.Context, given: Mapping[str, Any]) -> None:
        for name in given:
            needed = self.options[name].needs
            if needed and needed not in given:
                other = self.options[needed]
                word = f" {other.metavar}" if other.metavar else ""
                ctx.fail(f"{self.options[name].flags} needs {other.flags}{word}")

    def asked(self, given: Mapping[str, Any]) -> Any:
        """The record of what is given.  Raises ConfigError."""
        values = {}
        for name, value in given.items():
            about = self.options[name]
            if about.parse is not None:
                value = about.parse(about.flags, value)
                value = value if about.make is None else about.make(value)
            values[name] = value
        made = {name: values[name] for name in options_of(self._record) if name in values}
        path, tables = values.get("config"), {}
        if path is not None and self.name == SERVE:
            tables = read_file(path)
            self._check_tables(path, tables)
            own = values_of(self._record, tables.get(SERVE, {}), f"{path}, [{SERVE}]")
            made = {**own, **made}
        for name, part in _parts(self._record):
            made[name] = part.taken(values)
            if part.table in tables:
                where = f"{path}, [{part.table}]"
                made[name] = {**values_of(part.record, tables[part.table], where), **made[name]}
        return self._record(**made)

    def _check_tables(self, path: Any, tables: Mapping[str, Any]) -> None:
        """Raise ConfigError for an option that stands in another table than its own."""
        records = {SERVE: self._record, **{p.table: p.record for _, p in _parts(self._record)}}
        own = {
            table: [name for name, each in options_of(record).items() if not each.in_program]
            for table, record in records.items()
        }
        right_tables = {name: (SERVE, name) for name in own[SERVE]}
        for _, part in _parts(self._record):
            for name in own[part.table]:
                flag = self.options[part.named(name)].flags.lstrip("-").replace("-", "_")
                right_tables |= dict.fromkeys((part.named(name), flag), (part.table, name))
        for table in own:
            given = tables.get(table, {}) if table else tables
            if not isinstance(given, Mapping):
                raise ConfigError(
                    f"{path}, [{table}] is a table, not {given!r}: write its options below a line "
                    f"[{table}] ({', '.join(own[table])})"
                )
            for name in given:
                if name in own[table] or (not table and name in own):
                    continue
                right, known = right_tables.get(name.lstrip("-").replace("-", "_"), ("", ""))
                if known:
                    where = f"below a line [{right}]" if right else "above the first table"
                    here = f"{path}, [{table}]" if table else f"{path}"
                    raise ConfigError(f"{here}: no option {name!r}: write {known} = ... {where}")

    # -- help ---------------------------------------------------------------------

    def _show_help(
        self, ctx: click.Context, param: click.Parameter, value: bool, *, whole: bool
    ) -> None:
        if value and not ctx.resilient_parsing:
            click.echo(self.text(ctx, whole=whole))
            ctx.exit()

    def text(self, ctx: click.Context, *, whole: bool) -> str:
        """The help of a verb: all of it, or what fits a screen."""
        formatter = ctx.make_formatter()
        self.format_usage(ctx, formatter)
        if whole:
            self.format_help_text(ctx, formatter)
        else:
            with formatter.indentation():
                formatter.write_paragraph()
                formatter.write_text(_sentence(self.help or ""))
                if examples := _examples(self.help or ""):
                    formatter.write("\n" + "".join(f"{'':2}{line}\n" for line in examples))
        for heading, options in self.groups(whole=whole).items():
            rows = [(spelled(each), explained(each, whole=whole)) for each in options]
            if not whole:
                rows.append(("--help-all", "Show everything: all options, exit codes."))
            with formatter.section(heading or "Options"):
                formatter.write_dl(rows, col_max=30, col_spacing=2)
        if whole:
            self.format_epilog(ctx, formatter)
        return formatter.getvalue().rstrip("\n")

    def groups(self, *, whole: bool) -> dict[str, list[Option]]:
        """The options by their headings, the common ones first; only these unless ``whole``."""
        found: dict[str, list[Option]] = {"": []}
        for each in sorted(self.options.values(), key=lambda each: not each.common):
            if not each.argument and (whole or each.common):
                found.setdefault("" if each.common else each.group, []).append(each)
        return found


def options_of_verb(record: Any) -> dict[str, Option]:
    """All options of a verb in their order, those of a server among them."""
    own, parts, found = options_of(record), dict(_parts(record)), dict[str, Option]()
    last = own.pop("as_json")
    for field in dataclasses.fields(record):
        if field.name in parts:
            found |= parts[field.name].options()
        elif field.name in own:
            found[field.name] = own[field.name]
    return {**found, last.name: last}


def _parts(record: Any) -> list[tuple[str, SharedOptions]]:
    fields = dataclasses.fields(record)
    return [(each.name, each.metadata[_PART]) for each in fields if _PART in each.metadata]


def _param(about: Option) -> click.Parameter:
    kind, many = about.kind, about.is_many
    if about.argument:
        required = about.default is dataclasses.MISSING
        return click.Argument(
            [about.name], metavar=about.metavar or None, nargs=-1 if many else 1,
            required=required, type=str if many else _Value(about),
        )  # fmt: skip
    flags = about.flags
    if kind == "bool":
        if about.default is None:
            flags = f"{flags}/--no-{flags[2:]}"
        return click.Option([about.name, *filter(None, (about.short,)), flags], is_flag=True)
    return click.Option(
        [about.name, *filter(None, (about.short,)), *flags.split()], multiple=many,
        type=str if many else _Value(about),
    )  # fmt: skip


def spelled(about: Option) -> str:
    """An option as it is written, with a stand-in for its value."""
    flags = ", ".join(filter(None, (about.short, about.flags.replace(" ", ", "))))
    if about.kind == "bool":
        return f"{flags} / --no-{about.flags[2:]}" if about.default is None else flags
    kinds = {"int": "N", "float": about.unit.upper() or "NUMBER"}
    return f"{flags} {about.metavar or '|'.join(about.choices) or kinds.get(about.kind, 'TEXT')}"


def explained(about: Option, *, whole: bool) -> str:
    """The meaning of an option, or its first sentence, with its default."""
    text = about.help.replace("``", "`") if whole else _sentence(about.help)
    default = about.shown
    if not default and isinstance(about.default, (str, int, float)):
        is_shown = about.default is not False and about.default != ""
        default = f"{about.default:g}" if isinstance(about.default, float) else f"{about.default}"
        default = default if is_shown else ""
    more = " Repeatable." if whole and about.is_many else ""
    return f"{text}{more}" + (f" [default: {default}]" if default and about.kind != "bool" else "")


def _sentence(text: str) -> str:
    """The first sentence of a paragraph."""
    paragraph = " ".join(text.partition("\n\n")[0].split()).replace("``", "`")
    found = re.search(r"(?<!e\.g)\.(?= [A-Z0-9])", paragraph)
    return paragraph if found is None else paragraph[: found.end()]


def _examples(doc: str) -> list[str]:
    """The first examples of a docstring, with their heading."""
    lines = doc.splitlines()
    heads = [n for n, line in enumerate(lines) if line.strip() in ("Example:", "Examples:")]
    if not heads:
        return []
    found = lines[heads[0] : heads[0] + 1]
    for line in lines[heads[0] + 1 :]:
        if len(found) > SHOWN_EXAMPLES or not line.strip():
            break
        found.append(line)
    return found[:-1] if found[-1].endswith("\\") else found


def _for_click(doc: str) -> str:
    """A docstring whose paragraphs with indented lines are kept as they are."""
    parts = doc.replace("``", "`").split("\n\n")
    return "\n\n".join(f"\b\n{part}" if "\n  " in part else part for part in parts)


# -- the groups -------------------------------------------------------------------


def load(verb: Verb) -> VerbCommand:
    """The command of a verb; imports its module."""
    module = importlib.import_module(f"trio_envserve.cli.{verb.module}")
    command: VerbCommand = getattr(module, verb.attribute)
    return command


@final
class LazyGroup(click.Group):
    """Imports a verb's module when the verb is used, and not before."""

    def __init__(self, *args: Any, verbs: Mapping[str, Any], **about: Any) -> None:
        super().__init__(*args, **about)
        self.verbs = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of their table."""
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb.  Raises UsageError, with the near names, if there is none."""
        found = self.verbs.get(cmd_name)
        if found is None:
            meant = [
                name for name in OTHER_WORDS.get(cmd_name, ()) if name.split()[0] in self.verbs
            ]
            hint = f"; did you mean {' or '.join(map(repr, meant))}?"
            if not meant:
                hint = did_you_mean(cmd_name, self.verbs, most=2)
            ctx.fail(f"no command {cmd_name!r}{hint}")
        if not isinstance(found, Verb):
            return LazyGroup(cmd_name, verbs=found, help=GROUPS[cmd_name])
        return load(found)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in ``--help``, from the table."""
        rows = [
            (name, each.help if isinstance(each, Verb) else GROUPS[name])
            for name, each in self.verbs.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    verbs=VERBS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="trio-envserve", message="%(prog)s %(version)s")
def group() -> None:
    """An environment server for rollouts in which a retry is never a second run.

    Each verb has --help, and --json for programs: one object on the last line of standard
    output; progress and logs are on standard error.
    """


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
            with contextlib.suppress(NotWritten):
                emit({"error": about, "exit": error.exit_code})
        return error.exit_code
    except click.Abort:
        return 130
    except OSError as error:  # of help and version, which click prints
        if error.errno != errno.ENOSPC:
            raise
        say(f"error: {put_no_more(error)}")
        return UNWRITTEN
    return code if isinstance(code, int) else 0


def _search_here() -> None:
    """Find environments in the current folder, as ``python -m`` does."""
    try:
        here = os.getcwd()
    except OSError:
        return  # the folder was removed: nothing can be in it
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
