"""A plan as plain data and back: so a schedule can be kept in a file.

Everything is written down, the limits that are as shipped too: a file shows the
same schedule when defaults have changed.  What a plan of this version must have
and the data has not, or has otherwise, is a ValueError that says so.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ...core.key_records import KeyAct
from ...core.limits import ClientLimits, KeyLimits, ServerLimits
from .faults import Ask, Fault, KeyUse, Plan


def to_data(plan: Plan) -> dict[str, Any]:
    """Lists, mappings, numbers and text only, for JSON."""
    data = dataclasses.asdict(plan)
    data["faults"] = [fault.name for fault in Fault if fault in plan.faults]
    data["moments"] = [[at_s, fault.name] for at_s, fault in plan.moments]
    data["delay_s"] = list(plan.delay_s)
    data["sync_s"] = list(plan.sync_s)
    data["asks"] = [[_ask_to_data(ask) for ask in asks] for asks in plan.asks]
    return data


def from_data(data: dict[str, Any]) -> Plan:
    """The plan.  ValueError if the data is of no plan of this version."""
    try:
        made = dict(data)
        made["faults"] = frozenset(Fault[name] for name in data["faults"])
        made["moments"] = tuple((at_s, Fault[name]) for at_s, name in data["moments"])
        low_s, high_s = data["delay_s"]
        made["delay_s"] = (low_s, high_s)
        if "sync_s" in data:  # plans that were written before there were journals have none
            low_s, high_s = data["sync_s"]
            made["sync_s"] = (low_s, high_s)
        made["asks"] = tuple(tuple(map(_ask_from_data, asks)) for asks in data["asks"])
        made["server"] = ServerLimits(**data["server"])
        made["client"] = ClientLimits(**data["client"])
        if "keys" in data:  # plans that were written before there were keys have none
            made["keys"] = KeyLimits(**data["keys"])
        return Plan(**made)
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a plan of this version: {type(error).__name__}: {error}") from error


def _ask_to_data(ask: Ask) -> dict[str, Any]:
    data = dataclasses.asdict(ask) | {"body": ask.body.decode("ascii")}
    if ask.use is None:
        del data["use"]
    else:
        tag = ask.use.tag if isinstance(ask.use.tag, int) else ask.use.tag.decode("ascii")
        data["use"] |= {"act": ask.use.act.name, "tag": tag}
    return data


def _ask_from_data(data: dict[str, Any]) -> Ask:
    made = {**data, "body": data["body"].encode("ascii")}
    if "use" in data:
        use = dict(data["use"])
        tag = use["tag"] if isinstance(use["tag"], int) else use["tag"].encode("ascii")
        made["use"] = KeyUse(**{**use, "act": KeyAct[use["act"]], "tag": tag})
    return Ask(**made)
