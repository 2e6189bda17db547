"""``GET /v1/running``: what runs, the oldest first."""

from __future__ import annotations

import dataclasses
import re
from typing import Final, final

from ...client import Client
from ...core.errors import EnvServeError
from ...core.pages import RunningPage
from .bodies import JSON, to_json
from .exchange import Exchange
from .keys import read_query
from .limits import HttpLimits
from .problems import LATER, Problem
from .turns import RUNNING_US

_NUMBER: Final = re.compile(r"[0-9]{1,18}")


@final
class Stragglers:
    """Answers which executions run."""

    def __init__(self, client: Client, limits: HttpLimits) -> None:
        self._client = client
        self._limits = limits

    async def answer(self, exchange: Exchange) -> None:
        """A page of them, as :meth:`.Client.list_running` returns it."""
        query = read_query(exchange.query, ("sort", "first"))
        if query.get("sort", "age") != "age":
            raise Problem("bad-request", "sort is age: the oldest first")
        first = query.get("first", "0")
        if not _NUMBER.fullmatch(first):
            raise Problem("bad-request", "first is a whole number: next of the page before")
        page = await exchange.unless_hung_up(lambda: self._page(int(first)))
        await exchange.take_turn(len(page.running) * RUNNING_US)
        await exchange.answer(200, JSON, to_json(dataclasses.asdict(page)))

    async def stack(self, exchange: Exchange) -> None:
        """Where one of them stands, as :meth:`.Client.stack` returns it."""
        number = read_query(exchange.query, ("number",)).get("number", "")
        if not _NUMBER.fullmatch(number):
            raise Problem("bad-request", "number is that of an execution in GET /v1/running")
        text = await exchange.unless_hung_up(lambda: self._stack(int(number)))
        await exchange.answer(200, JSON, to_json({"stack": text}))

    async def _stack(self, number: int) -> str | None:
        try:
            return await self._client.stack(number, timeout_s=self._limits.scrape_s)
        except EnvServeError as error:
            raise Problem("not-ready", f"its worker does not say it ({error})", LATER) from None

    async def _page(self, first: int) -> RunningPage:
        try:
            return await self._client.list_running(first=first, timeout_s=self._limits.scrape_s)
        except EnvServeError as error:
            raise Problem("not-ready", str(error), LATER) from None
