"""The attributes of machines with hosts, and of their routers, that their forms leave out."""

from __future__ import annotations

from typing import Any

from ...retrylab.values import Forms, Rule
from ..hosts.machine import Machine, Queue, Worker
from ..hosts.router import Router
from .rules import FORMS

_AROUND = Rule("its surroundings; what they hold is in the form beside it")


def _late(queue: Queue, late: Any) -> Any:
    return tuple(
        (act.__name__, *(each for each in args if not isinstance(each, Machine)))
        for act, args in late
    )


HOST_RULES: dict[type, dict[str, Rule]] = {
    Machine: {
        "world": _AROUND,
        "sleeping_since_s": Rule("only what is added up of it is looked at"),
        "slept_s": Rule("how long it slept is looked at by nobody"),
    },
    Worker: {"machine": Rule("the machine of whose form this is a part")},
    Queue: {"_late": Rule("names of what is to be done, and with what", _late)},
    Router: {"world": _AROUND},
}
"""By class, as in :mod:`.rules`."""

HOST_FORMS: Forms = {**FORMS, **HOST_RULES}
"""Those of machines without hosts, too."""
