"""Questions of clients for the stack of an execution, until its worker has answered.

Theory of operation
-------------------
A worker's process is asked beside its event loop, which may be blocked, and may never answer.  So
the router does not wait: it remembers a question for :data:`ANSWER_S`, and a client without an
answer by then asks again.  The number of remembered questions is bounded, and a worker is asked for
one execution at most once in :data:`AGAIN_S`, however many clients ask (G10).
"""

from __future__ import annotations

import dataclasses
from typing import Any, final

from .executions import Execution
from .router_effects import AskWorker, RouterEffect, ToClient, answer_to
from .terms import RequestId, Route

EXECUTIONS_MOST = 16
"""Most executions whose stacks are asked for at one time."""
ROUTES_MOST = 16
"""Most clients that wait for the stack of one execution."""
STACK_BYTES = 24 * 1024
"""Most bytes of a stack, so that the answer fits into a frame of 32 KiB: any peer takes that."""
ANSWER_S = 5.0
"""Time for which a question is remembered, in seconds."""
AGAIN_S = 1.0
"""Least time between two questions to a worker for one execution, in seconds."""


@dataclasses.dataclass(slots=True)
class _Asked:
    """The questions for one execution."""

    asked_s: float
    """Moment of the first question, on the awake clock."""
    sent_s: float
    """Moment at which the worker was last asked."""
    routes: dict[Route, int]
    """Routes of the clients that wait, with the probes of their questions."""


@final
class Stacks:
    """Passes questions on to workers, and their answers back."""

    def __init__(self) -> None:
        self._asked: dict[tuple[bytes, int], _Asked] = {}
        """Open questions, by worker and dispatch."""

    def ask(
        self, execution: Execution | None, route: Route, probe: int, now_s: float
    ) -> list[RouterEffect]:
        """Take in a client's question for the stack of an execution; None if that does not run."""
        if execution is None:
            return [_answer(route, probe, "over")]
        dispatch = execution.worker.id, execution.number
        asked = self._asked.get(dispatch)
        if asked is None:
            self._drop_old(now_s)
            if len(self._asked) >= EXECUTIONS_MOST:
                return [_answer(route, probe, "busy")]
            asked = self._asked[dispatch] = _Asked(now_s, now_s - AGAIN_S, {})
        if route not in asked.routes and len(asked.routes) >= ROUTES_MOST:
            return [_answer(route, probe, "busy")]
        asked.routes[route] = probe
        if now_s - asked.sent_s < AGAIN_S:
            return []
        asked.sent_s = now_s
        request = RequestId(execution.session.id, execution.sequence)
        return [AskWorker(*dispatch, str(request))]

    def taken(self, worker: bytes, number: int, text: str) -> list[RouterEffect]:
        """Pass on a worker's answer.  A worker may send any text, and unasked."""
        asked = self._asked.pop((worker, number), None)
        if asked is None:
            return []
        text = text.encode("utf-8", "replace")[:STACK_BYTES].decode(errors="ignore")
        return [
            _answer(route, probe, "told", worker=worker.decode("ascii", "replace"), text=text)
            for route, probe in asked.routes.items()
        ]

    def _drop_old(self, now_s: float) -> None:
        old = [key for key, each in self._asked.items() if now_s - each.asked_s >= ANSWER_S]
        for key in old:
            del self._asked[key]


def _answer(route: Route, probe: int, state: str, **more: Any) -> ToClient:
    return answer_to(route, probe, {"state": state, **more})
