"""The door over real sockets, with a client of the pure wire."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import trio
import trio.lowlevel

from tests.doors.verifiers.door import (
    ANY_PORT,
    DELTAS,
    HANG_S,
    REPLY,
    answer,
    asking,
    asking_later,
    open_door,
)
from tests.net import raw_zmtp
from trio_envserve import ConfigError, open_server
from trio_envserve.core.health import Health
from trio_envserve.core.limits import KIB, ServerLimits
from trio_envserve.doors.opening import CLIENT_LIMITS
from trio_envserve.doors.verifiers import VerifiersLimits, open_verifiers_door
from trio_envserve.doors.verifiers.door import TURN_BYTES, Door
from trio_envserve.net import MemoryNetwork
from trio_envserve.testing.proxy import open_fault_proxy

DISCARD = (b"delta", msgpack.packb({"trace": "t", "discard": True}))
WHOLE = [(b"delta", each) for each in DELTAS] + [(b"reply", REPLY)]


class Held:
    """An environment that says its deltas, and answers when it is told to."""

    def __init__(self, *said: bytes) -> None:
        self.said = said
        self.inputs: list[Any] = []
        self.started = trio.Event()
        self.go = trio.Event()
        self.cancelled = trio.Event()

    async def __call__(self, rollout: Any) -> Any:
        self.inputs.append(rollout.input)
        for each in self.said:
            rollout.delta(each)
        self.started.set()
        try:
            await self.go.wait()
        except trio.Cancelled:
            self.cancelled.set()
            raise
        return await answer(rollout)


# -- what a client asks ------------------------------------------------------------------


@pytest.mark.parametrize("count", range(4))
async def test_deltas_come_while_the_run_goes_on_and_before_its_reply(count: int):
    held = Held(*DELTAS[:count])
    async with open_door(held) as door, asking(door) as peer:
        peer.run(b"a" * 32)
        for each in DELTAS[:count]:
            assert await peer.hear() == [b"a" * 32, b"delta", each]
        held.go.set()
        assert await peer.outcome(b"a" * 32) == WHOLE[count:]


@pytest.mark.parametrize("said", [b"other", DELTAS[0]])
async def test_deltas_that_are_not_the_outcomes_or_came_before_are_taken_back(said: bytes):
    held = Held(said)
    async with open_door(held) as door, asking(door) as first, asking(door) as second:
        first.run(b"a")
        assert await first.hear() == [b"a", b"delta", said]
        second.run(b"a")
        second.say(b"h", b"health", b"\x80")
        assert (await second.reply(b"h"))["success"] is True  # the run has come, too
        held.go.set()
        rest = WHOLE[1:] if said == DELTAS[0] else [DISCARD, *WHOLE]
        assert await first.outcome(b"a") == rest
        assert await second.outcome(b"a") == [DISCARD, *WHOLE]
    assert len(held.inputs) == 1


async def test_many_runs_each_get_their_own_reply():
    async with open_door(answer) as door, asking(door) as peer:
        payloads = {b"run-%d" % i: bytes(range(256)) * i for i in range(0, 300, 5)}
        for name, payload in payloads.items():
            peer.run(name, payload)
        found = await peer.ends(len(payloads))
        assert {name: said[-1] for name, said in found.items()} == {
            name: (b"reply", REPLY + payload) for name, payload in payloads.items()
        }


async def test_a_probe_is_not_answered_before_something_can_run():
    ready = trio.Event()

    class Slow:
        async def setup(self) -> None:
            await ready.wait()

        async def run_rollout(self, rollout: Any) -> Any:
            return await answer(rollout)

    network = MemoryNetwork()
    with trio.fail_after(HANG_S):
        async with (
            open_server(Slow(), bind="memory:server", workers=0, network=network) as server,
            open_verifiers_door(server, bind=ANY_PORT, network=network) as door,
            asking(door) as peer,
        ):
            peer.say(b"h1", b"health", b"\x80")
            peer.say(b"wrong", b"jump", b"")
            assert "unknown method" in (await peer.reply(b"wrong"))["error"]
            peer.check_silent()
            ready.set()
            await door.wait_ready()
            peer.say(b"h2", b"health", b"\x80")
            await peer.reply(b"h2")


async def test_an_error_says_whether_it_ran():
    async def fail(rollout: Any) -> Any:
        raise ValueError("the task is broken")

    async with open_door(fail) as door, asking(door) as peer:
        peer.run(b"a")
        told = await peer.reply(b"a")
        assert told["success"] is False
        assert "the task is broken" in told["error"]
        assert "(it ran and failed) [rollout-failed] (fault: environment)" in told["error"]


OF_ANOTHER_KIND: list[Any] = [
    None, "text", {}, {"reward": 1.0}, {"state": {}}, {"state": {"reply": b""}},
    {"state": {"reply": b"", "deltas": [], "traces": None}},
    {"state": {"reply": b"", "deltas": ["text"], "traces": []}},
    {"state": {"reply": b"", "deltas": [], "traces": [b""]}},
    {"state": {"reply": "text", "deltas": [], "traces": []}},
]  # fmt: skip


async def test_environment_of_another_kind_is_told_apart():
    async def other(rollout: Any) -> Any:
        return OF_ANOTHER_KIND[int(rollout.input["run"])]

    async with open_door(other) as door, asking(door) as peer:
        for number, value in enumerate(OF_ANOTHER_KIND):
            peer.run(b"%d" % number, b"%d" % number)
            error = (await peer.reply(b"%d" % number))["error"]
            assert "serve verifiers:TASKSET (it ran and failed)" in error, value


async def test_a_part_that_is_too_large_for_the_wire_is_an_error():
    async def large(rollout: Any) -> Any:
        return {"state": {"deltas": [bytes(200_000)], "reply": b"", "traces": []}}

    async with open_door(large, {"frame_bytes": 100_000}) as door, asking(door) as peer:
        peer.run(b"a")
        assert "200000 bytes, and a frame at most 100000" in (await peer.reply(b"a"))["error"]


# -- lost connections --------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
async def test_a_client_that_comes_back_gets_what_it_waited_for(scheme: str, folder: str):
    bind = "tcp://127.0.0.1:0" if scheme == "tcp" else f"ipc://{folder}/door"
    held = Held()
    async with open_door(held, bind=bind) as door:
        async with asking(door) as lost:
            lost.run(b"a")
            await held.started.wait()
        async with asking(door) as later:
            later.say(b"h", b"health", b"\x80")
            await later.reply(b"h")
            later.check_silent()
            held.go.set()
            assert await later.outcome(b"a") == [DISCARD, *WHOLE]
        async with asking(door) as third:  # nothing is consumed by an offer
            assert await third.outcome(b"a") == [DISCARD, *WHOLE]
        assert len(held.inputs) == 1


async def test_all_connections_are_cut_and_every_run_ends():
    held, names = Held(DELTAS[0]), [b"run-%02d" % number for number in range(20)]
    async with (
        open_door(held) as door, open_fault_proxy(door.address) as proxy,
        asking(proxy.address) as peer,
    ):  # fmt: skip
        for name in names:
            peer.run(name, name)
        heard = [await peer.hear() for _ in names]
        assert sorted(heard) == [[name, b"delta", DELTAS[0]] for name in names]
        assert proxy.cut_all() == 1
        held.go.set()
        found = await peer.ends(len(names))
    assert found == {name: [DISCARD, *WHOLE[:-1], (b"reply", REPLY + name)] for name in names}
    assert len(held.inputs) == len(names)


@pytest.mark.parametrize("redeliver", [None, True])
async def test_outcome_is_offered_where_anybody_may_connect_only_if_that_is_wanted(
    redeliver: bool | None,
):
    held = Held()
    options: dict[str, Any] = {} if redeliver is None else {"redeliver": redeliver}
    async with open_door(held, bind="tcp://0.0.0.0:0", insecure=True, **options) as door:
        address = door.address.replace("0.0.0.0", "127.0.0.1")
        async with asking(address) as lost:
            lost.run(b"a")
            await held.started.wait()
        async with asking(address) as later:
            held.go.set()
            if not redeliver:
                for i in range(20):
                    later.say(b"%d" % i, b"health", b"\x80")
                    await later.reply(b"%d" % i)
                later.run(b"a")
            outcome = await later.outcome(b"a")
            assert outcome == [DISCARD, *WHOLE] or (outcome == WHOLE and not redeliver)
        assert len(held.inputs) == 1


# -- opening and closing -----------------------------------------------------------------


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0:0", "tcp://*:0", "tcp://[::]:0", "tcp://a:1"])
async def test_other_machines_are_let_in_only_by_who_says_so(bind: str):
    with pytest.raises(ConfigError, match=r"clients of verifiers have no keys.*--insecure"):
        async with open_door(answer, bind=bind):
            pass


async def test_a_door_that_closes_leaves_nobody_waiting():
    held = Held()
    async with asking_later() as peer:
        async with open_door(held) as door:
            peer.socket.connect(door.address)
            peer.run(b"a")
            await held.started.wait()
        assert held.cancelled.is_set()
        assert "the server was closed (it may have run)" in (await peer.reply(b"a"))["error"]


async def test_a_server_that_is_gone_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch):
    quick = dataclasses.replace(CLIENT_LIMITS, ping_s=0.1, idle_ping_s=0.1, probe_s=0.5, late_s=0.5)
    monkeypatch.setattr("trio_envserve.doors.opening.CLIENT_LIMITS", quick)
    held = Held()
    network = MemoryNetwork()
    close, closed = trio.Event(), trio.Event()

    async def serve(task_status: trio.TaskStatus[str]) -> None:
        async with open_server(held, bind="memory:server", workers=0, network=network) as server:
            task_status.started(server.address)
            await close.wait()
        closed.set()

    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            address = await nursery.start(serve)
            async with (
                open_verifiers_door(address, bind=ANY_PORT, network=network) as door,
                asking(door) as peer,
            ):
                await door.wait_ready()
                peer.run(b"a")
                await held.started.wait()
                close.set()
                assert "(it may have run)" in (await peer.reply(b"a"))["error"]
                await closed.wait()
                heard = b"h"
                while heard == b"h":  # until the door itself has heard of it
                    peer.say(b"h", b"health", b"\x80")
                    peer.say(b"wrong", b"jump", b"")
                    heard = (await peer.hear())[0]
                    if heard == b"h":
                        await peer.reply(b"wrong")


# -- strangers ---------------------------------------------------------------------------


async def test_what_nobody_understands_harms_nobody():
    async with open_door(answer) as door, asking(door) as odd, asking(door) as peer:
        for frames in ([b""], [b"a"], [b"a", b"run"], [b"a", b"run", b"", b""], [b"x"] * 60):
            odd.say(*frames)
        odd.say(b"\xff", b"run", b"")
        odd.say(b"b", b"\xff\xff", b"")
        assert "unknown method" in (await odd.reply(b"b"))["error"]
        odd.say(b"c", b"cancel", b"\xdf\xff\xff\xff\xff" + bytes(100))
        assert "cannot be read" in (await odd.reply(b"c"))["error"]
        odd.run(b"d", b"this is no msgpack, and none of our business")
        assert (await odd.outcome(b"d"))[-1][0] == b"reply"
        peer.run(b"a")
        assert await peer.outcome(b"a") == WHOLE


async def test_a_frame_of_a_gigabyte_ends_its_connection():
    async with open_door(answer) as door, asking(door) as peer:
        sock = await trio.to_thread.run_sync(raw_zmtp.shake, door.address)
        with sock:
            sock.sendall(b"\x01\x01a" + b"\x01\x03run" + b"\x02" + (1 << 30).to_bytes(8, "big"))
            await trio.to_thread.run_sync(raw_zmtp.until_closed, sock)
        peer.run(b"a")
        assert await peer.outcome(b"a") == WHOLE


class Batch:
    """A router to which many large runs come at once, and then nothing."""

    def __init__(self, batch: list[list[bytes]]) -> None:
        self._batches = [batch]

    async def receive(self) -> list[list[bytes]]:
        if not self._batches:
            await trio.sleep_forever()
        return self._batches.pop()

    async def flush(self) -> None:
        pass


class ReceivedInOneTurn(trio.abc.Instrument):
    """How much is taken in, by turns of the loop."""

    def __init__(self) -> None:
        self.turns = [0]

    def received(
        self, route: bytes, frames: list[bytes], now_s: float, *, ready: bool
    ) -> list[Any]:
        self.turns[-1] += 1
        return []

    def before_io_wait(self, timeout: float) -> None:
        self.turns.append(0)


async def test_large_runs_that_end_in_one_moment_are_not_taken_in_one_turn(monkeypatch):
    """Fifteen of 16 MiB were hashed in one turn, which took a quarter of a second."""
    counted = ReceivedInOneTurn()
    trio.lowlevel.add_instrument(counted)
    client: Any = SimpleNamespace(health=lambda: SimpleNamespace(health=Health.HEALTHY))
    served = Door(client, VerifiersLimits(), redeliver=True)
    monkeypatch.setattr(served._runs, "received", counted.received)
    payload = bytes(TURN_BYTES)
    router: Any = Batch([[b"r", b"%d" % n, b"run", payload] for n in range(10)])
    with trio.fail_after(HANG_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(served.serve, router)
            while sum(counted.turns) < 10:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(counted)
    assert max(counted.turns) == 1


# -- what the server keeps of a run --------------------------------------------------


UNREAD, ENDLESS = b"unread", b"endless"


async def environment(rollout: Any) -> Any:
    """What was asked as ``unread`` has a large outcome, what is ``endless`` none."""
    run = rollout.input["run"]
    if run == ENDLESS:
        await trio.sleep_forever()
    size = 200 * KIB if run == UNREAD else 1
    return {"state": {"deltas": [], "reply": bytes(size), "traces": []}}


async def test_outcomes_that_nobody_reads_held_up_all_runs_until_their_lease_was_over():
    limits = ServerLimits(kept_bytes=300 * KIB)
    async with open_door(environment, server_limits=limits) as opened:
        async with asking(opened) as lost:
            for number in range(4):
                lost.run(b"%d" % number, UNREAD)
            for _ in range(4):
                await lost.hear()
        async with asking(opened) as peer:
            peer.run(b"a")
            heard: list[bytes] = []
            while heard[:1] != [b"a"]:
                heard = await peer.hear()
            assert heard == [b"a", b"reply", b"\0"]


async def test_server_keeps_nothing_of_runs_that_have_ended_or_were_cancelled():
    network = MemoryNetwork()
    with trio.fail_after(HANG_S):
        async with (
            open_server(environment, bind="memory:server", workers=0, network=network) as server,
            open_verifiers_door(server, bind=ANY_PORT, network=network) as opened,
            asking(opened) as peer,
        ):
            await opened.wait_ready()
            peer.run(b"ended")
            await peer.ends(1)
            for number in range(20):
                peer.run(b"%d" % number, ENDLESS)
            cancels = {peer.cancel(b"%d" % number) for number in range(20)}
            for name, [(_, reply)] in (await peer.ends(40)).items():
                told = msgpack.unpackb(reply)
                assert told["cancelled"] if name in cancels else "cancelled" in told["error"]
            while (stats := server.stats()).kept or stats.running or stats.keys:
                await trio.sleep(0.01)
