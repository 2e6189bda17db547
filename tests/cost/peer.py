"""The peers' virtual environments: given, found in the cache, or made on demand.

Each peer has an environment of its own, since their dependencies are many and
contradict each other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import trio

from tests.cost.cases import PEER_03, PEER_04


class Peer(NamedTuple):
    """Another environment server."""

    name: str
    """As a contender."""
    version: str
    """The version of the package ``verifiers``."""
    module: str
    """The module that its programs import."""
    program: str
    """In the folder ``peer_programs``."""

    @property
    def requirement(self) -> str:
        """The requirement that pip installs."""
        return f"verifiers=={self.version}"

    def check(self) -> str:
        """A program that imports it, and prints the versions of what matters for its
        figures."""
        return (
            f"import {self.module}, uvloop, zmq, importlib.metadata as m; "
            "print(', '.join(f'{name} {m.version(name)}' "
            "for name in ('verifiers', 'pyzmq', 'msgpack', 'pydantic', 'uvloop')))"
        )


PEERS = (
    Peer(PEER_04, "0.4.0", "verifiers.v1.serve", "bench_peer_04.py"),
    Peer(PEER_03, "0.3.0", "verifiers.serve", "bench_peer_03.py"),
)

_INSTALL_S = 900.0


class NoPeer(Exception):
    """The peer cannot take part; the text says why."""


class PeerPython(NamedTuple):
    """A Python that has the peer installed."""

    path: str
    versions: str
    """The versions of the peer and of what it stands on, in words."""


def cache_folder(peer: Peer) -> Path:
    """Where its environment is kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return Path(base) / "trio-envserve" / f"bench-peer-verifiers-{peer.version}-py{python}"


async def peer_python(peer: Peer, given: str | None, *, install: bool) -> PeerPython:
    """A Python with the peer: the given one, or that of the cache, which is made if
    ``install``.  NoPeer with the reason if there is none."""
    if given is not None:
        return PeerPython(given, await _check(peer, given))
    folder = cache_folder(peer)
    python = folder / "bin" / "python"
    if not python.exists():
        if not install:
            raise NoPeer(f"{peer.requirement} is not installed yet; a full run does that")
        await _make(peer, folder, python)
    return PeerPython(str(python), await _check(peer, str(python)))


async def _make(peer: Peer, folder: Path, python: Path) -> None:
    """All or nothing: an installation that was interrupted is no environment."""
    done = False
    try:
        await _run(peer, [sys.executable, "-m", "venv", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        await _run(peer, [*pip, peer.requirement, "uvloop"])
        done = True
    finally:
        if not done:
            shutil.rmtree(folder, ignore_errors=True)


async def _check(peer: Peer, python: str) -> str:
    return (await _run(peer, [python, "-c", peer.check()])).strip()


async def _run(peer: Peer, command: list[str]) -> str:
    """The output of the command."""
    with trio.move_on_after(_INSTALL_S):
        try:
            done = await trio.run_process(command, capture_stdout=True, capture_stderr=True)
        except OSError as error:
            raise NoPeer(f"{command[0]} cannot be run: {error}") from error
        except subprocess.CalledProcessError as error:
            said = error.stderr.decode(errors="replace").strip().splitlines()
            last = said[-1] if said else f"exit code {error.returncode}"
            raise NoPeer(f"{peer.requirement} cannot be installed or imported: {last}") from error
        return done.stdout.decode(errors="replace")
    raise NoPeer(f"{' '.join(command[:4])} ... took longer than {_INSTALL_S:g} s")
