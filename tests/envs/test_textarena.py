"""The adapter for textarena, with the library itself."""

import random
import re
import sys

import pytest

from tests.envs.scripted import Scripted, one, running
from trio_envserve.core.errors import ConfigError
from trio_envserve.core.values import encode
from trio_envserve.envs import load

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("textarena")


def test_without_the_library_the_extra_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "textarena"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(ConfigError, match=r'pip install "trio-envserve\[textarena\]"'):
        load("textarena:TicTacToe-v0")


def winner(moves):
    """Who has three in a row after moves (player, cell); None for a draw."""
    cells = dict.fromkeys(range(9), -1)
    for player, cell in moves:
        cells[cell] = player
        if any(all(cells[each] == player for each in line) for line in LINES):
            return player
    return None


def cells_in(messages):
    """What the model can see of both players' moves."""
    text = "\n".join(str(message["content"]) for message in messages if message["role"] == "user")
    placed = re.findall(r"Player (\d) placed their symbol \(.\) in cell (\d)", text)
    return [(int(player), int(cell)) for player, cell in placed]


@pytest.mark.parametrize("player", [0, 1])
async def test_a_hundred_games_are_rewarded_as_they_went(library, player):
    choose = random.Random(8)
    mine: list[int] = []

    def move(messages):
        taken = {cell for _, cell in cells_in(messages)} | set(mine)
        mine.append(choose.choice([cell for cell in range(9) if cell not in taken]))
        return f"<think>Not [0] again.</think> I take [{mine[-1]}]."

    rewards = []
    async with running("textarena:TicTacToe-v0", Scripted([move]), {"player": player}) as run:
        for seed in range(50):
            mine.clear()
            result = await run({"seed": seed}, "prompt", "done", "rewards", "turns", "info")
            assert result["state"]["done"]
            theirs = [
                cell
                for who, cell in cells_in(result["state"]["prompt"] + result["completion"])
                if who != player
            ]
            # What was not shown any more is the other's last move, if it ended the game.
            ours = [(player, cell) for cell in mine]
            others = [(1 - player, cell) for cell in theirs]
            known = [*ours, *others]
            expected = {1: 1.0, -1: -1.0, 0: 0.0}[result["state"]["rewards"][player]]
            assert result["reward"] == expected
            if result["reward"] == 1.0:
                assert winner(interleaved(ours, others, player)) == player
            elif result["reward"] == -1.0:
                free = set(range(9)) - {cell for _, cell in known}
                assert winner(interleaved(ours, others, player)) is None
                last = [winner([*interleaved(ours, others, player), (1 - player, c)]) for c in free]
                assert 1 - player in last
            else:
                assert winner(interleaved(ours, others, player)) is None
            rewards.append(result["reward"])
            encode(result)
    assert {1.0, -1.0} <= set(rewards)


def interleaved(ours, others, player):
    first, second = (ours, others) if player == 0 else (others, ours)
    pairs = [move for pair in zip(first, second, strict=False) for move in pair]
    return pairs + first[len(second) :] + second[len(first) :]


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


async def test_a_game_that_has_not_ended_has_no_reward(library):
    result, _ = await one("textarena:TicTacToe-v0", ["[0]"], {"opponent": ["[1]"]}, max_turns=1)
    assert "reward" not in result
    assert result["no_reward"].startswith("the game was not finished: max_turns (1) answers were")
    assert result["stop"] == "max_turns"


@pytest.mark.parametrize("game", ["ConnectFour-v0", "KuhnPoker-v0", "GuessTheNumber-v0",
                                  "TowerOfHanoi-v0", "TicTacToe-v0-raw"])  # fmt: skip
async def test_other_games_can_be_played_to_an_end(library, game):
    async with running(f"textarena:{game}", args={"max_turns": 40}) as run:
        result = await run({"seed": 1}, "done", "turns", endpoint="oracle")
    assert result["state"]["turns"] >= 1
    assert ("reward" in result) == result["state"]["done"]
    encode(result)


async def test_offline_the_oracle_follows_the_inputs_actions(library):
    async with running("textarena:TicTacToe-v0") as run:
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
    assert cells_in(result["completion"]) == [(0, 0), (1, 8), (0, 1), (1, 7)]


@pytest.mark.parametrize(
    ("spec", "args", "said"),
    [
        ("textarena:TicTacTo-v0", {}, "has no game 'TicTacTo-v0'; did you mean 'TicTacToe-v0'"),
        ("textarena:TicTacToe-v0", {"player": 2}, "player must be one of 0 to 1, not 2"),
        ("textarena:TicTacToe-v0", {"opponent": "clever"}, 'opponent must be "random", a list'),
        ("textarena:TicTacToe-v0", {"max_turns": 0}, "max_turns must be an integer >= 1"),
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
