"""The explored systems: actors, judge, bounds and rules of sameness of each configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...core.executions import Worker as KnownWorker
from ...core.host import Host, WorkerLife
from ...core.host_link import Outbox
from ...core.host_pool import Hosts, RemoteHost
from ...core.lease import Holding, Leases
from ...core.pool import Slot
from ...retrylab import (
    Actor,
    Ask,
    Bounds,
    Fault,
    Judge,
    Rule,
    System,
)
from ...retrylab.values import Forms
from .configurations import Configuration
from .judges import OF_JUDGES, Promises, TurnModel
from .rules import FORMS, MISSED
from .world import (
    HOSTS,
    NOW_S,
    SERVER,
    TIME,
    ExploredClient,
    ExploredMachine,
    ExploredServer,
    ExploredWorker,
    HostServer,
    Time,
    told,
)

CONFIGURATION_RULE = {"configuration": Rule("the same in every state")}
SYSTEM_FORMS: Forms = {
    **FORMS,
    **dict.fromkeys((ExploredClient, ExploredWorker), CONFIGURATION_RULE),
    ExploredServer: {**CONFIGURATION_RULE, "new_id": Rule("it draws ids by what is in the form")},
}  # fmt: skip


# -- which states are the same ----------------------------------------------------------------

_CONSTANT = Rule("the same in every state of a configuration")
_PEOPLE = Rule("for people and statistics; nothing is decided by it")

HOST_FORMS: Forms = {
    **FORMS,
    Time: CONFIGURATION_RULE,
    ExploredMachine: CONFIGURATION_RULE,
    HostServer: {**CONFIGURATION_RULE, "new_id": Rule("it draws ids by what is in the form")},
    Host: {
        **dict.fromkeys(("offers", "_least", "_wire", "_serves", "capacity", "name"), _CONSTANT),
        "_new_id": Rule("in the form of the machine"),
        "_boot_s": Rule("read anew in each step"),
        "refusal": _PEOPLE,
    },
    WorkerLife: {"pid": _PEOPLE},
    Outbox: {"bytes": Rule("follows from what is kept")},
    Hosts: {
        **dict.fromkeys(
            ("needs", "_wire", "_serves", "claim", "_tag", "_journal", "mark"), _CONSTANT
        ),
        "_recorded": Rule("follows from the record on the disk, and whether hosts are welcome"),
        "now_s": Rule("read anew in each step"),
        "_pool": Rule("the router's"),
        "_past": _PEOPLE,
        "_of_worker": Rule(
            "in the form of the hosts",
            lambda hosts, of: tuple((name, host.holding.membership) for name, host in of.items()),
        ),
        "_of_slot": Rule(
            "in the form of the hosts",
            lambda hosts, of: tuple((slot, host.holding.membership) for slot, host in of.items()),
        ),
    },
    Leases: {"terms": Rule("follows from the life of the router")},
    RemoteHost: {
        "workers": Rule(MISSED, lambda host, workers: sorted(workers)),
        "holding": Rule("in the form of the leases", lambda host, of: of.membership),
        "slots": Rule("in the form of the pool", lambda host, slots: len(slots)),
        "busy": _PEOPLE,
        "why": _PEOPLE,
    },
    Slot: {
        **FORMS[Slot],  # type: ignore[dict-item]  # it has rules
        "start_at_s": Rule("whether it is due", lambda slot, at_s: at_s <= NOW_S),
    },
    Holding: {"host": Rule("the name under which it is listed")},
    KnownWorker: {
        name: rule
        for name, rule in FORMS[KnownWorker].items()  # type: ignore[union-attr]  # it has rules
        if name not in ("results", "suspect", "resting")
    },
}
"""As :data:`.rules.FORMS`, for what hosts have besides."""


def system_of(asked: Configuration) -> System:
    """The system of a configuration."""
    clients = [f"c{number}" for number in range(asked.clients)]
    workers = [f"w{slot}" for slot in range(asked.slots)]
    actors: dict[str, Callable[[], Actor]] = {
        SERVER: partial(ExploredServer, asked),
        **dict.fromkeys(workers, partial(ExploredWorker, asked)),
    }
    # Where all arrives at once, what is due is told at once; elsewhere who waits for ever is seen.
    model = partial(TurnModel, asked.capacity, journaled=asked.journal, prompt=asked.instant)
    judges: list[Callable[[], Judge]] = [partial(Promises, asked.most)]
    judges += [] if asked.hosts else [model]
    asks: list[Ask] = []
    if asked.hosts:
        clients = []
        actors = {
            TIME: partial(Time, asked), SERVER: partial(HostServer, asked),
            **dict.fromkeys(HOSTS[: asked.hosts], partial(ExploredMachine, asked)),
        }  # fmt: skip
    elif asked.key:
        actors |= dict.fromkeys(clients, partial(ExploredClient, asked))
        if asked.commands:
            actors[f"c{asked.clients}"] = partial(ExploredClient, asked)
    else:
        actors = {**dict.fromkeys(clients, partial(ExploredClient, asked)), **actors}
        asks = [
            Ask(float(call), client, "run") for call in range(asked.requests) for client in clients
        ]
    return System(
        actors=actors, asks=lambda random: asks, judges=judges,
        faults={Fault[kind] for kind in Fault.__members__ if asked.each.get(kind)},
        never_killed=[name for name in actors if name != SERVER], alike=[clients, workers],
        forms={**(HOST_FORMS if asked.hosts else SYSTEM_FORMS), **OF_JUDGES},
        describe=told,
        bounds=Bounds(
            asks=len(asks), faults=sum(asked.bounds.values()), each=asked.each,
            settled=not asked.instant, instant=asked.instant, prompt=asked.hosts > 0,
            most_states=50_000_000,
        ),
    )  # fmt: skip
