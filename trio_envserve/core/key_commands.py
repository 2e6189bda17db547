"""Commands by key that have ids of their own, and what was said to each.

A copy of one is told the same, and changes nothing.  Each is remembered for so long as a
copy of it, or the request that it overtook, may be under way; at the bound those with new
ids are refused for now, and none is dropped early (G8).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import final

from .key_records import CommandAnswer
from .key_room import KeyRoom
from .key_table import KeyCommand


@final
class KeyCommands(OrderedDict[KeyCommand, tuple[CommandAnswer, float]]):
    """The answer to each, and its time; the oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.of: Counter[bytes] = Counter()
        """How many of them each namespace has."""

    def has_room(self, namespace: bytes, room: KeyRoom) -> bool:
        """Whether another one may be remembered."""
        mine = self.of[namespace]
        return mine < room.share(room.limits.commands, len(self) - mine)

    def remember(self, command: KeyCommand, answer: CommandAnswer, now_s: float) -> None:
        """This was said to it."""
        self.of[command.name.namespace] += command not in self
        self[command] = answer, now_s

    def pass_by(self, said_s: float) -> Iterator[KeyCommand]:
        """Forget those to which something was said until then."""
        while self:
            command, (_, at_s) = next(iter(self.items()))
            if at_s > said_s:
                return
            del self[command]
            self.of[command.name.namespace] -= 1
            if not self.of[command.name.namespace]:
                del self.of[command.name.namespace]
            yield command
