"""What starts a cluster is real, and slow; each test has the log of its environments."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.connections import held_port
from tests.real.judge import Judge


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """The stage of this test, and its judge."""
    directory = tmp_path / "stage"
    directory.mkdir()
    return Judge(directory)


SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={daemon}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
OverTimeLimit=0
KillWait=30
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def slurm(slurm_daemons: None) -> Iterator[None]:
    """A Slurm whose node is idle, with no job of the test before; none of this test is left
    when it has ended, however it ends."""
    wait_for_idle_node()
    try:
        yield
    finally:
        subprocess.run(["scancel", "--user=root", "--full"], check=True, timeout=60)
        wait_for(lambda: not jobs(), 120)


@pytest.fixture(scope="session")
def slurm_daemons() -> Iterator[None]:
    """A Slurm of one node; its commands find it by the variable SLURM_CONF."""
    needed = ("munged", "slurmctld", "slurmd", "sbatch")
    if getpass.getuser() != "root" or None in map(shutil.which, needed):
        pytest.skip("needs Slurm (Debian: slurm-wlm, munge), and root")
    with (
        tempfile.TemporaryDirectory() as name,
        pytest.MonkeyPatch.context() as patch,
        held_port() as controller,
        held_port() as daemon,
    ):
        folder = Path(name)
        for each in ("state", "spool"):
            (folder / each).mkdir()
        folder.chmod(0o711)
        key = folder / "munge.key"
        key.write_bytes(b"k" * 128)
        key.chmod(0o600)
        (folder / "slurm.conf").write_text(
            SLURM_CONF.format(
                host=socket.gethostname(), user="root", folder=folder, controller=controller,
                daemon=daemon,
            )
        )  # fmt: skip
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        munge = ["munged", "--foreground", "--force", f"--key-file={key}"]
        for what in ("socket", "pid-file", "log-file", "seed-file"):
            munge.append(f"--{what}={folder}/munge.{what.removesuffix('-file')}")
        started = []
        try:
            for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D"]):
                with open(folder / f"{command[0]}.out", "wb") as out:
                    started.append(subprocess.Popen(command, stdout=out, stderr=out))
                if command is munge:
                    wait_for(lambda: (folder / "munge.socket").exists())
            wait_for_idle_node()
            yield
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait(30)


def wait_for_idle_node() -> None:
    """A job that has left the queue may still be ending on the node: then it gets no other one
    that wants all of it, and one that Slurm takes for broken gets none."""
    wait_for(lambda: state_of_nodes() == b"idle", 120)


def state_of_nodes() -> bytes:
    """In one word, as all jobs run on the one node; empty while the controller does not answer."""
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%T"], capture_output=True, check=False, timeout=60
    )
    return done.stdout.strip()


def words_of_nodes() -> str:
    """Their states, why Slurm has set them so, and the end of the log of the node's daemon."""
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%T: %E"], capture_output=True, check=False, timeout=60
    )
    log = Path(os.environ["SLURM_CONF"]).with_name("slurmd.log").read_text(errors="replace")
    return "\n".join([done.stdout.decode(), *log.splitlines()[-20:]])


def jobs() -> int:
    """How many are in the queue, ending ones too."""
    done = subprocess.run(["squeue", "--noheader"], capture_output=True, check=True, timeout=60)
    return len(done.stdout.splitlines())


def wait_for(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    end_s = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end_s, f"Slurm is not ready; its node: {words_of_nodes()}"
        time.sleep(0.1)
