"""The (state, input) pairs of the dedup cache, and of keys, that a run has reached.

Theory of operation
-------------------
Counted from outside: :func:`count_pairs` stands before one cache's ``step``,
sees what the cell is about to be looked up by, and calls on.  The shipped code
has no trace of it.

A pair is *possible* unless its cell says that it cannot be, or the code that
feeds the table never asks for it: :data:`IMPOSSIBLE` has the reason of each.
A run that reaches one of those after all is told so by the judge: either the
reason is wrong, or the code is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from ...core.dedup import DedupCache
from ...core.key_records import Generation, GenerationState, KeyEffects
from ...core.key_table import KeyInput
from ...core.keys import Keys
from ...core.request_table import TABLE, Effects, RequestInput
from ...core.requests import RequestState, Session

Pair: TypeAlias = tuple[RequestState, RequestInput]
KeyPair: TypeAlias = tuple[GenerationState, KeyInput]


def name_of(pair: Pair | KeyPair) -> str:
    """A pair for people and for JSON."""
    state, input = pair
    return f"{state.value}: {input.value}"


_ABANDONED = "an execution whose request is finished belongs to no request any more"

_LEFT = "a request that is finished has left its key"

_GUARDED: dict[Pair, str] = {
    (
        RequestState.NOT_SEEN,
        RequestInput.DEADLINE,
    ): "a deadline begins when its request has entered",
    (
        RequestState.FINISHED,
        RequestInput.OTHER_DIGEST,
    ): "the digest is forgotten: it comes as any request",
    (RequestState.FINISHED, RequestInput.DISPATCH): "only what waits is dispatched",
    (RequestState.FINISHED, RequestInput.OUTCOME): _ABANDONED,
    (RequestState.FINISHED, RequestInput.WORKER_DEAD): _ABANDONED,
    (RequestState.FINISHED, RequestInput.DEADLINE): "a deadline looks for what is not finished",
    (RequestState.FINISHED, RequestInput.LEASE_ENDED): "a lease ends what is not finished",
    (RequestState.FINISHED, RequestInput.ANSWERED): _LEFT,
    (RequestState.FINISHED, RequestInput.TURNED_AWAY): _LEFT,
}


def _impossible() -> dict[Pair, str]:
    never = TABLE[RequestInput.DISPATCH][RequestState.NOT_SEEN]  # the cell that raises
    cells = {
        (state, input): "the table's cell says that it cannot be"
        for input, row in TABLE.items()
        for state, cell in row.items()
        if cell is never
    }
    return cells | _GUARDED


IMPOSSIBLE: dict[Pair, str] = _impossible()
"""The pairs that cannot occur, and why."""

POSSIBLE: tuple[Pair, ...] = tuple(
    (state, input)
    for input in RequestInput
    for state in RequestState
    if (state, input) not in IMPOSSIBLE
)
"""All others, input by input."""


def count_pairs(cache: DedupCache, pairs: Counter[Pair]) -> None:
    """Count every step of this cache from now on."""
    step = cache.step

    def counting(session: Session, sequence: int, input: RequestInput, arg: Any = None) -> Effects:
        entry = session.entries.get(sequence)
        state = entry.state if entry is not None else session.state(sequence)
        pairs[state, input] += 1
        return step(session, sequence, input, arg)

    cache.step = counting  # type: ignore[method-assign]  # this cache's alone, to look on


# -- keys ------------------------------------------------------------------------------

_OVER = "what is closed is found under no key: nobody waits for it, and no time runs"
_NO_WORK = "what is held has no work of its own yet"
_ANSWERED = "its work is finished, and has its outcome"
_ON_DISK = "it rested, so its work is gone"
_NOT_READ = "only what rested is read"

_WHY: dict[KeyPair, str] = {
    (GenerationState.ABSENT, KeyInput.OTHER_INPUT): "there is no input to differ from",
    (GenerationState.ABSENT, KeyInput.LEAVE): "who waits, waits for a generation",
    (GenerationState.ABSENT, KeyInput.LOSE): "who waits, waits for a generation",
    (GenerationState.ABSENT, KeyInput.DISPATCH): "work is that of a generation",
    (GenerationState.ABSENT, KeyInput.EXECUTION_ENDED): "work is that of a generation",
    (GenerationState.ABSENT, KeyInput.OUTCOME): "work is that of a generation",
    (GenerationState.ABSENT, KeyInput.NEVER_RAN): "work is that of a generation",
    (GenerationState.ABSENT, KeyInput.ORPHANED): "time runs for generations",
    (GenerationState.ABSENT, KeyInput.RETENTION_ENDED): "time runs for generations",
    (GenerationState.HELD, KeyInput.DISPATCH): _NO_WORK,
    (GenerationState.HELD, KeyInput.EXECUTION_ENDED): _NO_WORK,
    (GenerationState.WAITING, KeyInput.EXECUTION_ENDED): "nothing of it runs",
    (GenerationState.RUNNING, KeyInput.DISPATCH): "it runs already",
    (GenerationState.RUNNING, KeyInput.NEVER_RAN): "it was started",
    (GenerationState.COMPLETED, KeyInput.DISPATCH): _ANSWERED,
    (GenerationState.COMPLETED, KeyInput.OUTCOME): _ANSWERED,
    (GenerationState.COMPLETED, KeyInput.NEVER_RAN): _ANSWERED,
    **{
        (state, KeyInput.RETENTION_ENDED): "retention begins with the outcome"
        for state in (GenerationState.HELD, GenerationState.WAITING, GenerationState.RUNNING)
    },
    **{
        (GenerationState.READING, input): _ON_DISK
        for input in (
            KeyInput.DISPATCH,
            KeyInput.EXECUTION_ENDED,
            KeyInput.OUTCOME,
            KeyInput.NEVER_RAN,
        )
    },
    **{
        (state, input): _NOT_READ
        for input in (KeyInput.READ, KeyInput.UNREADABLE)
        for state in GenerationState
        if state is not GenerationState.READING
    },
    **{
        (GenerationState.CLOSED, input): _OVER
        for input in KeyInput
        if input is not KeyInput.EXECUTION_ENDED
    },
}
"""Why no input of these comes to a cell that says it cannot be."""

_HELD = "what is held has no request of its own: a server that closes answers it once it has"

_BEYOND: dict[KeyPair, str] = {
    (GenerationState.HELD, KeyInput.OUTCOME): _HELD,
    (GenerationState.HELD, KeyInput.NEVER_RAN): _HELD,
}
"""Those that the table can do and that no server comes to."""

IMPOSSIBLE_OF_KEYS: dict[KeyPair, str] = _WHY | _BEYOND
"""The pairs of a key's generation that cannot occur, and why."""

