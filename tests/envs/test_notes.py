"""Notes as an environment writes them, and what is added to them by itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.envs.scripted import a_rollout
from trio_envserve.core import notes
from trio_envserve.envs.interface import Rollout
from trio_envserve.envs.notes import RolloutNotes
from trio_envserve.models.interface import BlockingModel, Completion


class Counting(BlockingModel):
    """A model that counts, on a loop and in a thread."""

    async def complete(self, messages: Any, **how: Any) -> Completion:
        return self.complete_sync(messages)

    def complete_sync(self, messages: Any, **how: Any) -> Completion:
        return Completion(text="5", prompt_tokens=30, completion_tokens=4)

    async def aclose(self) -> None:
        pass


def noting(**always: notes.Plain) -> tuple[Rollout, list[notes.Note]]:
    """A rollout, and the notes that it keeps."""
    kept: list[notes.Note] = []
    write = RolloutNotes(lambda note: kept.append(notes.decode(note)), **always)
    return a_rollout(model=Counting(), note=write), kept


async def test_model_calls_are_noted_by_themselves():
    rollout, kept = noting()
    await rollout.ask([])
    rollout.ask_sync([])
    assert kept == [{"turn": 1, "tokens": 34}, {"turn": 2, "tokens": 68}]


async def test_what_the_code_says_itself_stays_when_more_is_added():
    rollout, kept = noting(attempt=2)
    rollout.note(text="thinks", turn="of five")
    await rollout.ask([])
    rollout.note(text="done")
    assert kept == [
        {"attempt": 2},
        {"attempt": 2, "text": "thinks", "turn": "of five"},
        {"attempt": 2, "text": "thinks", "turn": "of five", "tokens": 34},
        {"attempt": 2, "text": "done", "turn": 1, "tokens": 34},
    ]


def test_a_tool_is_noted_until_it_has_ended():
    rollout, kept = noting()
    rollout.note.add(tool="search")
    rollout.note.add(tool=None)
    assert kept == [{"tool": "search"}, {}]


def test_note_that_cannot_be_is_forgotten_and_only_the_codes_own_is_refused():
    rollout, kept = noting()
    with pytest.raises(TypeError):
        rollout.note(text=b"bytes")  # type: ignore[arg-type]  # as a caller may
    rollout.note.add(turn=object())  # type: ignore[arg-type]  # as a model may count
    rollout.note.add(turn=1)
    assert kept == [{"turn": 1}]


def test_where_nobody_keeps_notes_mistakes_show_all_the_same():
    rollout = a_rollout()
    assert not rollout.cancelled()
    rollout.note(turn=1)
    rollout.note.add(tool="search")
    with pytest.raises(TypeError):
        rollout.note(turn=[1])  # type: ignore[arg-type]  # as a caller may
