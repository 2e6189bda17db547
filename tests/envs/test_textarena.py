"""The adapter for textarena, with the library itself: every game, by the adapter and by the
library's own loop, with the same moves; and what the adapter itself says."""

from __future__ import annotations

import random
import re
import sys
from typing import Any

import pytest

from tests.envs.scripted import one, running
from trio_envserve.core.errors import ConfigError
from trio_envserve.core.values import encode
from trio_envserve.envs import load

PLAYERS = {
    "2048": 1, "Alquerque": 2, "Bandit": 1, "Battleship": 2, "Blackjack": 1, "Breakthrough": 2,
    "Briscola": 2, "Checkers": 2, "Chess": 2, "Chopsticks": 2, "ColonelBlotto": 2,
    "ConnectFour": 2, "Countdown": 1, "Crosswords": 1, "Crusade": 2, "Cryptarithm": 1,
    "FifteenPuzzle": 1, "FrozenLake": 1, "GameOfPureStrategy": 2, "GermanWhist": 2, "Golf": 2,
    "GuessTheNumber": 1, "HighSociety": 2, "IndianPoker": 2, "IteratedMatchingPennies": 2,
    "IteratedPrisonersDilemma": 2, "IteratedRockPaperScissors": 2, "IteratedStagHunt": 2,
    "IteratedTwoThirdsAverage": 2, "IteratedUltimatumGame": 2, "KuhnPoker": 2, "LiarsDice": 2,
    "LightsOut": 1, "LinesOfAction": 2, "LogicPuzzle": 1, "MarketEntryGame": 2, "Mastermind": 1,
    "MemoryGame": 2, "Minesweeper": 1, "NewRecruit": 2, "Nim": 2, "Othello": 2, "PegJump": 1,
    "PigDice": 2, "Poker": 2, "PublicGoodsGame": 2, "QuantumTicTacToe": 2,
    "ReverseTicTacToe": 2, "RushHour": 1, "SantoriniBaseFixed": 2, "SecretMafia": 6,
    "Secretary": 1, "Set": 1, "SettlersOfCatan": 4, "SimpleBlindAuction": 2,
    "SimpleNegotiation": 2, "SimpleTak": 2, "Slitherlink": 1, "Snake": 2, "Sokoban": 1,
    "SpiteAndMalice": 2, "Stratego": 2, "Sudoku": 1, "Surround": 2, "Taboo": 4, "Tak": 2,
    "ThreeCardMonte": 1, "ThreePlayerGOPS": 3, "ThreePlayerIPD": 3, "ThreePlayerTicTacToe": 3,
    "TicTacToe": 2, "TowerOfHanoi": 1, "TruthAndDeception": 2, "TwoDollar": 2,
    "UltimateTexasHoldem": 1, "UltimateTicTacToe": 2, "WildTicTacToe": 2,
}  # fmt: skip
"""The games that run without network, models and further data, and how many play each."""

WORDS = "words of NLTK, which it downloads"
JUDGE = "a model that plays along, and its key"
LOST = "files that the library's package does not have"
NEEDS = {
    "BabyAiText": "the package babyai_text", "CharacterConclave": "a method that it calls rightly",
    "Codenames": WORDS, "Debate": JUDGE, "DontSayIt": WORDS, "GuessWho": JUDGE, "Hangman": WORDS,
    "Klondike": "syntax of Python", "LetterAuction": WORDS, "ScenarioPlanning": JUDGE,
    "ScorableGames": LOST, "SpellingBee": WORDS, "TwentyQuestions": JUDGE, "UsedCar": LOST,
    "UsedCarNegotiation": LOST, "WordChains": WORDS, "WordLadder": WORDS, "WordSearch": WORDS,
    "Wordle": WORDS,
}  # fmt: skip
"""The others, and what each would need."""

SINCE_3_12 = {
    "Checkers", "Chess", "IteratedStagHunt", "ReverseTicTacToe", "UltimateTexasHoldem",
}  # fmt: skip
"""Their source is no Python before."""

A_FEW = ("Blackjack", "KuhnPoker", "Nim", "QuantumTicTacToe", "SantoriniBaseFixed", "SecretMafia",
         "TicTacToe", "TowerOfHanoi")  # fmt: skip
SEEDS = range(1, 6)
MOST_MOVES = 600
"""Far more than these games have at random."""

