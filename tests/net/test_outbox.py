"""The outbox against a list."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trio_envserve.net import ConnectionOutbox

MESSAGES = st.lists(st.binary(max_size=8), min_size=1, max_size=3)


class OutboxAgainstAList(RuleBasedStateMachine):
    @initialize(messages=st.integers(1, 4), size=st.integers(1, 20))
    def open(self, messages: int, size: int) -> None:
        self.max_messages, self.max_bytes = messages, size
        self.outbox = ConnectionOutbox(messages, size)
        self.model: list[tuple[bytes, ...]] = []

    def size(self) -> int:
        return sum(len(frame) for message in self.model for frame in message)

    @rule(message=MESSAGES, as_view=st.booleans())
    def append(self, message: list[bytes], as_view: bool) -> None:
        size = sum(map(len, message))
        fits = len(self.model) < self.max_messages and self.size() + size <= self.max_bytes
        accepted = self.outbox.append([memoryview(f) for f in message] if as_view else message)
        assert accepted is (fits or not self.model)
        if accepted:
            self.model.append(tuple(message))
        message.clear()  # the outbox has its own container

    @precondition(lambda self: self.model)
    @rule()
    def pop(self) -> None:
        assert self.outbox.first() == self.model[0]
        assert self.outbox.pop() == self.model.pop(0)

    @rule()
    def clear(self) -> None:
        assert self.outbox.clear() == len(self.model)
        self.model.clear()

    @invariant()
    def sizes(self) -> None:
        assert len(self.outbox) == len(self.model)
        assert self.outbox.size_bytes == self.size()


TestOutbox = OutboxAgainstAList.TestCase
