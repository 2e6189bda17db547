"""A model of keys, written from the rules alone.

It knows nothing of the code: it keeps every generation there ever was in one list, finds
things by looking through it, and counts every sum anew.
"""

from __future__ import annotations

import dataclasses

GENERATIONS, RETAINED_BYTES, SHARE = 4, 100, 0.8
WAITERS, COMMANDS = 3, 3
NAMESPACE_BYTES, KEY_BYTES = 4, 4
COMMAND_S, ORPHAN_S, RETENTION_S = 6.0, 5.0, 9.0

Name = tuple[bytes, bytes]
Waiter = tuple[int, int]
"""Session and sequence."""
Said = tuple[object, ...]
"""What must be done: a word, and with what."""


@dataclasses.dataclass(eq=False)
class Generation:
    number: int
    name: Name
    payload: bytes
    rerun: bool | None
    allowance: int
    earlier: int
    counting: dict[Waiter, int] = dataclasses.field(default_factory=dict)
    """With their callers."""
    lost: set[int] = dataclasses.field(default_factory=set)
    watching: set[Waiter] = dataclasses.field(default_factory=set)
    open: bool = True
    entered: bool = False
    live: bool = False
    starts: int = 0
    outcome: bytes | None = None
    lonely_s: float | None = None
    """Since when nobody waits, while it counts for the lost ones."""
    idle_s: float | None = None
    """Since when nobody counts, with an outcome."""

    @property
    def started(self) -> bool:
        return bool(self.starts or self.earlier)

    @property
    def state(self) -> str:
        if not self.open:
            return "closed"
        if self.outcome is not None:
            return "completed"
        if not self.entered:
            return "held"
        return "running" if self.live else "waiting"

    def size(self) -> int:
        """What it takes of the bound in bytes."""
        held = len(self.payload) if self.state == "held" else 0
        retained = len(self.outcome or b"") if self.open else 0
        return len(self.name[0]) + len(self.name[1]) + held + retained