_BRACKETS = re.compile(r"\[(?!GAME|Player)[^\[\]\n]{1,40}\]")
KNOWN_MOVES = {"MarketEntryGame": ["[E]", "[S]"], "PublicGoodsGame": ["[0]", "[3]"]}
"""Of games whose own code never ends once all players have made wrong moves."""


@pytest.fixture
def library():
    return pytest.importorskip("textarena")


def named(library: Any, game: str) -> str:
    """The game's first name in the registry."""
    if game in SINCE_3_12 and sys.version_info < (3, 12):
        pytest.skip(f"{game} is no Python before 3.12")
    known = library.envs.registration.ENV_REGISTRY
    names: list[str] = sorted(known)
    return next(each for each in names if each.partition("-v0")[0] == game)


def test_table_has_all_games_of_the_library(library):
    known = {each.partition("-v0")[0] for each in library.envs.registration.ENV_REGISTRY}
    assert known == PLAYERS.keys() | NEEDS.keys()
    assert PLAYERS.keys().isdisjoint(NEEDS)


def by_the_library(
    library: Any, game: str, seed: int, model: int
) -> tuple[dict[str, Any], Any] | None:
    """The input that repeats a game with random moves, and all rewards, which are None if it was
    left at a turn of the model's.  None if it does not end."""
    env = library.make(named(library, game))
    env.reset(num_players=PLAYERS[game], seed=seed)
    chance = random.Random(seed)
    moves: dict[bool, list[str]] = {True: [], False: []}
    done, most = False, chance.choice([20, MOST_MOVES])
    while not done:
        player, shown = env.get_observation()
        if player == model and len(moves[True]) >= most:
            return {"seed": seed, "actions": moves[True], "opponent": moves[False]}, None
        text = shown if isinstance(shown, str) else "\n".join(str(each[1]) for each in shown)
        move = chance.choice(KNOWN_MOVES[game]) if game in KNOWN_MOVES else said(text, chance)
        moves[player == model].append(move)
        done, _ = env.step(action=move)
        if len(moves[False]) > 2 * MOST_MOVES:
            return None  # its rules leave a player without a move
    rewards, _ = env.close()
    return {"seed": seed, "actions": moves[True], "opponent": moves[False]}, rewards


def said(text: str, chance: random.Random) -> str:
    """One of the moves that a text shows, or with other numbers, or none."""
    shown = _BRACKETS.findall(text)[-60:]
    if not shown or chance.random() < 0.05:
        return "I don't know"
    move: str = chance.choice(shown)
    if chance.random() < 0.3:
        return re.sub(r"\d+", lambda _: str(chance.randrange(10)), move)
    return move


def args_of(game: str, given: Any, model: int) -> dict[str, Any]:
    args = {"player": model, "max_turns": max(len(given["actions"]), 1)}
    # One or two are found by the adapter.
    return args | ({"num_players": PLAYERS[game]} if PLAYERS[game] > 2 else {})


def check(game: str, result: Any, rewards: Any, model: int) -> None:
    """The result has the rewards of the library's own loop."""
    all_of_them = None if rewards is None else [rewards.get(each) for each in range(PLAYERS[game])]
    assert result["state"]["rewards"] == all_of_them
    assert result["state"]["done"] == (rewards is not None)
    own = None if rewards is None else rewards.get(model)
    if isinstance(own, int | float):
        assert result["reward"] == own
    else:  # some give a text for a wrong move
        assert "reward" not in result
        why = "get_reward() returned" if rewards else "the game was not finished"
        assert result["no_reward"].startswith(why)


EACH = [pytest.param(game, marks=[] if game in A_FEW else pytest.mark.slow) for game in PLAYERS]


@pytest.mark.parametrize("game", EACH)
async def test_game_has_the_rewards_of_the_librarys_own_loop(library, game):
    ended = 0
    for seed in SEEDS:
        model = seed % PLAYERS[game]
        played = by_the_library(library, game, seed, model)
        if played is None:
            continue
        ended += 1
        given, rewards = played
        args = args_of(game, given, model)
        async with running(f"textarena:{named(library, game)}", args=args) as run:
            result = await run(given, "done", "rewards", endpoint="oracle")
        check(game, result, rewards, model)
        encode(result)
    assert ended


