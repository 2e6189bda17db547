"""What the live page is told: ``/``, ``/v1/events``, ``/v1/running`` and ``/v1/stack``."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.doors.http.door import HANG_S, TOKEN, Raw, asking, open_door, raw, tokens, told
from trio_envserve import Rollout
from trio_envserve.core.health import ServerStatus
from trio_envserve.core.notes import Note
from trio_envserve.core.status import (
    HostStats,
    PastHost,
    PermitStats,
    ResourceStats,
    RunningPage,
    RunningRollout,
    ServerStats,
    WorkerDeath,
    WorkerStats,
)
from trio_envserve.doors.http import live
from trio_envserve.doors.http.live import PAGE, TEXT_CHARACTERS, VIEW_BYTES, event, view
from trio_envserve.pages.tables import tables_of

HOSTILE = "</script><script>alert(1)</script>\u2028\x1b[2J"


class Viewer:
    """Who watches."""

    def __init__(self, peer: Raw) -> None:
        self._peer = peer
        self._rest = b""
        self.head = b""

    async def ask(self, *headers: str) -> None:
        await self._peer.send("GET /v1/events HTTP/1.1", "Host: 127.0.0.1", *headers)

    async def view(self) -> dict[str, Any] | None:
        """The next view; None at the end.  Each is a chunk of its own."""
        while b"\n\n" not in self._rest:
            piece = await self._peer.stream.receive_some()
            if not piece:
                return None
            self._rest += piece
        one, _, self._rest = self._rest.partition(b"\n\n")
        assert len(one) <= 64_000
        before, _, data = one.partition(b"\ndata: ")
        self.head = self.head or before
        assert b"id: " in before
        found: dict[str, Any] = json.loads(data)
        return found


@asynccontextmanager
async def watching(door: Any, *headers: str) -> AsyncIterator[Viewer]:
    async with raw(door) as peer:
        viewer = Viewer(peer)
        await viewer.ask(*headers)
        yield viewer


async def test_the_page_is_one_file_that_loads_nothing_and_runs_no_other_script():
    async with open_door("arithmetic") as door, asking(door) as client:
        answer = await client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "; connect-src 'self'; " in policy
    assert "unsafe" not in policy
    text = answer.text
    assert "/*script*/" not in text
    assert "uPlot (v1.6.32)" in text
    assert "Copyright (c) 2022 Leon Sorokin" in text
    for loads in ("src=", "@import", 'href="http', "innerHTML", "insertAdjacentHTML"):
        assert loads not in text.replace('href="data:,"', "")


class Waiting:
    """Rollouts that note their input, and wait."""

    def __init__(self) -> None:
        self.gate = trio.Event()

    async def run_rollout(self, rollout: Rollout) -> str:
        rollout.note(text=rollout.input)
        await self.gate.wait()
        return "done"


async def test_rollouts_that_run_are_in_views_and_answers_the_oldest_first():
    environment = Waiting()
    async with open_door(environment) as door, asking(door) as client, watching(door) as viewer:
        assert (await client.get("/v1/stack?number=0")).json() == {"stack": None}
        async with trio.open_nursery() as nursery:
            for number, name in enumerate((HOSTILE, "two")):
                body, headers = {"input": name}, {"idempotency-key": f'"{number}"'}
                nursery.start_soon(partial(client.post, "/v1/rollouts", json=body, headers=headers))
                page: dict[str, Any] = {"running": []}
                while [bool(row["note"]) for row in page["running"]] != [True] * (number + 1):
                    page = (await client.get("/v1/running?sort=age")).json()
            first = page["running"][1]["number"]
            rest = (await client.get("/v1/running", params={"first": first})).json()
            seen = await viewer.view()
            while seen and not (len(seen["slow"]) == 2 and seen["slow"][1]["note"]):
                seen = await viewer.view()
            stack = (await client.get(f"/v1/stack?number={first}")).json()["stack"]
            environment.gate.set()
    assert page["total"] == 2
    assert seen
    for rows in (page["running"], seen["slow"]):
        assert [(row["key"], row["note"]) for row in rows] == [
            ("0", {"text": HOSTILE}), ("1", {"text": "two"}),
        ]  # fmt: skip
    assert [row["key"] for row in rest["running"]] == ["1"]
    assert "in run_rollout" in stack
    assert b"content-type: text/event-stream" in viewer.head
    assert seen["status"] == "ready"
    assert (seen["running"], seen["total"], seen["tokens"]) == (2, 2, False)
    assert seen["bounds"]["waiting"] > 0
    (workers,) = seen["tables"]
    assert workers["columns"][:3] == ["worker", "pid", "phase"]
    assert [row[2] for row in workers["rows"]] == ["ready"]


async def test_what_cannot_be_asked_is_refused():
    wrong = ["sort=key", "first=-1", "first=1e3", "frist=1", "first=" + "9" * 30]
    async with open_door("arithmetic") as door, asking(door) as client:
        for path in (*(f"/v1/running?{query}" for query in wrong), "/v1/stack?number=x"):
            assert told(await client.get(path)) == (400, "bad-request"), path


async def test_viewer_with_a_token_gets_views_whoever_comes_and_goes(tmp_path: Path):
    shown = f"Authorization: Bearer {TOKEN}"
    async with open_door("arithmetic", token_file=tokens(tmp_path)) as door:
        for _ in range(2):  # the second time, none is there from before
            async with watching(door, shown) as one, watching(door, shown) as two:
                for viewer in (one, two, one):
                    seen = await viewer.view()
                    assert seen
                    assert seen["tokens"] is True


async def test_g8_more_want_to_look_than_may_and_rollouts_end_all_the_same():
    """Those beyond the bound are told; one of those within it reads nothing."""
    viewers, bound = 60, 8
    heads: list[bytes] = []
    async with (
        open_door("arithmetic", {"viewers": bound}) as door, asking(door) as client,
        AsyncExitStack() as later,
    ):  # fmt: skip
        peers = [await later.enter_async_context(raw(door)) for _ in range(viewers)]
        for peer in peers:
            await peer.send("GET /v1/events HTTP/1.1", "Host: 127.0.0.1")

        async def look(peer: Raw) -> None:
            heads.append(await peer.stream.receive_some(12))

        async with trio.open_nursery() as nursery:
            for peer in peers[1:]:
                nursery.start_soon(look, peer)
            answer = await client.post(
                "/v1/rollouts", json={"input": {"index": 0}, "model": "oracle"}
            )
        assert told(await client.get("/v1/events")) == (429, "busy")
    assert answer.status_code == 200
    assert sorted(Counter(heads).items()) == [
        (b"HTTP/1.1 200", bound - 1),
        (b"HTTP/1.1 429", viewers - bound),
    ]


async def test_g10_who_reads_nothing_is_cut_off_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(live, "EVERY_S", 0.001)
    large = event({"slow": [], "tables": [], "x": "x" * 50_000}, 1)
    monkeypatch.setattr(live, "event", lambda *_: large)
    async with open_door("arithmetic", {"write_s": 0.5}) as door, watching(door) as viewer:
        async with watching(door):  # it reads nothing
            while door.connections < 2:
                assert await viewer.view()
            while door.connections == 2:
                assert await viewer.view()
        assert await viewer.view()


async def test_a_door_that_closes_ends_what_viewers_are_sent():
    async with AsyncExitStack() as later:
        async with open_door("arithmetic", {"close_s": HANG_S / 2}) as door:
            viewer = await later.enter_async_context(watching(door))
            assert await viewer.view()
        assert await viewer.view() is None


async def test_nothing_was_answered_behind_a_head_of_the_events():
    """The answer had no end, though its peer had all of it."""
    async with open_door("arithmetic") as door, raw(door) as peer:
        await peer.send("HEAD /v1/events HTTP/1.1", "Host: localhost")
        await peer.send("GET /livez HTTP/1.1", "Host: localhost", "Connection: close")
        assert (await peer.rest()).count(b"HTTP/1.1 200 ") == 2


# -- views ---------------------------------------------------------------------


def stats(workers: int) -> ServerStats:
    one = WorkerStats(worker="w" * 60, phase="ready")
    death = WorkerDeath(worker="w0-1", why="x" * 5000, lost=3)
    host = HostStats(host="h" * 64, state="set aside", why="x" * 5000)
    past = PastHost(host="h" * 64, state="lost", why="x" * 5000)
    permit = PermitStats(name="limit:" + "n" * 128, held=3, waiting=4, limit=3)
    resource = ResourceStats(name="n" * 64, kind="k" * 64, state="stuck", why="x" * 5000)
    return ServerStats(
        status=ServerStatus.READY, per_worker=(one,) * workers, deaths=(death,) * 20,
        failures={"rollout-failed": 3}, hosts=(host,) * workers, past_hosts=(past,) * 16,
        permits=(permit,) * workers, resources_held=(resource,) * workers,
    )  # fmt: skip


def page(rollouts: int) -> RunningPage:
    note: Note = {f"n{number}": HOSTILE * 20 for number in range(20)}
    note["big"] = 2**60
    row = RunningRollout(number=1, request="r#1", note=note, where="y" * 5000)
    return RunningPage(running=(row,) * rollouts, total=rollouts)


def test_g8_a_view_fits_whatever_is_in_it():
    made = event(view(stats(1000), page(100), "", tokens=False), 7)
    assert len(made) <= 64_000
    assert made.startswith(b"id: 7\ndata: {")
    assert made.count(b"\n") == 3
    found = json.loads(made.partition(b"data: ")[2])
    assert found["slow"]
    tables = {table["field"]: table for table in found["tables"]}
    assert tables["per_worker"]["more"] + len(tables["per_worker"]["rows"]) == 1000
    assert len(tables["deaths"]["rows"][0][-1]) == TEXT_CHARACTERS + 1
    assert found["slow"][0]["note"]["big"] == str(2**60)
    assert len(json.dumps(found)) > VIEW_BYTES // 8
    silent = view(None, None, "no answer", tokens=True)
    assert (silent["why"], silent["tokens"]) == ("no answer", True)


def test_g8_view_of_long_reasons_in_another_script_was_shortened_for_ever():
    """Only workers, hosts and rollouts were left out, and the loop of the server was held.  Later
    each table was halved, and one of a single row lost it for the rows of another one."""
    why = "\u4e2d" * 5000  # six bytes each in JSON
    resource = ResourceStats(name="r", state="stuck", why=why)
    seen = ServerStats(
        status=ServerStatus.READY, resources_held=(resource,) * 32, deaths=(WorkerDeath(why=why),)
    )
    made = event(view(seen, page(1), "", tokens=False), 7)
    assert len(made) <= 64_000
    tables = {table["field"]: table for table in json.loads(made.partition(b"data: ")[2])["tables"]}
    assert tables["resources_held"]["rows"]
    assert (len(tables["deaths"]["rows"]), tables["deaths"]["more"]) == (1, 0)


def test_tables_of_the_page_are_those_of_top_and_say_what_is_bad_news():
    seen = stats(2)
    workers = (WorkerStats(worker="w0-1", phase="ready", silent=True), WorkerStats(failed=2))
    seen = dataclasses.replace(seen, per_worker=workers, past_hosts=(), deaths=seen.deaths[:1])
    shown = view(seen, page(0), "", tokens=False)["tables"]
    tables = tables_of(seen.to_record(), *live.TABLES)
    assert [(each["title"], each["columns"], each["left"]) for each in shown] == [
        (each.title, each.columns, each.left) for each in tables
    ]
    assert shown[-2]["rows"] == tables[-2].rows
    bad = {each["field"]: [each["columns"][at] for _, at in each["bad"]] for each in shown}
    assert bad == {
        "hosts": ["state"] * 2, "permits": [], "resources_held": ["state"] * 2,
        "per_worker": ["phase", "failed"], "deaths": ["lost"],
    }  # fmt: skip


def test_page_says_how_late_each_worker_is_in_the_order_of_their_places():
    """It had what each worker says of itself, which a blocked one does not: 2.6 ms for 10 s.  A
    worker that was started again moved to the end."""
    blocked = WorkerStats(worker="w0-2", slot=0, phase="ready", blocked=True, lag_s=10.7)
    seen = ServerStats(status=ServerStatus.READY, per_worker=(WorkerStats(slot=1), blocked))
    (table,) = view(seen, page(0), "", tokens=False)["tables"]
    assert table["rows"][0][:3] == ["w0-2", "-", "ready, blocked for 11 s"]
    assert [0, 2] in map(list, table["bad"])


def test_page_says_that_no_worker_is_ready_where_there_is_none():
    """Its heading went with its rows, when all was down."""
    (table,) = view(ServerStats(status=ServerStatus.READY), page(0), "", tokens=False)["tables"]
    assert (table["field"], table["rows"], table["more"]) == ("per_worker", [], 0)


def test_whatever_the_page_reads_of_a_view_is_in_it():
    made = view(stats(1), page(1), "", tokens=False) | {"latency": {}}
    script = PAGE.decode().rpartition("// The live page.")[2]
    assert set(re.findall(r"\bv\.([a-z_]+)", script)) <= set(made)
    rows = [*made["tables"], *made["slow"]]
    assert set(re.findall(r"\beach\.([a-z_]+)", script)) <= {"key", "fit"}.union(*rows)
