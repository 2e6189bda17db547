"""Sandboxes as the code of a rollout has them, with a provider that runs nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from tests.sandboxes.provided import provider_or_skip
from trio_envserve.commands import CompletedProcess, CutOutput
from trio_envserve.core.errors import ConfigError
from trio_envserve.envs.interface import Rollout
from trio_envserve.models.offline import OracleModel
from trio_envserve.sandboxes import bubblewrap, finding
from trio_envserve.sandboxes.interface import SandboxCommand, SandboxSpec
from trio_envserve.sandboxes.sandbox import Sandbox, SandboxBlock, Sandboxed
from trio_envserve.worker.carriers import TrioCarrier


class Shown:
    """An open sandbox that notes its commands, and answers each with the same."""

    def __init__(self, ended: CompletedProcess | None = None) -> None:
        self.ended = ended or CompletedProcess(0, b"", b"")
        self.commands: list[SandboxCommand] = []

    async def run(self, command: SandboxCommand) -> CompletedProcess:
        self.commands.append(command)
        return self.ended


def sandbox_on(opened: Any, **env: str) -> Sandbox:
    return Sandbox("a", opened, TrioCarrier(), env)


async def test_exec_passes_all_that_it_is_told():
    opened = Shown()
    sandbox = sandbox_on(opened, A="of the sandbox", B="of the sandbox", C="dropped")
    await sandbox.exec(
        ["a", "b"], timeout_s=3, input="ä", cwd="c", env={"A": "own", "C": None}, most_bytes=7
    )
    both = {"A": "own", "B": "of the sandbox"}
    assert opened.commands == [(["a", "b"], "ä".encode(), 3.0, "c", both, 7)]


@pytest.mark.parametrize(
    ("argv", "how", "error"),
    [
        ("ls -l", {}, TypeError),
        ([], {}, ValueError),
        ([3], {}, TypeError),
        (["a\0b"], {}, ValueError),
        (["a"], {"env": {"A": "\0"}}, ValueError),
        (["a"], {"env": {"A=B": "c"}}, ValueError),
        (["a"], {"timeout_s": 0}, ValueError),
        (["a"], {"timeout_s": float("nan")}, ValueError),
        (["a"], {"most_bytes": -1}, ValueError),
    ],
)
async def test_exec_refuses_what_is_no_command(argv: Any, how: Any, error: type[Exception]):
    opened = Shown()
    with pytest.raises(error):
        await sandbox_on(opened).exec(argv, **how)
    assert not opened.commands


async def test_exec_that_is_to_keep_no_output_is_a_command():
    """It was refused."""
    opened = Shown()
    await sandbox_on(opened).exec(["a"], most_bytes=0)
    assert opened.commands[0].most_bytes == 0


async def test_a_file_that_is_larger_than_allowed_is_refused():
    large, small = (Shown(CompletedProcess(0, data, b"")) for data in (b"1234", b"123"))
    with pytest.raises(OSError, match="more than 3 bytes"):
        await sandbox_on(large).read("a", most_bytes=3)
    assert await sandbox_on(small).read("a", most_bytes=3) == b"123"


async def test_a_file_that_is_missing_is_told_as_such():
    missing = Shown(CompletedProcess(1, b"", b"head: a: No such file or directory\n"))
    with pytest.raises(FileNotFoundError, match="a: head"):
        await sandbox_on(missing).read("a")
    with pytest.raises(OSError, match="limit of time"):
        await sandbox_on(Shown(CompletedProcess(-9, b"", b"", limit="timeout"))).write("a", b"")


@pytest.mark.real
async def test_files_go_there_and_back():
    made = Sandboxed("bubblewrap", files={"begin/ä b": "text", "/tmp/x": b"\xff\0"}, processes=20)
    provider_or_skip("bubblewrap")
    async with SandboxBlock(held, TrioCarrier(), made) as sandbox:
        assert await sandbox.read("begin/ä b") == b"text"
        assert await sandbox.read("/tmp/x") == b"\xff\0"
        data = bytes(range(256)) * 40_000
        await sandbox.write("-strange/\n name", data)
        assert await sandbox.read("-strange/\n name") == data
        await sandbox.exec(["ln", "-s", "/etc/shadow", "/tmp/link"])
        for path in ("/tmp/link", "/tmp", "nosuch"):
            with pytest.raises(OSError, match=path):
                await sandbox.read(path)
        with pytest.raises(OSError, match=r"Read-only|denied"):
            await sandbox.write("/usr/x", b"")
    with pytest.raises(RuntimeError, match="ended with its block"):
        await sandbox.exec(["true"])


@asynccontextmanager
async def held(kind: str, create: Any, destroy: Any, *, here: bool) -> AsyncIterator[Any]:
    """A resource in this process, whose end does not depend on anybody."""
    assert (kind, here) == ("sandbox", True)
    name, handle = f"held-{id(create)}", None
    try:
        handle = await create(name)
        yield handle
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(destroy, name, handle)
        assert not bubblewrap.folder_of(name).exists()


@pytest.mark.real
async def test_files_that_cannot_be_written_end_the_sandbox():
    provider_or_skip("bubblewrap")
    block = SandboxBlock(held, TrioCarrier(), Sandboxed("bubblewrap", files={"/usr/x": "x"}))
    with pytest.raises(OSError, match="/usr/x"):
        async with block:
            pytest.fail("it began")


def test_a_rollout_that_no_worker_runs_has_no_sandbox():
    rollout = Rollout(None, OracleModel(), "m", {}, (), 1, "r")
    with pytest.raises(RuntimeError, match="no worker"):
        rollout.sandbox("bubblewrap")


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory_bytes": 0}, {"processes": 1.5}, {"cpu_s": -1}, {"disk_bytes": True},
        {"network": "no"}, {"image": ""}, {"files": {"a": 1}}, {"files": ["a"]},
        {"env": {"A": b"b"}}, {"env": {"": "b"}}, {"readable": "/usr"}, {"readable": ["usr"]},
    ],
)  # fmt: skip
def test_properties_that_are_none_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} of a sandbox"):
        SandboxSpec(**wrong)


def test_an_unknown_property_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'memory_bytes'"):
        Sandboxed("bubblewrap", memory_byte=1)


def test_an_unknown_provider_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean 'bubblewrap'.*docker, podman"):
        finding.find_provider("bubble-wrap")


def test_a_provider_of_others_is_found_by_its_entry_point(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
):
    meta = tmp_path / "theirs-1.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (meta / "entry_points.txt").write_text(
        "[trio_envserve.sandboxes]\nremote = theirs_of_sandboxes\nhalf = json\nbroken = nosuch\n"
    )
    members = "check = create = open = destroy = print\n"
    (tmp_path / "theirs_of_sandboxes.py").write_text(members)
    monkeypatch.syspath_prepend(tmp_path)
    assert callable(finding.find_provider("remote").destroy)
    with pytest.raises(ConfigError, match=r"no check, create, open, destroy"):
        finding.find_provider("half")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        finding.find_provider("broken")


@pytest.mark.parametrize("most", [0, 1, 2, 5, 100])
def test_an_output_keeps_its_beginning_and_its_end(most: int):
    for size in (0, 1, 2, 3, 5, 99, 100, 101, 1000):
        for step in (1, 7, 1000):
            data = bytes(i % 251 for i in range(size))
            output = CutOutput(most)
            for at in range(0, size, step):
                output.take(data[at : at + step])
            kept, cut = output.kept()
            assert len(kept) + cut == size
            assert kept == (
                data if size <= most else data[: most // 2] + data[size - (most - most // 2) :]
            )


def test_a_result_is_told_in_words():
    ended = CompletedProcess(2, b"out\xff\n", b"err\n")
    assert ended.text == "out\N{REPLACEMENT CHARACTER}\nerr\n[it exited with status 2]"
    assert CompletedProcess(-9, b"", b"").text == "[it was ended by SIGKILL]"
    assert CompletedProcess(0, b"", b"").text == ""
    assert CompletedProcess(-9, b"a", b"", limit="memory").text == (
        "a\n[it was killed at its limit of memory]"
    )
    assert CompletedProcess(0, b"abyz", b"", stdout_cut=9).text == "ab\n[... 9 bytes cut ...]\nyz"
