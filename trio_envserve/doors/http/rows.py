"""``POST /run`` as NeMo Gym has it: a row, answered when its rollout has ended.

Theory of operation
-------------------
That library sends a row again for as long as its connection is lost, and gives up at the
first status that is an error.  So a row names its own key (:func:`row_of`): sent again
to the letter, it joins what runs or is answered again.  Where others are refused for now,
a row waits.

**An exception to at most once.**  Steps of a training send the same rows again and mean new
rollouts.  Unless a row has ``_ng_rollout_id``, its key ends ``delivered_s`` after its
answer was first written to the end; if that answer was lost behind the door all the same,
and the row comes again only after that, it runs a second time.  What was not written to the
end is retained as under any key.

Rows that nothing tells apart may be rollouts of one group, which are to differ.  So those
that wait at one time have keys of their own, numbered, and a number becomes free when who
waited for it hangs up: the next that comes takes the lowest, and finds what runs there.
What was written to the end is nobody else's, so its key ends at once.

A row of that library names its rollout by ``_ng_rollout_id``, or by ``_ng_task_index``
and ``_ng_rollout_index``, each with ``_ng_attempt_index`` where it was tried before.  NeMo
RL numbers the rows of a step with ``_rowidx``, and others send a row once for each rollout
of a group, with nothing that tells them apart.  The digest of the whole body is part of the
key in each case, so an id that is used again for another row is another rollout, and the
text before the digest is there for people.

The answer is the row, and over it what the environment returned.  It has a ``reward`` that
is a number, and a ``response`` as OpenAI's Responses API has it.  Fields that this door knows
and does not heed are named in ``not_heeded``.

**Failures.**  That library ends its collection at the first answer with an error's status, so
a row that failed may be answered as a row, too (``run_failures``): with
``_ng_failure_class``, by which the library keeps it apart from its results, and ``mask_sample``,
which stands in ``instance_config``, too, where NeMo RL looks for it.  Its ``reward`` is null: a
number would be learnt from.
"""

from __future__ import annotations

import enum
import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from itertools import count, islice
from typing import Any, Final, NamedTuple, final

import trio

from ...client import Client, Outcome
from ...client.options import Encoded
from ...client.shell import is_asked, is_shared, run_encoded
from ...core.endings import ENDINGS
from ...core.errors import CallError
from ...envs.responses import not_heeded, response_of_messages, sampling_args_of
from ...envs.rewards import reward_in
from ..bounds import Bound
from ..limits import HttpLimits
from ..options import HttpDoorOptions
from .answers import encoded, refuse
from .bodies import JSON, Codec, accepted, body_type
from .connections import Exchange
from .keys import HEADER, KeyedCalls, Named, body_digest
from .problems import Problem

_log = logging.getLogger("trio_envserve.http")

NAMESPACE: Final = "nemo-gym"

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""The ids that the library accepts."""

_SHOWN: Final = 128
"""Characters of an id that are shown in a key."""

_HEEDED: Final = ("_ng_rollout_id", "_ng_task_index", "_ng_rollout_index", "_ng_attempt_index")
"""Fields of the library that mean something here."""

_AT_ONCE: Final = 64
"""Keys that are forgotten at once."""

_AGAIN_S: Final = 1.0
"""Pause before the server is asked once more to forget a key."""


class RowNaming(enum.Enum):
    """The fields by which a row is told from others."""

    ID = enum.auto()
    """An id, which names one rollout for good."""
    NUMBER = enum.auto()
    """A number, which another step may use again."""
    NOTHING = enum.auto()
    """Rows with the same text are rollouts of their own."""


class RolloutRow(NamedTuple):
    """A row that is in order."""

    fields: Mapping[str, Any]
    told_by: RowNaming
    label: str
    """Text before the digest, for people."""

    @property
    def sampling_args(self) -> dict[str, Any]:
        """The row's sampling arguments for the model."""
        return sampling_args_of(self._params)

    @property
    def not_heeded(self) -> list[str]:
        """The names of fields that nobody but the environment heeds."""
        own = [
            name for name, value in self.fields.items()
            if name.startswith("_ng_") and name not in _HEEDED and value is not None
        ]  # fmt: skip
        asked = [f"responses_create_params.{name}" for name in not_heeded(self._params)]
        return [*own, *asked]

    @property
    def _params(self) -> Mapping[str, Any]:
        asked = self.fields.get("responses_create_params")
        return asked if isinstance(asked, dict) else {}


