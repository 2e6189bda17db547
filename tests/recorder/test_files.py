"""The files that a server writes: bounded, kept, and never anybody else's."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from trio_envserve import ConfigError, Rollout, ServerLimits, open_client, open_server
from trio_envserve.core.router import Router
from trio_envserve.core.router_inputs import ClientMessage
from trio_envserve.lab.recording import load, replay
from trio_envserve.net import MemoryNetwork
from trio_envserve.server.recording import files

HANG_S = 60.0


async def serve_some(
    path: Path, count: int = 5, *, bodies: bool = False, **limits: Any
) -> dict[str, Any]:
    """A recorded server, and a client with so many rollouts; the last statistics."""

    async def run(rollout: Rollout) -> Any:
        if rollout.input == "fail":
            raise ValueError("no good")
        await trio.lowlevel.checkpoint()
        return rollout.input

    network = MemoryNetwork()
    with trio.fail_after(HANG_S):
        async with (
            open_server(
                run, bind="memory:s", workers=0, network=network, record=path,
                record_bodies=bodies, limits=ServerLimits(**limits),
            ) as server,
            open_client(server.address, network=network) as client,
        ):  # fmt: skip
            for number in range(count):
                await client.run_rollout({"prompt": f"very private {number}"})
            (outcome,) = [await client.outcome("fail")]
            assert outcome.error is not None
            await client.stats()
            return server.stats().to_record()


@pytest.mark.parametrize("bodies", [False, True])
async def test_a_session_is_recorded_and_replayed(tmp_path: Path, bodies: bool):
    path = tmp_path / "a.rec"
    stats = await serve_some(path, bodies=bodies)
    whole = replay(path)
    assert whole.identical
    assert whole.about["epoch"].hex() == stats["epoch"]
    assert not whole.router.sessions.known
    counters = whole.router.stats()["cache"]
    for name in ("requests", "entered", "dispatched", "completed"):
        assert counters[name] == stats["cache"][name] >= 6
    assert (b"very private" in path.read_bytes()) is bodies
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_the_recording_of_an_earlier_server_is_kept(tmp_path: Path):
    path = tmp_path / "a.rec"
    first = await serve_some(path, 1)
    second = await serve_some(path, 2)
    assert replay(path).about["epoch"].hex() == second["epoch"]
    assert replay(tmp_path / "a.rec.old").about["epoch"].hex() == first["epoch"]


def a_text(path: Path) -> None:
    path.write_text("results\n")


def a_link(path: Path) -> None:
    path.symlink_to("else")


def an_old_text(path: Path) -> None:
    path.write_bytes(b"")  # of a server that died at once
    path.with_name("a.rec.old").write_text("results\n")


def files_in(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.is_file()]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (a_text, "is no recording"),
        (a_link, "a.rec"),
        (Path.mkdir, "is no recording"),
        (an_old_text, r"a\.rec\.old exists, and is no recording"),
    ],
)
async def test_nobodys_data_is_overwritten(
    tmp_path: Path, make: Callable[[Path], object], said: str
):
    make(tmp_path / "a.rec")
    with pytest.raises(ConfigError, match=said):
        await serve_some(tmp_path / "a.rec")
    left = {each: each.read_text() for each in files_in(tmp_path)}
    assert set(left.values()) <= {"", "results\n"}


async def test_a_file_that_cannot_be_had_is_told_at_the_start(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot record to .*: No such file"):
        await serve_some(tmp_path / "no" / "a.rec")


async def test_two_servers_never_share_a_file(tmp_path: Path):
    path = tmp_path / "a.rec"
    path.write_bytes(b"")
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="another server is recording"):
            await serve_some(path)
    finally:
        os.close(fd)
    await serve_some(path)


async def test_a_disk_that_fails_ends_the_recording_and_not_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    def full(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    write = files._write
    monkeypatch.setattr(
        files,
        "_write",
        lambda fd, data: (monkeypatch.setattr(files, "_write", full), write(fd, data)),
    )
    stats = await serve_some(tmp_path / "a.rec", 50, record_flush_s=0.001)
    assert stats["cache"]["completed"] == 51
    told = [record for record in caplog.records if "the recording ends here" in record.message]
    assert len(told) == 1
    assert "No space left on device" in told[0].message
    replay(tmp_path / "a.rec")


async def test_a_flaw_that_ends_the_server_is_on_its_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "a.rec"
    shipped = Router._request

    def flawed(router: Router, route: bytes, request: Any, body: Any, now_s: float) -> None:
        if request.sequence == 3:
            raise RuntimeError("a flaw")
        shipped(router, route, request, body, now_s)

    monkeypatch.setattr(Router, "_request", flawed)
    with pytest.raises(RuntimeError, match="a flaw"):
        await serve_some(path)
    played = replay(path)
    assert isinstance(played.raised, RuntimeError)
    assert played.difference is None
    last = list(load(path))[-1]
    assert isinstance(last.given, ClientMessage)
    assert last.raised == "RuntimeError"
    monkeypatch.undo()  # mended: what follows is not known, but this is gone
    mended = replay(path)
    assert mended.raised is None
    assert mended.difference is not None
    assert "raised RuntimeError, and does not now" in mended.difference.what
