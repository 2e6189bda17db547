"""Requests of HTTP as the server gets them, and outcomes and problems as answers."""

from __future__ import annotations

from typing import Any

from ...client import Client, Outcome
from ...client.options import Encoded, checked
from ...client.shell import encode
from ...core.errors import CallError, ConfigError, NotEncodable
from .bodies import JSON, PROBLEM, to_json
from .connections import Exchange
from .keys import Named
from .problems import LATER, Header, Problem


async def encoded(client: Client, input: Any, **options: Any) -> Encoded:
    """An input with the options of a call.  Problem if they are wrong."""
    try:
        return await encode(client, checked(input, **options))
    except ConfigError as error:
        raise Problem("bad-request", str(error)) from None
    except NotEncodable as error:
        raise Problem.of(error) from None


async def refuse(exchange: Exchange, problem: Problem) -> None:
    """Answer with a problem."""
    if exchange.of_key:
        problem.of_key(row=exchange.of_row)
    body = to_json(problem.record)
    await exchange.answer(problem.status, PROBLEM, body, problem.headers)


async def later(exchange: Exchange, named: Named, kind: str, *headers: Header) -> None:
    """There is no outcome yet: where it will be."""
    location = named.location(kind)
    body = to_json({"status": "pending", "location": location})
    await exchange.answer(202, JSON, body, ((b"location", location.encode()), LATER, *headers))


def record(outcome: Outcome, kind: object) -> dict[str, Any]:
    """An outcome that has a value; of a group its members."""
    if kind == "group":
        try:
            members = [line(member) for member in Outcome.members(outcome)]
        except CallError as error:
            raise Problem.of(error) from None
        return {"members": members, **_about(outcome)}
    return {"value": outcome.value, **_about(outcome)}


def line(outcome: Outcome, *, of_key: bool = False) -> dict[str, Any]:
    """One of several: a value or a problem."""
    if outcome.error is not None:
        problem = Problem.of(outcome.error)
        return {"problem": (problem.of_key() if of_key else problem).record}
    return {"value": outcome.value, **_about(outcome)}


def _about(outcome: Outcome) -> dict[str, Any]:
    return {
        "worker": outcome.worker, "executions": outcome.executions,
        "duration_s": outcome.duration_s, "took_s": outcome.took_s,
    }  # fmt: skip