def row_of(body: object) -> RolloutRow:
    """The row in a body.  Problem if it is none."""
    if not isinstance(body, dict):
        raise Problem("bad-request", "the body is a row: a mapping of fields")
    id, attempt = body.get("_ng_rollout_id"), body.get("_ng_attempt_index")
    if id is not None and not (isinstance(id, str) and _ID.fullmatch(id)):
        raise Problem(
            "bad-request", "_ng_rollout_id is text of letters, digits, dots, dashes and "
            "underscores, which begins with a letter or digit",
        )  # fmt: skip
    again = f"-a{attempt}" if _is_number(attempt) and attempt else ""
    if id is not None:
        return RolloutRow(body, RowNaming.ID, f"{id[:_SHOWN]}{again}")
    task, rollout = body.get("_ng_task_index"), body.get("_ng_rollout_index")
    if rollout is not None:
        known = _is_number(task) and _is_number(rollout)
        return RolloutRow(body, RowNaming.NUMBER, f"{task}-{rollout}{again}" if known else "row")
    if (number := body.get("_rowidx")) is not None:
        return RolloutRow(body, RowNaming.NUMBER, f"row-{number}" if _is_number(number) else "row")
    return RolloutRow(body, RowNaming.NOTHING, "row")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def answer_of(row: RolloutRow, result: object) -> dict[str, Any]:
    """The answer to a row.  Problem if the environment's result will not do."""
    reward, _ = reward_in(result)
    if reward is None or not isinstance(result, dict):
        raise Problem("no-reward", "the result of the environment has no reward that is a number")
    response = result.get("response")
    if response is None:
        response = response_of_messages(result.get("completion"))
    return {**row.fields, **result, "response": response, "reward": reward, **_ending(row, result)}


def failure_of(row: RolloutRow, problem: Problem) -> dict[str, Any]:
    """The answer to a row that failed, as a row."""
    code = problem.record["code"]
    config = row.fields.get("instance_config")
    terminal = code in ENDINGS and not ENDINGS[code].again
    return {
        **row.fields, "response": response_of_messages(()), "reward": None,
        "_ng_failure_class": code, "_ng_failure_terminal": terminal, "mask_sample": True,
        "instance_config": {**(config if isinstance(config, dict) else {}), "mask_sample": True},
        "problem": problem.record, **_ending(row, {}),
    }  # fmt: skip


