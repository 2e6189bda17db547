"""The loop of a rollout with tools: the model asks for tools, and is told what they return.

The docstring of :mod:`.classes` has the methods that the loop calls, and the result.

Giving up is never better than playing.  A rollout whose turns ran out, and a game that was
not played to its end, have no reward, unless ``reward_unfinished`` says which.

A late rollout asks no more: a call of the model or of a tool is ended, and the reward is that of
the turns that there are.  Without any it has none.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, cast, final

from .. import foreign
from ..core.errors import ConfigError, EnvServeError
from ..models.interface import Completion, ContextFull, ToolCall
from ..models.tokens import SegmentBuilder
from ..near import did_you_mean
from ..options import option, options_of
from ..sandboxes.sandbox import Sandbox
from .apart import ApartCall, ApartLimits, call_of_method, limits_of
from .conversation import (
    answer_message,
    calls_of,
    content_of,
    encodable,
    first_messages,
    observed,
    told,
    tool_message,
    written_call,
)
from .interface import Rollout
from .methods import Methods, StillRunning, Then, TookTooLong, same
from .responses import messages_of
from .rewards import ScorerFailed, scores_of
from .tools import Tool, WrongArguments

CALLS_PER_ANSWER = 32
"""Most tools that are called for one answer; the model is told of the others."""

ARGUMENTS_CHARS = 200_000
"""Longest arguments of one call: they are read on the event loop."""

_OF_ROWS = ("responses_create_params", "agent_ref", "prompt")
"""Fields of a row that are heeded though ``reset`` takes none of them, or name this server."""

_WRONG_CONTEXT = (
    "no running event loop",
    "framework like asyncio",
    "signal only works in main thread",
    "SQLite objects created in a thread",
)
"""Errors of code on another loop or in another thread than it needs: no mistake of the
model's."""


def _unfinished(given: Any) -> Any:
    is_number = type(given) in (int, float) and math.isfinite(given)
    if given not in (None, "ask") and not is_number:
        raise ConfigError(
            'reward_unfinished must be a number, or "ask" to ask get_reward() all the same, '
            f"not {given!r}"
        )
    return given


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LoopOptions:
    """Arguments of the loop; a class may have attributes of these names instead."""

    max_turns: int = option(16, "most answers of the model in a rollout", least=1)
    tool_timeout_s: float = option(60.0, "how long a tool may take", above=0, most=1e9)
    system: str = option("", "the system message, if it is not empty")
    reward_unfinished: float | Literal["ask"] | None = option(
        None,
        'the reward of a rollout that was not finished: a number, none, or with "ask" that which '
        "`get_reward` returns all the same",
        make=_unfinished,
    )

    def __post_init__(self) -> None:
        for name, each in options_of(self).items():
            object.__setattr__(self, name, each.value_of(getattr(self, name), name))


class Game(abc.ABC):
    """The base of classes that say themselves whether they were played to their end."""

    max_reward = None
    """The oracle plays at random."""
    _script: Sequence[Any] | None = None
    """The answers of the model ``oracle``, as the input says them."""

    def oracle(self) -> Iterator[str]:
        """The input's answers, or random ones."""
        if self._script is not None:
            yield from map(self._answer, self._script)
        while self._script is None:
            yield self._at_random()

    _answer: Callable[[Any], str] = staticmethod(str)
    """Makes an answer of an action."""

    @abc.abstractmethod
    def _at_random(self) -> str:
        """A random answer."""

    @abc.abstractmethod
    def _ended(self) -> str:
        """``answer`` or ``truncated`` at the end of the game; ``max_invalid`` if that many
        answers were no moves; empty while the game goes on."""


_AT_ITS_END = ("answer", "truncated")
"""Stops of a game that was played to its end."""

_WHY_UNFINISHED: Mapping[str, str] = MappingProxyType(
    {
        "max_turns": "max_turns ({max_turns}) answers were given",
        "max_invalid": "too many answers were no moves",
        "context": "the model's context is full",
        "deadline": "the limit of its call passed",
    }
)
"""Reason for which a rollout was not finished, by its ``stop``; a game has further ones."""


