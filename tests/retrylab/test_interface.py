"""What a user writes with: disks, plain values, names, and the same run each time."""

from __future__ import annotations

import dataclasses
import enum
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.retrylab.small import Near, of, run_small, with_actors
from trio_envserve.retrylab import Ask, run
from trio_envserve.retrylab.plan import draw
from trio_envserve.retrylab.system import Disk, Stored
from trio_envserve.retrylab.values import plain, short

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "kv_store.py"


class Colour(enum.IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int
    label: str


@dataclasses.dataclass(frozen=True)
class Move:
    to: Point
    colours: frozenset[str]


@dataclasses.dataclass
class Loose:
    x: int


MOVE = Move(Point(1, "a b"), frozenset({"red", "blue", "green"}))


def test_a_plain_value_has_one_text():
    assert plain(MOVE) == "Move(Point(1, 'a b'), {'blue', 'green', 'red'})"
    assert plain((None, True, 2.5, b"x", Colour.RED)) == "(None, True, 2.5, b'x', Colour.RED)"


def test_a_diagram_shows_it_without_its_punctuation():
    assert short(MOVE) == "Move Point 1 a b {'blue', 'green', 'red'}"
    assert short(("add", "x", 1)) == "add x 1"
    assert short("text") == "text"
    assert short(Colour.RED) == "Colour.RED"


@pytest.mark.parametrize(
    "value", [[1], {"a": 1}, {1}, Loose(1), object(), (1, [2]), bytearray(b"x")]
)
def test_what_may_change_is_no_message(value: Any):
    with pytest.raises(TypeError, match="is not a plain, immutable value; these are: None, bool"):
        plain(value)


def test_a_disk_keeps_what_was_written_and_nothing_else():
    writes: list[str] = []
    disk = Disk(Stored(), writes.append)
    value = {"a": [1]}
    disk["x"] = value
    value["a"].append(2)
    disk["x"]["a"].append(3)
    assert disk["x"] == {"a": [1]}
    assert disk.get("y", 7) == 7
    assert (list(disk), len(disk)) == (["x"], 1)
    del disk["x"]
    assert "x" not in disk
    assert writes == ["writes x", "deletes x"]


def test_a_disk_that_is_not_written_to_keeps_it():
    def full(what: str) -> None:
        raise OSError(what)

    stored = Stored()
    stored.write("x", 1)
    disk = Disk(stored, full)
    with pytest.raises(OSError, match="writes x"):
        disk["x"] = 2
    with pytest.raises(OSError, match="deletes x"):
        del disk["x"]
    assert dict(disk) == {"x": 1}


def test_an_actor_knows_its_name_the_time_and_luck_of_its_own():
    class Knowing(Near):
        def on_ask(self, request: str, what: Any) -> None:
            self.tell(request, (self.name, self.now_s, self.random.random()))

    one, again = (run_small(protocol=with_actors(near=Knowing)) for _ in range(2))
    (name, now_s, luck), (_, _, other) = (entry.what for entry in of(one, "told"))
    assert (name, now_s) == ("near", 1.0)
    assert luck != other
    assert one.history == again.history


def test_requests_are_named_in_the_order_in_which_they_are_asked_for():
    protocol = dataclasses.replace(
        with_actors(), asks=lambda random: [Ask(3.0, "near", "c"), Ask(1.0, "near", "a")]
    )
    assert [(ask.request, ask.what) for ask in draw(protocol, 0).asks] == [
        ("near#1", "a"), ("near#2", "c")
    ]  # fmt: skip
    assert [entry.request for entry in of(run(protocol, 0), "asked")] == ["near#1", "near#2"]


def test_a_seed_is_the_same_run_each_time_traced_or_not():
    for seed in range(10):
        one, again = run(with_actors(), seed), run(with_actors(), seed, trace=True)
        assert (one.digest, one.history) == (again.digest, again.history)
        assert not one.log
        assert again.log
    assert run(with_actors(), 1).digest != run(with_actors(), 2).digest


@pytest.mark.real
def test_a_run_does_not_depend_on_the_order_of_hashes():
    program = (
        "from trio_envserve.retrylab.failure import find_target\n"
        f"store = find_target({str(EXAMPLE)!r} + ':FORGETFUL', {{}})\n"
        "print([store.run(seed).digest for seed in range(30)])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert said.pop().count(b",") == 29
