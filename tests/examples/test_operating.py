"""The examples for operators: what they ask of a server is what it answers."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import ROOT, Running, forked, run
from tests.proc import children, stats
from trio_envserve import ServerLimits, WireLimits

yaml = pytest.importorskip("yaml")
click = pytest.importorskip("click")

EXAMPLES = ROOT / "examples" / "operating"
UNIT = (EXAMPLES / "trio-envserve.service").read_text(encoding="utf-8")
DOCKERFILE = (EXAMPLES / "Dockerfile").read_text(encoding="utf-8")
KUBERNETES = EXAMPLES / "kubernetes.yaml"
HOSTS = EXAMPLES / "kubernetes-hosts.yaml"

LIMITS = ServerLimits()
LONGEST_STOP_S = LIMITS.drain_s + 2 * LIMITS.stop_s + LIMITS.reap_s + WireLimits().flush_s
PORT = "5555"

TAKEN = {"HOME": "/root", **{k: v for k, v in os.environ.items() if k.lower().endswith("_proxy")}}
"""What the steps of an image get from outside, as `docker build` does."""

needs_http = pytest.mark.skipif(
    None in map(importlib.util.find_spec, ("h11", "httpx2")), reason="needs the extra http"
)


def settings() -> dict[str, str]:
    lines = [line for line in UNIT.splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def resources() -> dict[str, Any]:
    text = KUBERNETES.read_text(encoding="utf-8")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def container() -> dict[str, Any]:
    (found,) = resources()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def probes() -> dict[str, Any]:
    return {name: value for name, value in container().items() if name.endswith("Probe")}


# -- systemd ----------------------------------------------------------------------


def test_the_unit_waits_longer_than_the_server_takes() -> None:
    given = settings()
    assert float(given["TimeoutStopSec"]) > LONGEST_STOP_S
    assert float(given["TimeoutStartSec"]) > LIMITS.start_s
    assert given["Type"] == "notify"
    assert given["KillMode"] == "mixed"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    program = settings()["ExecStart"].split()[0]
    unit = tmp_path / "trio-envserve.service"
    unit.write_text(UNIT.replace(program, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.real
async def test_the_command_of_the_unit_serves(tmp_path: Path) -> None:
    _, *arguments = shlex.split(settings()["ExecStart"])
    async with forked(tmp_path, *arguments, "--json", "--bind", "tcp://127.0.0.1:0") as server:
        await server.event("ready")
        server.signal(signal.SIGTERM)
        assert (await server.wait()).code == 0


# -- Kubernetes -------------------------------------------------------------------


def test_the_pod_waits_longer_than_the_server_takes() -> None:
    pod = resources()["Deployment"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > LONGEST_STOP_S
    start = probes()["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] > LIMITS.start_s


def test_the_pod_the_service_and_the_policy_are_about_one_server() -> None:
    found = resources()
    pod = found["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    ports = {each["name"]: each["containerPort"] for each in container()["ports"]}
    assert {each["name"]: each["port"] for each in found["Service"]["spec"]["ports"]} == ports
    assert f"--http=0.0.0.0:{ports['http']}" in container()["args"]
    assert f"--bind=tcp://0.0.0.0:{ports['zmtp']}" in container()["args"]
    assert f"--http-host={found['Service']['metadata']['name']}" in container()["args"]


@pytest.mark.slow
def test_the_manifests_fit_the_schemas_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for each in [*resources().values(), *of_hosts()]:
        validate.validate(each, desired_version=validate.latest_version(), strict=True)


def of_hosts() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(HOSTS.read_text(encoding="utf-8")))


def test_a_router_and_its_hosts_find_each_other_and_each_waits_for_what_drains() -> None:
    router, hosts, service, policy = of_hosts()
    pods = [each["spec"]["template"] for each in (router, hosts)]
    for deployment, pod in zip((router, hosts), pods, strict=True):
        assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    (serve,), (join,) = (pod["spec"]["containers"] for pod in pods)
    assert service["spec"]["selector"] == pods[0]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"] == pods[0]["metadata"]["labels"]
    ports = {each["name"]: each["containerPort"] for each in serve["ports"]}
    assert {each["name"]: each["port"] for each in service["spec"]["ports"]} == ports
    assert f"--hosts-bind=tcp://0.0.0.0:{ports['hosts']}" in serve["args"]
    assert join["args"][0] == f"tcp://{service['metadata']['name']}:{ports['hosts']}"
    grace = [pod["spec"]["terminationGracePeriodSeconds"] for pod in pods]
    assert grace[0] > LONGEST_STOP_S
    (drain,) = (each for each in join["args"] if each.startswith("--drain-s="))
    assert grace[1] > float(drain.partition("=")[2]) + LIMITS.stop_s + LIMITS.reap_s


@pytest.mark.real
@needs_http
async def test_the_router_and_a_host_of_the_manifest_run_a_rollout(tmp_path: Path) -> None:
    """With their own arguments, but for addresses and the folder of keys."""
    router, hosts, *_ = of_hosts()
    (serve,), (join,) = (each["spec"]["template"]["spec"]["containers"] for each in (router, hosts))
    for name, role in (("hosts", ["--role", "work"]), ("trainer", [])):
        made = ["curve", "new", "keys", name, *role, "--out", f"{name}.key"]
        assert (await run(tmp_path, *made)).code == 0
    given = [
        re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", each).replace("/keys", "keys")
        for each in serve["args"]
    ]
    async with forked(tmp_path, "serve", *given, "--json") as server:
        serving = await server.event("serving")
        _, *options = join["args"]
        options = [each.replace("$(POD)", tmp_path.name) for each in options]
        options = [each.replace("/keys/host.key", "hosts.key") for each in options]
        async with forked(tmp_path, "join", serving["hosts"], *options, "--json") as host:
            await host.event("joined")
            await server.event("ready")
            asked = ["eval", "arithmetic", "-n", "5", "--model", "oracle", "--json"]
            done = await run(tmp_path, *asked, "--address", serving["address"], "--curve",
                             "trainer.key")  # fmt: skip
            assert done.code == 0
            host.signal(signal.SIGTERM)
            assert (await host.wait()).code == 0


async def probed(server: Running, url: str, address: str, folder: Path) -> dict[str, int]:
    """What each probe of the manifest says: the status, or the exit code."""
    import httpx2

    said = {}
    for name, probe in probes().items():
        if "httpGet" in probe:
            port = url.rpartition(":")[2]
            host = {"host": f"10.1.2.3:{port}"}  # as the kubelet names the pod
            async with httpx2.AsyncClient(base_url=url, headers=host, timeout=None) as client:
                said[name] = (await client.get(probe["httpGet"]["path"])).status_code
        else:
            program, *arguments = probe["exec"]["command"]
            assert program == "trio-envserve"
            asked = [each.replace(f"tcp://127.0.0.1:{PORT}", address) for each in arguments]
            said[name] = (await run(folder, *asked)).code
    return said


@needs_http
@pytest.mark.real
async def test_the_probes_of_the_pod_follow_a_server_from_ready_to_draining(tmp_path: Path) -> None:
    given = [
        "--bind=tcp://127.0.0.1:0" if each.startswith("--bind=")
        else "--http=0.0.0.0:0" if each.startswith("--http=")
        else each
        for each in container()["args"]
    ]  # fmt: skip
    log = tmp_path / "log.jsonl"
    slow = ("--arg", f"log_path={log}", "--arg", "duration_s=300")
    async with forked(tmp_path, "serve", *given, *slow, "--json") as server:
        serving = await server.event("serving")
        url = serving["http"].replace("0.0.0.0", "127.0.0.1")
        address = serving["address"]
        await server.event("ready")
        while (said := await probed(server, url, address, tmp_path))["startupProbe"] == 503:
            pass  # the door itself hears of it a moment later
        assert said == {"startupProbe": 200, "livenessProbe": 200, "readinessProbe": 0}
        ask = ("eval", "arithmetic", "-n", "1", "--address", address, "--json", "--no-rerun")
        async with forked(tmp_path, *ask) as client:
            while not log.exists() or "start" not in log.read_text():
                await run(tmp_path, "status", address, "--ready")
            server.signal(signal.SIGTERM)
            while (said := await probed(server, url, address, tmp_path))["startupProbe"] == 200:
                pass
            assert said == {"startupProbe": 503, "livenessProbe": 200, "readinessProbe": 1}
            client.signal(signal.SIGINT)
            await client.wait()
        assert (await server.wait()).code == 0


# -- Docker -----------------------------------------------------------------------


def steps() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile."""
    lines = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


