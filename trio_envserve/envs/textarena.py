"""Games of textarena: ``textarena:ID``.

Theory of operation
-------------------
The model is one player, and other players are scripted or play at random.  Observations and moves
are text: an answer goes to the game as it is, without the text between ``<think>`` and
``</think>``.  Of what the game shows, the model gets what is new since its last turn.

A random player picks one of the moves that stand in square brackets in what it was shown
last, or else in what it was shown at first; it does not repeat one that the game has
refused.  Some games show all legal moves so, others only examples.

It is built as a class of :mod:`.classes`: an object for each rollout, whose code runs in a
thread.  The library seeds Python's one random generator, so no two games are begun at
once.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, final

from .. import foreign
from ..core.errors import ConfigError
from ..near import did_you_mean
from .classes import ClassEnvironment
from .conversation import without
from .specs import attribute, library
from .tool_loop import Game, LoopOptions

MAX_TURNS = 100

_QUOTED = re.compile(r"'(\[[^\[\]\n]{1,40}\])'")
_BRACKETS = re.compile(r"\[(?!GAME|Player|Observation)[^\[\]\n]{1,40}\]")

_MOVES = 1_000
"""Most moves of the other players between two of the model's."""


def make(
    game: str,
    *,
    player: int = 0,
    num_players: int | None = None,
    opponent: str | list[str] | Callable[[str, random.Random], str] = "random",
    max_turns: int = MAX_TURNS,
    system: str = "",
    reward_unfinished: float | None = None,
    rerun: bool = True,
    **options: Any,
) -> ClassEnvironment:
    """The environment for one game.

    The model plays as ``player`` of ``num_players`` (by default two, or one where the game
    is for one).  The others are ``opponent``: ``"random"``; a list of moves, after
    which they play at random; or a function of what the player is shown and a random
    generator, which may be named as ``package.module:function``.  ``options`` go to
    ``textarena.make``.  ``rerun`` is True by default: a game changes nothing but itself.

    An input is ``{"seed": int, "player": int, "opponent": [...], "actions": [...]}``, all
    optional; ``actions`` are the answers of the model ``oracle``, which else plays at
    random.  A result has the game's reward for the player as ``reward``; if the game has not
    ended, ``reward_unfinished`` or none; ``state`` also has ``done``, ``rewards`` and ``info``.
    ``stop`` is ``max_invalid`` if wrong moves have put all players out of a game that does not
    end by that.

    Raises :class:`ConfigError` for an unknown game, a wrong option, or if the library is
    not installed.
    """
    textarena = library("textarena")
    known = textarena.envs.registration.ENV_REGISTRY
    if game not in known:
        raise ConfigError(f"textarena has no game {game!r}{did_you_mean(game, known)}")
    lock = threading.Lock()
    args = {
        "make": lambda: textarena.make(game, **options),
        "lock": lock,
        "player": player,
        "num_players": num_players or _num_players(textarena, game, options),
        "opponent": _opponent(opponent),
    }
    if type(player) is not int or not 0 <= player < args["num_players"]:
        raise ConfigError(f"player must be one of 0 to {args['num_players'] - 1}, not {player!r}")
    loop = LoopOptions(max_turns=max_turns, system=system, reward_unfinished=reward_unfinished)
    return ClassEnvironment(Match, f"textarena:{game}", args, loop, rerun=rerun)


