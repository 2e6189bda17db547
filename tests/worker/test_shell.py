"""The worker's shell: executions that share a nursery do not hurt each other.

What each may do to its own outcome is in test_runners.py.
"""

import contextvars
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import ANY

import pytest
import trio
import trio.testing
import zmq

from tests.worker.strange_code import leak_cancelled
from trio_envserve.core import messages, values
from trio_envserve.core.limits import WireLimits, WorkerLimits
from trio_envserve.core.terms import Status, Verdict
from trio_envserve.envs import RolloutRequest, load
from trio_envserve.net import MemoryNetwork, bundle, open_zmq_network
from trio_envserve.worker.shell import run_worker

WIRE = WireLimits()
INCARNATION = b"i" * 16

TRIO_NOTICES = tuple(map(int, trio.__version__.split(".")[:2])) >= (0, 31)
"""Earlier ones take a task that leaves its nursery open for one that is done."""


class Router:
    """The other end of the worker's link."""

    def __init__(self, socket):
        self.socket = socket
        self.number = 0

    def send(self, message, *body):
        self.socket.send_nowait(b"w", (INCARNATION, messages.encode(message), *body))

    def dispatch(self, given, **more):
        self.number += 1
        asked = RolloutRequest(
            kind="rollout", input=given, endpoint="oracle", model_name="m", **more
        )
        body = values.encode(asked.to_body(), root="input", limits=WIRE)
        self.send(messages.Dispatch(b"s" * 16, self.number, self.number, "c"), body)
        return self.number

    async def outcomes(self, count):
        """By number: the status, and the value of a result or the error record."""
        found: dict[int, tuple[Status, Any]] = {}
        while len(found) < count:
            for _, *frames in await self.socket.receive():
                if len(frames) == 4:
                    header = messages.decode(bytes(frames[2]), most_bytes=WIRE.header_bytes)
                    assert isinstance(header, messages.WorkerOutcome)
                    found[header.number] = (
                        Status(header.status),
                        values.decode(frames[3], limits=WIRE)
                        if header.status == Status.RESULT
                        else messages.decode_error(frames[3]),
                    )
        return found


@asynccontextmanager
async def opened(function):
    """A router with one worker that has said hello; the worker's nursery."""
    network = MemoryNetwork()
    with trio.fail_after(600):
        async with (
            network.open_router("memory:r", limits=WIRE) as socket,
            trio.open_nursery() as nursery,
        ):

            async def work():
                await run_worker(
                    network, "memory:r", worker=b"w", incarnation=INCARNATION,
                    load=lambda: load(function), limits=WorkerLimits(), wire=WIRE,
                )  # fmt: skip

            nursery.start_soon(work)
            await socket.receive()
            router = Router(socket)
            yield router, nursery
            router.send(messages.Retire())


variable = contextvars.ContextVar("variable", default=0)


async def leave_scope(rollout):
    trio.CancelScope(shield=True).__enter__()
    return "left"


async def leave_cancelled_scope(rollout):
    trio.CancelScope().__enter__().cancel()
    return "left"


async def leave_nursery(rollout):
    nursery = await trio.open_nursery().__aenter__()
    nursery.start_soon(trio.sleep_forever)
    return "left"


async def leave_variable(rollout):
    before = variable.get()
    variable.set(1)
    return before


async def fail_in_a_cancelled_scope(rollout):
    trio.CancelScope().__enter__().cancel()
    raise ValueError("x")


async def fail_with_a_nursery(rollout):
    await trio.open_nursery().__aenter__()
    raise ValueError("x")


LEAVES = {
    each.__name__: each
    for each in (
        leave_scope, leave_cancelled_scope, leave_nursery, leave_variable,
        fail_in_a_cancelled_scope, fail_with_a_nursery, leak_cancelled,
    )
}  # fmt: skip


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("what", LEAVES)
async def test_what_one_leaves_behind_is_not_felt_by_others(what, retries, autojump_clock):
    gate = trio.Event()

    async def body(rollout):
        if rollout.input == "wait":
            await gate.wait()
            await trio.sleep(1)
            return "waited"
        return await LEAVES[rollout.input](rollout)

    async with opened(body) as (router, _):
        waiting = [router.dispatch("wait")]
        strange = [router.dispatch(what, max_retries=retries)]
        waiting.append(router.dispatch("wait"))
        strange_ends = await router.outcomes(1)
        waiting.append(router.dispatch("wait"))
        strange.append(router.dispatch(what, max_retries=retries))
        strange_ends |= await router.outcomes(1)
        waiting.append(router.dispatch("wait"))
        gate.set()
        ends = await router.outcomes(len(waiting))

    assert ends == dict.fromkeys(waiting, (Status.RESULT, "waited"))
    assert sorted(strange_ends) == strange
    for status, value in strange_ends.values():
        if what == "leave_variable":
            assert (status, value) == (Status.RESULT, 0)
        elif what in ("leave_scope", "leave_cancelled_scope"):
            assert (status, value) == (Status.RESULT, "left")
        elif what != "leave_nursery" or TRIO_NOTICES:
            assert (status, value.code) == (Status.ERROR, "rollout-failed")


