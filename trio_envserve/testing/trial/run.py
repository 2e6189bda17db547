"""One trial, from its arguments to its report.

Theory of operation
-------------------
:func:`run_trial` draws the times of the asks and the faults.  Then it starts a trio
run of its own, with a clock that jumps whenever all tasks sleep and a scheduler that
draws from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, final

import trio
from trio.testing import MockClock

from ...core.errors import ConfigError
from ...core.limit_rules import check_together
from ...core.limits import ClientLimits, ServerLimits, WireLimits
from ...retrylab import BrokenSystem
from ...retrylab.trial import scheduler, seeded
from .environment import load_for_trial
from .faults import FAULTS, Fault
from .history import AskRecord
from .judges import JUDGES, Judge
from .report import TrialReport
from .system import Trial

CLIENT_LIMITS = ClientLimits(start_s=120.0, recovery_s=120.0)
"""Calls give up a lost server sooner than by default: nobody can prove its end here,
and a trial would mostly wait."""


@final
class Ask:
    """One thing to ask for: an input, with options of the call.

    ``kind="group"``: ``input`` is a list, scored together.  ``options``: those of
    :meth:`trio_envserve.Client.outcome`, such as ``model``, ``rerun``, ``timeout_s``.
    """

    def __init__(
        self, input: Any, *, kind: Literal["rollout", "group"] = "rollout", **options: Any
    ) -> None:
        self.input = input
        self.kind: Literal["rollout", "group"] = kind
        self.options = options


def run_trial(
    environment: str | object, asks: Iterable[Any], *,
    args: Mapping[str, Any] | None = None, seed: int = 0,
    faults: Sequence[Fault] = FAULTS, judges: Sequence[Judge] = JUDGES,
    moments: int = 8, over_s: float = 60.0, clients: int = 2,
    limits: ServerLimits | None = None, client_limits: ClientLimits = CLIENT_LIMITS,
    settle_s: float = 900.0,
) -> TrialReport:  # fmt: skip
    """Ask ``environment`` for rollouts under faults, and judge what happens.

    ``environment``, ``args``: as for :func:`~trio_envserve.open_server` with
    ``workers=0``.  ``asks``: inputs, or :class:`Ask` for an input with options.  They
    are made at random moments within ``over_s`` virtual seconds by ``clients``
    clients, some of which send everything again.  At ``moments`` random moments one
    of ``faults`` strikes; add your own as ``(*FAULTS, mine)``, and your own judge
    as ``(*JUDGES, mine)``.  ``faults=()`` is a trial without faults.

    When the faults are over, calls have ``settle_s`` virtual seconds to end.
    ``limits`` are the server's, ``client_limits`` the clients'.  (An hour of rollouts
    is some 100,000 steps of its clocks, and takes seconds.)

    This is a plain function with a loop and a clock of its own, so call it from a
    synchronous test.  Raises ConfigError for wrong arguments, for an environment on
    asyncio, inside a trio run, and with a version of trio whose order of tasks it
    cannot decide; ServerStartError if the environment cannot be set up; and whatever a
    fault or a judge raises.
    """
    if trio.lowlevel.in_trio_run():
        raise ConfigError(
            "run_trial() has a loop of its own: call it from a plain function, not from a coroutine"
        )
    if clients < 1 or moments < 0 or over_s < 0:
        raise ConfigError("clients must be at least 1; moments and over_s must not be negative")
    server_limits = limits or ServerLimits()
    for each in (server_limits, client_limits):
        check_together(each, WireLimits())
    loaded = load_for_trial(environment, args or {})
    trial = Trial(seed, environment, dict(args or {}), loaded, server_limits, client_limits)
    draw = random.Random(f"trial {seed}")
    for number, given in enumerate(asks):
        ask = given if isinstance(given, Ask) else Ask(given)
        client = f"client-{draw.randrange(clients)}"
        record = AskRecord(number, ask.input, ask.kind, dict(ask.options), client)
        trial.history.asks.append(record)
    asked_s = [draw.uniform(0, over_s) for _ in trial.history.asks]
    strikes_s = sorted(draw.uniform(0, over_s) for _ in range(moments if faults else 0))
    strikes = [(at_s, draw.choice(faults)) for at_s in strikes_s]
    clock = MockClock(autojump_threshold=0)
    try:
        order = scheduler()
    except BrokenSystem as error:
        raise ConfigError(str(error)) from None
    with seeded(seed, order):
        trio.run(trial._main, asked_s, strikes, over_s + settle_s, clock=clock)
    return TrialReport(
        seed=seed,
        problems=tuple(text for judge in judges for text in judge(trial.history)),
        history=trial.history,
        trace=trial._trace.hexdigest(),
        counts=trial._tally(),
        faults=dict(trial.history.faults),
        virtual_s=trial.history.ended_s,
    )
