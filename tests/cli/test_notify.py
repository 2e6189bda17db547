"""What a service manager hears of a server: asked with a real datagram socket."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from tests.cli.commands import HANG_S, check_nothing_left, forked, served, until
from trio_envserve.cli.service import STATUS_CHARACTERS, Manager, ServiceState

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs its sockets and /proc")
READY = ServiceState(ready=True, stopping=False, text="ready")
BEATS = 20
"""So many beats do not come from a loop that is held."""


@contextmanager
def manager_socket(address: str) -> Iterator[socket.socket]:
    """What systemd listens at."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        listening.settimeout(HANG_S)
        yield listening


def heard(listening: socket.socket) -> dict[str, str]:
    """The fields of the next message."""
    return dict(line.split("=", 1) for line in listening.recv(65536).decode().split("\n"))


async def heard_with(listening: socket.socket, field: str) -> dict[str, str]:
    """The next message with that field."""
    while field not in (fields := await trio.to_thread.run_sync(heard, listening)):
        pass
    return fields


def manager(address: str, **more: str) -> Manager:
    found = Manager.of({"NOTIFY_SOCKET": address, **more})
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["path", pytest.param("abstract", marks=needs_linux)])
def test_what_has_changed_is_told_once_in_one_short_line(folder: str, kind: str) -> None:
    address = f"{folder}/notify" if kind == "path" else f"@{folder}/notify"
    odd = "broken\nREADY=1\n\ud800" + "x" * 9999  # as an environment may raise it
    with manager_socket(address) as listening:
        told = manager(address)
        told.tell(ServiceState(ready=False, stopping=False, text=odd))
        fields = heard(listening)
        assert set(fields) == {"STATUS"}
        assert len(fields["STATUS"]) < 2 * STATUS_CHARACTERS
        told.tell(READY)
        assert heard(listening) == {"STATUS": "ready", "READY": "1"}
        told.tell(READY)
        told.tell(ServiceState(ready=False, stopping=True, text="stopping"))
        assert heard(listening) == {"STATUS": "stopping", "STOPPING": "1"}
        told.close()


def test_watchdog_has_a_beat_with_every_look(folder: str) -> None:
    address = f"{folder}/notify"
    with manager_socket(address) as listening:
        told = manager(address, WATCHDOG_USEC="3000000", WATCHDOG_PID=str(os.getpid()))
        assert (told.watchdog_s, told.beat_s) == (3.0, 1.5)
        first = {"STATUS": "ready", "READY": "1", "WATCHDOG": "1"}
        for expected in (first, {"WATCHDOG": "1"}):
            told.tell(READY)
            assert heard(listening) == expected
        told.close()


@pytest.mark.parametrize(
    ("period", "pid"), [("3000000", "1"), ("", ""), ("0", ""), ("many", ""), ("-5", "")]
)
def test_watchdog_that_is_none_or_another_processs_wants_no_beat(
    folder: str, period: str, pid: str
) -> None:
    more = {"WATCHDOG_PID": pid} if pid else {}
    told = manager(f"{folder}/notify", WATCHDOG_USEC=period, **more)
    assert told.watchdog_s is None
    told.close()


@pytest.mark.parametrize("address", ["", "notify", "vsock:2:1234"])
def test_address_that_is_none_is_no_manager_and_is_taken_out_of_the_environment(
    address: str,
) -> None:
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    assert Manager.of(environ) is None
    assert environ == {"HOME": "/"}


def test_what_the_manager_has_no_room_for_is_told_later(folder: str) -> None:
    address = f"{folder}/notify"
    kind = socket.AF_UNIX, socket.SOCK_DGRAM
    with manager_socket(address) as listening, socket.socket(*kind) as full:
        full.setblocking(False)
        filled = 0
        with pytest.raises(BlockingIOError):
            while True:
                full.sendto(b"FILLED=1", address)
                filled += 1
        told = manager(address)
        told.tell(READY)
        for _ in range(filled):
            assert heard(listening) == {"FILLED": "1"}
        told.tell(READY)
        assert heard(listening) == {"STATUS": "ready", "READY": "1"}
        told.close()


def test_a_manager_that_is_gone_is_named_once_and_harms_nobody(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = manager(f"{folder}/nobody")
    told.tell(READY)
    told.tell(READY)
    assert capsys.readouterr().err.count("the service manager cannot be told") == 1
    with manager_socket(f"{folder}/nobody") as listening:
        told.tell(READY)
        assert heard(listening) == {"STATUS": "ready", "READY": "1"}
    told.close()


# -- the command ------------------------------------------------------------------


@pytest.mark.real
@needs_linux
async def test_a_service_says_ready_beats_and_says_stopping(tmp_path: Path, folder: str) -> None:
    address = f"{folder}/notify"
    (tmp_path / "lasts.py").write_text(
        "import os, trio\n"
        "async def lasts(rollout):\n"
        "    # Workers cannot speak to the manager.\n"
        "    assert not {'NOTIFY_SOCKET', 'WATCHDOG_USEC'} & set(os.environ)\n"
        "    await trio.sleep_forever()\n"
    )
    (tmp_path / "in.jsonl").write_text("1\n")
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "400000"}
    with manager_socket(address) as listening:
        async with served(tmp_path, "lasts:lasts", **environ) as (server, place):
            ready = await heard_with(listening, "READY")
            assert ready["STATUS"].startswith("ready: 1 of 1 workers are ready")
            ask = ("eval", "lasts:lasts", "--inputs", "in.jsonl", "--address", place, "--no-rerun")
            async with forked(tmp_path, *ask) as client:
                while "1 executions run" not in (await heard_with(listening, "STATUS"))["STATUS"]:
                    pass
                server.signal(signal.SIGTERM)
                stopping = await heard_with(listening, "STOPPING")
                assert "draining" in stopping["STATUS"]
                assert "1 executions are running" in stopping["STATUS"]
                assert "s more at most" in stopping["STATUS"]
                for _ in range(BEATS):  # it is alive as long as it drains
                    await heard_with(listening, "WATCHDOG")
                client.signal(signal.SIGINT)
                await client.wait()
            done = await server.wait()
    assert done.code == 0
    await check_nothing_left(tmp_path)


@pytest.mark.real
@needs_linux
async def test_the_beat_stops_while_the_loop_is_held(tmp_path: Path, folder: str) -> None:
    address = f"{folder}/notify"
    (tmp_path / "held.py").write_text(
        "async def held(rollout):\n"
        "    open('began', 'w').close()\n"
        "    open('gate').read()\n"  # a FIFO: the loop waits for its writer
        "    return 1\n"
    )
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "in.jsonl").write_text("1\n")
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "100000"}
    with manager_socket(address) as listening:
        async with served(tmp_path, "held:held", "--workers", "0", **environ) as (server, place):
            await heard_with(listening, "READY")
            ask = ("eval", "held:held", "--inputs", "in.jsonl", "--address", place, "--json")
            async with forked(tmp_path, *ask) as client:
                await until((tmp_path / "began").exists)
                listening.setblocking(False)
                with pytest.raises(BlockingIOError):
                    while True:  # what was sent before
                        heard(listening)
                listening.settimeout(BEATS * 0.05)
                with pytest.raises(TimeoutError):
                    heard(listening)
                listening.settimeout(HANG_S)
                (tmp_path / "gate").write_text("")
                await heard_with(listening, "WATCHDOG")
                assert (await client.wait()).last["results"] == 1
            server.signal(signal.SIGTERM)
            await server.wait()