@final
class Match(Game):
    """One game; see :func:`make`."""

    def __init__(
        self,
        make: Callable[[], Any],
        lock: threading.Lock,
        player: int,
        num_players: int,
        opponent: list[str] | Callable[[str, random.Random], str] | None,
    ) -> None:
        self._env = make()
        self._lock = lock
        self._player = player
        self._num_players = num_players
        self._opponent = opponent
        self._shown: dict[int, str] = {}
        self._new: dict[int, str] = {}
        self._refused: dict[int, set[str]] = {}
        self._scripted: list[str] = []
        self._done = self._stuck = False
        self._rewards: Any = None
        self._info: Any = None

    def reset(
        self,
        seed: int | None = None,
        player: int | None = None,
        opponent: list[str] | None = None,
        actions: list[str] | None = None,
    ) -> str:
        """Begin, and let the others move until it is the model's turn."""
        if player is not None:
            if not 0 <= player < self._num_players:
                raise ValueError(f"player must be one of 0 to {self._num_players - 1}")
            self._player = player
        moves = opponent if opponent is not None else self._opponent
        self._scripted = list(moves) if isinstance(moves, list) else []
        self._random = random.Random(seed)
        self._script = actions
        with self._lock:
            self._env.reset(num_players=self._num_players, seed=seed)
        _guard(self._env.state, self._players())
        return self._until_our_turn() or "The game is over."

    def next_message(self, text: str) -> str | None:
        """Make the model's move, and those of the others."""
        if self._done:
            return None  # it was over before the model's first move
        self._step(without(text, "think").strip())
        return self._until_our_turn()

    def get_reward(self) -> Any:
        """The game's reward for the player; None if it has not ended."""
        return None if self._rewards is None else self._rewards.get(self._player)

    def _ended(self) -> str:
        return "answer" if self._done else "max_invalid" if self._stuck else ""

    def rollout_state(self) -> Mapping[str, Any]:
        """The additions to the result's state."""
        rewards = None if self._rewards is None else [*map(self._rewards.get, self._players())]
        return {"done": self._done, "rewards": rewards, "info": self._info}

    def _players(self) -> range:
        return range(self._num_players)

    def _step(self, move: str) -> None:
        try:
            self._done, _ = self._env.step(action=move)
        except _AllOut:
            self._stuck = True
        if self._done:
            self._rewards, info = self._env.close()
            self._info = {str(key): value for key, value in (info or {}).items()}

    def _until_our_turn(self) -> str | None:
        """The observation that is new to the model; None if the game is over, or stuck."""
        for _ in range(_MOVES):
            if self._done or self._stuck:
                return None
            player = self._look()
            if player == self._player:
                return self._new[player]
            self._step(self._move_of(player))
        raise RuntimeError(f"the other players have made {_MOVES} moves, one after the other")

    def _look(self) -> int:
        """The player whose turn it is; new observations of that player are noted."""
        player, shown = self._env.get_observation()
        text = shown if isinstance(shown, str) else "\n".join(str(item[1]) for item in shown)
        before = self._shown.get(player, "")
        self._shown[player] = text
        self._new[player] = text.removeprefix(before).strip("\n") if before else text.strip("\n")
        return int(player)

    def _move_of(self, player: int) -> str:
        if self._scripted:
            return self._scripted.pop(0)
        if callable(self._opponent):
            return str(self._opponent(self._shown[player], self._random))
        return self._at_random(player)

    def _at_random(self, player: int | None = None) -> str:
        player = self._player if player is None else player
        new = self._new.get(player, "")  # none, if it was over before the player's first move
        refused = self._refused.setdefault(player, set())
        if "invalid move" not in new:
            refused.clear()
        for text in (new, self._shown.get(player, "")):
            moves = [move for move in _moves_in(text) if move not in refused]
            if moves:
                move = self._random.choice(moves)
                refused.add(move)
                return move
        return "[0]"


class _AllOut(Exception):
    """All players are out for wrong moves, so nobody can have the next turn."""


def _guard(state: Any, players: range) -> None:
    """Raise _AllOut where the library would look for a player who is not out, for ever."""
    step = state.step

    def guarded(rotate_player: bool = True) -> Any:
        looks = rotate_player and not (state.made_invalid_move or state.done)
        if looks and all(player in state.elimination_order for player in players):
            raise _AllOut
        return step(rotate_player)

    if hasattr(state, "elimination_order"):
        state.step = guarded


def _moves_in(text: str) -> list[str]:
    """The moves that a text shows in its last line that has any."""
    for pattern in (_QUOTED, _BRACKETS):
        for line in reversed(text.splitlines()):
            moves: list[str] = pattern.findall(line)
            if moves:
                return moves
    return []


def _opponent(given: Any) -> Any:
    if given == "random":
        return None
    if isinstance(given, list) and all(isinstance(each, str) for each in given):
        return given
    found = attribute(given) if isinstance(given, str) and ":" in given else given
    if not callable(found):
        raise ConfigError(
            'opponent must be "random", a list of moves, or the name of a function '
            f"(package.module:function), not {given!r}"
        )
    return found


def _num_players(textarena: Any, game: str, options: Mapping[str, Any]) -> int:
    """Two if the game takes that many, else one."""
    problems = []
    # Games for two, or for any number, may take one without a word; those for one refuse two.
    for count in (2, 1):
        # Games say by an exception of any kind that they want another number.
        tried = foreign.call(_try, textarena, game, options, count)
        if tried.error is None:
            return count
        problems.append(f"{count}: {foreign.text(tried.error)}")
    raise ConfigError(
        f"textarena:{game} cannot be begun; give it the argument num_players "
        f"(with {', with '.join(problems)})"
    )


def _try(textarena: Any, game: str, options: Mapping[str, Any], count: int) -> None:
    state = random.getstate()
    try:
        env = textarena.make(game, **options)
        env.reset(num_players=count, seed=0)
        env.get_observation()
    finally:
        random.setstate(state)