@final
class ToolLoop:
    """One rollout with an object of a class, ``made``."""

    def __init__(
        self, rollout: Rollout, made: Any, methods: Methods, *,
        name: str, tools: Mapping[str, Tool], options: LoopOptions, resumable: bool = False,
    ) -> None:  # fmt: skip
        self._rollout = rollout
        self._made = made
        self._methods = methods
        self._name = name
        self._tools = tools
        asked = rollout.sampling_args.get("tools") or ()
        self._passed_on = {
            each: schema for schema in asked
            if (each := _tool_name(schema)) is not None and each not in tools
        }  # fmt: skip
        """Tools of the caller's: nobody here can carry out a call of one."""
        self._schemas = [*(tool.schema for tool in tools.values()), *self._passed_on.values()]
        self._options = options
        self._resumable = resumable
        self._messages: list[Any] = []
        self._prompt: list[Any] = []
        """The messages before the first answer."""
        self._segments = SegmentBuilder()
        self._turns = self._calls = self._errors = 0
        self._in_doubt: list[int] = []
        """Turns that an earlier execution may have begun, and that were done again."""

    async def run(self) -> dict[str, Any]:
        """The result of the rollout."""
        asked = _asked(self._rollout.input)
        params = asked.get("responses_create_params")
        if is_row := isinstance(params, Mapping):
            prompt_of = {"prompt": messages_of(params)}
            asked = {**prompt_of, **asked}
        given = _given(self._made.reset, asked, of_row=is_row)
        saved = self._rollout.saved
        if saved is not None and self._resumable:
            await self._resume(saved.state)
        else:
            observation = await self._value(functools.partial(self._made.reset, **given), observed)
            self._messages = first_messages(
                prompt_of if is_row else asked, observation, self._options.system
            )
            self._prompt = encodable(self._messages)
        script = await self._own("oracle", _script)
        for _ in range(self._turns):  # those of before
            await self._reference(script)
        stop = await self._converse(script)
        is_finished = stop != "max_turns" and (stop != "deadline" or self._turns > 0)
        if isinstance(self._made, Game):
            ended = await self._value(self._made._ended)
            is_finished = ended in _AT_ITS_END
            stop = stop if ended in ("", "answer") else ended
        if is_finished or self._options.reward_unfinished == "ask":
            reward = await self._reward()
        else:
            reward = self._unfinished(stop)
        tokens = self._segments.result(reward.get("reward"))
        more = await self._own("rollout_state")
        return {
            **reward,
            **tokens,
            "completion": self._messages[len(self._prompt) :],
            "stop": stop,
            **({"not_heeded": sorted({*asked} - {*given, *_OF_ROWS})} if is_row else {}),
            "usage": self._rollout.usage.to_record(),
            "state": {
                "prompt": self._prompt,
                "turns": self._turns,
                "tool_calls": self._calls,
                "tool_errors": self._errors,
                "tools": self._schemas,
                **({"in_doubt": self._in_doubt} if self._in_doubt else {}),
                **(more or {}),
            },
        }

    async def _save(self) -> None:
        """Save what a further execution needs to go on with this turn."""
        state = {
            "prompt": self._prompt,
            "messages": encodable(self._messages[len(self._prompt) :]),
            "tokens": self._segments.plain(),
            "turns": self._turns,
            "calls": self._calls,
            "errors": self._errors,
            "in_doubt": self._in_doubt,
            "snapshot": await self._value(self._made.snapshot),
        }
        await self._rollout.save(state, doing=f"turn {self._turns + 1}")

    async def _resume(self, state: Mapping[str, Any]) -> None:
        """Go on from what an earlier execution has saved."""
        await self._value(functools.partial(self._made.restore, state["snapshot"]))
        self._prompt = state["prompt"]
        self._messages = [*state["prompt"], *state["messages"]]
        self._segments = SegmentBuilder(state["tokens"])
        self._turns, self._calls, self._errors = state["turns"], state["calls"], state["errors"]
        self._in_doubt = [*state["in_doubt"], self._turns + 1]

    async def _converse(self, script: Iterator[str] | None) -> str:
        while self._turns < self._options.max_turns:
            if self._rollout.late.is_set():
                return "deadline"
            try:
                if self._resumable:
                    await self._in_time(self._save)
                reference = await self._reference(script)
                completion: Completion = await self._in_time(
                    functools.partial(
                        self._rollout.ask, self._messages, tools=self._schemas, reference=reference
                    )
                )
            except ContextFull:
                if not self._turns:
                    raise  # the input's doing: the model has said nothing
                return "context"
            except TookTooLong:
                return "deadline"
            self._turns += 1
            self._segments.add(completion)
            calls = completion.tool_calls
            if self._schemas:
                calls = calls_of(completion, self._turns)
            self._messages.append(answer_message(completion, calls))
            if any(call.name in self._passed_on for call in calls):
                return "tool_calls"
            if calls:
                await self._answer(calls)
                continue
            message = await self._next_message(completion)
            if message is None:
                return "length" if completion.finish_reason == "length" else "answer"
            self._messages.append({"role": "user", "content": message})
        return "max_turns"

    async def _in_time(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """The value of some work.  Raises TookTooLong if the rollout is late before it is there."""
        left_s = self._rollout.late.left_s()
        if left_s == math.inf:
            return await work()
        if not left_s:
            raise TookTooLong
        return (await self._methods.within(work, left_s)).unwrap()

    async def _reference(self, script: Iterator[str] | None) -> str | None:
        """The environment's own next answer; None if it has none."""
        if isinstance(script, map):
            # A generator is the author's code: it runs where its method does.
            return cast(str, await self._value(functools.partial(next, script, "")))
        return next(script, "") if script is not None else None

    async def _next_message(self, completion: Completion) -> Any:
        if not hasattr(self._made, "next_message"):
            return None
        method = functools.partial(self._made.next_message, encodable(completion.text))
        return await self._value(method, _content)

    async def _answer(self, calls: Sequence[ToolCall]) -> None:
        """Call the tools of one answer, one after the other, and tell the results."""
        for number, call in enumerate(calls):
            self._calls += 1
            if number < CALLS_PER_ANSWER:
                content, wrong = await self._tool(call)
            else:
                content = told(f"not called: an answer may have {CALLS_PER_ANSWER} tool calls")
                wrong = True
            self._errors += wrong
            self._messages.append(tool_message(call, content))

    async def _tool(self, call: ToolCall) -> tuple[Any, bool]:
        """The model's answer to one call, and whether the call was a mistake."""
        tool = self._tools.get(call.name)
        if len(call.arguments) > ARGUMENTS_CHARS:
            return told(f"the arguments have more than {ARGUMENTS_CHARS} characters"), True
        if tool is None:
            tools = ", ".join(self._tools)
            hint = did_you_mean(call.name, self._tools, 1)
            return told(
                f"there is no tool {call.name[:80]!r}{hint} (tools: {tools or 'none'})"
            ), True
        try:
            arguments = tool.read(call.parsed())
        except (WrongArguments, ValueError) as error:
            return told(str(error)), True
        return await self._called(tool, arguments)

    async def _called(self, tool: Tool, arguments: Mapping[str, Any]) -> tuple[Any, bool]:
        late = self._rollout.late
        if late.is_set():
            return told(f"{tool.name} was not called: the time of the rollout is over"), True
        timeout_s = min(self._options.tool_timeout_s, late.left_s())
        method = functools.partial(getattr(self._made, tool.name), **arguments)
        self._rollout.note.add(tool=tool.name)
        about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": tool.name}
        with self._rollout._trace.span(f"execute_tool {tool.name}", about) as span:
            ended = await self._methods.call(method, then=content_of, timeout_s=timeout_s)
            if span is not None and ended.error is not None:
                span.tell({"error.type": type(ended.error).__name__})
        self._rollout.note.add(tool=None)
        error = ended.error
        if error is None:
            return ended.value, False
        if isinstance(error, TookTooLong) and late.is_set():
            return told(f"{tool.name} was ended: the time of the rollout is over"), True
        if isinstance(error, TookTooLong):
            return told(f"{tool.name} took longer than {timeout_s:g} s"), True
        if isinstance(error, StillRunning):
            return told(f"{tool.name} was not called: an earlier call has not ended yet"), True
        text = foreign.text(error) or ""
        is_ours = isinstance(error, EnvServeError) or not isinstance(error, Exception)
        if is_ours or any(sign in text for sign in _WRONG_CONTEXT):
            raise error  # an exit, say: no matter between the tool and the model
        return told(text or type(error).__name__), True

    def _unfinished(self, stop: str) -> dict[str, Any]:
        """The reward of a rollout that was not finished."""
        reward = self._options.reward_unfinished
        if reward is not None:
            return {"reward": float(reward)}
        what = "game" if isinstance(self._made, Game) else "rollout"
        why = _WHY_UNFINISHED.get(stop, stop).format(max_turns=self._options.max_turns)
        return {"no_reward": f"the {what} was not finished: {why} (see reward_unfinished)"}

    async def _reward(self) -> dict[str, Any]:
        if not hasattr(self._made, "get_reward"):
            return {"no_reward": f"{self._name} has no get_reward()"}
        try:
            limits = limits_of(self._made.get_reward)
            if limits is None:
                value = await self._value(self._made.get_reward)
            else:
                value = await self._value_apart(self._made.get_reward, limits)
        except EnvServeError:
            raise  # of this package: it says itself whose fault it is
        except Exception as error:  # whatever the author's code raises
            raise ScorerFailed("get_reward()", error) from error
        scores = scores_of(value)
        if scores is not None:
            return scores
        shown = "None" if value is None else f"a {type(value).__name__}, which is not a number"
        return {"no_reward": f"get_reward() returned {shown}"}

    async def _own(self, name: str, then: Then = same) -> Any:
        """The value of an optional method of the class, or what ``then`` makes of it; None
        without the method."""
        if not hasattr(self._made, name):
            return None
        return await self._value(getattr(self._made, name), then)

    async def _value(self, method: Callable[[], Any], then: Then = same) -> Any:
        """The value of a reserved method, or what ``then`` makes of it; raises what it
        raises.  It waits for a tool that is overdue."""
        await self._methods.settle()
        return (await self._methods.call(method, then=then)).unwrap()

    async def _value_apart(self, method: Any, limits: ApartLimits) -> Any:
        """The value of a method that is marked ``@apart``; raises what it raises."""
        call = await self._value(functools.partial(_call_of, self._made, method, limits))
        return await self._rollout._apart(call)


def _call_of(made: Any, method: Any, limits: ApartLimits) -> ApartCall:
    """A call of a method apart, whose object has neither rollout nor sandbox there."""
    found = {name: getattr(made, name, None) for name in ("rollout", "sandbox")}
    given = {name: each for name, each in found.items() if isinstance(each, (Rollout, Sandbox))}
    try:
        for name in given:
            setattr(made, name, None)
        return call_of_method(method, limits)
    finally:
        for name, each in given.items():
            setattr(made, name, each)


def _content(value: Any) -> Any:
    return None if value is None else content_of(value)


def _asked(given: Any) -> Mapping[str, Any]:
    """The input as arguments: a text is a prompt, nothing is none."""
    if given is None:
        return {}
    if isinstance(given, str):
        return {"prompt": given}
    if isinstance(given, Mapping) and all(isinstance(key, str) for key in given):
        return given
    raise TypeError(
        "an input is a mapping, passed to reset() by name, or the prompt as text, "
        f"not {type(given).__name__}"
    )


def _tool_name(schema: Any) -> str | None:
    """The name of a tool as chat completions have it; None if it is none."""
    function = schema.get("function") if isinstance(schema, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else None


def _given(reset: Any, asked: Mapping[str, Any], *, of_row: bool = False) -> dict[str, Any]:
    """The input for ``reset``; without the prompt, and NeMo Gym's own fields, if it takes none
    of that name.  Of a row, whose fields are for others, too, it has those that ``reset``
    takes."""
    try:
        signature = inspect.signature(reset)
    except (TypeError, ValueError):
        return dict(asked)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    takes_all = inspect.Parameter.VAR_KEYWORD in kinds
    given = {
        name: value
        for name, value in asked.items()
        if takes_all
        or not (of_row or name == "prompt" or name.startswith("_ng_"))
        or name in signature.parameters
    }
    try:
        signature.bind(**given)
    except TypeError as error:
        raise TypeError(f"the input does not fit reset(): {error}") from None
    return given


def _script(turns: Any) -> Iterator[str] | None:
    """The environment's own answers, turn by turn; None if it has none.  Those of an iterator
    are made when they are asked for."""
    if isinstance(turns, str | Mapping):
        turns = [turns]
    if isinstance(turns, list | tuple):
        return iter([*map(_written, turns)])
    return None if turns is None else map(_written, turns)


def _written(turn: Any) -> str:
    calls = [turn] if isinstance(turn, (str, Mapping)) else turn
    return "".join(
        each if isinstance(each, str) else written_call(each["name"], each["arguments"])
        for each in calls
    )
