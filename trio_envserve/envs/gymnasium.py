"""Environments of gymnasium, played in text: ``gymnasium:ID``.

Theory of operation
-------------------
An episode is a conversation.  The first message has what the library's documentation
says of the actions, and the first observation; each answer is an action, and the next
message has what came of it.  It is built as a class of :mod:`.classes`: an object for
each rollout, whose code runs in a thread.

An observation becomes text by what the environment draws in text (``render_mode="ansi"``, if it has
that), or else as JSON.  An answer becomes an action by its last number, for a discrete action
space; else by the last JSON array in it.  Text between ``<action>`` and ``</action>`` goes first.
``to_text`` and ``to_action`` replace both.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, final

from ..core.errors import ConfigError
from .classes import ClassEnvironment
from .conversation import tagged
from .specs import attribute, library, made
from .tool_loop import Game, LoopOptions

MAX_TURNS = 100
"""Answers in an episode of an environment without a limit of its own."""

_INTEGER = re.compile(r"(?<![\w.])-?\d{1,18}(?![\w]|\.\d)")
_ARRAY = re.compile(r"\[[^\[\]]*\]")
_MARKED = re.compile(r"\x1b\[[0-9;]*m(.+?)\x1b\[0m", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

_NUMBERS = 1_000
"""Most numbers of an observation that is shown as JSON."""

_MANUAL_CHARS = 2_000


def make(
    environment_id: str,
    *,
    to_text: str | Callable[[Any, Any], str] | None = None,
    to_action: str | Callable[[str, Any], Any] | None = None,
    max_turns: int | None = None,
    max_invalid: int = 3,
    system: str = "",
    reward_unfinished: float | Literal["ask"] | None = None,
    rerun: bool = True,
    **options: Any,
) -> ClassEnvironment:
    """The environment for one id, or for ``package.module:ID``.

    ``to_text(observation, env)`` makes the text of an observation, ``to_action(text,
    env)`` an action, with ``ValueError`` for a text that is none; both may be named as
    ``package.module:function``.  An episode ends after ``max_turns`` answers (by default as
    many as the environment's own limit of steps and ``max_invalid`` allow, or 100), or with
    more than ``max_invalid`` answers that are no actions.  ``options`` go to
    ``gymnasium.make``.  ``rerun`` is True by default: an episode changes nothing but
    itself.

    An input is ``{"seed": int, "options": {...}, "actions": [...]}``, all optional: seed
    and options of the reset, and the answers of the model ``oracle``, which else plays at
    random.  A result has the sum of the rewards as ``reward``, and in ``state`` also
    ``steps``, ``rewards``, ``invalid``, ``terminated`` and ``truncated``.  ``stop`` is
    ``answer``, or ``truncated`` if the environment's own limit ended the episode.  One that
    was not finished has no reward but ``reward_unfinished`` (``"ask"``: the sum so far), and
    ``stop`` is ``max_turns`` or ``max_invalid``.

    Raises :class:`ConfigError` for an unknown id, a wrong option, or if the library is not
    installed.
    """
    gymnasium = library("gymnasium")
    rules = {"to_text": _function(to_text), "to_action": _function(to_action)}
    if type(max_invalid) is not int or max_invalid < 0:
        raise ConfigError(f"max_invalid must be an integer >= 0, not {max_invalid!r}")
    if "render_mode" not in options:
        spec = made(f"gymnasium:{environment_id}", gymnasium.make, environment_id, **options)
        modes = spec.metadata.get("render_modes") or ()
        spec.close()
        options = {**options, **({"render_mode": "ansi"} if "ansi" in modes else {})}
    env = made(f"gymnasium:{environment_id}", gymnasium.make, environment_id, **options)
    limit = getattr(env.spec, "max_episode_steps", None)
    env.close()
    if max_turns is None:
        max_turns = limit + max_invalid if isinstance(limit, int) else MAX_TURNS
    args = {
        "make": lambda: gymnasium.make(environment_id, **options),
        "max_invalid": max_invalid,
        **rules,
    }
    loop = LoopOptions(max_turns=max_turns, system=system, reward_unfinished=reward_unfinished)
    return ClassEnvironment(Episode, f"gymnasium:{environment_id}", args, loop, rerun=rerun)


@final
class Episode(Game):
    """One episode; see :func:`make`."""

    def __init__(
        self,
        make: Callable[[], Any],
        to_text: Callable[[Any, Any], str] | None,
        to_action: Callable[[str, Any], Any] | None,
        max_invalid: int,
    ) -> None:
        self._env = make()
        self._to_text = to_text or text_of
        self._to_action = to_action or action_of
        self._max_invalid = max_invalid
        self._rewards: list[float] = []
        self._invalid = 0
        self._terminated = self._truncated = False

    def reset(
        self,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        actions: list[Any] | None = None,
    ) -> str:
        """Begin, and say what is asked for."""
        self._script = actions
        observation, _ = self._env.reset(seed=seed, options=options)
        self._env.action_space.seed(seed)
        return f"{_manual(self._env)}\n\n{self._to_text(observation, self._env)}"

    def next_message(self, text: str) -> str | None:
        """Take an action, and say what came of it."""
        try:
            action = self._to_action(text, self._env)
            if not self._env.action_space.contains(action):
                raise ValueError(f"{action!r} is not in {self._env.action_space}")
        except ValueError as error:
            self._invalid += 1
            if self._invalid > self._max_invalid:
                return None
            return f"This is no action: {error}. {_format_of(self._env)}"
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self._rewards.append(float(reward))
        self._terminated, self._truncated = bool(terminated), bool(truncated)
        if self._terminated or self._truncated:
            return None
        return self._to_text(observation, self._env)

    def get_reward(self) -> float:
        """The sum of the rewards."""
        return sum(self._rewards, start=0.0)

    def _ended(self) -> str:
        if self._terminated or self._truncated:
            return "answer" if self._terminated else "truncated"
        return "max_invalid" if self._invalid > self._max_invalid else ""

    @staticmethod
    def _answer(action: Any) -> str:
        if isinstance(action, str):
            return action
        return f"<action>{json.dumps(_plain(action, [_NUMBERS]))}</action>"

    def _at_random(self) -> str:
        return self._answer(self._env.action_space.sample())

    def rollout_state(self) -> Mapping[str, Any]:
        """The additions to the result's state."""
        return {
            "steps": len(self._rewards),
            "rewards": self._rewards,
            "invalid": self._invalid,
            "terminated": self._terminated,
            "truncated": self._truncated,
        }

    def close(self) -> None:
        """Close the library's environment."""
        self._env.close()


def text_of(observation: Any, env: Any) -> str:
    """An observation as text: drawn by the environment, or as JSON."""
    if env.render_mode == "ansi":
        drawn = env.render()
        if isinstance(drawn, str):
            # The place that it paints in a colour is marked.
            return _ESCAPE.sub("", _MARKED.sub(r"[\1]", drawn)).strip("\n")
    text = json.dumps(_plain(observation, [_NUMBERS]))
    return f"Observation: {text}"


def action_of(text: str, env: Any) -> Any:
    """The action in an answer.  Raises ``ValueError``."""
    from gymnasium import spaces

    action = (tagged(text, "action") or [text])[-1]
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        numbers = _INTEGER.findall(action)
        if not numbers:
            raise ValueError("it has no number")
        return int(numbers[-1])
    arrays = _ARRAY.findall(action)
    if not arrays:
        raise ValueError("it has no array")
    try:
        values = json.loads(arrays[-1])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its array is not JSON: {error}") from None
    import numpy

    try:
        return numpy.asarray(values, dtype=space.dtype).reshape(space.shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _plain(value: Any, left: list[int]) -> Any:
    """An observation as JSON; ``left`` counts its numbers down."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, left) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, left) for item in value]
    left[0] -= getattr(value, "size", 1)
    if left[0] < 0:
        raise ValueError(
            f"the observation has more than {_NUMBERS} numbers: say with the argument to_text "
            "what the model is to see of it"
        )
    return value.tolist() if hasattr(value, "tolist") else value


def _format_of(env: Any) -> str:
    space = env.action_space
    what = "a number" if hasattr(space, "n") else "a JSON array"
    return f"Answer with one action, {what} of {space}, between <action> and </action>."


def _manual(env: Any) -> str:
    """The environment's documentation of its actions and observations."""
    text = inspect.getdoc(env.unwrapped) or ""
    sections = re.split(r"^## +(.*)$", text, flags=re.MULTILINE)
    titles = dict(zip(sections[1::2], sections[2::2], strict=True))
    about = [sections[0].strip()]
    about += [
        f"{title}:\n{titles[title].strip()}"
        for title in ("Action Space", "Observation Space", "Rewards")
        if title in titles
    ]
    manual = "\n\n".join(each for each in about if each)[:_MANUAL_CHARS]
    return f"{manual}\n\n{_format_of(env)}".strip()


def _function(named: Any) -> Any:
    found = attribute(named) if isinstance(named, str) else named
    if found is not None and not callable(found):
        raise ConfigError(f"{named} must name a function, not {type(found).__name__}")
    return found
