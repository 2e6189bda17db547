"""A router's state as data and back; and what is no state is refused."""

from __future__ import annotations

import copy
from typing import Any

import cbor2
import pytest

from tests.recorder.taped import recorded_simulations
from trio_envserve.core.router import Router
from trio_envserve.lab.simulation.simulator import World
from trio_envserve.server.recording import snapshot
from trio_envserve.server.recording.masks import Masks
from trio_envserve.server.recording.snapshot import SnapshotError, difference, freeze, thaw


def busy_router() -> Router:
    """One with sessions, waiting, running and kept requests in it."""
    with recorded_simulations():
        for seed in range(100):
            world = World(seed)
            while world.events.now_s < 3.0 and world.events.step():
                pass
            taped: Any = world.server.router
            router: Router = taped.tape.router
            cache = router.cache
            if cache.queued_count and cache.kept_count and router.force.live_count() > 2:
                return router
    raise AssertionError("no seed has a busy router")


BUSY = busy_router()


def fresh() -> Router:
    return Router(
        epoch=BUSY.epoch, slots=len(BUSY.pool.slots), now_s=0.0, new_id=lambda: b"i" * 16,
        limits=BUSY.limits, wire=BUSY.wire,
    )  # fmt: skip


def through_cbor(frozen: Any) -> Any:
    return cbor2.loads(cbor2.dumps(frozen))


@pytest.mark.parametrize("bodies", [False, True])
def test_there_and_back(bodies: bool):
    frozen = freeze(BUSY, Masks(), bodies=bodies)
    router = thaw(through_cbor(frozen), fresh())
    again = freeze(router, Masks(), bodies=bodies)
    assert difference(through_cbor(again), through_cbor(frozen)) == ""
    assert router.stats()["cache"] == BUSY.stats()["cache"]
    session = next(iter(router.cache.sessions.values()))
    assert router.cache._by_nonce[session.nonce] is session
    for worker in router.force.workers.values():
        for execution in worker.live.values():
            assert execution.worker is worker
            if execution.entry is not None:
                assert execution.entry.execution is execution


def test_bodies_or_not_is_no_difference():
    plain, full = freeze(BUSY, Masks()), freeze(BUSY, Masks(), bodies=True)
    assert plain != full
    assert difference(plain, full) == ""


def test_ids_are_masked():
    data = cbor2.dumps(freeze(BUSY, Masks(b"k" * 32)))
    for session in BUSY.cache.sessions.values():
        assert session.id not in data
        assert session.nonce not in data
    for life in BUSY.pool.lives.values():
        assert life.incarnation not in data
    assert BUSY.epoch in data


def test_a_difference_is_named():
    frozen = freeze(BUSY, Masks())
    other = copy.deepcopy(frozen)
    names = other[0]["Counters"]
    row = next(row for row in other[1] if row[0] == "Counters")
    row[1 + names.index("entered")] += 1
    assert "Counters.entered" in difference(frozen, other)
    other[1].pop()
    row[1 + names.index("entered")] -= 1
    assert "objects" in difference(frozen, other)


def test_a_state_of_another_version_is_refused_with_what_it_has():
    frozen = freeze(BUSY, Masks())
    for name in ("Router", "Session"):
        other = copy.deepcopy(frozen)
        other[0][name] = [*other[0][name][:-1], "colour"]
        with pytest.raises(SnapshotError, match=f"another version: {name} .*colour"):
            thaw(other, fresh())
    other = copy.deepcopy(frozen)
    other[0]["Popen"] = ["args"]
    with pytest.raises(SnapshotError, match="a Popen"):
        thaw(other, fresh())


@pytest.mark.parametrize(
    "hostile",
    [
        None, [], [{}, []], [{}, [["Router"]]], [{"Router": []}, []], ["x", "y"],
        [{"Kept": ["frames", "size_bytes", "sent_probe"]}, [["Kept", [b""], 0, 0]]],
    ],
)  # fmt: skip
def test_what_is_no_state_is_refused(hostile: Any):
    with pytest.raises(SnapshotError):
        thaw(hostile, fresh())


def counting() -> Router:
    router = fresh()
    router.cache.count = router.force.live_count  # type: ignore[attr-defined]  # some method
    return router


def test_methods_of_other_parts_are_kept_and_nothing_else_is_bound():
    frozen = freeze(counting(), Masks())
    router = thaw(frozen, counting())
    assert router.cache.count.__self__ is router.force  # type: ignore[attr-defined]  # as above
    at = 1 + frozen[0]["DedupCache"].index("count")
    row = next(row for row in frozen[1] if row[0] == "DedupCache")
    assert row[at][0] == snapshot.METHOD
    for name in ("__init__", "nothing"):
        row[at][-1] = name
        with pytest.raises(SnapshotError, match="no method"):
            thaw(frozen, counting())


def test_what_nobody_foresaw_is_refused_when_it_is_frozen():
    router = fresh()
    router.force.stats[b"w"] = {"odd": object()}
    with pytest.raises(SnapshotError, match="no place for a object"):
        freeze(router, Masks())
    router.force.stats.clear()
    router.odd = lambda: 0  # type: ignore[attr-defined]  # that is the point
    with pytest.raises(SnapshotError, match="callable odd"):
        freeze(router, Masks())