@pytest.mark.parametrize("game", KNOWN_MOVES)
async def test_game_whose_players_are_all_out_for_wrong_moves_never_returned(library, game):
    args = {"opponent": ["{I wait}"] * 3 + ["no move"] * 100}
    said = ["{I wait}"] * 3 + ["no move"] * 3 + ["[0] [S]"]
    result, _ = await one(f"textarena:{game}-v0", said, {}, "done", **args)
    assert (result["stop"], result["state"]["done"]) == ("max_invalid", False)
    assert "too many answers were no moves" in result["no_reward"]


async def test_player_that_never_moves_ends_the_rollout(library):
    """10,000 of its moves were waited for, each of which made what is shown longer."""
    given = {"seed": 1, "opponent": ["I don't know"] * 5_000}
    with pytest.raises(Exception, match="the other players have made 1000 moves"):
        async with running("textarena:SantoriniBaseFixed-v0", args={"player": 1}) as run:
            await run(given, endpoint="oracle")


@pytest.mark.parametrize(
    ("mine", "theirs", "reward"),
    [
        (["[0]", "[1]", "[2]"], ["[3]", "[4]"], 1.0),
        (["[0]", "[1]", "[8]"], ["[3]", "[4]", "[5]"], -1.0),
        (["[0]", "[2]", "[3]", "[7]", "[8]"], ["[1]", "[4]", "[5]", "[6]"], 0.0),
        (["no move", "still none"], [], -1.0),
        (["[0]", "[0]", "[0]"], ["[1]"], -1.0),
    ],
)
async def test_games_that_are_known_to_end_so(library, mine, theirs, reward):
    result, _ = await one("textarena:TicTacToe-v0", mine, {"opponent": theirs}, "done")
    assert (result["reward"], result["state"]["done"]) == (reward, True)


async def test_the_model_sees_what_is_new(library):
    moves = ["[0]", "[1]", "[2]"]
    _, model = await one("textarena:TicTacToe-v0", moves, {}, opponent=["[3]", "[4]"])
    first, second = model.asked[0][0]["content"], model.asked[1][-1]["content"]
    assert first.startswith("[GAME] You are Player 0 in Tic Tac Toe.")
    assert "You are Player 0" not in second
    assert "Player 1 placed their symbol (X) in cell 3." in second
    assert " O | 1 | 2 \n---+---+---\n X | 4 | 5 " in second


@pytest.mark.parametrize("form", ["", "-raw"])
async def test_offline_the_oracle_follows_the_inputs_actions(library, form):
    async with running(f"textarena:TicTacToe-v0{form}") as run:
        given = {"actions": ["[0]", "[1]", "[2]"], "opponent": ["[3]", "[4]"]}
        assert (await run(given, endpoint="oracle"))["reward"] == 1.0
        first = await run({"seed": 5}, endpoint="oracle")
        assert (await run({"seed": 5}, endpoint="oracle"))["completion"] == first["completion"]


def last_cell(shown, chance):
    return re.findall(r"'(\[\d\])'", shown.splitlines()[-1])[-1]


async def test_the_other_player_may_be_a_function(library):
    result, _ = await one(
        "textarena:TicTacToe-v0", ["[0]", "[1]", "[2]"], {},
        opponent="tests.envs.test_textarena:last_cell",
    )  # fmt: skip
    shown = "\n".join(str(message["content"]) for message in result["completion"])
    assert re.findall(r"in cell (\d)", shown) == ["0", "8", "1", "7"]


@pytest.mark.parametrize(
    ("spec", "args", "said"),
    [
        ("textarena:TicTacTo-v0", {}, "has no game 'TicTacTo-v0'; did you mean 'TicTacToe-v0'"),
        ("textarena:TicTacToe-v0", {"player": 2}, "player must be one of 0 to 1, not 2"),
        ("textarena:TicTacToe-v0", {"opponent": "clever"}, 'opponent must be "random", a list'),
        ("textarena:TicTacToe-v0", {"max_turns": 0}, "max_turns is a whole number, 1 or more"),
        ("textarena:TicTacToe-v0", {"siz": 3}, "cannot be begun; give it the argument num_players"),
    ],
)
def test_wrong_names_and_arguments(library, spec, args, said):
    with pytest.raises(ConfigError) as caught:
        load(spec, args)
    assert said in str(caught.value)


async def test_game_that_was_over_before_the_first_move_failed_its_oracle(library):
    args = {"player": 1, "opponent": ["no move", "no move"]}
    async with running("textarena:TicTacToe-v0", None, args) as run:
        result = await run({"seed": 1}, endpoint="oracle")
    assert result["reward"] == 1.0