class Model:
    """What keys must do."""

    def __init__(self) -> None:
        self.all: list[Generation] = []
        self.now_s = 0.0
        self.declared = False
        self.commands: dict[tuple[str, Name, bytes], tuple[tuple[object, ...], float]] = {}
        self.early: dict[Name, tuple[str, Name, bytes]] = {}

    # -- what there is ----------------------------------------------------------------

    def open(self, name: Name) -> Generation | None:
        return next((g for g in self.all if g.open and g.name == name), None)

    def there(self) -> list[Generation]:
        """All that take up room."""
        return [g for g in self.all if g.open or g.live]

    def ends(self, name: Name) -> bool:
        """Whether a closed generation's execution lives."""
        return any(g.live and not g.open and g.name == name for g in self.all)

    def of(self, waiter: Waiter) -> Generation | None:
        return next((g for g in self.all if waiter in g.counting or waiter in g.watching), None)

    def room(self, name: Name, held: int) -> bool:
        mine = [g for g in self.there() if g.name[0] == name[0]]
        others = [g for g in self.there() if g.name[0] != name[0]]
        if len(mine) >= SHARE * (GENERATIONS - len(others)):
            return False
        size = sum(g.size() for g in mine) + len(name[0]) + len(name[1]) + held
        left = RETAINED_BYTES - sum(g.size() for g in others)
        return not self.there() or size <= SHARE * left

    def may_dispatch(self, generation: Generation) -> bool:
        def retained(same: bool) -> int:
            return sum(
                len(g.outcome or b"")
                for g in self.all
                if g.open and (g.name[0] == generation.name[0]) is same
            )

        return retained(True) < SHARE * (RETAINED_BYTES - retained(False))

    # -- requests ---------------------------------------------------------------------

    def ask(
        self, name: Name, waiter: Waiter, caller: int, payload: bytes, rerun: bool | None,
        allowance: int, reissue: tuple[bool, int] | None,
    ) -> list[Said]:  # fmt: skip
        if self.of(waiter) is not None:
            return []
        known = self.open(name)
        if known is None:
            return self._open(name, waiter, caller, payload, rerun, allowance, reissue)
        if (known.payload, known.rerun) != (payload, rerun):
            return [("REFUSE", waiter, "CONFLICT")]
        if self._crowd(known) - (caller in known.lost) >= WAITERS:
            return [("REFUSE", waiter, "CROWDED")]
        self._replace(known, caller, waiter[0])
        known.counting[waiter] = caller
        self._counts(known)
        if known.outcome is not None:
            return [("ANSWER", waiter, known.outcome)]
        return []

    def _open(
        self, name: Name, waiter: Waiter, caller: int, payload: bytes, rerun: bool | None,
        allowance: int, reissue: tuple[bool, int] | None,
    ) -> list[Said]:  # fmt: skip
        earlier = 0
        if reissue is not None:
            gone, earlier = reissue
            consent = self.declared if rerun is None else rerun
            if not (gone and consent and earlier < allowance):
                return [("REFUSE", waiter, "UNKNOWN_KEY")]
        if self.early.pop(name, None):
            return [("CANCELLED", waiter, bool(earlier))]
        held = self.ends(name)
        if not self.room(name, len(payload) if held else 0):
            return [("REFUSE", waiter, "FULL")]
        opened = Generation(len(self.all), name, payload, rerun, allowance, earlier)
        self.all.append(opened)
        opened.counting[waiter] = caller
        return [] if held else self._enter(opened)

    def _enter(self, generation: Generation) -> list[Said]:
        generation.entered = True
        left = generation.allowance - generation.earlier
        return [("ENTER", generation.number, generation.payload, left)]

    def attach(self, name: Name, waiter: Waiter) -> list[Said]:
        if self.of(waiter) is not None:
            return []
        known = self.open(name)
        if known is None:
            return [("REFUSE", waiter, "UNKNOWN_KEY")]
        if known.outcome is not None:
            return [("ANSWER", waiter, known.outcome)]
        if self._crowd(known) >= WAITERS:
            return [("REFUSE", waiter, "CROWDED")]
        known.watching.add(waiter)
        return []

    def _crowd(self, generation: Generation) -> int:
        return len(generation.counting) + len(generation.lost) + len(generation.watching)

    def _replace(self, generation: Generation, caller: int, session: int) -> bool:
        """The caller is in this session now.  Whether it counted before, elsewhere."""
        old = {w for w, c in generation.counting.items() if c == caller and w[0] != session}
        found = bool(old) or caller in generation.lost
        generation.lost -= {caller}
        for waiter in old:
            del generation.counting[waiter]
        if generation.outcome is None:
            generation.watching |= old
        return found

    def leave(self, waiter: Waiter) -> tuple[list[Said], bool]:
        known = self.of(waiter)
        if known is None:
            return [], True
        if waiter in known.watching:
            known.watching.remove(waiter)
            return [], True
        del known.counting[waiter]
        return self._counts(known), known.open or known.started

    def leave_all(self, session: int) -> list[Said]:
        said: list[Said] = []
        for generation in list(self.all):
            generation.watching = {w for w in generation.watching if w[0] != session}
        for waiter in [w for g in self.all for w in g.counting if w[0] == session]:
            said += self.leave(waiter)[0]
        return said

    def lose(self, session: int) -> list[Said]:
        for generation in self.all:
            generation.watching = {w for w in generation.watching if w[0] != session}
            gone = {w: c for w, c in generation.counting.items() if w[0] == session}
            generation.lost |= set(gone.values())
            generation.counting = {w: c for w, c in generation.counting.items() if w[0] != session}
            if gone:
                assert not self._counts(generation), "the lost ones count"
        return []

    def withdraw(self, name: Name, caller: int, session: int) -> tuple[list[Said], bool]:
        known = self.open(name)
        if known is None or not self._replace(known, caller, session):
            return [], True
        return self._counts(known), known.open or known.started

    def _counts(self, generation: Generation) -> list[Said]:
        """Who counts has changed."""
        if generation.counting:
            generation.lonely_s = generation.idle_s = None
        elif generation.lost:
            if generation.lonely_s is None:
                generation.lonely_s = self.now_s
        elif generation.outcome is not None:
            generation.lonely_s = None
            if generation.idle_s is None:
                generation.idle_s = self.now_s
        else:
            return self._close(generation)
        return []

    def _close(self, generation: Generation) -> list[Said]:
        said: list[Said] = []
        if generation.outcome is None:
            said = [("FINISH", generation.number)]
            said += [
                ("CANCELLED", waiter, generation.started)
                for waiter in [*generation.counting, *generation.watching]
            ]
        generation.open = False
        generation.lonely_s = generation.idle_s = None
        generation.counting, generation.watching, generation.lost = {}, set(), set()
        return said

    # -- commands ---------------------------------------------------------------------

    def command(self, what: str, name: Name, tag: int | bytes) -> tuple[list[Said], Said]:
        """What must be done, and the answer: which it has closed, started, refused, finished."""
        known = self.open(name)
        nothing: Said = (None, True, False, False)
        if isinstance(tag, int):
            if known is None or known.number != tag:
                return [], nothing
            return self._end(what, known)
        if not tag:
            return ([], nothing) if known is None else self._end(what, known)
        word = what, name, tag
        if word in self.commands:
            return [], self.commands[word][0]
        mine = sum(other[0] == name[0] for _, other, _ in self.commands)
        if mine >= SHARE * (COMMANDS - (len(self.commands) - mine)):
            return [], (None, True, True, False)
        said: list[Said] = []
        answer = nothing
        if known is not None:
            said, answer = self._end(what, known)
        elif what == "cancel" and not self.ends(name):
            self.early[name] = word
        self.commands[word] = answer, self.now_s
        return said, answer

    def _end(self, what: str, known: Generation) -> tuple[list[Said], Said]:
        if what == "cancel" and known.outcome is not None:
            return [], (None, True, False, True)
        return self._close(known), (known.number, known.started, False, False)

    # -- work -------------------------------------------------------------------------

    def dispatched(self, generation: Generation) -> None:
        generation.live = True
        generation.starts += 1

    def execution_ended(self, generation: Generation) -> list[Said]:
        generation.live = False
        following = self.open(generation.name)
        if generation.open or following is None or following.state != "held":
            return []
        return self._enter(following)

    def completed(self, generation: Generation, outcome: bytes) -> list[Said]:
        waiting = [*generation.counting, *generation.watching]
        answers: list[Said] = [("ANSWER", waiter, outcome) for waiter in waiting]
        if generation.started:
            generation.outcome = outcome
            generation.watching = set()
            return answers
        generation.counting, generation.watching = {}, set()
        return [*self._close(generation), *answers]

    # -- time -------------------------------------------------------------------------

    def tick(self) -> list[Said]:
        said: list[Said] = []
        for generation in self.all:
            lonely_s, idle_s = generation.lonely_s, generation.idle_s
            if lonely_s is not None and self.now_s - lonely_s >= ORPHAN_S:
                generation.lost = set()
                said += self._counts(generation)
            elif idle_s is not None and self.now_s - idle_s >= RETENTION_S:
                said += self._close(generation)
        for word, (_, when_s) in list(self.commands.items()):
            if self.now_s - when_s >= COMMAND_S:
                del self.commands[word]
                if self.early.get(word[1]) == word:
                    del self.early[word[1]]
        return said
