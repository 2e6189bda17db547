"""A pair that asks for keys, and a stranger who asks for them, too."""

from __future__ import annotations

from typing import Any

import cbor2

from trio_envserve.core import messages
from trio_envserve.core.client_inputs import CallKey
from trio_envserve.core.key_records import GenerationState, KeyAct, KeyName, input_digest
from trio_envserve.core.limits import KeyLimits
from trio_envserve.core.router import Router

from .helpers import STRANGER, Pair, identifier

NAME = KeyName(b"default", b"key")
OTHER = identifier(77)
"""The token of another caller."""


class Keyed(Pair):
    """A pair that asks for keys; strangers ask for them, too."""

    keys = KeyLimits(retention_s=20.0, orphan_s=20.0)

    def new_router(self) -> Router:
        return Router(
            epoch=self.ids(), slots=self.slots, now_s=self.now_s, new_id=self.ids,
            limits=self.server_limits, wire=self.wire, heartbeats=self.heartbeats, keys=self.keys,
        )  # fmt: skip

    def call(self, body: bytes = b"body", name: KeyName = NAME, **how: Any) -> int:
        digest = input_digest(body, how.get("rerun"))
        return self.submit(body, key=CallKey(KeyAct.ASK, name, digest), **how)

    def about(self, act: KeyAct, name: KeyName = NAME, **how: Any) -> int:
        return self.submit(b"", key=CallKey(act, name, tag=self.ids()), **how)

    def request(
        self, session: bytes, sequence: int = 0, body: bytes = b"body", *,
        act: KeyAct = KeyAct.ASK, name: KeyName = NAME, caller: bytes = OTHER,
        tag: int | bytes = b"", earlier: int | None = None, gone: bool = False,
        deadline_s: float | None = None, rerun: bool | None = None, allowance: int = 4,
    ) -> None:  # fmt: skip
        """Of a stranger."""
        request = messages.KeyedRequest(
            session, sequence, input_digest(body, rerun), rerun, allowance, deadline_s, caller,
            act, *name, tag, earlier, gone,
        )  # fmt: skip
        self.tell(request, body, route=STRANGER)

    def heard(self) -> Any:
        """What the stranger was told last."""
        return self.mail[-1][1]

    def answered(self, session: bytes, sequence: int) -> Any:
        """The answer to a stranger's command."""
        kept = self.router.cache.sessions[session].entries[sequence].kept
        assert kept is not None
        return cbor2.loads(bytes(kept.payload))


def generation(pair: Keyed, number: int = 0) -> GenerationState:
    found = pair.router.keys.generations.get(number)
    return GenerationState.CLOSED if found is None else found.state
