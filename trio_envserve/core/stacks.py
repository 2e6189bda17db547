"""Where executions stand: who has asked for a stack, until the worker has said it.

Theory of operation
-------------------
The worker is asked beside its event loop, which may be blocked, and it may never answer.  So
nobody waits here: a question is remembered for :data:`ANSWER_S`, and whoever has no answer by
then asks again.  Few questions are remembered, and a worker is asked for one execution no more
often than each :data:`AGAIN_S`, however many ask (G10).
"""

from __future__ import annotations

import dataclasses
from typing import Any, final

from . import messages
from .executions import Execution
from .router_effects import AskWorker, RouterEffect, ToClient
from .terms import RequestId, Route

EXECUTIONS_MOST = 16
"""Executions that are asked for at one time."""
ROUTES_MOST = 16
"""Clients that wait for the stack of one."""
STACK_BYTES = 24 * 1024
"""A longer text is cut: with all else it fits into a frame of 32 KiB, which any peer takes."""
ANSWER_S = 5.0
AGAIN_S = 1.0


@dataclasses.dataclass(slots=True)
class _Asked:
    """An execution whose worker was asked."""

    asked_s: float
    """When it was first asked for; on the awake clock."""
    sent_s: float
    """When the worker was last asked."""
    routes: dict[Route, int]
    """The routes that wait, with their probes."""


@final
class Stacks:
    """Passes questions on to workers, and their answers back."""

    def __init__(self) -> None:
        self._asked: dict[tuple[bytes, int], _Asked] = {}
        """By worker and dispatch."""

    def ask(
        self, execution: Execution | None, route: Route, probe: int, now_s: float
    ) -> list[RouterEffect]:
        """Somebody asks where this execution stands (None: it does not run)."""
        if execution is None:
            return [_answer(route, probe, "over")]
        place = execution.worker.id, execution.number
        asked = self._asked.get(place)
        if asked is None:
            self._drop_old(now_s)
            if len(self._asked) >= EXECUTIONS_MOST:
                return [_answer(route, probe, "busy")]
            asked = self._asked[place] = _Asked(now_s, now_s - AGAIN_S, {})
        if route not in asked.routes and len(asked.routes) >= ROUTES_MOST:
            return [_answer(route, probe, "busy")]
        asked.routes[route] = probe
        if now_s - asked.sent_s < AGAIN_S:
            return []
        asked.sent_s = now_s
        request = RequestId(execution.session.id, execution.sequence)
        return [AskWorker(*place, str(request))]

    def taken(self, worker: bytes, number: int, text: str) -> list[RouterEffect]:
        """A worker has said where one of its executions stands.  It may say any text, and
        unasked."""
        asked = self._asked.pop((worker, number), None)
        if asked is None:
            return []
        text = text.encode("utf-8", "replace")[:STACK_BYTES].decode(errors="ignore")
        return [
            _answer(route, probe, "told", worker=worker.decode("ascii", "replace"), text=text)
            for route, probe in asked.routes.items()
        ]

    def _drop_old(self, now_s: float) -> None:
        old = [place for place, each in self._asked.items() if now_s - each.asked_s >= ANSWER_S]
        for place in old:
            del self._asked[place]


def _answer(route: Route, probe: int, state: str, **more: Any) -> ToClient:
    record = {"state": state, **more}
    return ToClient(route, messages.Stack(probe), messages.encode_record(record))