POSSIBLE_OF_KEYS: tuple[KeyPair, ...] = tuple(
    (state, input)
    for input in KeyInput
    for state in GenerationState
    if (state, input) not in IMPOSSIBLE_OF_KEYS
)
"""All others, input by input."""

RARE_OF_KEYS: dict[KeyPair, str] = {
    (GenerationState.READING, KeyInput.LEAVE): "a caller gives up seldom while a disk reads",
    (GenerationState.READING, KeyInput.LOSE): "a lease ends seldom while a disk reads",
    (GenerationState.READING, KeyInput.ORPHANED): "nor does a caller stay away for so long",
    (GenerationState.READING, KeyInput.UNREADABLE): "a read fails seldom",
}
"""Those that may occur and that not every 1,500 seeds come to; tests of the core do."""


def count_key_pairs(keys: Keys, pairs: Counter[KeyPair]) -> None:
    """Count every step of these keys from now on."""
    step = keys.step

    def counting(
        generation: Generation | None, input: KeyInput, arg: Any, now_s: float
    ) -> KeyEffects:
        pairs[GenerationState.ABSENT if generation is None else generation.state, input] += 1
        return step(generation, input, arg, now_s)

    keys.step = counting  # type: ignore[method-assign]  # these keys' alone, to look on


@contextmanager
def counted_keys(keys: Keys, pairs: Counter[KeyPair]) -> Iterator[None]:
    """The same within the block."""
    count_key_pairs(keys, pairs)
    try:
        yield
    finally:
        del keys.step
