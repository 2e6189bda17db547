"""Commands by key that have ids of their own: what was said to each, and which came early.

A copy of one is told the same, and changes nothing.  Each is remembered for so long as a
copy of it, or the request that it overtook, may be under way; at the bound those with new
ids are refused for now, and none is dropped early (G8).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import final

from .journal import Cancelled, Commanded, Journal
from .key_records import CommandAnswer, KeyName
from .key_room import KeyRoom
from .key_table import KeyCommand, KeyInput
from .restored import Remains


@final
class KeyCommands:
    """Those that are remembered."""

    def __init__(self, room: KeyRoom, journal: Journal) -> None:
        self.said: OrderedDict[KeyCommand, tuple[CommandAnswer, float]] = OrderedDict()
        """The answer to each, and its time; the oldest first."""
        self.of: Counter[bytes] = Counter()
        """How many of them each namespace has."""
        self.early: dict[KeyName, KeyCommand] = {}
        """Cancels of keys that were never seen: each cancels the next request."""
        self._room = room
        self._journal = journal

    def restore(self, remains: Remains, now_s: float) -> None:
        """Take over those that a journal has left, as many as there may be."""
        for said in remains.commands[-self._room.limits.commands :]:
            name = KeyName(said.namespace, said.key)
            input = KeyInput.FORGET if said.forget else KeyInput.CANCEL
            command = KeyCommand(input, name, said.tag)
            answer = CommandAnswer(said.generation, said.started, finished=said.finished)
            self._say(command, answer, now_s)
            if remains.early_cancels.get(name) == said:
                self.early[name] = command

    def has_room(self, namespace: bytes) -> bool:
        """Whether another one may be remembered."""
        mine, room = self.of[namespace], self._room
        return mine < room.share(room.limits.commands, len(self.said) - mine)

    def remember(self, command: KeyCommand, answer: CommandAnswer, now_s: float) -> None:
        """This was said to it."""
        self._say(command, answer, now_s)
        input, name, tag = command
        assert isinstance(tag, bytes)
        self._journal.append(
            Commanded, input is KeyInput.FORGET, name.namespace, name.key, tag,
            answer.generation, answer.started, self.early.get(name) == command, answer.finished,
        )  # fmt: skip

    def _say(self, command: KeyCommand, answer: CommandAnswer, now_s: float) -> None:
        self.of[command.name.namespace] += command not in self.said
        self.said[command] = answer, now_s

    def take_early(self, name: KeyName) -> bool:
        """Whether a cancel of this key came before any request.  It hits one."""
        if self.early.pop(name, None) is None:
            return False
        self._journal.append(Cancelled, *name)
        return True

    def pass_by(self, now_s: float) -> None:
        """Forget those of which nothing can be under way any more."""
        while self.said:
            command, (_, at_s) = next(iter(self.said.items()))
            if at_s > now_s - self._room.limits.command_s:
                return
            del self.said[command]
            self.of[command.name.namespace] -= 1
            if not self.of[command.name.namespace]:
                del self.of[command.name.namespace]
            if self.early.get(command.name) == command:
                self.take_early(command.name)  # it hits nothing in later epochs, too