@pytest.mark.real
async def test_the_command_of_the_image_serves_and_its_check_asks_it(tmp_path: Path) -> None:
    found = dict(steps())
    arguments = [*yaml.safe_load(found["ENTRYPOINT"])[1:], *yaml.safe_load(found["CMD"])]
    arguments = [each.replace(f"tcp://0.0.0.0:{PORT}", "tcp://127.0.0.1:0") for each in arguments]
    arguments.remove("--insecure")  # at that address it means nothing
    check = yaml.safe_load(found["HEALTHCHECK"].partition(" CMD ")[2])[1:]
    async with forked(tmp_path, *arguments, "--json") as server:
        address = (await server.event("ready"))["address"]
        asked = [each.replace(f"tcp://127.0.0.1:{PORT}", address) for each in check]
        assert (await run(tmp_path, *asked)).code == 0
        server.signal(signal.SIGTERM)
        assert (await server.wait()).code == 0


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Debian of its own; skips the test where none can be had."""
    found = [shutil.which(name) for name in ("debootstrap", "unshare", "chroot", "nsenter")]
    if sys.platform != "linux" or os.geteuid() != 0 or None in found:
        pytest.skip("needs root, debootstrap and unshare")
    root = tmp_path_factory.mktemp("debian") / "root"
    make = ["debootstrap", "--variant=minbase", "--include=python3,python3-venv", "bookworm"]
    done = subprocess.run([*make, str(root)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"debootstrap cannot make one: {done.stdout[-300:]}")
    for path in ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf"):
        if os.path.exists(path):
            os.makedirs(os.path.dirname(f"{root}{path}"), exist_ok=True)
            shutil.copy(path, f"{root}{path}")
    return root


@pytest.mark.real
@pytest.mark.slow
async def test_the_steps_of_the_image_make_one_whose_process_1_reaps_and_drains(
    debian: Path, tmp_path: Path
) -> None:
    user, folder, environ, started = "0", "/", {"PATH": "/usr/bin:/bin:/usr/sbin"}, {}
    for name, rest in steps():
        match name:
            case "RUN":
                step = [tool("chroot"), str(debian), "sh", "-c", rest]
                subprocess.run(step, check=True, env={**environ, **TAKEN})  # noqa: ASYNC221
            case "COPY":
                *sources, to = rest.split()
                for source in sources:
                    copy(ROOT / source, debian / to.lstrip("/"), into=to.endswith("/"))
            case "ENV":
                environ[rest.partition("=")[0]] = rest.partition("=")[2]
            case "WORKDIR":
                folder = rest
                (debian / rest.lstrip("/")).mkdir(exist_ok=True)
            case "USER":
                user = rest
            case "ENTRYPOINT" | "CMD" | "HEALTHCHECK":
                started[name] = yaml.safe_load(rest[rest.index("[") :])
    assert user != "0"
    # Its children leave their group, and their parents end: process 1 inherits them.
    (debian / "envs" / "leaving.py").write_text(
        "import subprocess, sys\n"
        "async def leaving(rollout):\n"
        "    code = 'import os; os.setsid(); os.fork() and os._exit(0)'\n"
        "    subprocess.run([sys.executable, '-c', code])\n"
        "    return 1\n"
    )
    (debian / "envs" / "in.jsonl").write_text("1\n" * 10)
    shown = [each.replace("arithmetic", "leaving:leaving") for each in started["CMD"]]
    shown = [each.replace("0.0.0.0", "127.0.0.1") for each in shown]
    program = [*started["ENTRYPOINT"], *shown, "--json"]
    script = (
        f"mount -t proc proc /proc && cd {folder} && "
        f'exec setpriv --reuid={user} --regid={user} --clear-groups "$@"'
    )
    own = [tool("unshare"), "--pid", "--fork", "--mount", "--kill-child"]
    enter = [*own, tool("chroot"), str(debian), "sh", "-c", script, "sh", *program]
    err = tmp_path / "err"
    with err.open("wb") as errors, subprocess.Popen(  # noqa: ASYNC220, ASYNC230  # started at once
        enter, env=environ, stdout=subprocess.PIPE, stderr=errors
    ) as outer:  # fmt: skip
        running = Running(outer, err)
        try:
            serving = await running.event("serving")
            assert serving["pid"] == 1
            await running.event("ready")
            (first,) = children(outer.pid)
            look = [tool("nsenter"), f"--target={first}", "--pid", "--mount", f"--root={debian}"]
            check = [*look, "env", f"PATH={environ['PATH']}", *started["HEALTHCHECK"]]
            assert subprocess.run(check, check=False).returncode == 0  # noqa: ASYNC221
            ask = ["eval", "x", "--inputs", str(debian / "envs/in.jsonl"), "--json"]
            done = await run(tmp_path, *ask, "--address", serving["address"])
            assert done.last["results"] == 10
            while has_zombies(first):
                pass
            os.kill(first, signal.SIGTERM)
            finished = await running.wait()
            assert finished.code == 0
            assert finished.last["why"] == "SIGTERM"
            for line in finished.err.splitlines():
                assert line.startswith("{"), line
        finally:
            outer.kill()


def tool(name: str) -> str:
    found = shutil.which(name)
    assert found is not None
    return found


def copy(source: Path, to: Path, *, into: bool) -> None:
    if into:
        to.mkdir(parents=True, exist_ok=True)
        to /= source.name
    if source.is_dir():
        shutil.copytree(source, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pyc*"))
    else:
        shutil.copy(source, to)


def has_zombies(pid: int) -> bool:
    """Whether a child of this process has ended, and nobody has asked how."""
    return any(state == "Z" and parent == str(pid) for _, (state, parent, *_) in stats())
