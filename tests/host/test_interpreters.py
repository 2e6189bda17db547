"""Workers under another Python: which has the framework, and may lack this package."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

import trio_envserve
from trio_envserve import ConfigError, EnvironmentBroken, open_client, open_server
from trio_envserve.host.interpreters import find_interpreter, own_folders

pytestmark = pytest.mark.real

PACKAGE = Path(trio_envserve.__file__).parent


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for packages of a virtual environment, ``env``, with nothing in it."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    folder = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (found,) = folder.glob("lib/python*/site-packages")
    return found


def with_this_package(packages: Path) -> None:
    """Let an interpreter see what this one sees."""
    folders = [entry for entry in sys.path if entry] + [str(PACKAGE.parent)]
    (packages / "these.pth").write_text("\n".join(folders))


async def test_workers_run_under_the_other_interpreter_with_the_users_own_folders(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with_this_package(packages)
    # What is only there: this interpreter cannot import it.
    (packages / "only_there.py").write_text("import sys\nwhere = sys.prefix\n")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "in_my_folder.py").write_text(
        "import only_there\ndef ask(rollout): return [only_there.where, rollout.input]\n"
    )
    monkeypatch.syspath_prepend(str(mine))
    with trio.fail_after(180):
        async with (
            open_server("in_my_folder:ask", worker_python=tmp_path / "env") as server,
            open_client(server.address) as client,
        ):
            assert await client.run_rollout(7) == [str(tmp_path / "env"), 7]
        async with (
            open_server("not_there:ask", worker_python=tmp_path / "env/bin/python") as server,
            open_client(server.address) as client,
        ):
            with pytest.raises(EnvironmentBroken, match="No module named 'not_there'"):
                await client.run_rollout(7)


def another_version(packages: Path) -> None:
    (packages / "trio_envserve").mkdir()
    (packages / "trio_envserve" / "__init__.py").write_text("__version__ = '0.0.1'\n")


def without_what_it_needs(packages: Path) -> None:
    (packages / "this.pth").write_text(str(PACKAGE.parent))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda _: None, r"has no module 'trio_envserve'. Install it there: .*pip"),
        (another_version, r"has trio_envserve 0.0.1 .* both must be the same"),
        (without_what_it_needs, r"has no module '(trio|cbor2|outcome)'"),
    ],
    ids=["no-package", "another-version", "no-dependencies"],
)
async def test_an_interpreter_that_cannot_host_workers_is_refused(
    packages: Path, tmp_path: Path, make: Callable[[Path], None], said: str
):
    make(packages)
    with pytest.raises(ConfigError, match=said):
        async with open_server(worker_python=tmp_path / "env"):
            pass


@pytest.mark.parametrize(
    ("python", "said"),
    [("/no/such/python", "is not there"), ("true", "is not a Python"), ("", "path of a Python"),
     (__file__, "is not a program")],
)  # fmt: skip
async def test_what_is_not_an_interpreter_is_refused(python: str, said: str):
    with pytest.raises(ConfigError, match=said):
        async with open_server(worker_python=python):
            pass


def test_a_link_to_an_interpreter_stays_one(tmp_path: Path):
    """It says which environment is meant; its target does not."""
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    assert find_interpreter(link) == str(link)


def test_what_is_installed_here_is_not_the_users(monkeypatch):
    monkeypatch.syspath_prepend("/home/somebody/envs")
    assert "/home/somebody/envs" in own_folders()
    assert not any(folder.endswith(("site-packages", "lib-dynload")) for folder in own_folders())