async def test_a_cancel_is_seen_through_what_the_code_left_open(autojump_clock):
    async def body(rollout):
        trio.CancelScope(shield=rollout.input == "shielded").__enter__()
        if rollout.input == "shielded":
            while not gate.is_set():
                await gate.wait()
            raise ValueError("after the cancel")
        await trio.sleep_forever()

    gate = trio.Event()
    async with opened(body) as (router, _):
        numbers = [router.dispatch("shielded"), router.dispatch("")]
        await trio.testing.wait_all_tasks_blocked()
        router.send(messages.Stop([numbers[0], numbers[-1] + 1]))
        ends = await router.outcomes(1)
        gate.set()
        ends |= await router.outcomes(1)
    assert {status for status, _ in ends.values()} == {Status.CANCELLED}


async def test_a_stop_that_comes_with_its_dispatch(autojump_clock):
    seen = []

    async def body(rollout):
        seen.append(rollout.cancelled())
        await trio.sleep_forever()

    async with opened(body) as (router, _):
        number = router.dispatch("x")
        router.send(messages.Stop([number, number + 1]))
        ((status, error),) = (await router.outcomes(1)).values()
    assert status is Status.CANCELLED
    assert error.verdict is Verdict.DID_NOT_RUN
    assert seen == []


@pytest.mark.parametrize("how", ["retire", "cancel"])
@pytest.mark.parametrize("first", ["", "leave_nursery"])
async def test_all_are_cancelled_when_the_worker_ends(how, first, autojump_clock):
    ended = []

    async def body(rollout):
        if rollout.input:
            return await LEAVES[rollout.input](rollout)
        try:
            await trio.sleep_forever()
        finally:
            ended.append(rollout.request)

    async with opened(body) as (router, nursery):
        for what in ("", first, ""):
            router.dispatch(what)
            await trio.testing.wait_all_tasks_blocked()
        router.dispatch("")
        await trio.testing.wait_all_tasks_blocked()
        if how == "cancel":
            nursery.cancel_scope.cancel()
    assert len(ended) == (3 if first else 4)


async def test_an_error_of_the_shell_itself_ends_the_worker(monkeypatch, autojump_clock):
    def broken(*args, **kwargs):
        raise ZeroDivisionError

    async def body(rollout):
        if rollout.input == "wait":
            await trio.sleep_forever()
        monkeypatch.setattr(values, "encode", broken)

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with opened(body) as (router, _):
            router.dispatch("wait")
            router.dispatch("x")
            await trio.sleep_forever()


@pytest.mark.real
async def test_outcomes_of_one_turn_share_a_message_and_a_lone_one_has_five_frames():
    async def answer(rollout):
        return rollout.input

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    raw = context.socket(zmq.ROUTER)
    raw.set(zmq.LINGER, 0)
    raw.set(zmq.RCVTIMEO, 60_000)
    raw.bind("tcp://127.0.0.1:*")

    async def outcomes():
        """The next message of the worker that has some."""
        while True:
            worker, *frames = await trio.to_thread.run_sync(raw.recv_multipart)
            messages_ = bundle.unpack(frames[0]) if len(frames) == 1 else [frames]
            if all(len(each) == 4 for each in messages_):
                return len(frames), [worker, *messages_[0]], len(messages_)

    def dispatch(number):
        asked = RolloutRequest(kind="rollout", input=number, endpoint="oracle", model_name="m")
        header = messages.encode(messages.Dispatch(b"s" * 16, number, number, "c"))
        return INCARNATION, header, values.encode(asked.to_body())

    async def work():
        async with open_zmq_network() as network:
            await run_worker(
                network, raw.get_string(zmq.LAST_ENDPOINT), worker=b"w", incarnation=INCARNATION,
                load=lambda: load(answer), limits=WorkerLimits(), wire=WIRE,
            )  # fmt: skip

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            await trio.to_thread.run_sync(raw.recv_multipart)
            raw.send_multipart([b"w", *dispatch(1)])
            assert await outcomes() == (4, [b"w", INCARNATION, b"c", ANY, ANY], 1)
            (shared,) = bundle.pack([dispatch(number) for number in (2, 3, 4)])
            raw.send_multipart([b"w", *shared])
            assert await outcomes() == (1, [b"w", INCARNATION, b"c", ANY, ANY], 3)
            raw.send_multipart([b"w", INCARNATION, messages.encode(messages.Retire())])
    finally:
        raw.close()
        context.term()