def _ending(row: RolloutRow, result: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that nobody heeded: neither this door nor, where it says so, the environment."""
    own = result.get("not_heeded")
    names = [name for name in own if isinstance(name, str)] if isinstance(own, list) else []
    found = sorted({*row.not_heeded, *(name for name in names if not name.startswith("_ng_"))})
    return {"not_heeded": found} if found else {}


# -- the rows of a door -----------------------------------------------------------------


def lowest_free(taken: Collection[int]) -> int:
    """The lowest number, from 0 on, that is not taken."""
    return next(number for number in count() if number not in taken)


@final
class Rows:
    """The rows of one door."""

    def __init__(
        self, client: Client, behind: trio.Nursery, keyed: KeyedCalls, codec: Codec,
        calls: Bound, bodies: Bound, limits: HttpLimits, options: HttpDoorOptions,
    ) -> None:  # fmt: skip
        self._client, self._behind = client, behind
        self._keyed, self._codec, self._calls = keyed, codec, calls
        self._bodies, self._limits, self._options = bodies, limits, options
        self._asking: Counter[Named] = Counter()
        """Number of callers that wait for a key."""
        self._numbers: dict[bytes, set[int]] = {}
        """Numbers that are taken by rows that nothing tells apart, by their digest."""
        self._due: dict[Named, float] = {}
        """Moments at which keys are to be forgotten, the first one first."""
        self._changed = trio.lowlevel.ParkingLot()
        behind.start_soon(self._forget_due)

    async def answer(self, exchange: Exchange) -> None:
        """Run the row of a request, or join what runs for it."""
        exchange.of_key = exchange.of_row = True
        if HEADER in exchange.headers:
            raise Problem("bad-request", "a row is its own key: send no Idempotency-Key")
        if body_type(exchange.headers) != JSON:
            raise Problem("unsupported-media-type", "a row is sent as application/json")
        accepted(exchange.headers, (JSON,))
        with ExitStack() as held, ExitStack() as claim:
            body = await exchange.read_body(self._bodies, held, patient=True)
            row = row_of(await self._codec.read_row(body))
            digest = body_digest(body, JSON)
            del body
            named = self._named(row, digest, claim)
            told_by, written = row.told_by, None
            try:
                asked = await self._encoded(row, named, exchange.traceparent)
                outcome = await exchange.unless_hung_up(lambda: self._outcome(asked, held))
                written = await self._codec.write_row(_answer(row, outcome))
                del outcome  # a slow caller's answer is held without its value
            except Problem as problem:
                if self._options.run_failures == "rows":
                    failed = failure_of(row, problem.of_key(row=True))
                    written = await self._codec.write_row(failed)
                else:
                    await refuse(exchange, problem)
            del row
            if written is not None:
                await exchange.answer(200, JSON, written)
            if exchange.delivered:
                self._delivered(told_by, named, claim)

    def forgotten(self, named: Named) -> None:
        """Somebody has had a key forgotten."""
        self._due.pop(named, None)

    def _named(self, row: RolloutRow, digest: bytes, claim: ExitStack) -> Named:
        """The key of a row, as long as ``claim`` is open."""
        key = f"{row.label}/{digest.hex()}"
        if row.told_by is RowNaming.NOTHING:
            taken = self._numbers.setdefault(digest, set())
            number = lowest_free(taken)
            taken.add(number)
            claim.callback(self._give_back, digest, number)
            key = f"{key}/{number}"
        named = Named(key, NAMESPACE)
        self._asking[named] += 1
        claim.callback(self._leave, named)
        return named

    def _give_back(self, digest: bytes, number: int) -> None:
        self._numbers[digest].remove(number)
        if not self._numbers[digest]:
            del self._numbers[digest]

    def _leave(self, named: Named) -> None:
        self._asking[named] -= 1
        if not self._asking[named]:
            del self._asking[named]

    async def _encoded(self, row: RolloutRow, named: Named, traceparent: str | None) -> Encoded:
        options = self._options
        return await encoded(
            self._client, row.fields, model=options.run_model, model_name=options.run_model_name,
            sampling_args=row.sampling_args, rerun=options.run_rerun,
            execution_s=options.run_execution_s, key=named.key, namespace=named.namespace,
            traceparent=traceparent,
        )  # fmt: skip

    async def _outcome(self, asked: Encoded, held: ExitStack) -> Outcome:
        if not is_shared(self._client, asked):
            with ExitStack() as call:
                await self._calls.wait(1, NAMESPACE)
                call.callback(self._calls.give, 1, NAMESPACE)
                if not is_shared(self._client, asked):  # the same row may have come meanwhile
                    held.push(call.pop_all())
        return await run_encoded(self._client, asked, held.pop_all)

    # -- what was delivered -------------------------------------------------------

    def _delivered(self, told_by: RowNaming, named: Named, claim: ExitStack) -> None:
        if told_by is RowNaming.NUMBER:
            self._due.setdefault(named, trio.current_time() + self._limits.delivered_s)
            self._changed.unpark_all()
        elif told_by is RowNaming.NOTHING:
            # Its number is free when nothing is left behind it.
            self._behind.start_soon(self._forget, named, claim.pop_all())

    async def _forget(self, named: Named, claim: ExitStack) -> None:
        forgotten = False
        with claim:
            while not forgotten:
                forgotten = await self._try_to_forget(named)
                await trio.sleep(0 if forgotten else _AGAIN_S)

    async def _try_to_forget(self, named: Named) -> bool:
        try:
            await self._keyed.forget(named)
        except (Problem, CallError):
            return False  # the server does not answer
        except Exception:  # a mistake ends nothing but this, and the key is forgotten later
            _log.exception("the HTTP door made a mistake")
            return False
        return True

    async def _forget_due(self) -> None:
        """Forget keys when their time has come."""
        while True:
            if not self._due:
                await self._changed.park()
                continue
            await trio.sleep_until(next(iter(self._due.values())))
            now_s = trio.current_time()
            async with trio.open_nursery() as nursery:
                for named, due_s in list(islice(self._due.items(), _AT_ONCE)):
                    if due_s <= now_s:
                        del self._due[named]
                        nursery.start_soon(self._forget_one, named)

    async def _forget_one(self, named: Named) -> None:
        busy = named in self._asking or is_asked(self._client, *named)
        if busy or not await self._try_to_forget(named):
            self._due.setdefault(named, trio.current_time() + self._limits.delivered_s)


def _answer(row: RolloutRow, outcome: Outcome) -> dict[str, object]:
    if outcome.error is not None:
        raise Problem.of(outcome.error)
    return answer_of(row, outcome.value)
